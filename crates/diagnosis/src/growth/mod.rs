//! The growth between two or more snapshots, and a verdict on it.

mod blocks;
mod changes;
mod cohorts;
mod course;
mod verdict;
mod waste;

pub(crate) use course::{Course, course};
use formats::{
    CaptureMethod, Diff, DiffPoint, Report, RootUses, Snapshot, Trajectory, UnreadPoint,
};
use verdict::Changes;
pub use verdict::{
    MIN_LISTED, growing_part, has_more_objects, is_defined_again, is_in_free_memory,
    is_native_in_free_memory, kept_besides, least_growth, native_besides, native_blocks_of_verdict,
    native_owner_of_verdict, open_native_blocks, root_of_most, rss_growth, slow_root_besides,
    steady_root_besides, totals,
};

/// Compares two or more snapshots, each with its name. Snapshots of one process are ordered by time; those of several
/// processes, and of cores, are compared in the given order.
#[must_use]
pub fn growth(snapshots: &[(String, Snapshot)]) -> Diff {
    let same_process = snapshots.windows(2).all(|pair| {
        let [one, other] = [&pair[0].1.report.process, &pair[1].1.report.process];
        // A core does not have the start time of its process.
        one.pid == other.pid
            && (one.started_ticks == other.started_ticks
                || one.started_ticks.is_none()
                || other.started_ticks.is_none())
    });
    let unread: Vec<UnreadPoint> = snapshots
        .iter()
        .filter_map(|(source, snapshot)| {
            let reason = snapshot.report.capture.unread?;
            let rss_bytes = snapshot.report.process.rss_bytes;
            Some(UnreadPoint { source: source.clone(), reason, rss_bytes })
        })
        .collect();
    // All memory of a snapshot that was not read is unknown, which would seem to have grown.
    let can_leave_out = snapshots.len() >= unread.len() + 2;
    let is_used = |(_, snapshot): &&(String, Snapshot)| {
        !can_leave_out || snapshot.report.capture.unread.is_none()
    };
    let mut snapshots: Vec<_> = snapshots.iter().filter(is_used).collect();
    // The time of a core is its file's, and the file may have been copied. The user knows the order better.
    let is_core = |snapshot: &Snapshot| snapshot.report.capture.method == CaptureMethod::Core;
    if same_process && !snapshots.iter().any(|(_, snapshot)| is_core(snapshot)) {
        snapshots.sort_by_key(|(_, snapshot)| snapshot.report.capture.unix_ms);
    }
    let points: Vec<DiffPoint> = snapshots
        .iter()
        .map(|(source, snapshot)| {
            let (process, capture) = (&snapshot.report.process, &snapshot.report.capture);
            let gc = snapshot.report.ruby.as_ref().map(|ruby| &ruby.gc);
            DiffPoint {
                source: source.clone(),
                pid: process.pid,
                command: process.command.clone(),
                allocator: allocator(&snapshot.report),
                unix_ms: capture.unix_ms,
                uptime_ms: process.uptime_ms,
                threads: process.threads,
                gc_disabled: gc.and_then(|gc| gc.disabled),
                gc_marking: gc.and_then(|gc| gc.marking),
                collections: gc.and_then(|gc| gc.collections),
                major_collections: gc.and_then(|gc| gc.major_collections),
            }
        })
        .collect();
    let milliseconds = match (points.first(), points.last()) {
        (Some(first), Some(last)) => last.unix_ms.saturating_sub(first.unix_ms),
        _ => 0,
    };
    let seconds = milliseconds as f64 / 1e3;
    let reports: Vec<_> = snapshots.iter().map(|(_, snapshot)| &snapshot.report).collect();
    let hours = (same_process && seconds > 0.0).then_some(seconds / 3600.0);
    let rss_bytes = Trajectory::new(reports.iter().map(|report| report.process.rss_bytes));
    let causes = changes::causes(&reports);
    let mapper = changes::growing_mapper(&reports);
    let mut classes = changes::classes(&reports, hours, mapper.as_deref());
    let owners = changes::owners(&reports);
    let code = changes::code(&reports);
    let interpreter = changes::interpreter(&reports);
    let all: Vec<&Snapshot> = snapshots.iter().map(|(_, snapshot)| snapshot).collect();
    let lasting = if same_process { cohorts::count(&all, &mut classes) } else { None };
    let (kept, unchanged) = lasting.unzip();
    let kept_native = if same_process { blocks::count(&all, &owners) } else { None };
    let verdict = verdict::judge(
        Changes {
            points: &points,
            is_unread: !can_leave_out && !unread.is_empty(),
            unread: &unread,
            same_process,
            seconds,
            rss_bytes: &rss_bytes,
            causes: &causes,
            classes: &classes,
            owners: &owners,
            code: &code,
            interpreter: &interpreter,
            mapper: mapper.as_deref(),
            kept: kept.as_deref().unwrap_or_default(),
            kept_native: kept_native.as_ref(),
        },
        hours,
    );
    let paths = kept.iter().flatten().map(|it| it.path.as_ref().unwrap_or(&it.root).as_str());
    let last = reports.last().map_or(&[][..], |last| &last.root_uses);
    let root_uses = RootUses::of_paths(paths, last);
    Diff {
        made_by: None,
        unread,
        same_process,
        seconds,
        verdict,
        rss_bytes,
        causes,
        classes,
        owners,
        code,
        interpreter,
        waste: waste::waste(&reports),
        root_uses,
        kept,
        unchanged,
        kept_sampling: None,
        kept_native,
        dominators: changes::dominators(&reports),
        arenas: if same_process { changes::arenas(&reports) } else { Vec::new() },
        pins: changes::pins(&reports),
        size_classes: changes::size_classes(&reports),
        points,
    }
}

/// The allocator with its version. Without a walk, only glibc's version is known.
fn allocator(report: &Report) -> String {
    let process = &report.process;
    match &report.malloc {
        Some(malloc) => malloc.walker.clone(),
        _ if process.allocator == "glibc" => process.libc.clone(),
        _ => process.allocator.clone(),
    }
}
