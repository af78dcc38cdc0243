//! Processes that are very large in one respect, or that damaged their own structures on purpose. Each command must end
//! within a limit of its memory, with rows that add up and outputs of moderate size.

use std::path::Path;
use std::process::Output;

use formats::Report;
use testkit::{Target, compile};

/// More address space than rbloat may need for any of these processes, most of it never touched. In KiB.
const MAX_ADDRESS_SPACE: &str = "2097152";
/// More than the text, the JSON, the map or the PNG of any of these processes may take.
const MAX_OUTPUT: u64 = 3 << 20;

/// A Ruby that calls a function of testkit/rust/c/hostile.c with a number, after garbage was collected.
fn after_call(function: &str, number: u32) -> (tempfile::TempDir, Target) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let library = compile("hostile", folder.path(), &["-shared", "-fPIC", "-pthread"]);
    let source = format!(
        "require 'fiddle'
         types = [Fiddle::TYPE_INT]
         hostile = Fiddle::Function.new(Fiddle.dlopen({library:?})[{function:?}], types, Fiddle::TYPE_INT)
         ready = \"ready {{}}\\n\"
         GC.start
         hostile.call({number})
         $stdout.syswrite(ready)
         sleep"
    );
    let target = Target::start(testkit::ruby().args(["--disable-gems", "-e", &source]));
    (folder, target)
}

/// A Ruby that runs `source`, which may write words to addresses.
fn after(source: &str) -> Target {
    Target::bare_ruby(&format!(
        "require 'fiddle'
         $write = ->(at, word) {{ Fiddle::Pointer.new(at)[0, 8] = [word].pack('Q') }}
         {source}
         $stdout.syswrite(\"ready {{}}\\n\")
         sleep"
    ))
}

/// Runs rbloat with a limit of its address space.
fn run_limited(arguments: &[&str]) -> Output {
    let limit = format!("-v {MAX_ADDRESS_SPACE}");
    let output = crate::limited(&limit).args(arguments).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 6)), "{:?}: {complaint}", output.status);
    assert!(output.stdout.len() as u64 <= MAX_OUTPUT, "{} bytes", output.stdout.len());
    output
}

/// Examines the process by all commands that draw or print it. Returns the report.
fn examine(target: &Target, folder: &Path) -> Report {
    let pid = target.pid().to_string();
    let patient = ["--max-pause", "60s"];
    for file in ["map.html", "map.png"].map(|name| folder.join(name)) {
        let drawn = ["map", &pid, "-o", file.to_str().unwrap()];
        run_limited(&[&drawn[..], &patient].concat());
        let bytes = std::fs::metadata(&file).unwrap().len();
        assert!(bytes <= MAX_OUTPUT, "{}: {bytes} bytes", file.display());
    }
    let text = run_limited(&[&["report", &pid, "--retained"][..], &patient].concat());
    let lines = String::from_utf8_lossy(&text.stdout).lines().count();
    assert!(lines < 300, "{lines} lines");
    let output = run_limited(&[&["report", &pid, "--json"][..], &patient].concat());
    let report: Report = crate::document(&output.stdout);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    assert_eq!(target.status("TracerPid:"), "0");
    report
}

#[test]
fn ten_thousand_mappings() {
    let count = if testkit::is_nightly("30,000 mappings, not 10,000") { 30_000 } else { 10_000 };
    let (folder, target) = after_call("many_mappings", count);
    assert_eq!(examine(&target, folder.path()).findings, []);
}

#[test]
fn two_thousand_threads() {
    let (folder, target) = after_call("many_threads", 2000);
    assert_eq!(examine(&target, folder.path()).findings, []);
}

/// The PNG of 3,000 arenas once had 557 MB.
#[test]
fn two_thousand_arenas() {
    let (folder, target) = after_call("many_arenas", 2000);
    let report = examine(&target, folder.path());
    assert_eq!(report.findings, []);
    assert!(report.arenas.unwrap().len() > 2000);
}

#[test]
fn a_ring_of_arenas_that_never_returns_to_the_main_one() {
    let (folder, target) = after_call("loop_arenas", 0);
    assert_ne!(examine(&target, folder.path()).findings, []);
}

#[test]
fn free_lists_that_loop() {
    for bytes in [100, 500] {
        let (folder, target) = after_call("loop_free_lists", bytes);
        examine(&target, folder.path());
    }
}

#[test]
fn a_list_of_modules_that_loops_or_has_a_million_entries() {
    for entries in [0, 1_000_000] {
        let (folder, target) = after_call("long_link_map", entries);
        assert!(examine(&target, folder.path()).ruby.is_some());
    }
}

#[test]
fn a_class_object_amid_words_that_are_anything() {
    for kind in 0..6 {
        let (folder, target) = after_call("fake_object", kind);
        let report = examine(&target, folder.path());
        assert_ne!(report.findings, []);
        assert!(report.ruby.is_none());
    }
}

#[test]
fn classes_that_are_their_own_ancestors() {
    let folder = tempfile::tempdir().unwrap();
    // The class and the superclass are the second and the third word of a class.
    let target = after(
        "classes = [Class.new]
         999.times { classes << Class.new(classes.last) }
         $objects = classes.map { |one| Array.new(100) { one.new } }
         at = classes.map { |one| Fiddle.dlwrap(one) }
         GC.start
         GC.disable
         $write.(at[0] + 16, at[-1])
         at.each_cons(2) { |one, other| $write.(one + 8, other) }
         $write.(at[500] + 8, at[500])",
    );
    assert!(examine(&target, folder.path()).ruby.is_some());
}

#[test]
fn names_of_ten_million_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let target = after(
        "name = 'A' + 'b' * 10_000_000
         $objects = Array.new(1000) { Object.const_set(name, Class.new) && Object.const_get(name).new if _1.zero? }
         Thread.new { Thread.current.name = name; sleep }
         Thread.new { eval('sleep', TOPLEVEL_BINDING, '/' + name) }
         eval(\"def m#{name}; sleep; end; $#{name} = 'x' * 1_000_000; Thread.new { m#{name} }\")
         Thread.pass until Thread.list.drop(1).all?(&:stop?)
         GC.start",
    );
    assert!(examine(&target, folder.path()).ruby.is_some());
}
