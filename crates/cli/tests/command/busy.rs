//! Reports on a process that never stops to allocate and free memory, at arbitrary moments.

use formats::Report;
use testkit::Target;

use crate::{bytes, document, rbloat};

/// Background threads purge continuously.
const SETTINGS: &str = "background_thread:true,dirty_decay_ms:100";
const PROGRAM: &str = "
    kept = Array.new(4) { [] }
    4.times do |number|
      random = Random.new(number)
      Thread.new do
        loop do
          mine = kept[number]
          mine << 'x' * random.rand(2000) << Array.new(random.rand(50)) { |i| i.to_s }
          kept[number] = mine.last(random.rand(500)) if mine.size > 2000
        end
      end
    end
    Thread.pass until kept.all? { |mine| mine.size > 1000 }
    puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)";

/// The status of a report in which a part of the process could not be read.
const INCOMPLETE: i32 = 6;

#[test]
fn ruby_under_jemalloc() {
    let Some(library) = testkit::jemalloc() else { return };
    let mut ruby = testkit::ruby();
    ruby.env("LD_PRELOAD", library).env("MALLOC_CONF", SETTINGS);
    let target = Target::start(ruby.args(["--disable-gems", "-e", PROGRAM]));
    let mut found = Vec::new();
    for _ in 0..testkit::captures() {
        let arguments = ["report", &target.pid().to_string(), "--max-pause", "10s", "--json"];
        let output = rbloat().args(arguments).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        let report: Report = document(&output.stdout);
        let status = if report.is_complete() { 0 } else { INCOMPLETE };
        assert_eq!(output.status.code(), Some(status), "{complaint}");

        assert_eq!(report.process.allocator, "jemalloc");
        let rss = report.process.rss_bytes;
        assert_eq!(report.causes.iter().map(|row| row.bytes).sum::<u64>(), rss);
        let unknown = bytes(&report, "unknown");
        let findings = report.findings;
        assert!(unknown * 100 <= rss || !findings.is_empty(), "{unknown} of {rss} are unknown");
        found.extend((!findings.is_empty()).then_some(findings));
    }
    eprintln!("{} of {} reports have findings: {found:#?}", found.len(), testkit::captures());
    assert!(target.finish());
}
