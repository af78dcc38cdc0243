//! Roots whose objects are replaced, or stop growing: caches and pools are no leaks.

use std::ops::Range;

use diagnosis::growth;
use formats::{Confidence, DiffKind, Doubt, Snapshot};
use render::words::diff_verdict;

use crate::roots::{YOUNG_SLOT, look_behind};
use crate::{look, sessions};

/// Snapshots with the same 16,000 sessions, of which `Cache::STORE` retains those in the ranges.
fn looks_at_cache(retained: [&[Range<usize>]; 4]) -> Vec<(String, Snapshot)> {
    let look = |(hour, ranges): (u64, &[Range<usize>])| {
        let (name, mut snapshot) = look_behind(hour, 16_000, 0);
        let numbers = &mut snapshot.memory_map.roots.of_objects;
        numbers.fill(1);
        ranges.iter().for_each(|range| numbers[range.clone()].fill(2));
        (name, snapshot)
    };
    (1..5).zip(retained).map(look).collect()
}

/// "Managed leak: memory retained by MEMO … grows by 39,830 objects/min": it had been full for a minute.
#[test]
fn a_root_with_no_more_objects_at_the_last_look_is_no_leak() {
    let looks = |last| [(1, 4_000), (2, 8_000), (3, 12_000), (4, last)];
    let verdict = |last| {
        let looks = looks(last).map(|(hour, kept)| look_behind(hour, kept, 40_000 - hour * 6_000));
        growth(&looks).verdict
    };
    let (full, leak) = (verdict(12_000), verdict(16_000));
    assert_eq!((full.kind, full.doubt), (DiffKind::Growth, Some(Doubt::Uneven)), "{full:?}");
    assert_eq!(leak.kind, DiffKind::ManagedLeak, "{leak:?}");
}

/// "Managed leak", with high confidence, of a cache whose entries have random keys: the more it has, the fewer are new. Four snapshots give
/// a root two rates of what stays, and the last one is that of old objects.
#[test]
fn a_bounded_cache_that_fills_is_told_from_a_leak() {
    let looks = |kept: [u64; 4]| {
        let look = |(hour, kept): (u64, u64)| look_behind(hour, kept, 40_000 - hour * 6_000);
        growth(&(1..5).zip(kept).map(look).collect::<Vec<_>>()).verdict
    };
    // Each interval adds 0.65 of what the one before has added.
    let fills = looks([4_000, 8_000, 10_600, 12_290]);
    assert_eq!((fills.kind, fills.doubt), (DiffKind::Growth, Some(Doubt::Uneven)), "{fills:?}");
    for leak in [[4_000, 8_000, 11_400, 15_100], [4_000, 8_000, 11_800, 15_200]] {
        assert_eq!(looks(leak).kind, DiffKind::ManagedLeak, "{leak:?}");
    }
}

#[test]
fn the_rate_of_what_stays_has_an_interval() {
    let look = |(hour, kept): (u64, u64)| look_behind(hour, kept, 40_000 - hour * 6_000);
    let diff = growth(&[(1, 4_000), (2, 8_000), (3, 11_900), (4, 16_000)].map(look));
    // Rates of 4,000, 3,900 and 4,100, and 4.303 of Student's t: 1 KiB is an object.
    let told = "95 % interval of what stays: 3,752 to 4,248 objects/h, about 3.7 MiB to 4.1 MiB/h";
    let words = diff_verdict(&diff);
    let alone = growth(&[(1, 4_000), (2, 8_000), (3, 11_900)].map(look));
    assert!(words.evidence.iter().any(|it| it == told), "{words:?}");
    assert_eq!(alone.kept.unwrap()[0].objects_per_hour, None);
    // The rate was that of the first two intervals.
    assert!(words.summary.contains("grows by 4,000 objects/h (about 3.9 MiB/h)"), "{words:?}");
    assert_eq!(diff.verdict.bytes_per_hour.map(f64::round), Some(4_000.0 * 1024.0));
}

/// "Managed leak", of a pool of connections whose statements come and go.
#[test]
fn a_rate_whose_interval_begins_with_nothing_is_no_leak() {
    let look = |(hour, kept): (u64, u64)| look_behind(hour, kept, 40_000 - hour * 6_000);
    let diff = growth(&[(1, 4_000), (2, 6_000), (3, 11_000), (4, 14_500)].map(look));
    assert_eq!(diff.kept.as_ref().unwrap()[0].objects_per_hour.unwrap().low, 0.0);
    let verdict = &diff.verdict;
    assert_eq!((verdict.kind, verdict.doubt), (DiffKind::Growth, Some(Doubt::Uneven)));
    // Rates of 4,050, 2,200 and 2,100 had high confidence, and those of 4,000, 2,400 and 3,600 have a wide interval.
    let verdict = |kept: [u64; 4]| growth(&(1..5).zip(kept).map(look).collect::<Vec<_>>()).verdict;
    assert_eq!(verdict([4_000, 8_050, 10_250, 12_350]).kind, DiffKind::Growth);
    let leak = verdict([4_000, 8_000, 10_400, 14_000]);
    assert_eq!((leak.kind, leak.confidence), (DiffKind::ManagedLeak, Confidence::Medium));
}

/// "Managed leak: Hash", of three snapshots of Redmine under a steady load: requests that ran had more Hashes.
#[test]
fn objects_in_use_that_become_old_are_no_leak_of_their_root() {
    let verdict = |collections: Option<u64>| {
        let looks = [(1, 10_000), (2, 14_000), (3, 18_000)].map(|(hour, count)| {
            let (name, mut snapshot) = look(hour, |report| {
                sessions(report, count, Some("Cache::STORE"));
                let gc = &mut report.ruby.as_mut().unwrap().gc;
                gc.collections = collections.map(|each| each * hour);
            });
            let map = &mut snapshot.memory_map;
            match hour {
                2 => map.columns.uses[10_000..].fill(YOUNG_SLOT),
                3 => map.roots.of_objects[10_500..14_000].fill(1),
                _ => {}
            }
            (name, snapshot)
        });
        growth(&looks).verdict
    };
    let is_leak = |collections| verdict(collections).kind == DiffKind::ManagedLeak;
    assert!(!is_leak(Some(50)), "{:?}", verdict(Some(50)));
    // What roots keep is not known then.
    assert!(is_leak(Some(1)) && is_leak(None));
}

/// A cache whose size rises steadily, but whose entries are replaced.
#[test]
fn a_cache_that_is_replaced_is_no_leak() {
    let (first, second, third) = (0..4_000, 4_000..8_000, 8_000..16_000);
    let diff = growth(&looks_at_cache([
        std::slice::from_ref(&first),
        &[first.clone(), second.clone()],
        &[first.clone(), second, third.clone()],
        &[first.clone(), third],
    ]));
    let row = &diff.kept.as_ref().unwrap()[0];
    assert_eq!(row.objects.at, [4_000, 8_000, 12_000]);
    assert_eq!((row.newcomers, row.kept), (4_000, 0));
    assert_eq!(diff.verdict.kind, DiffKind::Stable, "{:?}", diff.verdict);
}

/// More of the same objects are old at each look.
#[test]
fn objects_that_only_grow_old_are_no_growth() {
    let all = 0..16_000;
    let mut looks = looks_at_cache([(); 4].map(|()| std::slice::from_ref(&all)));
    for ((_, snapshot), old) in looks.iter_mut().zip([0, 4_000, 8_000, 12_000]) {
        snapshot.memory_map.columns.uses[old..].fill(YOUNG_SLOT);
    }
    assert_eq!(growth(&looks).kept, Some(Vec::new()));
}

/// The root of a few objects is not known, so a root would seem to grow by all of them when it has more.
#[test]
fn objects_of_an_unknown_root_are_not_counted() {
    let all = 0..16_000;
    let mut looks = looks_at_cache([(); 4].map(|()| std::slice::from_ref(&all)));
    looks[0].1.memory_map.roots.of_objects.fill(0);
    assert_eq!(growth(&looks).kept, Some(Vec::new()));
}

/// 4.9 MiB for 2.9 MiB: the bytes of a root are those of all its objects, also of those that are not counted.
#[test]
fn objects_of_an_unknown_root_do_not_enlarge_the_others() {
    let ranges = [4_000, 8_000, 12_000, 16_000].map(|end| 0..end);
    let mut looks = looks_at_cache(ranges.each_ref().map(std::slice::from_ref));
    looks[0].1.memory_map.roots.of_objects[..3_000].fill(0);
    let kept = growth(&looks).kept.unwrap();
    assert_eq!(kept[0].objects.at, [1_000, 5_000, 9_000]);
    assert_eq!(kept[0].bytes, 8_000 * 1024);
}
