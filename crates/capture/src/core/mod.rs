//! A core file as the source of an image: what the kernel leaves of a process that a signal ended, or
//! gdb's gcore of one that lives.
//!
//! It has the memory that the process wrote to, and its mappings, threads and registers in notes. It does
//! not have page states (`states` works them out), nor what the process only read of files (`files`
//! looks for them). Nothing in a core is believed: all that it says of sizes is held against the file.

mod file;
mod files;
mod first_stack;
mod head;
mod headers;
mod mappings;
mod memory;
mod notes;
mod states;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::proc::kept_variables;
use crate::text::one_line;
use crate::{
    Backing, Error, Finding, Image, Mapping, Mappings, Origin, Pages, ProcessInfo, ProcessState,
    Severity, length,
};
use file::CoreFile;
use files::Files;
use first_stack::FirstStack;
use headers::Headers;
use memory::{CoreMemory, Dumped};
use notes::Notes;
use states::{Evidence, States};

/// How a core is read.
#[derive(Debug, Clone, Default)]
pub struct CoreOptions {
    /// The folder below which the files of the process are; `None` where they are in their places.
    pub sysroot: Option<PathBuf>,
}

/// A core file that was opened.
pub struct Core {
    /// The process as it was dumped. What the core cannot tell is among the findings of its state.
    pub image: Image<'static>,
    /// Who wrote it, in words.
    pub origin: String,
    /// When it was written.
    pub written: SystemTime,
    /// Whether something is missing that may matter: files that the process had mapped, or bytes that
    /// were dumped.
    pub is_partial: bool,
}

/// Opens the core file at `path` and works out what the kernel would have said of the process.
///
/// # Errors
/// Where the file cannot be read, is no core, is one of another kind of machine, or is so damaged
/// that no memory of a process is in it.
pub fn open_core(path: &Path, options: &CoreOptions) -> Result<Core, Error> {
    let file = CoreFile::open(path)?;
    let mut headers = Headers::read(&file)?;
    let notes = Notes::read(&file, &headers.notes);
    let segments = std::mem::take(&mut headers.segments);
    let mut mappings = mappings::mappings(&segments, &notes);
    let dumped = Dumped { file, segments };
    if !headers.tell_protection {
        Files::mark_code(&mut mappings, &dumped);
    }
    let files = Files::open(&mappings, &dumped, options.sysroot.as_deref());
    let mut states = states::work_out(&mappings, &headers, &dumped, &files, &notes);
    let findings = findings(&headers, &notes, &dumped, &files, &states);
    let pages = Pages::new(std::mem::take(&mut states.runs));
    if !headers.tell_protection {
        take_for_protected(&mut mappings, &pages);
    }
    let process = process(&dumped, &notes, &pages);
    // A core has no count of resident pages, but it has no more pages than were dumped.
    let dumped_bytes: u64 = dumped.segments.iter().map(|segment| segment.there).sum();
    let state = ProcessState {
        rss_bounds: Some(process.rss_bytes..=dumped_bytes),
        process,
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
    let is_partial = files.are_absent()
        || notes.files.is_none()
        || states.lost_bytes > 0
        || headers.senseless > 0;
    let written = dumped.file.written;
    let image = Image::new(state, CoreMemory { dumped, files });
    Ok(Core { image, origin, written, is_partial })
}

/// Who the process was.
fn process(dumped: &Dumped, notes: &Notes, pages: &Pages) -> ProcessInfo {
    let first = FirstStack::find(dumped, notes);
    let (arguments, environment) =
        first.map_or((notes.arguments.clone(), None), |it| (it.arguments, Some(it.environment)));
    let command = one_line(String::from_utf8_lossy(&arguments).trim_end_matches(['\0', ' ']));
    let name = one_line(&String::from_utf8_lossy(&notes.name));
    let all = pages.iter().filter(|run| run.state.is_resident());
    ProcessInfo {
        pid: notes.pid.unwrap_or(0),
        command: if command.is_empty() { format!("[{name}]") } else { command },
        environment: environment
            .map(|variables| kept_variables(&String::from_utf8_lossy(&variables))),
        namespace_pid: None,
        started_ticks: None,
        uptime_ms: None,
        threads: notes.threads.len() as u64,
        rss_bytes: all.map(|run| length(&run.range)).sum(),
    }
}

/// gdb calls all memory readable. What could only be read, is no file's and holds nothing is what
/// nobody maps to read it: guard pages, or addresses that are kept for later.
fn take_for_protected(mappings: &mut [Mapping], pages: &Pages) {
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

/// What the core cannot tell, and what is wrong with it.
fn findings(
    headers: &Headers,
    notes: &Notes,
    dumped: &Dumped,
    files: &Files,
    states: &States,
) -> Vec<Finding> {
    let mut findings = files.findings();
    let mut find = |severity, what: String| findings.push(Finding::general(severity, what));
    let cut_short: u64 = dumped.segments.iter().map(|segment| length(&segment.lost())).sum();
    if cut_short > 0 {
        let what = format!(
            "the core is cut short by {} (a full disk, or a limit: ulimit -c): what is missing \
             is in no row",
            megabytes(cut_short)
        );
        find(Severity::Error, what);
    }
    if states.lost_bytes > cut_short {
        let what = format!(
            "{} of private memory were not dumped and are in no row: bit 0 of \
             /proc/PID/coredump_filter was not set",
            megabytes(states.lost_bytes - cut_short)
        );
        find(Severity::Error, what);
    }
    if states.lost_threads > 0 {
        let what = format!(
            "gdb could not read {} of the threads' stacks (they begin with guard pages, from glibc 2.42 on) and \
             left them out: they are in no row, what only they hold counts as unreachable, and what their \
             caches hold as in use; a core by the kernel has them",
            states.lost_threads
        );
        find(Severity::Warning, what);
    }
    if headers.senseless > 0 {
        let what = format!(
            "the core is damaged: {} of its segments make no sense and were left out",
            headers.senseless
        );
        find(Severity::Error, what);
    }
    if notes.files.is_none() {
        let what =
            "the core does not say which files the process had mapped (it has no NT_FILE note)";
        find(Severity::Error, what.into());
    }
    if notes.threads.is_empty() {
        let what = "the core has no threads: stacks cannot be told, nor what only registers hold";
        find(Severity::Warning, what.into());
    }
    let evidence = match states.evidence {
        Evidence::Holes => {
            "what was in memory is taken from the holes of the file, which the kernel leaves for absent pages"
        }
        Evidence::Zeros => {
            "pages that hold nothing but zeros are taken for absent, all others for resident"
        }
    };
    let what = format!(
        "a core has no page states, so RSS is an estimate: {evidence}; what was in swap counts as \
         resident, what the program keeps out of cores (MADV_DONTDUMP) is in no row, and huge pages are \
         not known"
    );
    find(Severity::Note, what);
    if states.unknown_file_bytes > 0 {
        let what = format!(
            "how much of {} of mapped files was resident is not known: they are in no row, but for \
             pages that the process changed",
            megabytes(states.unknown_file_bytes)
        );
        find(Severity::Note, what);
    }
    findings
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / f64::from(1 << 20))
}
