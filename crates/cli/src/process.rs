//! Which process is meant, and whether it is a Ruby: said before it is stopped.

use capture::Image;

use crate::arguments::ProcessName;
use crate::failure::Failure;

/// Characters of a command line that an error shows.
const COMMAND: usize = 60;

/// The id, as /proc shows it, of the Ruby process of that name.
///
/// # Errors
/// Where there is none or more than one, it is no Ruby, or it cannot be looked at.
pub(crate) fn find(name: ProcessName) -> Result<i32, Failure> {
    let pid = match name {
        ProcessName::Pid(pid) => pid,
        ProcessName::NamespacePid(pid) => in_container(pid)?,
    };
    capture::check(pid)?;
    let image = capture::look(pid)?;
    match ruby::find(&image) {
        Some(_) => Ok(pid),
        None => Err(Failure::NotRuby { pid, command: command(&image) }),
    }
}

/// The one process that its container calls `namespace_pid`; where there are more, the one Ruby.
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
            // What we may not look at might be the one that is meant.
            Err(capture::Error::NotPermitted { .. }) => {
                candidates.push((pid, "permission denied".into()))
            }
            _ => {}
        }
    }
    match &candidates[..] {
        [] => Err(Failure::NotInContainer { namespace_pid }),
        [(pid, _)] => Ok(*pid),
        _ => {
            let candidates =
                candidates.into_iter().map(|(pid, command)| format!("{pid} ({command})")).collect();
            Err(Failure::Ambiguous { namespace_pid, candidates })
        }
    }
}

/// The beginning of its command line, for an error.
pub(crate) fn command(image: &Image<'_>) -> String {
    image.state.process.command.chars().take(COMMAND).collect()
}
