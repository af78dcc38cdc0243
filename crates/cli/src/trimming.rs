//! The call by which an allocator returns memory, in a live process, and its prediction.

use std::time::{Duration, Instant};

use formats::{TrimOutcome, TrimReport};
use image::{ProcessState, Target};
use inferior::{CallOutcome, Refusal};
use ledger::{Facts, Ledger};
use linux::proc::rss_bytes;

use crate::allocator_call::AllocatorCall;
use crate::arguments::CaptureArguments;
use crate::attempts::{self, Captured};
use crate::failure::Failure;
use crate::sandbox::Sandbox;
use crate::source::Detail;

/// The longest wait for a thread that can make the call.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait for the end of the call. It continues by itself afterwards.
const CALL: Duration = Duration::from_secs(60);

/// Predicts the effect of the call: for glibc from its heap, for another allocator by a call in a forked copy.
pub(crate) fn predict(
    target: &Target,
    call: &AllocatorCall,
    how: CaptureArguments,
) -> Result<(TrimReport, Ledger), Failure> {
    predict_and(target, call, how, |_, _| ()).map(|(report, ledger, ())| (report, ledger))
}

/// Like [`predict`]. Also returns what `account` makes of the capture.
pub(crate) fn predict_and<T: Send>(
    target: &Target,
    call: &AllocatorCall,
    how: CaptureArguments,
    account: impl FnOnce(&ProcessState, &Facts) -> T + Send,
) -> Result<(TrimReport, Ledger, T), Failure> {
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

/// Makes `call` in process `pid`.
pub(crate) fn trim(pid: i32, call: &AllocatorCall) -> Result<TrimOutcome, Failure> {
    let _alone = attempts::one_at_a_time();
    let before = rss_bytes(pid)?;
    let started = Instant::now();
    let function = call.function_call();
    let called = inferior::call(&call.program, ruby::WAKEUP_SIGNAL, function, PATIENCE, CALL)
        .map_err(|refusal| refused(pid, refusal))?;
    let (time, returned) = match called {
        CallOutcome::Returned(time) => (time, true),
        CallOutcome::StillRunning => (started.elapsed(), false),
    };
    Ok(TrimOutcome::new(before, rss_bytes(pid)?, time, returned))
}

fn refused(pid: i32, refusal: Refusal) -> Failure {
    let hint = match refusal {
        _ if refusal.is_transient() => "; try again, or when it has less to do",
        Refusal::NoHandler { .. } => ", which every CRuby installs when it starts",
        _ => "",
    };
    Failure::CallRefused { pid, purpose: "trim", refusal, hint }
}
