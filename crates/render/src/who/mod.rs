//! Growth by the code that caused it, as text.

use std::fmt::Write;

use anstyle::Style;
use formats::{
    SamplingMethod, TaskKind, UnknownStacks, Who, WhoKind, WhoLine, WhoMachineCode, WhoMethod,
    WhoOldObjects, WhoOrigin, WhoTask,
};
use ledger::{Size, percent};

use crate::rows::{Heads, Row as TableRow, write_rows};
use crate::stacks::UNKNOWN;
use crate::text::{BOLD, DIM, RED, mebibytes, write_paragraph, write_wrapped};

/// The name of the row of growth without a sample.
const UNSAMPLED: &str = "(not sampled)";
/// Rows of a table, at most.
const MAX_ROWS: usize = 12;
const MAX_SHARES: usize = 6;
/// Rows with less than this share of the growth are not shown, in percent.
const MIN_SHARE: f64 = 0.5;

/// Methods with this share of the growth, in percent, are on all stacks: middleware, and loops of servers. More than a few are one row.
const OF_ALL: f64 = 99.0;
const MAX_OF_ALL: usize = 2;

/// One sentence on the growth.
#[must_use]
pub fn who_summary(who: &Who) -> String {
    let time = format!("{:.0} s", who.elapsed_ms / 1e3);
    let others = who.processes.iter().filter(|it| it.pid != who.pid && it.growth_bytes > 0).count();
    let whose = match others {
        0 => format!("Process {}", who.pid),
        1 => format!("Process {} and a process that it started", who.pid),
        others => format!("Process {} and {others} processes that it started", who.pid),
    };
    if who.growth_bytes == 0 {
        return format!("Process {} did not grow in {time}.", who.pid);
    }
    let mut growth = format!("{whose} grew by {} in {time}", Size(who.growth_bytes));
    if others > 0 {
        let own = who.processes.iter().filter(|it| it.pid == who.pid).map(|it| it.growth_bytes);
        let _ = write!(growth, ", process {} itself by {}", who.pid, Size(own.sum()));
    }
    match who.lines.first().map(|line| (line, percent(line.bytes, who.growth_bytes))) {
        Some((line, share)) if share >= MIN_SHARE => {
            format!(
                "{growth}; {share:.0} % of it in {} ({}:{}).",
                line.method, line.path, line.line
            )
        }
        _ => format!("{growth}."),
    }
}

/// The report as text.
///
/// # Panics
/// Never: a string takes all text.
#[must_use]
pub fn who(who: &Who, width: usize) -> String {
    let mut text = String::new();
    write(who, &mut text, width).expect("a string takes all text");
    text
}

fn write(who: &Who, out: &mut String, width: usize) -> std::fmt::Result {
    writeln!(out, "{DIM}{}{DIM:#}", who.command)?;
    write_paragraph(out, RED, &who_summary(who), "", width)?;
    if who.growth_bytes > 0 {
        let rate = Size(who.bytes_per_minute);
        write_wrapped(out, " · ", &format!("on average {rate}/min{}", peak(who)), width)?;
        write_wrapped(out, " · ", &confidence(who), width)?;
        if who.unknown_bytes > 0 {
            let share = percent(who.unknown_bytes, who.growth_bytes);
            let unknown = format!("{} ({share:.1} %) have no known code", Size(who.unknown_bytes));
            write_wrapped(out, " · ", &unknown, width)?;
        }
    }
    let copied = who.copied_bytes;
    if copied > 1 << 20 {
        let what = format!(
            "{} of shared memory were copied when they were written to after a fork: PSS grows, and RSS does not",
            Size(copied)
        );
        write_wrapped(out, " · ", &what, width)?;
    }
    let other = who.faulted_bytes.saturating_sub(who.growth_bytes.saturating_add(copied));
    if other > who.growth_bytes / 10 && other > 1 << 20 {
        let what = format!(
            "{} more were faulted in without growth: used again after they had been returned, or read from files",
            Size(other)
        );
        write_wrapped(out, " · ", &what, width)?;
    }
    writeln!(out)?;
    write_lines(who, out, width)?;
    write_methods(who, out, width)?;
    let all = who.growth_bytes;
    let tasks = who.tasks.iter().map(|it| (it.bytes, None, named(task(it))));
    write_table(out, all, ("REQUEST OR JOB", None), tasks.take(MAX_ROWS), width)?;
    let unsampled = (who.unsampled_bytes, None, named(UNSAMPLED));
    let with_unsampled = |rows: Vec<Row>| with(unsampled.clone(), rows, MAX_SHARES);
    let threads = who.threads.iter().map(|it| (it.bytes, None, named(&*it.name))).collect();
    write_table(out, all, ("THREADS", None), with_unsampled(threads), width)?;
    let kinds = who.kinds.iter().map(|it| (it.bytes, None, named(kind(it.kind)))).collect();
    write_table(out, all, ("KIND OF MEMORY", None), with_unsampled(kinds), width)?;
    let code = who.machine_code.iter().map(|it| (it.bytes, None, named(machine_code(it))));
    write_table(out, all, ("MACHINE CODE", None), with_unsampled(code.collect()), width)?;
    if who.processes.len() > 1 {
        let mut processes: Vec<_> = who.processes.iter().collect();
        processes.sort_by_key(|it| std::cmp::Reverse(it.growth_bytes));
        let rows = processes.into_iter().take(MAX_ROWS);
        let rows = rows.map(|it| (it.growth_bytes, None, named(format!("process {}", it.pid))));
        write_table(out, all, ("PROCESS", None), rows, width)?;
    }
    let note = "This is the code that makes memory grow. It need not be the code that keeps it: garbage needs room, too. A leak in \
                memory that malloc hands out again touches no new pages, and its code may be in none of these rows.";
    let diff = match &who.old_objects {
        Some(WhoOldObjects { pid, first, last }) => format!(
            "The number of old objects of process {pid} rose steadily, from {first} to {last}, so a part of the growth is probably \
             kept. `rbloat diff {pid} --every 60s` shows which objects stay, and `rbloat who {pid} --kept` which lines allocate \
             them."
        ),
        None => {
            format!(
                "`rbloat diff` shows which objects stay, and `rbloat who {} --kept` which lines allocate them.",
                who.pid
            )
        }
    };
    write_wrapped(out, "", &format!("{note} {diff}"), width)
}

/// The way of the watched process to its peak, in words. After an exec it has several rows; the last one counts.
fn peak(who: &Who) -> String {
    match who.processes.iter().rfind(|it| it.pid == who.pid) {
        Some(it) if it.growth_bytes > 0 => {
            let (start, peak) = (Size(it.start_bytes), Size(it.peak_bytes));
            format!("; RSS of process {} rose from {start} to a peak of {peak}", it.pid)
        }
        _ => String::new(),
    }
}

pub(crate) fn task(task: &WhoTask) -> String {
    match task.kind {
        TaskKind::Action => task.name.clone(),
        TaskKind::Job => format!("job {}", task.name),
    }
}

/// The kind of memory in words.
fn kind(kind: WhoKind) -> &'static str {
    match kind {
        WhoKind::Heap => "the heap of brk(2)",
        WhoKind::Arena => "glibc's other arenas",
        WhoKind::HeapPages => "Ruby's heap pages",
        WhoKind::Mapping => "mappings of their own: large blocks, stacks, other allocators",
        WhoKind::File => "files",
        WhoKind::Unknown => "(unknown)",
    }
}

fn machine_code(code: &WhoMachineCode) -> &str {
    match code.origin {
        WhoOrigin::Library => code.name.as_deref().unwrap_or_default(),
        WhoOrigin::Kernel => "(kernel)",
        WhoOrigin::Generated => "(generated code)",
        WhoOrigin::Unknown => "(unknown)",
    }
}

/// The confidence in words.
fn confidence(who: &Who) -> String {
    let prompt = percent(who.sampling.prompt_bytes, who.growth_bytes);
    match who.sampling.method {
        SamplingMethod::Polling => {
            let interval = who.sampling.interval_ms.unwrap_or_default();
            format!(
                "page faults were counted every {interval:.0} ms and not sampled (that needs CAP_PERFMON): growth by methods \
                 that run for less than {:.0} ms is often attributed to others",
                5.0 * interval
            )
        }
        method => {
            let unseen = match method {
                SamplingMethod::UserPageFaults => {
                    "; page faults inside of system calls are not seen (that needs CAP_PERFMON)"
                }
                _ => "",
            };
            let lost = match who.sampling.lost {
                0 => String::new(),
                lost => format!("; {lost} samples were lost"),
            };
            let copied = percent(who.sampling.copied, who.sampling.samples);
            let known = match who.sampling.copied {
                0 => format!(
                    "the stacks of {prompt:.0} % of it were read within 1 ms, before the thread waited"
                ),
                _ => format!(
                    "{copied:.0} % of the stacks were copied at the page fault; with those that were read within 1 ms they stand for \
                     {prompt:.0} % of the growth"
                ),
            };
            format!("{known}{unseen}{lost}{}", unknown_stacks(who))
        }
    }
}

/// The share of samples whose stacks are unknown, with the reasons.
fn unknown_stacks(who: &Who) -> String {
    let UnknownStacks { not_derived, ended, not_found, no_ruby, unreadable, late } =
        who.sampling.unknown_stacks;
    let share = |samples| percent(samples, who.sampling.samples);
    let mut reasons = [
        (late, "were read too late, when the thread already waited"),
        (ended, "are of threads that had ended"),
        (no_ruby, "are of threads that did not run Ruby"),
        (not_derived, "are of processes whose layouts were not known, or that do not run Ruby"),
        (not_found, "are of threads that were not found"),
        (unreadable, "could not be read"),
    ];
    reasons.sort_by_key(|&(samples, _)| std::cmp::Reverse(samples));
    let all = share(reasons.iter().map(|it| it.0).sum());
    if all < MIN_SHARE {
        return String::new();
    }
    let is_shown = |it: &&(u64, &str)| share(it.0) >= MIN_SHARE;
    let reason = |it: &(u64, &str)| format!("{:.1} % {}", share(it.0), it.1);
    let reasons: Vec<String> = reasons.iter().filter(is_shown).map(reason).collect();
    let reasons = if reasons.is_empty() { "various reasons".into() } else { reasons.join(", ") };
    format!("; {all:.1} % of the stacks are unknown: {reasons}")
}

/// The rows of a table: growth, growth of its own, and the parts of a name.
type Row = (u64, Option<u64>, Vec<(Style, String)>);

/// A name of one part.
fn named(text: impl Into<String>) -> Vec<(Style, String)> {
    vec![(Style::new(), text.into())]
}

/// The largest rows, with one for the growth that is not in `rows`.
fn with(unknown: Row, mut rows: Vec<Row>, max: usize) -> impl Iterator<Item = Row> {
    rows.truncate(max);
    let at = rows.iter().position(|row| row.0 < unknown.0).unwrap_or(rows.len());
    rows.insert(at, unknown);
    rows.into_iter()
}

/// Writes a table with the heading of names, and of growth of their own.
fn write_table(
    out: &mut String,
    all: u64,
    (head, own): (&str, Option<&str>),
    rows: impl Iterator<Item = Row>,
    width: usize,
) -> std::fmt::Result {
    let is_shown = |row: &Row| percent(row.0, all) >= MIN_SHARE;
    let row = |(bytes, own, note): Row| {
        let share = format!("{:.1}", percent(bytes, all));
        let figures = [mebibytes(bytes), share].into_iter().chain(own.map(mebibytes));
        TableRow { figures: figures.collect(), note, ..TableRow::default() }
    };
    let rows: Vec<_> = rows.filter(is_shown).map(row).collect();
    let figures: Vec<_> = ["MiB", "%"].into_iter().chain(own).collect();
    write_rows(
        out,
        &Heads { name: "", figures: &figures, note: head, lead: Some("") },
        &rows,
        width,
    )
}

/// Returns a path from the folder of its gem on; the folder has the gem's name and version.
fn in_gem(path: &str) -> &str {
    path.rsplit_once("/gems/").map_or(path, |(_, rest)| rest)
}

fn write_methods(who: &Who, out: &mut String, width: usize) -> std::fmt::Result {
    let row = |it: &WhoMethod| {
        let mut name = named(&*it.method);
        name.extend(it.path.as_deref().map(|path| (DIM, in_gem(path).to_owned())));
        (it.total_bytes, Some(it.self_bytes), name)
    };
    let known = who.growth_bytes.saturating_sub(who.unknown_bytes);
    let is_of_all = |it: &&WhoMethod| {
        percent(it.total_bytes, known) >= OF_ALL && percent(it.self_bytes, known) < MIN_SHARE
    };
    let (of_all, mut others): (Vec<_>, Vec<_>) = who.methods.iter().partition(is_of_all);
    let mut rows = Vec::new();
    match of_all.as_slice() {
        [innermost, ..] if of_all.len() > MAX_OF_ALL => {
            let name = format!("{} methods on all stacks, to {}", of_all.len(), innermost.method);
            rows.push((innermost.total_bytes, Some(0), named(name)));
        }
        _ => others = who.methods.iter().collect(),
    }
    rows.extend(others.into_iter().take(MAX_ROWS).map(row));
    let unknown = (who.unknown_bytes, Some(who.unknown_bytes), named(UNKNOWN));
    let heads = ("METHOD, WITH ALL THAT IT CALLS", Some("ITSELF"));
    write_table(out, who.growth_bytes, heads, with(unknown, rows, MAX_ROWS), width)
}

fn write_lines(who: &Who, out: &mut String, width: usize) -> std::fmt::Result {
    let head = "LINE OF THE APPLICATION";
    write_line_table(&who.lines, who.growth_bytes, who.unknown_bytes, head, out, width)?;
    if who.copied_bytes <= 1 << 20 {
        return Ok(());
    }
    let head = "LINE THAT COPIED SHARED MEMORY";
    write_line_table(&who.copies, who.copied_bytes, 0, head, out, width)
}

fn write_line_table(
    lines: &[WhoLine],
    all: u64,
    unknown: u64,
    head: &str,
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    let row = |it: &WhoLine| {
        let place = (BOLD, format!("{}:{}", it.path, it.line));
        (it.bytes, None, vec![place, (Style::new(), it.method.clone())])
    };
    let rows = lines.iter().take(MAX_ROWS).map(row).collect();
    let unknown = (unknown, None, named(UNKNOWN));
    write_table(out, all, (head, None), with(unknown, rows, MAX_ROWS), width)
}
