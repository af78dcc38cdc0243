//! Panics. A defect that one process brings to light ends no command that examines other processes, too.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// The number of calls of [`without_panic`] that are in progress.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// The latest panic within one of these calls.
static LATEST: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    /// True during such a call of this thread.
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of `examine`, which examines the process `pid` and no other one. A panic in it is an error.
///
/// # Errors
/// Also if `examine` panics.
pub fn isolated<T, E: From<Error>>(
    pid: i32,
    examine: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let result = without_panic(|| {
        panic_if_requested(&pid.to_string());
        examine()
    });
    result.unwrap_or_else(|what| Err(Error::Panicked { pid, what }.into()))
}

/// Returns the result of `work`.
///
/// # Errors
/// If it panics: the message and the place of the panic.
pub fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let was_here = IS_HERE.replace(true);
    CALLS.fetch_add(1, Ordering::Relaxed);
    let result = catch_unwind(AssertUnwindSafe(work));
    CALLS.fetch_sub(1, Ordering::Relaxed);
    IS_HERE.set(was_here);
    result.map_err(|_| {
        let latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner).take();
        latest.unwrap_or_default()
    })
}

/// Panics for the tests of rbloat, which name a process, or another place, by a variable.
pub fn panic_if_requested(at: &str) {
    if cfg!(debug_assertions) && std::env::var("RBLOAT_TEST_PANIC").as_deref() == Ok(at) {
        panic!("process {at} \u{1b}[2J");
    }
}

/// Lets a panic within [`without_panic`] print nothing. `print` gets the others, with their messages.
pub fn set_panic_hook(print: impl Fn(&PanicHookInfo<'_>, &str) + Send + Sync + 'static) {
    set_hook(Box::new(move |panic| {
        // Only the threads that an examination starts have no name, so their panics are part of it.
        let has_name = std::thread::current().name().is_some();
        if IS_HERE.get() || (CALLS.load(Ordering::Relaxed) > 0 && !has_name) {
            let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
            *latest = Some(described(panic));
        } else {
            print(panic, &described(panic));
        }
    }));
}

/// Returns the message and the place of a panic.
fn described(panic: &PanicHookInfo<'_>) -> String {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let message = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("panic");
    panic.location().map_or_else(|| message.into(), |place| format!("{message} ({place})"))
}

/// Returns the message of a failure that is a defect of rbloat.
#[must_use]
pub fn defect(what: impl Display) -> String {
    format!("this is a defect of rbloat, please report it: {what}")
}
