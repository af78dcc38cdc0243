//! Finds the process that the arguments name, and checks that it is a Ruby process, before it is paused.

use std::collections::BTreeSet;

use image::{Image, Target};

use crate::arguments::ProcessName;
use crate::failure::Failure;
use crate::isolation::isolated;
use crate::terminal;

/// The part of a command line that an error shows, in characters.
const MAX_COMMAND: usize = 60;

/// Returns the id in /proc of the Ruby process with this name.
///
/// # Errors
/// If there is no such process or more than one, it is not a Ruby process, or it cannot be read.
pub(crate) fn find(name: ProcessName) -> Result<i32, Failure> {
    open(name).map(|target| target.pid())
}

/// Opens the running Ruby process with this name.
///
/// # Errors
/// If there is no such process or more than one, it is not a Ruby process, or it cannot be read.
pub(crate) fn open(name: ProcessName) -> Result<Target, Failure> {
    let pid = match name {
        ProcessName::Pid(pid) => pid,
        ProcessName::NamespacePid(pid) => in_container(pid)?,
        ProcessName::Command(word) => return Ok(target(by_command(word)?)?),
    };
    linux::check(pid)?;
    let target = target(pid)?;
    match ruby::find_in(target.image(), target.modules()) {
        Some(_) => Ok(target),
        None => Err(Failure::NotRuby { pid, command: command(target.image()) }),
    }
}

/// Opens the process `pid`, with the environment variables that a report depends on.
///
/// # Errors
/// As [`Target::open`].
pub(crate) fn target(pid: i32) -> Result<Target, linux::Error> {
    Target::open(pid, diagnosis::VARIABLES)
}

/// Opens the process `pid`, one of many, if it is a Ruby process.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn ruby(pid: i32) -> Result<Option<Target>, Failure> {
    isolated(pid, || {
        let target = target(pid)?;
        let is_ruby = ruby::find_in(target.image(), target.modules()).is_some();
        Ok(is_ruby.then_some(target))
    })
}

/// Returns the process with the id `namespace_pid` inside its container. If there are several, it must be the only Ruby
/// process among them.
fn in_container(namespace_pid: i32) -> Result<i32, Failure> {
    let pids = linux::proc::processes_by_namespace_pid(namespace_pid)?;
    match pids[..] {
        [] => return Err(Failure::NotInContainer { namespace_pid }),
        [pid] => return Ok(pid),
        _ => {}
    }
    let mut candidates = Vec::new();
    for pid in pids {
        match ruby(pid) {
            Ok(Some(target)) => candidates.push((pid, command(target.image()))),
            // A process that rbloat may not read could be the right one.
            Err(Failure::Capture(linux::Error::NotPermitted { .. })) => {
                candidates.push((pid, "permission denied".into()))
            }
            Err(failure) if !failure.is_without_memory() => {
                candidates.push((pid, failure.to_string()))
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

/// Returns the ids in /proc of all Ruby processes with this name.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(crate) fn find_all(name: ProcessName) -> Result<Vec<i32>, Failure> {
    match name {
        ProcessName::Command(word) => {
            let candidates = with_word(word)?;
            Ok(candidates.into_iter().map(|(pid, _)| pid).collect())
        }
        name => find(name).map(|pid| vec![pid]),
    }
}

/// Returns the only Ruby process that has `word` in its command line, and prints it.
fn by_command(word: String) -> Result<i32, Failure> {
    let candidates = with_word(word.clone())?;
    match &candidates[..] {
        [(pid, command)] => {
            if !terminal::is_quiet() {
                terminal::print_error(&format!("process {pid}: {command}\n"));
            }
            Ok(*pid)
        }
        _ => Err(Failure::ManyCommands { word, candidates: shown(candidates) }),
    }
}

/// Returns the Ruby processes that have `word` in their command lines, at least one.
fn with_word(word: String) -> Result<Vec<(i32, String)>, Failure> {
    if word.trim().is_empty() {
        return Err(Failure::NoName);
    }
    let (mut candidates, mut refusal) = (Vec::new(), None);
    for pid in linux::proc::processes()? {
        // Processes may have ended meanwhile.
        let Ok(line) = linux::proc::command_line(pid) else { continue };
        // Another rbloat may read one of them.
        let is_copy = || linux::proc::member(pid).is_none_or(|member| member.is_copy);
        if !has_word(&line, &word) || is_copy() {
            continue;
        }
        match ruby(pid) {
            Ok(Some(target)) => candidates.push((pid, command(target.image()))),
            Err(failure) if !failure.is_without_memory() => refusal = Some(failure),
            _ => {}
        }
    }
    match refusal {
        // This process, or another one, may be the right one.
        Some(refusal) if candidates.is_empty() => Err(refusal),
        None if candidates.is_empty() => Err(Failure::NoSuchCommand { word }),
        _ => Ok(candidates),
    }
}

/// Returns true if `word` is in a command line, and not as a part of a longer word or number.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |it: char| it.is_alphanumeric() || it == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

fn shown(candidates: Vec<(i32, String)>) -> Vec<String> {
    candidates.into_iter().map(|(pid, command)| format!("{pid} ({command})")).collect()
}

/// Returns the beginning of the command line, for an error.
pub(crate) fn command(image: &Image<'_>) -> String {
    image.state.process.command.chars().take(MAX_COMMAND).collect()
}

/// Returns the nearest ancestor of a process that is one of `processes`. So workers are below their master, also if a shell
/// or another program is in between. `parent` returns the parent of a process.
pub(crate) fn nearest_ancestor(
    pid: i32,
    processes: &BTreeSet<i32>,
    parent: impl Fn(i32) -> Option<i32>,
) -> Option<i32> {
    /// Ids that are used again could form a ring.
    const MAX_GENERATIONS: usize = 64;
    let ancestors = std::iter::successors(parent(pid), |&pid| parent(pid));
    ancestors.take(MAX_GENERATIONS).find(|it| *it != pid && processes.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_whole() {
        let line = "puma: cluster worker 0: 4242 [shop] /srv/app_two/bin";
        for (word, expected) in [
            ("puma", true),
            ("worker 0", true),
            ("shop", true),
            ("bin", true),
            ("424", false),
            ("app", false),
            ("work", false),
        ] {
            assert_eq!(has_word(line, word), expected, "{word}");
        }
    }
}
