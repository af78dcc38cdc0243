//! Capture by a freeze: the target's threads stay stopped while its memory is read, up to a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use linux::{BlockedSignals, Error, PageScope, WantedVariables, check, length};

use super::copied::{CopiedMemory, changeable};
use super::{LiveMemory, StoppedProcess, Target};
use crate::{Image, ProcessState};

/// A process that is stopped, and its image.
///
/// The process continues when this value is dropped, at the deadline of its pause, or when rbloat ends, however it
/// ends.
pub struct Frozen {
    image: Image<'static>,
    tracer: Tracer,
}

/// The outcome of a freeze after the target was released.
#[derive(Debug)]
pub struct Thawed {
    /// The kernel's account of the target.
    pub state: ProcessState,
    /// The pause, from the first thread's stop to the last one's release.
    pub pause: Duration,
    /// True if the deadline ended the pause. Later reads returned nothing, so the results may be incomplete.
    pub expired: bool,
}

/// A copy of what the target could change, made while it was stopped.
pub struct Copied {
    /// The image of that instant. Files that the target maps, but cannot write to, are read from them.
    pub image: Image<'static>,
    /// As of [`Thawed`].
    pub pause: Duration,
    /// True if the deadline came before the end of the copy, which is worthless then.
    pub expired: bool,
}

/// The thread that stopped the target, and releases it on request or at the deadline.
struct Tracer {
    /// The end of the pause; `None` if the target was already stopped by a signal.
    deadline: Option<Instant>,
    release: Sender<()>,
    thread: JoinHandle<Result<Duration, Error>>,
    expired: Arc<AtomicBool>,
    /// The terminal must not stop rbloat while the target is stopped.
    _blocked: BlockedSignals,
}

/// Freezes the process `pid`: see [`freeze_target`].
///
/// # Errors
/// As [`freeze_target`].
pub fn freeze(pid: i32, max_pause: Duration) -> Result<Frozen, Error> {
    check(pid)?;
    freeze_target(&Target::open(pid, WantedVariables::default())?, max_pause)
}

/// Stops every thread of the target, and reads the kernel's account of it, page states before any memory.
/// Nothing is written to the target.
///
/// The target is stopped for at most `max_pause`, unless it was already stopped by SIGSTOP or a similar signal: then
/// there is no limit. At the deadline the target continues, and later reads of its image return nothing.
///
/// # Errors
/// If there is no such process, it has no memory, it is traced already, the kernel refuses, a thread does not stop
/// within `max_pause`, or another program runs in the process. The target continues then.
pub fn freeze_target(target: &Target, max_pause: Duration) -> Result<Frozen, Error> {
    let pid = target.pid();
    let blocked = BlockedSignals::job_control();
    check(pid)?;
    let expired = Arc::new(AtomicBool::new(false));
    let memory = LiveMemory::open(pid)?.until(Arc::clone(&expired));
    let (ready, stopped) = sync_channel(1);
    let (release, released) = channel();
    let expires = Arc::clone(&expired);
    let (program, process) = (target.program().clone(), target.image().state.process.clone());
    let stop = move || StoppedProcess::stop(&program, &process, max_pause, PageScope::All, None);
    let thread = Builder::new()
        .spawn(move || stop_until(stop()?, max_pause, &ready, &released, &expires))
        .map_err(|source| Error::Ptrace { pid, tid: pid, source })?;
    let mut tracer = Tracer { deadline: None, release, thread, expired, _blocked: blocked };
    match stopped.recv() {
        Ok((state, deadline)) => {
            tracer.deadline = deadline;
            Ok(Frozen { image: Image::new(state, memory), tracer })
        }
        // The thread ended without having stopped the target; its result is the reason.
        Err(_) => Err(tracer.end().err().unwrap_or(Error::Ended { pid, how: "ended" })),
    }
}

/// Sends the kernel's account of the stopped target, and releases it in time. Returns the pause.
fn stop_until(
    stopped: StoppedProcess,
    max_pause: Duration,
    ready: &SyncSender<(ProcessState, Option<Instant>)>,
    released: &Receiver<()>,
    expired: &AtomicBool,
) -> Result<Duration, Error> {
    let StoppedProcess { stop, state, .. } = stopped;
    let since = stop.since();
    let deadline = (!stop.was_suspended()).then(|| since + max_pause);
    let _ = ready.send((state, deadline));
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        if released.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            // Before the target continues, so that a read that ends later returns nothing.
            expired.store(true, Ordering::SeqCst);
        }
    } else {
        let _ = released.recv();
    }
    stop.release()
}

impl Tracer {
    /// Releases the target, unless the deadline has done so.
    fn end(self) -> Result<Duration, Error> {
        drop(self.release);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Frozen {
    /// The target's image, of one instant.
    #[must_use]
    pub fn image(&self) -> &Image<'static> {
        &self.image
    }

    /// The time for which its memory can still be read; `None` if it was stopped before, since there is no limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.tracer.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The bytes that the target may change once it continues, which [`Frozen::copy`] has room for.
    #[must_use]
    pub fn changeable_bytes(&self) -> u64 {
        changeable(&self.image.state).map(|range| length(&range)).sum()
    }

    /// Copies what the target may change into `room`, which has at least [`Frozen::changeable_bytes`], and releases the target. A
    /// `room` whose pages are resident makes the pause shorter.
    ///
    /// # Errors
    /// As [`Frozen::thaw`], and if the memory cannot be opened.
    pub fn copy(self, room: Vec<u8>) -> Result<Copied, Error> {
        let live = LiveMemory::open(self.image.state.process.pid)?;
        let memory = CopiedMemory::of(&self.image, room, live);
        let Thawed { state, pause, expired } = self.thaw()?;
        Ok(Copied { image: Image::new(state, memory), pause, expired })
    }

    /// Releases the target.
    ///
    /// # Errors
    /// If the target ended, or became another program, while it was stopped: then all memory that was read is
    /// worthless.
    pub fn thaw(self) -> Result<Thawed, Error> {
        let expired = Arc::clone(&self.tracer.expired);
        let pause = self.tracer.end()?;
        let expired = expired.load(Ordering::SeqCst);
        Ok(Thawed { state: self.image.state, pause, expired })
    }
}
