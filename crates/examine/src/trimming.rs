//! The call by which an allocator returns memory, in a live process, and its prediction.

use std::time::{Duration, Instant};

use formats::{TrimOutcome, TrimReport};
use image::{ProcessState, Target};
use inferior::CallOutcome;
use ledger::{Facts, Ledger};
use linux::proc::rss_bytes;

use crate::allocator_call::AllocatorCall;
use crate::attempts::{self, Captured};
use crate::error::{Error, Purpose};
use crate::exclusion::one_at_a_time;
use crate::options::CaptureOptions;
use crate::options::Detail;
use crate::process::open_target;
use crate::sandbox::Sandbox;

/// The longest wait for a thread that can make the call.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait for the end of the call. It continues by itself afterwards.
const CALL: Duration = Duration::from_secs(60);

/// Predicts the effect of the call: from the heap, or by a call in a forked copy if that cannot be read.
///
/// # Errors
/// If it cannot be captured.
pub fn predict(
    target: &Target,
    call: &AllocatorCall,
    how: CaptureOptions,
) -> Result<(TrimReport, Ledger), Error> {
    predict_and(target, call, how, |_, _| ()).map(|(report, ledger, ())| (report, ledger))
}

/// Like [`predict`]. Also returns what `account` makes of the capture.
///
/// # Errors
/// As [`predict`].
pub(crate) fn predict_and<T: Send>(
    target: &Target,
    call: &AllocatorCall,
    how: CaptureOptions,
    account: impl FnOnce(&ProcessState, &Facts) -> T + Send,
) -> Result<(TrimReport, Ledger, T), Error> {
    let captured = attempts::take_and_try(target, how, Detail::CAUSES, Some(call))?;
    captured.check_read(target.pid())?;
    let Captured { facts, state, tried_bytes, .. } = captured;
    let (ledger, expected, account) = Sandbox::of_analyses(how.sandbox).run(|| {
        let ledger = Ledger::draw_up(&state, &facts);
        let expected = diagnosis::trim_expectation(&ledger, tried_bytes);
        (ledger, expected, account(&state, &facts))
    });
    let allocator = ledger.allocator.to_string();
    let report = TrimReport::new(&ledger.process, allocator, call.shown.into(), expected);
    Ok((report, ledger, account))
}

/// Accounts for the causes of a process's memory.
///
/// # Errors
/// Also if its memory could not be read in time.
pub fn causes_of(pid: i32, how: CaptureOptions) -> Result<Ledger, Error> {
    let captured = attempts::take(&open_target(pid)?, how, Detail::CAUSES)?;
    captured.check_read(pid)?;
    let Captured { facts, state, .. } = captured;
    Ok(Sandbox::of_analyses(how.sandbox).run(|| Ledger::draw_up(&state, &facts)))
}

/// Makes `call` in its process.
///
/// # Errors
/// If it cannot be made.
pub fn trim(call: &AllocatorCall) -> Result<TrimOutcome, Error> {
    let (_alone, pid) = (one_at_a_time(), call.program.pid());
    let before = rss_bytes(pid)?;
    let started = Instant::now();
    let function = call.function_call();
    let called = inferior::call(&call.program, ruby::WAKEUP_SIGNAL, function, PATIENCE, CALL)
        .map_err(|refusal| Error::CallRefused { pid, purpose: Purpose::Trim, refusal })?;
    let (time, returned) = match called {
        CallOutcome::Returned(time) => (time, true),
        CallOutcome::StillRunning => (started.elapsed(), false),
    };
    Ok(TrimOutcome::new(before, rss_bytes(pid)?, time, returned))
}
