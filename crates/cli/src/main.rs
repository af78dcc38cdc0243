//! The `rbloat` command. See `rbloat --help` and the README.

mod allocator_call;
mod arguments;
mod attempts;
mod commands;
mod comparison_folder;
mod failure;
mod output;
mod process;
mod recording_view;
mod source;
mod terminal;
mod trimming;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::{Arguments, Command};
use failure::{Failure, Outcome};

fn main() -> ExitCode {
    let arguments = Arguments::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(&arguments) {
        Ok(outcome) => outcome.into(),
        // The reader has closed the pipe: `rbloat report 42 | head -3`.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            anstream::eprintln!("rbloat: {failure}");
            failure.exit_code()
        }
    }
}

fn run(arguments: &Arguments) -> Result<Outcome, Failure> {
    match &arguments.command {
        None => terminal::print(&commands::list::list()?)?,
        Some(Command::Report(report)) => return commands::report::run(report),
        Some(Command::Map(map)) => return commands::map::run(map),
        Some(Command::Snapshot(snapshot)) => return commands::snapshot::run(snapshot),
        Some(Command::Diff(diff)) => return commands::diff::run(diff),
        Some(Command::Compare(compare)) => return commands::compare::run(compare),
        Some(Command::Trim(trim)) => return commands::trim::run(trim),
        Some(Command::Record(record)) => return commands::record::run(record),
        Some(Command::Plot(plot)) => return commands::plot::run(plot),
        Some(Command::Completions { shell }) => {
            io::stdout().write_all(&arguments::completions(*shell))?;
        }
        Some(Command::Manual) => io::stdout().write_all(&arguments::manual()?)?,
    }
    Ok(Outcome::Done)
}
