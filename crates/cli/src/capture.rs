use std::time::{Duration, Instant, SystemTime};

use ledger::Readings;
use report::{AllocatorStatistics, Capture, CaptureMethod};
use target::{Fork, ForkPlan, Outline, Refusal};

use crate::allocator_call::{self, AllocatorCall};
use crate::arguments::CaptureMode;
use crate::failure::Failure;

/// How often a target is stopped at most that is in the midst of a change each time, or computes.
const ATTEMPTS: u32 = 4;
/// How long it goes on in between.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// A pause by a freeze that is expected to be shorter is no reason to touch the target.
const SHORT_MS: f64 = 50.0;
/// How long a freeze takes: some milliseconds, and so many for each GB that is resident, on two cores;
/// without and with what it takes to find owners. A heap of small chunks takes longer.
const FREEZE_MS: f64 = 10.0;
const FREEZE_MS_PER_GB: f64 = 140.0;
const FREEZE_MS_PER_GB_WITH_OWNERS: f64 = 220.0;

/// A target that was read, and how.
pub(crate) struct Captured {
    pub(crate) readings: Readings,
    pub(crate) outline: Outline,
    pub(crate) capture: Capture,
    /// Why the target still has a dead clone in the process table.
    pub(crate) left: Option<Refusal>,
    /// What the allocator gave back in the clone, in bytes, if it was tried.
    pub(crate) tried_bytes: Option<u64>,
    /// What the allocator counts itself, where a clone could be asked.
    pub(crate) statistics: Option<AllocatorStatistics>,
}

/// Reads the process `pid`, which is a Ruby, in the way that `mode` asks for; with `owners` what it takes to
/// find who holds its memory.
///
/// No word goes to the terminal before the target goes on: it might keep us waiting.
pub(crate) fn take(pid: i32, mode: CaptureMode, owners: bool) -> Result<Captured, Failure> {
    take_and_try(pid, mode, owners, None)
}

/// Like [`take`] of a process that will be made to make `call` anyway: so it is cloned wherever it can be,
/// and the clone makes the call when it was read, if it is one whose outcome cannot be computed.
pub(crate) fn take_and_try(
    pid: i32,
    mode: CaptureMode,
    owners: bool,
    call: Option<&AllocatorCall>,
) -> Result<Captured, Failure> {
    let started = Instant::now();
    let (mut plan, mut reason) = match call {
        Some(_) => match ForkPlan::make(&target::look(pid)?) {
            Ok(plan) => (Some(plan), "it will be made to run something anyway".into()),
            Err(refusal) => (None, format!("no clone was made: {refusal}")),
        },
        None => choose(pid, mode, owners)?,
    };
    let call = call.filter(|call| !call.allocator.is_glibc());
    let mut pause = Duration::ZERO;
    let mut attempt = 1;
    loop {
        let at = SystemTime::now();
        let done = match &plan {
            None => freeze(target::freeze(pid, target::PATIENCE)?, owners)?,
            Some(plan_made) => match fork(pid, plan_made, owners, call)? {
                Ok(done) => done,
                Err((_, refusal)) if mode == CaptureMode::Fork => {
                    return Err(refused(pid, refusal));
                }
                Err((frozen, refusal)) => {
                    reason = format!("no clone was made: {refusal}");
                    plan = None;
                    freeze(frozen, owners)?
                }
            },
        };
        pause += done.pause;
        if !done.readings.are_torn() || attempt == ATTEMPTS {
            let method = match done.copied_bytes {
                _ if plan.is_none() => CaptureMethod::Freeze,
                copied_bytes => CaptureMethod::Fork { copied_bytes },
            };
            let capture = Capture::new(method, reason, at, pause, started.elapsed());
            let Look { readings, outline, left, tried_bytes, statistics, .. } = done;
            return Ok(Captured { readings, outline, capture, left, tried_bytes, statistics });
        }
        attempt += 1;
        std::thread::sleep(BETWEEN_ATTEMPTS);
    }
}

/// What to clone the target by, if it is to be cloned, and why it is to be read in this way.
fn choose(
    pid: i32,
    mode: CaptureMode,
    owners: bool,
) -> Result<(Option<ForkPlan>, String), Failure> {
    if mode == CaptureMode::Freeze {
        return Ok((None, "asked for".into()));
    }
    let image = target::look(pid)?;
    let per_gb = if owners { FREEZE_MS_PER_GB_WITH_OWNERS } else { FREEZE_MS_PER_GB };
    let rss_gb = image.outline.process.rss_bytes as f64 / f64::from(1 << 30);
    let expected = FREEZE_MS + rss_gb * per_gb;
    if mode == CaptureMode::Auto && expected < SHORT_MS {
        return Ok((None, format!("a freeze was expected to take {expected:.0} ms")));
    }
    match (ForkPlan::make(&image), mode) {
        (Ok(plan), CaptureMode::Fork) => Ok((Some(plan), "asked for".into())),
        (Ok(plan), _) => {
            Ok((Some(plan), format!("a freeze was expected to take {expected:.0} ms")))
        }
        (Err(refusal), CaptureMode::Fork) => Err(refused(pid, refusal)),
        (Err(refusal), _) => Ok((None, format!("no clone was made: {refusal}"))),
    }
}

fn refused(pid: i32, refusal: Refusal) -> Failure {
    Failure::NotTouched { pid, what: "clone", refusal, instead: "; --capture freeze needs none" }
}

/// What came of one look.
struct Look {
    readings: Readings,
    outline: Outline,
    pause: Duration,
    copied_bytes: Option<u64>,
    left: Option<Refusal>,
    tried_bytes: Option<u64>,
    statistics: Option<AllocatorStatistics>,
}

fn freeze(frozen: target::Frozen, owners: bool) -> Result<Look, Failure> {
    let readings = Readings::read(frozen.image(), owners);
    let thawed = frozen.thaw()?;
    let (outline, pause) = (thawed.outline, thawed.pause);
    Ok(Look {
        readings,
        outline,
        pause,
        copied_bytes: None,
        left: None,
        tried_bytes: None,
        statistics: None,
    })
}

fn fork(
    pid: i32,
    plan: &ForkPlan,
    owners: bool,
    call: Option<&AllocatorCall>,
) -> Result<Result<Look, (target::Frozen, Refusal)>, Failure> {
    let mut forked = match target::fork(pid, target::PATIENCE, plan)? {
        Fork::Done(forked) => forked,
        Fork::Refused(frozen, refusal) => return Ok(Err((frozen, refusal))),
    };
    let readings = Readings::read(forked.image(), owners);
    let tried_bytes = match call {
        Some(call) => call.try_on(&mut forked)?,
        None => None,
    };
    let statistics = allocator_call::statistics(&mut forked)?;
    let target::Ended { outline, pause, copied_bytes, left } = forked.end()?;
    Ok(Ok(Look { readings, outline, pause, copied_bytes, left, tried_bytes, statistics }))
}
