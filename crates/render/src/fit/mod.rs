//! The number of workers that fit into a limit, as text.

mod chart;

use std::fmt::Write;

use formats::{Fit, FitBasis, FitDoubt, FitModel, FitNow, FitRemedy, FitRow, FitThreads};
use ledger::Size;

use crate::fix::{Block, write_block};
use crate::rows::{Heads, Row, write_rows};
use crate::text::{BOLD, DIM, YELLOW, mebibytes, write_paragraph, write_wrapped};
use crate::words::counted;

pub use chart::{fit_html, fit_png, fit_svg};

/// Probabilities closer to 0 or 1 are not told from them.
const CERTAIN: f64 = 0.005;
/// Rows of the table around the number of workers that fit.
const ROWS_AFTER: u64 = 3;
const MAX_ROWS: usize = 16;

/// The roles of workers as they begin, the place of the number of workers, and its line with # for the number.
const SERVERS: [(&str, &str, &str); 5] = [
    ("puma", "In config/puma.rb:", "workers #"),
    ("unicorn", "In config/unicorn.rb:", "worker_processes #"),
    ("pitchfork", "In config/pitchfork.conf.rb:", "worker_processes #"),
    ("sidekiq", "In the environment of sidekiqswarm:", "SIDEKIQ_COUNT=#"),
    ("passenger", "In the configuration of nginx:", "passenger_max_pool_size #;"),
];

/// Returns the workers that fit into a limit as text, for a terminal of `width` columns.
///
/// # Panics
/// Never: a string takes all text.
#[must_use]
pub fn fit(fit: &Fit, width: usize) -> String {
    let mut text = String::new();
    write(fit, &mut text, width).expect("a string takes all text");
    text
}

/// Returns the result in one sentence.
#[must_use]
pub fn fit_summary(fit: &Fit) -> String {
    if let Some(doubt) = fit.doubt {
        return format!("Cannot tell yet: {}", reason(doubt, fit));
    }
    let safe = |row: &FitRow| Size(row.safe_limit_bytes);
    let (Some(limit), Some(max)) = (fit.limit_bytes, fit.max_workers) else {
        let today = fit.rows.get(fit.workers.saturating_sub(1) as usize);
        let need = today.map_or_else(String::new, |row| format!(" need a limit of {}", safe(row)));
        return format!("{}{need}.", workers(fit.workers, fit.threads));
    };
    let limit = Size(limit);
    let next = fit.rows.get(max as usize);
    if max == 0 {
        let need = next.map_or_else(String::new, |row| format!(": it needs {}", safe(row)));
        return format!("Not even 1 worker fits into {limit}{need}.");
    }
    let fits = format!("{} fit{} into {limit}", workers(max, fit.threads), third_person(max));
    match next.and_then(|row| Some((row.workers, row.probability?))) {
        None => format!("{fits}. More were not tried."),
        Some((more, probability)) if probability < CERTAIN => format!("{fits}; {more} do not."),
        Some((more, probability)) => {
            format!("{fits}; {more} do with probability {probability:.2}.")
        }
    }
}

fn workers(number: u64, threads: u64) -> String {
    format!("{} with {} each", counted(number, "worker"), counted(threads, "thread"))
}

fn third_person(number: u64) -> &'static str {
    if number == 1 { "s" } else { "" }
}

/// Explains a doubt, and what to do about it.
fn reason(doubt: FitDoubt, fit: &Fit) -> String {
    let minutes = fit.record_seconds.map_or(0.0, |seconds| (seconds / 60.0).ceil());
    let record = format!("Record for {minutes:.0} minutes under load");
    match doubt {
        FitDoubt::NoWorkers => {
            "no workers have most of the memory. Record the process that forked them.".into()
        }
        FitDoubt::OneWorker => {
            format!("there is only one worker, and workers differ. {record}, with two or more.")
        }
        FitDoubt::UnlikeRecordings => {
            "the recordings are of different programs. Give those of one.".into()
        }
        FitDoubt::OneLook => format!("one look does not show how memory changes. {record}."),
        FitDoubt::NoPrivateMemory => {
            format!("there are too few samples of private memory. {record}.")
        }
        FitDoubt::Killed => format!(
            "the kernel killed processes at the limit, so the memory that they need is unknown. {record}, with a higher limit."
        ),
        FitDoubt::Swapped => {
            format!(
                "a part of the memory is in swap, which does not count. {record}, without swap."
            )
        }
        FitDoubt::NoLoad => format!("the workers had hardly any load. {record}."),
        FitDoubt::Replaced => format!(
            "workers were replaced, and fewer than eight were recorded from start to end. {record}."
        ),
        FitDoubt::Growing => format!("the memory of the workers still grows. {record}."),
        FitDoubt::Unsettled => format!("the memory of the workers is not stable yet. {record}."),
    }
}

fn write(fit: &Fit, out: &mut String, width: usize) -> std::fmt::Result {
    let style = if fit.doubt.is_some() { YELLOW } else { BOLD };
    write_paragraph(out, style, &fit_summary(fit), "", width)?;
    if let Some(now) = &fit.now {
        write_wrapped(out, " · ", &now_in_words(now, fit.limit_bytes), width)?;
    }
    if let Some(model) = &fit.model {
        if let (Some(bytes), true) = (fit.safe_limit_bytes, fit.limit_bytes.is_some()) {
            let today = workers(fit.workers, fit.threads);
            let verb = if fit.workers == 1 { "needs" } else { "need" };
            let text = format!("The recorded {today} {verb} a limit of {}.", Size(bytes));
            write_wrapped(out, "", &text, width)?;
        }
        writeln!(out)?;
        write_table(fit, out, width)?;
        write_model(fit, model, out, width)?;
    }
    for fewer in &fit.with_fewer_threads {
        write_wrapped(out, " · ", &fewer_threads(fewer), width)?;
    }
    if let Some(bytes) = fit.thread_stack_bytes {
        let text = format!(
            "Each thread has {} of stacks. With more threads, arenas and requests that meet come on top: record with the new number.",
            Size(bytes)
        );
        write_wrapped(out, " · ", &text, width)?;
    }
    for remedy in &fit.remedies {
        write_wrapped(out, " · ", &remedy_in_words(*remedy, fit), width)?;
    }
    if let Some(blocks) = blocks(fit) {
        for block in blocks {
            writeln!(out)?;
            write_block(&block, out, width)?;
        }
    }
    Ok(())
}

/// What the workers have, and how many of them are too many.
fn now_in_words(now: &FitNow, limit: Option<u64>) -> String {
    let [least, most] = [Size(now.least_bytes), Size(now.most_bytes)].map(|it| it.to_string());
    let each = if least == most { least } else { format!("{least} to {most}") };
    let text = format!(
        "At the last look: {} for all, and {each} for each of {}.",
        Size(now.fixed_bytes),
        counted(now.workers, "worker"),
    );
    match limit.zip(now.above_limit) {
        None => text,
        Some((limit, 1)) => {
            format!(
                "{text} Even 1 worker of the mean size has more than {}, pages of files included.",
                Size(limit)
            )
        }
        Some((limit, many)) => format!(
            "{text} {many} of the mean size have more than {}, pages of files included. Whether {} fit{} is not known.",
            Size(limit),
            many - 1,
            third_person(many - 1),
        ),
    }
}

fn write_table(fit: &Fit, out: &mut String, width: usize) -> std::fmt::Result {
    let probability = fit.limit_bytes.map(|limit| format!("BELOW\n{}", Size(limit)));
    let probability = probability.unwrap_or_default();
    let last = fit.max_workers.unwrap_or(u64::MAX).max(fit.workers).saturating_add(ROWS_AFTER);
    let shown: Vec<&FitRow> = fit.rows.iter().filter(|row| row.workers <= last).collect();
    // Of many, those at the end matter.
    let skipped = shown.len().saturating_sub(MAX_ROWS);
    let row = |row: &&FitRow| Row {
        figures: vec![
            row.workers.to_string(),
            mebibytes(row.expected_bytes),
            mebibytes(row.safe_limit_bytes),
            row.probability.map_or_else(String::new, in_words),
        ],
        ..Row::default()
    };
    let rows: Vec<_> = shown[skipped..].iter().map(row).collect();
    let figures = &["WORKERS", "MEMORY,\nMiB", "LIMIT,\nMiB", &*probability];
    write_rows(out, &Heads { figures, ..Heads::default() }, &rows, width)
}

fn in_words(probability: f64) -> String {
    match probability {
        p if p < CERTAIN => "no".into(),
        p if p > 1.0 - CERTAIN => "yes".into(),
        p => format!("{p:.2}"),
    }
}

/// Explains the columns of the table, the model and its assumptions.
fn write_model(fit: &Fit, model: &FitModel, out: &mut String, width: usize) -> std::fmt::Result {
    let (hours, minutes) = (fit.for_seconds / 3600.0, fit.for_seconds / 60.0);
    let time = if hours < 2.0 { format!("{minutes:.0} min") } else { format!("{hours:.0} h") };
    let columns = format!(
        "MEMORY is what they have between peaks. They stay below LIMIT for {time} with probability {:.2}.",
        fit.probability
    );
    write_paragraph(out, DIM, &columns, "", width)?;
    let mut parts = vec![format!(
        "{} for all, and {} for each worker, give or take {}",
        Size(model.fixed_bytes),
        Size(model.worker_bytes),
        Size(model.spread_bytes),
    )];
    if model.peak_bytes > model.spread_bytes {
        parts.push(format!("peaks up to {} above that", Size(model.peak_bytes)));
    }
    parts.push(format!("{:.1} % for the kernel", model.kernel_share * 100.0));
    if model.other_bytes > 0 {
        parts.push(format!("{} of other programs in the group", Size(model.other_bytes)));
    }
    write_wrapped(out, " · ", &format!("Memory: {}.", parts.join(", ")), width)?;
    let basis = match model.basis {
        FitBasis::Mean => {
            "Assumed: each worker has the load that these had, and meets no larger requests."
        }
        FitBasis::Largest => {
            "The workers differ in memory or load, so each counts as the largest. Assumed: none has more load, or meets larger requests."
        }
        FitBasis::Lives => {
            "Workers are replaced, so each counts as large as at its end. Assumed: they are replaced as often, and have the same load."
        }
    };
    write_wrapped(out, " · ", basis, width)
}

/// The answer of recordings with fewer threads.
fn fewer_threads(it: &FitThreads) -> String {
    let with = format!("With {} each", counted(it.threads, "thread"));
    let (None, Some(bytes)) = (it.doubt, it.worker_bytes) else {
        return format!("{with}, the answer is not known yet.");
    };
    let answer = match (it.max_workers, it.safe_limit_bytes) {
        (Some(most), _) => format!("{} fit{}", counted(most, "worker"), third_person(most)),
        (None, Some(limit)) => format!("{} need {}", counted(it.workers, "worker"), Size(limit)),
        (None, None) => return with,
    };
    format!("{with}, {answer}: each has {}.", Size(bytes))
}

fn remedy_in_words(remedy: FitRemedy, fit: &Fit) -> String {
    match remedy {
        FitRemedy::KeepSharing { max_bytes_per_worker } => format!(
            "Each worker copied {} of what it shared with its parent at first. `Process.warmup` before the fork saves a part of that at most.",
            Size(max_bytes_per_worker)
        ),
        FitRemedy::Preload { code_bytes_per_worker } => format!(
            "Each worker loaded {} of code by itself, and shares hardly anything but files. `{}` lets workers share the code, and \
             objects made before the fork, until they change them.",
            Size(code_bytes_per_worker),
            if fit.role.starts_with("unicorn") { "preload_app true" } else { "preload_app!" }
        ),
        FitRemedy::Trim { max_bytes_per_worker } => format!(
            "Trims (AutoTrim) save up to {} of each worker between peaks. The peaks stay.",
            Size(max_bytes_per_worker)
        ),
        FitRemedy::FewerArenas { max_bytes_per_worker } => format!(
            "Fewer arenas (MALLOC_ARENA_MAX=2) save up to {} of each worker between peaks, all that malloc had free at the last \
             capture, and maybe nothing.",
            Size(max_bytes_per_worker)
        ),
        FitRemedy::Replace { bytes_per_second, after_seconds } => format!(
            "If each worker goes on to grow by {}/h, {} below the limit only if each is replaced at an age of {:.1} h or before.",
            Size((bytes_per_second * 3600.0) as u64),
            if fit.workers == 1 { "it stays" } else { "they stay" },
            after_seconds / 3600.0
        ),
    }
}

/// The lines to paste. None if rbloat cannot tell.
fn blocks(fit: &Fit) -> Option<Vec<Block>> {
    fit.model?;
    let number = fit.max_workers.filter(|it| *it > 0).unwrap_or(fit.workers);
    let row = fit.rows.get(number.checked_sub(1)? as usize)?;
    let fits = fit.max_workers.is_some_and(|it| it > 0);
    let limit = fit.limit_bytes.filter(|_| fits).unwrap_or(row.safe_limit_bytes);
    let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
    let servers = SERVERS.iter().filter(|(role, _, _)| fit.role.starts_with(role));
    let mut blocks: Vec<Block> = servers
        .map(|(_, place, line)| Block::new(place, [line.replace('#', &number.to_string())]))
        .collect();
    if fit.role.starts_with("puma") {
        let heroku = format!("heroku config:set WEB_CONCURRENCY={number}");
        blocks.push(Block::new(
            "Or on Heroku, if config/puma.rb takes the number from there:",
            [heroku],
        ));
    }
    let manifest = [
        "resources:".into(),
        "  requests:".into(),
        format!("    memory: \"{}Mi\"", mebibytes(row.expected_bytes.min(limit))),
        "  limits:".into(),
        format!("    memory: \"{}Mi\"", mebibytes(limit)),
    ];
    blocks.push(Block::new("In Kubernetes, in the entry of the container:", manifest));
    let service = ["[Service]".into(), format!("MemoryMax={}M", mebibytes(limit))];
    blocks.push(Block::new("In systemd, in the unit:", service));
    Some(blocks)
}

#[cfg(test)]
mod tests;
