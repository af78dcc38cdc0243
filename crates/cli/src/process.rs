//! Finds the process that the arguments name, and checks that it is a Ruby process, before it is paused.

use capture::Image;

use crate::arguments::ProcessName;
use crate::failure::Failure;

/// The part of a command line that an error shows, in characters.
const MAX_COMMAND: usize = 60;

/// Returns the id in /proc of the Ruby process with this name.
///
/// # Errors
/// If there is no such process or more than one, it is not a Ruby process, or it cannot be read.
pub(crate) fn find(name: ProcessName) -> Result<i32, Failure> {
    let pid = match name {
        ProcessName::Pid(pid) => pid,
        ProcessName::NamespacePid(pid) => in_container(pid)?,
        ProcessName::Command(word) => return by_command(word),
    };
    capture::check(pid)?;
    let image = capture::look(pid)?;
    match ruby::find(&image) {
        Some(_) => Ok(pid),
        None => Err(Failure::NotRuby { pid, command: command(&image) }),
    }
}

/// Returns the process with the id `namespace_pid` inside its container. If there are several, it must be the only Ruby
/// process among them.
fn in_container(namespace_pid: i32) -> Result<i32, Failure> {
    let pids = capture::proc::processes_by_namespace_pid(namespace_pid)?;
    match pids[..] {
        [] => return Err(Failure::NotInContainer { namespace_pid }),
        [pid] => return Ok(pid),
        _ => {}
    }
    let mut candidates = Vec::new();
    for pid in pids {
        match capture::look(pid) {
            Ok(image) if ruby::find(&image).is_some() => candidates.push((pid, command(&image))),
            // A process that rbloat may not read could be the right one.
            Err(capture::Error::NotPermitted { .. }) => {
                candidates.push((pid, "permission denied".into()))
            }
            _ => {}
        }
    }
    match &candidates[..] {
        [] => Err(Failure::NotInContainer { namespace_pid }),
        [(pid, _)] => Ok(*pid),
        _ => Err(Failure::Ambiguous { namespace_pid, candidates: shown(candidates) }),
    }
}

/// Returns the only Ruby process that has `word` in its command line.
fn by_command(word: String) -> Result<i32, Failure> {
    let mut candidates = Vec::new();
    for pid in capture::proc::processes()? {
        // Processes of others cannot be read, and processes may have ended meanwhile.
        let Ok(image) = capture::look(pid) else { continue };
        if image.state.process.command.contains(&word) && ruby::find(&image).is_some() {
            candidates.push((pid, command(&image)));
        }
    }
    match &candidates[..] {
        [] => Err(Failure::NoSuchCommand { word }),
        [(pid, _)] => Ok(*pid),
        _ => Err(Failure::ManyCommands { word, candidates: shown(candidates) }),
    }
}

fn shown(candidates: Vec<(i32, String)>) -> Vec<String> {
    candidates.into_iter().map(|(pid, command)| format!("{pid} ({command})")).collect()
}

/// Returns the beginning of the command line, for an error.
pub(crate) fn command(image: &Image<'_>) -> String {
    image.state.process.command.chars().take(MAX_COMMAND).collect()
}
