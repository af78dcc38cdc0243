//! What a release needs: the same version everywhere, and workflows that name what exists.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The versions that follow a text.
fn versions_after<'t>(text: &'t str, before: &str) -> Vec<&'t str> {
    let rests = text.match_indices(before).map(|(at, _)| &text[at + before.len()..]);
    let versions = rests.map(|rest| {
        let end = rest.find(|it: char| !it.is_ascii_digit() && it != '.');
        rest[..end.unwrap_or(rest.len())].trim_end_matches('.')
    });
    versions.filter(|version| version.contains('.')).collect()
}

#[test]
fn every_file_has_the_same_version() {
    let parts = [
        ("Cargo.toml", "\", version = \""),
        ("gem/lib/rbloat/version.rb", "VERSION = \""),
        ("deploy/helm/rbloat/Chart.yaml", "ersion: "),
        ("README.md", "rbloat-"),
        ("README.md", "rbloat_"),
        ("README.md", "rbloat:"),
        ("docs/recipes.md", "rbloat-"),
        ("docs/recipes.md", "rbloat:"),
        ("docs/releasing.md", "rbloat-"),
        ("docs/releasing.md", "rbloat:"),
        ("docs/releasing.md", " v"),
        ("deploy/kubernetes/daemonset.yaml", "rbloat:"),
        ("deploy/kubernetes/sidecar.yaml", "rbloat:"),
    ];
    for (file, before) in parts {
        let text = read(file);
        let versions = versions_after(&text, before);
        assert!(!versions.is_empty(), "{file} has no version after {before:?}");
        assert!(versions.iter().all(|it| *it == VERSION), "{file}: {versions:?}, not {VERSION}");
    }
    let crates = read("Cargo.toml").matches("path = \"crates/").count();
    assert_eq!(versions_after(&read("Cargo.toml"), "\", version = \"").len(), crates);
}

fn check(folder: &Path) -> Output {
    Command::new(root().join("scripts/workflows")).arg(folder).output().unwrap()
}

/// A copy of what the script reads, in which one text is replaced.
fn complaint_about(file: &str, old: &str, new: &str) -> String {
    let copy = tempfile::tempdir().unwrap();
    let paths = [".github", "Makefile", "scripts", ".ci", "docs/releasing.md"];
    let mut copying = Command::new("cp");
    copying.current_dir(root()).args(["-r", "--parents"]).args(paths).arg(copy.path());
    assert!(copying.status().unwrap().success());
    let text = read(file);
    assert!(text.contains(old), "{file} has no {old:?}");
    fs::write(copy.path().join(file), text.replacen(old, new, 1)).unwrap();
    let output = check(copy.path());
    assert!(!output.status.success(), "{new:?} was not noticed");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn workflows_and_forms_are_complete_and_name_what_exists() {
    let output = check(&root());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn faults_in_workflows_and_forms_are_noticed() {
    let release = ".github/workflows/release.yml";
    let form = ".github/ISSUE_TEMPLATE/report.yml";
    for (file, old, new, complaint) in [
        (release, "make reproduce", "make reproducible", "no target reproducible"),
        (release, "scripts/push-image", "scripts/publish", "scripts/publish is missing"),
        (
            release,
            "needs: [packages, gems]",
            "needs: [packages, gem]",
            "needs gem, which is no job",
        ),
        (release, "actions/checkout@v5", "actions/checkout@main", "not pinned"),
        (release, "$GITHUB_ACTOR", "${{ github.actor }}", "an expression inside a command"),
        (release, "id: image", "id: picture", "no step has the id image"),
        (release, "contents: read", "contents: write", "rights are not limited"),
        (release, "cd dist", "cd $DIST", "SC2086"),
        (release, "jobs:", "jobs: [", "did not find"),
        (form, "type: dropdown", "type: menu", "an unknown field: menu"),
        (form, "id: place", "id: system", "an id occurs twice"),
        ("docs/releasing.md", "`make crates`", "`make crate`", "no target crate"),
    ] {
        let complaints = complaint_about(file, old, new);
        assert!(complaints.contains(complaint), "{new:?}: {complaints}");
    }
}

#[test]
fn the_form_asks_for_commands_that_exist() {
    let form = read(".github/ISSUE_TEMPLATE/report.yml");
    for (text, arguments) in [
        ("`rbloat report PID --json`", &["report", "--json", "--help"][..]),
        ("`rbloat --version`", &["--version"]),
    ] {
        assert!(form.contains(text), "the form has no {text}");
        let output = Command::new(env!("CARGO_BIN_EXE_rbloat")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Runs scripts/changelog on the changelog and the changes of a folder.
fn changelog(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(root().join("scripts/changelog"));
    let output = command.args(arguments).env("RBLOAT_CHANGELOG_ROOT", folder).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), texts.concat())
}

#[test]
fn every_change_is_an_item_of_the_next_release() {
    let (is_fine, text) = changelog(&root(), &[]);
    assert!(is_fine && text.starts_with("## Unreleased"), "{text}");
}

#[test]
fn changes_move_to_the_changelog_with_a_release_and_faulty_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    fs::create_dir(folder.path().join("changes")).unwrap();
    write("changes/README.md", "How to.\n");
    let old = "## 0.1.0 (2026-01-01)\n\n### Added\n\n- All.\n";
    write("CHANGELOG.md", &format!("# Changelog\n\n## Unreleased\n\n### Fixed\n\n- Old.\n\n{old}"));
    write("changes/fixed-a-fault.md", "- A fault\n  of two lines.\n");
    write("changes/added-more.md", "- More.\n");
    let next = "### Added\n\n- More.\n\n### Fixed\n\n- A fault\n  of two lines.\n- Old.\n";
    let (is_fine, text) = changelog(folder.path(), &[]);
    assert!(is_fine, "{text}");
    assert_eq!(text, format!("## Unreleased\n\n{next}"));

    for (file, text, complaint) in [
        ("changes/repaired-x.md", "- X.\n", "the name is not"),
        ("changes/fixed-x.md", "X.\n", "begins with"),
        ("changes/fixed-x.md", "", "begins with"),
        ("changes/fixed-x.md", &format!("- {}\n", "x".repeat(140)), "more than 140 columns"),
    ] {
        write(file, text);
        let (is_fine, text) = changelog(folder.path(), &["release", "0.2.0"]);
        assert!(!is_fine && text.contains(file) && text.contains(complaint), "{file}: {text}");
        fs::remove_file(folder.path().join(file)).unwrap();
    }

    assert!(!changelog(folder.path(), &["release", "0.1.0"]).0, "0.1.0 has been released");
    let (is_fine, text) = changelog(folder.path(), &["release", "0.2.0"]);
    assert!(is_fine, "{text}");
    let written = fs::read_to_string(folder.path().join("CHANGELOG.md")).unwrap();
    assert!(written.starts_with("# Changelog\n\n## Unreleased\n\n## 0.2.0 ("), "{written}");
    assert!(written.ends_with(&format!("\n\n{next}\n{old}")), "{written}");
    assert_eq!(fs::read_dir(folder.path().join("changes")).unwrap().count(), 1);
    assert_eq!(changelog(folder.path(), &["notes", "0.2.0"]), (true, next.to_owned()));
    assert!(!changelog(folder.path(), &["notes", "0.3.0"]).0);
    assert_eq!(changelog(folder.path(), &[]), (true, "## Unreleased\n".to_owned()));
}

/// The command of a step of the release workflow, as it stands there.
fn step(name: &str) -> String {
    let text = read(".github/workflows/release.yml");
    let (_, rest) = text.split_once(&format!("- name: {name}\n")).expect("the step exists");
    let (_, rest) = rest.split_once("        run: ").expect("the step has a command");
    let Some(block) = rest.strip_prefix("|\n") else { return rest.lines().next().unwrap().into() };
    let lines = block.lines().map_while(|line| line.strip_prefix("          "));
    lines.collect::<Vec<_>>().join("\n")
}

/// A folder with what a job of GitHub has, and programs in its PATH that only write down how they were called.
struct Job(tempfile::TempDir);

impl Job {
    fn new() -> Self {
        let job = Self(tempfile::tempdir().unwrap());
        let mut copying = Command::new("cp");
        copying.current_dir(root()).args(["-r", "Cargo.toml", "scripts"]).arg(job.0.path());
        assert!(copying.status().unwrap().success());
        for folder in ["bin", "dist", "changes"] {
            fs::create_dir(job.0.path().join(folder)).unwrap();
        }
        job.write(
            "CHANGELOG.md",
            &format!("# Changelog\n\n## {VERSION} (2026-01-01)\n\n### Added\n\n- All.\n"),
        );
        job.program("gh", "");
        // What push-image needs: an image of two CPUs, and a digest.
        job.program(
            "podman",
            r#"case "$1 $2" in
               "login --username") printf 'password %s\n' "$(cat)" >>calls ;;
               "manifest inspect") printf '"architecture"\n"architecture"\n' ;;
               "manifest push") printf sha256:abc >"$5" ;;
               esac"#,
        );
        job
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(file), text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).unwrap_or_default()
    }

    fn program(&self, name: &str, code: &str) {
        let file = self.0.path().join("bin").join(name);
        fs::write(&file, format!("#!/bin/bash\necho \"{name} $*\" >>calls\n{code}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a step as GitHub does, for a tag. Returns true if it succeeds.
    fn runs(&self, name: &str, tag: &str) -> bool {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &step(name)]);
        command.current_dir(self.0.path());
        command.env("PATH", format!("{}/bin:{path}", self.0.path().display()));
        command.env("RBLOAT_CHANGELOG_ROOT", self.0.path());
        command.envs([("GITHUB_REF_NAME", tag), ("GITHUB_REPOSITORY", "Owner/rbloat")]);
        command.envs([("GITHUB_ACTOR", "owner"), ("TOKEN", "secret"), ("GITHUB_OUTPUT", "output")]);
        command.output().unwrap().status.success()
    }
}

#[test]
fn a_release_has_the_version_of_its_tag() {
    let job = Job::new();
    assert!(job.runs("The tag names this version", &format!("v{VERSION}")));
    assert!(!job.runs("The tag names this version", "v99.0.0"));
}

#[test]
fn checksums_of_a_release_cover_all_files() {
    let job = Job::new();
    job.write("dist/rbloat.tar.gz", "program");
    job.write("dist/rbloat.gem", "gem");
    let mut sum = Command::new("sha256sum");
    sum.current_dir(job.0.path().join("dist")).arg("rbloat.tar.gz");
    let sums = String::from_utf8(sum.output().unwrap().stdout).unwrap();
    job.write("dist/SHA256SUMS", &sums);
    assert!(job.runs("Checksums", "v1.0.0"));
    let all = job.read("dist/SHA256SUMS");
    assert!(all.lines().count() == 2 && all.contains(sums.trim()), "{all}");
    job.write("dist/rbloat.tar.gz", "another program");
    assert!(!job.runs("Checksums", "v1.0.0"));
}

#[test]
fn a_release_pushes_its_image_and_drafts_its_notes() {
    let job = Job::new();
    for cpu in ["amd64", "arm64"] {
        job.write(&format!("dist/rbloat-{VERSION}-{cpu}.oci.tar"), "image");
    }
    let tag = format!("v{VERSION}");
    assert!(job.runs("Image for both CPUs", &tag), "{}", job.read("calls"));
    assert_eq!(job.read("output"), "name=ghcr.io/owner/rbloat\ndigest=sha256:abc\n");
    assert!(job.runs("Draft", &tag), "{}", job.read("calls"));
    assert_eq!(job.read("notes.md"), "### Added\n\n- All.\n");
    let calls = job.read("calls");
    for expected in [
        "podman login --username owner --password-stdin ghcr.io\npassword secret\n",
        &format!("docker://ghcr.io/owner/rbloat:{VERSION}\n"),
        &format!(
            "gh release create {tag} --draft --verify-tag --title rbloat {VERSION} --notes-file notes.md dist/"
        ),
    ] {
        assert!(calls.contains(expected), "{expected} in {calls}");
    }
    assert!(!job.runs("Draft", "v99.0.0"), "a release without notes was drafted");
}
