//! Stopping all threads of a process by ptrace, and letting them go again whatever happens.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::{Address, Error, Thread};

use super::blocked::Blocked;
use super::proc;
use super::tracee::{self, Event, Resume, Wait, wait};

/// Between two looks at threads that have not stopped yet.
const POLL: Duration = Duration::from_micros(50);

/// All threads of a process, stopped. Dropping it lets them go on.
///
/// They go on as well where rbloat is killed: the threads are seized without
/// PTRACE_O_EXITKILL, and the kernel detaches a dead tracer's threads. A signal that was about to
/// be delivered to a thread is delivered afterwards, and a thread that was stopped by SIGSTOP
/// stays stopped by it.
pub(crate) struct Stop {
    pid: i32,
    start_time: u64,
    /// The threads that stand.
    stopped: BTreeMap<i32, Standing>,
    /// Being stopped by ^Z ourselves while the target stands would leave it standing.
    _blocked: Blocked,
    /// ptrace answers only to the thread that seized.
    not_send: PhantomData<*const ()>,
}

/// A seized thread that stands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Standing {
    /// The signal that it stopped before the delivery of, or 0.
    pub(crate) signal: i32,
    /// Whether its process is stopped as well, by SIGSTOP or its like.
    pub(crate) by_job_control: bool,
}

/// How often a thread is asked for again that nobody traces, but that was refused.
const SEIZE_RETRIES: usize = 40;
/// How long a thread that is being killed may take to end.
const REAPING: Duration = Duration::from_millis(500);

impl Stop {
    /// Stops every thread of `pid`, also such as are created meanwhile.
    ///
    /// Fails where the kernel refuses, or one does not stop within `patience`; all that were
    /// stopped go on then.
    pub(crate) fn all_threads(pid: i32, patience: Duration) -> Result<Self, Error> {
        let mut stop = Self::none_yet(pid)?;
        let deadline = Instant::now() + patience;
        // Only a running thread makes new ones: when none runs, there will be none.
        loop {
            let tids = proc::threads(pid)?;
            let mut running = Vec::new();
            for tid in tids.into_iter().filter(|tid| !stop.stopped.contains_key(tid)) {
                if stop.seize(tid)? {
                    running.push(tid);
                }
            }
            if running.is_empty() && stop.is_complete()? {
                return Ok(stop);
            }
            if Instant::now() >= deadline {
                return Err(Error::Restless { pid, milliseconds: patience.as_millis() });
            }
            stop.wait_for(running, deadline, patience)?;
        }
    }

    /// Whether all threads of the process stand, by the kernel's count of them at one instant.
    ///
    /// A list of them is no proof: one that was listed may have ended by the time it is seized, and
    /// have made another before; and where one ends while it is listed, the kernel leaves out those
    /// behind it (`next_tid` in fs/proc/base.c).
    fn is_complete(&self) -> Result<bool, Error> {
        let pid = self.pid;
        // The first thread counts until all others have ended.
        let has_first_ended = proc::thread_state(pid, pid) == Some('Z');
        let ended = usize::from(has_first_ended && !self.stopped.contains_key(&pid));
        let count = proc::thread_count(pid)?;
        match count.cmp(&(self.stopped.len() + ended)) {
            Ordering::Greater => Ok(false),
            Ordering::Equal if !self.stopped.is_empty() => Ok(true),
            Ordering::Less if count > 0 => Err(Error::Ended { pid, how: "became another program" }),
            _ => Err(Error::Ended { pid, how: "ended" }),
        }
    }

    /// Stops one thread of `pid`; the others run on.
    pub(crate) fn one_thread(pid: i32, tid: i32, patience: Duration) -> Result<Self, Error> {
        let mut stop = Self::none_yet(pid)?;
        if stop.seize(tid)? {
            stop.wait_for(vec![tid], Instant::now() + patience, patience)?;
        }
        Ok(stop)
    }

    fn none_yet(pid: i32) -> Result<Self, Error> {
        let start_time = proc::start_time(pid)?;
        let (stopped, not_send) = (BTreeMap::new(), PhantomData);
        Ok(Self { pid, start_time, stopped, _blocked: Blocked::job_control(), not_send })
    }

    /// Seizes and interrupts a thread; false where it is gone.
    fn seize(&self, tid: i32) -> Result<bool, Error> {
        let thread = Pid::from_raw(tid);
        let mut seized = ptrace::seize(thread, ptrace::Options::empty());
        // A thread that is about to end is refused as well, and another tracer may let go between
        // the refusal and the question who it is.
        for _ in 0..SEIZE_RETRIES {
            if seized != Err(Errno::EPERM) {
                break;
            }
            proc::check_untraced(self.pid, tid)?;
            std::thread::sleep(POLL);
            seized = ptrace::seize(thread, ptrace::Options::empty());
        }
        match seized {
            Ok(()) => {}
            Err(Errno::ESRCH) => return Ok(false),
            Err(_) if matches!(proc::thread_state(self.pid, tid), None | Some('Z' | 'X')) => {
                return Ok(false);
            }
            Err(Errno::EPERM) => {
                return Err(proc::not_permitted(self.pid, "stop the threads"));
            }
            Err(errno) => return Err(self.ptrace_error(tid, errno)),
        }
        match ptrace::interrupt(thread) {
            Ok(()) | Err(Errno::ESRCH) => Ok(true),
            Err(errno) => Err(self.ptrace_error(tid, errno)),
        }
    }

    fn wait_for(
        &mut self,
        mut running: Vec<i32>,
        deadline: Instant,
        patience: Duration,
    ) -> Result<(), Error> {
        loop {
            let mut still = Vec::new();
            for tid in running {
                match wait(tid) {
                    Wait::Running => still.push(tid),
                    Wait::Stopped(event) => {
                        let by_job_control = matches!(event, Event::JobControl);
                        let signal = if let Event::Signal(signal) = event { signal } else { 0 };
                        self.stopped.insert(tid, Standing { signal, by_job_control });
                    }
                    Wait::Gone => {}
                }
            }
            let Some(&tid) = still.first() else { return Ok(()) };
            if Instant::now() >= deadline {
                let state = proc::thread_state(self.pid, tid).unwrap_or('?');
                let milliseconds = patience.as_millis();
                return Err(Error::DoesNotStop { pid: self.pid, tid, milliseconds, state });
            }
            running = still;
            std::thread::sleep(POLL);
        }
    }

    fn ptrace_error(&self, tid: i32, errno: Errno) -> Error {
        Error::Ptrace { pid: self.pid, tid, source: io::Error::from(errno) }
    }

    /// The stopped threads with their registers, ascending by id.
    pub(crate) fn threads(&self) -> Result<Vec<Thread>, Error> {
        let read = |&tid: &i32| {
            let registers = match ptrace::getregs(Pid::from_raw(tid)) {
                Ok(registers) => registers,
                // Killed while it stood; check_intact says so of the process.
                Err(Errno::ESRCH) => return Ok(None),
                Err(errno) => return Err(self.ptrace_error(tid, errno)),
            };
            let r = registers;
            Ok(Some(Thread {
                tid,
                fs_base: Address(r.fs_base),
                stack_pointer: Address(r.rsp),
                registers: vec![
                    r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11,
                    r.r12, r.r13, r.r14, r.r15,
                ],
            }))
        };
        self.stopped.keys().map(read).filter_map(Result::transpose).collect()
    }

    /// The threads that stand, ascending by id.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (i32, Standing)> {
        self.stopped.iter().map(|(&tid, &standing)| (tid, standing))
    }

    /// Takes note that a thread stands before the delivery of another signal by now, or of none.
    pub(crate) fn stands_before(&mut self, tid: i32, signal: i32) {
        self.stopped.insert(tid, Standing { signal, by_job_control: false });
    }

    /// Fails where the process has ended, or become another, since it was stopped.
    pub(crate) fn check_intact(&self) -> Result<(), Error> {
        let pid = self.pid;
        let ended = Error::Ended { pid, how: "ended" };
        let Ok(start_time) = proc::start_time(pid) else { return Err(ended) };
        if start_time != self.start_time {
            return Err(ended);
        }
        // SIGKILL wakes and ends stopped threads too; exec ends all but the one that calls it.
        for &tid in self.stopped.keys() {
            match wait(tid) {
                Wait::Running if proc::thread_state(pid, tid) == Some('t') => {}
                _ => return Err(ended),
            }
        }
        match proc::threads(pid)? {
            tids if tids.iter().eq(self.stopped.keys()) => Ok(()),
            _ => Err(Error::Ended { pid, how: "became another program" }),
        }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        for (&tid, thread) in &self.stopped {
            if tracee::resume(tid, Resume::Detach, thread.signal).is_err() && tid != self.pid {
                reap(tid);
            }
        }
    }
}

/// Takes note of the end of a thread that was killed while it stood: until its tracer does, its
/// process cannot be waited for. The process itself is left to its parent.
fn reap(tid: i32) {
    let deadline = Instant::now() + REAPING;
    while matches!(wait(tid), Wait::Running) && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}
