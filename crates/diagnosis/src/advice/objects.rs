//! Steps against objects, and against the room that they do not use.

use std::cmp::Reverse;

use formats::{Action, Advice};
use ledger::{
    Cause, CopiesAccount, InterpreterKind, Ledger, OwnerAccount, OwnerKind, Retainer, SpareAccount,
    SpareKind,
};

use super::worth::{is_main, is_worth, is_worth_a_change, step};
use crate::path::{ARROW, WEAK_MAPS, class_of_hidden, root_of};
use crate::verdict::{LARGE_ROOT_BYTES, is_of_extensions};

/// The variables that set how many bytes the program allocates between two collections, with the largest number that Ruby lets
/// them grow to by default (`GC_MALLOC_LIMIT_MAX` and `GC_OLDMALLOC_LIMIT_MAX` of gc.c; the same from 2.7 to 4.0).
const MALLOC_LIMITS: [(&str, u64); 4] = [
    ("RUBY_GC_MALLOC_LIMIT", 32 << 20),
    ("RUBY_GC_MALLOC_LIMIT_MAX", 32 << 20),
    ("RUBY_GC_OLDMALLOC_LIMIT", 128 << 20),
    ("RUBY_GC_OLDMALLOC_LIMIT_MAX", 128 << 20),
];
/// A class needs this part of the memory of all objects for a step: one in ten.
const MIN_PART: u64 = 10;
/// The least part of the freed memory that must leave RSS for a saving to be named, in percent.
const RETURNED_PERCENT: u64 = 90;
/// The step of a path to what the interpreter made of a backtrace.
const BACKTRACE: &str = " → Thread::Backtrace → ";
/// The root of the counters of code coverage.
const COVERAGE: &str = "(coverage)";

/// The garbage among the objects of the classes that hold most.
pub(super) fn garbage_bytes(ledger: &Ledger) -> u64 {
    ledger.owners.iter().map(garbage_of).fold(0, u64::saturating_add)
}

/// The garbage among the objects of a class. A part of it may not be resident.
fn garbage_of(class: &OwnerAccount) -> u64 {
    let garbage = class.retainers.iter().filter(|it| it.path.is_none());
    let bytes = garbage.map(|it| it.bytes).fold(0, u64::saturating_add);
    bytes.min(class.bytes_with_singleton_classes())
}

pub(super) fn release(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.sum(&[Cause::RubyLiveSlots, Cause::RubyMalloc]);
    let class = ledger.managed().filter(is_strong).max_by_key(|class| {
        // The first one of several.
        (class.bytes_with_singleton_classes(), Reverse(&class.name))
    })?;
    let most = retaining_most_bytes(class);
    let is_large = most.is_some_and(|it| it.path.is_some() && it.bytes >= LARGE_ROOT_BYTES);
    // Singleton classes are memory of the interpreter.
    let own = class.bytes_with_singleton_classes();
    // Most slots may be those of classes and methods.
    let is_part = is_main(ledger, bytes.max(own)) && own >= bytes / MIN_PART;
    release_of(ledger, class, most).filter(|_| is_part || is_large)
}

/// Returns false for maps of which a program cannot release the entries: they go with their keys.
fn is_strong(class: &&OwnerAccount) -> bool {
    !WEAK_MAPS.contains(&class.name.as_str())
}

/// The step against the objects of a class, of which `most` retains most.
fn release_of(ledger: &Ledger, class: &OwnerAccount, most: Option<&Retainer>) -> Option<Advice> {
    if let Some(step) = table_of(ledger, class, most) {
        return Some(step);
    }
    // No program can release hidden objects to which only memory of C extensions leads.
    let path = most.and_then(|it| it.path.as_deref());
    if class.kind == OwnerKind::Internal && path.is_some_and(is_of_extensions) {
        return None;
    }
    // The step against their room, or against equal strings, is better.
    let half = class.bytes_with_singleton_classes() / 2;
    let has_spare = ledger.spare.iter().any(|it| it.saved_bytes() > half);
    let is_shared = class.name == "String"
        && share_strings(ledger).is_some_and(
            |it| matches!(it.action, Action::ShareStrings { bytes, .. } if bytes > half),
        );
    (!has_spare && !is_shared).then(|| {
        let action = release_objects(class, most);
        step(with_parts_of_classes(ledger, &action).unwrap_or(action))
    })
}

/// The step against the class with most live objects, if most of the memory of the largest class is garbage, or entries of a table of the
/// interpreter, which go with these objects.
pub(super) fn release_besides(ledger: &Ledger) -> Option<Advice> {
    let is_beside = release(ledger).is_some_and(|it| match it.action {
        Action::ReleaseObjects { are_garbage, .. } => are_garbage,
        Action::LimitTable { .. } => true,
        _ => false,
    });
    let live = |class: &OwnerAccount| {
        class.bytes_with_singleton_classes().saturating_sub(garbage_of(class))
    };
    let retained = ledger.managed().filter(is_strong).filter_map(|class| {
        let most = retaining_most_bytes(class).filter(|it| it.path.is_some())?;
        table_of(ledger, class, Some(most)).is_none().then_some((class, most))
    });
    let (class, most) = retained.max_by_key(|(class, _)| (live(class), Reverse(&class.name)))?;
    let is_large = is_beside && is_worth(ledger, live(class));
    release_of(ledger, class, Some(most)).filter(|_| is_large)
}

/// The step against a table of the interpreter if most objects of a class are its entries, which programs cannot release.
fn table_of(ledger: &Ledger, class: &OwnerAccount, most: Option<&Retainer>) -> Option<Advice> {
    let most = most?;
    let path = most.path.as_deref()?;
    // The entries are hidden arrays, or plain ones in Ruby 2.7.
    let is_entry = || path.split(ARROW).count() == 2 && path.ends_with(class.name.as_str());
    let table = match root_of(path) {
        COVERAGE => return Some(step(Action::StopCoverage { bytes: coverage_bytes(ledger) })),
        "(symbols)" => InterpreterKind::Symbols,
        "(finalizers)" if is_entry() => InterpreterKind::Finalizers,
        _ => return None,
    };
    let own = ledger.interpreter.as_ref().map_or(0, |it| it.resident_bytes(table));
    let bytes = most.bytes.min(class.weight_bytes()) + own;
    Some(step(Action::LimitTable { table, bytes, is_room: false }))
}

/// The bytes of the counters of code coverage.
fn coverage_bytes(ledger: &Ledger) -> u64 {
    let bytes = |class: &OwnerAccount| {
        let counters =
            class.retainers.iter().filter(|it| it.path.as_deref().map(root_of) == Some(COVERAGE));
        let bytes = counters.fold(0, |sum: u64, it| sum.saturating_add(it.bytes));
        bytes.min(class.weight_bytes())
    };
    ledger.managed().map(bytes).fold(0, u64::saturating_add)
}

/// The root that retains most of the bytes of a class, or of its objects. Of two like it, one may have more bytes by chance.
pub(super) fn retaining_most_bytes(class: &OwnerAccount) -> Option<&Retainer> {
    let most = class.weight_bytes() / 100 * 51;
    let by_bytes = class.retainers.first().filter(|it| it.bytes > most);
    by_bytes.or_else(|| retaining_most(class))
}

/// Settings that let garbage stay, if most of the memory of the largest class is garbage. The GC counts no slots for them.
pub(super) fn unset_malloc_limits(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.sum(&[Cause::RubyLiveSlots, Cause::RubyMalloc]);
    let is_garbage = |class: &OwnerAccount| {
        let is_malloced = class.weight_bytes() > 2 * class.slot_bytes;
        is_malloced && retaining_most_bytes(class).is_some_and(|retainer| retainer.path.is_none())
    };
    let largest = ledger.managed().next()?;
    let settings = MALLOC_LIMITS.iter().filter_map(|&(name, most)| {
        let value = ledger.process.variable(name)?;
        raises(value, most).then(|| name.to_owned())
    });
    let variables: Vec<String> = settings.collect();
    (!variables.is_empty() && is_main(ledger, bytes) && is_garbage(largest))
        .then(|| step(Action::UnsetMallocLimits { variables }))
}

/// Returns true if the value of a variable is a number above `most`. Ruby reads a number and a unit (`get_envparam_size` of gc.c).
fn raises(value: &str, most: u64) -> bool {
    let end = value.find(|it: char| !it.is_ascii_digit()).unwrap_or(value.len());
    let unit = match &value[end..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return false,
    };
    value[..end].parse::<u64>().is_ok_and(|number| number.saturating_mul(unit) > most)
}

/// The root that retains more than half of an owner's objects: one that retains the smaller part does not explain them.
pub(super) fn retaining_most(owner: &OwnerAccount) -> Option<&Retainer> {
    owner.retainers.iter().find(|retainer| retainer.objects > owner.objects / 2)
}

pub(super) fn release_objects(class: &OwnerAccount, most: Option<&Retainer>) -> Action {
    let path = most.and_then(|retainer| retainer.path.clone());
    let hidden = path.as_deref().filter(|_| class.kind == OwnerKind::Internal);
    // The class of the objects that use the hidden ones.
    let user = hidden.and_then(class_of_hidden);
    Action::ReleaseObjects {
        class: user.unwrap_or(&class.name).to_owned(),
        bytes: match most.filter(|_| user.is_some()) {
            Some(most) => most.bytes.min(class.weight_bytes()),
            None => class.bytes_with_singleton_classes(),
        },
        path,
        are_garbage: most.is_some_and(|retainer| retainer.path.is_none()),
        garbage_bytes: garbage_of(class),
    }
}

/// The step against hidden objects of classes, with all that belongs to these classes: what they have besides, such as methods, is the
/// interpreter's memory.
fn with_parts_of_classes(ledger: &Ledger, step: &Action) -> Option<Action> {
    let Action::ReleaseObjects { class, bytes, path: Some(path), are_garbage, garbage_bytes } =
        step
    else {
        return None;
    };
    let classes = ledger.owners.iter().find(|it| it.cause == Cause::RubyVm && it.name == *class)?;
    let most = retaining_most(classes)?;
    let its = most.path.clone().filter(|its| root_of(its) == root_of(path))?;
    let parts = classes.weight_bytes().saturating_add(code_of_root(ledger, classes, most));
    Some(Action::ReleaseObjects {
        class: class.clone(),
        bytes: bytes.saturating_add(parts),
        path: Some(its),
        are_garbage: *are_garbage,
        garbage_bytes: *garbage_bytes,
    })
}

/// The bytes of the interpreter's other objects that the root with most of the classes retains through classes.
pub(super) fn code_of_root(ledger: &Ledger, class: &OwnerAccount, most: &Retainer) -> u64 {
    let Some(root) = most.path.as_deref().map(root_of) else { return 0 };
    let others = ledger.owners.iter().filter(|owner| owner.cause == Cause::RubyVm);
    let retainers = others.filter(|it| it.name != class.name).flat_map(|it| &it.retainers);
    let is_through_class = |path: &str| {
        let mut steps = path.split(ARROW);
        steps.next() == Some(root) && steps.any(|step| step.starts_with("Class"))
    };
    let of_root = retainers.filter(|it| it.path.as_deref().is_some_and(is_through_class));
    of_root.fold(0, |sum: u64, it| sum.saturating_add(it.bytes))
}

pub(super) fn use_less_room(ledger: &Ledger, spare: &SpareAccount) -> Option<Advice> {
    let (bytes, path) = (spare.saved_bytes(), spare.path.clone());
    let action = match spare.kind {
        SpareKind::Hashes | SpareKind::Sets => Action::Rehash {
            class: if spare.kind == SpareKind::Sets { "Set" } else { "Hash" }.into(),
            hashes: spare.objects,
            entries: spare.used,
            capacity: spare.room,
            bytes,
            path,
        },
        SpareKind::Arrays | SpareKind::SlicedArrays | SpareKind::Buffers | SpareKind::Queues => {
            Action::CopyBuffers {
                class: match spare.kind {
                    SpareKind::Buffers => "String",
                    SpareKind::Queues => "Queue",
                    _ => "Array",
                }
                .into(),
                objects: spare.users,
                used_bytes: spare.used,
                room_bytes: spare.room,
                elements_bytes: spare.elements_bytes,
                bytes,
                path,
            }
        }
        SpareKind::Strings => Action::CopySlices {
            slices: spare.users,
            used_bytes: spare.used,
            strings: spare.objects,
            bytes,
            path,
        },
    };
    // A freed mapping leaves RSS at once. Other memory stays in malloc's lists, and whether its pages return depends on the blocks
    // beside it.
    let returns = spare.mapped_bytes >= bytes / 100 * RETURNED_PERCENT;
    let saves_bytes = returns.then_some(spare.mapped_bytes);
    is_worth_a_change(ledger, bytes).then_some(Advice { action, saves_bytes })
}

/// The step against strings with the same text, if contents were compared and one root retains many of them.
pub(super) fn share_strings(ledger: &Ledger) -> Option<Advice> {
    let contents = ledger.waste.contents.as_ref()?;
    let CopiesAccount { path, objects: strings, contents: texts, bytes, room_bytes, .. } =
        contents.copies.iter().find(is_shareable)?.clone();
    // The step against the room also suits buffers, whose texts the program changes.
    let has_step =
        |it: &SpareAccount| it.kind == SpareKind::Buffers && use_less_room(ledger, it).is_some();
    let is_room = room_bytes > bytes / 2 && ledger.spare.iter().any(has_step);
    let bytes = if is_room { bytes.saturating_sub(room_bytes) } else { bytes };
    let action = Action::ShareStrings { strings, texts, bytes, path };
    is_worth_a_change(ledger, bytes).then(|| step(action))
}

/// Returns true for strings that a program can replace by shared ones: not those of a backtrace, which the interpreter makes.
fn is_shareable(copies: &&CopiesAccount) -> bool {
    copies.class == "String" && !is_of_extensions(&copies.path) && !copies.path.contains(BACKTRACE)
}
