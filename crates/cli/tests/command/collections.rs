//! Targets that are stopped in the middle of a garbage collection, or collect garbage continuously.

use crate::{report_of, run};
use testkit::{Target, compile};

/// Starts Ruby with an object of `midst.c` and 100,000 others, and makes it collect garbage. It stops itself when the
/// callback `at` is called.
fn stopped(at: u8, collect: &str) -> (tempfile::TempDir, Target) {
    let folder = tempfile::tempdir().unwrap();
    let library = compile("midst", folder.path(), &["-shared", "-fPIC"]);
    let source = format!(
        "require 'fiddle'
         library = Fiddle.dlopen({:?})
         make = Fiddle::Function.new(library['midst_new'], [Fiddle::TYPE_VOIDP], Fiddle::TYPE_VOIDP)
         at = Fiddle::Function.new(library['midst_at'], [Fiddle::TYPE_INT], Fiddle::TYPE_VOID)
         $kept = Array.new(100_000) {{ |i| i % 2 == 0 ? 'kept ' * 200 : Object.new }}
         $kept.map!.with_index {{ |object, i| i % 5 == 0 ? object : nil }}
         object = Fiddle.dlunwrap(make.call(Fiddle.dlwrap(Object)).to_i)
         object = nil if {at} == 2
         puts 'ready {{}}'
         $stdout.flush
         at.call({at})
         {collect}
         puts 'ready {{}}'
         $stdout.flush
         $stdin.read",
        library.to_str().unwrap()
    );
    let ruby = std::env::var("RBLOAT_TEST_RUBY").unwrap_or_else(|_| "ruby".into());
    let preload = format!("LD_PRELOAD={}", library.display());
    (
        folder,
        Target::start(testkit::command("env").args([
            &preload,
            &ruby,
            "--disable-gems",
            "-e",
            &source,
        ])),
    )
}

/// Reports on a target in the middle of a collection, and checks that the collection continues to its end.
fn assert_whole_at(at: u8, collect: &str) {
    let (_folder, mut target) = stopped(at, collect);
    target.wait_until_stopped();
    let truth = target.rss_bytes();
    let report = report_of(&run(target.pid(), &["--json"]));
    assert_eq!(report.findings, []);
    assert_eq!(report.process.rss_bytes, truth);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, truth);
    let ruby = report.ruby.unwrap();
    assert!(ruby.slots_live >= 20_000, "{ruby:#?}");
    target.go_on();
    target.next_truth();
    assert!(target.finish());
}

#[test]
fn in_the_midst_of_marking() {
    assert_whole_at(1, "GC.start");
}

#[test]
fn in_the_midst_of_sweeping() {
    assert_whole_at(2, "GC.start");
}

#[test]
fn in_the_midst_of_compacting() {
    assert_whole_at(3, "GC.compact");
}

#[test]
fn while_compacting_forbids_access_to_heap_pages() {
    assert_whole_at(4, "GC.compact; Process.kill(:STOP, $$) if RUBY_VERSION < '3'");
}

#[test]
fn one_collection_after_another() {
    let mut target = Target::bare_ruby(
        "$kept = Array.new(100_000) { |i| i % 2 == 0 ? 'kept ' * 200 : Object.new }
         stop = false
         threads = Array.new(2) do |n|
           Thread.new { (n == 0 ? GC.start : GC.compact; $count = $count.to_i + 1) until stop }
         end
         puts 'ready {}'
         $stdout.flush
         while $stdin.gets
           puts \"ready {\\\"collections\\\": #{$count}, \\\"wrong\\\": #{$kept.count { |o| o.is_a?(String) && o != 'kept ' * 200 }}}\"
           $stdout.flush
         end
         exit!(0)",
    );
    for _ in 0..testkit::captures() {
        let output = run(target.pid(), &["--json"]);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        // If the heap was being changed at all attempts, the report is incomplete.
        assert!(matches!(output.status.code(), Some(0 | 6)), "{complaint}");
        let report: formats::Report = crate::document(&output.stdout);
        let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, report.process.rss_bytes);
        assert_eq!(
            output.status.code() == Some(0),
            report.ruby.is_some() && report.malloc.is_some()
        );
    }
    target.tell("");
    let before = target.next_truth();
    // On a busy machine a collection takes a while.
    let goes_on = (0..300).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(300));
        target.tell("");
        let after = target.next_truth();
        assert_eq!(after["wrong"], 0);
        after["collections"].as_u64() > before["collections"].as_u64()
    });
    assert!(goes_on, "{before}");
    assert!(target.finish());
}
