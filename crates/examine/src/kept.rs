//! The observation of new objects that stay.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use diagnosis::{KeptSampling, RetainedObjects};
use formats::{Kept, KeptUnknown, Snapshot, milliseconds};
use image::Image;
use linux::{Companion, proc};
use sampler::{KeptProfile, KeptSampler, KeptSearch, NotShown};

use crate::attempts;
use crate::error::Error;
use crate::options::{CaptureOptions, Detail};
use crate::progress::Progress;
use crate::sandbox::Sandbox;
use crate::source::{Source, snapshot_of};

/// The time between two looks at a process whose layouts are not all known yet.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// The time between two questions whether the observation is over.
const STEP: Duration = Duration::from_millis(100);

/// Samples the new objects of a process on a thread of its own, while the process is captured repeatedly.
pub struct KeptLines {
    sampling: Option<Companion>,
    profile: Receiver<KeptProfile>,
}

impl KeptLines {
    /// The time for which [`Self::begin`] waits until the process allocates and collects garbage, at most.
    pub const MAX_SEARCH: Duration = Duration::from_secs(30);

    /// Captures the process for its layouts, and starts to sample its objects. If the process does not allocate or collects no
    /// garbage within [`Self::MAX_SEARCH`], the result is the reason why nothing can be sampled.
    ///
    /// # Errors
    /// If a layout could not be derived, the kernel refuses to sample the process, or the process ends.
    pub fn begin(
        pid: i32,
        capture: CaptureOptions,
        rate: u32,
    ) -> Result<Result<Self, KeptUnknown>, Error> {
        let mut search = attempts::read_image(pid, capture, KeptSearch::begin)?;
        let image = image::look(pid)?;
        let begin = Instant::now();
        while !search.look(&image) && begin.elapsed() < Self::MAX_SEARCH {
            if !proc::lives(pid)? {
                return Err(linux::Error::NoSuchProcess { pid }.into());
            }
            std::thread::sleep(SEARCH_INTERVAL);
        }
        let program = match search.end() {
            Ok(program) => program,
            Err(not_shown) => return Ok(Err(unknown(not_shown))),
        };
        let mut sampler = KeptSampler::begin(pid, program, rate)?;
        let (sender, profile) = channel();
        let sampling = Companion::start(move |stop| {
            while !stop.comes_within(Duration::ZERO) {
                sampler.step(STEP);
            }
            sampler.stop();
            if sampler.is_alive().unwrap_or(false) {
                // Nobody receives it if the last capture has failed.
                let _ = sender.send(sampler.end());
            }
        });
        Ok(Ok(Self { sampling, profile }))
    }

    /// Captures the process for the last time, then ends the sampling, and analyses the capture in the sandbox. The objects are
    /// followed until the process is captured, so the snapshot has the same ones. There is no profile if the process
    /// could not be followed until then.
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
    ) -> Result<(Snapshot, Option<KeptProfile>), Error> {
        let detail = Detail::snapshot(retained_sizes);
        // The sandbox of the process would also apply to the thread that samples.
        let captured = source.take(how, detail, &Sandbox::of_analyses(how.sandbox), progress)?;
        let Self { sampling, profile } = self;
        drop(sampling);
        let profile = profile.recv().ok();
        sandbox.run(|| Ok((captured.account(detail, progress)?, profile)))
    }
}

/// The reason why nothing is known.
fn unknown(not_shown: NotShown) -> KeptUnknown {
    match not_shown {
        NotShown::Collections => KeptUnknown::NoCollections,
        NotShown::FreeLists => KeptUnknown::NoFreeLists,
    }
}

/// The observation of the new objects of a process.
pub struct KeptWatch {
    process: Watched,
    search: KeptSearch,
    image: Image<'static>,
}

/// The process that is observed.
struct Watched {
    pid: i32,
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
    pub fn begin(pid: i32, capture: CaptureOptions, sampling: KeptSampling) -> Result<Self, Error> {
        let search = attempts::read_image(pid, capture, KeptSearch::begin)?;
        let before = snapshot_of(pid, capture, Detail::snapshot(false))?;
        let process = Watched {
            pid,
            command: proc::command_line(pid)?,
            capture,
            sampling,
            before: diagnosis::retained_objects(&before).ok_or(Error::NoReferences)?,
        };
        Ok(Self { process, search, image: image::look(pid)? })
    }

    /// Watches for this time, or until `look`, which is called ten times a second, returns true. At the end the process is captured
    /// again. If it has ended by then, or has shown too little, the result says so.
    ///
    /// # Errors
    /// If the kernel refuses to sample the process, or the last capture fails.
    pub fn run(
        self,
        duration: Duration,
        mut look: impl FnMut() -> Result<bool, Error>,
    ) -> Result<Kept, Error> {
        let Self { process, mut search, image } = self;
        let pid = process.pid;
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
        while !search.look(&image) {
            match over(&|| proc::lives(pid))? {
                Some(Over::Process) => return Ok(process.nothing(begin, KeptUnknown::Ended)),
                Some(_) => break,
                None => std::thread::sleep(SEARCH_INTERVAL),
            }
        }
        let program = match search.end() {
            Ok(program) => program,
            Err(not_shown) => return Ok(process.nothing(begin, unknown(not_shown))),
        };
        let mut sampler = KeptSampler::begin(pid, program, process.sampling.rate)?;
        let end = loop {
            sampler.step(STEP);
            if let Some(end) = over(&|| sampler.is_alive())? {
                break end;
            }
        };
        match end {
            Over::Process => Ok(process.nothing(begin, KeptUnknown::Ended)),
            Over::Time | Over::Wanted => process.end(sampler),
        }
    }
}

impl Watched {
    /// The result if nothing is known.
    fn nothing(&self, begin: Instant, reason: KeptUnknown) -> Kept {
        Kept {
            pid: self.pid,
            command: self.command.clone(),
            elapsed_ms: milliseconds(begin.elapsed()),
            rate: self.sampling.rate,
            older_than_ms: milliseconds(self.sampling.older_than),
            unknown: Some(reason),
            ..Kept::default()
        }
    }

    /// Captures the process, and follows the objects meanwhile: then the snapshot has the same ones.
    fn end(&self, mut sampler: KeptSampler) -> Result<Kept, Error> {
        sampler.stop();
        let after = std::thread::scope(|scope| {
            let snapshot =
                scope.spawn(|| snapshot_of(self.pid, self.capture, Detail::snapshot(false)));
            while !snapshot.is_finished() {
                sampler.step(STEP);
            }
            snapshot.join().unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        let profile = sampler.end();
        let process = (self.pid, self.command.as_str());
        Ok(diagnosis::kept(process, self.sampling, &profile, &self.before, &after))
    }
}
