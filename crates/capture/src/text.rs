//! Text from the target, made safe for a terminal.

/// Returns true if a character is not plain text: a control character, which may move a terminal's cursor, or one that
/// changes the direction of its neighbours (Unicode's bidirectional formatting). A process chooses its own name and
/// those of its classes, so they may contain anything.
#[must_use]
pub fn is_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns `text` with a blank for each character that [is not plain text](is_control).
pub(crate) fn one_line(text: &str) -> String {
    text.replace(is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_stays_one_line_of_text() {
        assert_eq!(one_line("ruby\0-e\0puts 1\nputs \u{1b}[31m2"), "ruby -e puts 1 puts  [31m2");
    }

    #[test]
    fn controls_are_not_plain_text_and_letters_of_all_scripts_are() {
        for char in "\u{1b}\r\u{85}\u{202e}\u{2066}\u{200f}".chars() {
            assert!(is_control(char), "{char:?}");
        }
        for char in "aÄж漢ع\u{301} …".chars() {
            assert!(!is_control(char), "{char:?}");
        }
    }
}
