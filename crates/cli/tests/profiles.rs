//! The profile with which releases are built.

use std::path::Path;

/// With wrapping arithmetic, a release would report a wrong number where a test panics.
#[test]
fn releases_check_for_overflow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let (_, release) = manifest.split_once("\n[profile.release]\n").expect("a release profile");
    let release = release.split("\n[").next().unwrap_or_default();
    assert!(release.lines().any(|line| line == "overflow-checks = true"), "{release}");
    assert!(!manifest.contains("overflow-checks = false"));
    // `make dist` and `make` build with that profile, and no variable turns the checks off.
    for script in ["scripts/dist", "Makefile"] {
        let script = std::fs::read_to_string(root.join(script)).unwrap();
        assert!(script.contains("build --release"));
        assert!(!script.contains("overflow-checks") && !script.contains("OVERFLOW_CHECKS"));
    }
}
