//! Steps against the stacks of threads and fibers.

use std::collections::BTreeMap;

use formats::{Action, Advice, OtherThreads, ThreadStarter};
use ledger::{Cause, Gem, InterpreterKind, Ledger, Libc};

use super::worth::{is_main, is_worth, step};

/// How the paths begin of objects that running threads retain.
pub(super) const OF_THREADS: &str = "(threads) → ";
/// Threads started by one block that are more than a pool has.
const MANY_THREADS: u64 = 64;

pub(super) fn run_fewer_threads(ledger: &Ledger) -> Option<Advice> {
    let (threads, stacks) = (threads(ledger), ledger.kept_stacks);
    let kept = stacks.resident_thread_bytes + stacks.resident_mn_bytes + stacks.main_bytes;
    let bytes = ledger.causes[Cause::StackThreads].saturating_sub(kept);
    let starter = starter(ledger);
    // Many threads that one block starts hold the objects of its methods, too.
    let class = if starter.is_none() { class_of_most(ledger) } else { None };
    let of_one = starter.as_ref().map(|it| it.threads).or(class.as_ref().map(|it| it.1));
    let are_many = of_one.is_some_and(|threads| threads >= MANY_THREADS);
    let objects = if are_many { objects_of_threads(ledger) } else { 0 };
    let others = if starter.is_none() { other_threads(ledger) } else { None };
    (threads > 1 && is_main(ledger, bytes.saturating_add(objects)))
        .then(|| step(Action::RunFewerThreads { threads, starter, others, class }))
}

/// The class of more than half of the threads, if C code started them.
fn class_of_most(ledger: &Ledger) -> Option<(String, u64)> {
    let group = ledger.threads.as_ref()?.first().filter(|it| it.threads * 2 > threads(ledger))?;
    let class = group.frame.label.strip_suffix(ledger::IN_C)?;
    Some((class.to_owned(), group.threads))
}

/// Returns true for releases of Ruby whose native threads wait for 3 seconds for a new thread when theirs has ended (`USE_THREAD_CACHE` in
/// thread_pthread.c).
#[must_use]
pub fn keeps_native_threads(version: Option<&str>) -> bool {
    version.is_some_and(|version| version < "3.2")
}

/// The native threads that run no thread of Ruby, if they are most.
fn other_threads(ledger: &Ledger) -> Option<OtherThreads> {
    let others = ledger.kept_stacks.other_threads.filter(|it| it * 2 > threads(ledger))?;
    let may_have_ended = keeps_native_threads(ledger.ruby.as_ref().map(|ruby| &ruby.version[..]));
    // Ruby names a native thread by the file and line of the block that it runs, and the name stays. A star ends a name that was cut.
    let names = &ledger.process.thread_names;
    let may_name = may_have_ended && !names.iter().any(|name| name.ends_with('*'));
    let is_place = |name: &&String| {
        let line = name.rsplit_once(':').map(|(_, line)| line);
        line.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut places = names.iter().filter(is_place);
    let name = places.next().filter(|_| may_name && places.next().is_none()).cloned();
    Some(OtherThreads { threads: others, may_have_ended, name })
}

/// The bytes of objects to which the shortest paths begin with running threads.
fn objects_of_threads(ledger: &Ledger) -> u64 {
    let retainers = ledger.managed().flat_map(|owner| &owner.retainers);
    let is_of_thread = |path: &str| path.starts_with(OF_THREADS);
    let of_threads = retainers.filter(|it| it.path.as_deref().is_some_and(is_of_thread));
    of_threads.fold(0, |sum: u64, it| sum.saturating_add(it.bytes))
}

/// The threads that have a stack: native ones, and those that native threads run in turn.
fn threads(ledger: &Ledger) -> u64 {
    ledger.process.threads + ledger.kept_stacks.mn_threads
}

/// The block that started more than half of the threads, and still runs in them.
fn starter(ledger: &Ledger) -> Option<ThreadStarter> {
    let groups = ledger.threads.as_ref()?;
    let mut by_start: BTreeMap<&(String, Option<u32>), u64> = BTreeMap::new();
    for group in groups {
        if let Some(started) = &group.started {
            *by_start.entry(started).or_default() += group.threads;
        }
    }
    let (started, of_block) = by_start.into_iter().max_by_key(|(_, threads)| *threads)?;
    if of_block * 2 <= threads(ledger) {
        return None;
    }
    let place = |path: &str, line: Option<u32>| match line {
        Some(line) => format!("{path}:{line}"),
        None => path.to_owned(),
    };
    // The largest group comes first.
    let largest = groups.iter().find(|group| group.started.as_ref() == Some(started));
    let run = largest.filter(|group| group.threads * 2 > of_block).map(|group| {
        let frame = &group.frame;
        match &frame.path {
            Some(path) => format!("{} ({})", frame.label, place(path, frame.line)),
            None => frame.label.clone(),
        }
    });
    let gem = Gem::of(Some(&started.0));
    let gem = gem.is_gem().then_some(gem.name);
    Some(ThreadStarter { place: place(&started.0, started.1), gem, threads: of_block, run })
}

/// When a thread ends, glibc frees the stacks that it keeps until they have no more than this (`stack_cache_maxsize` in
/// nptl/nptl-stack.c). A forked process has the stacks of its parent's threads, and frees none until one of its own threads ends.
const MAX_KEPT_STACKS: u64 = 40 << 20;
/// The last release in which that was tried with success. glibc 2.43 freed none.
const LAST_THAT_FREES: u32 = 36;

pub(super) fn end_thread(ledger: &Ledger) -> Option<Advice> {
    let stacks = ledger.kept_stacks;
    let bytes = stacks.resident_thread_bytes;
    let Libc::Glibc { version: Some(version) } = &ledger.libc else { return None };
    let minor: u32 = version.strip_prefix("2.")?.parse().ok()?;
    let frees = minor <= LAST_THAT_FREES && stacks.thread_bytes > MAX_KEPT_STACKS;
    (frees && is_worth(ledger, bytes)).then(|| step(Action::EndThread { bytes }))
}

/// The bytes of the main thread's VM stack, and of its other stack as far as no call uses them. Both keep the pages of a deep recursion.
fn main_stacks(ledger: &Ledger) -> (u64, u64) {
    let vm_stack =
        ledger.interpreter.as_ref().map_or(0, |it| it.resident_bytes(InterpreterKind::VmStacks));
    (vm_stack, ledger.kept_stacks.main_bytes)
}

pub(super) fn recurse_less(ledger: &Ledger) -> Option<Advice> {
    let (vm_stack, stack) = main_stacks(ledger);
    let bytes = vm_stack + stack;
    is_worth(ledger, bytes).then(|| step(Action::RecurseLess { bytes }))
}

/// Returns true if the step to recurse less is one against the interpreter's memory, which has the VM stack.
pub(super) fn vm_stack_is_larger(ledger: &Ledger) -> bool {
    let (vm_stack, stack) = main_stacks(ledger);
    stack < vm_stack
}

pub(super) fn disable_thread_caches(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.kept_stacks.cached_bytes;
    is_worth(ledger, bytes).then(|| step(Action::DisableThreadCaches { bytes }))
}

pub(super) fn run_fewer_fibers(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.kept_stacks.resident_fiber_bytes?;
    is_main(ledger, bytes).then(|| step(Action::RunFewerFibers { bytes }))
}

pub(super) fn end_fibers(ledger: &Ledger) -> Option<Advice> {
    let objects = ledger.owners.iter().find(|owner| owner.name == "Fiber")?;
    let (fibers, kept) = (ledger.kept_stacks.fibers?, ledger.kept_stacks.resident_fiber_bytes?);
    let in_use = ledger.causes[Cause::StackFibers].saturating_sub(kept);
    // A few fibers with deep calls may have more memory than thousands of others.
    let most = objects.retainers.first().filter(|retainer| retainer.bytes > in_use / 2);
    let action = Action::EndFibers {
        fibers,
        path: most.and_then(|retainer| retainer.path.clone()),
        are_garbage: most.is_some_and(|retainer| retainer.path.is_none()),
    };
    is_main(ledger, in_use).then(|| step(action))
}
