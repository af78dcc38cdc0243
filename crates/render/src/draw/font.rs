//! The font of PNGs, and the widths of texts in it.
//!
//! It is in the binary, so pictures are the same on machines without fonts. SVG and HTML use the reader's fonts.
//! DejaVu Sans is wider than most fonts, so texts that fit in it fit in others. The file is a subset of version 2.37,
//! made by fonttools:
//!
//! ```text
//! pyftsubset DejaVuSans.ttf --output-file=font/DejaVuSans.ttf --layout-features=kern --no-hinting \
//!   --notdef-outline --name-IDs='*' --unicodes=U+20-7E,U+A0-17F,U+2010-2027,U+2030,U+2190-2193,\
//!   U+2212,U+2260,U+2264,U+2265,U+2581-2588
//! ```

use std::sync::{Arc, LazyLock};

use resvg::usvg::fontdb::Database;
use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider as _};

const DATA: &[u8] = include_bytes!("font/DejaVuSans.ttf");

/// Its family name.
pub(super) const FAMILY: &str = "DejaVu Sans";

/// A database with this one font.
pub(super) static DATABASE: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut database = Database::new();
    database.load_font_data(DATA.to_vec());
    database.set_sans_serif_family(FAMILY);
    Arc::new(database)
});

static FONT: LazyLock<FontRef<'static>> =
    LazyLock::new(|| FontRef::new(DATA).expect("the font in the binary is whole"));

/// Returns a function from a character to its width in pixels. The font's tables are opened once for it.
fn character_widths(size: f64) -> impl Fn(char) -> f64 {
    let metrics = FONT.glyph_metrics(Size::new(size as f32), LocationRef::default());
    let glyphs = FONT.charmap();
    move |character| {
        let glyph = glyphs.map(character).unwrap_or_default();
        f64::from(metrics.advance_width(glyph).unwrap_or(size as f32))
    }
}

/// Returns the width of a line of text in pixels.
pub(crate) fn line_width(text: &str, size: f64) -> f64 {
    text.chars().map(character_widths(size)).sum()
}

/// Returns the beginning of a text that is no wider than `width`.
pub(crate) fn cut(text: &str, size: f64, width: f64) -> &str {
    let width_of = character_widths(size);
    let mut left = width;
    let end = text.char_indices().find(|&(_, character)| {
        left -= width_of(character);
        left < 0.0
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// Breaks a text at spaces into lines that are no wider than `width`. A longer word is cut.
pub(crate) fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if line_width(line, size) + line_width(word.trim_end(), size) > width && !line.is_empty() {
            lines.push(cut(word, size, width).into());
        } else {
            line.push_str(cut(word, size, width));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_wider_than_their_room() {
        assert!(line_width("mmm", 12.0) > line_width("iii", 12.0));
        assert_eq!(line_width("ab", 24.0), 2.0 * line_width("ab", 12.0));
        let long = "a".repeat(40);
        let words = "some words, and one that is far too long: ";
        let lines = wrap(&format!("{words}{long}"), 12.0, 100.0);
        assert!(lines.len() > 3);
        assert!(lines.iter().all(|line| line_width(line.trim_end(), 12.0) <= 100.0), "{lines:?}");
        assert_eq!(lines.concat(), words.to_owned() + cut(&long, 12.0, 100.0));
        assert_eq!(wrap("", 12.0, 100.0), [""]);
    }
}
