use ledger::Size;

use crate::arguments::SnapshotArguments;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::source::Source;
use crate::terminal;

pub(crate) fn run(arguments: &SnapshotArguments) -> Result<Outcome, Failure> {
    let source = Source::open(arguments.source.name()?)?;
    let snapshot = source.snapshot(arguments.source.capture)?;
    let bytes = snapshot.to_bytes();
    output::write(&arguments.output, &bytes)?;
    let report = &snapshot.report;
    let summary = format!(
        "{}: process {} ({}), {} of RSS in {}\n",
        arguments.output.display(),
        report.process.pid,
        report.process.command,
        Size(report.process.rss_bytes),
        Size(bytes.len() as u64),
    );
    if arguments.output.is_file() {
        terminal::print(&summary)?;
    } else {
        // The pipe that the snapshot went into may be standard output.
        anstream::eprint!("{summary}");
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
