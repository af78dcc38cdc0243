//! Text from the target, made safe for a terminal.

/// Returns true if a character is not plain text: a control character, which may move a terminal's cursor; one that is
/// invisible or changes the direction of its neighbours (Unicode's format characters); or a separator of lines. A
/// process chooses its own name and those of its classes, so they may contain anything.
#[must_use]
pub fn is_control(char: char) -> bool {
    if char.is_ascii() {
        return char.is_ascii_control();
    }
    // The standard library knows which characters to escape. The letter before the character makes it take combining
    // marks for what they are.
    let mut text = [b'a'; 5];
    let bytes = char.encode_utf8(&mut text[1..]).len();
    let text = str::from_utf8(&text[..=bytes]);
    text.is_ok_and(|text| text.escape_debug().nth(1) == Some('\\'))
}

/// Returns `text` with a blank for each character that [is not plain text](is_control).
#[must_use]
pub fn one_line(text: &str) -> String {
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
        let c0_and_c1 = (0..0x20).chain(0x7f..0xa0).filter_map(char::from_u32);
        // Directions, invisible characters, separators of lines, and unassigned ones.
        let others = "\u{61c}\u{200e}\u{202e}\u{2066}\u{200b}\u{200d}\u{2060}\u{feff}\u{ad}\u{e0041}\u{2028}\u{2029}\u{fff9}";
        for char in c0_and_c1.chain(others.chars()) {
            assert!(is_control(char), "{char:?}");
        }
        for char in "a\\'\"~Äж漢ع\u{301} …→😀".chars() {
            assert!(!is_control(char), "{char:?}");
        }
    }
}
