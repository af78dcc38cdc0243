use formats::{
    ArenaProblem, CacheProblem, CacheUnit, CachesProblem, DifferentFile, FindingKind, FindingRow,
    HeapPart, MissingFile, ResidencyEvidence, RssCount, RubyPart,
};
use ledger::{Count, Size};

use super::alarm::GroupState;

/// What a user can do about a Ruby without classes, as the rest of the sentence.
pub const NOT_STARTED: &str = ": try again in a moment";
/// What a user can do about an unknown garbage collector, as the rest of the sentence.
pub const OTHER_COLLECTOR: &str = " (to use that, start Ruby without RUBY_GC_LIBRARY)";
/// What a user can do about a layout that failed a check, as the rest of the sentence.
pub const LAYOUT_UNKNOWN: &str = ". Ruby may have been in the middle of a change: try again. If it fails every time, rbloat does not \
                                  support the layout of this Ruby";

/// Returns a finding as one sentence without a full stop, with the remedy if there is one.
#[must_use]
pub fn finding(finding: &FindingRow) -> String {
    let place = finding.address.as_ref().map(|at| format!(" (at {at})")).unwrap_or_default();
    format!("{}{place}", sentence(&finding.kind))
}

fn sentence(kind: &FindingKind) -> String {
    use FindingKind as Kind;
    match kind {
        Kind::CoreTruncated { bytes } => format!(
            "the core is cut short by {} (a full disk, or a limit: ulimit -c); the missing memory is in no row",
            Size(*bytes)
        ),
        Kind::CoreMemoryMissing { bytes } => format!(
            "{} of private memory were not dumped and are in no row, since bit 0 of /proc/PID/coredump_filter was not set",
            Size(*bytes)
        ),
        Kind::CoreStacksMissing { threads } => format!(
            "gdb could not read {} of the threads' stacks, which begin with guard pages (from glibc 2.42 on): they are in \
             no row, memory that only they reference counts as unreachable, and chunks in their thread caches count as in \
             use; a core written by the kernel has them",
            Count(*threads)
        ),
        Kind::CoreSegmentsInvalid { segments } => format!(
            "the core is damaged: {} of its segments are invalid and were left out",
            Count(*segments)
        ),
        Kind::CoreFilesUnknown => {
            "the files that the process had mapped are unknown: the core has no NT_FILE note".into()
        }
        Kind::CoreThreadsMissing => {
            "the core has no threads: stacks, and memory that only registers reference, are unknown".into()
        }
        Kind::CoreResidencyEstimated { evidence } => {
            let evidence = match evidence {
                ResidencyEvidence::Holes => {
                    "the holes of the file, which the kernel leaves for absent pages, show which pages were resident"
                }
                ResidencyEvidence::Contents => {
                    "pages of zeros count as absent, and all others as resident"
                }
            };
            format!(
                "a core has no page states, so RSS is an estimate: {evidence}; swapped pages count as resident, memory \
                 that the program excludes from cores (MADV_DONTDUMP) is in no row, and huge pages are unknown"
            )
        }
        Kind::CoreFileResidencyUnknown { bytes } => format!(
            "of {} of mapped files it is unknown how much was resident: only pages that the process changed are in a row",
            Size(*bytes)
        ),
        Kind::CoreFilesMissing { files, others } => {
            let file = |it: &MissingFile| format!("{} ({})", it.path, it.error);
            format!(
                "files that the process had mapped are missing, so their symbols are unknown: {}; run rbloat on the \
                 machine that has them, or copy them with their paths (usr/lib/...) below a folder and pass it by --sysroot",
                listed(files.iter().map(file), *others)
            )
        }
        Kind::CoreFilesDiffer { files, others } => {
            let file = |it: &DifferentFile| {
                let build_id = match &it.build_id {
                    Some(build_id) => format!("build id {build_id}"),
                    None => "no build id".into(),
                };
                format!("{} ({build_id}, mapped was {})", it.path, it.mapped_build_id)
            };
            format!(
                "files differ from those that the process had mapped, so they were not read: {}; pass a folder with the \
                 right files by --sysroot",
                listed(files.iter().map(file), *others)
            )
        }
        Kind::CoreFilesUnproven { paths, others } => format!(
            "files may differ from those that the process had mapped, since the core does not contain their build ids: {}",
            listed(paths.iter().cloned(), *others)
        ),
        Kind::CoreWithoutObjects => {
            "Ruby frees its heap before SIGTERM, SIGINT or SIGQUIT ends it, so the core of such a process has no objects; \
             make the core by gcore or SIGABRT"
                .into()
        }
        Kind::MemoryUnread => "the memory of malloc and Ruby was not read".into(),
        Kind::MallocNotFound => "no library that serves malloc was found in the process".into(),
        Kind::MallocUnsupported { allocator } => format!(
            "malloc is served by {allocator}, whose heap rbloat cannot read: its memory is in unknown"
        ),
        Kind::MallocUnread { error } | Kind::ProcessUnexplained { error, .. } => error.clone(),
        Kind::AllocatorUnknown { modules } => format!(
            "the allocator is not known: {} all export malloc, and the dynamic linker's list of modules cannot be read",
            modules.join(", ")
        ),
        Kind::AllocatorAssumed { caller, module } => format!(
            "the reference of {caller} to malloc is not resolved yet or leads to no known allocator; the allocator is \
             {module}, the first module that exports malloc in the dynamic linker's order"
        ),
        Kind::ArenaUnread { arena, main, problem, error } => {
            let name = if *main { "the main arena" } else { "an arena" };
            let reason = match problem {
                ArenaProblem::Unreadable => "a part of it is swapped out or gone",
                ArenaProblem::Changing => "a thread was stopped while it changed it",
                ArenaProblem::Inconsistent => {
                    "its heap is damaged, or a thread was stopped while it changed it"
                }
            };
            format!(
                "{name} ({arena}) could not be walked, so its memory is in unknown: {reason} ({error})"
            )
        }
        Kind::ArenaUnlisted { number: Some(number) } => {
            format!("extents belong to an arena {number}, which jemalloc does not list")
        }
        Kind::ArenaUnlisted { number: None } => {
            "an arena is not in the list of arenas, which was being changed or is damaged".into()
        }
        Kind::HugePagesUsed => {
            "an arena has used jemalloc's huge pages (hpa:true): free memory within them is in unknown".into()
        }
        Kind::ExtentUnread { error } => {
            format!("an extent of jemalloc could not be read, so its memory is in unknown: {error}")
        }
        Kind::HeapChanging { part, count, bytes } => changing(*part, *count, *bytes),
        Kind::ThreadCachesUnknown { problem } => {
            let reason = match problem {
                CachesProblem::NoRegisters => "the threads' registers are not known",
                CachesProblem::NotFound => "no thread cache was found",
                CachesProblem::Ambiguous => "thread caches were found in two ways",
            };
            format!("{reason}, so blocks in thread caches count as in use")
        }
        Kind::ThreadCachesRejected { misfits, all, unit } => {
            let (misfits, all) = (Count(*misfits), Count(*all));
            let reason = match unit {
                CacheUnit::Threads => {
                    format!("the known layout of thread caches does not fit {misfits} of {all} threads")
                }
                CacheUnit::Regions => {
                    format!("{misfits} of {all} regions in thread caches are not in use, or caches could not be read")
                }
            };
            format!("{reason}, so blocks in thread caches count as in use")
        }
        Kind::ThreadCacheUnread { tid, problem, error } => {
            let reason = match problem {
                CacheProblem::ArenaUnread => "it lies in an arena that could not be walked",
                CacheProblem::Changing => {
                    "a list is not as long as it counts, since the thread is within malloc"
                }
                CacheProblem::Invalid => error.as_deref().unwrap_or("it is invalid"),
            };
            format!("the cache of thread {tid}: {reason}")
        }
        Kind::MmappedChunksUnknown => {
            "glibc's parameters were not found, so mmapped chunks are not known".into()
        }
        Kind::MmappedChunksMiscounted {
            counted_chunks,
            counted_bytes,
            found_chunks,
            found_bytes,
        } => {
            let difference = |counted: u64, found: u64| {
                let word = if found > counted { "more" } else { "fewer" };
                format!("{} {word}", found.abs_diff(counted))
            };
            format!(
                "glibc counts {counted_chunks} mmapped chunks of {counted_bytes} bytes, but {found_chunks} of \
                 {found_bytes} bytes were found (chunks: {}, bytes: {}); which ones are wrong or missing is not known",
                difference(*counted_chunks, *found_chunks),
                difference(*counted_bytes, *found_bytes),
            )
        }
        Kind::MmappedBytesDrifted { bytes, chunks, step_bytes } => format!(
            "glibc counts {bytes} bytes more in its {chunks} mmapped chunks than they have: this release counts \
             {step_bytes} bytes twice each time that such a chunk is resized"
        ),
        Kind::ForeignBrkMemory { bytes } => format!(
            "{bytes} bytes between segments of the main arena are not malloc's: another user of brk(2) took them"
        ),
        Kind::RubyNotFound => {
            "this process does not run Ruby: none of its modules exports rb_cObject".into()
        }
        Kind::RubyStarting { version } => format!(
            "Ruby {version} is still starting and has no classes yet{NOT_STARTED}"
        ),
        Kind::CollectorUnsupported { version, collector } => format!(
            "cannot read the heap of Ruby {version}: its garbage collector {collector} has no heap pages as the default \
             one has{OTHER_COLLECTOR}"
        ),
        Kind::RubyUnread { version, error } => {
            format!("cannot read the heap of Ruby {version}: {error}{LAYOUT_UNKNOWN}")
        }
        Kind::RubyLayoutUnknown { part } => layout(*part).into(),
        Kind::ObjectLayoutsUnknown { types } => format!(
            "the layout of {} objects could not be derived, so all of their words are read: leftover words may count as \
             pointers",
            types.join(", ")
        ),
        Kind::RootsLeftOut => {
            "there are too many constants and variables: some were not read".into()
        }
        Kind::TransientHeapUnread { bytes } => format!(
            "{} of Ruby's transient heap could not be read: objects that only small young collections refer to may seem \
             to be garbage",
            Size(*bytes)
        ),
        Kind::SlotsUnread { slots } => format!(
            "{} slots of Ruby's heap are swapped out and could not be read: object counts are incomplete",
            Count(*slots)
        ),
        Kind::NoMarks => {
            "no object of Ruby's heap is marked: Ruby has not collected garbage yet, or has just begun to".into()
        }
        Kind::HeapPagesUnsearched => {
            "the page states are unknown, so memory was not searched for further heap pages".into()
        }
        Kind::PointersUnread { bytes, in_core } => {
            let reason = if *in_core { "not in the core" } else { "swapped out" };
            format!(
                "{} of malloc'ed memory, stacks and variables are {reason}: memory that only they point to is listed as \
                 unreachable",
                Size(*bytes)
            )
        }
        Kind::PointersLeftOut { pointers } => format!(
            "owners are incomplete: {} pointers were left out, since a single chunk has more pointers than rbloat can \
             keep; memory that only they point to is listed as unreachable",
            Count(*pointers)
        ),
        Kind::OwnersUnknown { nodes, max } => format!(
            "owners are incomplete: rbloat traces up to {} chunks or objects, and this process has about {}; malloc'ed \
             memory that no object refers to directly is in malloc.in_use",
            Count(*max),
            Count(*nodes)
        ),
        Kind::RssDiffers { bytes, min_bytes, max_bytes, counted_by } => {
            let count = match min_bytes == max_bytes {
                true => max_bytes.to_string(),
                false => format!("{min_bytes} to {max_bytes}"),
            };
            let counted = match counted_by {
                RssCount::PageStates => format!("{count} are resident"),
                RssCount::Kernel => format!("the kernel counts {count} resident bytes"),
                RssCount::Core => format!("the core accounts for {count} bytes"),
            };
            format!("the rows add up to {bytes} bytes, but {counted}")
        }
        Kind::ClaimedTwice { ranges, cause, other } => format!(
            "{} ranges of memory are claimed twice, the first by {cause} and by {other}; {cause} has them",
            Count(*ranges)
        ),
        Kind::EnvironmentUnknown => {
            "the environment cannot be read, so advice may already be in effect".into()
        }
        Kind::CopyLeft { pid, error } => format!(
            "the forked copy has ended, but is still in the process table as a zombie of {pid}: {error}. It takes no \
             memory. The next report removes it, as does the end of the process"
        ),
        Kind::GroupAlarm { alarm, used_bytes, limit_bytes, shmem_bytes, others, after_ms } => {
            let [used_bytes, limit_bytes, shmem_bytes] = [*used_bytes, *limit_bytes, *shmem_bytes];
            let (alarm, after_ms) = (*alarm, *after_ms);
            GroupState { alarm, used_bytes, limit_bytes, shmem_bytes, others, after_ms }.sentence()
        }
        Kind::GroupLimitUnknown => {
            "the control group of the family could not be found, so its memory limit is unknown".into()
        }
        Kind::ProcessEnded { pid } => {
            format!("process {pid} ended before it was read: the account lacks it")
        }
        Kind::ProcessUnread { error, .. } => format!("the account lacks a process: {error}"),
        Kind::ProcessNotTrimmed { error, .. } => format!("not trimmed: {error}"),
        Kind::Other { what: Some(what), .. } => what.clone(),
        Kind::Other { kind, what: None } => format!(
            "this version of rbloat does not know the finding: {}",
            kind.as_deref().unwrap_or("it has no kind")
        ),
    }
}

fn changing(part: HeapPart, count: u64, bytes: Option<u64>) -> String {
    match part {
        HeapPart::TreeEntries => {
            format!("{} entries of jemalloc's tree of extents were being changed", Count(count))
        }
        HeapPart::Extents => {
            let size = bytes.map(|bytes| format!(" ({})", Size(bytes))).unwrap_or_default();
            let count = Count(count);
            format!("{count} extents{size} were changing hands, so their memory is in unknown")
        }
        HeapPart::CachedRegions => {
            format!("{} regions were on their way into or out of thread caches", Count(count))
        }
        HeapPart::CacheLists => {
            format!("{} lists of thread caches were being changed", Count(count))
        }
    }
}

/// The layout that is unknown, and the effect on the report.
fn layout(part: RubyPart) -> &'static str {
    match part {
        RubyPart::ClassNames => {
            "the names of classes could not be derived: classes appear as anonymous"
        }
        RubyPart::SingletonClasses => {
            "the layout of classes could not be derived: objects that have a singleton class may count under that class"
        }
        RubyPart::InternalTypes => {
            "some types of Ruby's internal objects differ from those of its version: these types, and others if they could not be \
             confirmed, are shown by number, and their memory counts as ruby.vm"
        }
        RubyPart::DataTypes => {
            "the types of C extensions' objects could not be derived: the memory of Ruby's own C objects counts as theirs"
        }
        RubyPart::RootNames => {
            "the names of constants and variables could not be derived: retaining paths do not begin with them"
        }
        RubyPart::ClassVariables => {
            "the variables of classes could not be derived: retaining paths do not begin with them"
        }
        RubyPart::GlobalVariables => {
            "global variables could not be derived: retaining paths do not begin with them"
        }
        RubyPart::CodeFiles => {
            "the files of bytecode could not be derived: the interpreter's memory is shown by kind, but not by gem"
        }
    }
}

/// The first ones of a list, and the number of the others.
fn listed(first: impl Iterator<Item = String>, others: u64) -> String {
    let first = first.collect::<Vec<_>>().join(", ");
    match others {
        0 => first,
        others => format!("{first} and {} more", Count(others)),
    }
}
