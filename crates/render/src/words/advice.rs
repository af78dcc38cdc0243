use diagnosis::{
    BACKGROUND_THREAD, JEMALLOC, NativeHolder, TWO_ARENAS, Variable, are_kept_by_extensions,
    is_of_extensions, mapper, native_holder, retainer_of_mapper, retaining_few, was_garbage_alive,
};
use formats::{Action, Advice, CaptureMethod, LargeGem, Maker, ProcessSummary, Report};
use ledger::{Cause, Count, Size};

use crate::made_by::maker;
use crate::text::quoted;

use super::interpreter::{have_fewer_symbols, limit_table};
use super::lines::is_used_in;
use super::places::place_of;
use super::retained::{
    by_several, free_native, many_of, of_matches, release, release_native, release_of_several,
    shrink, with_other,
};
use super::room::{of_contents, use_less_room};
use super::shared::{in_family, shares_most};
use super::threads::{end_fibers, run_fewer_threads};
use super::{GLIBC_TRIM, trim_call};

/// A step in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdviceWords {
    /// The step, in one or two sentences.
    pub action: String,
    /// The command, setting or method.
    pub command: String,
    /// A condition of the command; `None` if it has none.
    pub remark: Option<&'static str>,
    /// The cost of the step.
    pub costs: String,
}

/// The object that has the records of `ObjectSpace.trace_object_allocations_start`.
const TRACER: &str = "ObjectTracing/allocation_info_tracer";
/// The methods that free the memory of an extension's object at once.
const FREEING_METHODS: [(&str, &str); 16] = [
    ("PG::Result", "result.clear"),
    ("PG::Connection", "connection.close"),
    ("Mysql2::Result", "result.free"),
    ("Mysql2::Statement", "statement.close"),
    ("Mysql2::Client", "client.close"),
    ("SQLite3::Statement", "statement.close"),
    (
        "SQLite3::Database",
        "PRAGMA shrink_memory or a smaller PRAGMA cache_size, if it is its page cache; statement.close for each statement before it is lost; or \
         database.close",
    ),
    ("Zlib::Deflate", "deflate.close"),
    ("Zlib::Inflate", "inflate.close"),
    ("Zlib::GzipReader", "reader.close"),
    ("Zlib::GzipWriter", "writer.close"),
    (
        "OpenSSL::SSL::SSLContext",
        "context.flush_sessions(Time.now + 86_400), or a smaller context.session_cache_size",
    ),
    ("FFI::MemoryPointer", "pointer.free"),
    (
        "Fiddle::Pointer",
        "pointer.call_free, or Fiddle.free(pointer.to_i) if it has no function that frees it",
    ),
    ("Magick::Image", "image.destroy!"),
    (
        TRACER,
        "ObjectSpace.trace_object_allocations_stop, then ObjectSpace.trace_object_allocations_clear",
    ),
];

/// Returns true if variables of libvips, of which most of the memory is GLib's objects, hold some.
fn has_libvips(report: &Report) -> bool {
    let owners = report.owners.iter().flatten();
    owners
        .filter(|it| it.cause == Some(Cause::NativeGlobal))
        .any(|it| it.owner.starts_with("libvips."))
}

/// The call that frees the memory of a class of an extension, if it is known to have one. `path` leads to its objects.
fn freeing_method(class: &str, path: Option<&str>) -> Option<&'static str> {
    const OF_NOKOGIRI: &str = "Nokogiri::";
    match FREEING_METHODS.iter().find(|(name, _)| *name == class) {
        Some((_, method)) => Some(method),
        None if class.ends_with("::Document")
            && path.is_some_and(|path| path.matches(OF_NOKOGIRI).count() == 1) =>
        {
            class.starts_with(OF_NOKOGIRI).then_some(
                "document.at(...).text or the like, and keep the results in place of the document",
            )
        }
        None => class.starts_with(OF_NOKOGIRI).then_some(
            "node.text or the like, and keep the result in place of the node: each node keeps its whole document",
        ),
    }
}

/// Returns a step that `report` advises in words.
#[must_use]
pub fn advice(advice: &Advice, report: &Report) -> AdviceWords {
    let ProcessSummary { pid, .. } = report.process;
    let process = process(report);
    let (action, command, costs) = match &advice.action {
        Action::Trim => (
            format!("Return the free pages now: call {} in the process.", trim_call(report).unwrap_or(GLIBC_TRIM)),
            format!("rbloat trim {}{pid}", if shares_most(report) { "--tree " } else { "" }),
            "some milliseconds, then page faults when the memory is needed again. The same load allocates it again.",
        ),
        Action::AutoTrim => (
            "Let rbloat's gem return free pages whenever that is worth it: its AutoTrim calls malloc_trim in a thread \
             of its own. This is the lasting counterpart of `rbloat trim`."
                .into(),
            "gem \"rbloat\" in the Gemfile, and RBLOAT_AUTO_TRIM=1".into(),
            "a restart, and up to 1 % of the CPU time, AutoTrim's budget.",
        ),
        Action::PreloadJemalloc { is_broken, is_pinned } => (
            match (is_broken, is_pinned) {
                (true, _) => "Correct LD_PRELOAD: it names jemalloc, but jemalloc was not loaded.".into(),
                (_, true) => "Try jemalloc. It keeps blocks of different sizes on different pages. That helps if the \
                              freed blocks have other sizes than the blocks in use. It does not help if they have the \
                              same sizes. One report cannot tell which of the two it is."
                    .into(),
                _ => "Start the process with jemalloc and its background thread, which returns free pages about 10 s \
                      after they were freed. Without that thread, an idle process may keep them."
                    .into(),
            },
            assignments(&JEMALLOC),
            "a restart. The peak during a burst does not fall. Forked processes, such as the workers of Puma, have no \
             background thread, and may keep free pages while they are idle.",
        ),
        Action::DecayInBackground => (
            if super::keeps_pages_forever(report) {
                "Let jemalloc return free pages: drop dirty_decay_ms:-1 from its settings, and start its background thread, which \
                 returns free pages some seconds after they were freed."
            } else {
                "Start jemalloc's background thread, which returns free pages some seconds after they were freed. Without it, \
                 jemalloc returns the pages of an arena only while a thread allocates from that arena."
            }
            .into(),
            assignments(&BACKGROUND_THREAD),
            "a restart. The peak during a burst does not fall. Forked processes, such as the workers of Puma, have no \
             background thread.",
        ),
        Action::LimitArenas { kept_bytes } => (
            format!(
                "Limit malloc to two arenas: the others keep {} free. This helps against steady churn in threads, but \
                 not against bursts, since two arenas keep a burst's peak as well. One report cannot tell which of the \
                 two it was.",
                Size(*kept_bytes)
            ),
            assignments(&TWO_ARENAS),
            "a restart, and threads that sometimes wait for each other in malloc.",
        ),
        Action::ReturnTop { variable, threshold_bytes, bytes } => (
            format!(
                "Start the process without {variable}, or with a smaller value: it lets malloc keep free memory of {} at the end of \
                 its heap, and there are {} now.",
                up_to(*threshold_bytes),
                Size(*bytes)
            ),
            without(variable),
            "a restart, and a call of the kernel whenever the end of the heap was freed or is needed again.",
        ),
        Action::MapLargeBlocks { variable, threshold_bytes } => (
            format!(
                "Try it without {variable}. With it, blocks of {} are parts of malloc's heap, and freed ones stay there. By default, \
                 blocks of more than 32 MiB have mappings of their own, which return at once. One report cannot tell whether the \
                 program has freed such blocks.",
                up_to(*threshold_bytes)
            ),
            without(variable),
            "a restart, and a call of the kernel for each block as large as that.",
        ),
        Action::EnableGc { garbage_bytes } => (
            format!(
                "Enable the GC: it is disabled, so garbage stays in memory.{} If an exception skipped GC.enable, call it in an \
                 ensure clause.",
                collected(*garbage_bytes, report)
            ),
            "GC.enable".into(),
            "the time of collections, as in any other Ruby process.",
        ),
        Action::AllowFullMark { garbage_bytes } => (
            format!(
                "Let the GC collect old objects, too, or call GC.start when the program is idle: old garbage may stay because of \
                 GC.config(rgengc_allow_full_mark: false).{}",
                collected(*garbage_bytes, report)
            ),
            "GC.config(rgengc_allow_full_mark: true)".into(),
            "the time of full collections.",
        ),
        Action::UnsetInitialSlots { variables } => (
            format!(
                "Start the process without {}, or with a smaller value: {}",
                variables.join(" and "),
                match variables.iter().all(|name| name.ends_with("_RATIO")) {
                    true => "Ruby frees empty pages only as long as more than that part of all slots is free.",
                    false => {
                        "Ruby never frees the pages of that many slots, and GC.compact does not change that."
                    }
                }
            ),
            format!("unset {}", variables.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" ")),
            "a restart, and more collections while Ruby's heap grows to the size that the program needs.",
        ),
        Action::FreePages => (
            "Let Ruby free the heap pages that have no slots now. It keeps them for later, so RSS falls only until the program needs them again.".into(),
            "Process.warmup, then GC.start".into(),
            "a pause of the whole process: it collects all garbage and compacts the heap.",
        ),
        Action::Compact => (
            match report.process.ruby_version.as_deref() {
                Some(version) if version < "3" => {
                    "Compact Ruby's heap, so that empty heap pages can be freed. This Ruby has its pages from malloc, which keeps \
                     them for reuse, so RSS need not fall."
                }
                _ => {
                    "Compact Ruby's heap, so that empty heap pages can be freed. How many depends on the objects that cannot move: those \
                     that C extensions refer to, and keys of Hashes that compare by identity."
                }
            }
            .into(),
            "GC.compact, then GC.start five times".into(),
            "pauses of the whole process, and the pages return when the load needs the slots.",
        ),
        Action::ReleaseObjects { class, bytes, path, are_garbage, garbage_bytes } => {
            let owner = report.owners.iter().flatten().find(|owner| owner.owner == *class);
            // One of many Arrays may have a singleton class.
            let has_singletons = owner.is_some_and(|owner| owner.singleton_bytes > bytes / 20);
            let size = match has_singletons {
                true => format!("{} with their singleton classes", Size(*bytes)),
                false => Size(*bytes).to_string(),
            };
            let few = owner.and_then(|owner| retaining_few(owner).zip(Some(owner)));
            let may_be_garbage = path.as_deref().is_some_and(is_of_extensions);
            let few = few.filter(|(few, _)| few.path == *path && !may_be_garbage);
            let roots = path.as_deref().map(|path| with_other(path, owner));
            // Others may retain the objects of the first root, too.
            let has_other = owner.is_some_and(|it| it.kept_by.first().is_some_and(|it| it.other_path.is_some()));
            let is_possible = path.is_none() || !may_be_garbage && !has_other;
            let several = owner.filter(|_| !are_garbage && is_possible);
            let several = several.and_then(|owner| by_several(owner, *bytes));
            let mut path = path.as_deref();
            let (words, command, costs) = match (few, roots, several) {
                (Some((few, owner)), Some(roots), _) => shrink(&process, few, &roots, owner),
                (_, _, Some((roots, first))) => {
                    path = Some(first);
                    release_of_several(&process, class, &size, &roots)
                }
                (_, roots, None) => {
                    let garbage = are_garbage.then(|| collected(*garbage_bytes, report));
                    let are_kept = are_kept_by_extensions(report, Some(class));
                    release(&process, class, &size, roots.as_deref(), garbage.as_deref(), are_kept)
                }
            };
            let uses = path.and_then(|path| is_used_in(path, &report.root_uses));
            let uses = uses.map_or_else(String::new, |uses| format!(" {uses}."));
            let place = place_of(report, path, class);
            let of_matches = of_matches(path);
            let more = format!("{of_matches}{uses}{}{place}", of_contents(report, class));
            (words + &more, command, costs)
        }
        Action::Rehash { path, .. }
        | Action::CopySlices { path, .. }
        | Action::CopyBuffers { path, .. }
        | Action::ShareStrings { path, .. } => {
            let (words, command, costs) = use_less_room(&advice.action);
            (words + &place_of(report, Some(path), ""), command, costs)
        }
        Action::UnsetMallocLimits { variables } => (
            format!(
                "Start the process without {}, or with smaller values: the GC waits until the program has allocated as much.",
                variables.join(", ")
            ),
            format!("unset {}", variables.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" ")),
            "a restart, and more collections.",
        ),
        Action::NativePressure { class } => (
            format!(
                "Let rbloat's gem tell the GC how much native memory there is, so that it runs earlier: the type of {class} \
                 reports no size, and unless its extension does, the GC does not know of this memory. The gem's NativePressure tells it."
            ),
            "gem \"rbloat\" in the Gemfile, and RBLOAT_NATIVE_PRESSURE=1".into(),
            "a restart, and the time of the collections.",
        ),
        Action::FreeNative { class, objects, path, garbage_objects } => {
            let method = freeing_method(class, path.as_deref());
            let owner = report.owners.iter().flatten().find(|owner| owner.owner == *class);
            let roots = path.as_deref().map(|path| with_other(path, owner));
            let all = owner.map_or(*objects, |owner| owner.objects);
            let many = many_of(class, *objects, all);
            (
                match method {
                    _ if class == TRACER => {
                        "Stop the tracing of allocations, and drop its records: they take this memory.".into()
                    }
                    Some(_) => free_native(&many, *objects, roots.as_deref(), *garbage_objects),
                    None => release_native(&many, *objects, roots.as_deref(), *garbage_objects),
                },
                match method {
                    Some(method) => method.to_owned(),
                    None if *garbage_objects > 0 => "GC.start".into(),
                    None => format!("rbloat why {process} {}", quoted(class)),
                },
                match garbage_objects {
                    0 => "a change of the program.",
                    _ => "a change of the program. GC.start frees garbage at once.",
                },
            )
        }
        Action::FindNativeLeak => (
            "Find the code that allocates this memory and does not free it: nothing points to it any more. While RSS grows with \
             it, `rbloat who` names the method in C and the line that calls it; `rbloat diff` states if RSS does not. If the method is one \
             of Ruby's own, upgrade Ruby; otherwise upgrade the extension, or fix it."
                .into(),
            format!("rbloat who {process}"),
            "less than 1 % of a processor while it watches. A restart frees the memory for some time.",
        ),
        Action::FindNativeUse => (
            format!(
                "Find the code that fills this memory: {} hold it, not Ruby objects, so the GC cannot free it. While RSS grows with it, \
                 `rbloat who` names the line that calls the library. {}",
                match native_holder(report) {
                    NativeHolder::Library(name) => format!("variables of {name}"),
                    _ => "variables of libraries or threads".to_owned(),
                },
                match native_holder(report) {
                    NativeHolder::Glibc => {
                        "Old values of ENV are freed by a restart only: assign to it less often."
                    }
                    NativeHolder::ThreadLocals => "Each thread has its own: run fewer threads, or let them end.",
                    NativeHolder::Library(_) | NativeHolder::Libraries if has_libvips(report) => {
                        "Empty what it fills, or close it: `Vips.cache_set_max(0)` empties libvips' cache of operations."
                    }
                    NativeHolder::Library(_) | NativeHolder::Libraries => {
                        "Empty what it fills, or close it."
                    }
                }
            ),
            format!("rbloat who {process}"),
            "less than 1 % of a processor while it watches.",
        ),
        Action::LookForNative => (
            "Look for native memory that Ruby's GC does not know of: results, documents and handles of C extensions \
             that are neither freed nor closed."
                .into(),
            "call their clear, close or free method, or upgrade the extension".into(),
            "a change of the program.",
        ),
        Action::FindMapper => match mapper(report) {
            Some((_, class)) => {
                let most = retainer_of_mapper(report);
                let most = most.filter(|(owner, _, objects)| *objects > owner.objects / 2);
                release_mappings(&process, class, most.map(|(_, path, _)| path))
            }
            None => (
                "Find the code that maps this memory: it is neither malloc's nor Ruby's. While it grows, `rbloat who` names the code that \
                 touches it for the first time."
                    .into(),
                format!("rbloat who {process}"),
                "less than 1 % of a processor while it watches.",
            ),
        },
        Action::LoadLessCode { gems } => (
            format!(
                "Load less code, if this memory does not grow any more. The bytecode of {}. A process that never uses a gem need not load it, and saves at \
                 least its bytecode. Workers share the code that their parent loads before it forks.",
                bytecode_of(gems)
            ),
            "`require: false` in the Gemfile and require where the gem is used, or preload_app! in Puma's cluster mode"
                .into(),
            "a restart. The first use of such a gem takes longer, since it loads the code then. Workers stop sharing \
             a page when they write to it.",
        ),
        Action::LimitTable { table, bytes, is_room } => {
            let (action, command) = match is_room {
                true => have_fewer_symbols(Size(*bytes)),
                false => limit_table(*table, Size(*bytes), report),
            };
            (action, command.into(), "a change of the program.")
        }
        Action::StopCoverage { bytes } => (
            format!(
                "Stop measuring code coverage, or measure less of it: the counters of all files that were loaded since Coverage.start \
                 take {}.",
                Size(*bytes)
            ),
            "Coverage.result(stop: true, clear: true)".into(),
            "a change of the program. The counts are gone unless it keeps the result.",
        ),
        Action::DefineCodeOnce { path, iseqs, bytes } => (
            format!(
                "Find out whether the code of {path} is defined again and again: {} of its methods and blocks take {}. If they are the \
                 same, define them once, and call them again. While it grows, `rbloat who` names the line that defines them.",
                Count(*iseqs),
                Size(*bytes)
            ),
            format!("rbloat who {process}"),
            "a change of the program. While it watches, `rbloat who` takes less than 1 % of a processor.",
        ),
        Action::LimitJit { option, mebibytes } => (
            "Limit the memory of the JIT compiler. It stops compiling at the limit, and other methods are interpreted."
                .into(),
            format!("RUBYOPT={option}={mebibytes}"),
            "a restart, and speed if methods that run often are compiled late. ZJIT has the option --zjit-mem-size.",
        ),
        Action::RunFewerThreads { threads, starter, others, class } => {
            let (action, command) =
                run_fewer_threads(*threads, starter.as_ref(), others.as_ref(), class.as_ref());
            (action, command, "less work at the same time.")
        }
        Action::EndThread { bytes } => (
            format!(
                "Start a thread and let it end: glibc keeps {} of stacks of threads that do not run, and frees stacks beyond 40 MiB \
                 only when a thread ends.",
                Size(*bytes)
            ),
            "Thread.new {}.join".into(),
            "nothing. Ruby keeps its native thread for some seconds.",
        ),
        Action::UnlockMemory { bytes } => (
            format!(
                "Lock less memory: {} are locked (mlock or mlockall), so that neither malloc nor a trim can return a page of it, and the \
                 kernel can take back none.",
                Size(*bytes)
            ),
            "munlockall, or mlock of a few pages instead of mlockall".into(),
            "pages that are not locked may be swapped.",
        ),
        Action::RecurseLess { bytes } => (
            format!(
                "Recurse less deeply in the main thread: its stacks keep all pages that calls have used once, {} of them.",
                Size(*bytes)
            ),
            "a loop and an Array instead of recursion".into(),
            "a change of the program. With the usual limits (RUBY_THREAD_VM_STACK_SIZE, ulimit -s), a recursion so deep ends with \
             SystemStackError.",
        ),
        Action::DisableThreadCaches { bytes } => (
            format!(
                "Fork this process from one that has no other threads yet, or turn glibc's thread caches off in the process that forks it: {} \
                 are free, but only for threads that this process does not have.",
                Size(*bytes)
            ),
            "GLIBC_TUNABLES=glibc.malloc.tcache_count=0".into(),
            "a restart. Without thread caches, malloc and free take longer.",
        ),
        Action::RunFewerFibers { bytes } => (
            format!(
                "Run fewer fibers at the same time: {} are stacks that no fiber has any more, which Ruby keeps for as many new ones.",
                Size(*bytes)
            ),
            "a limit for fibers that exist at once, such as Async::Semaphore".into(),
            "less work at the same time.",
        ),
        Action::EndFibers { fibers, path, are_garbage } => {
            end_fibers(*fibers, path.as_deref(), *are_garbage)
        }
        Action::ChangeCode { of, owner, code } => (
            change_code(*of, owner.as_deref(), code),
            match owner {
                Some(_) => "a limit for a cache, entries that are deleted, ids instead of objects",
                None if *of == Cause::Unknown => "the close, free or destroy method of what maps it",
                None => "find_each instead of all, rows that are written one by one, a streamed response",
            }
            .into(),
            "a change of the program.",
        ),
        Action::UseLessSharedMemory { bytes, path, path_bytes } => (
            use_less_shared_memory(*bytes, path, *path_bytes),
            // Unrelated memory of other processes has the kernel's names, too.
            match linux::is_named_by_kernel(path.as_bytes()) {
                true => format!("grep RssShmem /proc/{pid}/status"),
                false => format!("grep -lF {} /proc/[0-9]*/maps", quoted(path)),
            },
            "a change of the program. Files on disk instead of tmpfs take memory as cache only.",
        ),
        Action::CloseFilesInMemory { bytes, path, path_bytes, is_deleted, pid } => (
            format!(
                "Close files in memory that nobody needs{}: {} of the control group are files in tmpfs or shared memory that no \
                 process has mapped, so RSS does not count them. The largest that is open is {path} with {}, {}open in process \
                 {pid}.",
                if *is_deleted { "" } else { ", and delete them" },
                Size(*bytes),
                Size(*path_bytes),
                if *is_deleted { "deleted but " } else { "" },
            ),
            format!("ls -l /proc/{pid}/fd"),
            "a change of the program. Files on disk instead of tmpfs take memory as cache only.",
        ),
        Action::UnmapFiles { bytes, path, path_bytes } => (
            format!(
                "Unmap files that are no longer needed: {} are pages of files on disk that the process maps to write to. The kernel can take \
                 back a changed page only after it has written it to the disk. The largest file is {path} with {}.",
                Size(*bytes),
                Size(*path_bytes)
            ),
            format!("grep -lF {} /proc/[0-9]*/maps", quoted(path)),
            "a change of the program. What has such a file mapped may be an object, such as an image: release it, or close it.",
        ),
        Action::WatchPss => (
            "Change nothing, and watch anonymous memory instead of RSS: the kernel takes back pages of files on disk when memory is \
             short. PSS has these pages in full if no other process maps the same files."
                .into(),
            format!("grep -E '^(Pss|Anonymous)' /proc/{pid}/smaps_rollup"),
            "nothing.",
        ),
    };
    let action = action + &reuse(advice) + &in_family(advice, report);
    let remark = match advice.action {
        Action::FindNativeLeak => {
            Some("the C function: memleak-bpfcc -p PID, of Debian's bpfcc-tools")
        }
        _ => None,
    };
    AdviceWords { action, command, remark, costs: costs.into() }
}

/// The sentence on garbage that a collection frees; empty if it is not known.
pub(super) fn collected(garbage_bytes: u64, report: &Report) -> String {
    let about = if was_garbage_alive(report) { "up to" } else { "about" };
    match Size(garbage_bytes) {
        Size(0) => String::new(),
        bytes => format!(" A collection frees {about} {bytes} for reuse, but RSS need not fall."),
    }
}

/// The sentence on memory that a step frees, but that malloc may keep; empty for other steps.
fn reuse(advice: &Advice) -> String {
    match (&advice.action, advice.saves_bytes) {
        (
            Action::Rehash { bytes, .. }
            | Action::CopySlices { bytes, .. }
            | Action::ShareStrings { bytes, .. }
            | Action::CopyBuffers { bytes, .. },
            None,
        ) => format!(" That frees about {} for reuse, but RSS need not fall.", Size(*bytes)),
        _ => String::new(),
    }
}

/// The code to change, for memory that is free again, or for an owner that still holds it.
fn change_code(of: Cause, owner: Option<&str>, code: &Maker) -> String {
    let (size, code) = (Size(code.bytes), maker(code));
    match owner {
        Some(owner) => format!(
            "Look at the code that first touched {size} of {owner}: {code}. If it keeps fewer objects, less is in use."
        ),
        None if of == Cause::Unknown => format!(
            "Look at the code that first touched {size} of memory that is neither malloc's nor Ruby's: {code}. If it keeps fewer mappings, \
             less is in use."
        ),
        None => format!(
            "Look at the code that first touched {size} of {of}: {code}. If it needs less memory at a time, less remains."
        ),
    }
}

/// Returns true for shared memory that no file descriptor leads to: of System V, or anonymous.
pub(super) fn has_no_file(path: &str) -> bool {
    linux::is_named_by_kernel(path.as_bytes()) && !path.starts_with("/memfd:")
}

fn use_less_shared_memory(bytes: u64, path: &str, path_bytes: u64) -> String {
    let has_no_name = linux::is_named_by_kernel(path.as_bytes()) || path.ends_with(" (deleted)");
    let how = match has_no_name {
        true => "That is free when no process has it mapped or open any more.",
        false => {
            "Delete files that nobody needs; their memory is free when no process has them mapped or open any more."
        }
    };
    let (size, largest) = (Size(bytes), Size(path_bytes));
    let most = match has_no_file(path) {
        true => format!(
            "The largest part is anonymous: {largest}, which /proc/PID/maps lists as {path}"
        ),
        false => format!("The largest file is {path} with {largest}"),
    };
    format!("Use less shared memory: {size} are mapped. {most}. {how}")
}

/// A size that a setting allows, which may be no limit at all.
fn up_to(bytes: u64) -> String {
    if bytes >> 46 > 0 { "any size".into() } else { format!("up to {}", Size(bytes)) }
}

/// The change of the environment that drops a variable, or one of glibc's tunables.
fn without(variable: &str) -> String {
    match variable.split_once(" in ") {
        Some((tunable, variable)) => format!("{variable} without {tunable}"),
        None => format!("unset {variable}"),
    }
}

/// Variables as a shell assigns them.
fn assignments(variables: &[Variable]) -> String {
    let assignments: Vec<_> =
        variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assignments.join(" ")
}

/// Returns the process in commands to type: its id, or PID for a core, whose process has ended.
pub(crate) fn process(report: &Report) -> String {
    match report.capture.method {
        CaptureMethod::Core => "PID".to_owned(),
        _ => report.process.pid.to_string(),
    }
}

/// The step against mappings to which objects of this class refer.
fn release_mappings(
    process: &str,
    class: &str,
    path: Option<&str>,
) -> (String, String, &'static str) {
    let way = match class {
        "IO::Buffer" => {
            "IO::Buffer#free unmaps it, and so does the GC when nothing refers to the object"
        }
        _ => "A method such as free or close may unmap it",
    };
    let what = match path {
        Some(path) => format!(" are retained by {path} and"),
        None => String::new(),
    };
    let retains = if path.is_none() { " The command shows what retains them." } else { "" };
    (
        format!(
            "Release the objects of class {class} that{what} are no longer needed: they refer to most of this memory. {way}.{retains}"
        ),
        format!("rbloat why {process} {}", quoted(class)),
        "a change of the program.",
    )
}

/// "rouge takes 9.1 MiB, and that of mail 4.2 MiB".
fn bytecode_of(gems: &[LargeGem]) -> String {
    let mut text = String::new();
    for (index, LargeGem { gem, bytes }) in gems.iter().enumerate() {
        let size = Size(*bytes);
        text += &match index {
            0 => format!("{gem} takes {size}"),
            _ if index + 1 == gems.len() => format!(", and that of {gem} {size}"),
            _ => format!(", that of {gem} {size}"),
        };
    }
    text
}
