//! How many workers fit into a memory limit.
//!
//! The model is fitted to the workers of recordings: their levels and what they have above it at single moments ([`model`]). Each
//! assumption is in docs/design/027-fit.md. If a recording does not support them, the result is a doubt and no number.

mod model;
mod recorded;

use formats::{
    Confidence, Fit, FitBasis, FitDoubt, FitModel, FitNow, FitRemedy, FitRow, FitThreads,
};
use std::collections::BTreeMap;

use crate::{Early, Shape, StablePoint};

use model::Model;
pub use recorded::RecordedWorkers;
use recorded::{RecordedWorker, quantile_or_zero};

/// Workers fit if they stay below the limit with this probability.
const PROBABILITY: f64 = 0.99;
/// The deviation of workers from each other, as a share of their mean, beyond which each is taken to become as large as the largest.
const MAX_SPREAD: f64 = 0.15;
/// A worker is nearly as large as the largest from this share of it on.
const NEARLY: f64 = 0.7;
/// A worker that used a lower share of a processor had no load.
const MIN_LOAD: f64 = 0.005;
/// Workers with loads further apart than this do not have the same one.
const MAX_LOAD_RATIO: f64 = 2.0;
/// The least samples with private memory.
const MIN_EXACT_SAMPLES: usize = 10;
/// The least steady time of a worker, and its share of the time that the worker was recorded for.
const MIN_STEADY_SECONDS: f64 = MIN_LATER_SECONDS;
const MIN_STEADY_SHARE: f64 = 0.4;
/// The last part of a series, as a share, in which memory that goes up and down may have a level; the least length of a steady part; and
/// the most that its mean, and its peak, may rise from the first half to the second.
const LATER: f64 = 0.6;
/// The last part of a series that shows how large a worker is now.
const LATELY: f64 = 0.2;
const MIN_LATER_SECONDS: f64 = 240.0;
const MAX_DRIFT: f64 = 0.05;
const MAX_RISE_OF_PEAK: f64 = 0.1;
/// The least lives from start to end that show how large replaced workers become.
const MIN_LIVES: usize = 8;
/// The least recording to ask for.
const MIN_RECORD_SECONDS: f64 = 600.0;
/// The most workers that are tried.
const MAX_WORKERS: u64 = 64;
/// Without a limit, the rows for this many times the recorded workers.
const ROWS: u64 = 3;
/// The kernel's memory for processes (page tables, stacks, buffers) as a share of theirs, if the recording does not show it. The control
/// group of docs/family.md has 1.3 %.
const KERNEL_SHARE: f64 = 0.02;
/// Memory of a control group beyond this share of the family's is that of other programs.
const MAX_KERNEL_SHARE: f64 = 0.05;
/// The arenas of MALLOC_ARENA_MAX=2. A process with fewer threads has no more.
const FEW_ARENAS: u64 = 2;
/// The servers that may load the code before they fork workers, or in each worker.
const PRELOADING: [&str; 2] = ["puma", "unicorn"];
/// Remedies for less than this share of a worker's memory are left out.
const MIN_REMEDY: f64 = 0.05;

/// Returns the number of workers that fit for a time into `limit_bytes`, or else into the limit of the control group.
///
/// Workers with different numbers of threads are no sample of the same. The answer is that of the largest number.
#[must_use]
pub fn fit(recordings: &[RecordedWorkers], limit_bytes: Option<u64>, for_seconds: f64) -> Fit {
    let mut by_threads: BTreeMap<u64, Vec<&RecordedWorkers>> = BTreeMap::new();
    for recording in recordings {
        by_threads.entry(recording.threads()).or_default().push(recording);
    }
    let are_alike = recordings.windows(2).all(|pair| pair[0].role == pair[1].role);
    match by_threads.pop_last() {
        Some((_, most)) if are_alike => {
            let mut fit = fit_alike(&most, limit_bytes, for_seconds);
            let fewer = by_threads.into_iter().map(|(threads, recordings)| {
                let fit = fit_alike(&recordings, limit_bytes, for_seconds);
                FitThreads {
                    threads,
                    workers: fit.workers,
                    doubt: fit.doubt,
                    worker_bytes: fit.model.map(|it| it.worker_bytes),
                    max_workers: fit.max_workers,
                    safe_limit_bytes: fit.safe_limit_bytes,
                }
            });
            fit.with_fewer_threads = fewer.collect();
            fit
        }
        _ => fit_alike(&recordings.iter().collect::<Vec<_>>(), limit_bytes, for_seconds),
    }
}

/// The same for workers with the same number of threads.
fn fit_alike(recordings: &[&RecordedWorkers], limit_bytes: Option<u64>, for_seconds: f64) -> Fit {
    let first = recordings.first();
    let workers: Vec<&RecordedWorker> = recordings.iter().flat_map(|it| &it.workers).collect();
    let of_group = recordings.iter().filter_map(|it| it.limit_bytes).min();
    let mut fit = Fit {
        role: first.map_or_else(String::new, |it| it.role.clone()),
        workers: recordings.iter().map(|it| it.most as u64).max().unwrap_or(0),
        threads: workers.iter().map(|it| it.threads).max().unwrap_or(0),
        thread_stack_bytes: thread_stack_bytes(&workers),
        steady_seconds: 0.0,
        limit_bytes: limit_bytes.or(of_group),
        for_seconds,
        probability: PROBABILITY,
        doubt: None,
        record_seconds: None,
        now: None,
        model: None,
        rows: Vec::new(),
        max_workers: None,
        safe_limit_bytes: None,
        remedies: Vec::new(),
        with_fewer_threads: Vec::new(),
    };
    match evidence(recordings, &workers) {
        Ok(evidence) => {
            let fixed = recordings.iter().map(|it| it.fixed_bytes()).fold(0.0, f64::max);
            let Evidence { levels, above, every, drift, .. } = &evidence;
            let moments = for_seconds / every.max(1e-3);
            let model = Model::new(fixed, levels, above, moments, *drift);
            fit.steady_seconds = evidence.seconds;
            add_model(&mut fit, recordings, &model, evidence.basis, limit_bytes.is_none());
            add_remedies(&mut fit, &workers, model.level, fixed);
        }
        Err(doubt) => {
            fit.doubt = Some(doubt);
            fit.now = recordings.last().and_then(|it| now(it, fit.limit_bytes));
            fit.record_seconds = record_seconds(doubt, recordings);
            if doubt == FitDoubt::Growing {
                fit.remedies.extend(replacement(&fit, recordings));
            }
        }
    }
    fit
}

/// The figures of workers for a model.
struct Evidence {
    basis: FitBasis,
    levels: Vec<f64>,
    /// The memory above them at moments that are `every` seconds apart.
    above: Vec<f64>,
    every: f64,
    /// The change of the level while it was stable.
    drift: f64,
    seconds: f64,
}

/// Returns the evidence of recordings, or the reason why there is none.
fn evidence(
    recordings: &[&RecordedWorkers],
    workers: &[&RecordedWorker],
) -> Result<Evidence, FitDoubt> {
    let Some(first) = recordings.first() else { return Err(FitDoubt::NoWorkers) };
    if recordings.iter().any(|it| it.workers.is_empty()) {
        let has_samples = recordings.iter().all(|it| it.has_private);
        return Err(if has_samples { FitDoubt::NoWorkers } else { FitDoubt::NoPrivateMemory });
    }
    if recordings.iter().any(|it| it.role != first.role) {
        return Err(FitDoubt::UnlikeRecordings);
    }
    if recordings.iter().any(|it| it.kills > 0) {
        return Err(FitDoubt::Killed);
    }
    if recordings.iter().any(|it| it.is_swapped) {
        return Err(FitDoubt::Swapped);
    }
    if workers.iter().any(|it| it.is_replaced) {
        return of_lives(recordings, workers).ok_or(FitDoubt::Replaced);
    }
    if workers.len() < 2 {
        return Err(FitDoubt::OneWorker);
    }
    if workers.iter().any(|it| it.exact_samples < MIN_EXACT_SAMPLES) {
        let is_look = recordings.iter().all(|it| it.seconds <= 0.0 && it.has_private);
        return Err(if is_look { FitDoubt::OneLook } else { FitDoubt::NoPrivateMemory });
    }
    if workers.iter().all(|it| it.load() < MIN_LOAD) {
        return Err(FitDoubt::NoLoad);
    }
    let lately: Vec<f64> = workers.iter().map(|it| it.level(later(&it.private, LATELY))).collect();
    if !differ(&lately) && !have_unlike_loads(workers) {
        let settled = recordings.iter().map(|it| settle(&it.mean()));
        let settled = settled.collect::<Result<Vec<_>, _>>()?;
        let each = recordings.iter().zip(settled);
        let each = each.flat_map(|(it, settled)| it.workers.iter().map(move |it| (it, settled)));
        return Ok(of_workers(FitBasis::Mean, &each.collect::<Vec<_>>()));
    }
    // The others may still become as large as the largest, but it must not grow. One that is nearly as large shows if it does.
    let largest = lately.iter().copied().fold(0.0, f64::max);
    let mut found = None;
    for (worker, level) in workers.iter().zip(&lately).filter(|it| *it.1 >= NEARLY * largest) {
        let settled = settle(&worker.private)?;
        if *level >= largest {
            found = Some((*worker, settled));
        }
    }
    let found: Vec<_> = found.into_iter().collect();
    Ok(of_workers(FitBasis::Largest, &found))
}

/// The time since which memory is stable, and its change since.
#[derive(Clone, Copy)]
struct Settled {
    from: f64,
    drift: f64,
}

/// Returns the time since which a series is stable, or a doubt.
///
/// A series with a few steps up and down has no stable point yet, but a level: if the mean and the peak of its last part do not rise
/// from the first half of that part to the second one.
fn settle(series: &[(f64, f64)]) -> Result<Settled, FitDoubt> {
    let point = StablePoint::of(series);
    let Some((first, last)) = series.first().zip(series.last()) else {
        return Err(FitDoubt::Unsettled);
    };
    let seconds = point.to_seconds - point.from_seconds;
    let is_long = seconds >= MIN_STEADY_SECONDS.max(MIN_STEADY_SHARE * (last.0 - first.0));
    let from = match point.shape {
        Shape::Growth { .. } | Shape::TooEarly { why: Early::Slowing { .. } } => {
            return Err(FitDoubt::Growing);
        }
        Shape::Plateau { .. } | Shape::SawTooth { .. }
            if is_long && point.confidence != Confidence::Low =>
        {
            point.from_seconds
        }
        _ => later(series, LATER),
    };
    let middle = f64::midpoint(from, last.0);
    let half = |is_first: bool| {
        let values = series.iter().filter(move |it| it.0 >= from && (it.0 < middle) == is_first);
        values.map(|it| it.1)
    };
    let mean = |is_first: bool| half(is_first).sum::<f64>() / half(is_first).count().max(1) as f64;
    let peak = |is_first: bool| half(is_first).fold(0.0, f64::max);
    let drift = mean(false) - mean(true);
    let has_risen =
        drift > MAX_DRIFT * mean(true) || peak(false) > (1.0 + MAX_RISE_OF_PEAK) * peak(true);
    if has_risen || last.0 - from < MIN_LATER_SECONDS {
        return Err(FitDoubt::Unsettled);
    }
    Ok(Settled { from, drift })
}

/// The beginning of the last part of a series.
fn later(series: &[(f64, f64)], share: f64) -> f64 {
    let begin = series.first().map_or(0.0, |it| it.0);
    let end = series.last().map_or(0.0, |it| it.0);
    begin + (end - begin) * (1.0 - share)
}

fn differ(levels: &[f64]) -> bool {
    let mean = levels.iter().sum::<f64>() / levels.len() as f64;
    let squares: f64 = levels.iter().map(|it| (it - mean).powi(2)).sum();
    (squares / (levels.len() - 1) as f64).sqrt() > MAX_SPREAD * mean
}

fn have_unlike_loads(workers: &[&RecordedWorker]) -> bool {
    let loads = || workers.iter().map(|it| it.load());
    loads().fold(0.0, f64::max) > MAX_LOAD_RATIO * loads().fold(f64::INFINITY, f64::min)
}

/// Returns the evidence of workers that are stable.
fn of_workers(basis: FitBasis, workers: &[(&RecordedWorker, Settled)]) -> Evidence {
    let levels: Vec<f64> = workers.iter().map(|(it, settled)| it.level(settled.from)).collect();
    let (mut above, mut moments) = (Vec::new(), 0);
    for ((worker, settled), level) in workers.iter().zip(&levels) {
        let steady = worker.private.iter().filter(|it| it.0 >= settled.from);
        above.extend(steady.map(|it| it.1 - level));
        moments = above.len();
    }
    // Peaks between two samples, or before the recording.
    above.extend(workers.iter().zip(&levels).map(|((it, _), level)| it.peak_bytes - level));
    let seconds = |(it, settled): &(&RecordedWorker, Settled)| it.until() - settled.from;
    let every = workers.iter().map(seconds).sum::<f64>() / moments.max(1) as f64;
    let drift = workers.iter().map(|it| it.1.drift.abs()).fold(0.0, f64::max);
    let seconds = workers.iter().map(seconds).fold(f64::INFINITY, f64::min);
    Evidence { basis, levels, above, every, drift, seconds }
}

/// Returns the evidence of workers that are replaced, if there are enough.
fn of_lives(recordings: &[&RecordedWorkers], workers: &[&RecordedWorker]) -> Option<Evidence> {
    let lives = workers.iter().filter(|it| it.is_life());
    let levels: Vec<f64> = lives.map(|it| it.peak_bytes).collect();
    let seconds = recordings.iter().map(|it| it.seconds).fold(f64::INFINITY, f64::min);
    (levels.len() >= MIN_LIVES).then_some(Evidence {
        basis: FitBasis::Lives,
        levels,
        above: Vec::new(),
        every: f64::INFINITY,
        drift: 0.0,
        seconds,
    })
}

/// Adds the model, and the memory of each number of workers.
fn add_model(
    fit: &mut Fit,
    recordings: &[&RecordedWorkers],
    model: &Model,
    basis: FitBasis,
    is_limit_of_group: bool,
) {
    let mut model = model.clone();
    let beyond: Vec<f64> = recordings.iter().flat_map(|it| it.beyond.iter().copied()).collect();
    let is_known = !beyond.is_empty();
    let beyond = quantile_or_zero(beyond.into_iter(), 0.5);
    let family = model.fixed + model.level * fit.workers as f64;
    let is_of_kernel = is_known && (0.0..=MAX_KERNEL_SHARE * family).contains(&beyond);
    let seen = if is_of_kernel { beyond / family } else { 0.0 };
    model.kernel_share = seen.max(KERNEL_SHARE);
    // Other programs of the group use up a part of its limit.
    let others = if is_limit_of_group && !is_of_kernel { beyond.max(0.0) } else { 0.0 };
    model.fixed += others / (1.0 + model.kernel_share);
    let rows = fit.workers.max(1) * ROWS;
    for (workers, number) in model.workers().zip(1..=MAX_WORKERS) {
        let probability = fit.limit_bytes.map(|limit| workers.probability(limit as f64));
        fit.rows.push(FitRow {
            workers: number,
            expected_bytes: model.expected(number as f64) as u64,
            safe_limit_bytes: workers.limit(PROBABILITY) as u64,
            probability,
        });
        let is_enough = probability.is_none_or(|it| it < 1.0 - PROBABILITY);
        if number > fit.workers && is_enough && (number >= rows || probability.is_some()) {
            break;
        }
    }
    let fitting = |row: &&FitRow| row.probability.is_some_and(|it| it >= PROBABILITY);
    fit.max_workers = fit.limit_bytes.map(|_| fit.rows.iter().take_while(fitting).count() as u64);
    fit.safe_limit_bytes = fit.rows.get(fit.workers as usize - 1).map(|row| row.safe_limit_bytes);
    fit.model = Some(FitModel {
        fixed_bytes: (model.fixed - others / (1.0 + model.kernel_share)) as u64,
        worker_bytes: model.level as u64,
        basis,
        spread_bytes: model.spread as u64,
        peak_bytes: model.most() as u64,
        kernel_share: model.kernel_share,
        other_bytes: others as u64,
    });
}

/// Returns the mean of the stacks of a thread.
fn thread_stack_bytes(workers: &[&RecordedWorker]) -> Option<u64> {
    let captured = || workers.iter().filter(|it| it.stack_bytes.is_some());
    let stacks: u64 = captured().filter_map(|it| it.stack_bytes).fold(0, u64::saturating_add);
    stacks.checked_div(captured().map(|it| it.threads).sum())
}

/// Adds the changes whose effect the recording shows.
fn add_remedies(fit: &mut Fit, workers: &[&RecordedWorker], level: f64, fixed: f64) {
    let mean = |of: &dyn Fn(&RecordedWorker) -> f64| {
        workers.iter().map(|it| of(it)).sum::<f64>() / workers.len() as f64
    };
    let (code, files) = (mean(&|it| it.code_bytes as f64), mean(&|it| it.file_bytes as f64));
    let shared = mean(&|it| it.shared[0].max(it.shared[1]));
    // A server that has loaded the code has all of it, however much of that its workers have copied.
    let is_own = shared - files < code / 2.0 && fixed < code + files;
    let may_share = PRELOADING.iter().any(|it| fit.role.starts_with(it));
    if may_share && is_own && code > MIN_REMEDY * level {
        fit.remedies.push(FitRemedy::Preload { code_bytes_per_worker: code as u64 });
    }
    let copied = mean(&|it| (it.shared[0] - it.shared[1]).max(0.0));
    if copied > MIN_REMEDY * level {
        fit.remedies.push(FitRemedy::KeepSharing { max_bytes_per_worker: copied as u64 });
    }
    let trimmed = mean(&|it| it.trim_yield_bytes.unwrap_or(0) as f64);
    if trimmed > MIN_REMEDY * level {
        fit.remedies.push(FitRemedy::Trim { max_bytes_per_worker: trimmed as u64 });
    }
    let free = mean(&|it| it.free_bytes.unwrap_or(0) as f64);
    if free > MIN_REMEDY * level && workers.iter().any(|it| it.threads > FEW_ARENAS) {
        fit.remedies.push(FitRemedy::FewerArenas { max_bytes_per_worker: free as u64 });
    }
}

/// Returns the age at which growing workers must be replaced, so that today's number of them stays below the limit.
fn replacement(fit: &Fit, recordings: &[&RecordedWorkers]) -> Option<FitRemedy> {
    let [recording] = recordings else { return None };
    let series = recording.mean();
    let point = StablePoint::of(&series);
    let Shape::Growth { slope, .. } = point.shape else { return None };
    // The end of a warm-up seems to grow, too.
    if point.confidence != Confidence::High {
        return None;
    }
    // The memory after the warm-up, and the length of that.
    let steady = series.iter().filter(|it| it.0 >= point.from_seconds);
    let bytes = quantile_or_zero(steady.take(MIN_EXACT_SAMPLES).map(|it| it.1), 0.5);
    let seconds = point.from_seconds - series.first()?.0;
    let limit = fit.limit_bytes? as f64 / (1.0 + KERNEL_SHARE);
    let room = (limit - recording.fixed_bytes()) / fit.workers as f64 - bytes;
    let bytes_per_second = slope.high;
    let after_seconds = seconds + room / bytes_per_second;
    (after_seconds > 0.0 && after_seconds.is_finite())
        .then_some(FitRemedy::Replace { bytes_per_second, after_seconds })
}

/// Returns what the workers have at the end of a recording.
fn now(recording: &RecordedWorkers, limit_bytes: Option<u64>) -> Option<FitNow> {
    let (fixed_bytes, workers) = recording.latest.as_ref()?;
    let all: u64 = workers.iter().sum();
    let above_limit = |limit: u64| {
        // The first number with more than the limit.
        let room = limit.saturating_sub(*fixed_bytes);
        let fitting = u128::from(room) * workers.len() as u128 / u128::from(all.max(1));
        u64::try_from(fitting).unwrap_or(u64::MAX).saturating_add(1)
    };
    Some(FitNow {
        workers: workers.len() as u64,
        fixed_bytes: *fixed_bytes,
        least_bytes: *workers.iter().min()?,
        most_bytes: *workers.iter().max()?,
        above_limit: limit_bytes.map(above_limit),
    })
}

/// Returns the length of a recording that may be enough.
fn record_seconds(doubt: FitDoubt, recordings: &[&RecordedWorkers]) -> Option<f64> {
    let longest = recordings.iter().map(|it| it.seconds).fold(0.0, f64::max);
    match doubt {
        FitDoubt::Growing | FitDoubt::Unsettled | FitDoubt::NoLoad | FitDoubt::Replaced => {
            Some(MIN_RECORD_SECONDS.max(2.0 * longest))
        }
        FitDoubt::OneWorker
        | FitDoubt::OneLook
        | FitDoubt::NoPrivateMemory
        | FitDoubt::Killed
        | FitDoubt::Swapped => Some(MIN_RECORD_SECONDS.max(longest)),
        FitDoubt::NoWorkers | FitDoubt::UnlikeRecordings => None,
    }
}

#[cfg(test)]
mod tests;
