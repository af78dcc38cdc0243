//! The verdict on the memory of Ruby objects, in words.

use diagnosis::{Majority, managed, retaining_few, was_garbage_alive};
use formats::{Action, Memsize, Owner, Report};
use ledger::{Cause, Count, Size};

use super::figures::{IN_USE, MAX_EVIDENCE, behind_extensions, bytes, room};
use crate::words::{counted, gc};

/// Objects are not called live if more than one in this many bytes of them is garbage.
const MUCH_GARBAGE: u64 = 4;

/// The live slots, and the largest classes.
pub(super) fn class_evidence(report: &Report) -> Vec<String> {
    let Some(ruby) = &report.ruby else { return vec![] };
    let mut evidence = vec![format!(
        "{} ({}), which refer to {} of malloc'ed memory",
        counted(ruby.slots_live, "live slot"),
        Size(ruby.slot_bytes_live),
        Size(bytes(report, Cause::RubyMalloc))
    )];
    let describe = |name: &str, objects, slots, malloc| {
        format!(
            "{} {name}: {} of slots, {} of malloc'ed memory",
            Count(objects),
            Size(slots),
            Size(malloc)
        )
    };
    if report.owners.is_some() {
        evidence.extend(managed(report).take(MAX_EVIDENCE).map(|owner| {
            describe(&owner.owner, owner.objects, owner.slot_bytes, owner.held_bytes())
        }));
    } else {
        evidence.extend(ruby.classes.iter().take(MAX_EVIDENCE).map(|class| {
            describe(&class.name, class.objects, class.slot_bytes, class.malloc_bytes)
        }));
    }
    evidence
}

/// The sentence for memory that Ruby objects hold.
pub(super) fn of_objects(report: &Report, size: Size) -> String {
    let majority = Majority::of(report);
    if majority.is_garbage {
        return format!(
            "{size} are held by Ruby objects, most of which are garbage {}.{}",
            uncollected(report),
            gc::malloc_limits(report)
        );
    }
    let is_much = |garbage: &u64| *garbage > report.verdict.bytes / MUCH_GARBAGE;
    let much_garbage = Some(majority.garbage_bytes).filter(is_much);
    // Few objects that have most of their class's memory may have less than half of all.
    let few_with_most = |owner: &Owner| {
        let few = retaining_few(owner)?;
        (few.bytes.min(owner.bytes()) > report.verdict.bytes / 2).then_some(few.objects)
    };
    let of_owner = |owner: &Owner| match few_with_most(owner) {
        Some(few) if few < owner.objects => {
            format!("{} of {} {}", Count(few), Count(owner.objects), owner.owner)
        }
        _ => format!("{} {}", Count(owner.objects), owner.owner),
    };
    let by = match (majority.owner, majority.class) {
        (Some(owner), _) => Some(of_owner(owner)),
        (None, class) => class.map(|class| format!("objects of {class}")),
    };
    let class = by.map_or_else(String::new, |by| format!(", most of them by {by}"));
    let root = majority.root.map_or_else(String::new, |root| {
        format!(" The shortest paths to most of this memory begin with {root}.")
    });
    let garbage = much_garbage.map_or_else(String::new, |bytes| {
        format!(" {} of this memory are garbage {}.", Size(bytes), uncollected(report))
    });
    let is_live = much_garbage.is_none() && !majority.is_behind_extensions;
    let spare = report.advice.iter().find_map(|step| spare(&step.action, report));
    let use_of_it = match spare.or_else(|| room(report, report.verdict.bytes, |_| true)) {
        Some(use_of_it) => use_of_it + &garbage,
        None if majority.is_behind_extensions => garbage + behind_extensions(report),
        None if is_live => IN_USE.to_owned(),
        None => garbage + &IN_USE.replace("this memory", "the rest"),
    };
    let singletons = singleton_classes(report);
    let live = if is_live { "live " } else { "" };
    format!("{size} are held by {live}Ruby objects{class}.{root}{singletons}{use_of_it}")
}

/// The reason why garbage was not collected, as the end of a clause.
pub(super) fn uncollected(report: &Report) -> &'static str {
    match report.ruby.as_ref().map(|ruby| &ruby.gc) {
        Some(gc) if gc.disabled == Some(true) => {
            "that the GC does not collect, because it is disabled (GC.disable)"
        }
        Some(gc) if gc.allow_full_mark == Some(false) => {
            "that the GC has not collected yet, and it never collects old objects (GC.config(rgengc_allow_full_mark: false))"
        }
        _ if was_garbage_alive(report) => {
            "that the GC has not collected yet. It found most of them alive: they died later, or an old word on a stack leads to them"
        }
        _ => "that the GC has not collected yet",
    }
}

/// The sentence on memory of which objects use a small part, or on counters, if that is most of the verdict's.
fn spare(action: &Action, report: &Report) -> Option<String> {
    let is_most = |bytes: u64| bytes > report.verdict.bytes / 2;
    match action {
        Action::Rehash { class, entries, capacity, bytes, .. } if is_most(*bytes) => Some(format!(
            " {} of it are room for {} entries in {} that have {}.",
            Size(*bytes),
            Count(*capacity),
            if class == "Set" { "Sets" } else { "Hashes" },
            Count(*entries)
        )),
        Action::CopySlices { slices, used_bytes, bytes, .. } if is_most(*bytes) => Some(format!(
            " {} of it are there for {} in {} short slices of long Strings.",
            Size(*bytes),
            Size(*used_bytes),
            Count(*slices)
        )),
        Action::StopCoverage { bytes } if is_most(*bytes) => Some(format!(
            " {} of it are counters of code coverage, which the program has started (Coverage.start).",
            Size(*bytes)
        )),
        Action::CopyBuffers { used_bytes, room_bytes, elements_bytes, bytes, .. }
            if *elements_bytes > 0 && is_most(*bytes) =>
        {
            Some(format!(
                " {} of it are kept by slices of Arrays: they use {} of {} of elements, but keep all of them.",
                // Causes do not include the headers of chunks.
                Size((*bytes).min(report.verdict.bytes)),
                Size(*used_bytes),
                Size(*room_bytes)
            ))
        }
        Action::CopyBuffers { class, used_bytes, room_bytes, bytes, .. } if is_most(*bytes) => {
            Some(format!(
                " {} of it are in {class}s that have {} in room for {}.",
                Size(*bytes),
                Size(*used_bytes),
                Size(*room_bytes)
            ))
        }
        _ => None,
    }
}

/// A sentence on objects whose singleton classes take more than half as much memory as the verdict is about; empty without any.
pub(super) fn singleton_classes(report: &Report) -> String {
    let owners = report.owners.iter().flatten().filter(|owner| owner.kind == "class");
    let most = owners.max_by_key(|owner| owner.singleton_bytes);
    match most.filter(|owner| owner.singleton_bytes > report.verdict.bytes / 2) {
        Some(owner) if owner.singleton_objects == 1 => format!(
            " The singleton class of 1 {} takes {} with its methods, its blocks and what these captured, \
             part of it in ruby.vm.",
            owner.owner,
            Size(owner.singleton_bytes)
        ),
        Some(owner) => format!(
            " {} {} have singleton classes, which take {} with their methods, their blocks and what these captured, \
             part of it in ruby.vm.",
            Count(owner.singleton_objects),
            owner.owner,
            Size(owner.singleton_bytes)
        ),
        None => String::new(),
    }
}

/// The sentence for memory that objects of C extensions hold.
pub(super) fn held(report: &Report, size: Size) -> String {
    let mut owners = report.owners.iter().flatten();
    let held_by = format!("{size} of native memory are held by Ruby objects of C extensions");
    let Some(first) = owners.find(|owner| owner.cause == Some(Cause::NativeHeld)) else {
        return format!("{held_by}.");
    };
    let share =
        if first.held_bytes() > report.verdict.bytes / 2 { "most" } else { "the largest part" };
    let counted = match first.memsize {
        Some(Memsize::None) => "The type reports no size, so Ruby's GC may count only their slots",
        _ => "Ruby's GC may see less of this memory than there is",
    };
    format!("{held_by}, {share} of them by {} {}. {counted}.", Count(first.objects), first.owner)
}
