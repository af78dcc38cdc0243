//! The observation of a process's growth by code.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use capture::proc::{self, Tree};
use formats::Who;
use sampler::{Profile, Program, Sampler};

use crate::arguments::CaptureArguments;
use crate::attempts;
use crate::failure::Failure;

/// The longest wait for samples, after which signals are looked for.
const STEP: Duration = Duration::from_millis(100);
/// The time between two attempts to derive the layouts of a process, at first; each time it doubles.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Attempts for each process.
const MAX_TRIES: u32 = 8;
/// Growth beside a recording is taken when it has this size. Less growth is taken after ten intervals.
const ENOUGH_BYTES: u64 = 1 << 20;
const MAX_INTERVALS: u32 = 10;
/// The growth of an interval that counts as none.
const NO_BYTES: u64 = 64 << 10;

/// An observation.
pub(crate) struct Watch {
    pid: i32,
    command: String,
    sampler: Sampler,
    capture: CaptureArguments,
    /// For each process without a known program the time of the next attempt to derive it, and the number of attempts.
    tries: HashMap<i32, (Instant, u32)>,
}

impl Watch {
    pub(crate) fn begin(pid: i32, capture: CaptureArguments, poll: bool) -> Result<Self, Failure> {
        let members = Tree::new(pid).look();
        let others: Vec<i32> =
            members.iter().map(|member| member.pid).filter(|&it| it != pid).collect();
        Ok(Self {
            pid,
            command: proc::command_line(pid)?,
            sampler: Sampler::begin(pid, &others, poll)?,
            capture,
            tries: HashMap::new(),
        })
    }

    /// The result for a program that ended before it could be observed.
    pub(crate) fn nothing(pid: i32, command: &[OsString]) -> Who {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        diagnosis::who(pid, &capture::one_line(&words.join(" ")), &Profile::default())
    }

    /// Uses what was derived of a capture of the process.
    pub(crate) fn learn(&mut self, program: &Program) {
        self.sampler.learn(program);
    }

    /// Waits for samples, for a short time.
    pub(crate) fn step(&mut self) -> Result<(), Failure> {
        self.sampler.step(STEP)?;
        self.derive();
        Ok(())
    }

    /// A process lives on if its main thread ends and others do not.
    pub(crate) fn lives(&self) -> bool {
        let main = proc::thread_state(self.pid, self.pid);
        main.is_some_and(|state| !matches!(state, 'Z' | 'X'))
            || proc::threads(self.pid).is_ok_and(|threads| !threads.is_empty())
    }

    /// Ends the observation.
    pub(crate) fn end(self) -> Who {
        diagnosis::who(self.pid, &self.command, &self.sampler.end())
    }

    /// Returns the growth since the beginning or the last call, without sampled pages.
    fn take(&mut self) -> Who {
        diagnosis::who(self.pid, &self.command, &self.sampler.take())
    }

    /// Derives the layouts of processes that have begun to run another program. Until Ruby is ready, that fails.
    fn derive(&mut self) {
        let now = Instant::now();
        for pid in self.sampler.unknown_processes() {
            let (next, tries) = self.tries.entry(pid).or_insert((now + FIRST_RETRY, 0));
            if now < *next || *tries >= MAX_TRIES {
                continue;
            }
            *tries += 1;
            *next = now + FIRST_RETRY * (1 << *tries);
            let is_ruby = capture::look(pid).is_ok_and(|image| ruby::find(&image).is_some());
            if !is_ruby {
                continue;
            }
            if let Ok(program) = attempts::read_image(pid, self.capture, Program::derive) {
                self.sampler.learn(&program);
            }
        }
    }
}

/// An observation beside a recording, on a thread of its own: a stack must be read soon after its page fault.
pub(crate) struct GrowthWatch {
    is_over: Arc<AtomicBool>,
    /// True if growth may be taken.
    is_wanted: Arc<AtomicBool>,
    grown: Receiver<Result<Who, String>>,
    thread: Option<JoinHandle<()>>,
}

impl GrowthWatch {
    /// Begins to observe a process. Growth is taken after intervals of this time.
    pub(crate) fn begin(
        pid: i32,
        capture: CaptureArguments,
        interval: Duration,
    ) -> Result<Self, Failure> {
        let mut watch = Watch::begin(pid, capture, false)?;
        let [is_over, is_wanted] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (send, grown) = mpsc::channel();
        let (over, wanted) = (is_over.clone(), is_wanted.clone());
        let work = move || {
            let (mut due, mut intervals) = (Instant::now() + interval, 0);
            while !over.load(Ordering::Relaxed) {
                if let Err(failure) = watch.step() {
                    let _ = send.send(Err(format!("growth by code: {failure}")));
                    return;
                }
                if Instant::now() < due {
                    continue;
                }
                due = Instant::now() + interval;
                intervals += 1;
                let bytes = watch.sampler.growth_bytes();
                let is_enough =
                    bytes >= ENOUGH_BYTES || (bytes >= NO_BYTES && intervals >= MAX_INTERVALS);
                if is_enough && wanted.swap(false, Ordering::Relaxed) {
                    let _ = send.send(Ok(watch.take()));
                    intervals = 0;
                } else if bytes < NO_BYTES {
                    let _ = watch.take();
                    intervals = 0;
                }
            }
            if watch.sampler.growth_bytes() >= NO_BYTES {
                let _ = send.send(Ok(watch.take()));
            }
        };
        let thread = Some(std::thread::spawn(work));
        Ok(Self { is_over, is_wanted, grown, thread })
    }

    /// Returns growth that was taken. At the end, the rest is taken.
    pub(crate) fn growth(&mut self, is_end: bool) -> Option<Result<Who, String>> {
        self.is_wanted.store(true, Ordering::Relaxed);
        if is_end {
            self.is_over.store(true, Ordering::Relaxed);
            let _ = self.thread.take().map(JoinHandle::join);
        }
        self.grown.try_recv().ok()
    }
}
