//! The call by which an allocator returns memory, in a live process.

use std::time::{Duration, Instant};

use capture::{Called, Refusal};
use formats::TrimOutcome;

use crate::allocator_call::AllocatorCall;
use crate::failure::Failure;

/// The longest wait for a thread that can make the call.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait for the end of the call. It continues by itself afterwards.
const CALL: Duration = Duration::from_secs(60);

/// Makes `call` in process `pid`.
pub(crate) fn trim(pid: i32, call: &AllocatorCall) -> Result<TrimOutcome, Failure> {
    let before = capture::rss_bytes(pid)?;
    let started = Instant::now();
    let called = capture::call(pid, call.function, call.arguments, PATIENCE, CALL)
        .map_err(|refusal| refused(pid, refusal))?;
    let (time, returned) = match called {
        Called::Returned(time) => (time, true),
        Called::StillRuns => (started.elapsed(), false),
    };
    Ok(TrimOutcome::new(before, capture::rss_bytes(pid)?, time, returned))
}

fn refused(pid: i32, refusal: Refusal) -> Failure {
    let instead = match refusal {
        Refusal::NoSafePoint | Refusal::Lost => "; try again, or when it has less to do",
        _ => "",
    };
    Failure::NotTouched { pid, what: "trim", refusal, instead }
}
