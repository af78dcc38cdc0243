//! Processes and files by the names that the user gave.

use examine::{ProcessName, Source, SourceName};
use image::Target;

use crate::failure::Failure;
use crate::terminal;

/// Opens the running Ruby process with this name. Prints it if it was found by a word.
pub(crate) fn process(name: ProcessName) -> Result<Target, Failure> {
    let is_found_by_word = matches!(name, ProcessName::Command(_));
    let target = examine::open(name)?;
    if is_found_by_word {
        print(&target);
    }
    Ok(target)
}

/// Opens a process, as [`process`] does, or a file.
pub(crate) fn source(name: SourceName) -> Result<Source, Failure> {
    let is_found_by_word = matches!(name, SourceName::Process(ProcessName::Command(_)));
    let source = Source::open(name)?;
    if let (true, Source::Process(target)) = (is_found_by_word, &source) {
        print(target);
    }
    Ok(source)
}

fn print(target: &Target) {
    if !terminal::is_quiet() {
        let command = examine::command(target.image());
        terminal::print_error(&format!("process {}: {command}\n", target.pid()));
    }
}
