//! The steps against room that objects do not use, and against equal strings.

use formats::Action;
use ledger::{Count, Size};

/// The class of `Action::CopyBuffers` for queues.
const QUEUE: &str = "Queue";

/// The step, its command, and its costs; nothing for other steps.
pub(super) fn use_less_room(action: &Action) -> (String, String, &'static str) {
    match action {
        Action::Rehash { class, hashes, entries, capacity, path, .. } => (
            format!(
                "Rebuild the {} of {}: {} room for {}, and there are {}. The largest is retained by {path}.",
                if *hashes == 1 { "table" } else { "tables" },
                match class.as_str() {
                    "Set" => many(*hashes, "Set", "Sets"),
                    _ => many(*hashes, "Hash", "Hashes"),
                },
                if *hashes == 1 { "it has" } else { "they have" },
                many(*capacity, "entry", "entries"),
                Count(*entries),
            ),
            if class == "Set" { "set.reset".into() } else { rehash(path) },
            "a moment in which no other thread uses the object.",
        ),
        Action::CopySlices { slices, used_bytes, strings, path, .. } => (
            format!(
                "Copy {}: they have {} in total, but keep the bytes of {}. The longest is retained by {path}.",
                many(*slices, "short String", "short Strings"),
                Size(*used_bytes),
                many(*strings, "long String", "long Strings"),
            ),
            "slice + \"\"".into(),
            "a change of the program. `dup`, `String.new` and `byteslice` still share the bytes.",
        ),
        Action::CopyBuffers {
            class,
            objects,
            used_bytes,
            room_bytes,
            elements_bytes,
            path,
            ..
        } => (
            if *elements_bytes > 0 {
                format!(
                    "Replace {} by {}: {} {} of {} of elements, but slices keep the whole Arrays that they were cut from, with \
                     {} of objects. The largest is retained by {path}.",
                    many(*objects, class, &format!("{class}s")),
                    if *objects == 1 { "a copy" } else { "copies" },
                    if *objects == 1 { "it uses" } else { "they use" },
                    Size(*used_bytes),
                    Size(*room_bytes),
                    Size(*elements_bytes),
                )
            } else {
                format!(
                    "Replace {} by a copy: {} {} in room for {}. The largest is retained by {path}.",
                    many(*objects, class, &format!("{class}s")),
                    if *objects == 1 { "it has" } else { "they have" },
                    Size(*used_bytes),
                    Size(*room_bytes),
                )
            },
            match class.as_str() {
                "Array" => "array + []",
                QUEUE => "copy << queue.pop until queue.empty?",
                _ => "string + \"\"",
            }
            .into(),
            match class.as_str() {
                QUEUE => {
                    "a change of the program, at a moment in which no other thread uses the old Queue."
                }
                _ => {
                    "a change of the program: `dup` keeps the room. With `replace`, an object that is not frozen gets the contents of its copy, at \
                     a moment in which no other thread uses it."
                }
            },
        ),
        Action::ShareStrings { strings, texts, path, .. } => (
            format!(
                "Let Strings with the same text share one: {} {} of {}. They are retained by {path}.",
                many(*strings, "String", "Strings"),
                if *strings == 1 { "repeats one" } else { "repeat those" },
                many(*texts, "text", "texts"),
            ),
            "-string".into(),
            "a change of the program. The String that `-string` returns is frozen: code that changes it raises a FrozenError.",
        ),
        _ => Default::default(),
    }
}

/// A count and its noun.
fn many(count: u64, one: &str, more: &str) -> String {
    format!("{} {}", Count(count), if count == 1 { one } else { more })
}

/// The call that rebuilds the hash at the end of a path, which a name leads to directly or not.
fn rehash(path: &str) -> String {
    match path
        .strip_suffix(" → Hash")
        .filter(|name| !name.contains(" → ") && !name.starts_with('('))
    {
        Some(name) => format!("{name}.rehash"),
        None if path.ends_with(" → Set → Hash") => "set.reset".into(),
        None => "hash.rehash".into(),
    }
}
