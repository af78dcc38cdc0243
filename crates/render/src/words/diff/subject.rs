//! What the verdict of a diff is about, and its name.

use diagnosis::{
    has_more_objects, is_defined_again, native_blocks_of_verdict, native_owner_of_verdict,
    root_of_most,
};
use formats::{
    ClassChange, CodeChange, Diff, DiffPoint, Doubt, KeptChange, KeptNative, Subject, Trajectory,
};
use ledger::{Cause, InterpreterKind};

use crate::words::interpreter::interpreter_kind;

/// A root has the growth of a class if it has this part of the objects and bytes, in percent: a few may have other roots.
const NEARLY_ALL: u64 = 90;

/// The name of the memory that a verdict is about.
pub(super) fn subject(diff: &Diff, class: Option<&ClassChange>) -> String {
    let cause = diff.verdict.cause.map_or("memory", Cause::name);
    if let Some(kept) = kept(diff) {
        let most = kept.class.as_ref();
        let most = most.map_or_else(String::new, |class| format!(", most of it {class},"));
        return format!("memory retained by {}{most}", kept.root);
    }
    match (diff.verdict.subject, class) {
        (Subject::Objects, Some(class)) => named(class, diff),
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
        (Subject::Cause, _) => match diff.verdict.cause {
            Some(Cause::FileShmem) => format!("shared memory ({cause})"),
            Some(Cause::FilePrivate) => format!("changed pages of files ({cause})"),
            _ => cause.into(),
        },
    }
}

/// A class, and the root that retains more of its objects than before. What a sentence counts are the objects of all roots.
fn named(class: &ClassChange, diff: &Diff) -> String {
    let path = match &class.kept_by {
        // A running thread retains itself.
        Some(path) if class.name != "Thread" || !are_running(class, diff) => path,
        _ => return class.name.clone(),
    };
    let (name, root) = (&class.name, diagnosis::root(path));
    // All objects may be garbage in part.
    if class.reachable_bytes.is_none() || class.kept_by_bytes == 0 {
        return format!("{name} retained by {root}");
    }
    let percent = |part: u64, change: i64| part.saturating_mul(100) / change.max(1).cast_unsigned();
    let bytes = percent(class.kept_by_bytes, class.growing_bytes().change);
    let part = match &class.kept_by_objects {
        _ if !has_more_objects(class) => bytes,
        Some(objects) => {
            let gain = objects.change.max(0).cast_unsigned();
            bytes.min(percent(gain, class.growing_objects().change))
        }
        // Other roots had some of the first objects.
        None => bytes.min(NEARLY_ALL - 1),
    };
    match part {
        NEARLY_ALL.. => format!("{name} retained by {root}"),
        51.. => format!("{name}, most of it retained by {root},"),
        _ => format!("{name} retained by {root} and other roots"),
    }
}

/// Returns true if at least half of the new threads run.
fn are_running(class: &ClassChange, diff: &Diff) -> bool {
    let threads = |point: Option<&DiffPoint>| point.map_or(0, |point| point.threads);
    let new = threads(diff.points.last()).saturating_sub(threads(diff.points.first()));
    2 * new.cast_signed() >= class.growing_objects().change
}

/// The root that the verdict is about, if it follows from what roots keep.
pub(super) fn kept(diff: &Diff) -> Option<&KeptChange> {
    let root = diff.verdict.root.as_deref()?;
    diff.kept.iter().flatten().find(|it| it.root == root)
}

/// The row that the verdict is about, if it follows from what owners keep.
pub(super) fn kept_native(diff: &Diff) -> Option<&KeptNative> {
    diff.verdict.owner.as_ref().and_then(|_| native_blocks_of_verdict(diff))
}

/// The file whose code was defined again, and grew most.
pub(super) fn largest_code(diff: &Diff) -> Option<&CodeChange> {
    diff.code.iter().find(|file| is_defined_again(file))
}

/// The table of the interpreter with most of the growth that the verdict is about; `None` if code or nothing has it.
pub(super) fn table_that_grew(diff: &Diff) -> Option<InterpreterKind> {
    use InterpreterKind::{Finalizers, GcProfile, GenericVariables, ObjectIds, Other, Symbols};
    let largest = diff.interpreter.iter().max_by_key(|it| it.bytes.change)?;
    let is_table = [ObjectIds, GenericVariables, Finalizers, GcProfile, Symbols, Other]
        .contains(&largest.kind);
    (is_table && 2 * largest.bytes.change > diff.verdict.bytes).then_some(largest.kind)
}

pub(super) fn is_unknown(diff: &Diff) -> bool {
    diff.verdict.cause == Some(Cause::Unknown)
}

/// The objects of a class that a verdict counts, and their memory: garbage only if the verdict is on it.
pub(super) fn of_verdict<'a>(
    diff: &Diff,
    class: &'a ClassChange,
) -> (&'a Trajectory, &'a Trajectory) {
    match diff.verdict.doubt {
        Some(Doubt::Garbage | Doubt::GcDisabled) => (&class.objects, &class.bytes),
        _ => (class.growing_objects(), class.growing_bytes()),
    }
}
