//! The pages of documentation: each is a chapter of the site, its links lead somewhere, and it has what it must explain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

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
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let page = format!("docs/{name}");
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(unique.contains(page.as_str()), "{page} is missing from docs/SUMMARY.md");
        }
    }
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

/// The names in parentheses in the text of a source file: string literals, but none with spaces around the parentheses.
fn names_in(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    code.split("\"(").skip(1).filter_map(|rest| rest.split_once('"')).filter_map(|(name, _)| {
        let name = name.strip_suffix(')').or_else(|| name.strip_suffix("{})"))?;
        name.starts_with(|it: char| it.is_alphabetic()).then_some(name)
    })
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
    sources(&root().join("crates/ledger/src"), &mut files);
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let mut names: BTreeSet<String> =
        texts.iter().flat_map(|text| names_in(text)).map(str::to_owned).collect();
    assert!(names.len() > 10 && names.contains("nobody"), "{names:?}");
    let imemos = ruby::ImemoType::ALL.map(|it| it.to_string());
    let slots = ruby::SlotType::all_in_slots().map(|it| it.name().to_owned());
    names.extend(imemos.into_iter().chain(slots));
    names.extend(
        ["imemo_99", "48 others", "1,200 others", "variables of libpq.so.5"].map(Into::into),
    );
    for name in names {
        for word in [name.clone(), format!("({name})")] {
            assert!(render::explanation(&word, 80).is_some(), "{word} is not in docs/names.md");
        }
    }
}
