//! The lines that allocate what stays, compared with programs whose lines are known to keep it or not.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use formats::{Diff, DumpDiff, Kept, KeptJudgement, KeptLine, KeptRow, KeptUnknown, Recording};
use testkit::Target;

use super::{wait_until_it_has_waited, wait_until_it_samples};
use crate::{document, rbloat};

/// Watches a scenario while it does so many rounds.
fn watch(scenario: &str, rounds: u64) -> Option<Kept> {
    let mut target = Target::scenario(&format!("kept/{scenario}"), &[]);
    watch_target(&mut target, "1000", &rounds.to_string(), &[])
}

/// Starts `rbloat who --kept`, and waits until it samples.
fn begin(target: &Target, rate: &str, files: &[&str]) -> Child {
    let pid = target.pid().to_string();
    let arguments = ["--kept", "--json", "--for", "1h", "--rate", rate, "--older-than", "1s"];
    let mut child = rbloat()
        .args(["who", &pid, "--max-pause", "10s"])
        .args(arguments)
        .args(files)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    child
}

/// Watches a program while it does what this line asks for.
fn watch_target(target: &mut Target, rate: &str, line: &str, files: &[&str]) -> Option<Kept> {
    let mut child = begin(target, rate, files);
    if child.try_wait().unwrap().is_none() {
        target.tell(line);
        target.next_truth();
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    let output = child.wait_with_output().unwrap();
    is_possible(&output).then(|| document(&output.stdout))
}

/// Returns false, and reports the test as skipped, if the kernel refuses clocks with programs.
fn is_possible(output: &Output) -> bool {
    let complaint = String::from_utf8_lossy(&output.stderr);
    let is_refused = output.status.code() == Some(4) && complaint.contains("ticks of the clocks");
    if is_refused {
        testkit::skip(complaint.trim());
    }
    assert!(is_refused || output.status.success(), "{complaint}");
    !is_refused
}

/// The objects of a class that a root retains, if there are so many samples that a line is named.
fn named<'a>(kept: &'a Kept, class: &str, root: &str) -> Option<&'a KeptRow> {
    let is_it = |it: &&KeptRow| it.class == class && it.root.as_deref() == Some(root);
    kept.rows.iter().find(is_it).filter(|it| it.judgement == KeptJudgement::Named)
}

/// The samples of lines of this method, with those of its blocks.
fn samples(row: &KeptRow, method: &str) -> u64 {
    row.lines.iter().filter(|it| it.method.ends_with(method)).map(|it| it.samples).sum()
}

/// The roots of `lines`, the classes of the objects that they keep, and the methods that make these.
const TRUTH: [(&str, &str, &[&str]); 5] = [
    ("Tracker::SEEN", "Event", &["Tracker#track"]),
    ("Cache::STORE", "Array", &["Cache#hot", "Cache#cold"]),
    ("Import::ROWS", "Row", &["Import.reader"]),
    ("Feed::KEPT", "Array", &["Feed.load"]),
    // Two samples are enough if Feed::KEPT has ten in all.
    ("Feed::KEPT", "String", &["Feed.load"]),
];

/// Compares the lines of a result with those of `lines`. Of ten samples of a class two are wrong by chance now and then, so the samples of
/// all are compared.
fn assert_lines_are_right(kept: &Kept) {
    assert_eq!(kept.unknown, None);
    assert!(kept.collections > 2 && kept.ticks > 0, "{kept:#?}");
    let (mut right, mut samples) = (0, 0);
    for row in &kept.rows {
        let of_row = (row.root.as_deref().unwrap_or_default(), row.class.as_str());
        let is_named = row.judgement == KeptJudgement::Named;
        let Some((_, _, methods)) = TRUTH.iter().find(|it| (it.0, it.1) == of_row) else {
            assert!(!is_named, "{row:#?}");
            continue;
        };
        let is_right = |it: &KeptLine| methods.iter().any(|method| it.method.ends_with(method));
        assert!(!is_named || row.lines.first().is_none_or(is_right), "{row:#?}");
        right += row.lines.iter().filter(|it| is_right(it)).map(|it| it.samples).sum::<u64>();
        // Those of code that a compiler hides have no line.
        samples += row.lines.iter().map(|it| it.samples).sum::<u64>();
    }
    // About 1 sample in 140 is wrong (docs/measurements.md), and there may be few.
    assert!((right + 2) * 100 >= samples * 95, "{right} of {samples}: {kept:#?}");
}

/// Compares stacks, as they are and as a file for other tools, with the growth of the rows that were named.
fn assert_stacks_are_of_rows(kept: &Kept, event: &KeptRow, folded: &str) {
    for class in kept.rows.iter().map(|it| &it.class) {
        let stacks = kept.stacks.iter().filter(|it| it.class == *class);
        let sums = stacks.fold((0, 0), |sum, it| (sum.0 + it.samples, sum.1 + it.objects));
        let named = kept.rows.iter().filter(|it| it.judgement == KeptJudgement::Named);
        let of_rows = named.filter(|it| it.class == *class).fold((0, 0), |sum, it| {
            (sum.0 + it.samples, sum.1 + it.objects_after.saturating_sub(it.objects_before))
        });
        assert_eq!(sums, of_rows, "{class} {kept:#?}");
    }
    let of_event =
        |line: &&str| line.contains("Tracker#track (lines.rb:") && line.contains(";Event ");
    let weights = folded.lines().filter(of_event).map(|line| line.rsplit(' ').next().unwrap());
    let objects: u64 = weights.map(|weight| weight.parse::<u64>().unwrap()).sum();
    let growth = event.objects_after - event.objects_before;
    assert!(objects <= growth && (objects + growth / 20) * 100 >= growth * 95, "{folded}");
}

#[test]
fn the_lines_that_keep_what_they_make_are_named() {
    let is_long = testkit::is_nightly("the lines of what stays, for longer");
    let folder = tempfile::tempdir().unwrap();
    let folded = folder.path().join("kept.folded");
    let files = ["-o", folded.to_str().unwrap()];
    // A machine that leaves rbloat little time has fewer samples.
    for rounds in [if is_long { 60_000 } else { 15_000 }, 60_000, 240_000, 960_000] {
        let mut target = Target::scenario("kept/lines", &[]);
        let kept = watch_target(&mut target, "1000", &rounds.to_string(), &files);
        let Some(kept) = kept else { return };
        assert_lines_are_right(&kept);
        let events = named(&kept, "Event", "Tracker::SEEN");
        // Of two methods one makes three of four objects. Of few samples the other one may have none.
        let arrays = named(&kept, "Array", "Cache::STORE").filter(|it| it.samples >= 40);
        let (Some(events), Some(arrays)) = (events, arrays) else { continue };
        assert_stacks_are_of_rows(&kept, events, &std::fs::read_to_string(&folded).unwrap());
        assert_eq!(arrays.path.as_deref(), Some("Cache::STORE → Hash → Array"));
        // Three elements are in the slot.
        let slots = (arrays.objects_after - arrays.objects_before) * 40;
        assert!((slots..=slots * 2).contains(&arrays.bytes), "{arrays:#?}");
        let [hot, cold] = ["Cache#hot", "Cache#cold"].map(|method| samples(arrays, method));
        assert!(hot > cold && cold > 0, "{arrays:#?}");
        return;
    }
    panic!("too few samples of what the program keeps");
}

#[test]
fn dumps_of_a_process_that_traced_nothing_get_the_lines_of_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let samples = at("kept.json");
    // A machine that leaves rbloat little time has fewer samples.
    for rounds in [15_000, 60_000, 240_000] {
        let mut target = Target::scenario("kept/lines", &[]);
        let pid = target.pid().to_string();
        let dump = |name: &str| {
            let mut rbloat = rbloat();
            rbloat.args(["dump", &pid, "--max-pause", "10s", "-o", &at(name)]);
            assert!(rbloat.status().unwrap().success());
        };
        dump("1.ndjson.gz");
        let rounds = rounds.to_string();
        let Some(kept) = watch_target(&mut target, "1000", &rounds, &["-o", &samples]) else {
            return;
        };
        if named(&kept, "Event", "Tracker::SEEN").is_none() {
            continue;
        }
        dump("2.ndjson.gz");
        let diff = |more: &[&str]| {
            let mut rbloat = rbloat();
            rbloat.args(["diff", &at("1.ndjson.gz"), &at("2.ndjson.gz")]).args(more);
            rbloat.output().unwrap()
        };
        let result: DumpDiff = document(&diff(&["--who", &samples, "--json"]).stdout);
        let mut groups = result.groups.iter();
        let events =
            groups.find(|it| it.class == "Event" && it.root.as_deref() == Some("Tracker::SEEN"));
        let line = &events.unwrap().made_by[0];
        assert!(line.method.ends_with("Tracker#track"), "{line:?}");
        let other = diff(&["--who", &at("1.ndjson.gz")]);
        let complaint = String::from_utf8_lossy(&other.stderr);
        assert!(
            other.status.code() == Some(3) && complaint.contains("--kept -o kept.json"),
            "{complaint}"
        );
        return;
    }
    panic!("too few samples of what the program keeps");
}

/// "About 77 of 80 samples of them were made in Checker#check", which was given them.
#[test]
fn what_a_method_was_given_is_not_made_by_it() {
    let enough =
        |kept: Kept| kept.rows.into_iter().find(|it| it.class == "Row" && it.samples >= 40);
    // Ticks follow processor time, of which a faster machine needs less for a round.
    for rounds in [10_000, 40_000, 160_000] {
        let Some(kept) = watch("given", rounds) else { return };
        if let Some(rows) = enough(kept) {
            let [take, row] = ["Import#take", "Parser#row"].map(|method| samples(&rows, method));
            assert!((take + row) * 100 >= rows.samples * 95, "{rows:#?}");
            return;
        }
    }
    panic!("fewer than 40 samples of what the program keeps");
}

/// Of 800 samples 100 were left, of the first seconds: collections during the last capture were looked at while the forked copy shared
/// all pages of the process, and those that it had mapped meanwhile could not be read.
#[test]
fn samples_survive_a_forked_copy() {
    for rounds in [40_000, 160_000, 640_000] {
        let mut target = Target::bare_ruby(
            r##"
            Row = Struct.new(:id, :name)
            KEPT = []
            BALLAST = Array.new(50_000) { |i| "ballast #{i}" }
            def row(number)
              row = Row.new(number, 7)
              60.times { |index| row.id += index }
              KEPT << row
            end
            def collect(full_mark)
              4.times { Array.new(1000) { |i| "item #{i}" }; GC.start(full_mark: full_mark); sleep 0.1 }
            end
            4.times { GC.start }
            Thread.new { loop { Array.new(500) { |i| "item #{i}" }.join; sleep 0.001 } }
            puts 'ready {}'
            $stdout.flush
            rounds = $stdin.gets.to_i
            # Then the pages that it has are full.
            full = Array.new(100_000) { |i| [i] }
            rounds.times { |number| row(number); Array.new(20) { |i| "i #{i}" } }
            collect(false)
            reader, writer = IO.pipe
            fork { writer.close; reader.read }
            reader.close
            collect(true)
            sleep 1
            puts 'ready {}'
            $stdout.flush
            $stdin.read
            "##,
        );
        let watched = watch_target(&mut target, "1000", &rounds.to_string(), &[]);
        let Some(kept) = watched else { return };
        if named(&kept, "Row", "KEPT").is_some() {
            return;
        }
    }
    panic!("too few samples of what the program keeps");
}

/// A leak that takes hours to be seen needs a recording.
#[test]
fn a_recording_has_the_lines_of_what_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept.jsonl");
    let mut target = Target::scenario("kept/lines", &[]);
    let mut child = rbloat()
        .args(["record", &target.pid().to_string(), "--kept", "--max-pause", "10s", "-o"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    if child.try_wait().unwrap().is_none() {
        target.tell("15000");
        target.next_truth();
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    let output = child.wait_with_output().unwrap();
    if !is_possible(&output) {
        return;
    }
    let recording = Recording::read(&*std::fs::read(&file).unwrap()).unwrap();
    let kept = recording.kept().unwrap();
    // Its objects must be older than those of other tests, and there are fewer ticks.
    assert!(kept.unknown.is_none() && kept.seen > 0 && kept.collections > 2, "{kept:#?}");
    assert!(kept.younger > 0 && kept.stacks.is_empty(), "{kept:#?}");
    // Long sentences go on in the next line.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let whole = anstream::adapter::strip_str(&render::kept(kept, 100)).to_string();
    let (_, whole) = whole.split_once('\n').unwrap();
    assert!(words(&String::from_utf8_lossy(&output.stdout)).contains(&words(whole)), "{output:?}");
    let plotted = rbloat().arg("report").arg(&file).output().unwrap();
    let plotted = String::from_utf8(plotted.stdout).unwrap();
    assert!(words(&plotted).contains(&words(whole)), "{plotted}");
}

/// Only the time ends a diff, so its program has an object in its hands at most ticks: a slow machine has enough samples, too.
#[test]
fn a_diff_names_the_lines_that_made_what_roots_keep() {
    names_lines(&["--kept", "--rate", "1000"]);
}

/// A plain diff named the root of a leak, and `diff --kept` as the next step.
#[test]
fn a_diff_samples_at_the_ticks_that_the_kernel_has_anyway() {
    names_lines(&[]);
}

fn names_lines(ticks: &[&str]) {
    let target = Target::bare_ruby(
        r##"
        Event = Struct.new(:number)
        class Audit
          LOG = []
          def hold(event)
            sum = 0
            2000.times { |index| sum += index }
            event && sum
          end

          def note(number)
            event = Event.new(number)
            hold(event)
            LOG << event
          end

          def look(number)
            event = Event.new(number)
            hold(event)
          end
        end
        audit = Audit.new
        kept = Array.new(5000) { |i| "kept #{i}" }
        4.times { GC.start }
        Thread.new do
          loop { 3.times { audit.note(1) }; audit.look(1); Array.new(300) { |i| "item #{i}" } }
        end
        puts 'ready {}'
        $stdout.flush
        $stdin.read
        "##,
    );
    let mut seen = Vec::new();
    // A look at a program that never rests may not show which objects are old, and a busy machine leaves it little time.
    for every in ["1s", "3s", "9s", "27s"] {
        let output = rbloat()
            .args(["diff", &target.pid().to_string(), "--json", "--max-pause", "10s"])
            .args(["--every", every, "--times", "4"])
            .args(ticks)
            .output()
            .unwrap();
        if !is_possible(&output) {
            return;
        }
        let diff: Diff = document(&output.stdout);
        let (rows, sampling) = (diff.kept.unwrap_or_default(), diff.kept_sampling.unwrap());
        if sampling.unknown.is_some_and(KeptUnknown::is_refusal) {
            return testkit::skip(&format!("the kernel shows none of its ticks: {sampling:?}"));
        }
        let is_sampled = sampling.unknown.is_none();
        assert!(rows.iter().all(|it| it.samples.is_some() == is_sampled), "{rows:#?}");
        let row = rows.iter().find(|it| it.root == "Audit::LOG" && !it.made_by.is_empty());
        if let Some(row) = row {
            let first = &row.made_by[0];
            assert_eq!(first.method, "Audit#note", "{row:#?}");
            assert!((first.samples + 1) * 100 >= row.samples.unwrap() * 95, "{row:#?}");
            return;
        }
        seen.push((every, sampling, diff.points, rows));
    }
    panic!("no ten samples: {seen:#?}");
}

#[test]
fn a_diff_of_files_or_of_two_snapshots_has_no_samples() {
    for (arguments, told) in [
        (&["a.rbloat", "b.rbloat"][..], "--kept samples one running process"),
        (&["4242", "--times", "2"], "--kept needs at least three snapshots"),
    ] {
        let output = rbloat().args(["diff", "--kept"]).args(arguments).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(told), "{complaint}");
    }
}

/// igorkasyanchuk/rails_performance#147: a variable of each thread that works keeps the texts of queries, and Hashes with them.
#[test]
fn what_a_variable_of_threads_keeps_has_its_lines() {
    for rounds in [10_000, 40_000, 160_000] {
        let Some(kept) = watch("job_traces", rounds) else { return };
        let named = || kept.rows.iter().filter(|it| it.judgement == KeptJudgement::Named);
        for row in named() {
            let method = match row.class.as_str() {
                "String" => "Table#find",
                "Hash" => "CurrentRequest#trace",
                _ => panic!("{row:#?}"),
            };
            assert_eq!(row.root.as_deref(), Some("(threads)"), "{row:#?}");
            assert!((samples(row, method) + 1) * 100 >= row.samples * 95, "{row:#?}");
        }
        if let Some(strings) = named().find(|it| it.class == "String") {
            let path = strings.path.as_deref().unwrap_or_default();
            // Of the paths that are compared, too few may have the variable's name.
            let is_named = |name| path.contains(&format!("{name} → CurrentRequest → Array"));
            assert!(is_named("[:current_request]") || is_named("[…]"), "{strings:#?}");
            return;
        }
    }
    panic!("too few samples of what the program keeps");
}

#[test]
fn the_lines_are_right_under_jemalloc() {
    let mut program = testkit::scenario("kept/lines");
    let mut target = Target::start(program.env("LD_PRELOAD", "libjemalloc.so.2"));
    let Some(kept) = watch_target(&mut target, "1000", "2000", &[]) else { return };
    assert_lines_are_right(&kept);
}

#[test]
fn the_lines_are_right_with_a_jit_compiler() {
    for option in super::jit_options() {
        let mut target = Target::start(testkit::scenario("kept/lines").env("RUBYOPT", option));
        let Some(kept) = watch_target(&mut target, "1000", "15000", &[]) else { return };
        assert_lines_are_right(&kept);
        let named = kept.rows.iter().filter(|it| it.judgement == KeptJudgement::Named);
        assert!(named.count() > 0, "{kept:#?}");
        let lines: u64 = kept.rows.iter().flat_map(|it| &it.lines).map(|it| it.samples).sum();
        let samples: u64 = kept.rows.iter().map(|it| it.samples).sum();
        assert!(lines * 100 >= samples * 95, "{kept:#?}");
    }
}

/// "Cache#track" made the objects of Tracker#track, which ZJIT had compiled.
#[test]
fn code_that_a_compiler_hides_has_no_line_and_gives_none_to_others() {
    let Some(option) = super::hidden_jit_option() else { return };
    let mut target = Target::start(testkit::scenario("kept/lines").env("RUBYOPT", option));
    let Some(kept) = watch_target(&mut target, "1000", "15000", &[]) else { return };
    assert_lines_are_right(&kept);
    assert!(kept.rows.iter().any(|it| it.samples > 0), "{kept:#?}");
}

/// Code has a lambda in its hands for a microsecond, so ticks hardly see it. No tick is needed to see which root retains more, and a Proc
/// has its line.
#[test]
fn a_root_that_retains_more_has_the_line_of_its_procs() {
    let mut target = Target::bare_ruby(
        r##"
        eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/bus.rb', 1)
          BUS = []
          def subscribe(data)
            BUS << ->(event) { [event, data] }
          end
        RUBY
        500.times { |i| subscribe("x#{i}" * 500) }
        kept = Array.new(5000) { |i| "kept #{i}" }
        4.times { GC.start }
        Thread.new { loop { Array.new(500) { |i| "item #{i}" }.join; sleep 0.0005 } }
        puts 'ready {}'
        $stdout.flush
        $stdin.gets
        1000.times { |i| subscribe("x#{i}" * 500) }
        4.times { GC.start }
        puts 'ready {}'
        $stdout.flush
        $stdin.read
        "##,
    );
    let Some(kept) = watch_target(&mut target, "1", "go", &[]) else { return };
    assert!(kept.unknown.is_none(), "{kept:#?}");
    let growth = &kept.growing[0];
    assert_eq!((growth.root.as_str(), kept.growing.len()), ("BUS", 1), "{kept:#?}");
    // A stale word in one of the Procs may refer to a text of the other thread.
    let grown = growth.objects_after - growth.objects_before;
    assert!(growth.objects_before - 500 <= 2 && grown.abs_diff(1000) <= 2, "{growth:?}");
    assert!(growth.path.contains("Proc (/srv/app/bus.rb:3)"), "{growth:?}");
}

/// A program that overwrites its own heap with rubbish while it is sampled.
#[test]
fn a_heap_of_rubbish_ends_the_observation_and_nothing_else() {
    let mut target = Target::bare_ruby(
        r##"
        require 'fiddle'
        Process.setrlimit(:CORE, 0)
        $stderr.reopen(File::NULL)
        kept = Array.new(20_000) { |i| "object #{i} " * 3 }
        4.times { GC.start }
        Thread.new { loop { Array.new(500) { |i| "item #{i}" }.join } }
        puts 'ready {}'
        $stdout.flush
        $stdin.gets
        pages = kept.map { |it| Fiddle.dlwrap(it) & ~0x3fff }.uniq
        rubbish = Random.new(1).bytes(16_000)
        pages.each { |page| Fiddle::Pointer.new(page + 128)[0, 16_000] = rubbish }
        loop { Array.new(500) { |i| "item #{i}" }.join }
        "##,
    );
    let mut child = begin(&target, "1000", &[]);
    if child.try_wait().unwrap().is_none() {
        target.tell("go");
        // Most often the program crashes before.
        wait_until_it_has_waited(&mut child, 100);
    }
    drop(target);
    let output = child.wait_with_output().unwrap();
    if is_possible(&output) {
        let kept: Kept = document(&output.stdout);
        assert_eq!(kept.unknown, Some(KeptUnknown::Ended), "{kept:#?}");
    }
}

/// A full cache, and results that live for some collections.
#[test]
fn a_program_that_does_not_keep_more_and_more_has_no_line() {
    let rounds = if testkit::is_nightly("a healthy program, for longer") { 60_000 } else { 10_000 };
    let Some(kept) = watch("healthy", rounds) else { return };
    assert!(kept.unknown.is_none() && kept.seen > 100 && kept.collections > 2, "{kept:#?}");
    let named = kept.rows.iter().filter(|it| it.judgement == KeptJudgement::Named);
    assert_eq!(named.count(), 0, "{kept:#?}");
    assert_eq!(kept.growing, [], "{kept:#?}");
}

/// No line of a leak of native memory was named, and no word was said of it.
#[test]
fn native_memory_that_grows_is_reported_without_a_line() {
    let mut target = Target::bare_ruby(
        r#"
        require "fiddle"
        MALLOC = Fiddle::Function.new(Fiddle::Handle::DEFAULT["malloc"], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_VOIDP)
        def collections(count)
          goal = GC.count + count
          Array.new(100) { |i| "item #{i}" } until GC.count >= goal
        end
        Thread.new { loop { collections(1) } }
        4.times { GC.start }
        puts "ready {}"; $stdout.flush
        while $stdin.gets
          100.times { MALLOC.call(100_000)[0, 100_000] = "x" * 100_000 }
          collections(3)
          puts "ready {}"; $stdout.flush
        end
        "#,
    );
    let Some(kept) = watch_target(&mut target, "1000", "go", &[]) else { return };
    let grown = kept.native_bytes_after - kept.native_bytes_before;
    assert!((9_500_000..10_400_000).contains(&grown), "{grown}");
    let text = render::kept(&kept, 400);
    assert!(text.contains("native memory grew by 9.") && text.contains("rbloat who"), "{text}");
}

#[test]
fn without_collections_nothing_is_said() {
    let target = Target::ruby("4.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read");
    let output = rbloat()
        .args(["who", &target.pid().to_string(), "--kept", "--for", "2s", "--older-than", "1s"])
        .args(["--max-pause", "10s"])
        .output()
        .unwrap();
    assert!(is_possible(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("It is not known which lines allocate what process"), "{text}");
    assert!(text.contains("it has collected too little garbage meanwhile"), "{text}");

    // A diff does not wait for a collection, and compares the snapshots without one.
    let output = rbloat()
        .args(["diff", &target.pid().to_string(), "--kept", "--max-pause", "10s"])
        .args(["--every", "1s", "--times", "3", "--json"])
        .output()
        .unwrap();
    assert!(is_possible(&output));
    let diff: Diff = document(&output.stdout);
    assert_eq!(diff.kept_sampling.unwrap().unknown, Some(KeptUnknown::NoCollections));
    assert!(diff.kept.unwrap().iter().all(|row| row.samples.is_none()));
}

/// Both commands ended with status 4, although captures tell which root keeps more.
#[test]
fn without_the_right_to_run_programs_of_the_kernel_there_are_roots_without_lines() {
    let mut target = Target::bare_ruby(
        r##"
        eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/audit.rb', 1)
          Event = Struct.new(:at)
          class Audit
            LOG = []
            def note(number)
              LOG << Event.new(number)
            end
          end
        RUBY
        kept = Array.new(5000) { |i| "kept #{i}" }
        4.times { GC.start }
        puts 'ready {}'; $stdout.flush
        while $stdin.gets
          2000.times { |i| Audit.new.note(i) }
          4.times { GC.start }
          puts 'ready {}'; $stdout.flush
        end
        "##,
    );
    let pid = target.pid().to_string();
    let ways = [
        &["who", &pid, "--kept", "--for", "1h", "--json"][..],
        &["diff", &pid, "--kept", "--every", "3s", "--times", "3", "--json"],
        &["diff", &pid, "--every", "3s", "--times", "3", "--json"],
    ];
    for way in ways {
        let is_asked = way.contains(&"--kept");
        let mut command = Command::new("setpriv");
        // Without CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN.
        command.arg("--bounding-set=-bpf,-perfmon,-sys_admin");
        let rbloat = rbloat();
        command.arg(rbloat.get_program()).args(rbloat.get_args()).args(way);
        command.args(["--max-pause", "10s"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut complaints = BufReader::new(child.stderr.take().unwrap());
        let mut complaint = String::new();
        if is_asked {
            complaints.read_line(&mut complaint).unwrap();
        }
        let why = "no lines will be named: the kernel does not let rbloat run a program at ticks of its clocks; run rbloat as root, or \
                   with CAP_BPF and CAP_PERFMON (in Docker: --cap-add BPF --cap-add PERFMON)";
        assert_eq!(complaint.contains(why), is_asked, "{complaint}");
        target.tell("go");
        target.next_truth();
        if way[0] == "who" {
            let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
            assert!(sent.unwrap().success());
        }
        let output = child.wait_with_output().unwrap();
        // Without --kept, a diff without lines is complete.
        assert_eq!(output.status.code(), Some(if is_asked { 6 } else { 0 }), "{output:?}");
        if way[0] == "who" {
            let kept: Kept = document(&output.stdout);
            assert_eq!(kept.unknown, Some(KeptUnknown::NotAllowed));
            let growth = kept.growing.first().unwrap_or_else(|| panic!("{kept:#?}"));
            assert_eq!((growth.root.as_str(), growth.class.as_str()), ("Audit::LOG", "Event"));
            assert_eq!((growth.growth(), kept.rows.len()), (2000, 0), "{kept:#?}");
        } else {
            let diff: Diff = document(&output.stdout);
            assert_eq!(diff.kept_sampling.unwrap().unknown, Some(KeptUnknown::NotAllowed));
            assert_eq!(diff.points.len(), 3);
            assert!(diff.kept.unwrap().iter().all(|row| row.samples.is_none()));
        }
    }
}

/// "0 of 73 new objects were kept, for at least 30 s", after 25 s.
#[test]
fn a_time_in_which_no_object_can_be_old_enough_is_refused() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let pid = target.pid().to_string();
    let output = rbloat().args(["who", &pid, "--kept", "--for", "25s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("no object is older than 30 s after 25 s: give a longer --for"),
        "{text}"
    );
    assert!(target.finish());
}
