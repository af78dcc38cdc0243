//! `rbloat diff`: the memory that grew, and whether it is a leak. The programs of scenarios/growth do a step on
//! request. The times between the snapshots are set afterwards, so that no test depends on them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};
use std::time::Duration;

use formats::{Confidence, Diff, DiffKind, Doubt, Report, Snapshot, Subject};
use testkit::Target;

use crate::snapshots::Kept;
use crate::{complaint, rbloat};

const HOUR_MS: u64 = 3_600_000;

/// Returns `count` snapshots, an hour apart, of a program that does a step between two of them.
fn looks(name: &str, count: u64) -> Vec<Kept> {
    looks_at(Target::scenario(&format!("growth/{name}"), &[]), count, |_| false)
}

/// The same for a running program. It collects garbage before the snapshots that `collects` accepts.
pub(crate) fn looks_at(
    mut target: Target,
    count: u64,
    collects: impl Fn(u64) -> bool,
) -> Vec<Kept> {
    (0..count)
        .map(|number| {
            let steps = (number > 0).then_some("step");
            for command in steps.into_iter().chain(collects(number).then_some("collect")) {
                target.tell(command);
                target.next_truth();
            }
            let kept = Kept::of(target.pid());
            set_hour(&kept, number);
            kept
        })
        .collect()
}

/// Makes a snapshot one that was taken so many hours after the first one.
fn set_hour(kept: &Kept, hours: u64) {
    set_time(kept, hours * HOUR_MS);
}

/// The same in milliseconds.
pub(crate) fn set_time(kept: &Kept, ms: u64) {
    let mut snapshot = kept.read();
    snapshot.report.capture.unix_ms = 1_700_000_000_000 + ms;
    snapshot.report.process.uptime_ms = Some(60_000 + ms);
    fs::write(kept.path(), snapshot.to_bytes()).unwrap();
}

fn run(looks: &[Kept], arguments: &[&str]) -> Output {
    rbloat().arg("diff").args(looks.iter().map(Kept::path)).args(arguments).output().unwrap()
}

pub(crate) fn diff(looks: &[Kept]) -> Diff {
    let output = run(looks, &["--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    crate::document(&output.stdout)
}

fn text(looks: &[Kept]) -> String {
    String::from_utf8(run(looks, &[]).stdout).unwrap()
}

#[track_caller]
fn assert_leak(name: &str, class: &str, root: Option<&str>, per_hour: u64) {
    let target = Target::scenario(&format!("growth/{name}"), &["--scale", "0.5"]);
    let looks = looks_at(target, 4, |_| false);
    let diff = diff(&looks);
    let verdict = &diff.verdict;
    let change = diff.classes.iter().find(|it| it.name == class);
    assert_eq!(verdict.kind, DiffKind::ManagedLeak, "{verdict:?} {change:?}");
    // Without collections, nothing is known to be kept by a root.
    let summaries = match root {
        Some(root) => [
            format!("Managed leak: {class} retained by {root} grows by "),
            format!("Managed leak: memory retained by {root}, most of it "),
        ],
        None => [(); 2].map(|()| format!("Managed leak: {class} grows by ")),
    };
    let is_told = |text: &str| summaries.iter().any(|it| text.contains(it));
    assert_eq!(verdict.confidence, formats::Confidence::High);
    let words = render::words::diff_verdict(&diff).summary;
    assert!(is_told(&words), "{words}");
    let change = diff.classes.iter().find(|it| it.name == class).unwrap();
    let grown = change.objects_per_hour.unwrap();
    // Ruby itself makes a few objects meanwhile, and some garbage.
    let (least, most) = (per_hour as f64 - 100.0, per_hour as f64 * 1.6);
    assert!((least..most).contains(&grown), "{grown} in an hour");
    assert_eq!(change.survivors + change.newcomers, change.objects.at[3]);
    // In 18 seconds, zones of TZInfo that were loaded one after the other were a leak with high confidence.
    (0..).zip(&looks).for_each(|(number, look)| set_time(look, number * 6_000));
    let short = self::diff(&looks).verdict;
    assert_eq!((short.kind, short.confidence), (DiffKind::ManagedLeak, Confidence::Medium));
    assert!(change.newcomers >= 2 * per_hour - 100, "{change:?}");
    assert!(is_told(&text(&looks)));
}

#[test]
fn an_array_that_grows_for_ever_is_a_leak_of_what_is_in_it() {
    assert_leak("array", "String", Some("Audit::LOG"), 10_000);
}

#[test]
fn a_cache_without_a_limit_is_a_leak_by_its_name() {
    assert_leak("cache", "Hash", Some("Cache::STORE"), 10_000);
}

#[test]
fn keys_that_became_symbols_are_a_leak_of_symbols() {
    assert_leak("symbols", "Symbol", Some("Params::SEEN"), 25_000);
}

/// The leak was named after the arrays of the tasks, with 0.3 of 79 MiB.
#[test]
fn a_queue_is_a_leak_of_the_strings_in_its_tasks() {
    let summary = "Managed leak: String retained by Mailer::QUEUE grows by ";
    let diff = diff(&looks("queue", 3));
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.starts_with(summary), "{words}");
    let strings = diff.classes.iter().max_by_key(|class| class.bytes.change).unwrap();
    assert_eq!(diff.verdict.class.as_deref(), Some(strings.name.as_str()));
    assert!(diff.verdict.bytes * 10 > strings.bytes.change * 9, "{:?}", diff.verdict);
}

/// Strings became fewer and arrays more, so the verdict was on arrays that come and go, or on nothing.
#[test]
fn a_leak_behind_garbage_is_named_by_its_root() {
    let looks = looks("behind_garbage", 4);
    let diff = diff(&looks);
    let verdict = &diff.verdict;
    assert_eq!(verdict.kind, DiffKind::ManagedLeak, "{verdict:?} {:?}", diff.kept);
    assert_eq!(verdict.class.as_deref(), Some("String"));
    let kept = &diff.kept.as_ref().unwrap()[0];
    assert_eq!(kept.root, "EventBus::SUBSCRIBERS");
    assert_eq!((kept.newcomers, kept.kept), (1000, 1000));
    // The last look has none, since no later one has the same.
    let steps: Vec<u64> = kept.objects.at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(steps, [1000, 1000]);
    let words = render::words::diff_verdict(&diff).summary;
    let summary = "Managed leak: memory retained by EventBus::SUBSCRIBERS, most of it String, grows by 1,000 objects/h (about ";
    assert!(words.starts_with(summary), "{words}");
    // With three looks there is one step, which proves nothing.
    let diff = self::diff(&looks[..3]);
    assert_eq!(
        (diff.verdict.kind, diff.verdict.doubt),
        (DiffKind::Growth, Some(Doubt::FewSnapshots))
    );
    assert_eq!(diff.verdict.root.as_deref(), Some("EventBus::SUBSCRIBERS"));
}

/// "6 survived, 1,602 are new", of objects that were all there before: a major collection forgets at its start which objects are old.
/// A snapshot at that time also hid the leak.
#[test]
fn a_snapshot_during_a_major_collection_hides_no_leak() {
    let mut target = Target::scenario("growth/behind_garbage", &[]);
    let mut look = |number: u64, requests: &[&str]| {
        for request in requests {
            target.tell(request);
            let truth = target.next_truth();
            assert!(*request != "mark" || truth["state"] == "marking", "{truth}");
        }
        let kept = Kept::of(target.pid());
        set_hour(&kept, number);
        kept
    };
    let looks = [
        look(0, &[]),
        look(1, &["step"]),
        look(2, &["step", "mark"]),
        look(3, &["step"]),
        look(4, &["step", "mark"]),
        look(5, &["step"]),
    ];
    let marking = |diff: &Diff| diff.points.iter().map(|it| it.gc_marking).collect::<Vec<_>>();
    let all = diff(&looks);
    let expected = [false, false, true, false, true, false].map(Some);
    if marking(&all) != expected {
        assert_eq!(marking(&all), [None; 6]);
        return testkit::skip("the state of this Ruby's collector is not known");
    }
    assert_eq!(all.verdict.kind, DiffKind::ManagedLeak, "{:?} {:?}", all.verdict, all.kept);
    let kept = &all.kept.as_ref().unwrap()[0];
    assert_eq!((&*kept.root, kept.newcomers, kept.kept), ("EventBus::SUBSCRIBERS", 1000, 1000));
    let words = render::words::diff_verdict(&all);
    assert!(words.summary.contains("grows by 1,000 objects/h"), "{words:?}");
    let lines = words.evidence.iter().filter(|it| it.contains("a major collection was marking"));
    let sources: Vec<_> = lines.map(|line| line.matches(".rbloat").count()).collect();
    assert_eq!(sources, [2], "{words:?}");
    assert!(words.evidence[1].contains("third snapshot of those that show ages"), "{words:?}");
    // Strings are one after the other in memory, so each look has those of the one before at the same addresses.
    let all = diff(&looks[1..3]);
    let strings = all.classes.iter().find(|class| class.name == "String").unwrap();
    assert!(strings.survivors > 1000, "{strings:?}");
    // Without three others, nothing is known of what roots keep.
    let few = diff(&looks[..3]);
    assert_eq!((&few.kept, few.verdict.confidence), (&None, formats::Confidence::Low));
}

/// The last snapshot of `diff --kept` was taken only once, so one in 60 said nothing of what roots keep.
#[test]
fn a_snapshot_waits_for_the_end_of_a_marking() {
    let mut target = Target::scenario("growth/behind_garbage", &[]);
    target.tell("mark");
    assert_eq!(target.next_truth()["state"], "marking");
    if crate::report(target.pid()).knows_ages() {
        return testkit::skip("the state of this Ruby's collector is not known");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rbloat");
    let pid = target.pid().to_string();
    let mut child =
        rbloat().args(["snapshot", "--max-pause", "10s", &pid, "-o"]).arg(&path).spawn().unwrap();
    let waits_for = format!("/proc/{}/wchan", child.id());
    while child.try_wait().unwrap().is_none()
        && !fs::read_to_string(&waits_for).is_ok_and(|it| it.contains("nanosleep"))
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    target.tell("step");
    target.next_truth();
    assert!(child.wait().unwrap().success());
    assert!(Snapshot::from_bytes(&fs::read(&path).unwrap()).unwrap().report.knows_ages());
}

/// The verdict had the few strings that something retains: 409 KiB of 57 MiB.
#[test]
fn garbage_that_grows_is_named_with_all_its_memory() {
    let diff = diff(&looks("garbage", 3));
    let verdict = &diff.verdict;
    assert_eq!(verdict.kind, DiffKind::Growth);
    // Which of the two depends on whether the state of this Ruby's collector is known.
    let is_garbage = [Doubt::Garbage, Doubt::GcDisabled].map(Some).contains(&verdict.doubt);
    assert!(is_garbage, "{verdict:?}");
    let class = diff.classes.iter().max_by_key(|class| class.bytes.change).unwrap();
    assert_eq!(verdict.class.as_ref(), Some(&class.name), "{verdict:?}");
    assert_eq!(verdict.bytes, class.bytes.change);
    let words = render::words::diff_verdict(&diff);
    let objects = ledger::Count(class.objects.change.unsigned_abs());
    assert!(words.evidence[1].contains(&format!("(+{objects});")), "{words:?}");
}

/// The verdict was on 17 KiB of Fiddle::Pointer, of a growth of 176 MiB.
#[test]
fn mapped_memory_that_grows_is_the_headline() {
    let looks = looks("mapped", 3);
    let diff = diff(&looks);
    let unknown = diff.causes.iter().find(|row| row.cause == ledger::Cause::Unknown).unwrap();
    assert_eq!(diff.verdict.cause, Some(unknown.cause), "{:?}", diff.verdict);
    // A pointer that is garbage may still be there, and refers to memory, too.
    let most = diff.verdict.bytes * 100 / unknown.bytes.change;
    assert!((98..=100).contains(&most), "{:?} {unknown:?}", diff.verdict);
    assert!(unknown.bytes.change > 100 << 20, "{unknown:?}");
    let words = render::words::diff_verdict(&diff);
    assert!(words.summary.starts_with("Managed leak: Fiddle::Pointer retained by "), "{words:?}");
    let next = render::words::command_after_diff(&diff, "4242");
    assert_eq!(next, ["why", "4242", "Fiddle::Pointer"]);
}

#[test]
fn threads_that_pile_up_are_a_leak_of_threads() {
    assert_leak("threads", "Thread", None, 50);
}

#[test]
fn a_process_that_warms_up_is_no_leak() {
    let looks = looks("warm_up", 3);
    let verdict = diff(&looks).verdict;
    assert_eq!(verdict.kind, DiffKind::WarmUp, "{verdict:?}");
    // Two snapshots are not enough, and the verdict has low confidence.
    let early = diff(&looks[..2]).verdict;
    assert_eq!(early.kind, DiffKind::Growth, "{early:?}");
    assert_eq!(early.confidence, formats::Confidence::Low);
    let warm = diff(&looks[1..]).verdict;
    assert!(matches!(warm.kind, DiffKind::Stable | DiffKind::Retention), "{warm:?}");
}

#[test]
fn bursts_leave_free_memory_and_that_is_said() {
    let diff = diff(&looks("burst", 3));
    let verdict = &diff.verdict;
    assert_eq!(verdict.kind, DiffKind::Retention, "{verdict:?}");
    assert_eq!(verdict.cause.map(ledger::Cause::name), Some("malloc.unreturned"));
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.starts_with("Retention: RSS rose by "), "{words}");
}

/// The programs of scenarios/growth/many.rb whose label is `expect`.
fn programs(expect: &str) -> Vec<String> {
    let output = testkit::scenario("growth/many").arg("--list").output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let lines = list.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(_, label)| *label == expect).map(|(name, _)| name.to_owned()).collect()
}

/// The programs with this label for which three or more snapshots report a leak, or do not, with their verdicts. Garbage is
/// collected before the later snapshots, unless the program is about garbage.
fn programs_that(is_leak: bool, expect: &str, times: u64) -> Vec<impl std::fmt::Debug> {
    let programs = programs(expect);
    assert!(programs.len() > 12, "{programs:?}");
    let diffs_of = |name: String| {
        let keeps_garbage = name.starts_with("garbage");
        let target = Target::scenario("growth/many", &[&name]);
        let looks = looks_at(target, times, |number| number >= 2 && !keeps_garbage);
        (3..=looks.len()).map(move |count| (name.clone(), diff(&looks[..count])))
    };
    let leaks = |kind| matches!(kind, DiffKind::ManagedLeak | DiffKind::NativeLeak);
    let all = programs.into_iter().flat_map(diffs_of);
    let wrong = all.filter(|(_, diff)| leaks(diff.verdict.kind) == is_leak);
    let shortened = |(name, mut diff): (String, Diff)| {
        diff.classes.truncate(3);
        let Diff { verdict, classes, kept, .. } = diff;
        (name, verdict, classes, kept)
    };
    wrong.map(shortened).collect()
}

#[test]
fn no_leak_is_missed_after_three_snapshots() {
    let missed = programs_that(false, "leak", 3);
    assert!(missed.is_empty(), "{missed:#?}");
}

/// "Nothing grew … High confidence": buffers of the same library became fewer.
#[test]
fn a_list_of_a_library_is_named_behind_buffers_that_become_fewer() {
    for name in programs("hidden_leak") {
        let looks = looks_at(Target::scenario("growth/many", &[&name]), 4, |_| false);
        let diff = diff(&looks);
        let verdict = &diff.verdict;
        let found = (verdict.kind, verdict.subject, verdict.confidence);
        let expected = (DiffKind::NativeLeak, Subject::Native, Confidence::Medium);
        assert_eq!(found, expected, "{verdict:?} {:#?} {:#?}", diff.kept_native, diff.owners);
        assert_eq!(verdict.cause, Some(ledger::Cause::NativeGlobal), "{verdict:?}");
        let rows = diff.kept_native.iter().flatten();
        let row = rows.max_by_key(|row| row.bytes.change).unwrap();
        assert_eq!(Some(&row.owner), verdict.owner.as_ref());
        // Each step adds 1,000 blocks of 3,000 bytes, and the library has a few of its own.
        let steps = row.blocks.at.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(steps.into_iter().all(|step| (990..1_100).contains(&step)), "{row:?}");
        assert!(row.newcomers.abs_diff(row.kept) <= 31 && row.newcomers >= 1_000, "{row:?}");
        assert!(text(&looks).contains("BLOCKS KEPT BY"));
    }
}

/// "Native leak … High confidence", of buffers that are all replaced each time.
#[test]
fn buffers_of_a_library_come_and_go() {
    let looks = looks_at(Target::scenario("growth/many", &["buffers_of_a_library"]), 4, |_| false);
    let diff = diff(&looks);
    let verdict = &diff.verdict;
    let found = (verdict.kind, verdict.doubt);
    let expected = (DiffKind::Growth, Some(Doubt::Turnover));
    assert_eq!(found, expected, "{verdict:?} {:#?}", diff.kept_native);
    assert_eq!(verdict.cause, Some(ledger::Cause::NativeGlobal), "{verdict:?}");
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.contains("but blocks come and go: of "), "{words}");
}

/// Blocks that a library frees and allocates again at the same addresses look as if they stayed.
#[test]
fn memory_that_a_library_can_free_is_not_sure_to_leak() {
    let confidence = |name| {
        let diff = diff(&looks_at(Target::scenario("growth/many", &[name]), 4, |_| false));
        assert_eq!(diff.verdict.kind, DiffKind::NativeLeak, "{:?}", diff.verdict);
        diff.verdict.confidence
    };
    assert_eq!(confidence("list_of_a_library"), Confidence::Medium);
    assert_eq!(confidence("lost_native_memory"), Confidence::High);
}

/// The first three roots by size were listed, so that the one that grew was not, and a list that never changed was the leak.
#[test]
fn a_list_that_grows_is_named_behind_larger_ones_that_do_not() {
    let target = Target::scenario("growth/many", &["behind_large_lists"]);
    let diff = diff(&looks_at(target, 4, |_| false)[1..]);
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: String retained by Kept::LIST grows";
    assert!(words.starts_with(leak), "{words}");
}

#[test]
fn nothing_else_is_called_a_leak() {
    let more = testkit::is_nightly("a fourth snapshot of programs without a leak");
    let wrong = programs_that(true, "no_leak", if more { 4 } else { 3 });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn rows_add_up_and_agree_with_the_reports() {
    let looks = looks("cache", 2);
    let diff = diff(&looks);
    let snapshots: Vec<Snapshot> = looks.iter().map(Kept::read).collect();
    for (point, snapshot) in snapshots.iter().enumerate() {
        let sum: u64 = diff.causes.iter().map(|cause| cause.bytes.at[point]).sum();
        assert_eq!(sum, snapshot.report.process.rss_bytes);
        assert_eq!(diff.rss_bytes.at[point], snapshot.report.process.rss_bytes);
    }
    let change: i64 = diff.causes.iter().map(|cause| cause.bytes.change).sum();
    assert_eq!(change, diff.rss_bytes.change);
    assert_eq!(diff.seconds, 3600.0);
    assert!(diff.same_process);
}

#[test]
fn nothing_grows_between_two_looks_at_once() {
    let target = Target::scenario("healthy", &["--scale", "0.2"]);
    let looks = [Kept::of(target.pid()), Kept::of(target.pid())];
    let diff = diff(&looks);
    assert_eq!(diff.verdict.kind, DiffKind::Stable, "{:?}", diff.verdict);
    assert!(diff.classes.iter().all(|class| class.objects.change == 0), "{:?}", diff.classes);
}

#[test]
fn two_processes_are_told_from_one() {
    let targets =
        [0.1, 0.2].map(|scale| Target::scenario("objects", &["--scale", &scale.to_string()]));
    let looks = targets.each_ref().map(|target| Kept::of(target.pid()));
    let diff = diff(&looks);
    assert!(!diff.same_process);
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.starts_with("The second process uses "), "{words}");
    assert_eq!((diff.verdict.kind, diff.verdict.bytes_per_hour), (DiffKind::Difference, None));
}

/// One MiB in bytes.
const MIB: f64 = 1048576.0;

/// Returns the bytes of a size such as `-1.5 MiB`.
fn shown_bytes(text: &str) -> f64 {
    let (number, unit) = text.trim().split_once(' ').unwrap();
    let unit = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => MIB,
        unit => panic!("{unit}"),
    };
    number.parse::<f64>().unwrap() * unit
}

#[test]
fn a_comparison_of_allocators_names_the_causes_of_what_was_saved() {
    for name in ["burst", "sieve"] {
        let kept = [&[("LD_PRELOAD", "")][..], &diagnosis::JEMALLOC[..]].map(|variables| {
            let mut command = testkit::scenario(name);
            let command = command.args(["--scale", "0.1"]).envs(variables.iter().copied());
            Kept::of(Target::start(command).pid())
        });
        let [first, last] = kept.each_ref().map(|kept| kept.read().report);
        if last.process.allocator != "jemalloc" {
            return testkit::skip("libjemalloc2 is not installed where targets run");
        }
        let diff = diff(&kept);
        let words = render::words::diff_verdict(&diff);
        assert!(text(&kept).contains("The second process (jemalloc "));
        let change = |of: fn(&Report) -> u64| of(&last) as f64 - of(&first) as f64;
        let rss = change(|report| report.process.rss_bytes);

        // The parts of the sentence: the subject, the amount, and the causes.
        let sentence = words.summary.strip_suffix('.').unwrap();
        let (start, causes) = sentence.split_once(": ").unwrap();
        let walkers = [&first, &last].map(|report| &report.malloc.as_ref().unwrap().walker);
        let start = start.strip_prefix(&format!("The second process ({}) uses ", walkers[1]));
        let start = start.unwrap_or_else(|| panic!("{sentence}"));
        let relation = if rss < 0.0 { "less" } else { "more" };
        let (size, end) = start.split_once(&format!(" {relation} than ")).unwrap();
        assert_eq!(end, format!("the first ({})", walkers[0]));
        // A size has one digit behind the point.
        let error = 0.06 * MIB;
        assert!((shown_bytes(size) - rss.abs()).abs() < error, "{size} {rss}");
        let mut sum = 0.0;
        for part in causes.split(", ") {
            let at = part.find(['+', '-']).unwrap();
            let shown = shown_bytes(&part[at..]);
            sum += shown;
            let cause = part[..at].trim();
            if cause == "other causes" {
                continue;
            }
            let bytes = |report: &Report| {
                report.causes.iter().find(|row| row.cause.name() == cause).unwrap().bytes as f64
            };
            let expected = bytes(&last) - bytes(&first);
            assert!((shown - expected).abs() < error, "{part}: {expected}");
        }
        assert!((sum - rss).abs() < 6.0 * error, "{sum} {rss}");

        // No time passes between two processes.
        let all = format!("{} {} {}", words.summary, words.evidence.join(" "), words.check);
        for word in ["grew", "grow", "leak", "fell", "rose", "later", "/h", "/min", "snapshot"] {
            assert!(!all.contains(word), "{word}: {all}");
        }

        // glibc has no slabs.
        let changes = diff.size_classes.unwrap();
        for class in &last.malloc.as_ref().unwrap().size_classes {
            let change = changes.iter().find(|it| it.region_bytes == class.region_bytes).unwrap();
            assert_eq!(change.slabs.at, [0, class.slabs]);
            assert_eq!(change.in_use.at, [0, class.in_use]);
            assert_eq!(change.free_bytes.at, [0, class.free_bytes]);
        }
        let bytes = |report: &Report| {
            report.malloc.iter().flat_map(|malloc| &malloc.pinned_by).map(|pin| pin.bytes).sum()
        };
        let expected: [u64; 2] = [&first, &last].map(bytes);
        let pins = diff.pins.unwrap();
        let changed: i64 = pins.iter().map(|pin| pin.bytes.change).sum();
        assert_eq!(changed, expected[1] as i64 - expected[0] as i64);
    }
}

#[test]
fn a_process_is_looked_at_again_and_again() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let pid = target.pid().to_string();
    let output = rbloat().args(["diff", &pid, "--every", "1s", "--times", "3", "--json"]).output();
    let diff: Diff = crate::document(&output.unwrap().stdout);
    assert_eq!(diff.points.len(), 3);
    assert!(diff.seconds > 1.0, "{}", diff.seconds);
    assert!(diff.points.iter().all(|point| point.pid == target.pid()));
    assert_eq!(diff.points[0].source, "snapshot 1");
}

#[test]
fn a_comparison_of_too_little_or_too_much_is_refused() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let cases: [(&[&str], &str); 3] = [
        (&[file], "two or more processes or files, or one process"),
        (&[file, "--every", "1s"], "two or more processes or files, or one process"),
        (&["1", "2", "--every", "1s"], "--every and --times are for one process, but 2 were given"),
    ];
    for (arguments, words) in cases {
        let output = rbloat().arg("diff").args(arguments).output().unwrap();
        let (status, complaint) = complaint(&output);
        assert_eq!(status, 2, "{complaint}");
        assert!(complaint.contains(words), "{complaint}");
    }
}

#[test]
fn growth_beyond_a_limit_has_an_exit_status() {
    let mut target = Target::bare_ruby(
        "kept = []
         loop do
           puts 'ready {}'; $stdout.flush
           break unless $stdin.gets
           kept << 'x' * (20 << 20)
         end",
    );
    let folder = tempfile::tempdir().unwrap();
    let [before, after] = ["before", "after"].map(|name| {
        let path = folder.path().join(name).display().to_string();
        let pid = target.pid().to_string();
        let snapshot =
            rbloat().args(["snapshot", &pid, "--max-pause", "10s", "-o", &path]).output();
        assert!(snapshot.unwrap().status.success());
        target.tell("");
        target.next_truth();
        path
    });
    for (limit, status) in [("10MiB", 7), ("30MiB", 0)] {
        let output =
            rbloat().args(["diff", &before, &after, "--fail-over", limit]).output().unwrap();
        assert_eq!(output.status.code(), Some(status));
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(complaint.contains("which is more than 10.0 MiB"), status == 7, "{complaint}");
    }
    // It was 0 if the reader had closed the pipe.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread = rbloat();
    unread.args(["diff", &before, &after, "--fail-over", "10MiB"]).stdout(writer);
    assert_eq!(unread.status().unwrap().code(), Some(7));
    assert!(target.finish());
}

/// "process 4242 is being traced": a capture of an agent, a recording or another `diff` ended it before its first snapshot.
#[test]
fn a_diff_waits_for_another_capture_before_its_first_snapshot() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let mut child = rbloat()
        .args(["diff", &target.pid().to_string(), "--times", "2", "--every", "1s", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.ends_with(": waiting for it, 5 s at most\n"), "{told}");
    frozen.thaw().unwrap();
    let output = child.wait_with_output().unwrap();
    let diff: Diff = crate::document(&output.stdout);
    assert_eq!(diff.points.len(), 2, "{output:?}");
    assert!(target.finish());
}
