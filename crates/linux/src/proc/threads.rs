//! The threads of a process.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nix::time::ClockId;

use super::refusal;
use super::stat::{Stat, fields, value};
use crate::Error;
use crate::text::one_line;

/// Returns the number of threads of the process at one instant. The first thread is included even if it has ended.
pub(crate) fn thread_count(pid: i32) -> Result<usize, Error> {
    Stat::read(pid).map(|stat| usize::try_from(stat.num_threads).unwrap_or(usize::MAX))
}

/// Returns the ids of the process's threads, ascending. If a thread ends meanwhile, others may be missing.
///
/// # Errors
/// If there is no such process, or the kernel refuses.
pub fn thread_ids(pid: i32) -> Result<Vec<i32>, Error> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).map_err(|source| refusal(pid, path, source))?;
    let mut tids: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    Ok(tids)
}

/// Returns the ids of the threads of process `pid` that have not ended, ascending. If a thread ends meanwhile, others
/// may be missing.
///
/// # Errors
/// If there is no such process, or the kernel refuses.
pub fn threads(pid: i32) -> Result<Vec<i32>, Error> {
    let mut tids = Vec::new();
    for tid in thread_ids(pid)? {
        if !matches!(readable_state(pid, tid)?, None | Some('Z' | 'X')) {
            tids.push(tid);
        }
    }
    Ok(tids)
}

/// Returns true if a thread of the process `pid` has not ended.
///
/// # Errors
/// If that cannot be read. A process that does not exist is no error.
pub fn lives(pid: i32) -> Result<bool, Error> {
    match threads(pid) {
        Ok(tids) => Ok(!tids.is_empty()),
        Err(Error::NoSuchProcess { .. } | Error::Ended { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the names of the threads of process `pid`, ascending, each once. A Ruby thread has the name of the program
/// unless it was named.
#[must_use]
pub fn thread_names(pid: i32) -> Vec<String> {
    let threads = thread_ids(pid).unwrap_or_default();
    let names: BTreeSet<String> =
        threads.into_iter().filter_map(|tid| thread_name(pid, tid)).collect();
    names.into_iter().collect()
}

/// Returns the name of the thread `tid` of process `pid`; `None` if it is gone.
#[must_use]
pub fn thread_name(pid: i32, tid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(one_line(String::from_utf8_lossy(&name).trim_end_matches('\n')))
}

/// Returns the state of the thread `tid` of process `pid`, a letter of proc(5); `None` if it is gone or cannot be read.
#[must_use]
pub fn thread_state(pid: i32, tid: i32) -> Option<char> {
    readable_state(pid, tid).ok().flatten()
}

/// Returns the state of the thread `tid` of process `pid`, a letter of proc(5); `None` if it is gone.
///
/// # Errors
/// If it cannot be read.
pub fn readable_state(pid: i32, tid: i32) -> Result<Option<char>, Error> {
    let path = format!("/proc/{pid}/task/{tid}/stat");
    match fs::read(&path) {
        Ok(text) => Ok(fields(&text).and_then(|mut fields| fields.next()?.chars().next())),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(refusal(pid, path, error)),
    }
}

/// Returns the number of minor page faults of the thread `tid` of process `pid`; `None` if it is gone.
#[must_use]
pub fn minor_faults(pid: i32, tid: i32) -> Option<u64> {
    stat_field(pid, tid, 7)?.parse().ok()
}

/// Returns the number of minor page faults of all threads of process `pid`, also of those that have ended; `None` if it is
/// gone.
#[must_use]
pub fn all_minor_faults(pid: i32) -> Option<u64> {
    Stat::read(pid).ok().map(|stat| stat.minflt)
}

/// Returns the field of a thread's `stat` with this index behind the thread's name; `None` if the thread is gone.
fn stat_field(pid: i32, tid: i32, index: usize) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    fields(&text)?.nth(index).map(str::to_owned)
}

/// The signals that a thread has handlers for, those that it blocks, and those that it ignores.
#[derive(Debug, Clone, Copy)]
pub struct SignalSets {
    caught: u64,
    blocked: u64,
    ignored: u64,
    pending: u64,
}

impl SignalSets {
    /// Returns true if the process has a handler for `signal`.
    #[must_use]
    pub fn catches(&self, signal: i32) -> bool {
        self.caught & 1 << (signal - 1) != 0
    }

    /// Returns true if a handler of another signal than `signal` is about to run in the thread.
    #[must_use]
    pub fn is_another_pending(&self, signal: i32) -> bool {
        self.pending & self.caught & !self.blocked & !(1 << (signal - 1)) != 0
    }

    /// Returns true if the thread blocks `signal`.
    #[must_use]
    pub fn blocks(&self, signal: i32) -> bool {
        self.blocked & 1 << (signal - 1) != 0
    }

    /// Returns true if the process ignores `signal`.
    #[must_use]
    pub fn ignores(&self, signal: i32) -> bool {
        self.ignored & 1 << (signal - 1) != 0
    }
}

/// Returns the signal sets of the thread `tid` of process `pid`; `None` if it is gone.
#[must_use]
pub fn signal_sets(pid: i32, tid: i32) -> Option<SignalSets> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let set =
        |key: &str| u64::from_str_radix(std::str::from_utf8(value(&text, key)?).ok()?, 16).ok();
    Some(SignalSets {
        caught: set("SigCgt:")?,
        blocked: set("SigBlk:")?,
        ignored: set("SigIgn:")?,
        pending: set("SigPnd:")? | set("ShdPnd:")?,
    })
}

/// Returns the CPU time of the current threads of process `pid`. Threads that have ended are not included.
#[must_use]
pub fn cpu_time(pid: i32) -> Duration {
    let of = |tid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    };
    thread_ids(pid).unwrap_or_default().into_iter().filter_map(of).sum()
}

/// Returns the CPU time of process `pid`, of all its threads, also of those that have ended; zero if there is no such process.
#[must_use]
pub fn whole_cpu_time(pid: i32) -> Duration {
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(pid));
    clock.and_then(ClockId::now).map_or(Duration::ZERO, Duration::from)
}

/// Returns the CPU time of this process, of all its threads, in the kernel and outside.
#[must_use]
pub fn own_cpu_time() -> Duration {
    time_of(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of the calling thread, in the kernel and outside.
#[must_use]
pub fn own_thread_cpu_time() -> Duration {
    time_of(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the time of a clock.
pub(crate) fn time_of(clock: ClockId) -> Duration {
    clock.now().map(Duration::from).expect("every Linux has this clock")
}
