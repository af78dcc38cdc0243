//! The observation of new objects that stay.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use diagnosis::{KeptSampling, RetainedObjects};
use formats::{Kept, KeptUnknown, milliseconds};
use image::Image;
use linux::proc;
use sampler::{KeptSampler, KeptSearch, NotShown};

use crate::attempts;
use crate::error::Error;
use crate::options::{CaptureOptions, Detail};
use crate::source::snapshot_of;

/// The time between two looks at a process whose layouts are not all known yet.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// The time between two questions whether the observation is over.
const STEP: Duration = Duration::from_millis(100);

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
            Err(not_shown) => {
                let reason = match not_shown {
                    NotShown::Collections => KeptUnknown::NoCollections,
                    NotShown::FreeLists => KeptUnknown::NoFreeLists,
                };
                return Ok(process.nothing(begin, reason));
            }
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
