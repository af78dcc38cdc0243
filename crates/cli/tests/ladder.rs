//! The ladder of crates: who may know whom. ARCHITECTURE.md says why.

use std::collections::BTreeSet;

use cargo_metadata::{CargoOpt, DependencyKind, MetadataCommand};

/// Each crate, and the ones below it that it may know.
const LADDER: [(&str, &[&str]); 9] = [
    ("rbloat", &["compare", "record", "report", "ledger", "glibc", "ruby", "target"]),
    ("rbloat-compare", &["ledger"]),
    ("rbloat-record", &["report", "ledger", "target"]),
    ("rbloat-report", &["ledger", "target"]),
    ("rbloat-ledger", &["glibc", "ruby", "target"]),
    ("rbloat-glibc", &["target"]),
    ("rbloat-ruby", &["target"]),
    ("rbloat-target", &[]),
    // What tests share stands beside the ladder: nothing but tests may lean on it.
    ("rbloat-testbed", &["target"]),
];

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
                dependency.kind == DependencyKind::Development && name == "testbed";
            assert!(
                may_know.contains(&name) || is_test_support,
                "{} must not know {name}",
                package.name
            );
        }
    }
}

#[test]
fn only_target_may_be_unsafe() {
    let metadata =
        MetadataCommand::new().no_deps().other_options(["--offline".to_owned()]).exec().unwrap();
    for package in &metadata.packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap();
        // The workspace's lints deny unsafe code; target has lints of its own.
        let denies = manifest.contains("[lints]\nworkspace = true");
        let may = package.name.as_str() == "rbloat-target";
        assert!(denies != may, "{} and unsafe code", package.name);
    }
}
