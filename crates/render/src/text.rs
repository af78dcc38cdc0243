//! Parts of text output: styles, paragraphs, and figures.

use std::borrow::Cow;
use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use formats::Trajectory;

use crate::words::{VerdictWords, signed};

/// Smaller changes have a unit of their own, in bytes.
const MIN_CHANGE: u64 = 16 << 10;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const RED: Style = AnsiColor::Red.on_default().bold();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default().bold();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();

/// Writes a verdict, its evidence, and the way to check it.
pub(crate) fn write_verdict(
    out: &mut String,
    style: Style,
    words: &VerdictWords,
    width: usize,
) -> std::fmt::Result {
    write_paragraph(out, style, &words.summary, "", width)?;
    for evidence in &words.evidence {
        write_wrapped(out, " · ", evidence, width)?;
    }
    write_paragraph(out, YELLOW, &words.check, "   ", width)?;
    writeln!(out)
}

/// Text in one style, wrapped at `width`, with `first` before its first line.
pub(crate) fn write_paragraph(
    out: &mut String,
    style: Style,
    text: &str,
    first: &str,
    width: usize,
) -> std::fmt::Result {
    for line in textwrap::wrap(text, options(first, width)) {
        writeln!(out, "{style}{line}{style:#}")?;
    }
    Ok(())
}

pub(crate) fn write_wrapped(
    out: &mut String,
    first: &str,
    text: &str,
    width: usize,
) -> std::fmt::Result {
    for line in textwrap::wrap(text, options(first, width)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns text in lines of at most `width` columns.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    textwrap::wrap(text, width.max(20)).into_iter().map(Into::into).collect()
}

/// Returns the beginning of `text` that takes at most this many columns of a terminal.
#[must_use]
pub fn clipped(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let end = text.char_indices().find(|(_, char)| {
        taken += textwrap::core::display_width(char.encode_utf8(&mut [0; 4]));
        taken > columns
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// Wrapping at `width` with `first` before the first line and as many blanks before the others.
fn options(first: &str, width: usize) -> textwrap::Options<'_> {
    const BLANKS: &str = "                ";
    let indent = &BLANKS[..first.chars().count().min(BLANKS.len())];
    textwrap::Options::new(width.saturating_sub(1).max(20))
        .initial_indent(first)
        .subsequent_indent(indent)
}

/// Text for a page instead of a terminal.
pub(crate) fn without_styles(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |it| it.1))
}

/// Writes `parts` with dots between them, in as many lines as they need.
pub(crate) fn write_parts(out: &mut String, parts: &[String], width: usize) -> std::fmt::Result {
    const DOT: &str = "  ·  ";
    let mut column = 0;
    for part in parts {
        let columns = textwrap::core::display_width(part);
        let dot = textwrap::core::display_width(DOT);
        if column > 0 && column + dot + columns > width {
            writeln!(out)?;
            column = 0;
        }
        if column > 0 {
            write!(out, "{DOT}")?;
            column += dot;
        }
        write!(out, "{part}")?;
        column += columns;
    }
    writeln!(out)
}

/// Returns a bar for `part` of `whole`: `columns` for the whole, and never more.
#[must_use]
pub fn bar(part: u64, whole: u64, columns: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    let filled = (2 * part * u128::from(columns) + whole) / (2 * whole);
    "█".repeat(filled.min(columns.into()) as usize)
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Removes empty lines at the end.
pub(crate) fn end_with_a_line(text: &mut String) {
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// Returns a word as a shell takes it, in one line: it may be the name of a file, or come from another machine.
#[must_use]
pub fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |it: char| it.is_alphanumeric() || "-_./:=,+@%".contains(it);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace(linux::is_control, " ").replace('\'', "'\\''")).into()
}

/// The first and the last size, and the change.
pub(crate) fn changes(bytes: &Trajectory) -> Vec<String> {
    let first = bytes.at.first().copied().unwrap_or_default();
    vec![mebibytes(first), mebibytes(bytes.last()), change(bytes.change)]
}

/// A change in MiB with its sign.
pub(crate) fn change(bytes: i64) -> String {
    if bytes.unsigned_abs() < MIN_CHANGE {
        return signed(bytes);
    }
    format!("{:+.1}", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Chinese command line took twice the width of the terminal.
    #[test]
    fn text_is_clipped_by_columns_and_not_by_characters() {
        for (columns, expected) in
            [(0, ""), (3, "ü漢"), (4, "ü漢"), (5, "ü漢字"), (99, "ü漢字e\u{301}x")]
        {
            assert_eq!(clipped("ü漢字e\u{301}x", columns), expected, "{columns}");
        }
        assert_eq!(clipped("e\u{301}x", 1), "e\u{301}");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, expected) in [
            ("a-b_c.rbloat", "a-b_c.rbloat"),
            ("/srv/größe=1,2+3@4%", "/srv/größe=1,2+3@4%"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("$(reboot)", "'$(reboot)'"),
            ("two\nlines", "'two lines'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
