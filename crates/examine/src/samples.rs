//! The samples of `rbloat who`, from a file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use formats::{Content, Kept, SamplingMethod, Snapshot, Who, from_json};
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
        let who = read(&path, from_json)?;
        Ok(Self { path, who })
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

/// Reads the samples of `rbloat who --kept`.
///
/// # Errors
/// If the file cannot be read, or has no such samples.
pub fn read_kept(path: &Path) -> Result<Kept, Error> {
    read(path, from_json)
}

fn read<T: Content>(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Result<T, Error> {
    let mut json = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut json));
    let document = read.map_err(|error| error.to_string()).and_then(|_| parse(&json));
    document.map_err(|what| Error::NotSamples { path: path.into(), kind: T::KIND, what })
}
