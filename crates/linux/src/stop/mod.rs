//! Stopping all threads of a process by ptrace, and releasing them, however rbloat ends.

mod blocked_signals;
mod end_watch;
mod pause;
mod priority;
mod reading;
mod thread;
pub mod tracee;

use std::cmp::Ordering;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::arch::Registers;
use crate::{Error, proc};

pub use blocked_signals::{BlockedSignals, unblock_signals};
use end_watch::EndWatch;
pub use pause::PauseFactors;
use priority::PiBoosters;
pub use priority::RealTimePriority;
pub(crate) use reading::HelperPriority;
pub use reading::ReadingPriority;
pub use thread::Thread;
use tracee::{Event, Resume, Wait, wait};

/// A limit for pauses that nearly every process meets: for callers who would rather wait than fail.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The time between polls of threads that have not stopped yet.
const POLL: Duration = Duration::from_micros(50);

/// Runs `capture`, which stops processes, on a thread of its own, and returns its result.
///
/// A thread of the target that does not stop in time cannot be detached by its tracer. The kernel detaches it when
/// the tracer ends, so the tracer is a thread that does nothing else. SIGINT, SIGTERM and SIGHUP wait meanwhile,
/// since they would leave a forked copy behind.
///
/// # Panics
/// If `capture` panics.
pub fn on_a_thread_of_its_own<T: Send>(capture: impl FnOnce() -> T + Send) -> T {
    let _ends = BlockedSignals::requests_to_end();
    let _stops = BlockedSignals::job_control();
    std::thread::scope(|scope| {
        let thread = scope.spawn(capture);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Stopped threads of a process: all of them, or one. Dropping the value releases them.
///
/// They are also released if rbloat is killed: the threads are seized without PTRACE_O_EXITKILL, and the kernel
/// detaches a dead tracer's threads. A signal that was about to be delivered to a thread is delivered afterwards, and
/// a thread that was stopped by SIGSTOP stays stopped.
///
/// A thread that did not stop in time cannot be detached by its tracer; it is detached when the tracer ends. So the
/// thread of ours that stops a process must end soon: see [`on_a_thread_of_its_own`].
pub struct Stop {
    pid: i32,
    /// When the first thread was asked to stop.
    since: Instant,
    /// The threads that were seized, ascending by id.
    threads: Vec<Seized>,
    /// If ^Z stopped rbloat now, the target would stay stopped.
    _blocked: BlockedSignals,
    /// Help the target's threads to stop in time.
    boosters: PiBoosters,
    /// The target waits for us.
    _priority: RealTimePriority,
    /// ptrace answers only to the thread that seized.
    not_send: PhantomData<*const ()>,
}

struct Seized {
    tid: i32,
    /// `None` while it runs.
    stop: Option<ThreadStop>,
}

/// The state in which a seized thread is stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadStop {
    /// The signal that is to be delivered to it when it continues, or 0.
    pub signal: i32,
    /// True if its process is stopped by SIGSTOP or a similar signal.
    pub group_stop: bool,
}

/// Further tries to seize a thread that no process traces, but that was refused.
const SEIZE_RETRIES: usize = 40;
/// The time in which a thread that is being killed should end.
const REAPING: Duration = Duration::from_millis(500);
/// The maximum number of threads of the target that get a real-time priority during the pause.
const MAX_BOOSTED: usize = 64;
/// Room for threads that are created while the others are stopped.
const NEW_THREADS: usize = 64;

impl Stop {
    /// Stops every thread of `pid`, including threads that are created meanwhile.
    ///
    /// # Errors
    /// If there is no such process, the kernel refuses, or a thread does not stop within `patience`. The stopped
    /// threads continue then.
    pub fn all_threads(pid: i32, patience: Duration) -> Result<Self, Error> {
        let mut stop = Self::none_yet(pid);
        let watch = EndWatch::start();
        // A seized thread runs on, so everything that takes time is done before the first is stopped.
        stop.seize_new(&watch)?;
        stop.threads.reserve(NEW_THREADS);
        stop.boosters = PiBoosters::start(stop.threads.len().min(MAX_BOOSTED));
        stop._priority = RealTimePriority::raise();
        stop.since = Instant::now();
        let deadline = stop.since + patience;
        let mut interrupted = 0;
        // Only running threads create new ones.
        loop {
            for at in interrupted..stop.threads.len() {
                stop.interrupt(at)?;
                stop.boosters.boost(stop.threads[at].tid);
            }
            stop.wait_for_all(deadline, patience)?;
            if stop.is_complete()? {
                stop.threads.sort_unstable_by_key(|thread| thread.tid);
                return Ok(stop);
            }
            if Instant::now() >= deadline {
                return Err(Error::NewThreads { pid, milliseconds: patience.as_millis() });
            }
            interrupted = stop.threads.len();
            stop.seize_new(&watch)?;
        }
    }

    /// Returns true if all threads of the process are stopped, by the kernel's count of them at one instant.
    ///
    /// A list of threads proves nothing: a listed thread may have ended by the time it is seized, after it created
    /// another one; and if a thread ends during the listing, the kernel leaves out those after it (`next_tid` in
    /// fs/proc/base.c).
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

    /// Stops the thread `tid` of `pid`; the others run on. If the thread has ended, nothing is stopped.
    ///
    /// # Errors
    /// If there is no such process, the kernel refuses, or the thread does not stop within `patience`.
    pub fn one_thread(pid: i32, tid: i32, patience: Duration) -> Result<Self, Error> {
        let mut stop = Self::none_yet(pid);
        if stop.seize(tid)? {
            stop.threads.push(Seized { tid, stop: None });
            stop.interrupt(0)?;
            stop.wait_for_all(Instant::now() + patience, patience)?;
        }
        Ok(stop)
    }

    fn none_yet(pid: i32) -> Self {
        Self {
            pid,
            since: Instant::now(),
            threads: Vec::new(),
            _blocked: BlockedSignals::job_control(),
            boosters: PiBoosters::default(),
            _priority: RealTimePriority::none(),
            not_send: PhantomData,
        }
    }

    /// Boosts the stopped thread `tid` to a real-time priority, so that it runs at once when it is resumed for a
    /// moment.
    pub fn hurry(&mut self, tid: i32) {
        if self.threads.iter().take(MAX_BOOSTED).all(|thread| thread.tid != tid) {
            self.boosters.boost(tid);
        }
    }

    /// The instant at which the first thread was asked to stop.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Seizes all threads that are not seized yet; they run on.
    fn seize_new(&mut self, watch: &EndWatch) -> Result<(), Error> {
        self.threads.sort_unstable_by_key(|thread| thread.tid);
        let known = self.threads.len();
        for tid in proc::thread_ids(self.pid)? {
            let is_known = self.threads[..known].binary_search_by_key(&tid, |it| it.tid).is_ok();
            if !is_known && self.seize(tid)? {
                watch.add(tid);
                self.threads.push(Seized { tid, stop: None });
            }
        }
        Ok(())
    }

    /// Seizes a thread, which runs on. Returns false if it is gone.
    fn seize(&self, tid: i32) -> Result<bool, Error> {
        let thread = Pid::from_raw(tid);
        let mut seized = ptrace::seize(thread, ptrace::Options::empty());
        // A thread that is about to end is refused as well, and another tracer may detach between the refusal and
        // the check for one.
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

    /// Waits until every seized thread is stopped or gone.
    fn wait_for_all(&mut self, deadline: Instant, patience: Duration) -> Result<(), Error> {
        let mut lost = None;
        loop {
            let mut running = None;
            self.threads.retain_mut(|thread| {
                if thread.stop.is_some() {
                    return true;
                }
                match wait(thread.tid) {
                    Wait::Running if lost == Some(thread.tid) => return false,
                    Wait::Running => running = Some(thread.tid),
                    Wait::Stopped(event) => {
                        let group_stop = matches!(event, Event::GroupStop);
                        let signal = if let Event::Signal(signal) = event { signal } else { 0 };
                        thread.stop = Some(ThreadStop { signal, group_stop });
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
            // An exec gives the id of the first thread to the one that made it, which may not be seized.
            let is_lost = ptrace::interrupt(Pid::from_raw(tid)) == Err(Errno::ESRCH);
            lost = is_lost.then_some(tid);
            std::thread::sleep(POLL);
        }
    }

    fn ptrace_error(&self, tid: i32, errno: Errno) -> Error {
        Error::Ptrace { pid: self.pid, tid, source: io::Error::from(errno) }
    }

    /// Reads the stopped threads with their registers, ascending by id.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn threads(&self) -> Result<Vec<Thread>, Error> {
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

    /// The ids of the stopped threads, ascending, and their states.
    pub fn stopped(&self) -> impl Iterator<Item = (i32, ThreadStop)> {
        self.threads.iter().filter_map(|thread| Some((thread.tid, thread.stop?)))
    }

    /// Returns true if the process was already stopped, by SIGSTOP or a similar signal.
    #[must_use]
    pub fn was_suspended(&self) -> bool {
        self.stopped().all(|(_, stop)| stop.group_stop)
    }

    /// Notes that a thread was resumed meanwhile, and is now stopped before the delivery of `signal`, or of none if 0.
    pub fn set_pending_signal(&mut self, tid: i32, signal: i32) {
        if let Some(thread) = self.threads.iter_mut().find(|thread| thread.tid == tid) {
            thread.stop = Some(ThreadStop { signal, group_stop: false });
        }
    }

    /// Releases all threads. Returns the pause, since the first thread was asked to stop.
    ///
    /// # Errors
    /// If the process has ended, or become another program, since it was stopped. Only SIGKILL resumes a stopped
    /// thread without its tracer, and the kernel refuses to detach such a thread.
    pub fn release(mut self) -> Result<Duration, Error> {
        let is_intact = self.detach_all();
        let pause = self.since.elapsed();
        if is_intact { Ok(pause) } else { Err(Error::Ended { pid: self.pid, how: "ended" }) }
    }

    /// Releases all threads; returns true if all of them were still stopped.
    fn detach_all(&mut self) -> bool {
        self.boosters.take_back();
        let mut gone = Vec::new();
        for thread in &self.threads {
            // A running thread cannot be detached.
            let Some(stop) = thread.stop else { continue };
            if tracee::resume(thread.tid, Resume::Detach, stop.signal).is_err() {
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

/// Waits for a thread that was killed while it was stopped: until its tracer has done so, the process cannot be waited
/// for. The process itself is left to its parent.
fn reap(tid: i32) {
    let deadline = Instant::now() + REAPING;
    while matches!(wait(tid), Wait::Running) && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}
