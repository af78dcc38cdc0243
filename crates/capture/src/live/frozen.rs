//! Capture by a freeze: the target's threads stay stopped while its memory is read, up to a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::{Error, Image, ProcessState};

use super::blocked::Blocked;
use super::memory::LiveMemory;
use super::pagemap::Part;
use super::{Stopped, proc};

/// A target that stands still, and its image.
///
/// It goes on when this value is dropped, when its pause has lasted for as long as it may, or rbloat ends in
/// whatever way.
pub struct Frozen {
    image: Image<'static>,
    keeper: Keeper,
}

/// The outcome of a freeze after the target was released.
#[derive(Debug)]
pub struct Thawed {
    /// The kernel's account of the target.
    pub state: ProcessState,
    /// The pause, from the first thread's stop to the last one's release.
    pub pause: Duration,
    /// True if the deadline ended the pause. Later reads returned nothing, so what was read may be incomplete.
    pub expired: bool,
}

/// The thread that stopped the target, and releases it on request or at the deadline.
struct Keeper {
    /// `None` where the target was stopped before.
    deadline: Option<Instant>,
    release: Sender<()>,
    thread: JoinHandle<Result<Duration, Error>>,
    expired: Arc<AtomicBool>,
    /// Those of a terminal that would stop us while the target stands.
    _blocked: Blocked,
}

/// Stops every thread of `pid` and reads what the kernel says of it, page states before anything
/// else. Nothing is written to the target.
///
/// The target stands for at most `max_pause`, unless it was stopped before, by SIGSTOP or its like: nobody
/// waits for such a process. At the deadline it goes on whatever is done with its image, of which nothing
/// can be read from then on.
///
/// # Errors
/// Where there is no such process, it has no memory, it is traced already, the kernel refuses, or
/// a thread does not stop within `max_pause`. The target goes on then.
pub fn freeze(pid: i32, max_pause: Duration) -> Result<Frozen, Error> {
    let blocked = Blocked::job_control();
    proc::check_has_memory(pid)?;
    let expired = Arc::new(AtomicBool::new(false));
    let memory = LiveMemory::open(pid)?.until(Arc::clone(&expired));
    let (ready, stopped) = sync_channel(1);
    let (release, released) = channel();
    let expires = Arc::clone(&expired);
    let thread = Builder::new()
        .spawn(move || keep(pid, max_pause, &ready, &released, &expires))
        .map_err(|source| Error::Ptrace { pid, tid: pid, source })?;
    let mut keeper = Keeper { deadline: None, release, thread, expired, _blocked: blocked };
    match stopped.recv() {
        Ok((state, deadline)) => {
            keeper.deadline = deadline;
            Ok(Frozen { image: Image::new(state, memory), keeper })
        }
        // It ended without having stopped the target, and says why.
        Err(_) => Err(keeper.end().err().unwrap_or(Error::Ended { pid, how: "ended" })),
    }
}

/// Stops the target, tells what the kernel says of it, and lets it go on in time. Returns the pause.
fn keep(
    pid: i32,
    max_pause: Duration,
    ready: &SyncSender<(ProcessState, Option<Instant>)>,
    released: &Receiver<()>,
    expired: &AtomicBool,
) -> Result<Duration, Error> {
    let Stopped { stop, state, .. } = super::stop_and_look(pid, max_pause, Part::All)?;
    let since = stop.since();
    let deadline = (!stop.was_suspended()).then(|| since + max_pause);
    let _ = ready.send((state, deadline));
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        if released.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            // Before the target goes on: a read that ends later than this sees it, and yields nothing.
            expired.store(true, Ordering::SeqCst);
        }
    } else {
        let _ = released.recv();
    }
    stop.release()
}

impl Keeper {
    /// Lets the target go on, if it does not yet.
    fn end(self) -> Result<Duration, Error> {
        drop(self.release);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Frozen {
    /// The target's image. It is of one instant as long as this value lives.
    #[must_use]
    pub fn image(&self) -> &Image<'static> {
        &self.image
    }

    /// The time for which its memory can still be read; `None` if it was stopped before, since there is no limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.keeper.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Lets the target go on.
    ///
    /// # Errors
    /// Where it ended, or became another program, while it stood: what was read is worth nothing.
    pub fn thaw(self) -> Result<Thawed, Error> {
        let expired = Arc::clone(&self.keeper.expired);
        let pause = self.keeper.end()?;
        let expired = expired.load(Ordering::SeqCst);
        Ok(Thawed { state: self.image.state, pause, expired })
    }
}
