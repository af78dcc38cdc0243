//! A thread of ours that does periodic work while another thread reads.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A thread that is asked to stop, and joined, when this value is dropped.
pub struct Companion {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The request to stop, which the thread of a [`Companion`] waits for.
pub struct StopSignal(Receiver<()>);

impl Companion {
    /// Starts a thread that calls `work`, which must return soon after the request to stop. Returns `None` if the kernel starts no
    /// thread.
    pub fn start(work: impl FnOnce(&StopSignal) + Send + 'static) -> Option<Self> {
        let (stop, stopped) = channel();
        let thread = Builder::new().spawn(move || work(&StopSignal(stopped)));
        Some(Self { stop: Some(stop), thread: Some(thread.ok()?) })
    }
}

impl StopSignal {
    /// Waits for the request for at most `time`. Returns true if it came.
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
