use std::cmp::Reverse;

use capture::Origin;
use formats::{Action, Advice};
use ledger::{ArenaAccount, Cause, Ledger, OwnerAccount, percent};

/// The least saving that is worth a step, in bytes.
const MIN_BYTES: u64 = 8 << 20;
/// The least share of RSS that is worth a step, in percent.
const MIN_SHARE: f64 = 5.0;
/// The least share of RSS for steps that save an unknown part of it, in percent.
const MIN_MAIN_SHARE: f64 = 25.0;

/// Returns the steps that a user can take: those against `cause`, the verdict's, come first, then those that save
/// most. A healthy process needs none.
#[must_use]
pub fn advise(ledger: &Ledger, cause: Option<Cause>) -> Vec<Advice> {
    use Cause::{MallocFragmented, MallocUnreturned};
    let Some(cause) = cause else { return Vec::new() };
    let free: &[Cause] = &[MallocUnreturned, MallocFragmented];
    let steps = [
        (free, trim(ledger)),
        (free, preload(ledger)),
        (free, limit_arenas(ledger)),
        (&[Cause::RubyFreeSlots], compact(ledger)),
        (&[Cause::RubyLiveSlots, Cause::RubyMalloc], release(ledger)),
        (&[Cause::NativeHeld], free_native(ledger)),
        (&[Cause::NativeUnreachable], find_leak(ledger)),
        (&[Cause::MallocInUse], look_for_native(ledger)),
        (&[Cause::StackThreads, Cause::StackFibers], run_fewer_threads(ledger)),
        (&[Cause::FileShared, Cause::FilePrivate], watch_pss(ledger)),
    ];
    let mut steps: Vec<_> = steps
        .into_iter()
        .filter_map(|(against, step)| Some((against.contains(&cause), step?)))
        .collect();
    steps.sort_by_key(|(is_against, step)| Reverse((*is_against, step.saves_bytes)));
    steps.into_iter().map(|(_, step)| step).collect()
}

fn is_worth(ledger: &Ledger, bytes: u64) -> bool {
    bytes >= MIN_BYTES && percent(bytes, ledger.rss_bytes) >= MIN_SHARE
}

fn is_main(ledger: &Ledger, bytes: u64) -> bool {
    is_worth(ledger, bytes) && percent(bytes, ledger.rss_bytes) >= MIN_MAIN_SHARE
}

fn step(action: Action, saves_bytes: Option<u64>) -> Advice {
    Advice { action, saves_bytes, already_set: false }
}

fn trim(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.malloc.as_ref()?.trim_yield_bytes;
    // The process of a core may be gone.
    (ledger.origin == Origin::Process && is_worth(ledger, bytes))
        .then(|| step(Action::Trim, Some(bytes)))
}

fn preload(ledger: &Ledger) -> Option<Advice> {
    let kept = ledger.sum(&[Cause::MallocUnreturned, Cause::MallocFragmented]);
    let preloaded = ledger.process.variable("LD_PRELOAD");
    // The variable names jemalloc, yet glibc serves malloc.
    let is_broken = preloaded.is_some_and(|libraries| libraries.contains("jemalloc"));
    // The saving of pinned pages is unknown.
    let unreturned = ledger.causes[Cause::MallocUnreturned];
    let saves_bytes = Some(unreturned).filter(|&bytes| is_worth(ledger, bytes));
    (is_worth(ledger, kept) && ledger.allocator.is_glibc())
        .then(|| step(Action::PreloadJemalloc { is_broken }, saves_bytes))
}

fn limit_arenas(ledger: &Ledger) -> Option<Advice> {
    // The variable means nothing to another allocator.
    let malloc = ledger.malloc.as_ref().filter(|_| ledger.allocator.is_glibc())?;
    let kept = |arena: &ArenaAccount| {
        arena.causes[Cause::MallocUnreturned]
            + arena.causes[Cause::MallocFragmented]
            + arena.causes[Cause::MallocTop]
            + arena.causes[Cause::MallocCached]
    };
    let mut by_arena: Vec<u64> = malloc.arenas.iter().map(kept).collect();
    by_arena.sort_unstable_by_key(|bytes| Reverse(*bytes));
    // The two largest arenas would keep what they keep now.
    let kept_bytes = by_arena.iter().skip(2).sum();
    let already_set = matches!(malloc.arena_max, Some(1..=2));
    let at_stake = if already_set { by_arena.iter().sum() } else { kept_bytes };
    is_worth(ledger, at_stake).then_some(Advice {
        action: Action::LimitArenas { kept_bytes },
        saves_bytes: None,
        already_set,
    })
}

fn compact(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::RubyFreeSlots];
    is_worth(ledger, bytes).then(|| step(Action::Compact, Some(bytes)))
}

fn release(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.sum(&[Cause::RubyLiveSlots, Cause::RubyMalloc]);
    let class = ledger.managed().next()?;
    let retainer = class.retainers.first();
    let action = Action::ReleaseObjects {
        class: class.name.clone(),
        bytes: class.weight_bytes(),
        path: retainer.and_then(|retainer| retainer.path.clone()),
        are_garbage: retainer.is_some_and(|retainer| retainer.path.is_none()),
    };
    is_main(ledger, bytes).then(|| step(action, None))
}

fn free_native(ledger: &Ledger) -> Option<Advice> {
    let mut owners = ledger.owners.iter().filter(|owner| owner.cause == Cause::NativeHeld);
    let owner = owners.next()?;
    let (path, garbage_objects) = match owner.retainers.first() {
        Some(retainer) if retainer.path.is_none() && retainer.objects * 2 > owner.objects => {
            (None, retainer.objects)
        }
        Some(retainer) => (retainer.path.clone(), 0),
        None => (None, 0),
    };
    let action = Action::FreeNative {
        class: owner.name.clone(),
        objects: owner.objects,
        path,
        garbage_objects,
    };
    let saves_bytes = owner.exclusive_bytes.min(owner.resident_bytes);
    is_worth(ledger, OwnerAccount::weight_bytes(owner)).then(|| step(action, Some(saves_bytes)))
}

fn find_leak(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::NativeUnreachable];
    is_worth(ledger, bytes).then(|| step(Action::FindNativeLeak, Some(bytes)))
}

fn look_for_native(ledger: &Ledger) -> Option<Advice> {
    is_main(ledger, ledger.causes[Cause::MallocInUse]).then(|| step(Action::LookForNative, None))
}

fn run_fewer_threads(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.sum(&[Cause::StackThreads, Cause::StackFibers]);
    let threads = ledger.process.threads;
    is_worth(ledger, bytes).then(|| step(Action::RunFewerThreads { threads }, Some(bytes)))
}

fn watch_pss(ledger: &Ledger) -> Option<Advice> {
    (ledger.origin == Origin::Process && is_main(ledger, ledger.causes[Cause::FileShared]))
        .then(|| step(Action::WatchPss, None))
}
