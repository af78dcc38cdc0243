use std::sync::Mutex;
use std::thread::{self, Builder};

use crate::stop::HelperPriority;

/// Returns the results of both functions, which run at the same time. If no thread can be started, `second` runs after
/// `first`. A panic of either is passed on.
#[must_use]
pub fn both<A, B: Send>(first: impl FnOnce() -> A, second: impl FnOnce() -> B + Send) -> (A, B) {
    // A thread that could not be started has taken nothing.
    let second = Mutex::new(Some(second));
    let take = || second.lock().ok().and_then(|mut second| second.take());
    let priority = HelperPriority::of_this_thread();
    let help = || {
        let _turn = priority.take();
        take().map(|second| second())
    };
    thread::scope(|scope| {
        let thread = Builder::new().spawn_scoped(scope, help);
        let first = first();
        let second = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => take().map(|second| second()),
        };
        (first, second.expect("it is taken once"))
    })
}
