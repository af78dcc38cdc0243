//! What a diff says.

use diagnosis::growth;
use formats::{Diff, DiffKind, Doubt, KeptBy, Report, Snapshot, Subject};
use ledger::{Cause, MapRoot};
use render::words::{command_after_diff, diff_verdict};

use crate::{MIB, diff_of, grow, look, sessions};

/// Snapshots of sessions that roots retain: the parts of each have so many percent of the objects, and of the bytes.
fn looks_at_roots(parts: &[(&str, u64, u64)]) -> Vec<(String, Snapshot)> {
    let look_at = |(hour, count): (u64, u64)| {
        let mut look = look(hour, |report| {
            sessions(report, count, Some("R1"));
            let of_sessions = &mut report.owners.as_mut().unwrap().last_mut().unwrap().kept_by;
            let all = of_sessions[0].clone();
            let part = |&(name, objects, bytes): &(&str, u64, u64)| KeptBy {
                objects: count * objects / 100,
                bytes: all.bytes * bytes / 100,
                path: Some(format!("{name} → Hash → Session")),
                ..all.clone()
            };
            *of_sessions = parts.iter().map(part).collect();
        });
        let map = &mut look.1.memory_map;
        let all = map.roots.roots[0].bytes;
        let root = |&(name, _, bytes): &(&str, u64, u64)| MapRoot {
            name: name.into(),
            bytes: all * bytes / 100,
        };
        map.roots.roots = parts.iter().map(root).collect();
        // 2 is the number of the first root. Of a hundred objects in a row, each root has its part.
        let numbers = (2..).zip(parts);
        let hundred: Vec<u8> = numbers
            .flat_map(|(number, part)| std::iter::repeat_n(number, part.1 as usize))
            .collect();
        map.roots.of_objects = (0..count as usize).map(|index| hundred[index % 100]).collect();
        look
    };
    [(1, 10_000), (2, 14_000), (3, 18_000), (4, 22_000)].map(look_at).to_vec()
}

/// "Ev retained by R1 grows by 90,273 objects/min": four roots leaked as much.
#[test]
fn a_root_with_a_part_of_the_growth_is_one_of_several() {
    let looks = looks_at_roots(&["R1", "R2", "R3", "R4"].map(|name| (name, 25, 25)));
    let words = diff_verdict(&growth(&looks)).summary;
    let all = " and other roots grows by 4,000 objects/h";
    assert!(
        words.starts_with("Managed leak: Session retained by R") && words.contains(all),
        "{words}"
    );
}

/// "String retained by Socket.@listeners grows by 555,921 objects/min": it had most bytes, and fewer than half of the objects.
#[test]
fn a_root_has_the_objects_that_a_sentence_counts() {
    for (percent, objects) in [(43, "1,720"), (70, "2,800"), (95, "3,800")] {
        let looks = looks_at_roots(&[("R1", percent, 95), ("R2", 100 - percent, 5)]);
        let summary = diff_verdict(&growth(&looks)).summary;
        let of_root = format!(
            "Managed leak: memory retained by R1, most of it Session, grows by {objects} objects/h"
        );
        assert!(summary.starts_with(&of_root), "{summary}");
    }
}

/// "(4,000 objects/h (3.9 MiB/h))".
#[test]
fn no_sentence_nests_brackets() {
    for counts in [&[(10, 40_000), (11, 44_000)][..], &[(1, 10_000), (2, 14_000), (3, 18_000)]] {
        for retainer in [None, Some("Cache::STORE")] {
            let words = diff_verdict(&diff_of(counts, retainer)).summary;
            let (mut open, mut deepest) = (0, 0);
            for char in words.chars() {
                open += i32::from(char == '(') - i32::from(char == ')');
                deepest = deepest.max(open);
            }
            assert!(deepest <= 1, "{words}");
        }
    }
    let words = diff_verdict(&diff_of(&[(10, 40_000), (11, 44_000)], Some("Cache::STORE"))).summary;
    assert!(words.contains("(4,000 objects/h, 3.9 MiB/h)"), "{words}");
}

/// A leak of 400 KiB in a minute was "Nothing grew" without a word about what a minute does not show.
#[test]
fn a_short_diff_states_the_growth_that_it_does_not_show() {
    let looks = |milliseconds: u64| {
        [0, 1, 2].map(|at| {
            let mut look = look(1, |_| {});
            look.1.report.capture.unix_ms += at * milliseconds;
            look
        })
    };
    let check = |milliseconds| diff_verdict(&growth(&looks(milliseconds))).check;
    let short = check(20_000);
    assert!(short.contains("/h does not show within 40 s; `rbloat diff --every 60s`"), "{short}");
    let long = check(4_000_000);
    assert!(!long.contains("does not show"), "{long}");
}

/// "Nothing grew" with an empty table of what roots keep: nothing had grown old between the snapshots.
#[test]
fn too_few_collections_are_told_with_the_time_that_has_enough() {
    let told = |all: u64| {
        let looks = [0, 1, 2, 3].map(|at| {
            let (name, mut snapshot) = look(1, |report| {
                let gc = &mut report.ruby.as_mut().unwrap().gc;
                (gc.collections, gc.major_collections) = (Some(40 + at * all / 3), Some(2));
            });
            snapshot.report.capture.unix_ms += at * 60_000;
            (name, snapshot)
        });
        let mut diff = growth(&looks);
        diff.kept = Some(Vec::new());
        let evidence = diff_verdict(&diff).evidence;
        evidence.into_iter().find(|it| it.contains("too few to see what roots keep"))
    };
    let sentence = |count: &str, every: &str| {
        let pid = look(1, |_| {}).1.report.process.pid;
        format!(
            "{count} (0 major) in 180 s are too few to see what roots keep, since objects grow old by collections: `rbloat diff {pid} \
             --every {every}` waits for more"
        )
    };
    assert_eq!(told(3), Some(sentence("3 collections", "3m")));
    assert_eq!(told(0), Some(sentence("0 collections", "10m")));
    assert_eq!(told(9), None);
}

#[test]
fn the_next_command_follows_from_the_verdict() {
    let next = |diff: &Diff| command_after_diff(diff, "42").join(" ");
    let counts = [(1, 10_000), (2, 14_000), (3, 18_000)];
    assert_eq!(next(&diff_of(&counts, Some("Cache::STORE"))), "why 42 Session");
    assert_eq!(next(&diff_of(&[(1, 9), (2, 44_000)], Some("Cache::STORE"))), "diff 42 --every 1h");
    let retained = [1, 2, 3]
        .map(|hour| look(hour, |report| grow(report, "malloc.unreturned", hour * 25 * MIB)));
    assert_eq!(next(&growth(&retained)), "trim 42 --dry-run");
    let stable = [1, 2, 3].map(|hour| look(hour, |_| {}));
    assert_eq!(next(&growth(&stable)), "report 42");
    // `who` alone names the makers of garbage.
    let mut classes = diff_of(&counts, Some("Cache::STORE"));
    classes.verdict.class = None;
    assert_eq!(next(&classes), "who 42 --kept --for 10m");
}

#[test]
fn four_snapshots_are_not_asked_for_a_third() {
    let counts = [(1, 1_000), (2, 20_000), (3, 15_000), (4, 40_000)];
    let diff = diff_of(&counts, Some("Cache::STORE"));
    assert_eq!(diff.verdict.doubt, Some(Doubt::Uneven));
    let words = diff_verdict(&diff);
    assert!(words.summary.contains("uneven") && !words.check.contains("third"), "{words:?}");
}

#[test]
fn the_headline_explains_the_growth_of_rss() {
    let looks: Vec<_> = (1..4)
        .map(|hour| {
            look(hour, |report| {
                sessions(report, hour * 2_000, Some("Cache::STORE"));
                grow(report, "malloc.unreturned", hour * 25 * MIB);
            })
        })
        .collect();
    let diff = growth(&looks);
    // The sessions leak, but they are only 4 MiB of 54.
    assert_eq!(diff.verdict.kind, DiffKind::Retention, "{:?}", diff.verdict);
    let words = diff_verdict(&diff).summary;
    assert!(words.starts_with("Retention: RSS rose by 53.9 MiB, free memory"), "{words}");
}

/// "Session retained by Cache::A_1", which had one of twenty new ones.
#[test]
fn a_root_with_a_small_part_of_the_growth_is_not_named() {
    let looks = [(1, 10_000), (2, 14_000), (3, 18_000)].map(|(hour, count)| {
        look(hour, |report| {
            sessions(report, count, Some("Cache::A_1"));
            let kept = &mut report.owners.as_mut().unwrap().last_mut().unwrap().kept_by;
            (kept[0].objects, kept[0].bytes) = (count / 20, count / 20 * 1024);
        })
    });
    let diff = growth(&looks);
    let session = diff.classes.iter().find(|class| class.name == "Session").unwrap();
    assert_eq!(session.kept_by.as_deref(), Some("(many roots)"));
    assert_eq!(
        diff_verdict(&diff).summary,
        "Managed leak: Session retained by (many roots) grows by 4,000 objects/h (3.9 MiB/h)."
    );
}

/// "Nothing retains most of it": of the rows of a class, garbage had most, but roots that were too small for a row retained the class.
#[test]
fn little_garbage_beside_many_roots_is_not_most_of_the_growth() {
    let looks = [(1, 10_000), (2, 14_000), (3, 18_000)].map(|(hour, count)| {
        look(hour, |report| {
            sessions(report, count, None);
            let kept = &mut report.owners.as_mut().unwrap().last_mut().unwrap().kept_by;
            (kept[0].objects, kept[0].bytes) = (count / 20, count / 20 * 1024);
        })
    });
    let diff = growth(&looks);
    let session = diff.classes.iter().find(|class| class.name == "Session").unwrap();
    assert_eq!(session.kept_by.as_deref(), Some("(many roots)"));
    assert!(!diff_verdict(&diff).summary.contains("nothing retains"), "{:?}", diff.verdict);
}

/// A class counted whole for the root that retained most of it: here, of each class, four tenths.
#[test]
fn most_of_the_growth_of_many_classes_is_computed() {
    let summary = |shares: [u64; 3]| {
        let looks = [1, 2, 3].map(|hour| {
            look(hour, |report| {
                for number in 0..8 {
                    sessions(report, 1_000 * hour, Some("Cache::STORE"));
                    let name = format!("Entry{number}");
                    let class = report.ruby.as_mut().unwrap().classes.last_mut().unwrap();
                    class.name.clone_from(&name);
                    let owner = report.owners.as_mut().unwrap().last_mut().unwrap();
                    owner.owner.clone_from(&name);
                    owner.kept_by = ["Cache::STORE", "Bus::LIST", "Log::LINES"]
                        .iter()
                        .zip(shares)
                        .map(|(root, share)| KeptBy {
                            path: Some(format!("{root} → {name}")),
                            objects: 100 * hour * share,
                            bytes: 100 * hour * share * 1024,
                            other_path: None,
                            shared: None,
                        })
                        .collect();
                }
            })
        });
        diff_verdict(&growth(&looks)).summary
    };
    let words = "memory of objects of many classes";
    assert!(summary([4, 3, 3]).contains(&format!("{words} grew")), "{}", summary([4, 3, 3]));
    let most = format!("{words}, most of it retained by Cache::STORE, grew");
    assert!(summary([6, 2, 2]).contains(&most), "{}", summary([6, 2, 2]));
}

#[test]
fn two_processes_are_compared_by_cause() {
    let other = |change: fn(&mut Report)| {
        let first = look(1, |report| grow(report, "malloc.unreturned", 300 * MIB));
        let second = look(2, |report| {
            report.process.pid += 1;
            report.malloc.as_mut().unwrap().walker = "jemalloc 5.3.0".into();
            change(report);
        });
        growth(&[first, second])
    };
    let diff = other(|report| {
        grow(report, "malloc.fragmented", 20 * MIB);
        grow(report, "ruby.vm", MIB / 2);
    });
    assert_eq!((diff.verdict.kind, diff.verdict.subject), (DiffKind::Difference, Subject::Rss));
    assert_eq!(diff.verdict.cause, Some(Cause::MallocUnreturned));
    assert_eq!(
        diff_verdict(&diff).summary,
        "The second process (jemalloc 5.3.0) uses 279.5 MiB less than the first (glibc 2.36): malloc.unreturned \
         -300.0 MiB, malloc.fragmented +20.0 MiB, other causes +512.0 KiB."
    );
    let same = other(|report| {
        report.malloc.as_mut().unwrap().walker = "glibc 2.36".into();
        grow(report, "malloc.unreturned", 300 * MIB);
    });
    let words = "The second process uses as much memory as the first.";
    assert_eq!(diff_verdict(&same).summary, words);
}
