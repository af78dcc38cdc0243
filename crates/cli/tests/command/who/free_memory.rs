//! The code that left free memory.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use formats::{Action, Advice, Diff, MadeBy, Report};
use ledger::Cause;
use testkit::{Browser, Target};

use super::{assert_adds_up, document_of, share, watch_work};
use crate::{bytes, document, rbloat, report_of, run};

/// Threads build results at once, of which one kind is kept.
const BURST: &str = r##"
    eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/bursts.rb', 1)
      class Bursts
        def strings
          Array.new(5000) { |i| "x" * (900 + i % 7000) }
        end
        def arrays
          Array.new(4000) { |i| Array.new(400, i) }
        end
        def kept
          Array.new(9000) { |i| "y" * (900 + i % 300) }
        end
        def run(name, times = 2)
          results = Array.new(times) { send(name) }
          results if name == :kept
        end
      end
    RUBY
    puts 'ready {}'; $stdout.flush
    $stdin.gets
    names = %i[strings arrays kept]
    $kept = WORK
    4.times { GC.start }
    puts 'ready {}'; $stdout.flush
    $stdin.read
"##;
/// Without collections: no method gets memory that another one touched first.
const THREADS: &str = "GC.disable.then { Array.new(20) { |n| Thread.new { Bursts.new.run(names[n % 3]) } }.map(&:value) }.tap { GC.enable }";
const RACTORS: &str =
    "Array.new(6) { |n| Ractor.new(names[n % 3]) { |name| Bursts.new.run(name, 6) } }
    .map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }";

/// Watches the work of a target. Returns the report with the samples as a document and as text.
fn reports_on_work(target: &mut Target) -> (Report, String) {
    let (output, _) = watch_work(target);
    let folder = tempfile::tempdir().unwrap();
    let samples = folder.path().join("who.json").display().to_string();
    fs::write(&samples, &output.stdout).unwrap();
    let report = |more: &[&str]| run(target.pid(), &[&["--who", &samples], more].concat());
    let text = String::from_utf8(report(&[]).stdout).unwrap();
    (report_of(&report(&["--json"])), text)
}

/// The code is known for the memory that the ledger counts as free, and the code whose results are kept has none of it.
#[test]
fn the_code_that_left_free_memory_is_named() {
    let (target, output) = watch_burst(&mut testkit::ruby(), THREADS);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [samples, snapshot, page] = ["who.json", "a.rbloat", "a.html"].map(file);
    fs::write(&samples, &output.stdout).unwrap();
    let pid = target.pid().to_string();
    let output_of = |words: &[&str]| {
        let output = rbloat().args(words).args(["--max-pause", "10s"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    output_of(&["snapshot", &pid, "-o", &snapshot]);
    let report: Report = document(&output_of(&["report", &snapshot, "--who", &samples, "--json"]));
    let rows = report.made_by.clone().unwrap();
    let free = rows.iter().find(|row| row.cause == Some(Cause::MallocUnreturned)).unwrap();
    assert_eq!(free.bytes, bytes(&report, "malloc.unreturned"));
    assert!(free.bytes > 48 << 20, "{}", free.bytes);
    assert!(free.known_bytes * 100 >= free.bytes * 97, "{free:#?}");
    let [strings, arrays, kept] =
        ["Bursts#strings", "Bursts#arrays", "Bursts#kept"].map(|method| bytes_by(free, method));
    assert!((strings + arrays) * 100 >= free.bytes * 90, "{free:#?}");
    assert!(kept * 20 <= free.bytes, "{free:#?}");
    let live = rows.iter().find(|row| row.owner.as_deref() == Some("String")).unwrap();
    assert!(bytes_by(live, "Bursts#kept") * 100 >= live.known_bytes * 80, "{live:#?}");
    // The first step is to change the code.
    let Action::ChangeCode { code, .. } = &report.advice[0].action else {
        panic!("{:?}", report.advice)
    };
    assert_eq!(code.path.as_deref(), Some("/srv/app/bursts.rb"));
    let text = String::from_utf8(output_of(&["report", &snapshot, "--who", &samples])).unwrap();
    assert!(
        text.contains("MADE BY") && text.contains("first touched in block in Bursts#"),
        "{text}"
    );
    let diff: Diff =
        document(&output_of(&["diff", &snapshot, &snapshot, "--who", &samples, "--json"]));
    assert_eq!(diff.made_by.unwrap(), rows);
    let pictures = ["a.png", "b.png"].map(file);
    for file in [&page, &pictures[0]] {
        let shown = output_of(&["map", &snapshot, "--who", &samples, "-o", file]);
        assert!(shown.starts_with(file.as_bytes()), "{}", String::from_utf8_lossy(&shown));
    }
    output_of(&["map", &snapshot, "-o", &pictures[1]]);
    let [by_code, by_use] = pictures.map(|picture| fs::read(picture).unwrap());
    assert_ne!(by_code, by_use);
    assert_code_of_pages(&page);
    // Samples of another process.
    let other = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let words = ["report", &other.pid().to_string(), "--who", &samples];
    let output = rbloat().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaint.contains(&format!("has no samples of process {}", other.pid())),
        "{complaint}"
    );
    // A comparison fails before its first capture.
    let words = ["diff", &other.pid().to_string(), "--every", "24h", "--who", &samples];
    assert_eq!(rbloat().args(words).output().unwrap().status.code(), Some(3));
    // Another document.
    fs::write(&samples, output_of(&["report", &snapshot, "--json"])).unwrap();
    let output = rbloat().args(["report", &snapshot, "--who", &samples]).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("it is a document of the kind `report`"), "{complaint}");
    assert!(target.finish());
}

/// Of memory that is neither malloc's nor Ruby's, `report --who` had no row.
#[test]
fn the_code_that_maps_memory_is_named() {
    let mut target = Target::bare_ruby(
        "begin; require 'fiddle'; rescue LoadError; puts 'ready {\"none\":true}'; $stdout.flush; $stdin.read; exit; end
         eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/engine.rb', 1)
           class Engine
             LIBRARY, WORD = Fiddle::Handle::DEFAULT, Fiddle::TYPE_UINTPTR_T
             MAP, FILL = %w[mmap memset].map { |name| Fiddle::Function.new(LIBRARY[name], [WORD] * (name == 'mmap' ? 6 : 3), WORD) }
             def initialize
               @heap = MAP.call(0, 1 << 20, 3, 0x22, 2**64 - 1, 0)
               FILL.call(@heap, 1, 1 << 20)
             end
           end
         RUBY
         puts 'ready {}'; $stdout.flush
         $stdin.gets
         POOL = Array.new(96) { Engine.new }
         puts 'ready {}'; $stdout.flush
         $stdin.read; exit!(true)",
    );
    if target.truth["none"] == true {
        return testkit::skip("this Ruby has no fiddle");
    }
    let (report, _) = reports_on_work(&mut target);
    let rows = report.made_by.as_deref().unwrap();
    let unknown = rows.iter().find(|row| row.cause == Some(Cause::Unknown)).unwrap();
    assert!(unknown.bytes >= 96 << 20, "{unknown:#?}");
    assert!(bytes_by(unknown, "Engine#initialize") * 10 >= unknown.bytes * 9, "{unknown:#?}");
    let step = &report.advice[0];
    let Action::ChangeCode { of, code, .. } = &step.action else { panic!("{step:?}") };
    assert_eq!((*of, code.path.as_deref()), (Cause::Unknown, Some("/srv/app/engine.rb")));
    let words = render::words::advice(step, &report).action;
    assert!(words.contains(" of memory that is neither malloc's nor Ruby's: "), "{words}");
    assert!(target.finish());
}

/// "Change Render#page": it had touched the memory first, and freed it before a leak of small blocks took it.
#[test]
fn a_leak_in_memory_that_other_code_freed_is_not_blamed_on_that_code() {
    let mut target = Target::start(
        testkit::ruby().env("MALLOC_ARENA_MAX", "1").env_remove("LD_PRELOAD").args([
            "--disable-gems",
            "-e",
            "begin; require 'fiddle'; rescue LoadError; puts 'ready {\"none\":true}'; $stdout.flush; $stdin.read; exit; end
             class Render
               # Some pieces stay between those that are freed.
               def page
                 Array.new(200_000) { |i| 'x' * (200 + i % 100) }.each_slice(2000).map(&:last)
               end
             end
             MALLOC = Fiddle::Function.new(Fiddle::Handle::DEFAULT['malloc'], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_UINTPTR_T)
             puts 'ready {}'; $stdout.flush
             $stdin.gets
             $pieces = Thread.new { Render.new.page }.value
             4.times { GC.start }
             250_000.times { MALLOC.call(200) }
             4.times { GC.start }
             puts 'ready {}'; $stdout.flush
             $stdin.read; exit!(true)",
        ]),
    );
    if target.truth["none"] == true {
        return testkit::skip("this Ruby has no fiddle");
    }
    let (report, text) = reports_on_work(&mut target);
    let rows = report.made_by.as_deref().unwrap();
    let leak = rows.iter().find(|row| row.cause == Some(Cause::NativeUnreachable)).unwrap();
    assert!(leak.bytes > 24 << 20 && leak.code.is_empty(), "{leak:#?}");
    let of_leak = Cause::NativeUnreachable;
    let is_change =
        |it: &Advice| matches!(it.action, Action::ChangeCode { of, .. } if of == of_leak);
    assert!(!report.advice.iter().any(is_change), "{:?}", report.advice);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("is named: malloc may have used this memory before"), "{text}");
    // `who` cannot see what touches no new pages.
    assert!(words.contains("While RSS grows with it, `rbloat who` names"), "{text}");
    assert!(words.contains("`rbloat diff` states if RSS does not"), "{text}");
    assert!(target.finish());
}

/// Runs [`BURST`], and checks that all three methods are among those that grow, and little code is unknown.
fn watch_burst(command: &mut Command, work: &str) -> (Target, Output) {
    let mut target =
        Target::start(command.args(["--disable-gems", "-e", &BURST.replace("WORK", work)]));
    let (output, _) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    assert!(found.unknown_bytes * 5 < found.growth_bytes, "{:?}", found.sampling);
    let shares = ["Bursts#strings", "Bursts#arrays", "Bursts#kept"].map(|name| share(&found, name));
    assert!(shares.iter().all(|&share| share > 0.04), "{shares:?}");
    assert!(shares.iter().sum::<f64>() > 0.75, "{shares:?}");
    (target, output)
}

/// The code that touched the memory of this row, as far as its method has this name.
fn bytes_by(row: &MadeBy, method: &str) -> u64 {
    let own = row.code.iter().filter(|code| code.method.ends_with(method));
    own.map(|code| code.bytes).sum()
}

#[test]
fn ractors_are_followed() {
    let can =
        testkit::ruby().args(["--disable-gems", "-e", "Ractor"]).output().unwrap().status.success();
    if !can {
        return testkit::skip("Ruby has Ractors from 3.0 on");
    }
    let (target, _) = watch_burst(&mut testkit::ruby(), RACTORS);
    assert!(target.finish());
}

/// From Ruby 3.3 on, threads can share native threads.
#[test]
fn threads_that_share_native_threads_are_followed() {
    let (target, _) = watch_burst(testkit::ruby().env("RUBY_MN_THREADS", "1"), THREADS);
    assert!(target.finish());
}

#[test]
fn the_code_that_left_free_memory_is_named_under_jemalloc() {
    let (target, output) =
        watch_burst(testkit::ruby().env("LD_PRELOAD", "libjemalloc.so.2"), THREADS);
    let folder = tempfile::tempdir().unwrap();
    let samples = folder.path().join("who.json").display().to_string();
    fs::write(&samples, &output.stdout).unwrap();
    let report = report_of(&run(target.pid(), &["--who", &samples, "--json"]));
    if report.process.allocator != "jemalloc" {
        return testkit::skip("libjemalloc2 is not installed where targets run");
    }
    let rows = report.made_by.as_deref().unwrap();
    let free = rows.iter().find(|row| row.cause == Some(Cause::MallocUnreturned)).unwrap();
    assert!(free.known_bytes * 100 >= free.bytes * 95, "{free:#?}");
    assert!(bytes_by(free, "Bursts#kept") * 20 <= free.bytes, "{free:#?}");
    assert!(target.finish());
}

/// The map colours pages by their code, with the code in its legend.
fn assert_code_of_pages(page: &str) {
    let mut browser = Browser::open(Path::new(page), "", [1200, 800]);
    browser.wait_until("document.querySelector('[data-view=code]')?.hidden === false");
    browser.evaluate("document.querySelector('[data-view=code]').click()");
    let legend = browser.evaluate("document.getElementById('legend').textContent");
    let legend = legend.as_str().unwrap();
    for method in ["Bursts#strings", "Bursts#arrays", "Bursts#kept"] {
        assert!(legend.contains(method), "{legend}");
    }
    assert!(legend.contains("/srv/app/bursts.rb:3"), "{legend}");
}
