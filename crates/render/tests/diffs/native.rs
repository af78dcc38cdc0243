//! Memory that no Ruby object has: native and mapped memory, free memory, files.

use diagnosis::growth;
use formats::{Confidence, DiffKind, Doubt, KeptBy, Report, UnknownRow};
use ledger::Cause;
use render::words::diff_verdict;

use crate::{MIB, grow, look, sessions};

#[test]
fn native_memory_leaks_by_its_owner() {
    let looks: Vec<_> = (1..4)
        .map(|hour| {
            look(hour, |report| {
                grow(report, "native.unreachable", hour * 10 * MIB);
                let owners = report.owners.as_mut().unwrap();
                let mut nobody = owners[0].clone();
                (nobody.owner, nobody.kind) = ("(nobody)".into(), "none".into());
                nobody.cause = Some(Cause::NativeUnreachable);
                // The other half was never written to.
                (nobody.exclusive_bytes, nobody.shared_bytes) = (hour * 20 * MIB, 0);
                nobody.resident_bytes = Some(hour * 10 * MIB);
                nobody.kept_by = vec![];
                owners.push(nobody);
            })
        })
        .collect();
    let diff = growth(&looks);
    let verdict = &diff.verdict;
    assert_eq!(verdict.kind, DiffKind::NativeLeak, "{verdict:?}");
    assert_eq!(
        diff_verdict(&diff).summary,
        "Native leak: native memory that nothing points to grows by 10.0 MiB/h."
    );
}

#[test]
fn free_memory_that_grows_is_retention_and_code_that_grows_steadily_is_no_warm_up() {
    let free =
        [1, 2].map(|hour| look(hour, |report| grow(report, "malloc.unreturned", hour * 90 * MIB)));
    assert_eq!(growth(&free).verdict.kind, DiffKind::Retention);
    let code = [1, 2, 3].map(|hour| look(hour, |report| grow(report, "ruby.vm", hour * 20 * MIB)));
    let verdict = growth(&code).verdict;
    let expected = (DiffKind::Growth, Some(Doubt::CodeIsLoaded));
    assert_eq!((verdict.kind, verdict.doubt), expected, "{verdict:?}");
    // Nothing shows that code was loaded.
    assert_eq!(growth(&code[..2]).verdict.kind, DiffKind::Growth);
    let less = [1, 2]
        .map(|hour| look(hour, |report| grow(report, "malloc.unreturned", (3 - hour) * 90 * MIB)));
    assert_eq!(growth(&less).verdict.kind, DiffKind::Shrank);
}

/// "Too early to tell … another snapshot, later, should have no higher RSS", of segments that are mapped again and again: the kernel
/// cannot drop them.
#[test]
fn shared_memory_and_changed_pages_that_grow_steadily_may_leak() {
    let growing = |cause: &'static str, steps: [u64; 4]| {
        growth(&[1, 2, 3, 4].map(|hour: u64| {
            look(hour, |report| {
                if cause == "file.shmem" {
                    let rows = &mut report.causes;
                    let private = rows.iter_mut().find(|row| row.cause == Cause::FilePrivate);
                    private.unwrap().cause = Cause::FileShmem;
                }
                grow(report, cause, steps[hour as usize - 1] * MIB);
                // Less than the shared memory.
                grow(report, "ruby.malloc", hour * 2 * MIB);
            })
        }))
    };
    for (cause, name) in
        [("file.shmem", "shared memory"), ("file.private", "changed pages of files")]
    {
        let diff = growing(cause, [20, 40, 60, 80]);
        let found = (diff.verdict.kind, diff.verdict.doubt, diff.verdict.confidence);
        assert_eq!(found, (DiffKind::Growth, Some(Doubt::Unproven), Confidence::Low));
        let words = diff_verdict(&diff).summary;
        assert!(
            words.starts_with(&format!("Growth: {name} ({cause}) grew by 60.0 MiB")),
            "{words}"
        );
        let ended = growing(cause, [20, 80, 90, 91]);
        assert_eq!(ended.verdict.kind, DiffKind::WarmUp, "{:?}", ended.verdict);
    }
    assert_eq!(growing("file.shared", [20, 40, 60, 80]).verdict.cause, Some(Cause::RubyMalloc));
    // RSS fell by more.
    let fell = [1, 2, 3, 4].map(|hour: u64| {
        look(hour, |report| {
            grow(report, "file.private", hour * 20 * MIB);
            grow(report, "ruby.malloc", (5 - hour) * 90 * MIB);
        })
    });
    assert_eq!(growth(&fell).verdict.kind, DiffKind::Shrank);
}

#[test]
fn pages_of_files_that_grow_are_not_called_retention_nor_nothing() {
    for (free, in_use) in [(1, 0), (0, 0), (0, 90)] {
        let looks = [1, 2].map(|hour| {
            look(hour, |report| {
                grow(report, "malloc.unreturned", hour * free * MIB);
                grow(report, "ruby.malloc", (2 - hour) * in_use * MIB);
                grow(report, "file.shared", hour * 190 * MIB);
            })
        });
        let diff = growth(&looks);
        let verdict = &diff.verdict;
        assert_eq!(verdict.kind, DiffKind::Growth, "{verdict:?}");
        assert_eq!(verdict.cause, Some(Cause::FileShared));
        let words = format!("RSS rose by {}.0 MiB, file.shared by 190.0 MiB;", 190 + free - in_use);
        let summary = diff_verdict(&diff).summary;
        assert!(summary.contains(&words), "{summary}");
    }
}

#[test]
fn memory_of_jemalloc_is_not_called_a_native_leak() {
    let looks = [1, 2, 3].map(|hour| {
        look(hour, |report| {
            grow(report, "unknown", hour * 20 * MIB);
            report.owners = None;
        })
    });
    let diff = growth(&looks);
    let verdict = &diff.verdict;
    assert_eq!((verdict.kind, verdict.confidence), (DiffKind::Growth, Confidence::Low));
    assert_eq!(verdict.cause, Some(Cause::Unknown));
    let words = diff_verdict(&diff).summary;
    assert!(words.contains("(unknown) grew by 40.0 MiB (20.0 MiB/h)"), "{words}");
}

/// Sets the memory of mappings to which `Session`s refer.
fn map(report: &mut Report, mebibytes: u64) {
    grow(report, "unknown", mebibytes * MIB);
    report.unknown = vec![UnknownRow {
        permissions: "rw-".into(),
        mappings: 1,
        mapped_bytes: mebibytes * MIB,
        resident_bytes: mebibytes * MIB,
        huge_bytes: 0,
        largest: "0x7f0000000000".into(),
        beside: None,
        owner: Some("Session".into()),
        owner_bytes: mebibytes * MIB,
    }];
}

/// "rbloat cannot tell whose it is", of a buffer that was mapped again and again as it grew: the report named it.
#[test]
fn mapped_memory_of_one_object_that_grows_has_its_name() {
    let look = |(hour, mebibytes): (u64, u64)| {
        look(hour, |report| {
            sessions(report, 1, Some("LOG"));
            map(report, mebibytes);
        })
    };
    let diff = growth(&[(1, 64), (2, 64), (3, 128)].map(look));
    let words = diff_verdict(&diff);
    let start = "Growth: Session retained by LOG grew by 64.0 MiB, at an uneven rate.";
    assert!(words.summary.starts_with(start), "{words:?}");
    assert!(words.evidence[1].starts_with("Session: 1 object (+0);"), "{words:?}");
    // "+0 B in 3600 s", of the object's own memory.
    let steps = "between snapshots: +0 B in 3600 s, +64.0 MiB in 3600 s";
    assert!(words.evidence.iter().any(|it| it == steps), "{words:?}");
}

/// The rate of a leak was that of the garbage, too.
#[test]
fn garbage_has_its_part_of_mapped_memory() {
    let look = |hour: u64| {
        look(hour, |report| {
            sessions(report, 20 * hour, Some("LOG"));
            let kept = &mut report.owners.as_mut().unwrap().last_mut().unwrap().kept_by;
            kept[0].objects /= 2;
            kept.push(KeptBy { path: None, ..kept[0].clone() });
            map(report, 64 * hour);
        })
    };
    let verdict = growth(&[1, 2, 3, 4].map(look)).verdict;
    assert_eq!((verdict.kind, verdict.class.as_deref()), (DiffKind::ManagedLeak, Some("Session")));
    assert!(verdict.bytes.unsigned_abs().abs_diff(96 * MIB) < MIB, "{verdict:?}");
}

/// "Warm-up: … more and more slowly. This is no leak", of a heap of a library that doubles when it is full.
#[test]
fn mapped_memory_that_grows_in_jumps_is_no_warm_up() {
    let look = |(hour, mebibytes)| look(hour, |report| grow(report, "unknown", mebibytes * MIB));
    let diff = growth(&[(1, 64), (2, 128), (3, 128), (4, 128)].map(look));
    let summary = diff_verdict(&diff).summary;
    assert!(
        summary.ends_with(" rbloat cannot tell whose it is, or if this is a leak."),
        "{summary}"
    );
}
