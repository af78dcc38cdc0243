//! A core file as the source of an image: written by the kernel when a signal ends a process, or by gdb's gcore.
//!
//! It contains the memory that the process wrote to, and its mappings, threads and registers in notes. It lacks page
//! states (`states` estimates them), and pages of files that the process only read (`files` opens the files). Nothing
//! in a core is trusted: all sizes are checked against the file.

mod error;
mod file;
mod files;
mod first_stack;
mod head;
mod headers;
mod mappings;
mod memory;
mod notes;
mod states;

use std::path::Path;
use std::time::SystemTime;

use linux::proc::{Identity, MAX_COMMAND};
use linux::{
    Backing, Machine, Mapping, Mappings, Pages, ProcessInfo, Sysroot, WantedVariables, length,
    one_line,
};

use crate::{Finding, Image, Origin, ProcessState};
pub use error::CoreError;
pub use file::CoreFile;
use files::Files;
use first_stack::FirstStack;
use headers::Headers;
use memory::{CoreMemory, Dumped};
use notes::Notes;
use states::{EstimatedPages, Evidence};

/// The size of a page.
const AT_PAGESZ: u64 = 6;

/// An open core file.
pub struct Core {
    /// The process as it was dumped. The findings of its state list what is unknown.
    pub image: Image<'static>,
    /// The origin of the file, in words.
    pub origin: String,
    /// The time at which it was written.
    pub written: SystemTime,
    /// True if something is missing that may matter: files that the process had mapped, or bytes that were dumped.
    pub is_partial: bool,
}

/// Opens the core file at `path`, and reads it like [`read_core`].
///
/// # Errors
/// If the file cannot be read, or as for [`read_core`].
pub fn open_core(
    path: &Path,
    sysroot: &Sysroot,
    variables: WantedVariables,
) -> Result<Core, CoreError> {
    let file = std::fs::File::open(path)
        .map_err(|source| CoreError::Unreadable { path: path.to_owned(), source })?;
    read_core(CoreFile::new(path, file)?, sysroot, variables)
}

/// Reads a core file, and estimates the kernel's account of the process. The files that the process had mapped are opened in
/// `sysroot`. Of the environment it keeps these `variables`.
///
/// # Errors
/// If the file cannot be read, is not a core, is the core of an unknown CPU, or is so damaged that it contains no memory.
pub fn read_core(
    file: CoreFile,
    sysroot: &Sysroot,
    variables: WantedVariables,
) -> Result<Core, CoreError> {
    let mut headers = Headers::read(&file)?;
    let notes = Notes::read(&file, headers.cpu, &headers.notes);
    let machine = match notes.auxiliary(AT_PAGESZ) {
        None => Machine { cpu: headers.cpu, ..Machine::default() },
        Some(bytes) => Machine::new(headers.cpu, bytes).ok_or_else(|| {
            let what = format!("no kernel has pages of {bytes} bytes, as it states");
            CoreError::Damaged { path: file.path.clone(), what }
        })?,
    };
    headers.cut_to_pages(machine.page_size);
    let segments = std::mem::take(&mut headers.segments);
    let mut mappings = mappings::mappings(&segments, &notes);
    let dumped = Dumped { file, segments };
    if !headers.have_protection {
        Files::mark_code(&mut mappings, &dumped, machine.page_size);
    }
    let files = Files::open(&mappings, &dumped, sysroot);
    let mut states = states::estimate(machine, &mappings, &headers, &dumped, &files, &notes);
    let findings = findings(&headers, &notes, &dumped, &files, &states);
    let pages = Pages::new(std::mem::take(&mut states.runs));
    if !headers.have_protection {
        guess_protection(&mut mappings, &pages);
    }
    let process = process(&dumped, &notes, &pages, variables);
    // A core has no count of resident pages, but it has no more pages than were dumped.
    let dumped_bytes: u64 = dumped.segments.iter().map(|segment| segment.present).sum();
    let state = ProcessState {
        program: Identity::default(),
        rss_bounds: Some(process.rss_bytes..=dumped_bytes),
        process,
        machine,
        mappings: Mappings::new(mappings),
        pages: Some(pages),
        threads: notes.threads,
        origin: Origin::Core,
        findings,
    };
    let origin = match notes.signal {
        _ if headers.by_debugger => "written by a debugger".to_owned(),
        0 => "written by the kernel".to_owned(),
        signal => format!("written by the kernel when signal {signal} ended the process"),
    };
    let is_partial =
        files.are_absent() || notes.files.is_none() || states.lost_bytes > 0 || headers.invalid > 0;
    let written = dumped.file.written;
    let image = Image::new(state, CoreMemory { dumped, files });
    Ok(Core { image, origin, written, is_partial })
}

/// Describes the process.
fn process(dumped: &Dumped, notes: &Notes, pages: &Pages, wanted: WantedVariables) -> ProcessInfo {
    let first = FirstStack::find(dumped, notes);
    let (arguments, environment) =
        first.map_or((notes.arguments.clone(), None), |it| (it.arguments, Some(it.environment)));
    let arguments = &arguments[..arguments.len().min(MAX_COMMAND)];
    let command = one_line(String::from_utf8_lossy(arguments).trim_end_matches(['\0', ' ']));
    let name = one_line(&String::from_utf8_lossy(&notes.name));
    let all = pages.iter().filter(|run| run.state.is_resident());
    ProcessInfo {
        pid: notes.pid.unwrap_or(0),
        command: if command.is_empty() { format!("[{name}]") } else { command },
        environment: environment.map(|variables| wanted.of(&String::from_utf8_lossy(&variables))),
        control_group: None,
        is_contained: false,
        namespace_pid: None,
        started_ticks: None,
        uptime_ms: None,
        threads: notes.threads.len() as u64,
        thread_names: Vec::new(),
        rss_bytes: all.map(|run| length(&run.range)).sum(),
    }
}

/// Guesses which mappings are not readable, since gdb marks all as readable. A read-only anonymous mapping without
/// resident pages is a guard or a reserved range.
fn guess_protection(mappings: &mut [Mapping], pages: &Pages) {
    for mapping in mappings {
        let holds_nothing = || pages.runs_in(&mapping.range).next().is_none();
        if mapping.backing == Backing::Anonymous
            && !mapping.writable
            && !mapping.executable
            && holds_nothing()
        {
            mapping.readable = false;
        }
    }
}

/// Returns findings about unknown facts and damage.
fn findings(
    headers: &Headers,
    notes: &Notes,
    dumped: &Dumped,
    files: &Files,
    states: &EstimatedPages,
) -> Vec<Finding> {
    let mut findings = files.findings();
    let cut_short: u64 = dumped.segments.iter().map(|segment| length(&segment.lost())).sum();
    if cut_short > 0 {
        findings.push(Finding::Truncated { bytes: cut_short });
    }
    if states.lost_bytes > cut_short {
        findings.push(Finding::NotDumped { bytes: states.lost_bytes - cut_short });
    }
    if states.lost_threads > 0 {
        findings.push(Finding::StacksNotDumped { threads: states.lost_threads });
    }
    if headers.invalid > 0 {
        findings.push(Finding::InvalidSegments { segments: headers.invalid });
    }
    if notes.files.is_none() {
        findings.push(Finding::FilesUnknown);
    }
    if notes.threads.is_empty() {
        findings.push(Finding::NoThreads);
    }
    findings.push(match states.evidence {
        Evidence::Holes => Finding::ResidencyByHoles,
        Evidence::Zeros => Finding::ResidencyByContents,
    });
    if states.unknown_file_bytes > 0 {
        findings.push(Finding::FileResidencyUnknown { bytes: states.unknown_file_bytes });
    }
    findings
}
