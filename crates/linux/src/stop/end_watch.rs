//! Notices the end of seized threads, so that an exec of the target can go on.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::tracee;

/// The time between two looks. Most captures end sooner.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// A thread of ours that notices the end of threads that another thread of ours has seized. It ends soon after this value is
/// dropped.
///
/// An exec ends all other threads of its process, and waits until their tracer has noticed that (`de_thread` in fs/exec.c).
/// Meanwhile an attempt to seize one more thread does not return (`cred_guard_mutex`), so the tracer cannot notice
/// anything: both would wait for ever. But any thread of the tracer's process may.
pub(super) struct EndWatch {
    seized: Arc<Mutex<Vec<i32>>>,
    _alive: Sender<()>,
}

impl EndWatch {
    /// Starts the thread. If that fails, nothing is noticed.
    pub(super) fn start() -> Self {
        let seized: Arc<Mutex<Vec<i32>>> = Arc::default();
        let (_alive, end) = channel::<()>();
        let watched = Arc::clone(&seized);
        let _ = std::thread::Builder::new().spawn(move || {
            while end.recv_timeout(BETWEEN_LOOKS) == Err(RecvTimeoutError::Timeout) {
                // Not locked during the looks, since the tracer adds threads.
                let mut seized = std::mem::take(&mut *lock(&watched));
                seized.retain(|&tid| !tracee::notice_end(tid));
                lock(&watched).append(&mut seized);
            }
        });
        Self { seized, _alive }
    }

    /// Watches the seized thread `tid`, too.
    pub(super) fn add(&self, tid: i32) {
        lock(&self.seized).push(tid);
    }
}

fn lock(seized: &Mutex<Vec<i32>>) -> std::sync::MutexGuard<'_, Vec<i32>> {
    seized.lock().unwrap_or_else(PoisonError::into_inner)
}
