//! The pages of documentation: each is a chapter of the site, its links lead somewhere, and it has what it must explain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

mod claims;
mod command_lines;

/// Pages that `scripts/docs` generates.
const GENERATED: [&str; 3] =
    ["docs/commands.md", "docs/sample-report.html", "docs/sample-map.html"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The lines of a page that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence && !line.starts_with("    ")
    })
}

/// The targets of the links of a page, without those to other sites.
fn links(text: &str) -> Vec<String> {
    let prose: Vec<&str> = prose(text).collect();
    let prose = prose.join("\n");
    let links = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.map(|(link, _)| link.to_owned()).filter(|link| !link.contains("://")).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let kept = line.trim_start_matches('#').trim().to_lowercase();
            let kept = kept.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            kept.map(|it| if it == ' ' { '-' } else { it }).collect()
        })
        .collect()
}

/// The path from the root of the repository to a file that a page links to.
fn resolve(page: &str, link: &str) -> String {
    let mut path = Path::new(page).parent().unwrap().to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{page}: {link} is outside"),
            part => path.push(part),
        }
    }
    path.to_str().unwrap().to_owned()
}

/// The chapters of the site.
fn chapters() -> Vec<String> {
    let summary = "docs/SUMMARY.md";
    links(&read(summary)).iter().map(|link| resolve(summary, link)).collect()
}

#[test]
fn every_page_is_a_chapter_of_the_site_once() {
    let chapters = chapters();
    let unique: BTreeSet<&str> = chapters.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), chapters.len(), "{chapters:?}");
    for folder in ["docs", "docs/design"] {
        for name in pages_in(folder).iter().filter(|name| *name != "SUMMARY.md") {
            let page = format!("{folder}/{name}");
            assert!(unique.contains(page.as_str()), "{page} is missing from docs/SUMMARY.md");
        }
    }
}

/// The names of the pages in a folder, in order.
fn pages_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md")).collect()
}

#[test]
fn design_notes_are_numbered_and_have_the_same_sections() {
    let index = read("docs/design/README.md");
    let notes: Vec<String> = pages_in("docs/design").into_iter().collect();
    let (index_page, notes) = notes.split_last().unwrap();
    assert_eq!(index_page, "README.md");
    for (name, number) in notes.iter().zip(1..) {
        assert!(name.starts_with(&format!("{number:03}-")), "{name} has not the number {number}");
        let text = read(&format!("docs/design/{name}"));
        let title =
            text.lines().next().and_then(|line| line.strip_prefix(&format!("# {number}. ")));
        let title = title.unwrap_or_else(|| panic!("{name} has no title with its number"));
        let line = format!("\n{number}. [{title}]({name})\n");
        assert!(index.contains(&line), "docs/design/README.md has no line{line}");
        let sections: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let expected = ["Context", "Decision", "Alternatives considered", "Consequences"];
        assert_eq!(sections, expected, "{name}");
    }
}

#[test]
fn the_way_in_is_short() {
    let lines = read("ARCHITECTURE.md").lines().count();
    assert!(lines <= 100, "ARCHITECTURE.md has {lines} lines: reasons belong to docs/design");
}

/// The pages that users read. JSON documents are a reference for programs.
fn pages_for_users() -> Vec<String> {
    let summary = "docs/SUMMARY.md";
    let text = read(summary);
    let mut pages = vec!["README.md".to_owned()];
    for section in text.split("\n# ").skip(1) {
        let (name, list) = section.split_once('\n').unwrap();
        if ["Start", "Understand", "Use"].contains(&name) {
            pages.extend(links(list).iter().map(|link| resolve(summary, link)));
        }
    }
    pages.retain(|page| page != "docs/json.md" && !GENERATED.contains(&page.as_str()));
    pages
}

#[test]
fn pages_for_users_are_short() {
    const MAX_WORDS: usize = 25_500;
    const MAX_WORDS_OF_README: usize = 1_500;
    let pages = pages_for_users();
    assert!(pages.len() > 20 && pages.iter().any(|page| page == "gem/README.md"), "{pages:?}");
    let words = |page: &String| read(page).split_whitespace().count();
    let mut counts: Vec<_> = pages.iter().map(|page| (words(page), page)).collect();
    counts.sort();
    let sum: usize = counts.iter().map(|(words, _)| words).sum();
    assert!(sum <= MAX_WORDS, "{sum} words: {counts:#?}");
    assert!(words(&pages[0]) <= MAX_WORDS_OF_README, "README.md: {}", words(&pages[0]));
}

#[test]
fn the_links_of_every_page_lead_somewhere() {
    let written = chapters().into_iter().filter(|page| !GENERATED.contains(&page.as_str()));
    let pages: BTreeMap<String, String> = written.map(|page| (page.clone(), read(&page))).collect();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { resolve(page, path) };
            if GENERATED.contains(&target.as_str()) {
                continue;
            }
            // A page of the site must not link to a page of the repository that the site does not have.
            let is_there = match target.ends_with(".md") {
                true => pages.contains_key(&target),
                false => root().join(&target).is_file(),
            };
            if !is_there || !anchor.is_empty() && !anchors(&pages[&target]).contains(anchor) {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_exit_status_has_a_section_of_its_own() {
    let help = Command::new(env!("CARGO_BIN_EXE_rbloat")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, statuses) = help.split_once("Exit status:\n").unwrap();
    let names: Vec<&str> = statuses
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    let page = read("docs/troubleshooting.md");
    let sections = page.lines().filter_map(|line| line.strip_prefix("## ")?.split_once(':'));
    let sections: Vec<&str> = sections.map(|(name, _)| name).collect();
    assert_eq!(sections, names, "{help}");
}

/// An example on the page of verdicts.
struct Example {
    /// The path in `scenarios/`, and options.
    scenario: String,
    /// The sentence that rbloat printed.
    sentence: String,
}

/// The rows of the table of verdicts of a report: the sentence, the scenario, the meaning, and what to do.
fn rows_of_verdicts(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.skip(1).map(|row| row.split(" | ").collect()).collect()
}

/// The example of a row. Text may follow the scenario.
fn example_of_row(row: &[&str]) -> Option<Example> {
    let [sentence, scenario, _, _] = row else { return None };
    let (scenario, _) = scenario.strip_prefix('`')?.split_once('`')?;
    Some(Example { scenario: scenario.to_owned(), sentence: (*sentence).to_owned() })
}

/// The example of a section: a paragraph with a sentence in quotation marks.
fn example_of_section(section: &str) -> Option<Example> {
    let mut paragraphs = section.split("\n\n");
    let example = paragraphs.find_map(|it| it.trim().strip_prefix("Example (`"))?;
    let (scenario, rest) = example.split_once('`')?;
    let (_, sentence) = rest.split_once("): \"")?;
    let words: Vec<_> = sentence.strip_suffix('"')?.split_whitespace().collect();
    Some(Example { scenario: scenario.to_owned(), sentence: words.join(" ") })
}

/// The string literals of the sources of verdicts, each without the backslashes at the ends of its lines.
fn sentences_of_verdicts() -> Vec<String> {
    let folder = "crates/render/src/words";
    let mut files = ["verdict.rs", "diff.rs"].map(|file| format!("{folder}/{file}")).to_vec();
    for modules in ["verdict", "diff"].map(|name| format!("{folder}/{name}")) {
        let entries = fs::read_dir(root().join(&modules)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        files.extend(names.map(|name| format!("{modules}/{name}")));
    }
    let literals = files.iter().map(|file| {
        let source = read(file);
        let quoted = source.split('"').skip(1).step_by(2);
        let one_line = |text: &str| text.split("\\\n").map(str::trim_start).collect::<String>();
        quoted.map(one_line).collect::<Vec<_>>()
    });
    literals.flatten().collect()
}

/// Returns true if a sentence begins as a format string does, with any text for its arguments.
fn is_made_of(sentence: &str, format: &str) -> bool {
    /// Shorter texts fit to any sentence.
    const MIN_CHARS: usize = 15;
    // The texts between the arguments.
    let mut texts = format.split('{').enumerate().map(|(number, part)| match number {
        0 => part,
        _ => part.split_once('}').map_or(part, |(_, text)| text),
    });
    let length: usize = texts.clone().map(str::len).sum();
    let first = texts.next().unwrap_or_default();
    let Some(rest) = sentence.strip_prefix(first) else { return false };
    let end = texts.try_fold(rest, |rest, text| rest.split_once(text).map(|(_, rest)| rest));
    length >= MIN_CHARS && end.is_some()
}

#[test]
fn every_verdict_has_an_example_that_can_be_printed() {
    let page = read("docs/verdicts.md");
    let rows = rows_of_verdicts(&page);
    let mut examples = Vec::new();
    for row in &rows {
        examples.push(example_of_row(row).unwrap_or_else(|| panic!("no example: {row:?}")));
    }
    for cause in ledger::Cause::ALL {
        let link = format!("](causes.md#{})", cause.name().replace('.', ""));
        // No verdict is on overhead.
        let is_missing = cause.group() != ledger::CauseGroup::Overhead
            && !rows.iter().any(|row| row.last().is_some_and(|steps| steps.contains(&link)));
        assert!(!is_missing, "no row has {link}");
    }
    let others = [
        "are free, but still resident: ",
        "Healthy: ",
        "Too small for a verdict: ",
        "No cause exceeds ",
    ];
    for other in others {
        assert!(examples.iter().any(|it| it.sentence.contains(other)), "no row has {other:?}");
    }

    let schema: serde_json::Value =
        serde_json::from_str(&read("docs/schemas/diff.schema.json")).unwrap();
    let kinds = schema["$defs"]["DiffKind"]["oneOf"].as_array().unwrap();
    assert!(kinds.len() > 8, "{kinds:?}");
    for kind in kinds {
        let kind = kind["const"].as_str().unwrap();
        let mut sections = page.split("\n## ").filter_map(|section| section.split_once('\n'));
        let section = sections.find(|(heading, _)| *heading == kind);
        let example = section.and_then(|(_, text)| example_of_section(text));
        examples.push(example.unwrap_or_else(|| panic!("no example of {kind}")));
    }

    let formats = sentences_of_verdicts();
    for Example { scenario, sentence } in examples {
        let name = scenario.split(' ').next().unwrap_or_default();
        let file = root().join(format!("scenarios/{name}.rb"));
        assert!(file.is_file(), "{}: {sentence}", file.display());
        let is_printed = formats.iter().any(|format| is_made_of(&sentence, format));
        assert!(is_printed, "rbloat does not print: {sentence}");
    }
}

#[test]
fn every_scenario_is_described() {
    let page = read("scenarios/README.md");
    for folder in ["", "cases/", "growth/", "owners/"] {
        let files = fs::read_dir(root().join("scenarios").join(folder)).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        for path in paths.filter(|path| path.extension().is_some_and(|it| it == "rb")) {
            let name = path.file_stem().unwrap().to_str().unwrap();
            let names = [format!("`{name}`"), format!("`{folder}{name}.rb")];
            let is_there = names.iter().any(|name| page.contains(name));
            assert!(is_there, "{folder}{name} is missing from scenarios/README.md");
        }
    }
}

/// The names in parentheses in the text of a source file: string literals in parentheses that have only words in them, and perhaps an
/// argument at the end.
fn names_in(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let is_of_words = |name: &str| {
        name.starts_with(char::is_alphabetic)
            && name.chars().all(|it| it.is_alphanumeric() || " _-".contains(it))
    };
    code.split("\"(").skip(1).filter_map(|rest| rest.split_once('"')).filter_map(
        move |(name, _)| {
            let name = name.strip_suffix("{})").or_else(|| name.strip_suffix(')'))?;
            is_of_words(name).then_some(name)
        },
    )
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, into),
            false if path.extension().is_some_and(|it| it == "rs") => into.push(path),
            false => {}
        }
    }
}

#[test]
fn every_name_in_parentheses_is_explained() {
    let mut files = Vec::new();
    for name in ["ledger", "ruby", "diagnosis", "render", "sampler"] {
        sources(&root().join(format!("crates/{name}/src")), &mut files);
    }
    files.retain(|file| file.file_name().is_some_and(|name| name != "tests.rs"));
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let mut names: BTreeSet<String> =
        texts.iter().flat_map(|text| names_in(text)).map(str::to_owned).collect();
    let expected = ["nobody", "queue", "many roots", "not sampled", "garbage", "variables of "];
    assert!(expected.iter().all(|it| names.contains(*it)), "{names:?}");
    let imemos = ruby::ImemoType::ALL.map(|it| it.to_string());
    let slots = ruby::SlotType::all_in_slots().map(|it| it.name().to_owned());
    names.extend(imemos.into_iter().chain(slots));
    names.extend(ledger::InterpreterKind::ALL.map(|it| it.name().to_owned()));
    names.extend(
        ["imemo_99", "48 others", "1,200 others", "variables of libpq.so.5"].map(Into::into),
    );
    for name in names {
        for word in [name.clone(), format!("({name})")] {
            assert!(render::explanation(&word, 80).is_some(), "{word} is not in docs/names.md");
        }
    }
}
