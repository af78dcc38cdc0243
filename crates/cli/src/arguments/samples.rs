//! The samples of `rbloat who`, from a file.

use std::path::PathBuf;

use clap::Args;
use examine::Samples;

use crate::failure::Failure;

/// The samples to use.
#[derive(Debug, Default, PartialEq, Args)]
pub(crate) struct SamplesArguments {
    /// Show which code touched the memory first
    ///
    /// FILE has the output of `rbloat who PID --json`, and for dumps that of `rbloat who PID --kept --json`
    #[arg(long, value_name = "FILE")]
    pub(crate) who: Option<PathBuf>,
}

impl SamplesArguments {
    /// Reads the file, if one was given. Afterwards a capture may take long.
    pub(crate) fn read(&self) -> Result<Option<Samples>, Failure> {
        Ok(self.who.as_ref().map(|path| Samples::read(path.clone())).transpose()?)
    }
}
