//! Verdicts and steps on memory that live objects do not use.

use formats::Action;
use testkit::Target;

use crate::{report_of, run};

/// What malloc adds to a request was in no figure. A small process whose room is worth a change has a step.
#[test]
fn malloc_adds_to_requests_and_small_processes_have_steps() {
    let target = Target::bare_ruby(
        "FULL = Array.new(5_000) { String.new(capacity: 4_096) << 'x' * 4_096 }
         LISTS = Array.new(200) { Array.new(9_000, 1).tap { |it| it.slice!(3..) } }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let output = run(target.pid(), &["--json"]);
    let report = report_of(&output);
    let waste = report.waste.as_ref().unwrap();
    // 4,097 bytes were requested. Arrays, and other strings of the interpreter, add a little.
    let is_jemalloc = std::env::var("RBLOAT_TEST_PRELOAD").is_ok_and(|it| it.contains("jemalloc"));
    let added = 5_000 * if is_jemalloc { 5_120 - 4_097 } else { 4_104 - 4_097 };
    assert!((added..2 * added + 300_000).contains(&waste.rounded_bytes), "{}", waste.rounded_bytes);
    let is_step = |step: &formats::Advice| matches!(&step.action, Action::CopyBuffers { class, .. } if class == "Array");
    assert!(report.advice.iter().any(is_step), "{:#?}", report.advice);
    assert!(target.finish());
}

/// Half of the process was room, in several small Arrays, and it was healthy. A step against the room counted the bytes of a step against equal
/// strings, too.
#[test]
fn a_process_with_much_room_is_not_healthy() {
    let target = Target::bare_ruby(
        "module Lists; end
         9.times { |i| Lists.const_set(\"L#{i}\", Array.new(300_000 + i, i).tap { |it| it.slice!(1..) }) }
         BUFFERS = Array.new(12) { +'' << 'x' * 2_000_000 }
         BUFFERS.each { |it| it[3..] = '' }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = report_of(&run(target.pid(), &["--json", "--waste"]));
    let saved = report.waste.as_ref().unwrap().saved_bytes();
    assert!(saved > 16 << 20, "{saved}");
    let text = String::from_utf8(run(target.pid(), &["--waste"]).stdout).unwrap();
    let text = text.replace('\n', " ");
    assert!(
        text.contains(" of it are room that live objects have and do not need: `rbloat"),
        "{text}"
    );
    assert!(!text.contains("Healthy"), "{text}");
    assert!(text.contains("Replace 12 Strings by a copy"), "{text}");
    assert!(!text.contains("Let Strings with the same text share one"), "{text}");
    assert!(target.finish());
}

/// "Release the large String, or a part of its contents" does not say that a match keeps it.
#[test]
fn texts_that_matches_keep_have_a_hint() {
    let target = Target::bare_ruby(
        "IDS = Array.new(40) { |i| (\"id=#{i};\" + 'x' * 2_000_000).match(/id=(\\d+)/) }
         def clear(depth); depth.zero? ? 0 : clear(depth - 1) + 1; end
         clear(100)
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let text = String::from_utf8(run(target.pid(), &[]).stdout).unwrap();
    let text = text.replace("\n   ", "");
    assert!(text.contains("keeps the whole text that was searched: `match[1] + \"\"`"), "{text}");
    assert!(target.finish());
}

/// "Release the objects", although most of them are empty or equal.
#[test]
fn a_step_against_objects_says_if_most_are_empty_or_equal() {
    let sentence = |program: &str| {
        let target = Target::bare_ruby(&format!(
            "{program}
             4.times {{ GC.start }}
             puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(true)"
        ));
        let with = String::from_utf8(run(target.pid(), &["--waste"]).stdout).unwrap();
        let without = String::from_utf8(run(target.pid(), &[]).stdout).unwrap();
        assert!(target.finish());
        assert!(!without.contains(" of them ("), "{without}");
        with.replace("\n   ", "")
    };
    let empty = sentence("LISTS = Array.new(900_000) { [] }");
    assert!(empty.contains(" of them (34.3 MiB) are empty: they need not exist before"), "{empty}");
    let equal = sentence(
        "class Version; def initialize(major); @major = major; end; end
         VERSIONS = Array.new(900_000) { |i| Version.new(i % 7) }",
    );
    assert!(equal.contains("899,993 of them ("), "{equal}");
    assert!(
        equal.contains("repeat 7 contents: if nothing changes these, one object of each"),
        "{equal}"
    );
}

/// Strings that grow have up to as much room as text. That was no step unless they used less than half of it.
#[test]
fn room_of_a_third_of_the_memory_has_a_step() {
    let mut target = Target::bare_ruby(
        "require 'objspace'
         BODIES = Array.new(3_000) { (String.new(capacity: 9_000) << 'x' * 9_000).tap { |it| it[6_000..] = '' } }
         memsize = -> { BODIES.sum { |it| ObjectSpace.memsize_of(it) } }
         2.times do
           4.times { GC.start }
           puts \"ready {\\\"memsize\\\": #{memsize.call}}\"; $stdout.flush
           $stdin.gets or exit!(true)
           BODIES.map! { |it| it + '' }
         end",
    );
    let report = report_of(&run(target.pid(), &["--json"]));
    let step = report.advice.iter().find_map(|step| match &step.action {
        Action::CopyBuffers { class, objects: 3_000, bytes, .. } if class == "String" => {
            Some(*bytes)
        }
        _ => None,
    });
    let step = step.unwrap_or_else(|| panic!("{:#?}", report.advice));
    let before = target.number("memsize");
    target.tell("copy");
    let after = target.next_truth()["memsize"].as_u64().unwrap();
    let saved = before - after;
    assert!(step.abs_diff(saved) < saved / 5, "{step} of {saved}");
    assert!(target.finish());
}
