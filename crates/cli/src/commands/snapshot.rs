use std::path::PathBuf;

use clap::Args;

use crate::arguments::{RetainedArguments, SourceArguments};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::sandbox::Sandbox;
use crate::source::Source;
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) retained: RetainedArguments,
}

pub(crate) fn run(arguments: &SnapshotArguments) -> Result<Outcome, Failure> {
    let source = Source::open(arguments.source.name()?)?;
    let output = Output::open(&arguments.output)?;
    let is_file = output.is_file();
    let sandbox = Sandbox::new(arguments.source.sandbox, [&output]);
    let snapshot = source.snapshot(arguments.source.capture, arguments.retained, &sandbox)?;
    let bytes = snapshot.to_bytes();
    output.write(&bytes)?;
    let report = &snapshot.report;
    let summary = render::saved_snapshot(report, &arguments.output, bytes.len() as u64);
    if is_file {
        terminal::print(&summary)?;
    } else {
        // The pipe that the snapshot went into may be standard output.
        terminal::print_error(&summary);
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
