mod interpreter;
mod objects;
mod slots;
mod stacks;
mod thresholds;
mod worth;

use std::cmp::Reverse;

use formats::{Action, Advice, Report};
use image::Origin;
use ledger::{ArenaAccount, Cause, Ledger, OwnerAccount};

use interpreter::against_interpreter;
use objects::{
    garbage_bytes, release, release_besides, retaining_most_bytes, share_strings,
    unset_malloc_limits, use_less_room,
};
use slots::against_free_slots;
pub use slots::keeps_most_free_slots;
pub use stacks::keeps_native_threads;
use stacks::{
    OF_THREADS, disable_thread_caches, end_fibers, end_thread, recurse_less, run_fewer_fibers,
    run_fewer_threads, vm_stack_is_larger,
};

use thresholds::{map_large_blocks, return_top};
use worth::{is_main, is_worth, step};

use crate::verdict::has_all_arenas;

/// The name of the thread of the gem's AutoTrim.
const AUTO_TRIM_THREAD: &str = "rbloat-trim";
/// Returns the steps that a user can take: those against `cause`, the verdict's, come first, then those against the
/// largest amount of memory. Of several steps against the same memory, those come first whose effect lasts.
#[must_use]
pub fn advise(ledger: &Ledger, cause: Option<Cause>) -> Vec<Advice> {
    use Cause::{MallocFragmented, MallocUnreturned, RubyLiveSlots, RubyMalloc};
    let mut malloc = vec![
        auto_trim(ledger),
        preload(ledger),
        decay_in_background(ledger),
        limit_arenas(ledger),
        trim(ledger),
    ];
    // A broken setting is corrected before others are tried. A trim returns less than half of pinned memory.
    if is_preload_broken(ledger) || is_pinned(ledger) {
        malloc.swap(0, 1);
    }
    malloc.splice(0..0, return_top(ledger));
    malloc.push(map_large_blocks(ledger));
    malloc.insert(0, unlock(ledger).filter(|_| locks_free_memory(ledger)));
    let groups: [(&[Cause], Vec<Option<Advice>>); 15] = [
        (&[MallocUnreturned, MallocFragmented], malloc),
        (&[Cause::MallocCached], vec![disable_thread_caches(ledger)]),
        (&[Cause::RubyFreeSlots], against_free_slots(ledger)),
        (
            &[RubyLiveSlots, RubyMalloc],
            ledger
                .spare
                .iter()
                .map(|it| use_less_room(ledger, it))
                .chain([
                    share_strings(ledger),
                    unset_malloc_limits(ledger),
                    release(ledger),
                    release_besides(ledger),
                ])
                .collect(),
        ),
        (&[Cause::NativeHeld], vec![free_native(ledger), native_pressure(ledger)]),
        (&[Cause::NativeUnreachable], vec![find_leak(ledger)]),
        (&[Cause::NativeGlobal], vec![find_native_use(ledger)]),
        (&[Cause::MallocInUse], vec![look_for_native(ledger)]),
        (&[Cause::Unknown], vec![find_mapper(ledger)]),
        (&[Cause::RubyVm], against_interpreter(ledger, cause == Some(Cause::RubyVm))),
        (&[Cause::RubyJit], vec![limit_jit(ledger)]),
        (
            &[Cause::StackThreads],
            vec![
                run_fewer_threads(ledger),
                end_thread(ledger),
                recurse_less(ledger).filter(|_| !vm_stack_is_larger(ledger)),
            ],
        ),
        (&[Cause::StackFibers], vec![end_fibers(ledger), run_fewer_fibers(ledger)]),
        (&[Cause::FileShmem], vec![use_less_shared_memory(ledger)]),
        (
            &[Cause::FileShared, Cause::FilePrivate],
            vec![
                unlock(ledger).filter(|_| !locks_free_memory(ledger)),
                unmap_files(ledger),
                watch_pss(ledger),
            ],
        ),
    ];
    let mut groups: Vec<_> = groups
        .into_iter()
        .map(|(against, steps)| {
            (cause.is_some_and(|it| against.contains(&it)), ledger.sum(against), steps)
        })
        .collect();
    groups.sort_by_key(|&(is_against, bytes, _)| Reverse((is_against, bytes)));
    let steps = groups.into_iter().flat_map(|(_, _, steps)| steps);
    let mut all: Vec<Advice> = Vec::new();
    for step in [enable_gc(ledger), allow_full_mark(ledger)].into_iter().chain(steps).flatten() {
        // One step may be against memory of several causes.
        if !all.contains(&step) {
            all.push(step);
        }
    }
    all
}

/// Returns the resident bytes that a step of this report is against: it saves at most these. `None` if the step returns nothing.
#[must_use]
pub fn against(report: &Report, action: &Action) -> Option<u64> {
    use Cause::{MallocFragmented, MallocUnreturned};
    let sum = |of: &[Cause]| {
        let rows = report.causes.iter().filter(|row| of.contains(&row.cause));
        rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes))
    };
    Some(match action {
        Action::Trim => report.malloc.as_ref()?.trim_yield_bytes,
        Action::AutoTrim | Action::DecayInBackground => sum(&[MallocUnreturned]),
        Action::PreloadJemalloc { .. } => sum(&[MallocUnreturned, MallocFragmented]),
        Action::LimitArenas { kept_bytes } => *kept_bytes,
        Action::MapLargeBlocks { .. } => sum(&[MallocUnreturned]),
        Action::UnsetInitialSlots { .. } | Action::FreePages | Action::Compact => {
            sum(&[Cause::RubyFreeSlots])
        }
        Action::EnableGc { garbage_bytes: bytes @ 1.. }
        | Action::AllowFullMark { garbage_bytes: bytes }
        | Action::ReturnTop { bytes, .. }
        | Action::LimitTable { bytes, .. }
        | Action::DefineCodeOnce { bytes, .. }
        | Action::StopCoverage { bytes }
        | Action::ReleaseObjects { bytes, .. }
        | Action::Rehash { bytes, .. }
        | Action::CopySlices { bytes, .. }
        | Action::ShareStrings { bytes, .. }
        | Action::CopyBuffers { bytes, .. } => *bytes,
        Action::UnsetMallocLimits { .. } => sum(&[Cause::RubyLiveSlots, Cause::RubyMalloc]),
        Action::FreeNative { .. } | Action::NativePressure { .. } => sum(&[Cause::NativeHeld]),
        Action::FindNativeLeak => sum(&[Cause::NativeUnreachable]),
        Action::FindNativeUse => sum(&[Cause::NativeGlobal]),
        Action::LookForNative => sum(&[Cause::MallocInUse]),
        Action::FindMapper => sum(&[Cause::Unknown]),
        Action::LoadLessCode { gems } => {
            gems.iter().fold(0, |sum: u64, gem| sum.saturating_add(gem.bytes))
        }
        Action::LimitJit { .. } => sum(&[Cause::RubyJit]),
        Action::RunFewerThreads { .. } => {
            let kept = report.owners.iter().flatten().flat_map(|owner| &owner.kept_by);
            let of_threads =
                kept.filter(|it| it.path.as_deref().is_some_and(|it| it.starts_with(OF_THREADS)));
            of_threads.fold(sum(&[Cause::StackThreads]), |sum, it| sum.saturating_add(it.bytes))
        }
        Action::ChangeCode { of, .. } => sum(&[*of]),
        Action::UnlockMemory { bytes }
        | Action::UseLessSharedMemory { bytes, .. }
        | Action::UnmapFiles { bytes, .. }
        | Action::EndThread { bytes }
        | Action::RecurseLess { bytes }
        | Action::DisableThreadCaches { bytes }
        | Action::RunFewerFibers { bytes } => *bytes,
        Action::EnableGc { .. }
        | Action::EndFibers { .. }
        | Action::CloseFilesInMemory { .. }
        | Action::WatchPss => return None,
    })
}

fn trim(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.malloc.as_ref()?.trim_yield_bytes;
    // The process of a core may be gone.
    (ledger.origin == Origin::Process && is_worth(ledger, bytes))
        .then_some(Advice { action: Action::Trim, saves_bytes: Some(bytes) })
}

/// Returns true if free pages cannot be returned because they are locked in memory.
fn locks_free_memory(ledger: &Ledger) -> bool {
    let free = ledger.causes[Cause::MallocUnreturned] + ledger.causes[Cause::MallocMuzzy];
    let trimmable = ledger.malloc.as_ref().map_or(free, |malloc| malloc.trim_yield_bytes);
    is_worth(ledger, free.saturating_sub(trimmable))
}

/// The step against locked memory if that keeps free pages, or most pages of files.
fn unlock(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.locked_bytes;
    (bytes > 0 && (locks_free_memory(ledger) || locks_files(ledger)))
        .then(|| step(Action::UnlockMemory { bytes }))
}

/// Returns true if most pages of files are locked, which are a large part of the memory.
fn locks_files(ledger: &Ledger) -> bool {
    let files = ledger.causes[Cause::FileShared];
    is_main(ledger, files) && ledger.locked_file_bytes > files / 2
}

/// The gem's AutoTrim does the same as `rbloat trim` whenever it is worth it.
fn auto_trim(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.malloc.as_ref()?.trim_yield_bytes;
    // Rails and the plugin of Puma start it without the variable. A core has no names of threads.
    let runs = ledger.process.variable("RBLOAT_AUTO_TRIM") == Some("1")
        || ledger.process.thread_names.iter().any(|name| name == AUTO_TRIM_THREAD);
    (ledger.allocator.is_glibc() && is_worth(ledger, bytes) && !runs)
        .then_some(Advice { action: Action::AutoTrim, saves_bytes: Some(bytes) })
}

fn preload(ledger: &Ledger) -> Option<Advice> {
    let kept = ledger.sum(&[Cause::MallocUnreturned, Cause::MallocFragmented]);
    let is_broken = is_preload_broken(ledger);
    (is_worth(ledger, kept) && ledger.allocator.is_glibc())
        .then(|| step(Action::PreloadJemalloc { is_broken, is_pinned: is_pinned(ledger) }))
}

/// Returns true if LD_PRELOAD names jemalloc, yet glibc serves malloc.
fn is_preload_broken(ledger: &Ledger) -> bool {
    let preloaded = ledger.process.variable("LD_PRELOAD");
    ledger.allocator.is_glibc() && preloaded.is_some_and(|libraries| libraries.contains("jemalloc"))
}

/// jemalloc returns the pages of an idle arena only in a thread of its own, and none if its settings forbid it. A forked process
/// never has that thread.
fn decay_in_background(ledger: &Ledger) -> Option<Advice> {
    let decay = ledger.malloc.as_ref()?.tuning?.decay?;
    let is_set = ledger
        .process
        .variable("MALLOC_CONF")
        .is_some_and(|it| it.contains("background_thread:true"));
    let helps = decay.dirty_ms < 0 || !decay.in_background && !is_set;
    (helps && is_worth(ledger, ledger.causes[Cause::MallocUnreturned]))
        .then(|| step(Action::DecayInBackground))
}

/// Returns true if most of malloc's free memory shares pages with memory in use.
fn is_pinned(ledger: &Ledger) -> bool {
    ledger.causes[Cause::MallocFragmented] > ledger.causes[Cause::MallocUnreturned]
}

fn limit_arenas(ledger: &Ledger) -> Option<Advice> {
    // The variable means nothing to another allocator.
    let malloc = ledger.malloc.as_ref().filter(|_| ledger.allocator.is_glibc())?;
    let kept = |arena: &ArenaAccount| {
        arena.causes[Cause::MallocUnreturned]
            + arena.causes[Cause::MallocFragmented]
            + arena.causes[Cause::MallocTop]
    };
    let mut by_arena: Vec<u64> = malloc.arenas.iter().map(kept).collect();
    by_arena.sort_unstable_by_key(|bytes| Reverse(*bytes));
    // The two largest arenas would keep their free memory.
    let kept_bytes = by_arena.iter().skip(2).sum();
    let is_limited = matches!(malloc.tuning.and_then(|it| it.arena_max), Some(1..=2));
    (!is_limited && is_worth(ledger, kept_bytes)).then(|| step(Action::LimitArenas { kept_bytes }))
}

/// While it is disabled, nothing else frees garbage.
fn enable_gc(ledger: &Ledger) -> Option<Advice> {
    let collector = ledger.ruby.as_ref()?.collector?;
    let action = Action::EnableGc { garbage_bytes: garbage_bytes(ledger) };
    (collector.is_disabled == Some(true)).then(|| step(action))
}

/// Garbage that became old stays, since only a full collection frees it.
fn allow_full_mark(ledger: &Ledger) -> Option<Advice> {
    let collector = ledger.ruby.as_ref()?.collector?;
    let garbage_bytes = garbage_bytes(ledger);
    let is_forbidden = collector.allows_full_mark == Some(false);
    (is_forbidden && is_worth(ledger, garbage_bytes))
        .then(|| step(Action::AllowFullMark { garbage_bytes }))
}

fn free_native(ledger: &Ledger) -> Option<Advice> {
    let mut owners = ledger.owners.iter().filter(|owner| owner.cause == Cause::NativeHeld);
    let owner = owners.next()?;
    let most = retaining_most_bytes(owner);
    let action = Action::FreeNative {
        class: owner.name.clone(),
        // A few may have most of the memory.
        objects: most.filter(|it| it.path.is_some()).map_or(owner.objects, |it| it.objects),
        path: most.and_then(|retainer| retainer.path.clone()),
        garbage_objects: most.filter(|it| it.path.is_none()).map_or(0, |it| it.objects),
    };
    is_worth(ledger, OwnerAccount::weight_bytes(owner)).then(|| step(action))
}

/// The GC runs too seldom if it does not know of the memory of garbage.
fn native_pressure(ledger: &Ledger) -> Option<Advice> {
    let mut owners = ledger.owners.iter().filter(|owner| owner.cause == Cause::NativeHeld);
    let owner = owners.next().filter(|owner| owner.has_memsize == Some(false))?;
    let garbage = owner.retainers.iter().filter(|it| it.path.is_none()).map(|it| it.objects);
    let is_garbage = garbage.sum::<u64>() * 2 > owner.objects;
    let runs = ledger.process.variable("RBLOAT_NATIVE_PRESSURE") == Some("1");
    let fits = ledger.allocator.is_glibc() && is_garbage && !runs;
    (fits && is_worth(ledger, owner.weight_bytes()))
        .then(|| step(Action::NativePressure { class: owner.name.clone() }))
}

fn find_leak(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::NativeUnreachable];
    is_worth(ledger, bytes).then(|| step(Action::FindNativeLeak))
}

fn find_native_use(ledger: &Ledger) -> Option<Advice> {
    is_main(ledger, ledger.causes[Cause::NativeGlobal]).then(|| step(Action::FindNativeUse))
}

fn look_for_native(ledger: &Ledger) -> Option<Advice> {
    is_main(ledger, ledger.causes[Cause::MallocInUse]).then(|| step(Action::LookForNative))
}

fn find_mapper(ledger: &Ledger) -> Option<Advice> {
    // Otherwise it may be malloc's or Ruby's.
    let is_read = ledger.ruby.is_some() && has_all_arenas(ledger);
    (is_read && is_main(ledger, ledger.causes[Cause::Unknown])).then(|| step(Action::FindMapper))
}

/// From 3.4 on YJIT's limit is for code and tables together, before only for code. Beside 8 MiB of code there were 20 MiB of tables.
fn limit_jit(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::RubyJit];
    let version = &ledger.ruby.as_ref()?.version[..];
    let (option, part) =
        if version >= "3.4" { ("--yjit-mem-size", 2) } else { ("--yjit-exec-mem-size", 8) };
    let mebibytes = (bytes >> 20).div_ceil(part).next_multiple_of(8);
    is_main(ledger, bytes).then(|| step(Action::LimitJit { option: option.into(), mebibytes }))
}

fn use_less_shared_memory(ledger: &Ledger) -> Option<Advice> {
    let files = ledger.files.iter().filter(|file| file.is_in_memory);
    let largest = files.min_by_key(|file| Reverse(file.shared_bytes))?;
    let bytes = ledger.causes[Cause::FileShmem];
    (ledger.origin == Origin::Process && is_main(ledger, bytes)).then(|| {
        step(Action::UseLessSharedMemory {
            bytes,
            path: largest.path.clone(),
            path_bytes: largest.shared_bytes,
        })
    })
}

/// The files on disk that a process maps to write to: scratch files and caches of its own.
fn unmap_files(ledger: &Ledger) -> Option<Advice> {
    let files = ledger.files.iter().filter(|file| !file.is_in_memory);
    let largest = files.clone().min_by_key(|file| Reverse(file.writable_bytes))?;
    let bytes = files.map(|file| file.writable_bytes).fold(0, u64::saturating_add);
    (ledger.origin == Origin::Process && is_main(ledger, bytes)).then(|| {
        step(Action::UnmapFiles {
            bytes,
            path: largest.path.clone(),
            path_bytes: largest.writable_bytes,
        })
    })
}

/// Pages of other files on disk cost nothing, unless they are locked.
fn watch_pss(ledger: &Ledger) -> Option<Advice> {
    let is_main = is_main(ledger, ledger.causes[Cause::FileShared]);
    let is_cache = !locks_files(ledger) && unmap_files(ledger).is_none();
    (ledger.origin == Origin::Process && is_main && is_cache).then(|| step(Action::WatchPss))
}
