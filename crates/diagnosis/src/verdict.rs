use std::collections::BTreeMap;

use formats::{Action, Confidence, KeptBy, Owner, Report, UnknownRow, Verdict};
use ledger::{
    Cause, CauseGroup, Causes, InterpreterKind, Ledger, MEMORY_OF_EXTENSIONS, Retainer,
    THREAD_LOCALS, is_glibc, percent,
};

use crate::path::{ARROW, class_of_hidden, is_hidden};

/// The least size of a cause that a verdict names, in bytes: a fresh Ruby has its parts too.
pub const MIN_BYTES: u64 = 48 << 20;
/// The least share of RSS of a cause that a verdict names, in percent.
pub const MIN_SHARE: f64 = 25.0;

/// Returnable or unreachable memory of this size is named at any share of RSS, in bytes.
pub(crate) const MIN_WASTE_BYTES: u64 = 64 << 20;
/// Objects behind one root are named if they hold this many bytes, or this share of RSS in percent and at least
/// [`MIN_ROOT_BYTES`]. In Rails without an application, the largest has 2 %.
pub(crate) const LARGE_ROOT_BYTES: u64 = MIN_WASTE_BYTES;
const MIN_ROOT_SHARE: f64 = 50.0;
const MIN_ROOT_BYTES: u64 = 16 << 20;
/// The least room that objects do not need, at the same share of RSS. A smaller process has a step against it, too.
const MIN_SAVED_ROOM: u64 = 4 << 20;

/// The first part of a path that begins in variables of a library.
const VARIABLES: &str = "(variables of ";

/// The groups of free memory. They mean the same to a user: the process is larger than what it uses.
pub const FREE: [CauseGroup; 4] = [
    CauseGroup::Unreturned,
    CauseGroup::Fragmented,
    CauseGroup::FreeSlots,
    CauseGroup::KeptForReuse,
];

/// Some causes, and their resident bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The causes with bytes, in display order.
    pub rows: Vec<Cause>,
    /// The sum of their bytes.
    pub bytes: u64,
}

impl Part {
    /// Returns the part of these groups.
    fn of(groups: &[CauseGroup], bytes_of: impl Fn(Cause) -> u64) -> Self {
        let is_part = |cause: &Cause| groups.contains(&cause.group()) && bytes_of(*cause) > 0;
        let rows: Vec<Cause> = Cause::ALL.into_iter().filter(is_part).collect();
        let bytes = rows.iter().fold(0, |sum: u64, &cause| sum.saturating_add(bytes_of(cause)));
        Self { rows, bytes }
    }

    fn is_large(&self, rss_bytes: u64) -> bool {
        self.bytes >= MIN_BYTES && percent(self.bytes, rss_bytes) >= MIN_SHARE
    }
}

/// Returns the verdict on a ledger: the part of it that a verdict names, else that the process is healthy.
#[must_use]
pub fn judge(ledger: &Ledger) -> Verdict {
    let Some(Part { rows, bytes }) = explaining(&ledger.causes) else {
        let confidence = confidence(ledger, None);
        return Verdict { cause: None, rows: vec![], bytes: ledger.rss_bytes, confidence };
    };
    // The first one of several equal causes.
    let cause = rows.iter().rev().copied().max_by_key(|&cause| ledger.causes[cause]);
    Verdict { cause, rows, bytes, confidence: confidence(ledger, cause) }
}

/// Returns the part with the most bytes if it exceeds [`MIN_BYTES`] and [`MIN_SHARE`]. Otherwise it is the wasted memory if
/// that is large, and else `None`. All free memory is one part.
fn explaining(causes: &Causes) -> Option<Part> {
    let rss_bytes = causes.total();
    let part = |groups: &[CauseGroup]| Part::of(groups, |cause| causes[cause]);
    let (free, unreachable) = (part(&FREE), part(&[CauseGroup::NativeUnreachable]));
    // Overhead explains nothing by itself.
    let is_other = |group: &CauseGroup| *group != CauseGroup::Overhead && !FREE.contains(group);
    let others = CauseGroup::ALL.into_iter().filter(is_other).map(|group| part(&[group]));
    let other = others.rev().max_by_key(|part| part.bytes);
    // One kind of free memory is named by itself if it is most of it.
    let mut kinds = FREE.into_iter().map(|group| part(&[group]));
    let kind = kinds.find(|kind| kind.bytes > free.bytes / 2 && kind.is_large(rss_bytes));
    let largest = match other {
        Some(other) if other.bytes > free.bytes => other,
        _ => kind.unwrap_or_else(|| free.clone()),
    };
    if largest.is_large(rss_bytes) {
        return Some(largest);
    }
    let waste = Part::of(&[&FREE[..], &[CauseGroup::NativeUnreachable]].concat(), |it| causes[it]);
    if waste.is_large(rss_bytes) {
        return Some(if unreachable.bytes > free.bytes { unreachable } else { free });
    }
    let wasted = [unreachable, part(&[CauseGroup::Unreturned])];
    // The kernel takes back muzzy pages when it needs memory.
    let is_much = |part: &Part| {
        let muzzy_bytes =
            if part.rows.contains(&Cause::MallocMuzzy) { causes[Cause::MallocMuzzy] } else { 0 };
        part.bytes - muzzy_bytes >= MIN_WASTE_BYTES
    };
    wasted.into_iter().find(is_much)
}

/// Returns the confidence that the statement on `cause` is true; it does not depend on the size of the part. The figures of
/// a core are estimates.
fn confidence(ledger: &Ledger, cause: Option<Cause>) -> Confidence {
    let is_unread = ledger.malloc.is_none() || ledger.ruby.is_none();
    let unknown = percent(ledger.causes[Cause::Unknown], ledger.rss_bytes);
    match cause {
        _ if is_unread => Confidence::Low,
        // That memory belongs neither to malloc nor to Ruby is certain if both were read.
        Some(Cause::Unknown) if has_all_arenas(ledger) => Confidence::High,
        _ if unknown > MIN_SHARE => Confidence::Low,
        // It is certain that these bytes are in use, but not who uses them.
        Some(Cause::MallocInUse) => Confidence::Medium,
        Some(Cause::RubyLiveSlots | Cause::RubyMalloc)
            if is_garbage_marked(ledger) || is_behind_extensions(ledger) =>
        {
            Confidence::Medium
        }
        _ if ledger.is_estimated => Confidence::Medium,
        _ => Confidence::High,
    }
}

/// Returns true if most of the memory of Ruby objects is garbage that the last GC marked: the objects are old, or a word on a stack
/// still led to them then.
fn is_garbage_marked(ledger: &Ledger) -> bool {
    let (objects, bytes) = sum_of(ledger, |retainer| retainer.path.is_none());
    let unmarked = ledger.ruby.as_ref().map_or(0, |ruby| ruby.slots_unmarked);
    objects / 2 > unmarked && is_most_of_objects(ledger, bytes)
}

/// Returns true if only memory of C extensions leads to most of the memory of Ruby objects. An extension that does not mark them keeps
/// none of them alive, for example the tracer of allocations.
fn is_behind_extensions(ledger: &Ledger) -> bool {
    let (_, bytes) = sum_of(ledger, |it| it.path.as_deref().is_some_and(is_of_extensions));
    is_most_of_objects(ledger, bytes)
}

/// Returns true for a path that begins in memory of C extensions, or in the variables of a library other than the interpreter.
#[must_use]
pub fn is_of_extensions(path: &str) -> bool {
    let library = path.strip_prefix(VARIABLES).and_then(|it| it.split(')').next());
    path.starts_with(MEMORY_OF_EXTENSIONS) || library.is_some_and(|name| !is_interpreter(name))
}

/// Returns true if only memory of C extensions leads to objects most of which have a mark: a GC found them alive, perhaps not the last one, so
/// an extension may mark them. Asks for the objects of a class, or of all classes.
#[must_use]
pub fn are_kept_by_extensions(report: &Report, class: Option<&str>) -> bool {
    let owners = managed(report).filter(|owner| class.is_none_or(|class| owner.owner == class));
    let kept = owners.flat_map(|owner| &owner.kept_by);
    let behind = kept.filter(|it| it.path.as_deref().is_some_and(is_of_extensions));
    let objects = behind.fold(0, |sum: u64, it| sum.saturating_add(it.objects));
    report.ruby.as_ref().is_some_and(|ruby| objects / 2 > ruby.slots_unmarked)
}

/// Returns true if a GC found most of the garbage alive: it died since then, or an old word on a stack leads to it.
#[must_use]
pub fn was_garbage_alive(report: &Report) -> bool {
    let kept = managed(report).flat_map(|owner| &owner.kept_by).filter(|it| it.path.is_none());
    let objects = kept.fold(0, |sum: u64, it| sum.saturating_add(it.objects));
    report.ruby.as_ref().is_some_and(|ruby| objects / 2 > ruby.slots_unmarked)
}

/// Returns true for the file name of an interpreter, such as `libruby-3.1.so.3.1.2` or `ruby3.3`. `rubyeventmachine.so` is an extension.
fn is_interpreter(name: &str) -> bool {
    let rest = name.strip_prefix("libruby").or_else(|| name.strip_prefix("ruby"));
    rest.is_some_and(|it| {
        it.is_empty() || it.starts_with(|it: char| "-.".contains(it) || it.is_ascii_digit())
    })
}

/// The objects and bytes of some retainers of Ruby objects.
fn sum_of(ledger: &Ledger, is_it: impl Fn(&Retainer) -> bool) -> (u64, u64) {
    let retainers = ledger.managed().flat_map(|owner| &owner.retainers).filter(|it| is_it(it));
    retainers.fold((0, 0), |sum, it| (sum.0 + it.objects, sum.1.saturating_add(it.bytes)))
}

fn is_most_of_objects(ledger: &Ledger, bytes: u64) -> bool {
    bytes > ledger.sum(&[Cause::RubyLiveSlots, Cause::RubyMalloc]) / 2
}

/// Returns true if no memory of malloc's is among the unknown memory.
pub(crate) fn has_all_arenas(ledger: &Ledger) -> bool {
    let malloc = ledger.malloc.as_ref().filter(|_| !ledger.is_estimated);
    malloc.is_some_and(|malloc| malloc.arenas.iter().all(|arena| arena.walked))
}

/// Returns the useless part of a report if it has [`MIN_SHARE`] of RSS: free memory, or unreachable memory. A process without a
/// verdict that has one is too small for a verdict, and not healthy.
#[must_use]
pub fn useless(report: &Report) -> Option<Part> {
    // Each Ruby that has a transient heap has 4 MiB and more of it from its start on, and uses it all the time.
    let bytes_of = |cause: Cause| {
        let row = report.causes.iter().find(|row| row.cause == cause);
        row.filter(|_| cause != Cause::RubyTransient).map_or(0, |row| row.bytes)
    };
    let parts = [&FREE[..], &[CauseGroup::NativeUnreachable]].map(|it| Part::of(it, bytes_of));
    let share = |part: &Part| percent(part.bytes, report.process.rss_bytes);
    parts.into_iter().max_by_key(|part| part.bytes).filter(|part| share(part) >= MIN_SHARE)
}

/// Returns the step against objects whose memory exceeds the bounds of a verdict, although no cause does: their memory belongs to several
/// causes.
#[must_use]
pub fn large_in_parts(report: &Report) -> Option<&Action> {
    let mut actions = report.advice.iter().map(|step| &step.action);
    let is_large =
        |bytes| bytes >= MIN_BYTES && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    actions.find(|it| matches!(it, Action::ReleaseObjects { bytes, .. } if is_large(*bytes)))
}

/// Returns the garbage that a setting of the GC keeps, if it is much of a process: it may belong to several causes.
#[must_use]
pub fn uncollected_garbage(report: &Report) -> Option<u64> {
    let is_large =
        |bytes| bytes >= MIN_ROOT_BYTES && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    report.advice.iter().find_map(|step| match step.action {
        Action::EnableGc { garbage_bytes } | Action::AllowFullMark { garbage_bytes } => {
            Some(garbage_bytes).filter(|&bytes| is_large(bytes))
        }
        _ => None,
    })
}

/// Returns the table of the interpreter's that takes much of a process because of what the program does, with its bytes. The objects with
/// entries in it seem to hold less than they do.
#[must_use]
pub fn large_table(report: &Report) -> Option<(InterpreterKind, u64)> {
    let is_large =
        |bytes| bytes >= MIN_ROOT_BYTES && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    let mut actions = report.advice.iter().map(|step| &step.action);
    actions.find_map(|it| match *it {
        Action::LimitTable { table, bytes, is_room: false } if is_large(bytes) => {
            Some((table, bytes))
        }
        _ => None,
    })
}

/// Returns the room that live objects have and do not need, if it is much of a process.
#[must_use]
pub fn large_room(report: &Report) -> Option<u64> {
    let bytes = report.waste.as_ref()?.saved_bytes();
    let is_large = bytes >= MIN_SAVED_ROOM && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    is_large.then_some(bytes)
}

/// Returns the root whose objects hold most, with their resident bytes, if these are much of a process. Each cause may be small: the objects
/// of one root may be of several classes, of Ruby and of extensions, and have classes of their own. Code and classes count if the code may be
/// defined again and again, or if one root retains half of RSS with them: no root of a program that only loaded its code does.
#[must_use]
pub fn large_root(report: &Report) -> Option<(&str, u64)> {
    let rss_bytes = report.process.rss_bytes;
    let mut actions = report.advice.iter().map(|step| &step.action);
    let is_defined_again = actions.any(|it| matches!(it, Action::DefineCodeOnce { .. }));
    let largest = largest_root(report, is_defined_again);
    largest
        .filter(|&(_, bytes)| is_large_root(bytes, rss_bytes))
        .or_else(|| largest_root(report, true).filter(|&(_, bytes)| is_main_root(bytes, rss_bytes)))
}

fn largest_root(report: &Report, with_classes: bool) -> Option<(&str, u64)> {
    let of_objects = [Cause::RubyMalloc, Cause::NativeHeld, Cause::RubyVm];
    let rows = report.owners.iter().flatten().flat_map(|owner| {
        let is_it = move |kept: &&KeptBy| {
            let path = kept.path.as_deref().unwrap_or_default();
            let is_class = owner.cause == Some(Cause::RubyVm) && !is_behind_object(path);
            // No program has named the other roots. But the interpreter keeps each class that `Struct.new` defined by a name.
            let is_named = !path.starts_with(VARIABLES) && !is_of_extensions(path);
            owner.cause.is_some_and(|cause| of_objects.contains(&cause))
                && if is_class { with_classes } else { is_named }
        };
        owner.kept_by.iter().filter(is_it).map(move |kept| (owner, kept))
    });
    // Owners have the headers of their chunks, which are no part of the causes.
    let of_causes = report
        .causes
        .iter()
        .filter(|row| row.cause == Cause::RubyLiveSlots || of_objects.contains(&row.cause));
    let most = of_causes.map(|row| row.bytes).fold(0, u64::saturating_add);
    let roots =
        by_root(rows).into_iter().filter_map(|(root, bytes)| Some((root?, bytes.min(most))));
    roots.max_by_key(|&(_, bytes)| bytes)
}

/// Returns true for a path that leads from the root to an object that is no class or module: the program keeps that, and not what
/// it loaded.
pub(crate) fn is_behind_object(path: &str) -> bool {
    let first = path.split(ARROW).nth(1);
    first.is_some_and(|it| ["Class", "Module"].iter().all(|name| !it.starts_with(name)))
}

fn is_large_root(bytes: u64, rss_bytes: u64) -> bool {
    is_main_root(bytes, rss_bytes) || bytes >= LARGE_ROOT_BYTES
}

fn is_main_root(bytes: u64, rss_bytes: u64) -> bool {
    bytes >= MIN_ROOT_BYTES && percent(bytes, rss_bytes) >= MIN_ROOT_SHARE
}

/// The resident bytes of some owners' objects by the root that retains them; `None` stands for garbage.
fn by_root<'a>(
    rows: impl Iterator<Item = (&'a Owner, &'a KeptBy)>,
) -> BTreeMap<Option<&'a str>, u64> {
    let mut roots = BTreeMap::<Option<&str>, u64>::new();
    for (owner, kept) in rows {
        let bytes = roots.entry(kept.path.as_deref().map(root)).or_default();
        *bytes = bytes.saturating_add(resident(owner, kept));
    }
    roots
}

/// The objects that hold most of the memory of a verdict on Ruby objects. Each part is proved by resident bytes: it has more
/// than half of the verdict's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Majority<'a> {
    /// The class whose objects hold most, themselves or by hidden ones.
    pub class: Option<&'a str>,
    /// The objects of that class if they hold most themselves.
    pub owner: Option<&'a Owner>,
    /// The root that retains most.
    pub root: Option<&'a str>,
    /// True if memory of C extensions leads to most, which the GC may not follow.
    pub is_behind_extensions: bool,
    /// True if most of the memory is held by garbage.
    pub is_garbage: bool,
    /// The bytes that garbage holds, as far as owners are listed.
    pub garbage_bytes: u64,
}

impl<'a> Majority<'a> {
    /// Returns the majorities of a report whose verdict is on Ruby objects.
    #[must_use]
    pub fn of(report: &'a Report) -> Self {
        let is_most = |bytes: u64| bytes > report.verdict.bytes / 2;
        let rows =
            managed(report).flat_map(|owner| owner.kept_by.iter().map(move |kept| (owner, kept)));
        let roots = by_root(rows);
        let extensions = roots.iter().filter(|(root, _)| root.is_some_and(is_of_extensions));
        let of_extensions = extensions.map(|(_, &bytes)| bytes).fold(0, u64::saturating_add);
        let garbage_bytes = roots.get(&None).copied().unwrap_or(0);
        let most = roots.into_iter().find(|&(_, bytes)| is_most(bytes));
        // Objects that are hidden from programs mean nothing to their authors, but those that they belong to do.
        let mut classes = BTreeMap::<&str, u64>::new();
        let (hidden, visible): (Vec<_>, Vec<_>) =
            managed(report).partition(|owner| is_hidden(&owner.owner));
        let of_hidden = hidden.iter().flat_map(|owner| {
            let class = |kept: &'a KeptBy| kept.path.as_deref().and_then(class_of_hidden);
            owner.kept_by.iter().filter_map(move |kept| Some((class(kept)?, resident(owner, kept))))
        });
        let of_visible = visible.iter().map(|owner| (owner.owner.as_str(), owner.bytes()));
        for (class, more) in of_visible.chain(of_hidden) {
            let bytes = classes.entry(class).or_default();
            *bytes = bytes.saturating_add(more);
        }
        let class = classes.into_iter().find(|&(_, bytes)| is_most(bytes));
        Self {
            class: class.map(|(class, _)| class),
            owner: visible.into_iter().find(|owner| is_most(owner.bytes())),
            root: most.and_then(|(root, _)| root),
            is_behind_extensions: is_most(of_extensions),
            is_garbage: matches!(most, Some((None, _))),
            garbage_bytes,
        }
    }
}

/// The mappings of unknown memory, and the class whose objects refer to more than half of all unknown memory; `None` without one, or if
/// malloc or Ruby could not be read.
#[must_use]
pub fn mapper(report: &Report) -> Option<(&UnknownRow, &str)> {
    let unknown = report.causes.iter().find(|row| row.cause == Cause::Unknown)?.bytes;
    let row = report.unknown.iter().find(|row| row.owner_bytes > unknown / 2)?;
    let class = row.owner.as_deref()?;
    (report.malloc.is_some() && report.ruby.is_some()).then_some((row, class))
}

/// The class whose objects refer to most of the unknown memory, and the path with its number of objects that retains most of them.
#[must_use]
pub fn retainer_of_mapper(report: &Report) -> Option<(&Owner, &str, u64)> {
    let (_, class) = mapper(report)?;
    let owner = report.owners.iter().flatten().find(|owner| owner.owner == class)?;
    let kept = owner.kept_by.iter().max_by_key(|kept| kept.objects)?;
    Some((owner, kept.path.as_deref()?, kept.objects))
}

/// The path to objects of programs that have more than half of the memory of a verdict on the interpreter as hidden parts, the class of these
/// objects, and their bytes: nodes keep their syntax tree.
#[must_use]
pub fn user_of_interpreter(report: &Report) -> Option<(&str, &str, u64)> {
    let hidden = report.owners.iter().flatten().filter(|owner| {
        owner.cause == Some(Cause::RubyVm) && is_hidden(&owner.owner) && owner.kind == "internal"
    });
    let kept = hidden.flat_map(|owner| owner.kept_by.iter().map(move |kept| (owner, kept)));
    let (most, bytes) = kept
        .map(|(owner, kept)| (kept, resident(owner, kept)))
        .find(|&(_, bytes)| bytes > report.verdict.bytes / 2)?;
    let path = most.path.as_deref()?;
    let class = class_of_hidden(path).filter(|class| *class != "Class")?;
    Some((path, class, bytes))
}

/// The root that retains more than half of the bytes of a class, if these are those of few of its objects, or of one.
#[must_use]
pub fn retaining_few(owner: &Owner) -> Option<&KeptBy> {
    /// Few objects are less than one in this many.
    const FEW: u64 = 10;
    let most = owner.kept_by.first()?;
    let are_few = most.objects == 1 || most.objects < owner.objects / FEW;
    let is_it = resident(owner, most) > owner.bytes() / 2 && are_few;
    is_it.then_some(most)
}

/// The owners of the memory of Ruby objects, largest first, without the row that sums up the smaller owners, and without the
/// interpreter's own objects.
pub fn managed(report: &Report) -> impl Iterator<Item = &Owner> {
    let owners = report.owners.iter().flatten();
    owners.filter(|owner| owner.cause == Some(Cause::RubyMalloc))
}

/// The resident bytes of the objects that a root retains.
fn resident(owner: &Owner, kept: &KeptBy) -> u64 {
    kept.bytes.min(owner.bytes())
}

/// What holds most of the native memory that no object of Ruby holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeHolder<'a> {
    /// glibc's variables. They keep all values of the environment (`known_values` in stdlib/setenv.c), and also open files and functions
    /// registered with atexit.
    Glibc,
    /// Thread-local variables, of which each thread has its own.
    ThreadLocals,
    /// Variables of the library with this name.
    Library(&'a str),
    /// Several of these.
    Libraries,
}

/// Returns what holds most of the memory of a verdict on native memory.
#[must_use]
pub fn native_holder(report: &Report) -> NativeHolder<'_> {
    let most = report.verdict.bytes / 2;
    let owners = || {
        let owners = report.owners.iter().flatten();
        owners.filter(|it| it.cause == Some(Cause::NativeGlobal))
    };
    let has_most = |is_it: fn(&str) -> bool, bytes: fn(&Owner) -> u64| {
        let owners = owners().filter(|it| is_it(&it.owner));
        owners.map(bytes).fold(0, u64::saturating_add) > most
    };
    let library = || owners().find(|it| !it.owner.starts_with('(') && it.bytes() > most);
    // What variables of a library lead to, too, does not go with the thread, such as the cache of libvips.
    let own = |it: &Owner| it.exclusive_bytes.min(it.bytes());
    match () {
        () if has_most(is_glibc, Owner::bytes) => NativeHolder::Glibc,
        () if has_most(|owner| owner == THREAD_LOCALS, own) => NativeHolder::ThreadLocals,
        () => library().map_or(NativeHolder::Libraries, |it| NativeHolder::Library(&it.owner)),
    }
}

/// The first step of a path. The next step is a part of it, without the number of its repetitions, if the first one is not a place in the
/// program, such as "(threads)", and so is the variable of a thread.
#[must_use]
pub fn root(path: &str) -> &str {
    let mut steps = path.match_indices(ARROW);
    let mut end = if path.starts_with('(') { steps.nth(1) } else { steps.next() };
    while end.is_some_and(|(end, arrow)| path[end + arrow.len()..].starts_with('[')) {
        end = steps.next();
    }
    let root = end.map_or(path, |(end, _)| &path[..end]);
    let is_count = |it: &str| it.chars().all(|it| it.is_ascii_digit() || it == ',');
    root.rsplit_once(" × ").filter(|(_, count)| is_count(count)).map_or(root, |(root, _)| root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_one_root_differ_in_repetitions() {
        for (path, expected) in [
            (
                "(variables of libruby.so.3.1) → Class × 1,024 → (imemo_ment)",
                "(variables of libruby.so.3.1) → Class",
            ),
            ("(variables of libruby.so.3.1) → Class", "(variables of libruby.so.3.1) → Class"),
            ("(threads) → Thread \"2 × 3a\" → Array × 2", "(threads) → Thread \"2 × 3a\""),
            ("(threads) → Thread → [:rows] → Array → Row", "(threads) → Thread → [:rows]"),
            ("CONFIG → Hash × 2", "CONFIG"),
        ] {
            assert_eq!(root(path), expected);
        }
    }

    #[test]
    fn an_extension_whose_name_begins_like_the_interpreters_is_none() {
        let is_it = |library: &str| is_of_extensions(&format!("(variables of {library}) → Object"));
        for name in ["libruby-3.1.so.3.1.2", "libruby.so.2.7", "ruby", "ruby3.3"] {
            assert!(!is_it(name), "{name}");
        }
        for name in ["rubyeventmachine.so", "ruby_prof.so", "objspace.so", "libxml2.so.2"] {
            assert!(is_it(name), "{name}");
        }
        assert!(is_of_extensions("(memory of C extensions) → String"));
        assert!(
            !is_of_extensions("Cache::STORE → Hash") && !is_of_extensions("(threads) → Thread")
        );
    }

    #[test]
    fn a_root_is_large_with_half_of_rss_or_64_mib() {
        let is_large = |bytes: u64, rss_bytes: u64| is_large_root(bytes << 20, rss_bytes << 20);
        assert!(is_large(64, 2_000) && !is_large(63, 2_000));
        assert!(is_large(30, 60) && !is_large(29, 60));
        // A small Ruby process has little else.
        assert!(is_large(16, 31) && !is_large(15, 28));
    }

    /// The part that explains a process with these sizes in MiB.
    fn part(sizes: &[(Cause, u64)]) -> Option<(Vec<Cause>, u64)> {
        let mut causes = Causes::default();
        sizes.iter().for_each(|&(cause, mebibytes)| causes[cause] = mebibytes << 20);
        explaining(&causes).map(|part| (part.rows, part.bytes >> 20))
    }

    /// A process of 210 MiB was healthy although 47 MiB were unreachable and 52 MiB could be returned.
    #[test]
    fn waste_in_parts_is_not_healthy() {
        use Cause::{FileShared, MallocFragmented, MallocUnreturned, NativeUnreachable};
        use Cause::{NativeGlobal, RubyFreeSlots, RubyMalloc, RubyVm};
        let used = [(RubyMalloc, 50), (RubyVm, 40), (FileShared, 21)];
        let with = |more: &[(Cause, u64)]| part(&[&used[..], more].concat());
        let returnable = with(&[(NativeUnreachable, 47), (MallocUnreturned, 52)]);
        assert_eq!(returnable, Some((vec![MallocUnreturned], 52)));
        let free = [(RubyFreeSlots, 20), (MallocUnreturned, 20), (MallocFragmented, 19)];
        let rows = vec![RubyFreeSlots, MallocUnreturned, MallocFragmented];
        assert_eq!(with(&free), Some((rows, 59)));
        let leaked = with(&[(NativeUnreachable, 32), (MallocUnreturned, 21), (NativeGlobal, 45)]);
        assert_eq!(leaked, Some((vec![NativeUnreachable], 32)));
        let little = [(NativeUnreachable, 10), (MallocUnreturned, 20), (NativeGlobal, 47)];
        assert_eq!(with(&[&little[..], &[(Cause::StackThreads, 20)]].concat()), None);
    }

    #[test]
    fn much_waste_is_not_healthy_at_any_size() {
        use Cause::{MallocFragmented, MallocMuzzy, MallocUnreturned, NativeUnreachable};
        let used = [
            Cause::RubyMalloc,
            Cause::RubyVm,
            Cause::FileShared,
            Cause::NativeHeld,
            Cause::RubyJit,
        ];
        let with = |more: (Cause, u64)| {
            part(&[used.map(|cause| (cause, 220)).to_vec(), vec![more]].concat())
        };
        for cause in [NativeUnreachable, MallocUnreturned] {
            assert_eq!(with((cause, 64)), Some((vec![cause], 64)));
            assert_eq!(with((cause, 63)), None);
        }
        // It is normal in a large process, and the kernel takes it.
        assert_eq!(with((MallocFragmented, 64)), None);
        assert_eq!(with((MallocMuzzy, 100)), None);
    }

    #[test]
    fn most_free_memory_of_one_kind_is_named_by_itself() {
        use Cause::{MallocFragmented, MallocUnreturned, RubyMalloc};
        let sizes = [(MallocUnreturned, 60), (MallocFragmented, 20), (RubyMalloc, 70)];
        assert_eq!(part(&sizes), Some((vec![MallocUnreturned], 60)));
        let sizes = [(MallocUnreturned, 60), (MallocFragmented, 20), (RubyMalloc, 90)];
        assert_eq!(part(&sizes), Some((vec![RubyMalloc], 90)));
    }
}
