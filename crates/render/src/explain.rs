//! Explanations of causes and terms, which are those of docs/causes.md.

use std::fmt::Write;

use crate::text::BOLD;

const PAGE: &str = include_str!("../../../docs/causes.md");

/// The causes and terms that can be explained, in the order of the page.
pub fn explained_words() -> impl Iterator<Item = &'static str> {
    sections().map(|(word, _)| word)
}

/// Returns the explanation of a cause or term, in lines of `width` columns; `None` if there is none. Upper and lower case
/// are the same.
#[must_use]
pub fn explanation(word: &str, width: usize) -> Option<String> {
    let (word, text) = sections().find(|(it, _)| it.eq_ignore_ascii_case(word))?;
    let mut out = format!("{BOLD}{word}{BOLD:#}\n");
    for paragraph in text.split("\n\n") {
        let words: Vec<_> = paragraph.split_whitespace().collect();
        let _ = write!(out, "\n{}\n", textwrap::fill(&words.join(" "), width.max(20)));
    }
    Some(out)
}

/// The headings and texts of the page.
fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    let (_, sections) = PAGE.split_once("\n## ").unwrap_or_default();
    sections.split("\n## ").filter_map(|section| {
        let (word, text) = section.split_once('\n')?;
        Some((word.trim(), text.trim()))
    })
}

#[cfg(test)]
mod tests {
    use ledger::Cause;

    use super::*;

    #[test]
    fn every_cause_is_explained_in_its_order() {
        let words: Vec<_> = explained_words().collect();
        let causes: Vec<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
        assert_eq!(words[..causes.len()], causes);
        for word in words {
            let text = explanation(&word.to_uppercase(), 80).unwrap();
            assert!(
                text.lines().count() > 2 && text.lines().all(|line| line.chars().count() <= 80)
            );
        }
        assert_eq!(explanation("malloc", 80), None);
    }
}
