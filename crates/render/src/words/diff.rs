use std::cmp::Reverse;

use diagnosis::{
    has_more_objects, is_defined_again, kept_besides, native_blocks_of_verdict,
    native_owner_of_verdict, open_native_blocks, root_of_most,
};
use formats::{
    ClassChange, CodeChange, Confidence, Diff, DiffKind, DiffPoint, Doubt, KeptChange, KeptNative,
    Subject, Trajectory,
};
use ledger::{Cause, Count, InterpreterKind, Size};

use super::interpreter::interpreter_kind;
use super::next::longer;
use super::{VerdictWords, confidence, unread};

/// Growth that was observed for a shorter time is given per minute; in hours.
const MIN_HOURS: f64 = 0.2;
/// The name of the kind of objects that bytecode is.
const ISEQS: &str = "(imemo_iseq)";
/// A root has the growth of a class if it has this part of the objects and bytes, in percent: a few may have other roots.
const NEARLY_ALL: u64 = 90;
/// The least difference of a cause, or of garbage, that is named, in bytes, and the most causes of a difference between two processes.
const MIN_CHANGE: u64 = 1 << 20;
const MAX_CAUSES: usize = 4;

/// Returns the verdict of a diff in words.
#[must_use]
pub fn diff_verdict(diff: &Diff) -> VerdictWords {
    let verdict = &diff.verdict;
    let class = verdict.class.as_ref();
    let class = class.and_then(|name| diff.classes.iter().find(|class| class.name == *name));
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
    if let Some(other) = kept_besides(diff) {
        evidence.push(format!(
            "{} keeps about {} more ({} objects)",
            other.root,
            Size(other.bytes.max(0) as u64),
            signed_count(other.objects.change)
        ));
    }
    let ageless = diff.points.iter().filter(|point| !point.has_ages());
    evidence.extend(ageless.map(|point| {
        format!(
            "{} does not show which objects are old, because a major collection was marking",
            point.source
        )
    }));
    evidence.extend(
        diff.unread
            .iter()
            .map(|point| format!("{} was not read: {}", point.source, unread(&point.reason))),
    );
    let (summary, check) = sentences(diff, class);
    let check = format!("{} To check: {check}{}", confidence(verdict.confidence), unseen(diff));
    VerdictWords { summary, evidence, check }
}

/// The root that the verdict is about, if it follows from what roots keep.
fn kept(diff: &Diff) -> Option<&KeptChange> {
    let root = diff.verdict.root.as_deref()?;
    diff.kept.iter().flatten().find(|it| it.root == root)
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

/// How garbage changed beside what a root keeps: both are memory in use. `None` if it is little.
fn garbage(diff: &Diff) -> Option<String> {
    let of_class =
        |class: &ClassChange| class.bytes.change.saturating_sub(class.growing_bytes().change);
    let change = diff.classes.iter().map(of_class).fold(0, i64::saturating_add);
    (change.unsigned_abs() >= MIN_CHANGE)
        .then(|| format!("garbage among the objects of these classes {}", signed(change)))
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

fn blocks_gone(row: &KeptNative) -> String {
    format!(
        "of {} blocks that were new in a snapshot before the last, {} are gone by now",
        Count(row.all_newcomers),
        Count(row.gone)
    )
}

/// The row that the verdict is about, if it follows from what owners keep.
fn kept_native(diff: &Diff) -> Option<&KeptNative> {
    diff.verdict.owner.as_ref().and_then(|_| native_blocks_of_verdict(diff))
}

/// The growth that so short a time does not show, if nothing grew: 400 KiB in a minute are 560 MiB in a day.
fn unseen(diff: &Diff) -> String {
    const HOUR: f64 = 3600.0;
    if !matches!(diff.verdict.kind, DiffKind::Stable | DiffKind::Shrank)
        || diff.seconds <= 0.0
        || diff.seconds > HOUR
    {
        return String::new();
    }
    let hourly = diagnosis::least_growth(diff) as f64 / (diff.seconds / HOUR);
    format!(
        " Growth below {}/h does not show within {:.0} s; `rbloat diff --every {}` would show it.",
        Size(hourly as u64),
        diff.seconds,
        longer(diff)
    )
}

const CHECK_OF_A_LEAK: &str = "a later snapshot under the same load should show the same growth. After a fix, `rbloat diff` \
                               should report that nothing grew.";

fn sentences(diff: &Diff, class: Option<&ClassChange>) -> (String, String) {
    let verdict = &diff.verdict;
    let subject = subject(diff, class);
    let size = Size(verdict.bytes.unsigned_abs());
    let rss = diff.rss_bytes.change;
    let rates = rates(diff, class);
    let rate = match &rates[..] {
        [objects, bytes] => format!("{objects} ({bytes})"),
        _ => rates.concat(),
    };
    let rates = rates.join(", ");
    let (in_use, _) = diagnosis::totals(diff);
    let blocks = native_blocks_of_verdict(diff);
    let (summary, check) = match (verdict.kind, verdict.doubt) {
        (_, Some(Doubt::Unread)) => (
            format!(
                "The memory was not read in {} of {} snapshots, so rbloat cannot tell what changed. RSS changed by {}.",
                Count(diff.unread.len() as u64),
                Count(diff.points.len() as u64),
                signed(rss)
            ),
            "the reasons name the pause that each snapshot needs.",
        ),
        (DiffKind::ManagedLeak, _) => {
            (format!("Managed leak: {subject} grows by {rate}."), CHECK_OF_A_LEAK)
        }
        (DiffKind::NativeLeak, _) => {
            (format!("Native leak: {subject} grows by {rate}."), CHECK_OF_A_LEAK)
        }
        (DiffKind::CodeLeak, _) => (code_leak(diff, &rates), CHECK_OF_A_LEAK),
        (DiffKind::Growth, Some(Doubt::CodeIsLoaded)) if table_that_grew(diff).is_some() => (
            format!("Growth: {subject} grew by {size} ({rates})."),
            "a snapshot after the same work on the same objects should have no larger tables. `rbloat report PID --code` lists them.",
        ),
        (DiffKind::Growth, Some(Doubt::CodeIsLoaded)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}) at a steady rate: the program still loads code, defines classes or \
                 methods again and again."
            ),
            "this should stop when all code is loaded. `rbloat report PID --code` lists bytecode and tables, and `rbloat who` \
             names the lines that make them grow.",
        ),
        (DiffKind::WarmUp, Some(Doubt::CodeIsLoaded)) => (
            format!("Warm-up: {subject} grew by {size}, by classes and bytecode that were loaded."),
            "this should stop when all code is loaded. If it does not, something defines classes or methods \
             again and again.",
        ),
        (DiffKind::WarmUp, _) => (
            format!(
                "Warm-up: {subject} grew by {size}, but more and more slowly. This is no leak."
            ),
            "the next snapshot should grow less than the first ones.",
        ),
        (DiffKind::Difference, _) => (
            difference(diff),
            "compare processes that run the same program, under the same load, for the same time. `rbloat compare` does \
             that, several times under each allocator.",
        ),
        (DiffKind::Growth, Some(Doubt::NothingInUse)) => (
            format!(
                "Too early to tell: RSS rose by {}, {subject} by {size}; memory in use {}.",
                Size(rss.unsigned_abs()),
                changed(in_use)
            ),
            "another snapshot, later, should have no higher RSS.",
        ),
        (DiffKind::Growth, Some(Doubt::OwnersUnknown)) if is_unknown(diff) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}). rbloat cannot tell whose it is, or if this is a leak."
            ),
            "`rbloat who` names the code that touches this memory for the first time.",
        ),
        (DiffKind::Growth, Some(Doubt::OwnersUnknown)) => (
            format!(
                "Too early to tell: {subject} grew by {size} ({rates}). rbloat cannot tell if Ruby's objects hold this \
                 memory."
            ),
            "if the objects of a class increase at the same rate, they hold it.",
        ),
        (DiffKind::Growth, Some(Doubt::Garbage)) => (
            format!(
                "Too early to tell: {subject} grew by {size}, but nothing retains most of it. It may be garbage that \
                 the GC has not collected."
            ),
            "a snapshot after GC.start should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::GcDisabled)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}), because the GC is disabled (GC.disable). Nothing retains most of \
                 it."
            ),
            "a snapshot after GC.enable and GC.start should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::Uneven)) => (
            format!("Growth: {subject} grew by {size}, at an uneven rate."),
            "snapshots that are further apart, under the same load, should show the same rate if it is a leak.",
        ),
        (DiffKind::Growth, Some(Doubt::Turnover)) if blocks.is_some() => (
            format!(
                "Growth: {subject} grew by {size} ({rates}), but blocks come and go: {}.",
                blocks.map(blocks_gone).unwrap_or_default()
            ),
            "a snapshot at rest, under no load, should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::Turnover)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}), but most objects that were new in the last but one \
                 snapshot are gone by now: they come and go."
            ),
            "a snapshot after GC.start, at rest, should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::Unproven)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}) at a steady rate. This may be a leak, or warm-up."
            ),
            "it is a leak if it grows by as much in snapshots that are further apart, under the same load.",
        ),
        (DiffKind::Growth, _) => (
            format!(
                "Too early to tell: {subject} grew by {size} ({rates}). This may be a leak, or warm-up."
            ),
            match diff.points.len() {
                ..=2 => "a third snapshot, later, shows a leak if it grew by as much again.",
                _ => "another snapshot, later, shows a leak if it grew by as much again.",
            },
        ),
        (DiffKind::Retention, _) => (
            format!(
                "Retention: RSS rose by {}, free memory that malloc or Ruby keeps by {size}{}.",
                Size(rss.unsigned_abs()),
                match in_use {
                    ..0 => format!("; memory in use fell by {}", Size(in_use.unsigned_abs())),
                    0.. => format!(", memory in use by {}", Size(in_use.unsigned_abs())),
                }
            ),
            "`rbloat trim` should return about as much as `rbloat report` predicts.",
        ),
        (DiffKind::Stable, _) => (
            format!(
                "Nothing grew: memory in use {}, and RSS {}.",
                changed(verdict.bytes),
                changed(rss)
            ),
            "a later snapshot should have no more memory in use.",
        ),
        (DiffKind::Shrank, _) => (
            format!("RSS fell by {}; memory in use {}.", Size(rss.unsigned_abs()), changed(in_use)),
            "a later snapshot should have no more memory in use than the first.",
        ),
    };
    (summary, check.into())
}

/// The RSS of the last process compared with that of the first, by cause. The figures add up.
fn difference(diff: &Diff) -> String {
    let rss = diff.rss_bytes.change;
    let last = if diff.points.len() > 2 { "last" } else { "second" };
    let allocators = [diff.points.first(), diff.points.last()]
        .map(|point| point.map_or("", |point| point.allocator.as_str()));
    let [of_first, of_last] = match allocators {
        [first, last] if first == last => [String::new(), String::new()],
        names => names.map(|name| format!(" ({})", if name.is_empty() { "unknown" } else { name })),
    };
    let size = Size(rss.unsigned_abs());
    let relation = match rss {
        ..0 => format!("{size} less than"),
        0 => "as much memory as".into(),
        1.. => format!("{size} more than"),
    };
    let mut causes: Vec<_> = diff.causes.iter().map(|row| (row.cause, row.bytes.change)).collect();
    causes.sort_by_key(|(_, change)| Reverse(change.unsigned_abs()));
    causes.retain(|(_, change)| change.unsigned_abs() >= MIN_CHANGE);
    causes.truncate(MAX_CAUSES);
    let others = rss - causes.iter().map(|(_, change)| change).sum::<i64>();
    let named = !causes.is_empty();
    let mut parts: Vec<_> = causes
        .iter()
        .map(|(cause, change)| format!("{} {}", cause.name(), signed(*change)))
        .collect();
    if named && others != 0 {
        parts.push(format!("other causes {}", signed(others)));
    }
    let colon = if named { ": " } else { "" };
    format!(
        "The {last} process{of_last} uses {relation} the first{of_first}{colon}{}.",
        parts.join(", ")
    )
}

/// The file whose code is defined again and again, and the root that retains most of it.
fn code_leak(diff: &Diff, rates: &str) -> String {
    let retainer = diff.classes.iter().find(|class| class.name == ISEQS);
    let root = retainer.and_then(|class| class.kept_by.as_ref()?.split(" → ").next());
    // Caches of the interpreter, threads and finalizers define no code.
    let root = root.filter(|root| !root.starts_with('('));
    let by = root.map_or_else(String::new, |root| format!(", retained by {root}"));
    let code = match largest_code(diff) {
        Some(file) => format!("the code of {}", file.path),
        None => "code".into(),
    };
    format!(
        "Code leak: {code} is defined again and again{by}. The interpreter's memory grows by {rates}. `rbloat who` names the line that \
         defines it."
    )
}

/// The file whose code was defined again, and grew most.
fn largest_code(diff: &Diff) -> Option<&CodeChange> {
    diff.code.iter().find(|file| is_defined_again(file))
}

/// The name of the memory that a verdict is about.
fn subject(diff: &Diff, class: Option<&ClassChange>) -> String {
    let cause = diff.verdict.cause.map_or("memory", Cause::name);
    if let Some(kept) = kept(diff) {
        let most = kept.class.as_ref();
        let most = most.map_or_else(String::new, |class| format!(", most of it {class},"));
        return format!("memory retained by {}{most}", kept.root);
    }
    match (diff.verdict.subject, class) {
        (Subject::Objects, Some(class)) => named(class),
        (Subject::Objects, None) => {
            let root = root_of_most(diff);
            let most =
                root.map_or_else(String::new, |it| format!(", most of it retained by {it},"));
            format!("memory of objects of many classes{most}")
        }
        (Subject::Unreachable, _) => "native memory that nothing points to".into(),
        (Subject::Native, _) => match native_owner_of_verdict(diff) {
            _ if diff.verdict.owner.is_some() => {
                let owner = diff.verdict.owner.as_deref().unwrap_or_default();
                format!("native memory that {owner} keeps ({cause})")
            }
            Some(owner) => format!("native memory of {} ({cause})", owner.owner),
            None if is_unknown(diff) => {
                format!("anonymous memory that rbloat cannot account for ({cause})")
            }
            None => format!("native memory ({cause})"),
        },
        (Subject::Code, _) => match table_that_grew(diff) {
            Some(table) => {
                format!("the interpreter's memory, most of it {},", interpreter_kind(table))
            }
            None => "the interpreter's memory".into(),
        },
        (Subject::Free, _) => "free memory".into(),
        (Subject::InUse, _) => "memory in use".into(),
        (Subject::Rss, _) => "RSS".into(),
        (Subject::Cause, _) => cause.into(),
    }
}

fn is_unknown(diff: &Diff) -> bool {
    diff.verdict.cause == Some(Cause::Unknown)
}

/// The objects of a class that a verdict counts, and their memory: garbage only if the verdict is on it.
fn of_verdict<'a>(diff: &Diff, class: &'a ClassChange) -> (&'a Trajectory, &'a Trajectory) {
    match diff.verdict.doubt {
        Some(Doubt::Garbage | Doubt::GcDisabled) => (&class.objects, &class.bytes),
        _ => (class.growing_objects(), class.growing_bytes()),
    }
}

/// A class, and the root that retains more of its objects than before. What a sentence counts are the objects of all roots.
fn named(class: &ClassChange) -> String {
    let path = match &class.kept_by {
        // A running thread retains itself.
        Some(path) if class.name != "Thread" => path,
        _ => return class.name.clone(),
    };
    let (name, root) = (&class.name, diagnosis::root(path));
    // All objects may be garbage in part.
    if class.reachable_bytes.is_none() || class.kept_by_bytes == 0 {
        return format!("{name} retained by {root}");
    }
    let percent = |part: u64, change: i64| part.saturating_mul(100) / change.max(1).cast_unsigned();
    let objects = has_more_objects(class)
        .then(|| percent(class.kept_by_objects, class.growing_objects().change));
    let bytes = percent(class.kept_by_bytes, class.growing_bytes().change);
    match objects.map_or(bytes, |objects| objects.min(bytes)) {
        NEARLY_ALL.. => format!("{name} retained by {root}"),
        51.. => format!("{name}, most of it retained by {root},"),
        _ => format!("{name} retained by {root} and other roots"),
    }
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
        (Subject::Objects, class) => class.map(|class| (of_verdict(diff, class).1, false)),
        (Subject::Native | Subject::Unreachable, _) => {
            native_owner_of_verdict(diff).map(|owner| (&owner.bytes, false))
        }
        (Subject::Code, _) if diff.verdict.kind == DiffKind::CodeLeak => {
            largest_code(diff).map(|file| (&file.bytes, false))
        }
        _ => None,
    }
}

/// The table of the interpreter with most of the growth that the verdict is about; `None` if code or nothing has it.
fn table_that_grew(diff: &Diff) -> Option<InterpreterKind> {
    use InterpreterKind::{Finalizers, GenericVariables, ObjectIds, Symbols};
    let largest = diff.interpreter.iter().max_by_key(|it| it.bytes.change)?;
    let is_table = [ObjectIds, GenericVariables, Finalizers, Symbols].contains(&largest.kind);
    (is_table && 2 * largest.bytes.change > diff.verdict.bytes).then_some(largest.kind)
}

fn sums(diff: &Diff) -> String {
    let (in_use, free) = diagnosis::totals(diff);
    let rss = signed(diff.rss_bytes.change);
    format!("memory in use {}, free but kept {}, RSS {rss}", signed(in_use), signed(free))
}

fn objects(diff: &Diff, class: &ClassChange) -> String {
    let text = |objects: &Trajectory| {
        let change = signed_count(objects.change);
        format!("{}: {} objects ({change})", class.name, Count(objects.last()))
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

/// The snapshots that the verdict follows from.
fn points(diff: &Diff) -> Vec<&DiffPoint> {
    let needs_ages = kept(diff).is_some();
    diff.points.iter().filter(|point| !needs_ages || point.has_ages()).collect()
}

/// The rates of growth, per minute if it was observed for some minutes only: that of objects, if their number grew, and that
/// of bytes.
fn rates(diff: &Diff, class: Option<&ClassChange>) -> Vec<String> {
    let change = diff.verdict.bytes;
    if !diff.same_process || diff.seconds <= 0.0 {
        return vec![Size(change.max(0) as u64).to_string()];
    }
    let kept = kept(diff);
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

fn steps(values: &Trajectory, points: &[&DiffPoint], shown: fn(i64) -> String) -> String {
    let steps = values.at.windows(2).zip(points.windows(2)).map(|(values, points)| {
        let seconds = points[1].unix_ms.saturating_sub(points[0].unix_ms) as f64 / 1e3;
        format!("{} in {seconds:.0} s", shown(values[1].wrapping_sub(values[0]) as i64))
    });
    format!("between snapshots: {}", steps.collect::<Vec<_>>().join(", "))
}

/// A change of a count with its sign.
pub(crate) fn signed_count(change: i64) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", Count(change.unsigned_abs()))
}

/// "changed by +3.0 MiB".
fn changed(bytes: i64) -> String {
    match bytes {
        0 => "did not change".into(),
        _ => format!("changed by {}", signed(bytes)),
    }
}

/// A change of bytes with its sign.
pub(crate) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", Size(bytes.unsigned_abs()))
}
