//! A target with pages in swap, for which a swap file is made.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{bytes, report};
use testkit::Target;

/// A swap file that is in use until this value is dropped.
struct Swap(PathBuf);

impl Swap {
    /// Returns `None` if the kernel accepts no swap file: without root, or on a filesystem without support for it.
    fn on(path: &Path) -> Option<Self> {
        let made = Command::new("sh")
            .args([
                "-c",
                "umask 77 && fallocate -l 256M \"$0\" && mkswap -q \"$0\" && swapon \"$0\"",
            ])
            .arg(path)
            .status();
        made.is_ok_and(|status| status.success()).then(|| Self(path.into()))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
    }
}

#[test]
fn pages_in_swap_are_counted_apart_and_stay_there() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(_swap) = Swap::on(&folder.path().join("swap")) else {
        testkit::skip("no swap file can be used here");
        return;
    };
    // Strings of 100,000 bytes lie in the heap that brk extends; MADV_PAGEOUT is 21.
    let target = Target::bare_ruby(
        "require 'fiddle'
         $kept = Array.new(1000) { |i| Random.new(i).bytes(100_000) }
         types = [Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG, Fiddle::TYPE_INT]
         madvise = Fiddle::Function.new(Fiddle.dlopen(nil)['madvise'], types, Fiddle::TYPE_INT)
         $kept.each do |string|
           start = (Fiddle::Pointer[string].to_i + 4095) & -4096
           madvise.call(start, 94_208, 21)
         end
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    target.stop_asleep();
    let swap = target.swap_bytes();
    let truth = target.rss_bytes();
    assert!(swap > 80 << 20, "{swap} bytes are in swap");
    for _ in 0..3 {
        let report = report(target.pid());
        assert_eq!(report.findings, []);
        assert_eq!(report.process.swap_bytes, swap);
        assert_eq!(report.process.rss_bytes, truth);
        let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, truth);
        assert!(bytes(&report, "ruby.malloc") < 40 << 20, "{report:#?}");
        assert_eq!(target.swap_bytes(), swap, "rbloat read pages back in");
    }
    target.go_on();
    assert!(target.finish());
}
