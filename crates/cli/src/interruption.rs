//! The end of a command by ^C or another signal, at any moment: the process that is examined stays as it was, no unfinished
//! file remains, and the terminal has one message instead of the line of progress.
//!
//! A thread waits for the signals, since the others may be in a long computation. rbloat then ends by the same signal, so that
//! a shell script that runs it ends as well.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use supervise::{Event, Signals};

use crate::failure::Failure;
use crate::{attempts, progress, terminal};

/// The time between two looks for a signal.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// True if rbloat is about to end.
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);
static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

/// The thread that waits for the signals.
struct Watch {
    signals: Arc<Signals>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Makes the signals that ask rbloat to end wait until it can end. For commands that do not handle these signals themselves.
pub(crate) fn handle() -> Result<(), Failure> {
    let signals = Arc::new(Signals::block(false)?);
    let watch = Watch::start(signals).map_err(supervise::Error::Signals)?;
    *WATCH.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
    Ok(())
}

/// Gives up rights by `restrict`, also those of the thread that waits for signals: it starts again with the rights that the
/// calling thread has left.
pub(crate) fn restricted<T>(restrict: impl FnOnce() -> T) -> T {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let signals = watch.take().map(Watch::stop);
    let restricted = restrict();
    if let Some(signals) = signals {
        match Watch::start(signals) {
            Ok(started) => *watch = Some(started),
            // No process has a copy any more, so the signals may end rbloat at once.
            Err(_) => Signals::unblock(),
        }
    }
    restricted
}

/// Returns true if rbloat was asked to end: then nothing is tried again.
pub(crate) fn is_requested() -> bool {
    IS_REQUESTED.load(Ordering::SeqCst)
}

/// Waits for the end of rbloat, if it was asked to end. A failure may only be a consequence.
pub(crate) fn wait_if_requested() {
    while is_requested() {
        std::thread::park();
    }
}

impl Watch {
    fn start(signals: Arc<Signals>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let watched = Arc::clone(&signals);
        let thread = std::thread::Builder::new().name("signals".into()).spawn(move || {
            while stopped.recv_timeout(BETWEEN_LOOKS) == Err(RecvTimeoutError::Timeout) {
                if let Ok(Event::Signal { number, .. }) = watched.next(Duration::ZERO) {
                    end(number);
                }
            }
        })?;
        Ok(Self { signals, stop, thread })
    }

    /// Ends the thread. Signals that arrive wait for the next one.
    fn stop(self) -> Arc<Signals> {
        drop(self.stop);
        let _ = self.thread.join();
        self.signals
    }
}

/// Ends rbloat by a signal.
fn end(number: i32) -> ! {
    IS_REQUESTED.store(true, Ordering::SeqCst);
    // Without the copy, the capture ends soon.
    inferior::end_copy_early();
    attempts::end_all();
    output::abandon();
    progress::abandon();
    terminal::complain("interrupted");
    supervise::end_by(number)
}
