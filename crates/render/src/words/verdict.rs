mod objects;
mod stacks;

use std::cmp::Reverse;

use diagnosis::{FREE, MIN_BYTES, MIN_SHARE, NativeHolder, native_holder};
use formats::{
    Action, Advice, Arena, CaptureMethod, FindingKind, MappedFile, Memsize, Owner, Report,
    UnknownRow, Unread,
};
use ledger::{Cause, CauseGroup, Count, Size, percent};

use super::{VerdictWords, confidence, counted, total, trim_call, unread};
use crate::files::times;
use objects::{class_evidence, held, of_objects, singleton_classes};
use stacks::of_stacks;

/// Smaller parts of a healthy process are not listed, in bytes.
const MIN_PART_BYTES: u64 = 100 << 10;
/// The least share of the fragmented memory that an owner must keep to be named, in percent.
const MIN_PIN_SHARE: f64 = 10.0;
/// Owners and classes that are evidence, at most.
const MAX_EVIDENCE: usize = 3;
/// An owner is no evidence if it holds less than this fraction of the first one's memory.
const MIN_FRACTION: u64 = 50;

/// What memory that live objects hold may be.
const IN_USE: &str =
    " The program itself uses this memory: it is a managed leak, or simply its data.";

/// The verdict on a process whose memory was not read: none.
fn of_unread(report: &Report, reason: &Unread) -> VerdictWords {
    let unknown = Size(bytes(report, Cause::Unknown));
    VerdictWords {
        summary: format!("Not read: {}.", unread(reason)),
        evidence: vec![format!(
            "{unknown} are memory that only a report which reads it can explain"
        )],
        check: format!(
            "To have it read: `rbloat report {} --max-pause {}ms`.",
            report.process.pid, reason.enough_ms
        ),
    }
}

/// Returns the verdict of a report in words.
#[must_use]
pub fn verdict(report: &Report) -> VerdictWords {
    if let Some(reason) = &report.capture.unread {
        return of_unread(report, reason);
    }
    let verdict = &report.verdict;
    let (mut summary, mut evidence, check) = match verdict.cause {
        Some(_) if is_free(&verdict.rows) => free(report),
        Some(cause) => explained(report, cause),
        None => healthy(report),
    };
    if verdict.cause.is_some() {
        let rows: Vec<&str> = verdict.rows.iter().map(|cause| cause.name()).collect();
        let rss = report.process.rss_bytes;
        evidence.insert(
            0,
            format!(
                "{}: {} of {} resident ({:.0} %)",
                rows.join(" + "),
                Size(verdict.bytes),
                Size(rss),
                percent(verdict.bytes, rss)
            ),
        );
    }
    let unreachable = bytes(report, Cause::NativeUnreachable);
    if !verdict.rows.contains(&Cause::NativeUnreachable) && has(report, &Action::FindNativeLeak) {
        evidence.push(format!("besides, nothing points to {} of native memory", Size(unreachable)));
    }
    let is_broken =
        |it: &Advice| matches!(it.action, Action::PreloadJemalloc { is_broken: true, .. });
    if verdict.rows.iter().any(|it| FREE.contains(&it.group()))
        && report.advice.iter().any(is_broken)
    {
        summary += " LD_PRELOAD names jemalloc, but jemalloc was not loaded.";
    }
    if let (None, Some(group)) = (verdict.cause, &report.group) {
        summary += &format!(" {}", super::group(group));
    }
    let to_check = match report.capture.method {
        CaptureMethod::Core if verdict.cause.is_some() => {
            "To check in a process that does the same"
        }
        _ => "To check",
    };
    let check = format!("{} {to_check}: {check}", confidence(verdict.confidence));
    VerdictWords { summary, evidence, check }
}

/// Returns true for causes of several groups: only free memory is summed up like that.
fn is_free(rows: &[Cause]) -> bool {
    rows.windows(2).any(|pair| pair[0].group() != pair[1].group())
}

fn has(report: &Report, action: &Action) -> bool {
    report.advice.iter().any(|step| step.action == *action)
}

fn bytes(report: &Report, cause: Cause) -> u64 {
    report.causes.iter().find(|row| row.cause == cause).map_or(0, |row| row.bytes)
}

fn healthy(report: &Report) -> (String, Vec<String>, String) {
    let is_read = report.malloc.is_some() && report.ruby.is_some();
    let rss = report.process.rss_bytes;
    let bound = format!("{} MiB and {MIN_SHARE:.0} %", MIN_BYTES >> 20);
    let summary = match (diagnosis::useless(report), diagnosis::large_in_parts(report)) {
        (Some(part), _) => format!(
            "Too small for a verdict: {} resident. But {:.0} % of it are {}.",
            Size(rss),
            percent(part.bytes, rss),
            match part.rows[..] {
                [cause] => format!("{} ({})", cause.name(), super::meaning(cause)),
                _ => format!("free ({})", by_cause(report, &part.rows)),
            }
        ),
        (None, Some(Action::ReleaseObjects { class, bytes, are_garbage, .. })) => format!(
            "{} resident. No cause exceeds {bound} of RSS, but the objects of class {class} do in several causes: {}.{}",
            Size(rss),
            Size(*bytes),
            match are_garbage {
                true => " Most of them are garbage.",
                false => IN_USE,
            }
        ),
        (None, _) => format!(
            "{}: {} resident. Nothing stands out: no cause exceeds {bound} of RSS.",
            if is_read { "Healthy" } else { "Healthy as far as it could be read" },
            Size(rss),
        ),
    };
    let check = "report again later, and see that no cause has grown beyond these bounds.";
    (summary, composition(report), check.into())
}

/// The parts of a process, each with the groups of causes that it sums up.
const PARTS: [(&str, &[CauseGroup]); 7] = [
    ("Ruby objects", &[CauseGroup::RubyObjects]),
    ("the interpreter and the code that it loaded", &[CauseGroup::Interpreter, CauseGroup::Jit]),
    ("pages of files, such as libraries", &[CauseGroup::Files]),
    ("files in memory and shared memory", &[CauseGroup::SharedMemory]),
    (
        "native memory",
        &[
            CauseGroup::NativeHeld,
            CauseGroup::NativeGlobal,
            CauseGroup::NativeUnreachable,
            CauseGroup::Untraced,
        ],
    ),
    ("stacks", &[CauseGroup::Stacks]),
    ("headers and padding", &[CauseGroup::Overhead]),
];
/// The memory in use by its purpose, largest first, the free memory, and the memory that could not be read. They add up
/// to RSS.
fn composition(report: &Report) -> Vec<String> {
    let rss = report.process.rss_bytes;
    let sum = |groups: &[CauseGroup]| {
        let rows = report.causes.iter().filter(|row| groups.contains(&row.cause.group()));
        total(rows.map(|row| row.bytes))
    };
    let mut parts = PARTS.map(|(name, groups)| (name, sum(groups)));
    parts.sort_by_key(|&(_, bytes)| Reverse(bytes));
    let shown = parts.iter().filter(|(_, bytes)| *bytes >= MIN_PART_BYTES);
    let shown: Vec<_> = shown.map(|(name, bytes)| format!("{} {name}", Size(*bytes))).collect();
    let (free, unknown) = (sum(&FREE), sum(&[CauseGroup::Unknown]));
    let in_use = rss.saturating_sub(free).saturating_sub(unknown);
    let mut evidence = vec![
        format!("{} are in use: {}", Size(in_use), shown.join(", ")),
        format!(
            "{} ({:.0} % of RSS) are free: malloc and Ruby keep them for reuse",
            Size(free),
            percent(free, rss)
        ),
    ];
    if unknown >= MIN_PART_BYTES {
        evidence.push(format!("{} are unknown: in use or free", Size(unknown)));
    }
    evidence
}

/// The sizes of causes, largest first: `30.0 MiB malloc.unreturned, 9.0 MiB ruby.free_slots`.
fn by_cause(report: &Report, causes: &[Cause]) -> String {
    let mut causes: Vec<_> = causes.iter().map(|&cause| (bytes(report, cause), cause)).collect();
    causes.sort_by_key(|&(bytes, cause)| (Reverse(bytes), cause));
    let large = causes.into_iter().filter(|(bytes, _)| *bytes >= MIN_PART_BYTES);
    let sizes: Vec<_> =
        large.map(|(bytes, cause)| format!("{} {}", Size(bytes), cause.name())).collect();
    sizes.join(", ")
}

/// The sentence, the evidence and the check for free memory of several kinds, none of which explains the process.
fn free(report: &Report) -> (String, Vec<String>, String) {
    let parts = by_cause(report, &report.verdict.rows);
    let mut evidence = arena_evidence(report);
    evidence.extend(slot_evidence(report));
    let check = match trim_call(report) {
        Some(_) => format!(
            "`rbloat trim {}` should free about {}.",
            super::process(report),
            Size(trim_yield(report))
        ),
        None => "the next work in the process should use this memory first.".into(),
    };
    let size = Size(report.verdict.bytes);
    (format!("{size} are free, but still resident: {parts}. This is not a leak."), evidence, check)
}

/// The sentence, the evidence and the check for a cause that explains the process.
fn explained(report: &Report, cause: Cause) -> (String, Vec<String>, String) {
    let size = Size(report.verdict.bytes);
    // The process of a core may be gone.
    let pid = match report.capture.method {
        CaptureMethod::Core => "PID".to_owned(),
        _ => report.process.pid.to_string(),
    };
    let owned = |cause| owner_evidence(report, cause);
    let allocator = &report.process.allocator;
    match cause {
        Cause::MallocUnreturned => (
            format!(
                "{size} were freed by Ruby but never returned to the kernel: {allocator} keeps whole free pages{}. This is not \
                 a leak.",
                kept_on_purpose(report)
            ),
            arena_evidence(report),
            format!("`rbloat trim {pid}` should free about {}.", Size(trim_yield(report))),
        ),
        Cause::MallocFragmented if trim_call(report).is_none() => (
            format!(
                "{size} are free but pinned: they are in groups of blocks some of which are in use, so {allocator} cannot return \
                 them."
            ),
            arena_evidence(report),
            "RSS should fall when the program frees the blocks that keep it.".into(),
        ),
        Cause::MallocFragmented => (
            format!(
                "{size} are free but pinned: they share pages with memory in use, so neither {allocator} nor a trim can \
                 return them."
            ),
            arena_evidence(report),
            format!("`rbloat trim {pid}` should free only about {}.", Size(trim_yield(report))),
        ),
        Cause::MallocMuzzy => (
            format!(
                "{size} were freed, and {allocator} has released their pages: RSS counts them until the kernel needs memory. \
                 This is not a leak."
            ),
            arena_evidence(report),
            format!("`rbloat trim {pid}` should free about {}.", Size(trim_yield(report))),
        ),
        Cause::MallocTop | Cause::MallocCached => {
            let abandoned = report.kept_stacks.map_or(0, |it| it.cached_bytes);
            match abandoned > report.verdict.bytes / 2 {
                true => (
                    format!(
                        "{} are free, but in {allocator}'s caches of threads that this process does not have: it was forked, and \
                         only its parent has them. Nothing here uses or frees this memory.",
                        Size(abandoned)
                    ),
                    arena_evidence(report),
                    "a report on the process that forked it shows this memory in malloc.cached, too, while these threads run.".into(),
                ),
                false => (
                    format!(
                        "{size} are free at the top of arenas or in {allocator}'s caches, where a trim does not reach them."
                    ),
                    arena_evidence(report),
                    "the next work in the process should use this memory first.".into(),
                ),
            }
        }
        Cause::RubyLiveSlots | Cause::RubyMalloc => (
            of_objects(report, size),
            class_evidence(report),
            "call GC.start in the process and report again. Objects that are gone then were garbage.".into(),
        ),
        Cause::RubyFreeSlots => (
            format!("{size} are free slots on Ruby's heap pages: {}.", super::gc::free_slots(report)),
            slot_evidence(report),
            if super::gc::keeps_free_slots(report) {
                "started without these settings, the process should have fewer free slots.".into()
            } else if report.advice.iter().any(|step| step.action == Action::Compact) {
                "GC.compact, followed by GC.start several times, should free those of these pages whose objects can move; ordinary load should fill \
                 them again."
                    .into()
            } else {
                "new objects should fill these slots before Ruby's heap grows.".into()
            },
        ),
        Cause::StackThreads | Cause::StackFibers => of_stacks(report, cause),
        Cause::FileShmem => (
            format!(
                "{size} are pages of mapped files in memory: tmpfs, memfd or shared memory. The kernel can only swap these \
                 pages. They stay until the files are deleted, unmapped and closed."
            ),
            shmem_evidence(report),
            format!("RssShmem in /proc/PID/status should be about {size}."),
        ),
        Cause::FilePrivate | Cause::FileShared => (
            match cause {
                Cause::FilePrivate => {
                    format!("{size} are pages of mapped files, most of them changed by this process.")
                }
                _ => {
                    let locked = report.process.locked_file_bytes;
                    let effect = match locked > report.verdict.bytes / 2 {
                        true => format!(
                            "The kernel cannot take back what is locked in memory (mlock or mlockall): {} of pages of files.",
                            Size(locked)
                        ),
                        false => "The kernel takes back pages of files on disk when memory is short.".into(),
                    };
                    format!("{size} are pages of mapped files, most of them in the kernel's cache. {effect}")
                }
            },
            file_evidence(report),
            match cause {
                Cause::FilePrivate => {
                    "Private_Dirty and Anonymous in /proc/PID/smaps should have these pages, at the mappings of these files."
                }
                _ => "RssFile in /proc/PID/status should be about as much as file.shared: it counts no memory of the program's own.",
            }
            .into(),
        ),
        Cause::MallocInUse => (
            format!(
                "{size} of native memory are in use, and no Ruby object refers to them: C extensions, libraries or the \
                 interpreter hold them. Their owners were not searched for."
            ),
            vec![format!(
                "objects refer to {} of malloc'ed memory themselves",
                Size(bytes(report, Cause::RubyMalloc))
            )],
            format!("`rbloat report {pid}` with owners names who holds this memory."),
        ),
        Cause::RubyVm => (
            format!(
                "{size} belong to the interpreter{}.{}",
                super::interpreter::largest_part(report),
                singleton_classes(report)
            ),
            owned(Cause::RubyVm),
            format!("`rbloat diff {pid} --every 60s --times 3` shows if it still grows, and by what."),
        ),
        Cause::NativeHeld => (
            held(report, size),
            owned(Cause::NativeHeld),
            "freeing or closing these objects should lower the memory in use.".into(),
        ),
        Cause::NativeGlobal => {
            let (holder, check) = match native_holder(report) {
                NativeHolder::Glibc => (
                    "most of it by the C library, which for example keeps every value that ENV has had.",
                    "if these are old values of ENV, `rbloat who` names the code that assigns to it while this grows. Only a restart \
                     frees them.",
                ),
                NativeHolder::ThreadLocals => (
                    "most of it by thread-local variables: each thread has its own.",
                    "native.global should fall when threads end.",
                ),
                NativeHolder::Libraries => (
                    "not by Ruby objects.",
                    "emptying the library's caches, followed by malloc_trim, should lower RSS.",
                ),
            };
            let sentence = format!(
                "{size} of native memory are held by variables of libraries and by threads, {holder}"
            );
            (sentence, owned(Cause::NativeGlobal), check.into())
        }
        Cause::NativeUnreachable => (
            format!(
                "{size} of native memory are in use, but nothing points to them: a leak in a C extension, a library or Ruby itself."
            ),
            owned(Cause::NativeUnreachable),
            "this memory should never be freed. If it is, its pointer was hidden (stored as a difference, or with a tag in another bit than the lowest)."
                .into(),
        ),
        Cause::RubyJit => (
            format!(
                "{size} belong to Ruby's JIT compiler: its machine code, room for more, and its tables."
            ),
            owned(Cause::RubyJit),
            "RSS should be lower with the JIT compiler disabled.".into(),
        ),
        Cause::RubyOverhead | Cause::MallocOverhead | Cause::Unknown => (
            format!(
                "{size} are anonymous memory that rbloat cannot account for: {}.{}",
                reason(report),
                pointed_to(report)
            ),
            report.unknown.iter().take(MAX_EVIDENCE).map(unknown).collect(),
            match has(report, &Action::FindMapper) {
                true => format!("while it grows, `rbloat who {pid}` names the code that touches it first."),
                false => "a report in which malloc and Ruby could both be read names the cause.".into(),
            },
        ),
    }
}

/// Mappings of unknown memory.
fn unknown(row: &UnknownRow) -> String {
    let beside = row.beside.as_ref().map_or_else(String::new, |file| format!(", next to {file}"));
    let largest = if row.mappings == 1 { "it is" } else { "the one with most is" };
    let huge = match row.huge_bytes {
        bytes if bytes > row.resident_bytes / 2 => format!(
            "; {} are in huge pages, each of which becomes resident as a whole when one byte of it is written",
            Size(bytes)
        ),
        _ => String::new(),
    };
    format!(
        "{} with the permissions {}, {}, of which {} are unknown; {largest} at {}{beside}{huge}",
        counted(row.mappings, "anonymous mapping"),
        row.permissions,
        Size(row.mapped_bytes),
        Size(row.resident_bytes),
        row.largest,
    )
}

/// A sentence on the class whose objects refer to most of the unknown memory; empty without one.
fn pointed_to(report: &Report) -> String {
    let row = report.unknown.iter().find(|row| row.resident_bytes > report.verdict.bytes / 2);
    let owner = row.and_then(|row| row.owner.as_deref());
    owner.map_or_else(String::new, |class| format!(" Objects of {class} refer to most of it."))
}

/// The reason for which memory could not be accounted for.
fn reason(report: &Report) -> String {
    if report.malloc.is_none() && report.ruby.is_none() {
        "neither malloc nor Ruby could be read (see the findings)".into()
    } else if report.findings.iter().any(|it| matches!(it.kind, FindingKind::RubyUnread { .. })) {
        "Ruby's heap could not be read (see the findings)".into()
    } else if report.malloc.is_some() {
        "it belongs neither to malloc nor to Ruby".into()
    } else {
        format!("malloc is served by {}", report.process.allocator)
    }
}

/// The setting that lets jemalloc keep free pages forever, as the end of a clause; empty without it.
fn kept_on_purpose(report: &Report) -> &'static str {
    match super::keeps_pages_forever(report) {
        true => " forever, because its setting dirty_decay_ms is -1",
        false if is_locked(report) => ", which are locked in memory (mlock or mlockall)",
        false => "",
    }
}

/// Returns true if most free pages cannot be returned because they are locked.
fn is_locked(report: &Report) -> bool {
    let free = bytes(report, Cause::MallocUnreturned);
    report.process.locked_bytes > 0 && trim_yield(report) < free / 2
}

fn trim_yield(report: &Report) -> u64 {
    report.malloc.as_ref().map_or(0, |malloc| malloc.trim_yield_bytes)
}

fn arena_evidence(report: &Report) -> Vec<String> {
    let (Some(malloc), Some(arenas)) = (&report.malloc, &report.arenas) else { return vec![] };
    let mut evidence = vec![
        format!(
            "malloc has allocated {} in {}, and has {} free in {}, resident or not",
            Size(total([malloc.in_use_bytes, malloc.mmapped_bytes])),
            counted(total([malloc.in_use_chunks, malloc.mmapped_chunks]), "chunk"),
            Size(total([malloc.free_bytes, malloc.fastbin_bytes])),
            counted(arenas.len() as u64, "arena")
        ),
        match (trim_call(report), Size(bytes(report, Cause::MallocFragmented))) {
            (Some(call), pinned) => format!(
                "{call} would return {}; another {pinned} share pages with memory in use",
                Size(malloc.trim_yield_bytes)
            ),
            (None, pinned) => {
                format!(
                    "{} has no function that returns memory, and {pinned} are pinned",
                    report.process.allocator
                )
            }
        },
    ];
    if malloc.trim_deferred_bytes > 0 {
        evidence.push(format!(
            "{} of that are in huge pages that are also in use: RSS falls at once, but the kernel frees them only when \
             it splits the huge pages",
            Size(malloc.trim_deferred_bytes)
        ));
    }
    evidence.extend(pin_evidence(report));
    let free = |arena: &&Arena| {
        let Arena { unreturned_bytes, muzzy_bytes, fragmented_bytes, top_bytes, .. } = **arena;
        total([unreturned_bytes, muzzy_bytes, fragmented_bytes, top_bytes])
    };
    if let Some(largest) = arenas.iter().max_by_key(free)
        && arenas.len() > 1
    {
        let name = if largest.main { "the main arena" } else { "an arena of threads" };
        evidence.push(format!(
            "the most free memory of one arena is {} ({name})",
            Size(free(&largest))
        ));
    }
    evidence
}

/// What keeps most of the fragmented memory, if that is worth a line.
fn pin_evidence(report: &Report) -> Option<String> {
    let fragmented = bytes(report, Cause::MallocFragmented);
    let pin = report.malloc.as_ref()?.pinned_by.first()?;
    let is_large = pin.bytes >= MIN_PART_BYTES && percent(pin.bytes, fragmented) >= MIN_PIN_SHARE;
    is_large.then(|| {
        format!(
            "{} of these are kept by {} of {}",
            Size(pin.bytes),
            counted(pin.blocks, "block"),
            pin.owner
        )
    })
}

/// The owners of a cause that hold most.
fn owner_evidence(report: &Report, cause: Cause) -> Vec<String> {
    let owners = report.owners.iter().flatten().filter(|owner| owner.cause == Some(cause));
    let owners: Vec<&Owner> = owners.take(MAX_EVIDENCE).collect();
    let least = owners.first().map_or(0, |first| first.bytes() / MIN_FRACTION);
    let describe = |owner: &Owner| {
        let memsize = match owner.memsize {
            Some(Memsize::None) => "; their type reports no size to Ruby",
            Some(Memsize::Function) => "; their type reports a size to Ruby",
            None => "",
        };
        let objects =
            if owner.objects > 0 { format!("{} ", Count(owner.objects)) } else { String::new() };
        // Their slots are this memory.
        if owner.chunks == 0 {
            return format!("{objects}{}: {} of slots", owner.owner, Size(owner.slot_bytes));
        }
        // Causes do not include the headers of chunks.
        let with = if report.process.allocator == "glibc" { " with headers" } else { "" };
        format!(
            "{objects}{}: {} in {}{with}{memsize}",
            owner.owner,
            Size(owner.held_bytes()),
            counted(owner.chunks, "chunk"),
        )
    };
    owners.into_iter().filter(|owner| owner.bytes() >= least).map(describe).collect()
}

/// The largest file in memory.
fn shmem_evidence(report: &Report) -> Vec<String> {
    let files = report.files.iter().filter(|file| file.is_in_memory);
    let largest = files.min_by_key(|file| Reverse(file.shared_bytes));
    let describe = |file: &MappedFile| {
        format!("the largest is {}: {}, mapped {}", file.path, Size(file.shared_bytes), times(file))
    };
    largest.map(describe).into_iter().collect()
}

fn file_evidence(report: &Report) -> Vec<String> {
    let mut evidence = vec![format!(
        "{} are shared pages of the kernel's cache, {} are private copies",
        Size(bytes(report, Cause::FileShared)),
        Size(bytes(report, Cause::FilePrivate))
    )];
    if let Some(file) = report.files.first() {
        let (size, times) = (Size(file.resident_bytes()), times(file));
        evidence.push(format!("the largest file is {}: {size}, mapped {times}", file.path));
    }
    let repeated = total(report.files.iter().map(|file| file.repeated_bytes));
    if repeated > report.verdict.bytes / 10 {
        evidence.push(format!(
            "{} are pages that RSS counts again, because the process maps the same part of a file several times",
            Size(repeated)
        ));
    }
    evidence
}

fn slot_evidence(report: &Report) -> Vec<String> {
    let Some(ruby) = &report.ruby else { return vec![] };
    vec![format!(
        "{} of {} are free, on {}",
        Count(ruby.slots_free),
        counted(total([ruby.slots_free, ruby.slots_live]), "slot"),
        counted(ruby.heap_pages, "heap page")
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files in memory were in no part of the memory in use.
    #[test]
    fn each_group_of_causes_is_in_one_part() {
        let in_parts = |group: &CauseGroup| PARTS.iter().filter(|it| it.1.contains(group)).count();
        for group in CauseGroup::ALL {
            let others = FREE.contains(&group) || group == CauseGroup::Unknown;
            assert_eq!(in_parts(&group) + usize::from(others), 1, "{group:?}");
        }
    }
}
