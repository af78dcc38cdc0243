//! The licenses that `scripts/dist` puts beside the static binary.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn licenses() -> Command {
    Command::new(root().join("scripts/licenses"))
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The crates of the program, as `cargo tree` lists them.
fn linked() -> BTreeSet<String> {
    let arguments = "tree --offline --locked --package rbloat --edges normal --prefix none \
                     --target x86_64-unknown-linux-gnu --format {p}";
    let tree =
        Command::new(env!("CARGO")).args(arguments.split_whitespace()).current_dir(root()).output();
    text(&tree.unwrap())
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| format!("{name} {}", rest.split(' ').next().unwrap()))
        .filter(|package| !package.starts_with("rbloat"))
        .collect()
}

#[test]
fn every_crate_in_the_binary_has_a_license_text() {
    let licenses = text(&licenses().output().unwrap());
    let rule = "=".repeat(100);
    let parts: Vec<&str> = licenses.split(&rule).skip(1).collect();
    let mut with_text = BTreeSet::new();
    for pair in parts.chunks(2) {
        // Shorter texts name licenses, and do not contain them.
        if pair[1].trim().len() > 500 {
            with_text.extend(pair[0].trim().split(", ").map(str::to_owned));
        }
    }
    let needed = linked();
    assert!(needed.len() > 50, "{needed:?}");
    let missing: Vec<_> = needed.difference(&with_text).collect();
    assert_eq!(missing, Vec::<&String>::new());
    for other in ["Rust standard library", "glibc", "DejaVu Sans"] {
        assert!(with_text.contains(other), "{other}");
    }
    assert!(licenses.contains("GNU LESSER GENERAL PUBLIC LICENSE"));
}

#[test]
fn a_crate_without_a_license_text_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bare")).unwrap();
    let manifest = folder.path().join("bare/Cargo.toml");
    fs::write(folder.path().join("bare/COPYING"), "under the MIT license").unwrap();
    // This stands in for cargo: the program uses one crate, whose folder only names one.
    let metadata = format!(
        r#"{{"packages": [
            {{"id": "1", "name": "rbloat", "version": "1.0.0", "source": null}},
            {{"id": "2", "name": "bare", "version": "2.0.0", "source": "registry", "license": "MIT",
              "manifest_path": "{}"}}],
          "resolve": {{"nodes": [
            {{"id": "1", "deps": [{{"pkg": "2", "dep_kinds": [{{"kind": null}}]}}]}},
            {{"id": "2", "deps": []}}]}}}}"#,
        manifest.display()
    );
    let cargo = folder.path().join("cargo");
    fs::write(&cargo, format!("#!/bin/sh\ncat <<'END'\n{metadata}\nEND\n")).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let output = licenses().env("PATH", path).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no license text in bare 2.0.0"), "{errors}");
}
