//! The samples of `rbloat who`, from a file.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use formats::{Snapshot, Who};

use crate::failure::Failure;

/// Larger files are not read whole. The samples of an observation take a few MiB.
const MAX_BYTES: u64 = 256 << 20;

/// The samples to use.
#[derive(Debug, Args)]
pub(crate) struct SamplesArguments {
    /// Show which code touched the memory first
    ///
    /// FILE has the output of `rbloat who PID --json`
    #[arg(long, value_name = "FILE")]
    pub(crate) who: Option<PathBuf>,
}

impl SamplesArguments {
    /// Opens the file, if one was given.
    pub(crate) fn open(&self) -> Result<Option<Samples>, Failure> {
        let open = |path: &PathBuf| match File::open(path) {
            Ok(file) => Ok(Samples { path: path.clone(), file }),
            Err(source) => {
                Err(Failure::NotSamples { path: path.clone(), what: source.to_string() })
            }
        };
        self.who.as_ref().map(open).transpose()
    }
}

/// An open file with samples.
pub(crate) struct Samples {
    path: PathBuf,
    file: File,
}

impl Samples {
    /// Returns the samples, if they have some of the process of this snapshot.
    pub(crate) fn of(self, snapshot: &Snapshot) -> Result<Who, Failure> {
        let Self { path, file } = self;
        let mut json = Vec::new();
        let read = file.take(MAX_BYTES).read_to_end(&mut json).map_err(|error| error.to_string());
        let who = read.and_then(|_| Who::from_json(&json));
        let who = who.map_err(|what| Failure::NotSamples { path: path.clone(), what })?;
        let pid = snapshot.report.process.pid;
        if diagnosis::has_samples(&snapshot.report, &who) {
            Ok(who)
        } else {
            Err(Failure::OtherSamples { path, pid })
        }
    }
}
