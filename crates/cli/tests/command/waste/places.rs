//! The lines of the constants that retain objects, and objects that were old in all snapshots.

use formats::{Diff, FewThings};
use testkit::Target;

use crate::{document, rbloat, report_of, run};

/// The line of a constant, or of the class whose variable retains the objects, was in no step.
#[test]
fn steps_name_the_line_of_the_constant_or_class() {
    let target = Target::bare_ruby(
        "require 'json'
         module Shop
           class Cache
             @items = Array.new(9) { (+'').concat('x' * 1_000_000).tap { |it| it[3..] = '' } }
           end
           EMPTIED = Array.new(9) { Array.new(150_000, 1).tap { |it| it.slice!(3..) } }
         end
         places = %w[Shop::EMPTIED Shop::Cache].to_h { |it| [it, Object.const_source_location(it)] }
         4.times { GC.start }
         puts \"ready #{JSON.generate(places)}\"; $stdout.flush; $stdin.read; exit!(true)",
    );
    let truth = |name: &str| {
        let [file, line] = [0, 1].map(|at| target.truth[name][at].clone());
        format!("{}:{line}", file.as_str().unwrap())
    };
    let report = report_of(&run(target.pid(), &["--json"]));
    for name in ["Shop::EMPTIED", "Shop::Cache"] {
        let place = report.places.iter().find(|it| it.name == name).unwrap();
        assert_eq!(place.line(), truth(name), "{:?}", report.places);
    }
    let text = |options: &[&str]| {
        let text = String::from_utf8(run(target.pid(), options).stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let steps = text(&[]);
    for sentence in [
        format!("Shop::EMPTIED is set in {}.", truth("Shop::EMPTIED")),
        format!("Shop::Cache is defined in {}.", truth("Shop::Cache")),
    ] {
        assert!(steps.contains(&sentence), "{sentence}: {steps}");
    }
    let row = format!("Shop::EMPTIED → Array × 2 {}", truth("Shop::EMPTIED"));
    assert!(text(&["--waste"]).contains(&row));
    assert!(target.finish());
}

/// A Struct with one of forty members that is not nil was in no row, and a small process of which half is room was healthy.
#[test]
fn mostly_nil_is_nearly_empty_and_much_room_is_not_healthy() {
    let target = Target::bare_ruby(
        "Row = Struct.new(*Array.new(40) { |i| :\"field#{i}\" })
         ROWS = Array.new(3_000) { |i| Row.new(i) }
         # One part in eight may have a value, and no more.
         FULLER = Array.new(2_000) { |i| Row.new(*Array.new(6, i)) }
         SPARSE = Array.new(1_000) { |i| [i] + Array.new(30) }
         EMPTIED = Array.new(1_600_000, 1).tap { |it| it.slice!(3..) }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = report_of(&run(target.pid(), &["--json", "--waste"]));
    let few = &report.waste.as_ref().unwrap().contents.as_ref().unwrap().few;
    let mostly = few.iter().filter(|it| it.has == FewThings::MostlyNil);
    let mut mostly: Vec<_> =
        mostly.map(|it| (it.class.as_str(), it.objects, it.path.as_str())).collect();
    mostly.sort_unstable();
    let expected = [("Array", 1_000, "SPARSE → Array × 2"), ("Row", 3_000, "ROWS → Array → Row")];
    assert_eq!(mostly, expected);
    let text = String::from_utf8(run(target.pid(), &["--waste"]).stdout).unwrap();
    assert!(text.contains("Row, with nil in 7 of 8 places"), "{text}");
    let saved = report.waste.as_ref().unwrap().saved_bytes();
    assert!(saved < 16 << 20 && saved * 4 > report.process.rss_bytes, "{saved}");
    assert!(!text.contains("Healthy"), "{text}");
    assert!(target.finish());
}

/// What sizes of slots add to strings was in no figure. The smallest slots have 40 bytes, and an embedded string 24 before its text.
#[test]
fn sizes_of_slots_add_to_what_objects_need() {
    let program = |text: &str| {
        format!(
            "require 'objspace'
             KEPT = Array.new(50_000) {{ {text} }}
             4.times {{ GC.start }}
             size = ObjectSpace.memsize_of(KEPT[0])
             puts \"ready {{\\\"size\\\": #{{size}}, \\\"pools\\\": #{{RUBY_VERSION >= '3.2'}}}}\"
             $stdout.flush; $stdin.read; exit!(true)"
        )
    };
    let slack = |text: &str| {
        let target = Target::bare_ruby(&program(text));
        let report = report_of(&run(target.pid(), &["--json"]));
        let size = target.number("size");
        let has_pools = target.truth["pools"].as_bool().unwrap();
        assert!(target.finish());
        (report.waste.unwrap().slack_bytes, size, has_pools)
    };
    let (small, size, has_pools) = slack("+'x' * 3");
    if !has_pools {
        assert_eq!(small, 0);
        return;
    }
    let (full, same, _) = slack("+'x' * 13");
    assert_eq!(size, same);
    let more = small.abs_diff(full).abs_diff(50_000 * 10);
    assert!(small > full && more < 50_000, "{small} {full}");
}

/// Three looks at a process that has a cache which it does not touch, one that it replaces, and objects on the stack of a thread.
#[test]
fn objects_that_were_old_in_all_snapshots_are_a_row_of_a_diff() {
    let mut target = Target::bare_ruby(
        "require 'objspace'
         UNTOUCHED = Array.new(60_000) { |i| \"an entry that nobody replaces, number #{i} #{'x' * 60}\" }
         REPLACED = []
         thread = Thread.new { mine = Array.new(50_000) { |i| \"of the stack #{i} #{'x' * 60}\" }; Thread.stop; mine }
         Thread.pass until thread.stop?
         memsize = UNTOUCHED.sum { |it| ObjectSpace.memsize_of(it) }
         5.times do |turn|
           REPLACED.replace(Array.new(60_000) { |i| \"turn #{turn}, number #{i} #{'x' * 60}\" })
           8.times { GC.start }
           puts \"ready {\\\"memsize\\\": #{memsize}}\"; $stdout.flush
           $stdin.gets or exit!(true)
         end",
    );
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for number in 0..4 {
        let path = folder.path().join(format!("{number}.rbloat")).to_str().unwrap().to_owned();
        let pid = target.pid().to_string();
        let arguments = ["snapshot", &pid, "--retained", "--max-pause", "10s", "-o", &path];
        let output = rbloat().args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        paths.push(path);
        target.tell("next");
        target.next_truth();
    }
    let diff = |paths: &[String], options: &[&str]| {
        rbloat().arg("diff").args(paths).args(options).output().unwrap().stdout
    };
    let of_all: Diff = document(&diff(&paths, &["--json"]));
    let rows = of_all.unchanged.unwrap();
    let row = rows.iter().find(|it| it.root == "UNTOUCHED").unwrap_or_else(|| panic!("{rows:#?}"));
    // The Array is one of them.
    assert!((60_000..=60_001).contains(&row.objects), "{row:?}");
    assert_eq!((row.class.as_deref(), row.line.as_deref()), (Some("String"), Some("-e:2")));
    let memsize = target.number("memsize");
    // malloc adds headers, and sizes of its own.
    assert!((memsize..memsize / 4 * 5).contains(&row.bytes), "{row:?} {memsize}");
    let exclusive = row.exclusive_bytes.unwrap();
    assert!(exclusive.abs_diff(row.bytes) < row.bytes / 20, "{row:?}");
    // Few objects of it were there by chance of their slots, and those of a stack have no constant.
    let replaced = rows.iter().find(|it| it.root == "REPLACED").map_or(0, |it| it.objects);
    assert!(replaced < 30_000, "{replaced}");
    assert!(rows.iter().all(|it| !it.root.starts_with('(')), "{rows:#?}");
    let text = String::from_utf8(diff(&paths, &[])).unwrap();
    assert!(text.contains("OLD IN ALL SNAPSHOTS"), "{text}");
    assert!(text.contains("UNTOUCHED"), "{text}");
    let of_two: Diff = document(&diff(&paths[..2], &["--json"]));
    assert_eq!(of_two.unchanged, None);
    assert!(target.finish());
}
