//! The ladder of crates: the crates that each crate uses. ARCHITECTURE.md draws it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package};

/// Each crate, and the lower crates that it uses.
const LADDER: [(&str, &[&str]); 18] = [
    (
        "rbloat",
        &[
            "agent",
            "top",
            "examine",
            "supervise",
            "archive",
            "output",
            "render",
            "diagnosis",
            "formats",
            "ledger",
            "image",
            "linux",
        ],
    ),
    (
        "rbloat-agent",
        &[
            "examine",
            "supervise",
            "archive",
            "output",
            "render",
            "diagnosis",
            "formats",
            "ledger",
            "linux",
        ],
    ),
    ("rbloat-top", &["examine", "supervise", "output", "render", "formats", "linux"]),
    (
        "rbloat-examine",
        &[
            "supervise",
            "archive",
            "output",
            "diagnosis",
            "formats",
            "ledger",
            "sampler",
            "inferior",
            "allocator",
            "ruby",
            "image",
            "linux",
        ],
    ),
    ("rbloat-supervise", &["diagnosis", "formats", "linux"]),
    ("rbloat-archive", &["diagnosis", "formats", "ledger", "ruby", "linux"]),
    ("rbloat-output", &[]),
    ("rbloat-render", &["diagnosis", "formats", "ledger", "linux"]),
    ("rbloat-diagnosis", &["formats", "ledger", "sampler", "image", "linux"]),
    ("rbloat-formats", &["ledger", "sampler", "image", "linux"]),
    ("rbloat-ledger", &["allocator", "ruby", "image", "linux"]),
    ("rbloat-allocator", &["image", "linux"]),
    ("rbloat-ruby", &["image", "linux"]),
    ("rbloat-inferior", &["image", "linux"]),
    ("rbloat-sampler", &["allocator", "ruby", "image", "linux"]),
    ("rbloat-image", &["linux"]),
    ("rbloat-linux", &[]),
    // The tests share it. Nothing else may depend on it.
    ("rbloat-testkit", &["image", "linux"]),
];

/// The crates that may use `unsafe`.
const MAY_BE_UNSAFE: [&str; 2] = ["rbloat-inferior", "rbloat-linux"];

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.features(CargoOpt::AllFeatures).no_deps().other_options(["--offline".to_owned()]);
    command.exec().unwrap()
}

fn uses(name: &str) -> &'static [&'static str] {
    LADDER.iter().find(|(it, _)| *it == name).unwrap().1
}

/// The crates of this workspace that a crate depends on, in its code or in its tests.
fn dependencies(package: &Package, kind: DependencyKind) -> BTreeSet<&str> {
    let own = package.dependencies.iter().filter(|it| it.path.is_some() && it.kind == kind);
    own.map(|it| it.rename.as_deref().unwrap_or(&it.name)).collect()
}

/// A permission that is not used would hide a new dependency.
#[test]
fn each_crate_knows_the_crates_of_the_ladder_and_no_others() {
    let metadata = metadata();
    let crates: BTreeSet<&str> =
        metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let ladder: BTreeSet<&str> = LADDER.iter().map(|(name, _)| *name).collect();
    assert_eq!(crates, ladder, "a crate without a place on the ladder, or the other way round");

    for package in &metadata.packages {
        let known = dependencies(package, DependencyKind::Normal);
        let expected: BTreeSet<&str> = uses(&package.name).iter().copied().collect();
        assert_eq!(known, expected, "{} and the ladder", package.name);
    }
}

/// Tests may know all crates below.
#[test]
fn tests_know_lower_crates_and_the_testkit() {
    for package in &metadata().packages {
        let mut below: BTreeSet<&str> = ["testkit"].into();
        let mut next: Vec<&str> = uses(&package.name).to_vec();
        while let Some(name) = next.pop() {
            if below.insert(name) {
                next.extend(uses(&format!("rbloat-{name}")));
            }
        }
        let known = dependencies(package, DependencyKind::Development);
        assert!(known.is_subset(&below), "tests of {}: {known:?}", package.name);
    }
}

#[test]
fn each_dependency_is_used() {
    for package in &metadata().packages {
        let mut code = String::new();
        let folder = package.manifest_path.parent().unwrap().join("src");
        read_all(folder.as_std_path(), &mut code);
        for name in dependencies(package, DependencyKind::Normal) {
            assert!(mentions(&code, name), "{} does not use {name}", package.name);
        }
    }
}

/// Adds the code of a folder, without files of tests.
fn read_all(folder: &Path, code: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, code);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            code.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// Returns true if a line of the code, without its comment, has a path that begins with this name.
fn mentions(code: &str, name: &str) -> bool {
    let is_inner = |char: char| char.is_alphanumeric() || matches!(char, '_' | ':');
    let path = format!("{name}::");
    code.lines().map(|line| line.split("//").next().unwrap()).any(|line| {
        let mut places = line.match_indices(&path);
        places.any(|(at, _)| !line[..at].ends_with(is_inner))
    })
}

#[test]
fn a_path_counts_and_a_comment_does_not() {
    assert!(mentions("use image::Image;", "image") && mentions("fn f(it: &image::Image)", "image"));
    assert!(!mentions("// image::Image\nuse crate::image::Image;\nmy_image::f()", "image"));
}

fn architecture() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md")).unwrap()
}

#[test]
fn every_crate_has_a_row_in_the_table() {
    let page = architecture();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let rows: BTreeSet<&str> = rows.map(|(name, _)| name).collect();
    let names = LADDER.iter().map(|(name, _)| name.strip_prefix("rbloat-").unwrap_or("cli"));
    let names: BTreeSet<&str> = names.filter(|name| *name != "testkit").collect();
    assert_eq!(rows, names);
}

/// Rust compiles the examples: a README is a part of the docs of its crate.
#[test]
fn every_crate_has_a_short_readme_with_an_example() {
    for (name, _) in LADDER.iter().filter(|(name, _)| *name != "rbloat-testkit") {
        let folder = name.strip_prefix("rbloat-").unwrap_or("cli");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
        let readme = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
        let example = if *name == "rbloat" { "\n```sh\n" } else { "\n```rust" };
        for part in [&format!("# {name}\n"), "\n- **Knows**: ", "\n- **Must not know**: ", example]
        {
            assert!(readme.contains(part), "the README of {name} has no {part:?}");
        }
        assert!(readme.lines().count() <= 30, "the README of {name} is long");
        let root = if *name == "rbloat" { "main.rs" } else { "lib.rs" };
        let code = fs::read_to_string(folder.join("src").join(root)).unwrap();
        assert!(code.starts_with("#![doc = include_str!(\"../README.md\")]\n"), "{name}");
    }
}

/// The ladder as it is drawn: a crate uses crates to its right.
#[test]
fn the_drawn_ladder_is_the_real_one() {
    let page = architecture();
    let drawing = page.split("```").nth(1).unwrap().trim().lines().next().unwrap();
    let rungs: Vec<Vec<&str>> =
        drawing.split("─►").map(|rung| rung.split(',').map(str::trim).collect()).collect();
    let rung_of = |name: &str| rungs.iter().position(|rung| rung.contains(&name));
    for (name, uses) in LADDER {
        let name = if name == "rbloat" { "cli" } else { &name["rbloat-".len()..] };
        // They stand beside the ladder.
        if matches!(name, "inferior" | "testkit") {
            continue;
        }
        let rung = rung_of(name).unwrap_or_else(|| panic!("{name} is not drawn"));
        for used in uses.iter().filter(|used| **used != "inferior") {
            assert!(rung_of(used).is_some_and(|it| it > rung), "{name} is not left of {used}");
        }
    }
}

/// The crates below `diagnosis`, and `examine`: what a user can do about an error is said above them.
const WITHOUT_REMEDIES: [&str; 9] =
    ["linux", "image", "inferior", "allocator", "ruby", "sampler", "ledger", "formats", "examine"];
/// Parts of sentences on remedies.
const REMEDIES: [&str; 10] = [
    " --",
    "(--",
    "in Docker",
    "in Kubernetes",
    "kubectl",
    "ulimit",
    "sudo",
    "nsenter",
    "ry again",
    "read it with",
];

#[test]
fn no_lower_crate_knows_a_remedy() {
    for name in WITHOUT_REMEDIES {
        let mut code = String::new();
        read_all(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"),
            &mut code,
        );
        for line in code.lines().map(|line| line.split("//").next().unwrap()) {
            let remedy = REMEDIES.iter().find(|remedy| line.contains(**remedy));
            assert!(remedy.is_none(), "{name} knows a remedy: {line}");
        }
    }
}

#[test]
fn unsafe_code_is_allowed_in_two_crates_only() {
    for package in &metadata().packages {
        let manifest = fs::read_to_string(&package.manifest_path).unwrap();
        // The workspace's lints deny unsafe code; these crates have lints of their own.
        let denies = manifest.contains("[lints]\nworkspace = true");
        let may = MAY_BE_UNSAFE.contains(&package.name.as_str());
        assert!(denies != may, "{} and unsafe code", package.name);
    }
}
