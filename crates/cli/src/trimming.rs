//! The call by which an allocator returns memory, in a live process.

use std::time::{Duration, Instant};

use capture::proc::rss_bytes;
use formats::TrimOutcome;
use inferior::{CallOutcome, Refusal};

use crate::allocator_call::AllocatorCall;
use crate::failure::Failure;

/// The longest wait for a thread that can make the call.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait for the end of the call. It continues by itself afterwards.
const CALL: Duration = Duration::from_secs(60);

/// Makes `call` in process `pid`.
pub(crate) fn trim(pid: i32, call: &AllocatorCall) -> Result<TrimOutcome, Failure> {
    let before = rss_bytes(pid)?;
    let started = Instant::now();
    let called = inferior::call(pid, ruby::WAKEUP_SIGNAL, call.function_call(), PATIENCE, CALL)
        .map_err(|refusal| refused(pid, refusal))?;
    let (time, returned) = match called {
        CallOutcome::Returned(time) => (time, true),
        CallOutcome::StillRunning => (started.elapsed(), false),
    };
    Ok(TrimOutcome::new(before, rss_bytes(pid)?, time, returned))
}

fn refused(pid: i32, refusal: Refusal) -> Failure {
    let hint = match refusal {
        Refusal::NoSafePoint | Refusal::Lost => "; try again, or when it has less to do",
        Refusal::NoHandler { .. } => ", which every CRuby installs when it starts",
        _ => "",
    };
    Failure::CallRefused { pid, purpose: "trim", refusal, hint }
}
