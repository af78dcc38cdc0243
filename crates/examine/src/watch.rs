//! The observation of a process's growth by code.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use formats::Who;
use image::Target;
use linux::proc::{self, Tree};
use sampler::{Profile, Program, Sampler};

use crate::attempts;
use crate::error::Error;
use crate::isolation::isolated;
use crate::options::CaptureOptions;
use crate::process;

/// The longest wait for samples, after which signals are looked for: each wakeup costs processor time.
const STEP: Duration = Duration::from_millis(500);
/// The time between two attempts to derive the layouts of a process, at first. After each attempt at Ruby it doubles, up to the
/// longest one; a process that does not run Ruby yet costs little.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(30);
const RETRY_OF_OTHERS: Duration = Duration::from_millis(500);
/// Growth beside a recording is taken when it has this size. Less growth is taken after ten intervals.
const ENOUGH_BYTES: u64 = 1 << 20;
const MAX_INTERVALS: u32 = 10;

/// An observation.
pub struct Watch {
    pid: i32,
    command: String,
    sampler: Sampler,
    capture: CaptureOptions,
    /// For each process without a known program the time of the next attempt to derive it, and the time to wait after that.
    tries: HashMap<i32, (Instant, Duration)>,
    /// The process whose last attempt failed, and the reason; `None` if it succeeded.
    refusal: Option<(i32, Error)>,
    /// The time at which the process was last seen to live.
    seen: Instant,
}

/// The result of an observation.
pub struct Watched {
    /// The growth by code.
    pub who: Who,
    /// Remarks on the observation.
    pub notes: Vec<Note>,
    /// True if the observation ended early because something failed.
    pub failed: bool,
}

/// A remark on an observation.
pub enum Note {
    /// The process ended before the observation began.
    NothingObserved,
    /// The process ended after so many seconds.
    ProcessEnded(u64),
    /// The observation failed after so many seconds.
    Failed(u64, Error),
    /// The stacks of this process are unknown.
    NoStacks(i32, Error),
}

impl Note {
    /// Returns it as a sentence. `explain` returns the one on an error.
    pub fn sentence(self, explain: impl Fn(&Error) -> String) -> String {
        match self {
            Self::NothingObserved => "the program ended before the observation began".into(),
            Self::ProcessEnded(seconds) => format!("the process ended after {seconds} s"),
            Self::Failed(seconds, error) => {
                format!("the observation ended after {seconds} s: {}", explain(&error))
            }
            Self::NoStacks(pid, error) => {
                format!("the stacks of process {pid} are unknown: {}", explain(&error))
            }
        }
    }
}

/// The reason for which an observation ends before its time.
pub enum End {
    /// The process ended.
    OfProcess,
    /// The user ended it, or it had no other end.
    Wanted,
}

impl Watch {
    /// Begins to observe a process. With `poll`, page faults are counted and not sampled.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub fn begin(pid: i32, capture: CaptureOptions, poll: bool) -> Result<Self, Error> {
        let members = Tree::new(pid).look();
        let others: Vec<i32> =
            members.iter().map(|member| member.pid).filter(|&it| it != pid).collect();
        Ok(Self {
            pid,
            command: proc::command_line(pid)?,
            sampler: Sampler::begin(pid, &others, poll)?,
            capture,
            tries: HashMap::new(),
            refusal: None,
            seen: Instant::now(),
        })
    }

    /// Like [`Watch::begin`], for a Ruby process. It is captured first, so that stacks can be read from the beginning.
    ///
    /// # Errors
    /// Also if it cannot be captured.
    pub fn begin_with_stacks(
        target: &Target,
        capture: CaptureOptions,
        poll: bool,
    ) -> Result<Self, Error> {
        let program = attempts::read_image(target, capture, Program::derive)?;
        let mut watch = Self::begin(target.pid(), capture, poll)?;
        watch.sampler.learn(&program);
        Ok(watch)
    }

    /// The result for a program that ended before it could be observed.
    pub fn nothing(pid: i32, command: &[OsString]) -> Who {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        diagnosis::who(pid, &linux::one_line(&words.join(" ")), &Profile::default())
    }

    /// Watches for this time, or until `look`, which is called after each step, returns an end.
    pub fn run(
        mut self,
        duration: Option<Duration>,
        mut look: impl FnMut(&mut Self) -> Result<Option<End>, Error>,
    ) -> Watched {
        let begin = Instant::now();
        let (mut notes, mut failed) = (Vec::new(), false);
        while duration.is_none_or(|duration| begin.elapsed() < duration) {
            let seconds = || begin.elapsed().as_secs();
            match self.step().and_then(|()| look(&mut self)) {
                Ok(None) => {}
                Ok(Some(End::OfProcess)) => {
                    notes.push(Note::ProcessEnded(seconds()));
                    break;
                }
                Ok(Some(End::Wanted)) => break,
                Err(error) => {
                    notes.push(Note::Failed(seconds(), error));
                    failed = true;
                    break;
                }
            }
        }
        notes.extend(self.refusal.take().map(|(pid, error)| Note::NoStacks(pid, error)));
        Watched { who: self.end(), notes, failed }
    }

    /// Returns the end if the process has ended. It is looked for every half second.
    pub fn end_of_process(&mut self) -> Result<Option<End>, Error> {
        if self.seen.elapsed() < STEP {
            return Ok(None);
        }
        self.seen = Instant::now();
        // A process lives on if its main thread ends and others do not.
        Ok((!proc::lives(self.pid)?).then_some(End::OfProcess))
    }

    /// Waits for samples, for a short time.
    pub fn step(&mut self) -> Result<(), Error> {
        let is_known = self.sampler.unknown_processes().is_empty();
        self.sampler.step(if is_known { STEP } else { FIRST_RETRY })?;
        self.derive();
        Ok(())
    }

    /// The id of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns true if the stacks of all its processes can be read.
    pub fn knows_stacks(&self) -> bool {
        self.sampler.unknown_processes().is_empty()
    }

    /// The growth so far.
    pub fn growth_bytes(&self) -> u64 {
        self.sampler.growth_bytes()
    }

    /// Ends the observation.
    pub fn end(self) -> Who {
        diagnosis::who(self.pid, &self.command, &self.sampler.end())
    }

    /// Returns the growth since the beginning or the last call, without sampled pages.
    fn take(&mut self) -> Who {
        diagnosis::who(self.pid, &self.command, &self.sampler.take())
    }

    /// Derives the layouts of processes that have begun to run another program. Until Ruby is ready, that fails.
    fn derive(&mut self) {
        let now = Instant::now();
        for pid in self.sampler.take_executed() {
            self.tries.remove(&pid);
        }
        let unknown = self.sampler.unknown_processes();
        self.tries.retain(|pid, _| unknown.contains(pid));
        for pid in unknown {
            let (next, wait) = self.tries.entry(pid).or_insert((now + FIRST_RETRY, FIRST_RETRY));
            if now < *next {
                continue;
            }
            let Ok(Some(target)) = process::ruby(pid) else {
                *next = now + RETRY_OF_OTHERS.min(*wait * 5);
                continue;
            };
            *wait = (*wait * 2).min(MAX_RETRY);
            *next = now + *wait;
            let derived =
                isolated(pid, || attempts::read_image(&target, self.capture, Program::derive));
            match derived {
                Ok(program) => {
                    self.refusal = None;
                    self.sampler.learn(&program);
                }
                Err(error) if error.is_end() => {}
                Err(error) => self.refusal = Some((pid, error)),
            }
        }
    }
}

/// An observation beside a recording, on a thread of its own: a stack must be read soon after its page fault.
pub struct GrowthWatch {
    is_over: Arc<AtomicBool>,
    /// True if growth may be taken.
    is_wanted: Arc<AtomicBool>,
    grown: Receiver<Result<(Who, Instant), Note>>,
    thread: Option<JoinHandle<()>>,
}

impl GrowthWatch {
    /// Begins to observe a process. Growth is taken after intervals of this time.
    pub fn begin(pid: i32, capture: CaptureOptions, interval: Duration) -> Result<Self, Error> {
        let mut watch = Watch::begin(pid, capture, false)?;
        let [is_over, is_wanted] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (send, grown) = mpsc::channel();
        let (over, wanted) = (is_over.clone(), is_wanted.clone());
        let work = move || {
            let begin = Instant::now();
            let (mut due, mut intervals) = (begin + interval, 0);
            while !over.load(Ordering::Relaxed) {
                if let Err(error) = watch.step() {
                    let _ = send.send(Err(Note::Failed(begin.elapsed().as_secs(), error)));
                    return;
                }
                if Instant::now() < due {
                    continue;
                }
                due = Instant::now() + interval;
                intervals += 1;
                let bytes = watch.sampler.growth_bytes();
                let is_enough = bytes >= ENOUGH_BYTES || (bytes > 0 && intervals >= MAX_INTERVALS);
                if is_enough && wanted.swap(false, Ordering::Relaxed) {
                    let _ = send.send(Ok((watch.take(), Instant::now())));
                    intervals = 0;
                } else if bytes == 0 {
                    let _ = watch.take();
                    intervals = 0;
                }
            }
            if watch.sampler.growth_bytes() > 0 {
                let _ = send.send(Ok((watch.take(), Instant::now())));
            }
            if let Some((pid, error)) = watch.refusal {
                let _ = send.send(Err(Note::NoStacks(pid, error)));
            }
        };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(work);
        let thread = Some(thread.map_err(Error::NoThread)?);
        Ok(Self { is_over, is_wanted, grown, thread })
    }

    /// Returns growth that was taken, and the time. If none was, it is taken soon; at the end, the rest is taken at once.
    pub fn growth(&mut self, is_end: bool) -> Option<Result<(Who, Instant), Note>> {
        if is_end {
            self.is_over.store(true, Ordering::Relaxed);
            let _ = self.thread.take().map(JoinHandle::join);
        }
        let grown = self.grown.try_recv().ok();
        self.is_wanted.store(grown.is_none(), Ordering::Relaxed);
        grown
    }
}
