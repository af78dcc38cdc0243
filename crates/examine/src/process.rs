//! Finds the process that the arguments name, and checks that it is a Ruby process, before it is paused.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use image::{Image, Target};
use linux::proc::GroupNames;

use crate::containers::Containers;
use crate::error::Error;
use crate::isolation::isolated;
use crate::name::ProcessName;

/// The part of a command line that an error shows, in characters.
const MAX_COMMAND: usize = 60;

/// The id of a process and its start time, since the kernel reuses ids.
pub type Id = (i32, u64);

/// Opens the running Ruby process with this name.
///
/// # Errors
/// If there is no such process or more than one, it is not a Ruby process, or it cannot be read.
pub fn open(name: ProcessName) -> Result<Target, Error> {
    match name {
        ProcessName::Pid(pid) => with_id(pid),
        ProcessName::NamespacePid(pid) => in_container(pid),
        ProcessName::Command(word) => by_command(word),
    }
}

/// Opens the process `pid`, which must be a Ruby process.
fn with_id(pid: i32) -> Result<Target, Error> {
    linux::check(pid)?;
    let target = open_target(pid)?;
    match ruby::find_in(target.image(), target.modules()) {
        Some(_) => Ok(target),
        None => Err(Error::NotRuby {
            pid,
            command: command(target.image()),
            ruby: only_ruby_below(pid),
        }),
    }
}

/// Returns the only Ruby process below `pid`, an init or a shell, if there is one. Those below it do not count: they are its workers.
fn only_ruby_below(pid: i32) -> Option<i32> {
    let (mut next, mut seen, mut found) = (vec![pid], BTreeSet::from([pid]), None);
    while let Some(parent) = next.pop() {
        for child in linux::proc::children(parent) {
            // Another rbloat may read one of them.
            let is_copy = || linux::proc::member(child).is_none_or(|member| member.is_copy);
            if !seen.insert(child) || is_copy() {
                continue;
            }
            match (ruby(child), found) {
                (Ok(Some(_)), Some(_)) => return None,
                (Ok(Some(_)), None) => found = Some(child),
                _ => next.push(child),
            }
        }
    }
    found
}

/// Opens a process that was found earlier.
///
/// # Errors
/// As [`Target::open`]; if it has ended, also if another process has its id by now.
pub fn target((pid, started_ticks): Id) -> Result<Target, linux::Error> {
    let target = open_target(pid)?;
    match target.program().started_ticks() == started_ticks {
        true => Ok(target),
        false => Err(linux::Error::NoSuchProcess { pid }),
    }
}

/// Opens the process that has the id `pid` now, with the environment variables that a report depends on.
pub(crate) fn open_target(pid: i32) -> Result<Target, linux::Error> {
    Target::open(pid, diagnosis::VARIABLES)
}

/// Returns the id and the start time of a target.
pub(crate) fn id(target: &Target) -> Id {
    (target.pid(), target.program().started_ticks())
}

/// Opens the process `pid`, one of many, if it is a Ruby process.
///
/// # Errors
/// If it cannot be read.
pub fn ruby(pid: i32) -> Result<Option<Target>, Error> {
    isolated(pid, || {
        let target = open_target(pid)?;
        let is_ruby = ruby::find_in(target.image(), target.modules()).is_some();
        Ok(is_ruby.then_some(target))
    })
}

/// Opens the process with the id `namespace_pid` inside its container. If there are several, it must be the only Ruby process
/// among them.
fn in_container(namespace_pid: i32) -> Result<Target, Error> {
    let pids = linux::proc::processes_by_namespace_pid(namespace_pid)?;
    match pids[..] {
        [] => return Err(Error::NotInContainer { namespace_pid }),
        [pid] => return with_id(pid),
        _ => {}
    }
    let mut candidates = Vec::new();
    for pid in pids {
        match ruby(pid) {
            Ok(Some(target)) => candidates.push(Ok(target)),
            // A process that rbloat may not read could be the right one.
            Err(error) if !error.is_without_memory() => candidates.push(Err((pid, error))),
            _ => {}
        }
    }
    match candidates.len() {
        0 => Err(Error::NotInContainer { namespace_pid }),
        1 => candidates.swap_remove(0).map_err(|(_, error)| error),
        _ => {
            let shown = |candidate: &Result<Target, (i32, Error)>| match candidate {
                Ok(target) => shown(target),
                Err((pid, error)) if error.is_not_permitted() => {
                    format!("{pid} (permission denied)")
                }
                Err((pid, error)) => format!("{pid} ({error})"),
            };
            let candidates = candidates.iter().map(shown).collect();
            Err(Error::Ambiguous { namespace_pid, candidates })
        }
    }
}

/// Opens all Ruby processes with this name, at least one.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(crate) fn open_all(name: ProcessName) -> Result<Vec<Target>, Error> {
    match name {
        ProcessName::Command(word) => with_word(word),
        name => open(name).map(|target| vec![target]),
    }
}

/// Opens the only Ruby process that has `word` in its command line, or is in a container with this name.
fn by_command(word: String) -> Result<Target, Error> {
    let mut candidates = with_word(word.clone())?;
    match candidates.len() {
        1 => Ok(candidates.swap_remove(0)),
        _ => Err(Error::ManyCommands { word, candidates: candidates.iter().map(shown).collect() }),
    }
}

/// Opens the Ruby processes that have `word` in their command lines, or are in a container with this name: at least one.
fn with_word(word: String) -> Result<Vec<Target>, Error> {
    if word.trim().is_empty() {
        return Err(Error::NoName);
    }
    let (mut candidates, mut refusal) = (Vec::new(), None);
    let mut containers = Containers::default();
    let mut is_in_container = |pid: i32| {
        let group = GroupNames::of(pid).ok().and_then(|names| names.path());
        containers.of(group.as_deref()).is_called(&word)
    };
    for pid in linux::proc::processes()? {
        // Processes may have ended meanwhile.
        let Ok(line) = linux::proc::command_line(pid) else { continue };
        // Another rbloat may read one of them.
        let is_copy = || linux::proc::member(pid).is_none_or(|member| member.is_copy);
        if !has_word(&line, &word) && !is_in_container(pid) || is_copy() {
            continue;
        }
        match ruby(pid) {
            Ok(Some(target)) => candidates.push(target),
            Err(error) if !error.is_without_memory() => refusal = Some(error),
            _ => {}
        }
    }
    match refusal {
        // This process, or another one, may be the right one.
        Some(refusal) if candidates.is_empty() => Err(refusal),
        None if candidates.is_empty() && Path::new(&word).is_dir() => {
            let source = io::ErrorKind::IsADirectory.into();
            Err(Error::Unreadable { path: word.into(), source })
        }
        None if candidates.is_empty() => Err(Error::NoSuchCommand { word }),
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

fn shown(target: &Target) -> String {
    format!("{} ({})", target.pid(), command(target.image()))
}

/// Returns the beginning of the command line, for an error.
pub fn command(image: &Image<'_>) -> String {
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
