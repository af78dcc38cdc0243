//! The steps against room that objects do not use, and against equal strings.

use formats::{Action, FewThings, Report};
use ledger::{Count, Size};

use super::total;

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
            match class.as_str() {
                "Set" => {
                    "a moment in which no other thread uses the object. A frozen Set cannot be reset: replace it with Set.new(set.to_a)."
                }
                _ => {
                    "a moment in which no other thread uses the object. A frozen Hash cannot be rehashed: replace it with Hash[hash.to_a]."
                }
            },
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

/// What the contents of a class's objects are, if they were compared and are the same in most of them. Equal Strings have a step of their own.
pub(super) fn of_contents(report: &Report, class: &str) -> String {
    let owner = report.owners.iter().flatten().find(|owner| owner.owner == class);
    let contents = report.waste.as_ref().and_then(|waste| waste.contents.as_ref());
    let (Some(owner), Some(contents)) = (owner, contents) else { return String::new() };
    let few = |has: FewThings| {
        let rows = contents.few.iter().filter(|it| it.class == class && it.has == has);
        (total(rows.clone().map(|it| it.objects)), total(rows.map(|it| it.bytes)))
    };
    let copies = contents.copies.iter().filter(|it| it.class == class && class != "String");
    let different = total(copies.clone().map(|it| it.contents));
    let copies = (total(copies.clone().map(|it| it.objects)), total(copies.map(|it| it.bytes)));
    let kinds = [
        (
            few(FewThings::Nothing),
            "are empty: they need not exist before something is put into them".to_owned(),
        ),
        (few(FewThings::OnlyNil), "have nothing but nil".to_owned()),
        (few(FewThings::MostlyNil), "have nil in seven of eight places or more".to_owned()),
        (
            copies,
            format!(
                "repeat {}: if nothing changes these, one object of each is enough",
                many(different, "content", "contents")
            ),
        ),
    ];
    let most = kinds.into_iter().find(|((objects, _), _)| *objects > owner.objects / 2);
    most.map_or_else(String::new, |((objects, bytes), words)| {
        format!(" {} of them ({}) {words}.", Count(objects), Size(bytes))
    })
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
