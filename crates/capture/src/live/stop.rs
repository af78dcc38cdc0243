//! Stopping all threads of a process by ptrace, and letting them go again whatever happens.

use std::cmp::Ordering;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::arch::Registers;
use crate::{Error, Thread};

use super::blocked::Blocked;
use super::priority::{Lenders, Urgent};
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
///
/// A thread that did not stop in time cannot be let go by its tracer, only by the tracer's end. So the thread
/// of ours that stops a process must be one that ends soon: see [`super::on_a_thread_of_its_own`].
pub(crate) struct Stop {
    pid: i32,
    start_time: u64,
    /// When the first thread was asked to stop.
    since: Instant,
    /// The threads that were seized, ascending by id.
    threads: Vec<Seized>,
    /// Being stopped by ^Z ourselves while the target stands would leave it standing.
    _blocked: Blocked,
    /// Those that help the target's threads to stop in time.
    lenders: Lenders,
    /// The target waits for us.
    _urgent: Urgent,
    /// ptrace answers only to the thread that seized.
    not_send: PhantomData<*const ()>,
}

struct Seized {
    tid: i32,
    /// `None` while it runs.
    standing: Option<Standing>,
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
/// Threads of the target that get a real-time priority for the time that it stands.
const MAX_LENDERS: usize = 64;
/// Room for threads that are made while the others are stopped.
const NEW_THREADS: usize = 64;

impl Stop {
    /// Stops every thread of `pid`, also such as are created meanwhile.
    ///
    /// Fails where the kernel refuses, or one does not stop within `patience`; all that were
    /// stopped go on then.
    pub(crate) fn all_threads(pid: i32, patience: Duration) -> Result<Self, Error> {
        let mut stop = Self::none_yet(pid)?;
        // A seized thread runs on: what takes its time is done before any is stopped.
        stop.seize_new()?;
        stop.threads.reserve(NEW_THREADS);
        stop.lenders = Lenders::start(stop.threads.len().min(MAX_LENDERS));
        stop._urgent = Urgent::raise();
        stop.since = Instant::now();
        let deadline = stop.since + patience;
        let mut interrupted = 0;
        // Only a running thread makes new ones: when none runs, there will be none.
        loop {
            for at in interrupted..stop.threads.len() {
                stop.interrupt(at)?;
                stop.lenders.lend_to(stop.threads[at].tid);
            }
            stop.wait_for_all(deadline, patience)?;
            if stop.is_complete()? {
                stop.threads.sort_unstable_by_key(|thread| thread.tid);
                return Ok(stop);
            }
            if Instant::now() >= deadline {
                return Err(Error::Restless { pid, milliseconds: patience.as_millis() });
            }
            interrupted = stop.threads.len();
            stop.seize_new()?;
        }
    }

    /// Whether all threads of the process stand, by the kernel's count of them at one instant.
    ///
    /// A list of them is no proof: one that was listed may have ended by the time it is seized, and
    /// have made another before; and where one ends while it is listed, the kernel leaves out those
    /// behind it (`next_tid` in fs/proc/base.c).
    fn is_complete(&self) -> Result<bool, Error> {
        let pid = self.pid;
        let count = proc::thread_count(pid)?;
        if count == self.threads.len() && count > 0 {
            return Ok(true);
        }
        // The first thread counts until all others have ended.
        let has_first_ended = proc::thread_state(pid, pid) == Some('Z');
        let is_first_here = self.threads.iter().any(|thread| thread.tid == pid);
        let ended = usize::from(has_first_ended && !is_first_here);
        match count.cmp(&(self.threads.len() + ended)) {
            Ordering::Greater => Ok(false),
            Ordering::Equal if !self.threads.is_empty() => Ok(true),
            Ordering::Less if count > 0 => Err(Error::Ended { pid, how: "became another program" }),
            _ => Err(Error::Ended { pid, how: "ended" }),
        }
    }

    /// Stops one thread of `pid`; the others run on.
    pub(crate) fn one_thread(pid: i32, tid: i32, patience: Duration) -> Result<Self, Error> {
        let mut stop = Self::none_yet(pid)?;
        if stop.seize(tid)? {
            stop.threads.push(Seized { tid, standing: None });
            stop.interrupt(0)?;
            stop.wait_for_all(Instant::now() + patience, patience)?;
        }
        Ok(stop)
    }

    fn none_yet(pid: i32) -> Result<Self, Error> {
        Ok(Self {
            pid,
            start_time: proc::start_time(pid)?,
            since: Instant::now(),
            threads: Vec::new(),
            _blocked: Blocked::job_control(),
            lenders: Lenders::default(),
            _urgent: Urgent::none(),
            not_send: PhantomData,
        })
    }

    /// Sees to it that the thread `tid` runs at once when it is let go on for a moment.
    pub(crate) fn hurry(&mut self, tid: i32) {
        if self.threads.iter().take(MAX_LENDERS).all(|thread| thread.tid != tid) {
            self.lenders.lend_to(tid);
        }
    }

    /// When the first thread was asked to stop.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// When the process was started, in clock ticks since boot.
    pub(crate) fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Seizes all threads that are not seized yet; they run on.
    fn seize_new(&mut self) -> Result<(), Error> {
        self.threads.sort_unstable_by_key(|thread| thread.tid);
        let known = self.threads.len();
        for tid in proc::thread_ids(self.pid)? {
            let is_known = self.threads[..known].binary_search_by_key(&tid, |it| it.tid).is_ok();
            if !is_known && self.seize(tid)? {
                self.threads.push(Seized { tid, standing: None });
            }
        }
        Ok(())
    }

    /// Seizes a thread, which runs on; false where it is gone.
    fn seize(&self, tid: i32) -> Result<bool, Error> {
        let thread = Pid::from_raw(tid);
        let mut seized = ptrace::seize(thread, ptrace::Options::empty());
        // A thread that is about to end is refused as well, and another tracer may let go between
        // the refusal and the question who it is.
        for _ in 0..SEIZE_RETRIES {
            if seized != Err(Errno::EPERM) {
                break;
            }
            if matches!(proc::thread_state(self.pid, tid), None | Some('Z' | 'X')) {
                return Ok(false);
            }
            proc::check_untraced(self.pid, tid)?;
            std::thread::sleep(POLL);
            seized = ptrace::seize(thread, ptrace::Options::empty());
        }
        match seized {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            Err(_) if matches!(proc::thread_state(self.pid, tid), None | Some('Z' | 'X')) => {
                Ok(false)
            }
            Err(Errno::EPERM) => Err(proc::not_permitted(self.pid, "stop")),
            Err(errno) => Err(self.ptrace_error(tid, errno)),
        }
    }

    fn interrupt(&self, at: usize) -> Result<(), Error> {
        let tid = self.threads[at].tid;
        match ptrace::interrupt(Pid::from_raw(tid)) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(self.ptrace_error(tid, errno)),
        }
    }

    /// Waits until every seized thread stands or is gone.
    fn wait_for_all(&mut self, deadline: Instant, patience: Duration) -> Result<(), Error> {
        loop {
            let mut running = None;
            self.threads.retain_mut(|thread| {
                if thread.standing.is_some() {
                    return true;
                }
                match wait(thread.tid) {
                    Wait::Running => running = Some(thread.tid),
                    Wait::Stopped(event) => {
                        let by_job_control = matches!(event, Event::JobControl);
                        let signal = if let Event::Signal(signal) = event { signal } else { 0 };
                        thread.standing = Some(Standing { signal, by_job_control });
                    }
                    Wait::Gone => return false,
                }
                true
            });
            let Some(tid) = running else { return Ok(()) };
            if Instant::now() >= deadline {
                let state = proc::thread_state(self.pid, tid).unwrap_or('?');
                let milliseconds = patience.as_millis();
                return Err(Error::DoesNotStop { pid: self.pid, tid, milliseconds, state });
            }
            std::thread::sleep(POLL);
        }
    }

    fn ptrace_error(&self, tid: i32, errno: Errno) -> Error {
        Error::Ptrace { pid: self.pid, tid, source: io::Error::from(errno) }
    }

    /// The stopped threads with their registers, ascending by id.
    pub(crate) fn threads(&self) -> Result<Vec<Thread>, Error> {
        let read = |&tid: &i32| {
            match Registers::read(tid) {
                Ok(registers) => Ok(Some(Thread::new(tid, &registers))),
                // It was killed while it was stopped. The release of the process reports that.
                Err(Errno::ESRCH) => Ok(None),
                Err(errno) => Err(self.ptrace_error(tid, errno)),
            }
        };
        self.threads.iter().map(|thread| read(&thread.tid)).filter_map(Result::transpose).collect()
    }

    /// The threads that stand, ascending by id.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (i32, Standing)> {
        self.threads.iter().filter_map(|thread| Some((thread.tid, thread.standing?)))
    }

    /// Returns true if the process was already stopped, by SIGSTOP or a similar signal.
    pub(crate) fn was_suspended(&self) -> bool {
        self.standing().all(|(_, standing)| standing.by_job_control)
    }

    /// Takes note that a thread stands before the delivery of another signal by now, or of none.
    pub(crate) fn stands_before(&mut self, tid: i32, signal: i32) {
        if let Some(thread) = self.threads.iter_mut().find(|thread| thread.tid == tid) {
            thread.standing = Some(Standing { signal, by_job_control: false });
        }
    }

    /// Lets all threads go on. Returns how long they stood.
    ///
    /// Fails where the process has ended, or become another, since it was stopped: only SIGKILL makes a
    /// stopped thread go on behind its tracer's back, and the kernel refuses to detach such a one.
    pub(crate) fn release(mut self) -> Result<Duration, Error> {
        let is_intact = self.detach_all();
        let pause = self.since.elapsed();
        if is_intact { Ok(pause) } else { Err(Error::Ended { pid: self.pid, how: "ended" }) }
    }

    /// Releases all threads; returns true if all of them were still stopped.
    fn detach_all(&mut self) -> bool {
        self.lenders.take_back();
        let mut gone = Vec::new();
        for thread in &self.threads {
            // One that runs is not ours to let go before it stops.
            let Some(standing) = thread.standing else { continue };
            if tracee::resume(thread.tid, Resume::Detach, standing.signal).is_err() {
                gone.push(thread.tid);
            }
        }
        self.threads.clear();
        let intact = gone.is_empty();
        gone.into_iter().filter(|&tid| tid != self.pid).for_each(reap);
        intact
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.detach_all();
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
