mod figures;
mod free;
mod healthy;
mod objects;
mod stacks;
mod unknown;

use std::cmp::Reverse;

use diagnosis::{FREE, NativeHolder, mapper, native_holder};
use formats::{Action, Advice, CaptureMethod, MappedFile, Memsize, Owner, Report, Unread};
use ledger::{Cause, Count, Size, percent};

use super::advice::has_no_file;
use super::{VerdictWords, confidence, counted, total, trim_call, unread};
use crate::files::times;
use figures::{MAX_EVIDENCE, bytes};
use free::{arena_evidence, free, kept_on_purpose, slot_evidence, trim_yield};
use healthy::healthy;
use objects::{class_evidence, held, of_objects, singleton_classes};
use stacks::of_stacks;
use unknown::{reason, retainer_of_mappings, unknown};

/// An owner is no evidence if it holds less than this fraction of the first one's memory.
const MIN_FRACTION: u64 = 50;

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

/// The caches with memory that is kept for reuse. Ruby's transient heap is named if it has a tenth of that.
fn caches(report: &Report) -> String {
    let allocator = &report.process.allocator;
    if bytes(report, Cause::RubyTransient) >= report.verdict.bytes / 10 {
        format!("caches of {allocator} and Ruby")
    } else {
        format!("{allocator}'s caches")
    }
}

/// Returns true for causes of several groups: only free memory is summed up like that.
fn is_free(rows: &[Cause]) -> bool {
    rows.windows(2).any(|pair| pair[0].group() != pair[1].group())
}

fn has(report: &Report, action: &Action) -> bool {
    report.advice.iter().any(|step| step.action == *action)
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
        Cause::RubyTransient | Cause::MallocTop | Cause::MallocCached => {
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
                    if report.process.allocator.starts_with("mimalloc") {
                        format!("{size} are free in whole pages, which {allocator} keeps for the next requests.")
                    } else {
                        // tcmalloc's arena has no top.
                        let top = match bytes(report, Cause::MallocTop) {
                            0 => "",
                            _ => "at the top of arenas or ",
                        };
                        format!(
                            "{size} are free {top}in {}, where a trim does not reach them.",
                            caches(report)
                        )
                    },
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
            } else if report.advice.iter().any(|step| step.action == Action::FreePages) {
                "Process.warmup, followed by GC.start, should free most of these pages; ordinary load should fill others.".into()
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
                Cause::FilePrivate => match library_of_variables(report) {
                    Some(file) => format!(
                        "{size} are pages of mapped files and libraries, most of them variables of {} that begin as zeros (.bss).",
                        file.path
                    ),
                    None => {
                        format!("{size} are pages of mapped files, most of them changed by this process.")
                    }
                },
                _ => {
                    let locked = report.process.locked_file_bytes;
                    let on_disk = report.files.iter().filter(|file| !file.is_in_memory);
                    let writable = total(on_disk.map(|file| file.writable_bytes));
                    let is_most = |bytes: u64| bytes > report.verdict.bytes / 2;
                    let effect = match (is_most(locked), is_most(writable)) {
                        (true, _) => format!(
                            "The kernel cannot take back what is locked in memory (mlock or mlockall): {} of pages of files.",
                            Size(locked)
                        ),
                        (_, true) => format!(
                            "{} are of files that the process maps to write to: the kernel can take back a changed page only after it has \
                             written it to the disk.",
                            Size(writable)
                        ),
                        _ => "The kernel takes back pages of files on disk when memory is short.".into(),
                    };
                    format!("{size} are pages of mapped files, most of them in the kernel's cache. {effect}")
                }
            },
            file_evidence(report),
            match cause {
                Cause::FilePrivate if library_of_variables(report).is_some() => {
                    "Private_Dirty in /proc/PID/smaps should have these pages, at the mapping without a name behind those of the library."
                }
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
            "releasing, freeing or closing these objects should lower the memory in use.".into(),
        ),
        Cause::NativeGlobal => {
            let holder = native_holder(report);
            let who = match holder {
                NativeHolder::Glibc => {
                    "most of it by the C library, which for example keeps every value that ENV has had.".into()
                }
                NativeHolder::ThreadLocals => {
                    "most of it by thread-local variables: each thread has its own.".into()
                }
                NativeHolder::Library(name) => format!("most of it by those of {name}."),
                NativeHolder::Libraries => "not by Ruby objects.".to_owned(),
            };
            let check = match holder {
                NativeHolder::Glibc => {
                    "if these are old values of ENV, `rbloat who` names the code that assigns to it while this grows. Only a restart \
                     frees them."
                }
                NativeHolder::ThreadLocals => "native.global should fall when threads end.",
                NativeHolder::Library(_) | NativeHolder::Libraries => {
                    "emptying the library's caches, followed by malloc_trim, should lower RSS."
                }
            };
            let sentence = format!(
                "{size} of native memory are held by variables of libraries and by threads, {who}"
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
            match mapper(report) {
                Some((_, class)) => format!(
                    "{size} are anonymous memory outside of malloc and of Ruby's heap. Objects of {class} refer to most of it."
                ),
                None => format!(
                    "{size} are anonymous memory that rbloat cannot account for: {}.",
                    reason(report)
                ),
            },
            retainer_of_mappings(report)
                .into_iter()
                .chain(report.unknown.iter().take(MAX_EVIDENCE).map(unknown))
                .collect(),
            match has(report, &Action::FindMapper) {
                true => format!("while it grows, `rbloat who {pid}` names the code that touches it first."),
                false => "a report in which malloc and Ruby could both be read names the cause.".into(),
            },
        ),
    }
}

/// The owners of a cause that hold most.
fn owner_evidence(report: &Report, cause: Cause) -> Vec<String> {
    let owners = report.owners.iter().flatten().filter(|owner| owner.cause == Some(cause));
    let owners: Vec<&Owner> = owners.take(MAX_EVIDENCE).collect();
    let least = owners.first().map_or(0, |first| first.bytes() / MIN_FRACTION);
    let describe = |owner: &Owner| {
        let memsize = match owner.memsize {
            Some(Memsize::None) => "; the type reports no size to Ruby",
            Some(Memsize::Function) => "; the type reports a size to Ruby",
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
    let describe = |file: &MappedFile| match has_no_file(&file.path) {
        // Several have one name.
        true => format!(
            "{} are anonymous shared memory, which /proc/PID/maps lists as {}, in {}",
            Size(file.shared_bytes),
            file.path,
            counted(file.mappings, "mapping")
        ),
        false => format!(
            "the largest is {}: {}, mapped {}",
            file.path,
            Size(file.shared_bytes),
            times(file)
        ),
    };
    largest.map(describe).into_iter().collect()
}

/// The library whose variables without a place in its file are most of the verdict's memory.
fn library_of_variables(report: &Report) -> Option<&MappedFile> {
    report.files.iter().find(|file| file.zeroed_bytes > report.verdict.bytes / 2)
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
