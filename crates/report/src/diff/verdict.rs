//! Whether what grew is a leak: a pure function of the numbers.

use ledger::{Count, Size};

use crate::diff::{ClassChange, Diff, DiffKind, DiffVerdict, OwnerChange, Point, Series};

/// Less is no growth: in bytes, and as a part of RSS.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_PART: u64 = 100;
/// What levels off grows by less than this part of its fastest rate in the end.
const LEVELS_OFF: f64 = 0.25;
/// What goes on grows by at least this part of its mean rate, at every point.
const GOES_ON: f64 = 0.5;

/// Looks that are less apart say little where nothing changed.
const LONG_SECONDS: f64 = 10.0;
/// What was watched for less is told per minute.
const SHORT_HOURS: f64 = 0.2;
/// A smaller part more of a class's objects is not what it grew by.
const MORE_PART: u64 = 100;
/// So many threads more are a pile of threads.
const MANY_THREADS: u64 = 8;

const MANAGED: [&str; 2] = ["ruby.live_slots", "ruby.malloc"];
const INTERPRETER: [&str; 3] = ["ruby.vm", "ruby.jit", "ruby.overhead"];
const NATIVE: [&str; 7] = [
    "native.held",
    "native.global",
    "native.unreachable",
    "malloc.in_use",
    "stack.threads",
    "stack.fibers",
    "unknown",
];
/// May be Ruby's as well: of another allocator than glibc's, or where no owners were looked for.
const UNEXPLAINED: [&str; 2] = ["malloc.in_use", "unknown"];
const FREE: [&str; 5] =
    ["ruby.free_slots", "malloc.unreturned", "malloc.fragmented", "malloc.top", "malloc.cached"];

/// How a number goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// At much the same rate from one point to the next.
    Steady,
    /// Less and less.
    LevelsOff,
    /// Now more, now less.
    Uneven,
    /// Two points tell no course.
    TooEarly,
}

impl DiffVerdict {
    /// What is said before it is known.
    pub(crate) fn nothing() -> Self {
        Self {
            kind: DiffKind::Stable,
            cause: None,
            class: None,
            bytes: 0,
            bytes_per_hour: None,
            confidence: "low".into(),
            summary: String::new(),
            evidence: Vec::new(),
            falsified_by: String::new(),
        }
    }
}

/// The verdict on all else that a diff says; `hours` is the time between its first and last point, `None` where
/// these are of different processes.
pub(crate) fn judge(diff: &Diff, hours: Option<f64>) -> DiffVerdict {
    let sums = Sums::of(diff);
    let least = LEAST_BYTES.max(diff.rss_bytes.at.first().unwrap_or(&0) / LEAST_PART) as i64;
    let rss = diff.rss_bytes.change;
    let in_use = sums.in_use();
    let per_hour = |bytes: i64| hours.map(|hours| bytes as f64 / hours);
    let mut verdict = DiffVerdict {
        bytes: in_use,
        bytes_per_hour: per_hour(in_use),
        evidence: vec![format!(
            "in use {}, free but kept {}, RSS {}",
            signed(in_use),
            signed(sums.free.change),
            signed(rss)
        )],
        ..DiffVerdict::nothing()
    };
    if !diff.same_process {
        return two_processes(diff, verdict);
    }
    if in_use >= least {
        return growth(diff, &sums, verdict, hours);
    }
    // What may happen in hours is not seen in seconds.
    verdict.confidence = if diff.seconds < LONG_SECONDS { "low" } else { "high" }.into();
    (verdict.kind, verdict.summary, verdict.falsified_by) = if rss >= least
        && sums.free.change >= rss / 2
    {
        verdict.bytes = sums.free.change;
        verdict.bytes_per_hour = per_hour(sums.free.change);
        verdict.cause = largest(diff, &FREE);
        (
            DiffKind::Retention,
            format!(
                "Retention only: nothing in use grew. RSS rose by {}, free memory that malloc or Ruby keeps by {}.",
                Size(rss as u64),
                Size(sums.free.change as u64)
            ),
            "`rbloat trim` lowers RSS by clearly less than `rbloat report` predicts".into(),
        )
    } else if rss >= least {
        let row = diff.causes.iter().max_by_key(|row| row.bytes.change);
        let (cause, bytes) = row.map_or(("none", 0), |row| (row.cause.as_str(), row.bytes.change));
        verdict.cause = row.map(|row| row.cause.clone());
        verdict.bytes = bytes;
        verdict.bytes_per_hour = per_hour(bytes);
        verdict.confidence = "medium".into();
        (
            DiffKind::Growth,
            format!(
                "Too early to say: RSS rose by {}, {cause} by {}; nothing in use grew.",
                Size(rss as u64),
                Size(bytes.unsigned_abs())
            ),
            "a third snapshot, later, in which RSS is no higher".into(),
        )
    } else if rss <= -least {
        verdict.bytes = rss;
        verdict.bytes_per_hour = per_hour(rss);
        (
            DiffKind::Shrank,
            format!("RSS fell by {}, and nothing in use grew.", Size(rss.unsigned_abs())),
            "a later snapshot with more in use than the first".into(),
        )
    } else {
        (
            DiffKind::Stable,
            format!(
                "Nothing grew: what is in use changed by {}, RSS by {}.",
                signed(in_use),
                signed(rss)
            ),
            "a later snapshot in which more is in use".into(),
        )
    };
    verdict
}

/// The causes in groups.
struct Sums {
    managed: Series,
    interpreter: Series,
    native: Series,
    free: Series,
}

impl Sums {
    fn of(diff: &Diff) -> Self {
        let sum = |causes: &[&str]| {
            let mut sum = Series::new(diff.points.iter().map(|_| 0));
            for row in diff.causes.iter().filter(|row| causes.contains(&row.cause.as_str())) {
                sum.add(&row.bytes);
            }
            sum
        };
        Self {
            managed: sum(&MANAGED),
            interpreter: sum(&INTERPRETER),
            native: sum(&NATIVE),
            free: sum(&FREE),
        }
    }

    fn in_use(&self) -> i64 {
        self.managed.change + self.interpreter.change + self.native.change
    }
}

/// What is in use grew: what of it, and how does it go on?
fn growth(diff: &Diff, sums: &Sums, mut verdict: DiffVerdict, hours: Option<f64>) -> DiffVerdict {
    let most = sums.managed.change.max(sums.interpreter.change).max(sums.native.change);
    let per_hour = |number: i64| hours.map(|hours| number as f64 / hours);
    let class = diff.classes.iter().max_by_key(|class| class.bytes.change);
    let class = class.filter(|class| class.bytes.change > 0);
    // Threads hold their stacks besides what their objects hold.
    let count = |point: Option<&Point>| point.map_or(0, |point| point.threads);
    let threads = count(diff.points.last()).saturating_sub(count(diff.points.first()));
    let (what, series, leak, class) = if most == sums.native.change && threads < MANY_THREADS {
        let owner = largest_owner(diff);
        verdict.cause = largest(diff, &NATIVE);
        let what = match (owner, verdict.cause.as_deref()) {
            (Some(owner), _) if owner.kind == "none" => {
                "native memory that nothing points to".to_owned()
            }
            (Some(owner), Some(cause)) => format!("native memory of {} ({cause})", owner.owner),
            (None, Some(cause)) => cause.to_owned(),
            (_, None) => "native memory".to_owned(),
        };
        let series = owner.map_or(&sums.native, |owner| &owner.bytes);
        (what, series, DiffKind::NativeLeak, None)
    } else if most == sums.interpreter.change {
        verdict.cause = largest(diff, &INTERPRETER);
        ("the program's code".to_owned(), &sums.interpreter, DiffKind::WarmUp, None)
    } else {
        verdict.cause = largest(diff, &MANAGED);
        let thread = diff.classes.iter().find(|class| class.name == "Thread");
        let class = match thread {
            Some(thread) if threads >= MANY_THREADS => Some(thread),
            _ => class.map(|class| named_root(diff, class)),
        };
        let what = class.map_or_else(|| "objects".to_owned(), named);
        let series = class.map_or(&sums.managed, |class| &class.bytes);
        (what, series, DiffKind::ManagedLeak, class)
    };
    let change = series.change;
    verdict.bytes = change;
    verdict.bytes_per_hour = per_hour(change);
    verdict.class = class.map(|class| class.name.clone());
    if let Some(class) = class {
        verdict.evidence.push(format!(
            "{}: {} objects, {} {} than before; {} survived, {} are new ({} of these old by now)",
            class.name,
            Count(class.objects.last()),
            Count(class.objects.change.unsigned_abs()),
            if class.objects.change < 0 { "less" } else { "more" },
            Count(class.survivors),
            Count(class.newcomers),
            Count(class.old_newcomers),
        ));
    }
    // What a class's objects hold comes and goes with garbage more than their number does.
    let course = match class {
        Some(class) if is_more_objects(class) => course(&class.objects, &diff.points),
        _ => course(series, &diff.points),
    };
    verdict.evidence.push(rates(series, &diff.points));
    let is_unexplained = leak == DiffKind::NativeLeak
        && verdict.cause.as_deref().is_some_and(|cause| UNEXPLAINED.contains(&cause));
    let garbage = class.is_some_and(|class| class.objects.change > 0 && class.kept_by.is_none());
    let rate = rate(class, change, hours);
    let grew = Size(change.max(0) as u64);
    let (kind, confidence, summary, falsified_by) = match course {
        Course::LevelsOff => (
            DiffKind::WarmUp,
            "medium",
            format!("Warm-up: {what} grew by {grew}, but less and less; no leak is seen."),
            "the next snapshot grows by as much as the first ones did",
        ),
        _ if leak == DiffKind::WarmUp => (
            DiffKind::WarmUp,
            "medium",
            format!("Warm-up: {what} grew by {grew}, classes and bytecode that were loaded."),
            "it goes on after all code was loaded: then something defines classes or methods again and again",
        ),
        _ if is_unexplained => (
            DiffKind::Growth,
            "low",
            format!(
                "Too early to say: {what} grew by {grew} ({rate}); rbloat cannot tell whether Ruby's objects hold that."
            ),
            "the objects of a class grow in number as it does: then these hold it",
        ),
        _ if garbage => (
            DiffKind::Growth,
            "low",
            format!(
                "Too early to say: {what} grew by {grew}, but nothing keeps most of it: it may be garbage that the GC has not collected yet."
            ),
            "a snapshot after GC.start still has it",
        ),
        Course::Steady => (
            leak,
            if diff.points.len() > 2 { "high" } else { "medium" },
            format!(
                "{} leak: {what} grows by {rate}.",
                if leak == DiffKind::ManagedLeak { "Managed" } else { "Native" }
            ),
            "a later snapshot, under the same load, in which it no longer grows",
        ),
        Course::Uneven | Course::TooEarly => (
            DiffKind::Growth,
            "low",
            format!(
                "Too early to say: {what} grew by {grew} ({rate}); that may be a leak, or warming up."
            ),
            "a third snapshot, later, tells: with as much growth again it is a leak",
        ),
    };
    verdict.kind = kind;
    verdict.confidence = confidence.into();
    verdict.summary = summary;
    verdict.falsified_by = falsified_by.into();
    verdict
}

/// The class whose objects hold those of `class`, where these came in much the same number: of sessions with
/// a string each it is the sessions that leak. Itself otherwise.
fn named_root<'a>(diff: &'a Diff, class: &'a ClassChange) -> &'a ClassChange {
    let mut named_root = class;
    let path: Vec<&str> = class.kept_by.iter().flat_map(|path| path.split(" → ")).collect();
    // The first name is that of a constant or variable, the last one that of the class.
    for name in path.iter().skip(1).rev().skip(1) {
        let name = name.split(" × ").next().unwrap_or(name);
        match diff.classes.iter().find(|class| class.name == name) {
            Some(class) if class.objects.change * 2 >= named_root.objects.change => {
                named_root = class
            }
            _ => break,
        }
    }
    named_root
}

/// So much in so much time, in words; what was seen for minutes only says nothing of hours.
fn rate(class: Option<&ClassChange>, change: i64, hours: Option<f64>) -> String {
    let Some(hours) = hours else { return Size(change.max(0) as u64).to_string() };
    let (unit, units) =
        if hours < SHORT_HOURS { ("minute", hours * 60.0) } else { ("hour", hours) };
    let per_unit = |number: i64| (number.max(0) as f64 / units).round() as u64;
    let bytes = Size(per_unit(change));
    match class {
        Some(class) if is_more_objects(class) => {
            format!("{} objects ({bytes}) per {unit}", Count(per_unit(class.objects.change)))
        }
        _ => format!("{bytes} per {unit}"),
    }
}

/// Whether a class grew by the number of its objects, not by what those hold that were there before.
fn is_more_objects(class: &ClassChange) -> bool {
    let before = class.objects.at.first().unwrap_or(&0);
    class.objects.change > 0 && class.objects.change as u64 >= before / MORE_PART
}

/// A class, and who keeps more of it than before.
fn named(class: &ClassChange) -> String {
    match &class.kept_by {
        // What runs keeps itself.
        Some(path) if class.name != "Thread" => {
            let root = path.split(" → ").next().unwrap_or(path);
            format!("{} held by {root}", class.name)
        }
        _ => class.name.clone(),
    }
}

fn two_processes(diff: &Diff, mut verdict: DiffVerdict) -> DiffVerdict {
    let class = diff.classes.first();
    verdict.kind = DiffKind::Growth;
    verdict.class = class.map(|class| class.name.clone());
    verdict.summary = format!(
        "Two processes: the last has {} of RSS against the first, {} of it in use.",
        signed(diff.rss_bytes.change),
        signed(verdict.bytes)
    );
    if let Some(class) = class {
        verdict.evidence.push(format!(
            "the class that differs most is {}: {} in {} objects",
            class.name,
            signed(class.bytes.change),
            signed_count(class.objects.change)
        ));
    }
    verdict.falsified_by =
        "they do not run the same program, under the same load, for as long".into();
    verdict
}

/// The cause among `causes` that grew most.
fn largest(diff: &Diff, causes: &[&str]) -> Option<String> {
    let rows = diff.causes.iter().filter(|row| causes.contains(&row.cause.as_str()));
    rows.max_by_key(|row| row.bytes.change).map(|row| row.cause.clone())
}

/// The owner of native memory that grew most.
fn largest_owner(diff: &Diff) -> Option<&OwnerChange> {
    let native = diff.owners.iter().filter(|owner| owner.cause.starts_with("native."));
    native.max_by_key(|owner| owner.bytes.change).filter(|owner| owner.bytes.change > 0)
}

/// Bytes per second from each point to the next.
fn speeds(series: &Series, points: &[Point]) -> Vec<f64> {
    let spans = points.windows(2).map(|pair| pair[1].unix_ms.saturating_sub(pair[0].unix_ms));
    let steps = series.at.windows(2).map(|pair| pair[1] as f64 - pair[0] as f64);
    steps.zip(spans).map(|(step, span)| step * 1e3 / span.max(1) as f64).collect()
}

fn course(series: &Series, points: &[Point]) -> Course {
    let speeds = speeds(series, points);
    let (Some(&last), Some(first)) = (speeds.last(), points.first()) else {
        return Course::TooEarly;
    };
    if let [speed] = speeds[..] {
        // The program began with nothing: that is a third point, if it is far enough away.
        let span = points[1].unix_ms.saturating_sub(first.unix_ms);
        return match (first.uptime_ms, series.at.first()) {
            (Some(uptime), Some(&before))
                if uptime >= span
                    && speed >= GOES_ON * before as f64 * 1e3 / uptime.max(1) as f64 =>
            {
                Course::Steady
            }
            _ => Course::TooEarly,
        };
    }
    let fastest = speeds.iter().copied().fold(f64::MIN, f64::max);
    let mean = speeds.iter().sum::<f64>() / speeds.len() as f64;
    if last < LEVELS_OFF * fastest {
        Course::LevelsOff
    } else if speeds.iter().all(|&speed| speed >= GOES_ON * mean) {
        Course::Steady
    } else {
        Course::Uneven
    }
}

fn rates(series: &Series, points: &[Point]) -> String {
    let steps = series.at.windows(2).zip(points.windows(2)).map(|(values, points)| {
        let seconds = points[1].unix_ms.saturating_sub(points[0].unix_ms) as f64 / 1e3;
        format!("{} in {seconds:.0} s", signed(values[1].wrapping_sub(values[0]) as i64))
    });
    format!("from point to point: {}", steps.collect::<Vec<_>>().join(", "))
}

/// A change of a number with its sign.
pub(crate) fn signed_count(change: i64) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", Count(change.unsigned_abs()))
}

/// A change of bytes with its sign.
pub(crate) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", Size(bytes.unsigned_abs()))
}
