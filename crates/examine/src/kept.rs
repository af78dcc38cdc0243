//! The observation of new objects that stay.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use diagnosis::{KeptSampling, RetainedObjects};
use formats::{Kept, KeptUnknown, Snapshot, milliseconds};
use image::Target;
use linux::page_faults::is_forbidden;
use linux::{Clocks, Companion, StopSignal, TickSource, proc};
use sampler::{KeptProfile, KeptProgram, KeptSampler, KeptSearch, NotShown};

use crate::attempts;
use crate::error::Error;
use crate::options::{CaptureOptions, Detail};
use crate::process::{self, Id};
use crate::progress::Progress;
use crate::sandbox::Sandbox;
use crate::source::{Source, snapshot_of};

/// The least time between two looks at a process whose layouts are not all known yet.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// The time between two looks grows: it is the time that was spent on it, divided by this.
const SEARCH_PARTS: u32 = 500;
/// The answer of a kernel that does not know a flag of a clock, or an instruction of the program.
const OLD_KERNEL: i32 = libc::EINVAL;
/// The time between two questions whether the observation is over.
const STEP: Duration = Duration::from_millis(100);

/// Samples the new objects of a process on a thread of its own, while the process is captured repeatedly.
pub struct KeptLines {
    sampling: Option<Companion>,
    profile: Receiver<Sampled>,
}

/// The samples of a process; the reason if it has shown too little, or the error that ended the sampling.
pub type Sampled = Result<Result<KeptProfile, KeptUnknown>, Error>;

impl KeptLines {
    /// Captures the process for its layouts, and starts to sample its objects as soon as it has allocated and collected garbage. If the
    /// kernel refuses to sample the process, there is the reason.
    ///
    /// # Errors
    /// If a layout could not be derived.
    pub fn begin(
        target: &Target,
        capture: CaptureOptions,
        rate: u32,
        source: TickSource,
    ) -> Result<Result<Self, KeptUnknown>, Error> {
        let pid = target.pid();
        if let Some(refused) = refusal(pid, rate, source)? {
            return Ok(Err(refused));
        }
        let search = attempts::read_image(target, capture, KeptSearch::begin)?;
        let (sender, profile) = channel();
        let sampling = Companion::start(move |stop| {
            // Nobody receives it if the last capture has failed.
            let _ = sender.send(sample(pid, search, (rate, source), stop));
        });
        Ok(Ok(Self { sampling, profile }))
    }

    /// Captures the process for the last time, then ends the sampling, and analyses the capture in the sandbox. The objects are
    /// followed until the process is captured, so the snapshot has the same ones. Without a profile there is the reason, or the error of
    /// the sampling.
    ///
    /// # Errors
    /// If the process could not be captured or accounted for.
    pub fn end(
        self,
        source: Source,
        how: CaptureOptions,
        retained_sizes: bool,
        sandbox: &Sandbox,
        progress: &dyn Progress,
    ) -> Result<(Snapshot, Sampled), Error> {
        let detail = Detail::snapshot(retained_sizes);
        // The sandbox of the process would also apply to the thread that samples.
        let captured = source.take(how, detail, &Sandbox::of_analyses(how.sandbox), progress)?;
        let Self { sampling, profile } = self;
        drop(sampling);
        let profile = profile.recv().unwrap_or(Ok(Err(KeptUnknown::Ended)));
        sandbox.run(|| Ok((captured.account(detail, progress)?, profile)))
    }
}

/// The reason if the kernel refuses to sample a process: the user must not wait for the first collection to learn of it.
fn refusal(pid: i32, rate: u32, ticks: TickSource) -> Result<Option<KeptUnknown>, Error> {
    match Clocks::start(pid, rate, 1.0, ticks, |_| ()) {
        Ok(_) => Ok(None),
        Err(linux::Error::Clocks { source, .. }) if is_forbidden(&source) => {
            Ok(Some(KeptUnknown::NotAllowed))
        }
        Err(linux::Error::Clocks { .. }) if ticks == TickSource::Kernel => {
            Ok(Some(KeptUnknown::NoTicks))
        }
        Err(linux::Error::Clocks { source, .. }) if source.raw_os_error() == Some(OLD_KERNEL) => {
            Ok(Some(KeptUnknown::NoClocks))
        }
        Err(error) => Err(error.into()),
    }
}

/// Samples the objects of a process until the request to stop.
fn sample(
    pid: i32,
    search: KeptSearch,
    (rate, source): (u32, TickSource),
    stop: &StopSignal,
) -> Sampled {
    let over = || Ok(stop.comes_within(Duration::ZERO).then_some(Over::Wanted));
    let program = match found(pid, Ok(search), over)? {
        Ok(program) => program,
        Err(unknown) => return Ok(Err(unknown)),
    };
    let mut sampler = KeptSampler::begin(pid, program, rate, source)?;
    while !stop.comes_within(Duration::ZERO) {
        sampler.step(STEP);
    }
    sampler.stop();
    Ok(if sampler.is_alive()? { Ok(sampler.profile()) } else { Err(KeptUnknown::Ended) })
}

/// Looks at a process until all layouts are known, or it is over. A process that may not be sampled is waited for.
fn found(
    pid: i32,
    mut search: Result<KeptSearch, KeptUnknown>,
    mut over: impl FnMut() -> Result<Option<Over>, Error>,
) -> Result<Result<KeptProgram, KeptUnknown>, Error> {
    let image = image::look(pid)?;
    let begin = Instant::now();
    while !search.as_mut().is_ok_and(|it| it.look(&image)) {
        match over()? {
            Some(Over::Process) => return Ok(Err(KeptUnknown::Ended)),
            Some(_) => break,
            None => {
                let wait = begin.elapsed() / SEARCH_PARTS;
                std::thread::sleep(wait.clamp(SEARCH_INTERVAL, STEP));
            }
        }
    }
    Ok(search.and_then(|search| {
        search.end().map_err(|not_shown| match not_shown {
            NotShown::Collections => KeptUnknown::NoCollections,
            NotShown::FreeLists => KeptUnknown::NoFreeLists,
        })
    }))
}

/// The observation of the new objects of a process.
pub struct KeptWatch {
    process: Watched,
    search: Result<KeptSearch, KeptUnknown>,
}

/// The process that is observed.
struct Watched {
    id: Id,
    command: String,
    capture: CaptureOptions,
    sampling: KeptSampling,
    before: RetainedObjects,
}

/// The reason for the end of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Time,
    Wanted,
    Process,
}

impl KeptWatch {
    /// Captures a process twice: for its layouts, and for the objects that it keeps already.
    ///
    /// # Errors
    /// Also if a layout could not be derived.
    pub fn begin(
        target: &Target,
        capture: CaptureOptions,
        sampling: KeptSampling,
    ) -> Result<Self, Error> {
        let id = process::id(target);
        let search = attempts::read_image(target, capture, KeptSearch::begin);
        let before = snapshot_of(id, capture, Detail::snapshot(false))?;
        let process = Watched {
            id,
            command: target.image().state.process.command.clone(),
            capture,
            sampling,
            before: diagnosis::retained_objects(&before).ok_or(Error::NoReferences)?,
        };
        let search = match refusal(target.pid(), sampling.rate, TickSource::Any)? {
            Some(refused) => Err(refused),
            None => Ok(search?),
        };
        Ok(Self { process, search })
    }

    /// The reason why no lines can be named; `None` if the kernel allows it.
    #[must_use]
    pub fn refused(&self) -> Option<KeptUnknown> {
        self.search.as_ref().err().copied()
    }

    /// Watches for this time, or until `look`, which is called ten times a second, returns true. At the end the process is captured
    /// again. If it has ended by then, or has shown too little, the result says so.
    ///
    /// # Errors
    /// If the last capture fails.
    pub fn run(
        self,
        duration: Duration,
        mut look: impl FnMut() -> Result<bool, Error>,
    ) -> Result<Kept, Error> {
        let Self { process, search } = self;
        let pid = process.id.0;
        let begin = Instant::now();
        let mut asked = begin;
        let mut over = |lives: &dyn Fn() -> Result<bool, linux::Error>| {
            if begin.elapsed() >= duration {
                return Ok(Some(Over::Time));
            }
            if asked.elapsed() < STEP {
                return Ok(None);
            }
            asked = Instant::now();
            match look()? {
                true => Ok(Some(Over::Wanted)),
                false => Ok::<_, Error>((!lives()?).then_some(Over::Process)),
            }
        };
        let program = match found(pid, search, || over(&|| proc::lives(pid)))? {
            Ok(program) => program,
            Err(unknown) => return process.without_lines(begin, unknown),
        };
        let mut sampler = KeptSampler::begin(pid, program, process.sampling.rate, TickSource::Any)?;
        let end = loop {
            sampler.step(STEP);
            if let Some(end) = over(&|| sampler.is_alive())? {
                break end;
            }
        };
        match end {
            Over::Process => process.without_lines(begin, KeptUnknown::Ended),
            Over::Time | Over::Wanted => {
                sampler.stop();
                process.result(&mut sampler)
            }
        }
    }

    /// Watches until the request to stop, or until the process ends. Sends the result so far each time after `every`, which takes a
    /// capture, and at the request.
    fn run_on(
        self,
        every: Duration,
        stop: &StopSignal,
        results: &Sender<Result<Kept, Error>>,
    ) -> Result<(), Error> {
        let Self { process, search } = self;
        let (pid, begin) = (process.id.0, Instant::now());
        let is_stopped = || stop.comes_within(Duration::ZERO);
        let over = || {
            let wanted = is_stopped().then_some(Over::Wanted);
            Ok(wanted.or((!proc::lives(pid)?).then_some(Over::Process)))
        };
        // Nobody receives the results of a recording that failed.
        let send = |kept: Kept| drop(results.send(Ok(kept)));
        let program = match found(pid, search, over)? {
            Ok(program) => program,
            Err(unknown) => {
                send(process.without_lines(begin, unknown)?);
                return Ok(());
            }
        };
        let mut sampler = KeptSampler::begin(pid, program, process.sampling.rate, TickSource::Any)?;
        let (mut due, mut has_result) = (Instant::now() + every, false);
        while sampler.is_alive()? {
            let is_last = is_stopped();
            if is_last || Instant::now() >= due {
                // The next capture may succeed.
                let result = process.result(&mut sampler);
                has_result |= result.is_ok();
                drop(results.send(result));
                due = Instant::now() + every;
            }
            if is_last {
                return Ok(());
            }
            sampler.step(STEP);
        }
        if !has_result {
            send(process.without_lines(begin, KeptUnknown::Ended)?);
        }
        Ok(())
    }
}

/// The observation of what stays beside a recording or an agent, on a thread of its own.
pub struct KeptRecording {
    watching: Option<Companion>,
    results: Receiver<Result<Kept, Error>>,
}

impl KeptRecording {
    /// Watches a process, with a result each time after `every`, until it ends or the observation is dropped. `begin` captures it for
    /// the first time. Without a thread there is no result.
    #[must_use]
    pub fn begin(
        every: Duration,
        begin: impl FnOnce() -> Result<KeptWatch, Error> + Send + 'static,
    ) -> Self {
        let (sender, results) = channel();
        let watching = Companion::start(move |stop| {
            if let Err(error) = begin().and_then(|it| it.run_on(every, stop, &sender)) {
                let _ = sender.send(Err(error));
            }
        });
        Self { watching, results }
    }

    /// Returns the next result that has come in; `Ready(None)` if it was the last one.
    pub fn poll(&mut self) -> Poll<Option<Result<Kept, Error>>> {
        match self.results.try_recv() {
            Ok(result) => Poll::Ready(Some(result)),
            Err(TryRecvError::Empty) => Poll::Pending,
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
        }
    }

    /// Returns a result that has come in; at the end, the last one.
    pub fn result(&mut self, is_end: bool) -> Option<Result<Kept, Error>> {
        if is_end {
            self.watching = None;
        }
        self.results.try_recv().ok()
    }
}

/// Does work on another thread, and follows the objects meanwhile.
fn while_following<T: Send>(sampler: &mut KeptSampler, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            sampler.step(STEP);
        }
        work.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

impl Watched {
    /// The result without samples. A process that has not ended is captured: the roots that retain more are known without samples.
    fn without_lines(&self, begin: Instant, reason: KeptUnknown) -> Result<Kept, Error> {
        let elapsed_ms = milliseconds(begin.elapsed());
        if reason == KeptUnknown::Ended {
            return Ok(Kept {
                pid: self.id.0,
                command: self.command.clone(),
                elapsed_ms,
                rate: self.sampling.rate,
                older_than_ms: milliseconds(self.sampling.older_than),
                unknown: Some(reason),
                ..Kept::default()
            });
        }
        let after = snapshot_of(self.id, self.capture, Detail::snapshot(false))?;
        Ok(Kept { elapsed_ms, ..self.sum_up(Err(reason), &after) })
    }

    fn sum_up(&self, profile: Result<&KeptProfile, KeptUnknown>, after: &Snapshot) -> Kept {
        let process = (self.id.0, self.command.as_str());
        diagnosis::kept(process, self.sampling, profile, &self.before, after)
    }

    /// Captures the process, and follows the objects meanwhile: then the snapshot has the same ones.
    fn result(&self, sampler: &mut KeptSampler) -> Result<Kept, Error> {
        let capture = || snapshot_of(self.id, self.capture, Detail::snapshot(false));
        let after = while_following(sampler, capture)?;
        let profile = sampler.profile();
        Ok(while_following(sampler, || self.sum_up(Ok(&profile), &after)))
    }
}
