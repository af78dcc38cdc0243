//! The choice of a capture: which method is tried, for how long, and which one is tried next.

use std::time::{Duration, Instant, SystemTime};

use capture::live::on_a_thread_of_its_own;
use capture::{Image, PauseFactors, ProcessState, Thawed};
use formats::{AllocatorStatistics, Capture, CaptureMethod};
use inferior::{EndedCopy, ForkPlan, Refusal};
use ledger::Facts;

use crate::allocator_call::{self, AllocatorCall};
use crate::arguments::{CaptureArguments, CaptureMode};
use crate::failure::Failure;

/// The most captures of a target that changes its heap, has no thread at a safe point, or does not stop in time.
const MAX_ATTEMPTS: u32 = 4;
/// How long it goes on in between.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// Time of the walks during a freeze: for each resident GiB without and with owners, for each heap of malloc's
/// arenas, for each thread, and for each mapping. Processes with 4,000 threads, 15,000 mappings and 300 arenas were measured.
const WALK_PER_GIB: Duration = Duration::from_millis(140);
const WALK_PER_GIB_WITH_OWNERS: Duration = Duration::from_millis(260);
const WALK_PER_HEAP: Duration = Duration::from_micros(50);
const WALK_PER_THREAD: Duration = Duration::from_micros(350);
const WALK_PER_MAPPING: Duration = Duration::from_micros(4);

/// rbloat's own memory for reading a process: a constant part, and a fraction of the RSS without and with owners.
const OWN_BYTES: u64 = 8 << 20;
const OWN_PART: u64 = 10;
const OWN_PART_WITH_OWNERS: u64 = 5;

/// A target that was read, and how.
pub(crate) struct Captured {
    pub(crate) facts: Facts,
    pub(crate) state: ProcessState,
    pub(crate) capture: Capture,
    /// Why its memory was not read, if it was not: the facts are empty then.
    pub(crate) unread: Option<String>,
    /// The reason why the forked copy is still in the process table, as a zombie, if it is.
    pub(crate) left: Option<Refusal>,
    /// The bytes that the allocator gave back in the forked copy, if it was tried.
    pub(crate) tried_bytes: Option<u64>,
    /// The allocator's own statistics, if a forked copy could be asked.
    pub(crate) statistics: Option<AllocatorStatistics>,
}

/// Reads the process `pid`, which is a Ruby, in the way that is asked for; with `owners` what it takes to
/// find who holds its memory.
///
/// No word goes to the terminal before the target goes on: it might keep us waiting.
pub(crate) fn take(pid: i32, how: CaptureArguments, owners: bool) -> Result<Captured, Failure> {
    take_and_try(pid, how, owners, None)
}

/// Like [`take`], of a process that will be made to make `call` anyway: the forked copy makes the call after it was
/// read, unless the outcome can be computed.
pub(crate) fn take_and_try(
    pid: i32,
    how: CaptureArguments,
    owners: bool,
    call: Option<&AllocatorCall>,
) -> Result<Captured, Failure> {
    let started = Instant::now();
    let image = capture::look(pid)?;
    let own_bytes = own_bytes(image.state.process.rss_bytes, owners);
    if let Some(room_bytes) = inferior::room_bytes(pid, 0)
        && inferior::room_bytes(pid, own_bytes) == Some(0)
    {
        return Err(Failure::NoRoom { pid, own_bytes, room_bytes });
    }
    let call = call.filter(|call| !call.allocator.is_glibc());
    let target = Target { pid, how, owners, call, image: &image, own_bytes };
    target.capture(started)
}

/// rbloat's own memory for reading a process, in bytes.
fn own_bytes(rss_bytes: u64, owners: bool) -> u64 {
    OWN_BYTES + rss_bytes / if owners { OWN_PART_WITH_OWNERS } else { OWN_PART }
}

/// A process that is to be read.
struct Target<'a> {
    pid: i32,
    how: CaptureArguments,
    owners: bool,
    call: Option<&'a AllocatorCall>,
    /// The process as it ran on.
    image: &'a Image<'static>,
    own_bytes: u64,
}

/// What came of one look.
struct Look {
    facts: Facts,
    state: ProcessState,
    method: CaptureMethod,
    copied_bytes: Option<u64>,
    pause: Duration,
    unread: Option<String>,
    left: Option<Refusal>,
    tried_bytes: Option<u64>,
    statistics: Option<AllocatorStatistics>,
}

impl Target<'_> {
    fn capture(&self, started: Instant) -> Result<Captured, Failure> {
        let (mut plan, mut reason) = self.choose()?;
        let mut pause = Duration::ZERO;
        let mut attempt = 1;
        loop {
            let at = SystemTime::now();
            let look = match &plan {
                Some(plan) => on_a_thread_of_its_own(|| self.fork(plan)),
                None => self.freeze(&reason),
            };
            let may_try_again = attempt < MAX_ATTEMPTS;
            attempt += 1;
            match look {
                Ok(look) => {
                    pause += look.pause;
                    if !look.facts.are_torn() || !may_try_again {
                        let elapsed = started.elapsed();
                        let capture = Capture::new(
                            look.method,
                            reason,
                            at,
                            pause,
                            elapsed,
                            look.copied_bytes,
                        );
                        return Ok(look.captured(capture));
                    }
                }
                Err(failure) if may_try_again && passes(&failure) => {}
                Err(failure) if plan.is_some() && self.may_freeze_after(&failure) => {
                    plan = None;
                    reason = match failure {
                        Failure::NotTouched { refusal, .. } => no_copy(&refusal),
                        failure => failure.to_string(),
                    };
                    attempt = 1;
                }
                Err(failure) => return Err(failure),
            }
            std::thread::sleep(BETWEEN_ATTEMPTS);
        }
    }

    /// The plan of a forked copy, if one can be made, and the reason for the choice.
    fn choose(&self) -> Result<(Option<ForkPlan>, String), Failure> {
        if self.how.capture == CaptureMode::Freeze {
            return Ok((None, "as requested".into()));
        }
        let max_pause = self.how.max_pause;
        let planned =
            ForkPlan::make(self.image, ruby::WAKEUP_SIGNAL, self.own_bytes).and_then(|plan| {
                match plan.factors().fork() {
                    expected if expected > max_pause => Err(Refusal::Slow { expected, max_pause }),
                    _ => Ok(plan),
                }
            });
        match (planned, self.how.capture) {
            (Ok(plan), CaptureMode::Fork) => Ok((Some(plan), "as requested".into())),
            (Ok(plan), _) => Ok((Some(plan), "the shortest pause".into())),
            (Err(refusal), CaptureMode::Fork) => Err(self.refused(refusal)),
            (Err(refusal), _) => Ok((None, no_copy(&refusal))),
        }
    }

    fn refused(&self, refusal: Refusal) -> Failure {
        let instead = match refusal {
            Refusal::Slow { .. } => "; allow more with --max-pause",
            Refusal::NoHandler { .. } => {
                ", which every CRuby installs when it starts; --capture freeze needs none"
            }
            _ => "; --capture freeze needs none",
        };
        Failure::NotTouched { pid: self.pid, what: "forked copy", refusal, instead }
    }

    fn may_freeze_after(&self, failure: &Failure) -> bool {
        self.how.capture != CaptureMode::Fork
            && matches!(failure, Failure::NotTouched { .. } | Failure::CopyLost(_))
    }

    fn fork(&self, plan: &ForkPlan) -> Result<Look, Failure> {
        let mut forked = match inferior::fork(self.pid, self.how.max_pause, plan)? {
            Ok(forked) => forked,
            Err(refusal) => return Err(self.refused(refusal)),
        };
        let facts = Facts::read(forked.image(), self.owners);
        let tried_bytes = match self.call {
            Some(call) => call.try_on(&mut forked)?,
            None => None,
        };
        let statistics = allocator_call::statistics(&mut forked)?;
        let EndedCopy { state, pause, copied_bytes, left } = forked.end()?;
        let method = CaptureMethod::Fork;
        Ok(Look {
            method,
            copied_bytes,
            left,
            tried_bytes,
            statistics,
            ..Look::new(facts, state, pause)
        })
    }

    /// Reads the process while it stands, as far as that is possible in time.
    fn freeze(&self, reason: &str) -> Result<Look, Failure> {
        let frozen = capture::freeze(self.pid, self.how.max_pause)?;
        let expected = self.expected_walk();
        // The deadline is for the case in which the estimate is wrong: who knows better does not even begin.
        let has_time = frozen.time_left().is_none_or(|left| expected <= left);
        let facts = has_time.then(|| Facts::read(frozen.image(), self.owners));
        let Thawed { state, pause, expired } = frozen.thaw()?;
        match facts.filter(|_| !expired) {
            Some(facts) => Ok(Look::new(facts, state, pause)),
            None => {
                let unread = self.unread(expected, reason);
                let facts = Facts::unread(self.image, &unread);
                Ok(Look { unread: Some(unread), ..Look::new(facts, state, pause) })
            }
        }
    }

    /// The expected time of the walks during a freeze.
    fn expected_walk(&self) -> Duration {
        let factors = PauseFactors::of(self.image);
        let gib = factors.resident_bytes as f64 / (1_u64 << 30) as f64;
        let per_gib = if self.owners { WALK_PER_GIB_WITH_OWNERS } else { WALK_PER_GIB };
        let heaps = allocator::count_heaps(&self.image.state.mappings) as f64;
        let walk = per_gib.mul_f64(gib)
            + WALK_PER_HEAP.mul_f64(heaps)
            + WALK_PER_THREAD.mul_f64(factors.threads as f64)
            + WALK_PER_MAPPING.mul_f64(factors.mappings as f64);
        walk.mul_f64(factors.load)
    }

    /// Why the memory was not read.
    fn unread(&self, expected: Duration, reason: &str) -> String {
        let max_pause = self.how.max_pause;
        let enough = (2 * (expected + PauseFactors::of(self.image).freeze())).max(2 * max_pause);
        format!(
            "not read: that takes a pause of about {} ms, and --max-pause allows {} ms ({reason}). Allow more \
             with --max-pause {}ms",
            expected.as_millis().max(max_pause.as_millis()),
            max_pause.as_millis(),
            enough.as_millis().next_multiple_of(100),
        )
    }
}

fn no_copy(refusal: &Refusal) -> String {
    let reason = match refusal {
        Refusal::NoHandler { .. } => ", which every CRuby installs when it starts",
        _ => "",
    };
    format!("no forked copy was made: {refusal}{reason}")
}

/// Returns true if another try some milliseconds later may succeed.
fn passes(failure: &Failure) -> bool {
    use capture::Error as E;
    match failure {
        Failure::Target(error) => matches!(error, E::DoesNotStop { .. } | E::NewThreads { .. }),
        Failure::NotTouched { refusal, .. } => {
            matches!(refusal, Refusal::NoSafePoint | Refusal::Slow { .. } | Refusal::Lost)
        }
        _ => false,
    }
}

impl Look {
    /// Of a target that stood while it was read.
    fn new(facts: Facts, state: ProcessState, pause: Duration) -> Self {
        let method = CaptureMethod::Freeze;
        let (unread, left, tried_bytes, statistics) = (None, None, None, None);
        let copied_bytes = None;
        Self { facts, state, method, copied_bytes, pause, unread, left, tried_bytes, statistics }
    }

    fn captured(self, capture: Capture) -> Captured {
        let Self { facts, state, unread, left, tried_bytes, statistics, .. } = self;
        Captured { facts, state, capture, unread, left, tried_bytes, statistics }
    }
}
