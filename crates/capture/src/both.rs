use std::thread::{self, Builder};

/// Returns the results of both functions, which run at the same time. If no thread can be started, `second` runs after
/// `first`. A panic of either is passed on.
#[must_use]
pub fn both<A, B: Send>(first: impl FnOnce() -> A, second: impl Fn() -> B + Sync) -> (A, B) {
    thread::scope(|scope| {
        let thread = Builder::new().spawn_scoped(scope, &second);
        let first = first();
        let second = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => second(),
        };
        (first, second)
    })
}
