//! The samples of `rbloat who`, from a file.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use formats::{SamplingMethod, Snapshot, Who};
use linux::proc;

use crate::error::Error;

/// Larger files are not read whole. The samples of an observation take a few MiB.
const MAX_BYTES: u64 = 256 << 20;

/// The samples of a file.
pub struct Samples {
    path: PathBuf,
    who: Who,
}

impl Samples {
    /// Reads the file. Afterwards a capture may take long.
    ///
    /// # Errors
    /// If it cannot be read, or has no samples.
    pub fn read(path: PathBuf) -> Result<Self, Error> {
        let mut json = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut json));
        match read.map_err(|error| error.to_string()).and_then(|_| Who::from_json(&json)) {
            Ok(who) => Ok(Self { path, who }),
            Err(what) => Err(Error::NotSamples { path, what }),
        }
    }

    /// Returns an error if a process that runs has no samples.
    pub fn check(&self, pid: i32) -> Result<(), Error> {
        self.check_process(pid, proc::start_time(pid).ok())
    }

    /// Returns the samples, if they have some of the process of this snapshot.
    pub fn of(self, snapshot: &Snapshot) -> Result<Who, Error> {
        let process = &snapshot.report.process;
        self.check_process(process.pid, process.started_ticks)?;
        Ok(self.who)
    }

    fn check_process(&self, pid: i32, started_ticks: Option<u64>) -> Result<(), Error> {
        let Self { path, who } = self;
        if diagnosis::touched_by(pid, started_ticks, who).is_some() {
            return Ok(());
        }
        let is_watched = who.processes.iter().any(|process| process.pid == pid);
        let has_pages = who.touched.iter().any(|touched| touched.pid == pid);
        let why = match who.sampling.method {
            SamplingMethod::Polling => "page faults were counted, and not sampled",
            _ if is_watched && !has_pages => {
                "it touched no new memory while it was watched, or has returned all of it"
            }
            _ => "they are of another process",
        };
        Err(Error::OtherSamples { path: path.clone(), pid, why })
    }
}
