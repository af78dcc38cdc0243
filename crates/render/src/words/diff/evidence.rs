//! The figures of a diff that its verdict follows from, in words.

use diagnosis::{
    growing_part, has_more_objects, kept_besides, native_besides, native_blocks_of_verdict,
    native_owner_of_verdict, open_native_blocks, slow_root_besides, steady_root_besides,
};
use formats::{
    ClassChange, Confidence, Diff, DiffKind, DiffPoint, Doubt, KeptChange, KeptNative, Subject,
    Trajectory,
};
use ledger::{Cause, Count, Size};

use super::subject::{is_unknown, kept, kept_native, largest_code, of_verdict};
use super::{MIN_CHANGE, longer, signed, signed_count, unread};
use crate::words::counted;
use crate::words::lines::is_used_in;

/// Growth that was observed for a shorter time is given per minute; in hours.
const MIN_HOURS: f64 = 0.2;

/// The figures of a diff and of the class that its verdict is about, most important first.
pub(super) fn evidence(diff: &Diff, class: Option<&ClassChange>) -> Vec<String> {
    let verdict = &diff.verdict;
    let mut evidence = vec![sums(diff)];
    match (kept(diff), class) {
        (Some(kept), _) => {
            evidence.push(still_there(diff, kept));
            evidence.extend(garbage(diff));
        }
        (None, Some(class)) => evidence.push(objects(diff, class)),
        (None, None) => {}
    }
    if let Some(row) = native_blocks_of_verdict(diff) {
        match (diff.verdict.kind, diff.verdict.doubt) {
            (_, Some(Doubt::Turnover)) => {}
            // The rest of its memory may come and go.
            (DiffKind::Growth, _) if diff.verdict.owner.is_none() => {
                evidence.extend((row.gone > 0).then(|| blocks_gone(row)));
            }
            _ => evidence.extend((row.newcomers > 0).then(|| blocks_still_there(diff, row))),
        }
    }
    if verdict.subject == Subject::Code
        && let Some(file) = largest_code(diff)
    {
        evidence.push(format!(
            "{}: {} iseqs ({}), {}",
            file.path,
            Count(file.iseqs.last()),
            signed_count(file.iseqs.change),
            signed(file.bytes.change)
        ));
    }
    if diff.same_process
        && let Some((values, counts)) = values(diff, class)
    {
        let shown: fn(i64) -> String = match counts {
            true => |change| format!("{} objects", signed_count(change)),
            false => signed,
        };
        evidence.push(steps(values, &points(diff), shown));
        evidence.extend(kept(diff).and_then(|kept| interval(diff, kept)));
    }
    if let Some(row) = open_native_blocks(diff) {
        evidence.push(format!(
            "{} blocks of {} ({}) that were new in the second snapshot are in all later ones, but others of the same sizes are gone: \
             these may stay, or be other blocks at the same addresses",
            Count(row.open),
            row.owner,
            Size(row.open_bytes)
        ));
    }
    let root = kept(diff).or_else(|| steady_root_besides(diff)).filter(|it| it.made_by.is_empty());
    let path = root.map(|it| it.path.as_ref().unwrap_or(&it.root));
    evidence.extend(path.and_then(|path| is_used_in(path, &diff.root_uses)));
    // What the verdict says itself is not said again.
    let told = steady_root_besides(diff).map(|row| &row.root);
    evidence.extend(kept_besides(diff).filter(|row| told != Some(&row.root)).map(keeps_more));
    // Beside growth of what stays, what is too little for that of other roots is no news.
    let nothing_stays = matches!(verdict.kind, DiffKind::Stable | DiffKind::Shrank)
        || verdict.doubt == Some(Doubt::Garbage);
    let slow = slow_root_besides(diff).filter(|row| nothing_stays && told != Some(&row.root));
    if let Some(row) = slow {
        evidence.push(format!(
            "{}, at a steady rate: too little for a verdict after {:.0} s, but much in time",
            keeps_more(row),
            diff.seconds
        ));
    }
    if let Some(other) = native_besides(diff) {
        let whose = match other.cause {
            Cause::NativeUnreachable => "native memory that nothing points to".into(),
            _ => format!("native memory of {}", other.owner),
        };
        evidence.push(format!(
            "besides, {whose} grew by about {} ({} blocks that stay)",
            Size(other.bytes.change.max(0) as u64),
            signed_count(other.blocks.change)
        ));
    }
    evidence.extend(few_collections(diff));
    let ageless = diff.points.iter().filter(|point| !point.has_ages());
    let ageless: Vec<&str> = ageless.map(|point| point.source.as_str()).collect();
    evidence.extend(listed(&ageless).map(|sources| {
        let show = if ageless.len() == 1 { "does not show" } else { "do not show" };
        format!("{sources} {show} which objects are old, because a major collection was marking")
    }));
    evidence.extend(not_read(diff));
    evidence
}

/// The sentence on too few collections to see what roots keep; `None` if there were enough, or if it is not known.
fn few_collections(diff: &Diff) -> Option<String> {
    // Ruby calls an object old after three.
    const COLLECTIONS: f64 = 3.0;
    const MINUTES_OF_DAY: f64 = 1440.0;
    let [first, .., last] = &diff.points[..] else { return None };
    let change = |of: fn(&DiffPoint) -> Option<u64>| of(last)?.checked_sub(of(first)?);
    let (all, major) = (change(|it| it.collections)?, change(|it| it.major_collections)?);
    let spans = diff.points.len() as f64 - 1.0;
    let sees_nothing = diff.kept.as_ref().is_some_and(Vec::is_empty);
    // A collector that the program has disabled has its own sentence.
    let is_disabled = diff.points.iter().all(|point| point.gc_disabled == Some(true));
    if !sees_nothing || is_disabled || all as f64 >= COLLECTIONS * spans {
        return None;
    }
    let every = match all {
        0 => longer(diff).to_owned(),
        all => {
            let minutes = (diff.seconds * COLLECTIONS / all as f64 / 60.0).ceil();
            format!("{}m", minutes.clamp(1.0, MINUTES_OF_DAY))
        }
    };
    Some(format!(
        "{} ({} major) in {:.0} s are too few to see what roots keep, since objects grow old by collections: `rbloat diff {} --every \
         {every}` waits for more",
        counted(all, "collection"),
        Count(major),
        diff.seconds,
        last.pid
    ))
}

/// The snapshots whose memory was not read, with the reason of the one that needs the longest pause. `None` if all were read.
fn not_read(diff: &Diff) -> Option<String> {
    let longest = diff.unread.iter().rev().max_by_key(|point| point.reason.enough_ms)?;
    let others = diff.unread.iter().filter(|point| !std::ptr::eq(*point, longest));
    let others: Vec<&str> = others.map(|point| point.source.as_str()).collect();
    let others = match (listed(&others), others.len()) {
        (None, _) => String::new(),
        (Some(sources), 1) => format!("; {sources} was not read, either"),
        (Some(sources), _) => format!("; {sources} were not read, either"),
    };
    Some(format!("{} was not read: {}{others}", longest.source, unread(&longest.reason)))
}

/// The names of some snapshots, of which the first ones are listed. `None` for none.
fn listed(sources: &[&str]) -> Option<String> {
    const MAX_SOURCES: usize = 3;
    match sources {
        [] => None,
        [source] => Some((*source).to_owned()),
        [others @ .., last] if sources.len() <= MAX_SOURCES => {
            Some(format!("{} and {last}", others.join(", ")))
        }
        _ => {
            let (shown, others) = sources.split_at(MAX_SOURCES - 1);
            Some(format!("{} and {} others", shown.join(", "), others.len()))
        }
    }
}

fn still_there(diff: &Diff, kept: &KeptChange) -> String {
    let of = match diff.points.iter().all(DiffPoint::has_ages) {
        true => "",
        false => " of those that show ages",
    };
    let path = kept.path.as_ref().map_or_else(String::new, |path| format!(": {path}"));
    format!(
        "of {} objects that {} retained in the second and third snapshot{of}, but not in the first, {} are in all later ones{path}",
        Count(kept.newcomers),
        kept.root,
        Count(kept.kept),
    )
}

pub(super) fn keeps_more(row: &KeptChange) -> String {
    let bytes = Size(row.bytes.max(0) as u64);
    format!("{} keeps about {bytes} more ({} objects)", row.root, signed_count(row.objects.change))
}

/// How garbage changed beside what a root keeps: both are memory in use. `None` if it is little.
fn garbage(diff: &Diff) -> Option<String> {
    let of_class =
        |class: &ClassChange| class.bytes.change.saturating_sub(class.growing_bytes().change);
    let change = diff.classes.iter().map(of_class).fold(0, i64::saturating_add);
    (change.unsigned_abs() >= MIN_CHANGE)
        .then(|| format!("garbage of the classes that changed most: {}", signed(change)))
}

fn blocks_still_there(diff: &Diff, row: &KeptNative) -> String {
    let text = format!(
        "of {} blocks that were new in the second snapshot, {} are in all later ones, with the same owner, address and size",
        Count(row.newcomers),
        Count(row.kept),
    );
    match (row.cause, diff.verdict.confidence) {
        (Cause::NativeUnreachable, _) | (_, Confidence::High) => text,
        _ => format!(
            "{text}; blocks that are freed, and allocated again at the same addresses, would look the same"
        ),
    }
}

pub(super) fn blocks_gone(row: &KeptNative) -> String {
    format!(
        "of {} blocks that were new in a snapshot before the last, {} are gone by now",
        Count(row.all_newcomers),
        Count(row.gone)
    )
}

fn sums(diff: &Diff) -> String {
    let (in_use, free) = diagnosis::totals(diff);
    let rss = signed(diff.rss_bytes.change);
    format!("memory in use {}, free but kept {}, RSS {rss}", signed(in_use), signed(free))
}

fn objects(diff: &Diff, class: &ClassChange) -> String {
    let text = |objects: &Trajectory| {
        let change = signed_count(objects.change);
        format!("{}: {} ({change})", class.name, counted(objects.last(), "object"))
    };
    if !diff.same_process {
        return format!("{}, {}", text(&class.objects), signed(class.bytes.change));
    }
    let (objects, _) = of_verdict(diff, class);
    let others = match class.objects.last().saturating_sub(objects.last()) {
        0 => String::from(";"),
        garbage => format!(
            " that something retains, and {} that are garbage. Of all of them,",
            Count(garbage)
        ),
    };
    let old = match diff.points.last().is_some_and(DiffPoint::has_ages) {
        true => format!(", of which {} have become old", Count(class.old_newcomers)),
        false => String::new(),
    };
    format!(
        "{}{others} {} survived, {} are new{old}",
        text(objects),
        Count(class.survivors),
        Count(class.newcomers),
    )
}

/// The values behind the verdict's subject, and whether they are numbers of objects, not bytes.
fn values<'a>(diff: &'a Diff, class: Option<&'a ClassChange>) -> Option<(&'a Trajectory, bool)> {
    if let Some(kept) = kept(diff) {
        return Some((&kept.objects, true));
    }
    if let Some(row) = kept_native(diff) {
        return Some((&row.bytes, false));
    }
    match (diff.verdict.subject, class) {
        (Subject::Objects, Some(class)) if has_more_objects(class) => {
            Some((of_verdict(diff, class).0, true))
        }
        // The memory to which the objects refer, and not their own.
        (Subject::Objects, Some(_)) if is_unknown(diff) => {
            let unknown = diff.causes.iter().find(|row| row.cause == Cause::Unknown);
            unknown.map(|row| (&row.bytes, false))
        }
        (Subject::Objects, class) => class.map(|class| match growing_part(diff, class) {
            Some(part) => (part.growing_bytes(), false),
            None => (of_verdict(diff, class).1, false),
        }),
        (Subject::Native | Subject::Unreachable, _) => {
            native_owner_of_verdict(diff).map(|owner| (&owner.bytes, false))
        }
        (Subject::Code, _) if diff.verdict.kind == DiffKind::CodeLeak => {
            largest_code(diff).map(|file| (&file.bytes, false))
        }
        _ => None,
    }
}

fn steps(values: &Trajectory, points: &[&DiffPoint], shown: fn(i64) -> String) -> String {
    let steps = values.at.windows(2).zip(points.windows(2)).map(|(values, points)| {
        let seconds = points[1].unix_ms.saturating_sub(points[0].unix_ms) as f64 / 1e3;
        format!("{} in {seconds:.0} s", shown(values[1].wrapping_sub(values[0]) as i64))
    });
    format!("between snapshots: {}", steps.collect::<Vec<_>>().join(", "))
}

/// The intervals of the rates of what a root keeps; `None` for too few snapshots.
fn interval(diff: &Diff, kept: &KeptChange) -> Option<String> {
    let (objects, bytes) = kept.objects_per_hour.zip(kept.bytes_per_hour)?;
    let (unit, parts) = unit_of_kept(diff);
    let number = |it: f64| (it / parts).round() as u64;
    Some(format!(
        "95 % interval of what stays: {} to {} objects/{unit}, about {} to {}/{unit}",
        Count(number(objects.low)),
        Count(number(objects.high)),
        Size(number(bytes.low)),
        Size(number(bytes.high)),
    ))
}

/// The unit of the rates of what a root keeps, and its number in an hour.
fn unit_of_kept(diff: &Diff) -> (&'static str, f64) {
    if diff.seconds / 3600.0 < MIN_HOURS { ("min", 60.0) } else { ("h", 1.0) }
}

/// The rates of growth, per minute if it was observed for some minutes only: that of objects, if their number grew, and that
/// of bytes.
pub(super) fn rates(diff: &Diff, class: Option<&ClassChange>) -> Vec<String> {
    let change = diff.verdict.bytes;
    if !diff.same_process || diff.seconds <= 0.0 {
        return vec![Size(change.max(0) as u64).to_string()];
    }
    let kept = kept(diff);
    // The mean that has an interval in the evidence.
    if let Some((objects, bytes)) = kept.and_then(|it| it.objects_per_hour.zip(it.bytes_per_hour)) {
        let (unit, parts) = unit_of_kept(diff);
        let number = |it: f64| (it.max(0.0) / parts).round() as u64;
        return vec![
            format!("{} objects/{unit}", Count(number(objects.mean))),
            format!("about {}/{unit}", Size(number(bytes.mean))),
        ];
    }
    // The last snapshot has no number of what is kept: there is no later one.
    let points = points(diff);
    let numbers = kept.map(|kept| &kept.objects);
    let numbers = numbers.or_else(|| kept_native(diff).map(|row| &row.bytes));
    let last = numbers.and_then(|numbers| points.get(numbers.at.len().checked_sub(1)?));
    let seconds = match (points.first(), last) {
        (Some(first), Some(last)) => last.unix_ms.saturating_sub(first.unix_ms) as f64 / 1e3,
        _ => diff.seconds,
    };
    let hours = seconds.max(1.0) / 3600.0;
    let (unit, units) = if hours < MIN_HOURS { ("min", hours * 60.0) } else { ("h", hours) };
    let per_unit = |number: i64| (number.max(0) as f64 / units).round() as u64;
    if let Some(kept) = kept {
        return vec![
            format!("{} objects/{unit}", Count(per_unit(kept.objects.change))),
            format!("about {}/{unit}", Size(per_unit(change))),
        ];
    }
    let objects = class.filter(|class| has_more_objects(class)).map(|class| {
        format!("{} objects/{unit}", Count(per_unit(of_verdict(diff, class).0.change)))
    });
    let bytes = match class {
        // Its stack, and what it refers to, have other owners.
        Some(class) if class.name == "Thread" => {
            let (in_use, _) = diagnosis::totals(diff);
            format!("memory in use by {}/{unit}", Size(per_unit(in_use)))
        }
        _ => format!("{}/{unit}", Size(per_unit(change))),
    };
    objects.into_iter().chain([bytes]).collect()
}

/// The snapshots that the verdict follows from.
fn points(diff: &Diff) -> Vec<&DiffPoint> {
    let needs_ages = kept(diff).is_some();
    diff.points.iter().filter(|point| !needs_ages || point.has_ages()).collect()
}
