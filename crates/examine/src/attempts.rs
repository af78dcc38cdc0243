//! The choice of a capture method: the one to try first, the number of attempts, and the one to try next.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant, SystemTime};

use formats::{Capture, CaptureMethod, NoCopy, Unread};
use image::{Copied, Image, ProcessState, Target, Thawed};
use inferior::{EndedCopy, ForkPlan, ForkedCopy, MemoryLimits, Refusal};
use ledger::{Analyses, Facts, ReadDepth};
use linux::on_a_thread_of_its_own;
use linux::proc::wait_until_untraced;
use linux::{PauseFactors, both};
use sampler::NoStacks;

use crate::allocator_call::AllocatorCall;
use crate::error::{Error, Purpose, reason_for};
use crate::exclusion::{is_ending, one_at_a_time, wait_if_ending};
use crate::max_pause;
use crate::options::{CaptureMode, CaptureOptions, Detail};

/// The maximum number of captures of a target that changes its heap, has no thread at a safe point, does not stop in
/// time, or is traced by another process.
const MAX_ATTEMPTS: u32 = 4;
/// The time between two attempts, in which the target runs.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// The maximum number of captures of a target whose major collection marks, for an analysis that needs the ages of objects, and the time
/// between two. A busy server marks for less than a second; a program that allocates little never ends it.
const MARKING_ATTEMPTS: u32 = 3;
const BETWEEN_MARKING_ATTEMPTS: Duration = Duration::from_millis(500);

/// The time of the walks during a freeze: of the smallest process, per resident GiB without and with owners, per heap of malloc's arenas, per
/// thread, and per mapping. Measured on processes with up to 4,000 threads, 15,000 mappings and 300 arenas.
const WALK: Duration = Duration::from_millis(30);
const WALK_PER_GIB: Duration = Duration::from_millis(140);
const WALK_PER_GIB_WITH_OWNERS: Duration = Duration::from_millis(260);
const WALK_PER_HEAP: Duration = Duration::from_micros(50);
const WALK_PER_THREAD: Duration = Duration::from_micros(350);
const WALK_PER_MAPPING: Duration = Duration::from_micros(4);

/// The time of a copy of memory during a freeze, per GiB, and the most bytes that are copied.
const COPY_PER_GIB: Duration = Duration::from_millis(450);
const MAX_COPY_BYTES: u64 = 512 << 20;

/// The longest wait for another tracer before each further attempt: the largest pause of another rbloat.
const MAX_WAIT_FOR_TRACER: Duration = max_pause::LARGEST;
/// The longest wait for a thread at a safe point before each further attempt. A process that computes for so long does nothing else.
const MAX_WAIT_FOR_SAFE_POINT: Duration = Duration::from_millis(200);

/// rbloat's own memory for reading a process: a constant part, and a fraction of the RSS without and with owners, and
/// with retained sizes or texts.
const OWN_BYTES: u64 = 8 << 20;
const OWN_PART: u64 = 10;
const OWN_PART_WITH_OWNERS: u64 = 5;
const OWN_PART_WITH_RETAINED_SIZES: u64 = 2;

/// A target that was read, and the way in which it was read.
pub(crate) struct Captured {
    pub(crate) facts: Facts,
    pub(crate) state: ProcessState,
    pub(crate) capture: Capture,
    /// The reason why the forked copy is still in the process table, as a zombie, if it is.
    pub(crate) left: Option<Refusal>,
    /// The bytes that the allocator returned in the forked copy, if that was tried.
    pub(crate) tried_bytes: Option<u64>,
}

impl Captured {
    /// Returns an error if the memory of process `pid` was not read.
    pub(crate) fn check_read(&self, pid: i32) -> Result<(), Error> {
        match self.capture.unread {
            Some(unread) => Err(Error::Unread { pid, unread, no_copy: self.capture.no_copy }),
            None => Ok(()),
        }
    }
}

/// Reads the target, a Ruby process, by the requested method, as far as `detail` needs. What has a memory map is compared with others, which
/// takes the ages of objects: it is read again if a major collection was marking.
///
/// Nothing is written to the terminal while the target is paused, since that could block.
pub(crate) fn take(
    target: &Target,
    how: CaptureOptions,
    detail: Detail,
) -> Result<Captured, Error> {
    let mut captured = take_and_try(target, how, detail, None)?;
    for _ in 1..MARKING_ATTEMPTS {
        if !detail.analyses.memory_map || captured.facts.knows_ages() {
            break;
        }
        std::thread::sleep(BETWEEN_MARKING_ATTEMPTS);
        match take_and_try(target, how, detail, None) {
            Ok(later) if later.capture.unread.is_none() => captured = later,
            // The target may have ended meanwhile.
            _ => break,
        }
    }
    Ok(captured)
}

/// Like [`take`], for a process that is to be trimmed by `call`: the forked copy makes the call after it was read, unless
/// the outcome can be computed.
pub(crate) fn take_and_try(
    target: &Target,
    how: CaptureOptions,
    detail: Detail,
    call: Option<&AllocatorCall>,
) -> Result<Captured, Error> {
    let alone = one_at_a_time();
    let started = Instant::now();
    let examination = Examination::new(target, how, detail, call);
    check_room(target.pid(), &examination.limits, examination.own_bytes)?;
    let captured = examination.capture(started);
    drop(alone);
    wait_if_ending();
    captured
}

/// Returns an error if the limits that rbloat shares with process `pid`, as far as they are known, do not leave room for
/// `own_bytes` of its own memory.
pub(crate) fn check_room(
    pid: i32,
    limits: &Result<MemoryLimits, Refusal>,
    own_bytes: u64,
) -> Result<(), Error> {
    let room_bytes = match limits {
        Ok(limits) => limits.own_room_bytes(),
        Err(_) => MemoryLimits::default().own_room_bytes(),
    };
    match room_bytes {
        Some(room_bytes) if room_bytes <= own_bytes => {
            Err(Error::NoRoom { pid, own_bytes, room_bytes })
        }
        _ => Ok(()),
    }
}

/// Returns what `read` finds in an image of the target: of a forked copy if one can be made, else of the paused process.
///
/// # Errors
/// Also if `read` fails four times.
pub(crate) fn read_image<T: Send>(
    target: &Target,
    how: CaptureOptions,
    read: impl Fn(&Image<'_>) -> Result<T, NoStacks> + Sync,
) -> Result<T, Error> {
    let _alone = one_at_a_time();
    let pid = target.pid();
    let examination = Examination::new(target, how, Detail::CAUSES, None);
    let fork = |plan: &ForkPlan| {
        let forked = examination.forked(plan)?;
        let found = read(forked.image());
        Ok(Attempt { is_incomplete: found.is_err(), found: Ok(found), pause: forked.end()?.pause })
    };
    let freeze = |freeze| {
        let (found, thawed) = examination.while_frozen(freeze, &read)?;
        // Another freeze takes as long as one that had too little time.
        let is_incomplete = found.as_ref().is_ok_and(Result::is_err);
        Ok(Attempt { is_incomplete, found, pause: thawed.pause })
    };
    let found = examination.repeat(fork, freeze)?.found;
    found
        .map_err(|unread| Error::Unread { pid, unread, no_copy: None })?
        .map_err(|reason| Error::NoStacks { pid, reason })
}

/// Returns the memory that rbloat itself needs to read a process, in bytes.
#[must_use]
pub fn own_bytes(rss_bytes: u64, detail: Detail) -> u64 {
    let part = match detail {
        Detail { owners: false, .. } => OWN_PART,
        Detail {
            analyses: Analyses { retained_sizes: true, .. } | Analyses { values: true, .. },
            ..
        } => OWN_PART_WITH_RETAINED_SIZES,
        _ => OWN_PART_WITH_OWNERS,
    };
    OWN_BYTES + rss_bytes / part
}

/// A target that is to be read, and the way to do it.
struct Examination<'a> {
    target: &'a Target,
    how: CaptureOptions,
    read: ReadDepth,
    call: Option<&'a AllocatorCall>,
    own_bytes: u64,
    limits: Result<MemoryLimits, Refusal>,
    factors: PauseFactors,
    /// The longest allowed pause.
    max_pause: Duration,
}

/// A way to read a process.
enum Way {
    Fork(ForkPlan),
    Freeze(Freeze),
}

/// The circumstances of a freeze.
#[derive(Debug, Clone, Copy, Default)]
struct Freeze {
    /// True if a copy could be made, but would take too long.
    copy_is_slow: bool,
    /// True if no copy could be made because every thread computes.
    computes: bool,
    no_copy: Option<NoCopy>,
}

impl Way {
    fn instead_of_copy(refusal: &Refusal) -> Self {
        Self::Freeze(Freeze {
            copy_is_slow: matches!(refusal, Refusal::Slow { .. }),
            computes: matches!(refusal, Refusal::NoSafePoint),
            no_copy: no_copy(refusal),
        })
    }
}

/// The result of one attempt.
struct Attempt<T> {
    found: T,
    /// True if another attempt may find more.
    is_incomplete: bool,
    pause: Duration,
}

/// The result of the last attempt.
struct Done<T> {
    found: T,
    /// The reason for the method.
    reason: String,
    no_copy: Option<NoCopy>,
    began: SystemTime,
    /// The pauses of all attempts.
    pause: Duration,
}

/// Everything that one attempt read.
struct Reading {
    facts: Facts,
    state: ProcessState,
    method: CaptureMethod,
    copied_bytes: Option<u64>,
    unread: Option<Unread>,
    left: Option<Refusal>,
    tried_bytes: Option<u64>,
}

impl<'a> Examination<'a> {
    fn new(
        target: &'a Target,
        how: CaptureOptions,
        detail: Detail,
        call: Option<&'a AllocatorCall>,
    ) -> Self {
        let own_bytes = own_bytes(target.image().state.process.rss_bytes, detail);
        let factors = target.pause_factors();
        let max_pause = how.max_pause.unwrap_or_else(|| max_pause::default_for(&factors));
        let (read, limits) = (detail.read_depth(), MemoryLimits::of(target));
        Self { target, how, read, call, own_bytes, limits, factors, max_pause }
    }

    fn capture(&self, started: Instant) -> Result<Captured, Error> {
        let Done { found, reason, no_copy, began, pause } =
            self.repeat(|plan| self.fork(plan), |freeze| self.freeze(freeze))?;
        let elapsed = started.elapsed();
        let capture = Capture::new(found.method, reason, began, pause, elapsed, found.copied_bytes)
            .with_unread(found.unread)
            .with_no_copy(no_copy);
        Ok(found.captured(capture))
    }

    /// Reads the process by `fork` if a copy can be made, else by `freeze`, until that succeeds. Both return what they found.
    fn repeat<T: Send>(
        &self,
        fork: impl Fn(&ForkPlan) -> Result<Attempt<T>, Error> + Sync,
        freeze: impl Fn(Freeze) -> Result<Attempt<T>, Error>,
    ) -> Result<Done<T>, Error> {
        let (mut way, mut reason) = self.choose()?;
        let mut pause = Duration::ZERO;
        let mut attempt = 1;
        loop {
            let mut waits_for_safe_point = false;
            let began = SystemTime::now();
            let result = match &way {
                Way::Fork(plan) => on_a_thread_of_its_own(|| fork(plan)),
                Way::Freeze(how) => freeze(*how),
            };
            let may_try_again = attempt < MAX_ATTEMPTS;
            attempt += 1;
            match result {
                Ok(done) => {
                    pause += done.pause;
                    // If clone(2) took longer than expected, it would again.
                    let is_too_long = matches!(way, Way::Fork(_)) && done.pause > self.max_pause;
                    if is_too_long {
                        reason +=
                            "; the kernel took longer for the copy than the limit of the pause";
                    }
                    if !done.is_incomplete || !may_try_again || is_too_long {
                        let no_copy = match way {
                            Way::Freeze(how) => how.no_copy,
                            Way::Fork(_) => None,
                        };
                        return Ok(Done { found: done.found, reason, no_copy, began, pause });
                    }
                }
                Err(error) if is_ending() => return Err(error),
                Err(error) if may_try_again && is_transient(&error) => {
                    waits_for_safe_point =
                        matches!(&error, Error::CallRefused { refusal: Refusal::NoSafePoint, .. });
                }
                Err(error) if matches!(way, Way::Fork(_)) && self.may_freeze_after(&error) => {
                    (way, reason) = match error {
                        Error::CallRefused { refusal, .. } => {
                            (Way::instead_of_copy(&refusal), not_copied(&refusal))
                        }
                        error => (Way::Freeze(Freeze::default()), error.to_string()),
                    };
                    attempt = 1;
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(BETWEEN_ATTEMPTS);
            // Another rbloat, such as an agent, lets it go soon.
            wait_until_untraced(self.target.pid(), MAX_WAIT_FOR_TRACER);
            // A process that mostly computes is rarely at a safe point by chance.
            if waits_for_safe_point {
                let (pid, longest) = (self.target.pid(), MAX_WAIT_FOR_SAFE_POINT);
                let _ = inferior::wait_for_safe_point(pid, ruby::WAKEUP_SIGNAL, longest);
            }
        }
    }

    /// The way to try first, and the reason for the choice.
    fn choose(&self) -> Result<(Way, String), Error> {
        if self.how.mode == CaptureMode::Freeze {
            return Ok((Way::Freeze(Freeze::default()), "as requested".into()));
        }
        let max_pause = self.max_pause;
        let plan = self.limits.as_ref().map_err(Refusal::clone).and_then(|limits| {
            ForkPlan::make(self.target, self.factors, limits, ruby::WAKEUP_SIGNAL, self.own_bytes)
        });
        let planned = plan.and_then(|plan| match self.factors.fork() {
            expected if expected > max_pause => Err(Refusal::Slow { expected, max_pause }),
            _ => Ok(plan),
        });
        match (planned, self.how.mode) {
            (Ok(plan), CaptureMode::Fork) => Ok((Way::Fork(plan), "as requested".into())),
            (Ok(plan), _) => Ok((Way::Fork(plan), "the method with the shortest pause".into())),
            (Err(refusal), CaptureMode::Fork) => Err(self.refused(refusal)),
            (Err(refusal), _) => Ok((Way::instead_of_copy(&refusal), not_copied(&refusal))),
        }
    }

    fn refused(&self, refusal: Refusal) -> Error {
        Error::CallRefused { pid: self.target.pid(), purpose: Purpose::Fork, refusal }
    }

    fn may_freeze_after(&self, error: &Error) -> bool {
        self.how.mode != CaptureMode::Fork
            && matches!(error, Error::CallRefused { .. } | Error::CopyLost(_))
    }

    fn forked(&self, plan: &ForkPlan) -> Result<ForkedCopy, Error> {
        inferior::fork(self.target, self.max_pause, plan)?.map_err(|refusal| self.refused(refusal))
    }

    fn fork(&self, plan: &ForkPlan) -> Result<Attempt<Reading>, Error> {
        let mut forked = self.forked(plan)?;
        let facts = Facts::begin(forked.image(), self.read);
        let tried_bytes = match self.call {
            Some(call) if !facts.know_heap() => call.try_on(&mut forked)?,
            _ => None,
        };
        let (ended, facts) = both(|| forked.end(), || facts.resolved());
        let EndedCopy { state, pause, copied_bytes, left } = ended?;
        let method = CaptureMethod::Fork;
        let reading =
            Reading { method, copied_bytes, left, tried_bytes, ..Reading::new(facts, state) };
        Ok(reading.attempt(pause))
    }

    fn freeze(&self, freeze: Freeze) -> Result<Attempt<Reading>, Error> {
        let (facts, Thawed { state, pause, .. }) =
            self.while_frozen(freeze, |image| Facts::begin(image, self.read))?;
        let reading = match facts {
            Ok(facts) => Reading::new(facts.resolved(), state),
            Err(unread) => {
                let modules = self.target.modules().to_vec();
                let facts = Facts::unread(self.target.image(), modules);
                Reading { unread: Some(unread), ..Reading::new(facts, state) }
            }
        };
        Ok(reading.attempt(pause))
    }

    /// Returns what `read` finds in the paused process, or in a copy of what the process may change, which takes a shorter pause; if
    /// neither is possible in time, the time that it would take.
    fn while_frozen<T>(
        &self,
        freeze: Freeze,
        read: impl FnOnce(&Image<'_>) -> T,
    ) -> Result<(Result<T, Unread>, Thawed), Error> {
        let max_pause = match self.how.max_pause {
            None if freeze.computes => max_pause::default_for_computing(&self.factors),
            _ => self.max_pause,
        };
        let room = self.room_for_memory();
        let frozen = image::freeze_target(self.target, max_pause)?;
        let (walk, time_left) = (self.expected_walk(), frozen.time_left());
        let bytes = frozen.changeable_bytes();
        let copy = self.expected_copy(bytes);
        // A process that was stopped before has no deadline, so that a copy would only take memory.
        let copies =
            |room: &Vec<u8>| time_left.is_some() && bytes <= room.len() as u64 && copy <= walk;
        let room = room.filter(copies);
        let expected = if room.is_some() { copy } else { walk };
        // The deadline is for wrong estimates. If the estimate already exceeds it, do not begin.
        let (found, thawed) = if time_left.is_some_and(|left| left < expected) {
            (None, frozen.thaw()?)
        } else if let Some(room) = room {
            let Copied { image, pause, expired } = frozen.copy(room)?;
            let found = (!expired).then(|| read(&image));
            (found, Thawed { state: image.state, pause, expired })
        } else {
            (Some(read(frozen.image())), frozen.thaw()?)
        };
        let found = found.filter(|_| !thawed.expired);
        let unread = || max_pause::unread(&self.factors, max_pause, expected, freeze.copy_is_slow);
        Ok((found.ok_or_else(unread), thawed))
    }

    /// Memory for a copy of what the target may change: if it is small, and if there is room for it beside rbloat's own. All of its
    /// pages are written, so that they are resident before the target is paused.
    fn room_for_memory(&self) -> Option<Vec<u8>> {
        let bytes = self.factors.resident_bytes;
        let room = self.limits.as_ref().map_or_else(
            |_| MemoryLimits::default().own_room_bytes(),
            MemoryLimits::own_room_bytes,
        );
        let own_bytes = self.own_bytes.saturating_add(bytes);
        let fits = [room, self.how.max_own_bytes].iter().flatten().all(|most| own_bytes < *most);
        (fits && bytes <= MAX_COPY_BYTES).then(|| vec![1; bytes as usize])
    }

    /// The expected time of a copy of the target's memory.
    fn expected_copy(&self, bytes: u64) -> Duration {
        let gib = bytes as f64 / (1_u64 << 30) as f64;
        COPY_PER_GIB.mul_f64(gib).mul_f64(self.factors.slowdown())
    }

    /// The expected time of the walks during a freeze.
    fn expected_walk(&self) -> Duration {
        let factors = self.factors;
        let gib = factors.resident_bytes as f64 / (1_u64 << 30) as f64;
        let per_gib = match self.read {
            ReadDepth::Causes => WALK_PER_GIB,
            ReadDepth::Owners => WALK_PER_GIB_WITH_OWNERS,
            _ => 2 * WALK_PER_GIB_WITH_OWNERS,
        };
        let heaps = allocator::count_heaps(&self.target.image().state.mappings) as f64;
        let walk = WALK
            + per_gib.mul_f64(gib)
            + WALK_PER_HEAP.mul_f64(heaps)
            + WALK_PER_THREAD.mul_f64(factors.threads as f64)
            + WALK_PER_MAPPING.mul_f64(factors.mappings as f64);
        walk.mul_f64(factors.load)
    }
}

fn not_copied(refusal: &Refusal) -> String {
    format!("no forked copy was made: {refusal}{}", reason_for(refusal))
}

/// Returns the reason why no copy can be made, if the user can do something about it.
#[must_use]
pub fn no_copy(refusal: &Refusal) -> Option<NoCopy> {
    match refusal {
        Refusal::NotSignalled => Some(NoCopy::NotSignalled),
        Refusal::UnknownLimit => Some(NoCopy::UnknownLimit),
        Refusal::NoRoom { .. } => Some(NoCopy::NoRoom),
        _ => None,
    }
}

/// Returns true if another try some milliseconds later may succeed.
fn is_transient(error: &Error) -> bool {
    use linux::Error as E;
    match error {
        Error::Capture(error) => {
            matches!(error, E::DoesNotStop { .. } | E::NewThreads { .. } | E::Traced { .. })
        }
        Error::CallRefused { refusal, .. } => refusal.is_transient(),
        _ => false,
    }
}

impl Reading {
    /// What was read from the paused target.
    fn new(facts: Facts, state: ProcessState) -> Self {
        let (unread, left, tried_bytes) = (None, None, None);
        let (method, copied_bytes) = (CaptureMethod::Freeze, None);
        Self { facts, state, method, copied_bytes, unread, left, tried_bytes }
    }

    fn attempt(self, pause: Duration) -> Attempt<Self> {
        Attempt { is_incomplete: self.facts.are_torn(), found: self, pause }
    }

    fn captured(self, capture: Capture) -> Captured {
        let Self { facts, state, left, tried_bytes, .. } = self;
        Captured { facts, state, capture, left, tried_bytes }
    }
}
