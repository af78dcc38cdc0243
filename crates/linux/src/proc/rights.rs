//! The right to examine a process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::stat::{Stat, Status};
use super::{check_namespace, status, threads};
use crate::Error;
use crate::obstacle::Obstacle;
use crate::text::one_line;

/// The flag of kernel threads in /proc/PID/stat (`PF_KTHREAD` in linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;
/// Bits of capabilities in a capability set.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;

/// The time between two looks at whether a process is still traced.
const POLL: Duration = Duration::from_millis(2);

/// Checks that `pid` is a process that can be captured, without touching it.
///
/// # Errors
/// If there is no such process, it has no memory, it is traced already, or it is rbloat itself.
pub fn check(pid: i32) -> Result<(), Error> {
    if pid == std::process::id().cast_signed() {
        return Err(Error::Itself { pid });
    }
    if pid <= 0 {
        return Err(Error::NoSuchProcess { pid });
    }
    check_namespace()?;
    let status = status(pid)?;
    if status.tgid != pid {
        return Err(Error::Thread { pid, process: status.tgid });
    }
    // A process whose first thread has ended is shown as a zombie while others run on.
    if status.state == 'Z' && threads(pid)?.is_empty() {
        return Err(Error::Zombie { pid, parent: status.ppid });
    }
    if status.vmsize.is_none() && status.state != 'Z' {
        let flags = Stat::read(pid)?.flags;
        return Err(match flags & KERNEL_THREAD {
            0 => Error::Ended { pid, how: "ended" },
            _ => Error::KernelThread { pid },
        });
    }
    check_untraced(pid, pid)
}

/// Fails if another process traces the thread `tid` of `pid`. Succeeds if the thread is gone.
pub(crate) fn check_untraced(pid: i32, tid: i32) -> Result<(), Error> {
    let Ok(status_of_thread) = Status::read(pid, &format!("task/{tid}/status")) else {
        return Ok(());
    };
    match status_of_thread.tracerpid {
        0 => Ok(()),
        // The kernel names the thread that traces.
        tracer => Err(match status(tracer) {
            Ok(status) => Error::Traced { pid, tracer: status.tgid, name: one_line(&status.name) },
            Err(_) => Error::Traced { pid, tracer, name: "unknown".into() },
        }),
    }
}

/// Waits until no other process traces process `pid`, for `longest` at most. Returns false if one still does.
pub fn wait_until_untraced(pid: i32, longest: Duration) -> bool {
    let since = Instant::now();
    loop {
        if check_untraced(pid, pid).is_ok() {
            return true;
        }
        if since.elapsed() >= longest {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the error for a refusal by the kernel, with the reason as far as it can be seen from outside.
pub(crate) fn not_permitted(pid: i32, what: &'static str) -> Error {
    Error::NotPermitted { pid, what, obstacle: obstacle(pid) }
}

/// The facts that decide whether a process may be examined.
struct Rights {
    /// True if rbloat has CAP_SYS_PTRACE.
    capable: bool,
    /// True if rbloat may open files that belong to other users.
    opens_all: bool,
    /// The setting of the security module Yama; 0 if the kernel has no Yama.
    ptrace_scope: u32,
    own_uid: u32,
    their_uid: u32,
    /// The owner of the files of the process in /proc.
    owner: Option<u32>,
}

fn obstacle(pid: i32) -> Obstacle {
    let own = status(std::process::id().cast_signed());
    let theirs = status(pid);
    let (Ok(own), Ok(theirs)) = (own, theirs) else {
        return Obstacle::NoCapability;
    };
    let has = |capability: u32| own.capeff >> capability & 1 == 1;
    Rights {
        capable: has(CAP_SYS_PTRACE),
        opens_all: has(CAP_DAC_OVERRIDE) || has(CAP_DAC_READ_SEARCH),
        ptrace_scope: fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0),
        own_uid: own.euid,
        their_uid: theirs.euid,
        owner: fs::metadata(format!("/proc/{pid}/environ")).map(|file| file.uid()).ok(),
    }
    .obstacle()
}

impl Rights {
    fn obstacle(&self) -> Obstacle {
        let Self { capable, opens_all, ptrace_scope, own_uid, their_uid, owner } = *self;
        if ptrace_scope >= 3 {
            return Obstacle::Locked { ptrace_scope };
        }
        if capable && !opens_all && owner.is_some_and(|owner| owner != own_uid) {
            return Obstacle::OthersFiles;
        }
        if capable {
            return Obstacle::Forbidden;
        }
        if own_uid != their_uid {
            return Obstacle::OtherUser { their_uid, own_uid };
        }
        if ptrace_scope > 0 {
            return Obstacle::Restricted { ptrace_scope };
        }
        if owner == Some(0) && own_uid != 0 {
            return Obstacle::NotDumpable;
        }
        Obstacle::NoCapability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_obstacle() {
        let root = Rights {
            capable: true,
            opens_all: true,
            ptrace_scope: 0,
            own_uid: 0,
            their_uid: 0,
            owner: Some(0),
        };
        let ids = Rights { own_uid: 7, their_uid: 7, owner: Some(7), ..root };
        let user = Rights { capable: false, opens_all: false, ..ids };
        let cases = [
            (Rights { ..root }, Obstacle::Forbidden),
            (Rights { ptrace_scope: 1, ..root }, Obstacle::Forbidden),
            (Rights { ptrace_scope: 3, ..root }, Obstacle::Locked { ptrace_scope: 3 }),
            (
                Rights { opens_all: false, their_uid: 8, owner: Some(8), ..ids },
                Obstacle::OthersFiles,
            ),
            (Rights { ..user }, Obstacle::NoCapability),
            (
                Rights { their_uid: 8, ptrace_scope: 1, ..user },
                Obstacle::OtherUser { their_uid: 8, own_uid: 7 },
            ),
            (Rights { ptrace_scope: 1, ..user }, Obstacle::Restricted { ptrace_scope: 1 }),
            (Rights { ptrace_scope: 3, ..user }, Obstacle::Locked { ptrace_scope: 3 }),
            (Rights { owner: Some(0), ..user }, Obstacle::NotDumpable),
        ];
        for (rights, obstacle) in cases {
            assert_eq!(rights.obstacle(), obstacle);
        }
    }
}
