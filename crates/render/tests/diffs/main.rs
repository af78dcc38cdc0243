//! Verdicts of `rbloat diff` on reports whose numbers the test sets.

mod blocks;
mod caches;
mod code;
mod native;
mod pins;
mod roots;
mod words;

use diagnosis::growth;
use formats::{
    CaptureMethod, Class, Confidence, Diff, DiffKind, Doubt, KeptBy, Report, Snapshot, Unread,
};
use ledger::{Area, AreaKind, Cause, Columns, MapRoot, MapRoots, MemoryMap};
use linux::Address;
use render::words::diff_verdict;

const HOUR_MS: u64 = 3_600_000;
const MIB: u64 = 1 << 20;

/// A report at some hour of a process's life.
fn look(hour: u64, change: impl FnOnce(&mut Report)) -> (String, Snapshot) {
    let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
    report.capture.unix_ms = 1_700_000_000_000 + hour * HOUR_MS;
    report.process.uptime_ms = Some(hour * HOUR_MS);
    change(&mut report);
    report.process.rss_bytes = report.causes.iter().map(|row| row.bytes).sum();
    let memory_map = old_objects(&report);
    (format!("look at {hour}"), Snapshot { report, memory_map })
}

/// The memory map of a process whose only old objects are the `Session`s, or the iseqs. Earlier ones stay at their addresses.
fn old_objects(report: &Report) -> MemoryMap {
    const OLD_SLOT: u8 = 7;
    let owners = report.owners.as_deref().unwrap_or_default();
    let is_old = |name: &str| ["Session", "(imemo_iseq)"].contains(&name);
    let Some(owner) = owners.iter().rposition(|owner| is_old(&owner.owner)) else {
        return MemoryMap::default();
    };
    let count = owners[owner].objects as usize;
    let start = Address(0x1000_0000);
    let columns = Columns {
        sizes: vec![40 / 8; count],
        uses: vec![OLD_SLOT; count],
        owners: vec![owner as u8 + 1; count],
        pages: Vec::new(),
    };
    let area = Area {
        range: start..start.offset(count as u64 * 40),
        kind: AreaKind::HeapPages,
        name: String::new(),
        blocks: count as u64,
        sizes: 0..count,
        uses: 0..count,
        owners: 0..count,
        pages: 0..0,
    };
    let path = owners[owner].kept_by.iter().find_map(|it| it.path.as_deref());
    let bytes = count as u64 * 1024;
    let root = |name: &str| MapRoot { name: name.into(), bytes };
    let roots: Vec<MapRoot> =
        path.and_then(|it| it.split(" → ").next()).map(root).into_iter().collect();
    // The number of the first root, or of nothing.
    let roots = MapRoots { of_objects: vec![1 + roots.len() as u8; count], roots };
    MemoryMap { areas: vec![area], columns, roots, ..MemoryMap::default() }
}

/// Adds bytes to a cause.
fn grow(report: &mut Report, cause: &str, bytes: u64) {
    report.causes.iter_mut().find(|row| row.cause.name() == cause).unwrap().bytes += bytes;
}

/// Adds `count` `Session`s of 1 KiB each, retained by a constant if `retainer` has its name, and otherwise by nothing.
fn sessions(report: &mut Report, count: u64, retainer: Option<&str>) {
    grow(report, "ruby.malloc", count * 984);
    grow(report, "ruby.live_slots", count * 40);
    let ruby = report.ruby.as_mut().unwrap();
    let mut class = ruby.classes[0].clone();
    class.name = "Session".into();
    (class.objects, class.slot_bytes, class.malloc_bytes) = (count, count * 40, count * 984);
    ruby.classes.push(class);
    let owners = report.owners.as_mut().unwrap();
    let mut owner = owners[0].clone();
    (owner.owner, owner.kind) = ("Session".into(), "class".into());
    owner.cause = Some(Cause::RubyMalloc);
    owner.objects = count;
    (owner.slot_bytes, owner.exclusive_bytes, owner.shared_bytes) = (count * 40, count * 984, 0);
    owner.resident_bytes = None;
    owner.kept_by = vec![KeptBy {
        path: retainer.map(|name| format!("{name} → Hash → Session")),
        objects: count,
        bytes: count * 1024,
        other_path: None,
        shared: None,
    }];
    owners.push(owner);
}

fn diff_of(counts: &[(u64, u64)], retainer: Option<&str>) -> Diff {
    let looks: Vec<_> = counts
        .iter()
        .map(|&(hour, count)| look(hour, |report| sessions(report, count, retainer)))
        .collect();
    growth(&looks)
}

#[test]
fn what_grows_at_the_same_rate_is_a_leak() {
    let diff = diff_of(&[(1, 10_000), (2, 14_000), (3, 18_000)], Some("Cache::STORE"));
    let verdict = &diff.verdict;
    assert_eq!(verdict.kind, DiffKind::ManagedLeak);
    assert_eq!(verdict.confidence, Confidence::Medium);
    let four = [(1, 10_000), (2, 14_000), (3, 18_000), (4, 22_000)];
    assert_eq!(diff_of(&four, Some("Cache::STORE")).verdict.confidence, Confidence::High);
    assert_eq!(
        diff_verdict(&diff).summary,
        "Managed leak: Session retained by Cache::STORE grows by 4,000 objects/h (3.9 MiB/h)."
    );
    assert_eq!(verdict.class.as_deref(), Some("Session"));
    assert_eq!(verdict.bytes, 8_000 * 1024);
}

/// A list of limited length that had just become full was a leak with high confidence.
#[test]
fn what_grows_more_slowly_at_the_end_is_not_sure_to_leak() {
    let slower = [(1, 10_000), (2, 14_600), (3, 19_000), (4, 21_500)];
    let verdict = diff_of(&slower, Some("Ring::ROWS")).verdict;
    assert_eq!((verdict.kind, verdict.confidence), (DiffKind::ManagedLeak, Confidence::Medium));
}

/// A cache that fills was a leak with high confidence after four snapshots.
#[test]
fn what_grows_by_half_as_much_in_the_end_is_no_leak() {
    let slower = [(1, 10_000), (2, 14_600), (3, 17_600), (4, 19_800)];
    let verdict = diff_of(&slower, Some("Cache::STORE")).verdict;
    assert_eq!((verdict.kind, verdict.doubt), (DiffKind::Growth, Some(Doubt::Uneven)));
}

/// The rows of an export that ran for some minutes were a leak with high confidence.
#[test]
fn what_a_running_method_holds_is_no_leak() {
    let four = [(1, 10_000), (2, 14_000), (3, 18_000), (4, 22_000)];
    let kind = |retainer: &str| diff_of(&four, Some(retainer)).verdict.kind;
    for root in ["(threads)", "POOL → Array"] {
        let kind = |thread: &str| kind(&format!("{root} → {thread}"));
        assert_ne!(kind("Thread in Export#run (export.rb:8) → Array"), DiffKind::ManagedLeak);
        // A variable of the thread stays, and so does what a script's main program holds.
        let stays = ["Thread \"worker\" in Pool#run → […]", "Thread in <main> (job.rb:3) → Array"];
        if root != "(threads)" {
            assert_eq!(stays.map(kind), [DiffKind::ManagedLeak; 2]);
        }
    }
}

/// "Warm-up: Hash … grew by 21.6 MiB, but more and more slowly. This is no leak": one object had all bytes, and grew steadily. Only the
/// number of small ones beside it became no larger.
#[test]
fn one_object_that_grows_beside_others_is_not_warm_up() {
    let counts = [(1, 4), (2, 5), (3, 54), (4, 56)];
    let looks = counts.map(|(hour, count)| {
        look(hour, |report| {
            sessions(report, count, Some("SEEN"));
            let bytes = hour * 8 * MIB;
            grow(report, "ruby.malloc", bytes);
            let owner = report.owners.as_mut().unwrap().last_mut().unwrap();
            owner.exclusive_bytes += bytes;
            owner.kept_by[0].bytes += bytes;
            report.ruby.as_mut().unwrap().classes.last_mut().unwrap().malloc_bytes += bytes;
        })
    });
    let diff = growth(&looks);
    let class = diff.classes.iter().find(|class| class.name == "Session");
    let found = (diff.verdict.kind, diff.verdict.doubt);
    assert_eq!(found, (DiffKind::Growth, Some(Doubt::Uneven)), "{:?} {class:#?}", diff.verdict);
}

/// "Managed leak: ObjectSpace::WeakMap retained by WM": it retains none of its entries.
#[test]
fn a_weak_map_is_no_leak_of_its_own() {
    let looks = [(1, 10_000), (2, 14_000), (3, 18_000), (4, 22_000)].map(|(hour, count)| {
        look(hour, |report| {
            sessions(report, count, Some("WM"));
            let weak_map = "ObjectSpace::WeakMap".to_owned();
            report.ruby.as_mut().unwrap().classes.last_mut().unwrap().name.clone_from(&weak_map);
            report.owners.as_mut().unwrap().last_mut().unwrap().owner = weak_map;
        })
    });
    assert_eq!(growth(&looks).verdict.kind, DiffKind::Growth);
}

#[test]
fn what_a_growing_number_of_threads_retains_leaks_with_them() {
    // A path shows the name and the method of a thread in addition to its class.
    for thread in ["Thread", "Thread \"worker\" in block in Pool#start (/srv/app/pool.rb:4)"] {
        let looks = [(1, 10_000), (2, 14_000), (3, 18_000)].map(|(hour, count)| {
            look(hour, |report| {
                sessions(report, count, None);
                let path = format!("(threads) → {thread} → Session");
                let owners = report.owners.as_mut().unwrap();
                owners.last_mut().unwrap().kept_by[0].path = Some(path);
                let classes = &mut report.ruby.as_mut().unwrap().classes;
                let thread = Class { name: "Thread".into(), ..classes.last().unwrap().clone() };
                classes.push(Class { slot_bytes: 0, malloc_bytes: 0, ..thread });
            })
        });
        let diff = growth(&looks);
        let verdict = &diff.verdict;
        assert_eq!(verdict.class.as_deref(), Some("Thread"), "{thread}: {verdict:?}");
        // "(242.1 KiB/min)", without what the threads hold.
        let words = diff_verdict(&diff).summary;
        assert!(words.contains("(4,000 objects/h, memory in use by 3.9 MiB/h)"), "{words}");
    }
}

/// "Managed leak: Thread grows by 8,104 objects/min": a list retained threads that had ended.
#[test]
fn ended_threads_are_retained_by_a_root() {
    for (running, is_named) in [(1, true), (4_000, false)] {
        let looks = [(1, 10_000), (2, 14_000), (3, 18_000)].map(|(hour, count)| {
            look(hour, |report| {
                sessions(report, count, Some("Workers::ALL"));
                report.process.threads += hour * running;
                report.ruby.as_mut().unwrap().classes.last_mut().unwrap().name = "Thread".into();
                let owner = report.owners.as_mut().unwrap().last_mut().unwrap();
                owner.owner = "Thread".into();
                owner.kept_by[0].path = Some("Workers::ALL → Array → Thread".into());
            })
        });
        let words = diff_verdict(&growth(&looks)).summary;
        assert!(words.contains("Thread "), "{running}: {words}");
        assert_eq!(words.contains("Thread retained by Workers::ALL "), is_named, "{words}");
    }
}

#[test]
fn what_grows_less_and_less_warms_up() {
    let verdict = diff_of(&[(1, 1_000), (2, 20_000), (3, 21_500)], Some("Cache::STORE")).verdict;
    assert_eq!(verdict.kind, DiffKind::WarmUp, "{verdict:?}");
}

#[test]
fn now_more_now_less_is_too_early_to_say() {
    let counts = [(1, 1_000), (2, 20_000), (3, 15_000), (4, 40_000)];
    assert_eq!(diff_of(&counts, Some("Cache::STORE")).verdict.kind, DiffKind::Growth);
}

#[test]
fn two_snapshots_never_prove_a_leak() {
    // First 40,000 sessions in ten hours and 4,000 in the next one, then a process that has just started.
    for counts in [[(10, 40_000), (11, 44_000)], [(0, 0), (1, 44_000)]] {
        let diff = diff_of(&counts, Some("Cache::STORE"));
        let verdict = &diff.verdict;
        assert_eq!((verdict.kind, verdict.doubt), (DiffKind::Growth, Some(Doubt::FewSnapshots)));
        assert_eq!(verdict.confidence, Confidence::Low);
        assert!(diff_verdict(&diff).check.contains("a third snapshot"), "{counts:?}");
    }
}

#[test]
fn objects_that_do_not_last_are_no_leak() {
    let counts = [(1, 10_000), (2, 14_000), (3, 18_000)];
    let mut looks: Vec<_> = counts
        .iter()
        .map(|&(hour, count)| look(hour, |report| sessions(report, count, Some("Cache::STORE"))))
        .collect();
    // All objects of the last snapshot are at other addresses.
    let map = &mut looks[2].1.memory_map;
    map.areas[0].range = Address(0x4000_0000)..Address(0x4000_0000 + 18_000 * 40);
    let diff = growth(&looks);
    let class = diff.classes.iter().find(|class| class.name == "Session").unwrap();
    assert_eq!((class.survivors, class.newcomers, class.lasting_newcomers), (0, 18_000, 0));
    assert_eq!((diff.verdict.kind, diff.verdict.doubt), (DiffKind::Growth, Some(Doubt::Turnover)));
}

/// "Most objects that were new in the last but one snapshot are gone by now. This is no leak of objects", of objects that were all
/// there, and of native memory.
#[test]
fn steady_growth_within_seconds_is_not_called_turnover() {
    let looks: Vec<_> = [(1, 10_000), (2, 14_000), (3, 18_000)]
        .map(|(second, count)| {
            let (name, mut snapshot) =
                look(1, |report| sessions(report, count, Some("Cache::STORE")));
            snapshot.report.capture.unix_ms += second * 1000;
            (name, snapshot)
        })
        .into();
    let diff = growth(&looks);
    assert_eq!((diff.verdict.kind, diff.verdict.doubt), (DiffKind::Growth, Some(Doubt::Unproven)));
    let words = diff_verdict(&diff);
    assert!(words.summary.contains("This may be a leak, or warm-up"), "{words:?}");
    assert_eq!(diff.verdict.confidence, Confidence::Low);
}

/// "Growth: anonymous memory that rbloat cannot account for (unknown) grew by 72.4 MiB", because the last look had exceeded the limit of a
/// pause.
#[test]
fn a_snapshot_that_was_not_read_is_left_out() {
    let looks_at = |each_hour: u64, unread: &[u64]| -> Vec<_> {
        let look = |hour| {
            let (name, mut snapshot) = roots::look_behind(hour, hour * each_hour, 0);
            if unread.contains(&hour) {
                let report = &mut snapshot.report;
                let all = report.process.rss_bytes;
                report.causes.iter_mut().for_each(|row| row.bytes = 0);
                grow(report, "unknown", all);
                (report.ruby, report.malloc, report.owners) = (None, None, None);
                snapshot.memory_map = MemoryMap::default();
                report.capture.unread = Some(Unread {
                    method: CaptureMethod::Fork,
                    expected_ms: 81.0,
                    max_pause_ms: 50.0,
                    enough_ms: 130,
                });
            }
            (name, snapshot)
        };
        (1..5).map(look).collect()
    };
    let looks = |unread| looks_at(4_000, unread);
    let diff = growth(&looks(&[4]));
    assert_eq!((diff.points.len(), diff.unread.len()), (3, 1));
    assert_eq!(diff.verdict.kind, DiffKind::ManagedLeak);
    let words = diff_verdict(&diff);
    let told = "look at 4 was not read: a forked copy would pause the process for about 81 ms, and the limit is 50 ms. Allow more with \
                --max-pause 130ms";
    assert!(words.evidence.iter().any(|it| it == told), "{words:?}");
    // "Nothing grew … High confidence", after two of four snapshots.
    let diff = growth(&looks_at(0, &[1, 4]));
    assert_eq!((diff.points.len(), diff.unread.len()), (2, 2));
    assert_eq!((diff.verdict.kind, diff.verdict.confidence), (DiffKind::Stable, Confidence::Low));
    // "Nothing grew … RSS did not change", and it had: all of the growth came before the snapshot that was not read.
    let mut late = looks_at(0, &[4]);
    late[3].1.report.process.rss_bytes += 200 << 20;
    let diff = growth(&late);
    assert_eq!((diff.rss_bytes.change, diagnosis::rss_growth(&diff)), (0, 200 << 20));
    let words = diff_verdict(&diff);
    let told = "The memory was not read in 1 of 4 snapshots, so rbloat cannot tell what changed. RSS changed by +200.0 MiB.";
    assert_eq!(words.summary, told);
    let diff = growth(&looks(&[1, 2, 4]));
    assert_eq!((diff.points.len(), diff.verdict.doubt), (4, Some(Doubt::Unread)));
    let words = diff_verdict(&diff);
    let told = "The memory was not read in 3 of 4 snapshots, so rbloat cannot tell what changed. RSS changed by +11.7 MiB.";
    assert_eq!(words.summary, told);
    // Each had a line of its own, with the same words.
    let unread: Vec<_> = words.evidence.iter().filter(|it| it.contains("not read")).collect();
    let [line] = unread[..] else { panic!("{words:?}") };
    assert!(line.starts_with("look at 1 was not read: a forked copy "), "{line}");
    assert!(line.ends_with("; look at 2 and look at 4 were not read, either"), "{line}");
}

/// Each snapshot had a line of its own, with the same words.
#[test]
fn snapshots_that_do_not_show_ages_are_listed_in_one_line() {
    let line = |marking: &[usize]| {
        let mut diff = diff_of(&[(1, 10_000), (2, 14_000), (3, 18_000), (4, 22_000)], None);
        marking.iter().for_each(|&point| diff.points[point].gc_marking = Some(true));
        let evidence = diff_verdict(&diff).evidence;
        let lines: Vec<_> = evidence.into_iter().filter(|it| it.contains(" are old, ")).collect();
        lines.join("|")
    };
    let end = " which objects are old, because a major collection was marking";
    assert_eq!(line(&[]), "");
    assert_eq!(line(&[1]), format!("look at 2 does not show{end}"));
    assert_eq!(line(&[0, 1, 2]), format!("look at 1, look at 2 and look at 3 do not show{end}"));
    assert_eq!(line(&[0, 1, 2, 3]), format!("look at 1, look at 2 and 2 others do not show{end}"));
}

#[test]
fn what_nothing_keeps_may_be_garbage() {
    let diff = diff_of(&[(1, 10_000), (2, 14_000), (3, 18_000)], None);
    assert_eq!((diff.verdict.kind, diff.verdict.doubt), (DiffKind::Growth, Some(Doubt::Garbage)));
    let words = diff_verdict(&diff).summary;
    assert!(words.contains("garbage"), "{words}");
}

/// "Growth: String grew by 3.1 MiB, at an uneven rate", of a full cache: what nothing retains grew, and less and less.
#[test]
fn garbage_that_levels_off_is_garbage() {
    let looks = [(1, 40_000), (2, 60_000), (3, 61_000), (4, 60_500)].map(|(hour, count)| {
        look(hour, |report| {
            sessions(report, count, None);
            let owner = report.owners.as_mut().unwrap().last_mut().unwrap();
            // A cache keeps as many all the time.
            owner.kept_by[0].objects -= 10_000;
            owner.kept_by[0].bytes -= 10_000 * 1024;
            let path = Some("PAGES → Cache → Hash → Session".into());
            let kept = KeptBy {
                path,
                objects: 10_000,
                bytes: 10_000 * 1024,
                other_path: None,
                shared: None,
            };
            owner.kept_by.push(kept);
        })
    });
    let diff = growth(&looks);
    let found = (diff.verdict.kind, diff.verdict.doubt, diff.verdict.confidence);
    assert_eq!(found, (DiffKind::Growth, Some(Doubt::Garbage), Confidence::Low), "{diff:#?}");
    let words = diff_verdict(&diff);
    assert!(words.summary.contains("nothing retains most of it"), "{words:?}");
}

#[test]
fn garbage_of_which_a_stale_word_keeps_one_is_no_leak() {
    let looks = [(1, 10_000), (2, 14_000), (3, 18_000)].map(|(hour, count)| {
        look(hour, |report| {
            sessions(report, count, None);
            let owner = report.owners.as_mut().unwrap().last_mut().unwrap();
            let path = Some("(stacks) → Session".into());
            owner.kept_by.push(KeptBy {
                path,
                objects: hour,
                bytes: hour * 1024,
                other_path: None,
                shared: None,
            });
        })
    });
    let diff = growth(&looks);
    assert_eq!(diff.verdict.kind, DiffKind::Growth, "{:?}", diff.verdict);
    let session = diff.classes.iter().find(|class| class.name == "Session").unwrap();
    assert_eq!(session.kept_by, None);
}

#[test]
fn a_buffer_that_grows_is_a_leak_of_bytes_not_of_objects() {
    let looks = [1, 2, 3].map(|hour| {
        look(hour, |report| {
            sessions(report, 8_400 + 2 * hour, Some("Cache::STORE"));
            grow(report, "ruby.malloc", hour * 30 * MIB);
            let class = report.ruby.as_mut().unwrap().classes.last_mut().unwrap();
            class.malloc_bytes += hour * 30 * MIB;
            let owner = report.owners.as_mut().unwrap().last_mut().unwrap();
            owner.kept_by[0].objects = 8_400;
            owner.kept_by[0].bytes += hour * 30 * MIB;
        })
    });
    let diff = growth(&looks);
    let verdict = &diff.verdict;
    assert_eq!(verdict.kind, DiffKind::ManagedLeak, "{verdict:?}");
    assert_eq!(
        diff_verdict(&diff).summary,
        "Managed leak: Session retained by Cache::STORE grows by 30.0 MiB/h."
    );
}

#[test]
fn a_buffer_whose_capacity_doubled_is_not_said_to_level_off() {
    let looks = [(1, 10), (2, 40), (3, 40)].map(|(hour, size)| {
        look(hour, |report| {
            sessions(report, 100, Some("Cache::STORE"));
            grow(report, "ruby.malloc", size * MIB);
            let class = report.ruby.as_mut().unwrap().classes.last_mut().unwrap();
            class.malloc_bytes += size * MIB;
            report.owners.as_mut().unwrap().last_mut().unwrap().kept_by[0].bytes += size * MIB;
        })
    });
    let verdict = growth(&looks).verdict;
    assert_eq!((verdict.kind, verdict.doubt), (DiffKind::Growth, Some(Doubt::Uneven)));
}

#[test]
fn looks_in_the_wrong_order_of_time_are_put_in_order() {
    let at = |hour| look(hour, |report| sessions(report, hour * 4_000, Some("Cache::STORE")));
    let disordered = growth(&[at(3), at(1), at(2)]);
    assert_eq!(disordered, growth(&[at(1), at(2), at(3)]));
    assert_eq!(disordered.verdict.kind, DiffKind::ManagedLeak);
}

#[test]
fn a_core_that_was_copied_later_stays_where_it_was_given() {
    let at = |hour| look(hour, |report| sessions(report, hour * 4_000, Some("Cache::STORE")));
    let mut copied = at(1);
    copied.1.report.capture.method = CaptureMethod::Core;
    copied.1.report.capture.unix_ms += 100 * HOUR_MS;
    let diff = growth(&[copied, at(2)]);
    assert_eq!(diff.points[1].source, "look at 2");
    assert!(diff.verdict.bytes > 0, "{:?}", diff.verdict);
}

#[test]
fn the_text_of_a_diff() {
    let looks = [(1, 10_000), (2, 14_000), (3, 18_000)];
    let looks: Vec<_> = looks
        .iter()
        .map(|&(hour, count)| look(hour, |report| sessions(report, count, Some("Cache::STORE"))))
        .collect();
    let text = render::diff(&growth(&looks), 100);
    insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
}

/// The table of classes was up to 130 columns wide on every terminal, and names and paths were cut.
#[test]
fn a_diff_fits_80_columns_and_loses_nothing() {
    let retainer = "Shop::Catalog::Search::EntriesByCategory::STORE";
    let looks: Vec<_> = [(1, 10_000), (2, 14_000), (3, 18_000)]
        .iter()
        .map(|&(hour, count)| look(hour, |report| sessions(report, count, Some(retainer))))
        .collect();
    let text = anstream::adapter::strip_str(&render::diff(&growth(&looks), 80)).to_string();
    for line in text.lines() {
        assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line}");
    }
    let expected = format!("\n     retained by {retainer} → Hash →\n     Session\n");
    assert!(text.contains(&expected), "{text}");
}

/// Each class was looked up in a list of all: 20,000 classes took 8 s, and these would take a minute.
#[test]
fn a_diff_is_linear_in_the_number_of_classes() {
    const CLASSES: u64 = 50_000;
    let many = |hour: u64| {
        look(hour, |report| {
            let ruby = report.ruby.as_mut().unwrap();
            let class = ruby.classes[0].clone();
            ruby.classes = (0..CLASSES)
                .map(|index| Class {
                    name: format!("C{index}"),
                    slot_bytes: 40 * index * hour,
                    ..class.clone()
                })
                .collect();
            let owners = report.owners.as_mut().unwrap();
            let owner = owners[0].clone();
            owners.extend(
                (0..CLASSES)
                    .map(|index| formats::Owner { owner: format!("C{index}"), ..owner.clone() }),
            );
        })
    };
    let diff = growth(&[many(1), many(2)]);
    assert_eq!(diff.classes.len(), 100);
    assert_eq!(diff.classes[0].name, format!("C{}", CLASSES - 1));
}
