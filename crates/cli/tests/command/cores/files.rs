//! The files that a process had mapped, according to its core: found elsewhere, or missing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use formats::{FindingKind, Report};
use linux::Mapping;

use super::{
    PROGRAM, SIGTRAP, core_by_gdb, core_by_kernel, kernel_writes_cores, report_on, run_on, start,
    sysroot,
};

/// The files that a process has mapped, with the names that a core has for them.
fn mapped_files(pid: i32) -> BTreeSet<PathBuf> {
    let image = image::look(pid).unwrap();
    let files = image.state.mappings.iter().filter_map(Mapping::file);
    files.map(Path::to_owned).filter(|path| path.is_file()).collect()
}

/// Copies files below `root`, with the same paths.
fn copy_below(root: &Path, files: &BTreeSet<PathBuf>) {
    for file in files {
        let copy = root.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(file, copy).unwrap();
    }
}

/// The file that contains the interpreter.
fn interpreter(files: &BTreeSet<PathBuf>) -> PathBuf {
    let is_named = |file: &&PathBuf, name: &str| {
        file.file_name().is_some_and(|it| it.to_str().unwrap().starts_with(name))
    };
    let library = files.iter().find(|file| is_named(file, "libruby"));
    library.or(files.iter().find(|file| is_named(file, "ruby"))).unwrap().clone()
}

#[test]
fn the_files_of_a_core_are_found_elsewhere_and_missed_where_they_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = start(PROGRAM, folder.path());
    let files = mapped_files(target.pid());
    let mut cores = vec![core_by_gdb(&target, folder.path())];
    if kernel_writes_cores() {
        cores.push(core_by_kernel(&mut target, SIGTRAP, folder.path()));
    }
    let right = folder.path().join("right");
    copy_below(&right, &files);
    if crate::errors::is_root() {
        // Root reads the files of other users, too.
        let user = Some(crate::errors::NOBODY);
        fs::set_permissions(&right, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&right, user, user).unwrap();
    }
    let wrong = folder.path().join("wrong");
    copy_below(&wrong, &files);
    // A build id that differs in one bit.
    let interpreter = interpreter(&files);
    let altered = wrong.join(interpreter.strip_prefix("/").unwrap());
    let mut contents = fs::read(&altered).unwrap();
    let head = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let note = contents.windows(head.len()).position(|part| part == head).unwrap();
    contents[note + head.len()] ^= 1;
    fs::write(&altered, &contents).unwrap();

    for core in &cores {
        let in_place = report_on(core, &sysroot());
        if testkit::root().is_none() {
            let elsewhere = report_on(core, &below(&right));
            assert_eq!(
                (&elsewhere.causes, &elsewhere.owners),
                (&in_place.causes, &in_place.owners)
            );
            assert_lacks_files(core, &wrong, true, &interpreter, &in_place);
        }
        assert_lacks_files(core, &folder.path().join("empty"), false, &interpreter, &in_place);
    }
}

fn below(root: &Path) -> Vec<String> {
    vec!["--sysroot".into(), root.to_str().unwrap().into()]
}

/// Asserts that the report without the interpreter's file names the file, and that its other facts are right.
fn assert_lacks_files(core: &Path, root: &Path, differ: bool, interpreter: &Path, whole: &Report) {
    let output = run_on(core, &["--sysroot", root.to_str().unwrap(), "--json"]);
    let report: Report = crate::document(&output.stdout);
    let paths = report.findings.iter().find_map(|finding| match (&finding.kind, differ) {
        (FindingKind::CoreFilesMissing { files, .. }, false) => {
            Some(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>())
        }
        (FindingKind::CoreFilesDiffer { files, .. }, true) => {
            Some(files.iter().map(|file| file.path.as_str()).collect())
        }
        _ => None,
    });
    let paths = paths.unwrap_or_else(|| panic!("{:?}", report.findings));
    let name = interpreter.file_name().unwrap().to_str().unwrap();
    assert!(paths.iter().any(|path| path.ends_with(name)), "{paths:?}");
    // gdb dumps the symbols of libraries, the kernel does not.
    let by_kernel = report.capture.reason.contains("kernel");
    assert_eq!(report.ruby.is_none(), by_kernel);
    assert_eq!(output.status.code(), Some(if report.is_complete() { 0 } else { 6 }));
    if let (Some(part), Some(all)) = (&report.ruby, &whole.ruby) {
        assert_eq!((part.slots_live, &part.objects), (all.slots_live, &all.objects));
    }
    assert_eq!(report.process.pid, whole.process.pid);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    let obtained = |report: &Report| report.malloc.as_ref().unwrap().system_bytes;
    assert_eq!(obtained(&report), obtained(whole));
}
