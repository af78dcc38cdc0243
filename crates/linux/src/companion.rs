//! A thread of ours that does something from time to time, while another one works.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A thread that is told to end, and waited for, when this value is dropped.
pub struct Companion {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Tells a [`Companion`]'s thread when to end.
pub struct StopSignal(Receiver<()>);

impl Companion {
    /// Starts a thread that calls `work`; `None` if the kernel refuses. `work` returns soon after the stop.
    pub fn start(work: impl FnOnce(&StopSignal) + Send + 'static) -> Option<Self> {
        let (stop, stopped) = channel();
        let thread = Builder::new().spawn(move || work(&StopSignal(stopped)));
        Some(Self { stop: Some(stop), thread: Some(thread.ok()?) })
    }
}

impl StopSignal {
    /// Waits for this time, or until the stop. Returns true if it came.
    #[must_use]
    pub fn comes_within(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
