use std::time::{Duration, Instant};

use capture::{Called, Refusal};
use ledger::{Cause, Causes, Ledger, Size, percent};
use report::{CauseRow, Expectation, Outcome as TrimOutcome, Sample, TrimReport, Watch};

use crate::allocator_call::AllocatorCall;
use crate::arguments::{CaptureArguments, TrimArguments};
use crate::attempts::{self, Captured};
use crate::failure::{Failure, Outcome};
use crate::source::progress;

/// How long we wait for a thread that may be made to call a function.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the function may take before we say so; it goes on by itself then.
const CALL: Duration = Duration::from_secs(60);
/// Between two looks at RSS after a trim.
const SAMPLING: Duration = Duration::from_millis(500);

pub(crate) fn run(arguments: &TrimArguments) -> Result<Outcome, Failure> {
    let pid = crate::process::find(arguments.process.name())?;
    let say = |text: &str| if arguments.json { Ok(()) } else { crate::print(text) };
    let call = AllocatorCall::find(pid)?;
    let progress = progress(pid);
    let how = arguments.capture;
    let (mut report, ledger) = expect(pid, &call, how)?;
    progress.finish_and_clear();
    say(&report.render_expected())?;
    if !arguments.dry_run {
        report.outcome = Some(do_it(pid, &call)?);
        say(&report.render_outcome())?;
    }
    // What was done is told whatever becomes of the watch.
    let watched = match arguments.watch {
        Some(length) => watch(pid, how, length, &ledger, &report).and_then(|watch| {
            report.watch = Some(watch);
            Ok(say(&report.render_watch())?)
        }),
        None => Ok(()),
    };
    if arguments.json {
        crate::print(&report.render_json())?;
    }
    watched.map(|()| Outcome::Done)
}

/// What is expected of the call: of glibc's by its heap as it stands, of another's by trying it on a clone.
fn expect(
    pid: i32,
    call: &AllocatorCall,
    how: CaptureArguments,
) -> Result<(TrimReport, Ledger), Failure> {
    let captured = attempts::take_and_try(pid, how, false, Some(call))?;
    let Captured { facts, state, tried_bytes, unread, .. } = captured;
    if let Some(reason) = unread {
        return Err(Failure::Unread { pid, reason });
    }
    let ledger = Ledger::draw_up(&state, &facts);
    let expected = match &ledger.malloc {
        Some(malloc) => Expectation {
            rss_bytes: ledger.rss_bytes,
            returned_bytes: Some(malloc.trim_yield_bytes),
            deferred_bytes: malloc.trim_deferred_bytes,
        },
        None => Expectation {
            rss_bytes: ledger.rss_bytes,
            returned_bytes: tried_bytes,
            deferred_bytes: 0,
        },
    };
    let allocator = ledger.allocator.to_string();
    Ok((TrimReport::new(&ledger.process, allocator, call.shown.into(), expected), ledger))
}

fn do_it(pid: i32, call: &AllocatorCall) -> Result<TrimOutcome, Failure> {
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

/// Watches RSS for `length` after a trim, then looks at what came back.
fn watch(
    pid: i32,
    how: CaptureArguments,
    length: Duration,
    before: &Ledger,
    report: &TrimReport,
) -> Result<Watch, Failure> {
    let started = Instant::now();
    let mut samples = Vec::new();
    loop {
        let seconds = started.elapsed().as_secs_f64();
        samples.push(Sample { seconds, rss_bytes: capture::rss_bytes(pid)? });
        let left = length.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(SAMPLING.min(left));
    }
    let Captured { facts, state, unread, .. } = attempts::take(pid, how, false)?;
    if let Some(reason) = unread {
        return Err(Failure::Unread { pid, reason });
    }
    let after = Ledger::draw_up(&state, &facts);
    let (low, now) = (samples.iter().map(|sample| sample.rss_bytes).min(), after.rss_bytes);
    let came_back_bytes = now.saturating_sub(low.unwrap_or(now));
    let gained = report
        .outcome
        .as_ref()
        .map_or(0, |outcome| outcome.rss_bytes_before.saturating_sub(outcome.rss_bytes_after));
    let grown = grown(&before.causes, &after.causes);
    let seconds = length.as_secs_f64();
    let conclusion = conclude(came_back_bytes, gained, seconds, &after);
    let came_back_as = grown;
    Ok(Watch { samples, came_back_bytes, came_back_as, conclusion })
}

/// The causes as they are now beside what a trim would have left of them.
fn grown(before: &Causes, after: &Causes) -> Vec<CauseRow> {
    let grown_by = |cause: Cause| match cause {
        // The trim took all of it.
        Cause::MallocUnreturned => after[cause],
        _ => after[cause].saturating_sub(before[cause]),
    };
    let rows = Cause::ALL.iter().map(|&cause| (cause, grown_by(cause)));
    let mut rows: Vec<CauseRow> = rows
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(cause, bytes)| CauseRow { cause: cause.name().into(), bytes })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

/// What the watch says: whether the trim lasts and, where it does not, what the pages that came back are by
/// now and what follows from that.
fn conclude(came_back: u64, gained: u64, seconds: f64, after: &Ledger) -> String {
    let share = percent(came_back, gained);
    let rate = Size((came_back as f64 / seconds.max(0.001)) as u64);
    let first = format!(
        "{} of {} came back in {seconds:.0} s ({share:.0} %, {rate}/s)",
        Size(came_back),
        Size(gained)
    );
    if share < 10.0 {
        return format!("{first}: the trim lasts so far");
    }
    let free = after.sum(&[Cause::MallocUnreturned]);
    let pinned = after.sum(&[Cause::MallocFragmented, Cause::MallocTop, Cause::MallocCached]);
    let arenas = after.malloc.as_ref().map_or(0, |malloc| malloc.arenas.len());
    let now = format!(
        "of what it has now, {} are free again as whole pages and {} are free but pinned, in {arenas} arenas",
        Size(free),
        Size(pinned)
    );
    let then = if percent(free, came_back) >= 50.0 {
        "a burst came and went: a trim helps for as long as it takes to the next; an allocator that gives \
         pages back by itself (jemalloc), or a trim after each burst, keeps doing it"
    } else if percent(pinned, came_back) >= 50.0 && arenas > 2 {
        "it is spread thin over many arenas: fewer of them (MALLOC_ARENA_MAX=2, a restart) is what to try, \
         measured by the same watch"
    } else {
        "most of it is in use: the program needs this memory, and no allocator changes that"
    };
    format!("{first}: {now}; {then}")
}
