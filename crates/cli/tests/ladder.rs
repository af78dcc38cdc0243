//! The ladder of crates: the crates that each crate may use. ARCHITECTURE.md gives the reasons.

use std::collections::BTreeSet;

use cargo_metadata::{CargoOpt, DependencyKind, MetadataCommand};

/// Each crate, and the lower crates that it may use.
const LADDER: [(&str, &[&str]); 17] = [
    (
        "rbloat",
        &[
            "agent",
            "examine",
            "supervise",
            "archive",
            "output",
            "render",
            "diagnosis",
            "formats",
            "ledger",
            "ruby",
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
    (
        "rbloat-examine",
        &[
            "supervise",
            "output",
            "render",
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
    ("rbloat-archive", &["diagnosis", "formats"]),
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

#[test]
fn no_crate_knows_one_that_it_must_not() {
    let metadata = MetadataCommand::new()
        .features(CargoOpt::AllFeatures)
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .unwrap();
    let crates: BTreeSet<&str> =
        metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let ladder: BTreeSet<&str> = LADDER.iter().map(|(name, _)| *name).collect();
    assert_eq!(crates, ladder, "a crate without a place on the ladder, or the other way round");

    for package in &metadata.packages {
        let (_, may_know) = LADDER.iter().find(|(name, _)| *name == package.name.as_str()).unwrap();
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some())
        {
            let name = dependency.rename.as_deref().unwrap_or(&dependency.name);
            let is_test_support =
                dependency.kind == DependencyKind::Development && name == "testkit";
            assert!(
                may_know.contains(&name) || is_test_support,
                "{} must not know {name}",
                package.name
            );
        }
    }
}

#[test]
fn unsafe_code_is_allowed_in_two_crates_only() {
    let metadata =
        MetadataCommand::new().no_deps().other_options(["--offline".to_owned()]).exec().unwrap();
    for package in &metadata.packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap();
        // The workspace's lints deny unsafe code; these crates have lints of their own.
        let denies = manifest.contains("[lints]\nworkspace = true");
        let may = MAY_BE_UNSAFE.contains(&package.name.as_str());
        assert!(denies != may, "{} and unsafe code", package.name);
    }
}
