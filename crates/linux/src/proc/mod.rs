//! The kernel's account of processes, from /proc: identity, threads, memory counts, control groups, process trees.
//!
//! Nothing here stops a process or reads its memory. Each answer is of its own instant.

mod cgroup;
mod environment;
mod identity;
mod info;
mod mapping_query;
mod memory;
mod rights;
mod stat;
mod threads;
mod tmpfs;
mod tree;

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use crate::mapping::parse::parse;
use crate::text::one_line;
use crate::{Error, Mappings, Sysroot, is_shared_memory};

pub use crate::obstacle::Obstacle;
pub use cgroup::{
    ControlGroup, GroupEvents, GroupMemory, GroupNames, GroupUsage, KernelMemory, control_groups,
    group_memory, memory_of_groups,
};
pub use environment::WantedVariables;
pub use identity::Identity;
pub use info::ProcessInfo;
pub use mapping_query::MappingQuery;
pub use memory::RssError;
pub(crate) use memory::kernel_version;
pub use memory::resident_bytes;
pub use memory::{
    MemoryCounts, Rollup, available_bytes, has_huge_pages, memory_pressure, peak_rss_bytes, rollup,
    rss_bytes,
};
pub use rights::{check, wait_until_untraced};
pub(crate) use rights::{check_untraced, not_permitted};
use stat::{Stat, Status};
pub use threads::{
    SignalSets, all_minor_faults, cpu_time, lives, minor_faults, own_cpu_time, own_thread_cpu_time,
    readable_state, signal_sets, thread_ids, thread_name, thread_names, thread_state, threads,
    whole_cpu_time,
};
pub(crate) use threads::{thread_count, time_of};
use tmpfs::Mounts;
pub use tmpfs::{TmpfsFile, open_tmpfs_files};
pub use tree::{
    Member, Tree, children, ended_without_signal, family, member, member_since, parent_in_family,
    sort_by_age,
};

/// Clock ticks as /proc counts them (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// The files by which Docker and Podman mark the root of a container.
const CONTAINER_MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// The maximum length of a file that is read whole. The kernel limits the environment of a new program to 6 MiB, but a process
/// can declare any part of its memory to be the environment (PR_SET_MM_MAP of prctl(2)).
const MAX_FILE: u64 = 8 << 20;

/// Reads the file `/proc/PID/name`, up to a length that only a hostile process exceeds.
///
/// # Errors
/// If there is no such process, or the kernel refuses.
pub fn read(pid: i32, name: &str) -> Result<Vec<u8>, Error> {
    read_up_to(MAX_FILE, pid, name)
}

fn read_up_to(max_bytes: u64, pid: i32, name: &str) -> Result<Vec<u8>, Error> {
    let path = format!("/proc/{pid}/{name}");
    // These files have no size by which the buffer could be made, and most of them are small.
    let mut bytes = Vec::with_capacity(4096);
    let read = File::open(&path).and_then(|file| file.take(max_bytes).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|source| refusal(pid, path, source))
}

/// Opens the file `/proc/PID/name` for reading.
///
/// # Errors
/// If there is no such process, or the kernel refuses.
pub fn open(pid: i32, name: &str) -> Result<File, Error> {
    let path = format!("/proc/{pid}/{name}");
    File::open(&path).map_err(|source| refusal(pid, path, source))
}

/// Returns the error for a file of /proc that could not be opened or read.
pub(crate) fn refusal(pid: i32, path: String, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) if !exists(pid) => Error::NoSuchProcess { pid },
        // Its memory is gone already, and its entry in the process table not yet.
        Some(libc::ESRCH) => Error::Ended { pid, how: "ended" },
        Some(libc::EMFILE) => Error::TooManyFiles { path },
        Some(libc::EACCES | libc::EPERM) => not_permitted(pid, "read"),
        _ => Error::Proc { path, source },
    }
}

fn exists(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// Parses /proc/PID/status.
pub(crate) fn status(pid: i32) -> Result<Status, Error> {
    Status::read(pid, "status")
}

/// Returns true if `pid` is a process, not a thread, whose parent is rbloat.
pub(crate) fn is_own_child(pid: i32) -> bool {
    let own = std::process::id().cast_signed();
    status(pid).is_ok_and(|status| status.tgid == pid && status.ppid == own)
}

/// Returns the time at which the process was started, in clock ticks since boot. Together with its id it identifies
/// the process.
///
/// # Errors
/// If there is no such process.
pub fn start_time(pid: i32) -> Result<u64, Error> {
    Stat::read(pid).map(|stat| stat.starttime)
}

/// Converts a time in clock ticks.
fn time(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND as u64))
}

/// Returns the time since the process was started, in ms, by its start time in clock ticks.
fn uptime_ms(started_ticks: u64) -> Option<u64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    let started = started_ticks as f64 / TICKS_PER_SECOND;
    Some(((seconds - started).max(0.0) * 1e3) as u64)
}

/// Returns the mappings of process `pid`. With `counted`, they have the kernel's counts of resident and swapped
/// pages, its flags, and whether files are in memory (smaps, mountinfo); that is slower, since the kernel walks the page tables.
///
/// # Errors
/// If there is no such process, or the kernel refuses.
pub fn mappings(pid: i32, counted: bool) -> Result<Mappings, Error> {
    let name = if counted { "smaps" } else { "maps" };
    let text = BufReader::with_capacity(READ_BYTES, open(pid, name)?);
    let mounts = OnceCell::new();
    let parsed = if counted {
        let mounts = || mounts.get_or_init(|| Mounts::read(pid).ok()).as_ref();
        parse(text, |device, path| match mounts() {
            Some(mounts) => mounts.has_in_memory(device, path),
            None => is_shared_memory(path),
        })
    } else {
        Mappings::parse(text)
    };
    parsed.map_err(|source| refusal(pid, format!("/proc/{pid}/{name}"), source))
}

/// The bytes of mappings that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// The most bytes of a command line that are kept: as many as the kernel allows in one of its words.
pub const MAX_COMMAND: usize = 128 << 10;

/// Returns the command line of process `pid`, words joined by blanks, without control characters; its name in
/// brackets if it has none.
///
/// # Errors
/// If there is no such process.
pub fn command_line(pid: i32) -> Result<String, Error> {
    let words = read_up_to(MAX_COMMAND as u64, pid, "cmdline")?;
    let words = one_line(String::from_utf8_lossy(&words).trim_end_matches('\0'));
    if words.is_empty() {
        return Ok(format!("[{}]", one_line(&status(pid)?.name)));
    }
    Ok(words)
}

/// Describes the process of `program`, which is in these control groups, with the environment variables that are `wanted`.
///
/// # Errors
/// If it has ended, or the kernel refuses.
pub fn process_info(
    program: &Identity,
    groups: Option<&GroupNames>,
    wanted: WantedVariables,
) -> Result<(ProcessInfo, MemoryCounts), Error> {
    let status = status(program.pid())?;
    let (pid, started) = (program.pid(), program.started_ticks());
    let environment = match read(pid, "environ") {
        Ok(variables) => Some(wanted.of(&String::from_utf8_lossy(&variables))),
        // CAP_SYS_PTRACE alone opens no file that belongs to another user.
        Err(Error::NotPermitted { .. }) => None,
        Err(error) => return Err(error),
    };
    let info = ProcessInfo {
        pid,
        started_ticks: Some(started),
        uptime_ms: uptime_ms(started),
        command: command_line(pid)?,
        environment,
        control_group: groups.and_then(GroupNames::path),
        is_contained: namespace_pid(&status).is_some() || has_container_mark(pid),
        namespace_pid: namespace_pid(&status),
        threads: status.threads,
        thread_names: Vec::new(),
        rss_bytes: status.vmrss.unwrap_or(0),
    };
    Ok((info, MemoryCounts::of(&status)))
}

fn has_container_mark(pid: i32) -> bool {
    let root = Sysroot::open(Some(Path::new(&format!("/proc/{pid}/root"))));
    CONTAINER_MARKS.iter().any(|mark| root.has(Path::new(mark)))
}

/// Returns the ids of all processes, ascending. Some may have ended by the time they are examined.
///
/// # Errors
/// If /proc belongs to another pid namespace than ours.
pub fn processes() -> Result<Vec<i32>, Error> {
    check_namespace()?;
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let mut pids: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Returns the processes in other pid namespaces that have the id `own` there, as a container's programs see it;
/// ascending.
///
/// # Errors
/// If /proc belongs to another pid namespace than ours.
pub fn processes_by_namespace_pid(own: i32) -> Result<Vec<i32>, Error> {
    let mut pids = processes()?;
    pids.retain(|&pid| status(pid).is_ok_and(|status| namespace_pid(&status) == Some(own)));
    Ok(pids)
}

/// Returns the id of a process in its own pid namespace.
pub(crate) fn own_pid(pid: i32) -> Result<i32, Error> {
    Ok(namespace_pid(&status(pid)?).unwrap_or(pid))
}

/// Returns the id of a process in its own pid namespace, if that differs from the id in /proc.
fn namespace_pid(status: &Status) -> Option<i32> {
    match status.nspid[..] {
        [_, .., own] => Some(own),
        _ => None,
    }
}

/// Fails if the ids in /proc differ from those that ptrace(2) takes.
fn check_namespace() -> Result<(), Error> {
    // If /proc belongs to a namespace beside or below ours, it does not list us. If it belongs to one above ours,
    // it lists an id for each namespace in between.
    let path = "/proc/self/status";
    let own = fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::ForeignProc,
        _ => refusal(std::process::id().cast_signed(), path.to_owned(), source),
    })?;
    match Status::parse(&own) {
        Some(own) if namespace_pid(&own).is_some() => Err(Error::ForeignProc),
        _ => Ok(()),
    }
}
