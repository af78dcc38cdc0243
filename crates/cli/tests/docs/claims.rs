//! Claims that several pages make, each compared with the one place that has the fact.

use std::collections::BTreeSet;
use std::fs;

use crate::{GENERATED, chapters, prose, read, root};

/// A version as numbers, without the part of a bug fix.
type Version = (u32, u32);

/// The versions of glibc and of Ruby in the rows of the support matrix, which a script writes.
fn tested() -> (BTreeSet<Version>, BTreeSet<Version>, usize) {
    let page = read("docs/support-matrix.md");
    let rows: Vec<Vec<&str>> =
        page.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    let rows = || rows.iter().filter(|row| row.len() > 4).skip(2);
    let version = |text: &str| {
        let mut parts = text.split(['.', ',']).map(|part| part.parse().unwrap());
        (parts.next().unwrap(), parts.next().unwrap())
    };
    let releases: BTreeSet<&str> = rows().map(|row| row[1]).collect();
    let of = |column: usize| rows().map(|row| version(row[column])).collect();
    (of(2), of(3), releases.len())
}

fn number((major, minor): Version) -> String {
    format!("{major}.{minor}")
}

/// Names as an enumeration.
fn enumerated(names: &[String]) -> String {
    let (last, others) = names.split_last().unwrap();
    format!("{} and {last}", others.join(", "))
}

/// The processors that rbloat has code for.
fn processors() -> String {
    let folders = fs::read_dir(root().join("crates/linux/src/arch")).unwrap();
    let folders = folders.map(|it| it.unwrap()).filter(|it| it.file_type().unwrap().is_dir());
    let mut names: Vec<String> =
        folders.map(|it| it.file_name().into_string().unwrap().replace('_', "-")).collect();
    names.sort_by(|one, other| other.cmp(one));
    enumerated(&names)
}

#[test]
fn platforms_and_versions_are_those_of_the_support_matrix() {
    let (libcs, rubies, releases) = tested();
    let names = |versions: &BTreeSet<Version>| versions.iter().copied().map(number).collect();
    let range = |versions: &BTreeSet<Version>| {
        format!("{} to {}", number(*versions.first().unwrap()), number(*versions.last().unwrap()))
    };
    let [of_libcs, of_rubies]: [Vec<String>; 2] = [names(&libcs), names(&rubies)];
    let releases = ["one", "two", "three", "four", "five", "six"][releases - 1];
    let (libc_range, ruby_range) = (range(&libcs), range(&rubies));
    let readme = format!("Ruby {ruby_range} and glibc {libc_range} on {releases} Debian releases");
    assert!(read("README.md").contains(&readme), "README.md does not say: {readme}");
    let limits = format!("glibc {} with Ruby {}", enumerated(&of_libcs), enumerated(&of_rubies));
    assert!(read("docs/limits.md").contains(&limits), "docs/limits.md does not say: {limits}");
}

/// The date behind these words of a page.
fn date_after<'a>(page: &'a str, words: &str) -> &'a str {
    let (_, date) = page.split_once(words).unwrap_or_else(|| panic!("no page has {words:?}"));
    date.get(.."2026-01-01".len())
        .filter(|it| it.bytes().all(|it| it.is_ascii_digit() || it == b'-'))
        .unwrap()
}

#[test]
fn the_readme_has_the_dates_of_the_latest_runs() {
    let [readme, matrix, runs] =
        ["README.md", "docs/support-matrix.md", "docs/measurements.md"].map(read);
    let of_matrix = date_after(&matrix, "`scripts/matrix --write` wrote this page on ");
    assert_eq!(date_after(&readme, "](docs/support-matrix.md), "), of_matrix);
    let of_others = date_after(&runs, "## Runs on other Rubies\n\nOn ");
    assert_eq!(date_after(&readme, "[other Rubies](docs/rubies.md) up to 4.1-dev ("), of_others);
}

#[test]
fn every_page_names_the_same_processors() {
    let expected = format!("Linux on {}", processors());
    let mut found = 0;
    for page in chapters().iter().filter(|page| !GENERATED.contains(&page.as_str())) {
        let text = prose(&read(page)).collect::<Vec<_>>().join(" ");
        let claims: Vec<&str> =
            text.match_indices("Linux on ").map(|(at, _)| &text[at..]).collect();
        let wrong = claims.iter().find(|claim| !claim.starts_with(&expected));
        assert!(wrong.is_none(), "{page}: {wrong:?} is not {expected}");
        found += claims.len();
    }
    assert!(found >= 2, "no page has {expected}");
}

#[test]
fn the_readme_names_the_allocators_that_have_a_row() {
    let page = read("docs/allocators.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let names = rows.filter_map(|row| row.split([' ', '(']).next()).map(str::to_owned);
    let names: BTreeSet<String> =
        names.filter(|it| !["allocator", "others,"].contains(&it.as_str())).collect();
    let readme = read("README.md");
    let (_, claim) = readme.split_once("malloc's memory is read under ").unwrap();
    let claim = claim.split('.').next().unwrap();
    let claimed: BTreeSet<String> =
        claim.replace(" and ", ", ").split(", ").map(str::to_owned).collect();
    assert_eq!(claimed, names);
}
