//! Explanations of causes, verdicts, terms and names, which are those of the documentation.

use std::fmt::Write;

use formats::{Explanation, Explanations};

use crate::text::BOLD;

/// The pages with a section for each word. A section whose heading begins with "The" is for readers of the page only. `../docs` has links to
/// the pages, since a package has only the files of its own folder.
const PAGES: [&str; 3] = [
    include_str!("../docs/causes.md"),
    include_str!("../docs/verdicts.md"),
    include_str!("../docs/glossary.md"),
];

/// The page with tables of names.
const NAMES: &str = include_str!("../docs/names.md");
/// Stands for any text in a name.
const ANYTHING: char = '…';

/// The causes, verdicts, terms and names that can be explained, in the order of the pages.
pub fn explained_words() -> impl Iterator<Item = &'static str> {
    sections().chain(names()).map(|(word, _)| word)
}

/// Returns the explanation of a cause or term, in lines of `width` columns; `None` if there is none. Upper and lower case
/// are the same.
#[must_use]
pub fn explanation(word: &str, width: usize) -> Option<String> {
    let (word, text) = find(word)?;
    let mut out = format!("{BOLD}{word}{BOLD:#}\n");
    for paragraph in paragraphs(text) {
        let _ = write!(out, "\n{}\n", textwrap::fill(&paragraph, width.max(20)));
    }
    Some(out)
}

/// Returns the explanation of a word, or of all words, as data. `None` if there is none.
#[must_use]
pub fn explanations(word: Option<&str>) -> Option<Explanations> {
    let found: Vec<_> = match word {
        Some(word) => vec![find(word)?],
        None => sections().chain(names()).collect(),
    };
    let explanation = |(word, text): (&str, &str)| Explanation {
        word: word.into(),
        text: paragraphs(text).collect::<Vec<_>>().join("\n\n"),
    };
    Some(Explanations { explanations: found.into_iter().map(explanation).collect() })
}

/// Returns explanations in one sentence.
#[must_use]
pub fn explanations_summary(explanations: &Explanations) -> String {
    match &explanations.explanations[..] {
        [Explanation { word, text }] => {
            let sentence = text.split_inclusive(". ").next().unwrap_or_default();
            format!("{word}: {}", sentence.trim_end())
        }
        many => format!("rbloat explains {} words.", many.len()),
    }
}

fn find(word: &str) -> Option<(&'static str, &'static str)> {
    let mut words = sections().filter(|(it, _)| it.eq_ignore_ascii_case(word));
    words.next().or_else(|| names().find(|(name, _)| is_name(name, word)))
}

/// The paragraphs of a text, each in one line.
fn paragraphs(text: &str) -> impl Iterator<Item = String> {
    text.split("\n\n").map(|it| it.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The headings and texts of the pages.
fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = PAGES.iter().flat_map(|page| page.split("\n## ").skip(1));
    sections.filter_map(|section| {
        let (word, text) = section.split_once('\n')?;
        (!word.starts_with("The ")).then_some((word.trim(), text.trim()))
    })
}

/// The names and meanings in the tables of their page.
fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    NAMES.lines().filter_map(|line| {
        let (name, meaning) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        let in_parentheses = name.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
        let kind = || name.strip_prefix('`')?.strip_suffix('`');
        Some((in_parentheses.or_else(kind)?, meaning))
    })
}

/// Returns true if a word is this name, with or without parentheses. The name of a sum begins with the number of its rows.
fn is_name(name: &str, word: &str) -> bool {
    let word = word.strip_prefix('(').unwrap_or(word);
    let word = word
        .strip_suffix(')')
        .unwrap_or(word)
        .trim_start_matches(|it: char| it.is_ascii_digit() || it == ',' || it == ' ');
    match name.split_once(ANYTHING) {
        Some((start, _)) => {
            word.get(..start.len()).is_some_and(|it| it.eq_ignore_ascii_case(start))
        }
        None => name.eq_ignore_ascii_case(word),
    }
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
        for word in words.into_iter().filter(|word| !word.contains(ANYTHING)) {
            let text = explanation(&word.to_uppercase(), 80).unwrap();
            assert!(
                text.lines().count() > 2
                    && text.lines().all(|line| line.chars().count() <= 80)
                    && !text.contains("](")
            );
        }
        assert_eq!(explanation("The verdict of a diff", 80), None);
        // Rows of most reports.
        let names = ["RubyVM", "libruby-3.1.so.3.1.2", "(variables of libruby-3.1.so.3.1.2)"];
        for name in names.into_iter().chain(["[…]", "[thread variable :cache]"]) {
            assert!(explanation(name, 80).is_some(), "{name}");
        }
    }

    #[test]
    fn every_verdict_of_a_diff_is_explained() {
        let schema = include_str!("../../../docs/schemas/diff.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let kinds = schema["$defs"]["DiffKind"]["oneOf"].as_array().unwrap();
        let kinds: Vec<_> = kinds.iter().map(|kind| kind["const"].as_str().unwrap()).collect();
        assert!(kinds.contains(&"managed_leak"), "{kinds:?}");
        for kind in kinds {
            assert!(explanation(kind, 80).is_some(), "{kind}");
        }
    }
}
