//! The mapped files of a process.

use formats::{Action, MappedFile};
use ledger::Cause;
use testkit::Target;

use crate::{bytes, report, run};

const MIB: u64 = 1 << 20;

/// A file of 16 MiB, mapped eight times, four of them wholly resident. Four pages of one mapping are written to.
const MAPPING: &str = r##"
    require 'fiddle'
    require 'tempfile'
    types = [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_LONG]
    mmap = Fiddle::Function.new(Fiddle::Handle::DEFAULT['mmap'], types, Fiddle::TYPE_VOIDP)
    bytes = 16 << 20
    file = Tempfile.new(['geo', '.db'], '/var/tmp')
    file.truncate(bytes)
    maps = Array.new(8) { mmap.call(nil, bytes, 3, 2, file.fileno, 0) }
    maps.first(4).each { |map| 0.step(bytes - 1, 4096) { |at| map[at] } }
    maps[0].tap { |map| 4.times { |page| map[page * 4096] = 1 } }
    puts "ready {\"path\": \"#{file.path}\"}"
    $stdout.flush
    $stdin.read"##;

#[test]
fn a_file_that_is_mapped_several_times_is_named_and_counted() {
    let target = Target::bare_ruby(MAPPING);
    target.stop_asleep();
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::FileShared));
    let file = &report.files[0];
    let private_bytes = 4 * 4096;
    // The kernel shows the path below its own root.
    assert!(file.path.ends_with(target.truth["path"].as_str().unwrap()), "{}", file.path);
    let expected = MappedFile {
        path: file.path.clone(),
        private_bytes,
        zeroed_bytes: 0,
        shared_bytes: 64 * MIB - private_bytes,
        repeated_bytes: 48 * MIB - private_bytes,
        mappings: 8,
        times: 8,
        is_in_memory: false,
        writable_bytes: 0,
    };
    assert_eq!(*file, expected);
    let sum: u64 = report.files.iter().map(MappedFile::resident_bytes).sum();
    let rows = bytes(&report, "file.shared") + bytes(&report, "file.private");
    // The rest are the kernel's own pages, such as the vdso.
    assert!(sum <= rows && rows - sum < 64 << 10, "{sum} of {rows}");
    let library = report
        .files
        .iter()
        .find(|file| file.path.contains("/libc.so") || file.path.contains("/libc-"));
    let library = library.expect("libc is a file");
    assert_eq!((library.times, library.repeated_bytes), (1, 0), "{library:?}");

    let text = String::from_utf8(run(target.pid(), &[]).stdout).unwrap();
    let row = text.lines().find(|line| line.contains("geo") && line.ends_with("  8 times"));
    assert!(row.is_some_and(|row| row.contains(" 48.0 ")), "{text}");
    assert!(text.contains("pages that RSS counts again"), "{text}");
    target.go_on();
    assert!(target.finish());
}

/// A file that is mapped to write to it, as ImageMagick does with large images.
const SCRATCH: &str = r##"
    require 'fiddle'
    require 'tempfile'
    types = [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_LONG]
    mmap = Fiddle::Function.new(Fiddle::Handle::DEFAULT['mmap'], types, Fiddle::TYPE_VOIDP)
    bytes = 64 << 20
    file = Tempfile.new('pixels', '/var/tmp')
    file.truncate(bytes)
    map = mmap.call(nil, bytes, 3, 1, file.fileno, 0)
    0.step(bytes - 1, 4096) { |at| map[at] = 1 }
    puts "ready {}"
    $stdout.flush
    $stdin.read"##;

/// The step was to "change nothing, and watch PSS", which was as much as RSS.
#[test]
fn files_that_are_mapped_to_write_to_have_a_step() {
    let target = Target::bare_ruby(SCRATCH);
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::FileShared));
    let file = &report.files[0];
    assert_eq!((file.shared_bytes, file.writable_bytes), (64 * MIB, 64 * MIB), "{file:?}");
    let words = render::words::verdict(&report).summary;
    let effect = "64.0 MiB are of files that the process maps to write to: ";
    assert!(words.contains(effect), "{words}");
    let Action::UnmapFiles { bytes, path, path_bytes } = &report.advice[0].action else {
        panic!("{:?}", report.advice);
    };
    assert_eq!((*bytes, path, *path_bytes), (64 * MIB, &file.path, 64 * MIB));
    assert!(report.advice.iter().all(|step| step.action != Action::WatchPss));
    assert!(target.finish());
}

#[test]
fn files_are_not_listed_if_they_are_a_small_part() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let text = String::from_utf8(run(target.pid(), &[]).stdout).unwrap();
    assert!(!text.contains("FILE, MiB"), "{text}");
    assert!(!report(target.pid()).files.is_empty());
    assert!(target.finish());
}
