//! Text that may contain names that a process, a file or a file name chose, for a terminal.

use std::borrow::Cow;

/// The parameters of the escape sequences that select rbloat's styles, and clap's. None of them hides text.
const STYLES: [&str; 7] = ["0", "1", "2", "4", "31", "32", "33"];

/// Escapes all characters but line breaks, styles, and plain text: no other sequence reaches a terminal.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_special = |it: char| it != '\n' && linux::is_control(it);
    if !text.contains(is_special) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find(is_special) {
        let (before, special) = rest.split_at(place);
        escaped.push_str(before);
        let style = style_at(special).unwrap_or_default();
        let mut after = special[style.len()..].chars();
        escaped.push_str(style);
        if style.is_empty() {
            escaped.extend(after.next().into_iter().flat_map(char::escape_debug));
        }
        rest = after.as_str();
    }
    escaped.push_str(rest);
    escaped.into()
}

/// Returns the escape sequence of a style that `text` begins with.
fn style_at(text: &str) -> Option<&str> {
    let sequence = text.strip_prefix("\x1b[")?;
    let (parameters, _) = sequence.split_once('m')?;
    let is_style = parameters.split(';').all(|it| STYLES.contains(&it));
    is_style.then(|| &text[.."\x1b[".len() + parameters.len() + "m".len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_sequences_in_names_are_escaped() {
        let hostile = "\x1b]0;title\x07 \x1b[2J \u{9b}31m \u{202e}evil\u{2028}\u{200b}\r\x08\t";
        let expected = "\\u{1b}]0;title\\u{7} \\u{1b}[2J \\u{9b}31m \\u{202e}evil\\u{2028}\\u{200b}\\r\\u{8}\\t";
        assert_eq!(plain(hostile), expected);
        // Hidden text, and sequences that never end.
        assert_eq!(plain("\x1b[8mhidden\x1b["), "\\u{1b}[8mhidden\\u{1b}[");
        assert_eq!(plain("\x1b[1;8m\x1b[31"), "\\u{1b}[1;8m\\u{1b}[31");
    }

    #[test]
    fn text_styles_and_lines_pass_unchanged() {
        for text in ["", "größer → 漢字\n\nb\\n", "\x1b[1m\x1b[31mred\x1b[0m\n"] {
            assert_eq!(plain(text), text);
        }
    }
}
