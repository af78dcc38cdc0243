//! Captures exclude each other, since a process can have one tracer. None begins once rbloat is about to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// True if rbloat is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// While the guard exists, no other thread captures or trims. Does not return if rbloat is about to end.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    let alone = lock();
    if is_ending() {
        drop(alone);
        wait_if_ending();
        return one_at_a_time();
    }
    alone
}

/// Returns true if rbloat was asked to end: then nothing is tried again.
pub(crate) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::SeqCst)
}

/// Waits for the end of rbloat, if it was asked to end. A failure may only be a consequence.
pub fn wait_if_ending() {
    while is_ending() {
        std::thread::park();
    }
}

/// Waits until nothing is captured or trimmed, and lets nothing more begin.
pub(crate) fn end_all() {
    IS_ENDING.store(true, Ordering::SeqCst);
    // Without the copy, the capture ends soon.
    inferior::end_copy_early();
    std::mem::forget(lock());
}

fn lock() -> MutexGuard<'static, ()> {
    static CAPTURE: Mutex<()> = Mutex::new(());
    CAPTURE.lock().unwrap_or_else(PoisonError::into_inner)
}
