//! What retains objects, in words.

use std::cmp::Reverse;

use diagnosis::{has_step, is_of_extensions, root};
use formats::{KeptBy, Owner};
use ledger::{Count, Size};

use crate::text::quoted;

/// A path to most objects of an owner, and that of another root which has them, too.
pub(super) fn with_other(path: &str, owner: Option<&Owner>) -> String {
    let kept = owner.and_then(|owner| owner.kept_by.first());
    let other = kept.filter(|kept| kept.path.as_deref() == Some(path));
    match other.map(|kept| (kept.other_path.as_deref(), kept.shared.as_deref())) {
        Some((Some(other), Some(shared))) => {
            let root = root(other);
            // Of a long path, steps in the middle are not shown.
            let left_out = if has_step(path, shared) { "" } else { ", which this path leaves out" };
            format!(
                "{path}, and also by {root} through the same {shared}{left_out} (empty it: letting go of one root is not enough)"
            )
        }
        Some((Some(other), None)) => {
            format!("{path}, and also by {other} (letting go of one root is not enough)")
        }
        _ => path.to_owned(),
    }
}

/// The part of `all` objects that a root retains, and the path from another one that has them, too.
pub(crate) fn retained_share(kept: &KeptBy, all: u64) -> String {
    let other = kept.other_path.as_ref();
    let also = other.map_or_else(String::new, |other| format!(", also retained by {other}"));
    format!("({} of {}){also}", Count(kept.objects), Count(all))
}

/// How to find the line that makes too many objects. `rbloat who` without `--kept` names the code that makes memory grow, which in a server is
/// code that makes garbage.
const NAMES_LINE: &str =
    "While they grow in number, `rbloat who --kept` looks for the line that allocates them.";
const COSTS_OF_KEPT: &str = "a change of the program. While rbloat watches, the process needs about 2 % of a processor more.";

/// The step against the objects of a class. `garbage` is the sentence on a collection that frees most of them, and `are_kept` is true if C extensions may retain them.
pub(super) fn release(
    process: &str,
    class: &str,
    size: &str,
    roots: Option<&str>,
    garbage: Option<&str>,
    are_kept: bool,
) -> (String, String, &'static str) {
    let objects = format!("objects of class {class} ({size})");
    match roots {
        Some(roots) if is_of_extensions(roots) && are_kept => (
            format!(
                "Find the objects of C extensions that hold the {objects}: only memory of extensions leads to most of them, and a GC found \
                 most of them alive. {NAMES_LINE}"
            ),
            format!("rbloat who {process} --kept"),
            COSTS_OF_KEPT,
        ),
        Some(roots) if is_of_extensions(roots) => (
            format!(
                "Run the GC: only memory of C extensions leads to most of the {objects}, so they may be garbage. If they stay, \
                 the extension keeps them alive."
            ),
            "GC.start".into(),
            "a pause of the program during the collection.",
        ),
        Some(roots) => (
            format!(
                "Release the {objects}, most of which are retained by {roots}.{} {NAMES_LINE}",
                if roots.starts_with(REGISTERED) {
                    " C code registered them, and has to unregister them: upgrade the extension, or fix it."
                } else if STREAMS.contains(&class) {
                    " Closing them frees their buffers, too."
                } else {
                    ""
                }
            ),
            format!("rbloat who {process} --kept"),
            COSTS_OF_KEPT,
        ),
        None if garbage.is_some() => (
            format!(
                "Run the GC: most memory of the {objects} is garbage.{}",
                garbage.unwrap_or_default()
            ),
            "GC.start".into(),
            "a pause of the program during the collection.",
        ),
        None => (
            format!("Find out what retains the {objects}. No other class holds as much."),
            format!("rbloat why {process} {}", quoted(class)),
            "the pause of another capture.",
        ),
    }
}

/// The root of objects that C code registered.
const REGISTERED: &str = "(rb_gc_register_address)";
/// Classes of streams, whose buffers `close` frees.
const STREAMS: [&str; 8] =
    ["Dir", "File", "IO", "TCPSocket", "UNIXSocket", "UDPSocket", "TCPServer", "UNIXServer"];
/// The greatest number of objects that are too large each, rather than too many.
const MAX_LARGE: u64 = 64;
/// The greatest number of roots that a step names together.
const MAX_ROOTS: usize = 3;

/// The roots that retain most of the `bytes` of an owner's objects together, and those that retain a quarter, if these are several; `None` if it
/// takes more than [`MAX_ROOTS`]. Also returns the path of the first one.
pub(super) fn by_several(owner: &Owner, bytes: u64) -> Option<(String, &str)> {
    let mut roots: Vec<&KeptBy> = owner.kept_by.iter().filter(|it| it.path.is_some()).collect();
    roots.sort_by_key(|kept| Reverse(kept.bytes));
    let mut sum: u64 = 0;
    let is_large = |index: usize| roots.get(index).is_some_and(|kept| kept.bytes >= bytes / 4);
    let enough = roots.iter().take(MAX_ROOTS).enumerate().position(|(index, kept)| {
        sum = sum.saturating_add(kept.bytes);
        sum > bytes / 2 && !(index + 1 < MAX_ROOTS && is_large(index + 1))
    });
    let enough = enough.filter(|&enough| enough > 0)?;
    let mut words = String::new();
    for (index, kept) in roots[..=enough].iter().enumerate() {
        let (objects, size) = (Count(kept.objects), Size(kept.bytes));
        let path = with_other(kept.path.as_deref().unwrap_or_default(), Some(owner));
        words += &match index {
            0 => format!("{objects} of {} ({size}) are retained by {path}", Count(owner.objects)),
            _ if index == enough => format!(", and {objects} ({size}) by {path}"),
            _ => format!(", {objects} ({size}) by {path}"),
        };
    }
    Some((words, roots.first()?.path.as_deref()?))
}

/// The step against the objects of a class that several roots retain.
pub(super) fn release_of_several(
    process: &str,
    class: &str,
    size: &str,
    roots: &str,
) -> (String, String, &'static str) {
    (
        format!("Release the objects of class {class} ({size}): {roots}."),
        format!("rbloat why {process} {}", quoted(class)),
        "a change of the program.",
    )
}

/// The step against a few objects with most memory of their class.
pub(super) fn shrink(
    process: &str,
    few: &KeptBy,
    roots: &str,
    owner: &Owner,
) -> (String, String, &'static str) {
    // So many that their number rather than their sizes may grow.
    if few.objects > MAX_LARGE {
        let step = format!(
            "Release objects of class {} that are retained by {roots}: {} of {} have most of the memory. {NAMES_LINE}",
            owner.owner,
            Count(few.objects),
            Count(owner.objects)
        );
        return (step, format!("rbloat who {process} --kept"), COSTS_OF_KEPT);
    }
    let (objects, its) = match few.objects {
        1 => (format!("the large {}", owner.owner), "Its size needs a limit"),
        _ => (
            format!("the largest of {} objects of class {}", Count(few.objects), owner.owner),
            "Their sizes need a limit",
        ),
    };
    (
        format!(
            "Release {objects} that {} retained by {roots}, or a part of {} contents. {its} if a later report has more. While \
             memory grows, `rbloat who` names the code that adds to it.",
            if few.objects == 1 { "is" } else { "are" },
            if few.objects == 1 { "its" } else { "their" },
        ),
        format!("rbloat who {process}"),
        "a change of the program. While it watches, `rbloat who` takes less than 1 % of a processor.",
    )
}

/// What programs need not know of texts that they searched: which object keeps them.
pub(super) fn of_matches(path: Option<&str>) -> &'static str {
    match path.is_some_and(|path| path.ends_with(" → MatchData → String")) {
        true => {
            " A MatchData, also `$~`, keeps the whole text that was searched: `match[1] + \"\"` copies what is needed, and `match?` makes no \
             MatchData."
        }
        false => "",
    }
}

/// The step against objects of C extensions: some of all of them.
pub(super) fn free_native(
    many: &str,
    objects: u64,
    roots: Option<&str>,
    garbage_objects: u64,
) -> String {
    match roots {
        _ if garbage_objects > 0 && objects == 1 => format!(
            "Free {many} as soon as it has been used: it is garbage that the GC has not collected yet. Unless its extension tells \
             the GC how much memory it holds, that may take long."
        ),
        _ if garbage_objects > 0 => format!(
            "Free {many} as soon as they have been used: {} of them are garbage that the GC has not collected yet. Unless their \
             extension tells the GC how much memory they hold, that may take long.",
            Count(garbage_objects)
        ),
        Some(roots) => {
            format!(
                "Release {many}, {} retained by {roots}, or free {} memory as soon as it has been used.",
                if objects == 1 { "which is" } else { "which are" },
                if objects == 1 { "its" } else { "their" },
            )
        }
        None => format!("Free the memory of {many} as soon as it has been used."),
    }
}

/// The step against objects of a class that need not have a method which frees their memory.
pub(super) fn release_native(
    many: &str,
    objects: u64,
    roots: Option<&str>,
    garbage_objects: u64,
) -> String {
    let (is, it) = if objects == 1 { ("is", "it") } else { ("are", "they") };
    let step = match roots {
        _ if garbage_objects > 0 => format!(
            "Let the GC collect {many}: {} garbage that it has not collected yet. Unless the extension tells the GC how much memory \
             {it} {}, that may take long.",
            match objects {
                1 => "it is".to_owned(),
                _ => format!("{} of them are", Count(garbage_objects)),
            },
            if objects == 1 { "holds" } else { "hold" },
        ),
        Some(roots) if is_of_extensions(roots) => {
            return format!(
                "Look for a setting or a method of the library that limits or empties {many}: {it} {is} retained by {roots}, which no \
                 other code can change."
            );
        }
        Some(roots) => {
            format!(
                "Release {many}, which {is} retained by {roots}: the GC frees memory of objects that nothing refers to."
            )
        }
        None => format!("Release {many}: the GC frees memory of objects that nothing refers to."),
    };
    step + " If the class has a method that frees the memory earlier, such as close, clear, free or destroy, call that."
}

/// Some objects of a class: "3 of 5 objects of class Item".
pub(super) fn many_of(class: &str, objects: u64, all: u64) -> String {
    match (objects, all) {
        (1, 1) => format!("the object of class {class}"),
        _ if objects < all => {
            format!("{} of {} objects of class {class}", Count(objects), Count(all))
        }
        _ => format!("{} objects of class {class}", Count(objects)),
    }
}
