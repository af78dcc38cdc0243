/// Whether a character is more than text to whoever shows it: controls, which move a terminal's cursor, and those that
/// turn the direction of what stands beside them (Unicode's bidirectional formatting). What a process calls itself and
/// its classes is not to be believed.
#[must_use]
pub fn is_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_text_is_none_and_letters_of_all_scripts_are() {
        for char in "\u{1b}\r\u{85}\u{202e}\u{2066}\u{200f}".chars() {
            assert!(is_control(char), "{char:?}");
        }
        for char in "aÄж漢ع\u{301} …".chars() {
            assert!(!is_control(char), "{char:?}");
        }
    }
}
