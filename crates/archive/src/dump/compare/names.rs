use std::collections::HashMap;

/// All texts together have at most these bytes; a hostile dump has a name for each object.
const MAX_BYTES: usize = 1 << 28;

/// Texts by numbers. The text of number 0 is empty.
pub(super) struct Names {
    texts: Vec<Box<str>>,
    numbers: HashMap<Box<[u8]>, u32>,
    bytes: usize,
}

impl Names {
    pub(super) fn new() -> Self {
        Self { texts: vec!["".into()], numbers: HashMap::from([(Box::default(), 0)]), bytes: 0 }
    }

    /// The number of a text. Those that have no room share one.
    pub(super) fn number(&mut self, text: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if self.bytes.saturating_add(text.len()) > MAX_BYTES {
            return self.number_of_others();
        }
        self.add(text)
    }

    pub(super) fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", |it| it)
    }

    fn number_of_others(&mut self) -> u32 {
        const OTHERS: &[u8] = b"(others)";
        self.numbers.get(OTHERS).copied().unwrap_or_else(|| self.add(OTHERS))
    }

    fn add(&mut self, text: &[u8]) -> u32 {
        // Beside a text, its places take some dozen bytes.
        self.bytes = self.bytes.saturating_add(2 * text.len() + 64);
        let number = self.texts.len() as u32;
        self.texts.push(String::from_utf8_lossy(text).into());
        self.numbers.insert(text.into(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_once_and_not_without_end() {
        let mut names = Names::new();
        let [first, second, again] = ["a", "b\u{1b}", "a"].map(|it| names.number(it.as_bytes()));
        assert_eq!((first, names.text(second)), (again, "b\u{1b}"));
        assert_eq!((names.number(b""), names.text(0)), (0, ""));
        let large = vec![b'x'; MAX_BYTES / 2 - 200];
        let large = names.number(&large);
        let [third, fourth] =
            ["c".repeat(400), "d".repeat(400)].map(|it| names.number(it.as_bytes()));
        assert_eq!((names.text(large).len(), third), (MAX_BYTES / 2 - 200, fourth));
        assert_eq!(names.text(third), "(others)");
    }
}
