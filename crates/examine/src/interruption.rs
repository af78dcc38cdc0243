//! The end of a command by ^C or another signal, at any moment: the process that is examined stays as it was, and no unfinished
//! file remains.
//!
//! A thread waits for the signals, since the others may be in a long computation. rbloat then ends by the same signal, so that
//! a shell script that runs it ends as well.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use supervise::{Event, Signals};

use crate::error::Error;
use crate::exclusion::end_all;

/// The time between two looks for a signal.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

/// The thread that waits for the signals.
struct Watch {
    signals: Arc<Signals>,
    say_so: fn(),
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Makes the signals that ask rbloat to end wait until it can end. Then `say_so` tells the user. For commands that do not handle
/// these signals themselves.
///
/// # Errors
/// If the signals cannot be blocked, or no thread can be started.
pub fn handle_signals(say_so: fn()) -> Result<(), Error> {
    let signals = Arc::new(Signals::block(false)?);
    let watch = Watch::start(signals, say_so).map_err(supervise::Error::Signals)?;
    *WATCH.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
    Ok(())
}

/// Gives up rights by `restrict`, also those of the thread that waits for signals: it starts again with the rights that the
/// calling thread has left.
pub(crate) fn restricted<T>(restrict: impl FnOnce() -> T) -> T {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let stopped = watch.take().map(Watch::stop);
    let restricted = restrict();
    if let Some((signals, say_so)) = stopped {
        match Watch::start(signals, say_so) {
            Ok(started) => *watch = Some(started),
            // No process has a copy any more, so the signals may end rbloat at once.
            Err(_) => Signals::unblock(),
        }
    }
    restricted
}

impl Watch {
    fn start(signals: Arc<Signals>, say_so: fn()) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let watched = Arc::clone(&signals);
        let thread = std::thread::Builder::new().name("signals".into()).spawn(move || {
            while stopped.recv_timeout(BETWEEN_LOOKS) == Err(RecvTimeoutError::Timeout) {
                if let Ok(Event::Signal { number, .. }) = watched.next(Duration::ZERO) {
                    end(number, say_so);
                }
            }
        })?;
        Ok(Self { signals, say_so, stop, thread })
    }

    /// Ends the thread. Signals that arrive wait for the next one.
    fn stop(self) -> (Arc<Signals>, fn()) {
        drop(self.stop);
        let _ = self.thread.join();
        (self.signals, self.say_so)
    }
}

/// Ends rbloat by a signal.
fn end(number: i32, say_so: fn()) -> ! {
    end_all();
    output::abandon();
    say_so();
    supervise::end_by(number)
}
