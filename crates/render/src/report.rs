use std::fmt::Write;
use std::path::Path;

use anstyle::Style;
use formats::{
    CaptureMethod, DominatorRow, FindingKind, FindingRow, FindingSeverity, KeptBy, Memsize, Owner,
    Report, RootUses,
};
use ledger::{Cause, Count, Size, percent};

use crate::files::write_files;
use crate::interpreter::write_interpreter;
use crate::made_by::write_made_by;
use crate::pins::write_pins;
use crate::ractors::write_ractors;
use crate::rows::{Heads, Row, write_rows};
use crate::text::{
    BOLD, DIM, GREEN, RED, bar, mebibytes, write_paragraph, write_parts, write_verdict,
    write_wrapped,
};
use crate::threads::write_threads;
use crate::waste::write_waste;
use crate::words;
use crate::words::lines::used_in;

/// Columns of the bar for all of RSS.
const BAR: u64 = 20;
/// Columns of a cause's other cells. The rest of a line is for the explanation.
const BEFORE_MEANING: usize = 57;
/// The longest explanation of a cause that stands beside its bar. If there is less room, the bar is left out, and the
/// explanation takes several lines.
const MEANING: usize = 58;
/// Owners whose retaining paths are shown, at most.
const MAX_RETAINED: usize = 5;
/// Smaller owners have no retaining paths: in bytes, and as a fraction of RSS.
const MIN_RETAINED_BYTES: u64 = 1 << 20;
const MIN_RETAINED_FRACTION: u64 = 50;
/// The number of roots that are listed for each class.
const MAX_PATHS: usize = 3;
/// A path is shown if it retains at least this fraction of the owner's memory.
const MIN_PATH_FRACTION: u64 = 20;
/// Dominators that are shown at the top and below each other, at most.
const MAX_DOMINATORS: usize = 10;
const MAX_PARTS: usize = 3;
/// Smaller dominators are not shown: in bytes, and as a fraction of RSS.
const MIN_DOMINATOR_BYTES: u64 = 100 << 10;
const MIN_DOMINATOR_FRACTION: u64 = 200;

/// The layout of a report as text.
#[derive(Debug, Clone, Copy)]
pub struct TextOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// True if each arena has a row.
    pub arenas: bool,
    /// True if the interpreter's memory is shown in any case, and by file. Otherwise it is shown if there is much of
    /// it.
    pub code: bool,
    /// True if the memory that live objects do not use is shown in any case. Otherwise one line mentions it if there is much.
    pub waste: bool,
}

/// Returns a report as text: the verdict, the causes, the owners, and the steps to take. It contains ANSI colours, which
/// the caller strips if the reader does not want them.
#[must_use]
pub fn report(report: &Report, options: TextOptions) -> String {
    let mut text = String::new();
    write(report, &mut text, options).expect("a string takes all text");
    text
}

/// One line about a page, a picture or text that was written to `path`.
#[must_use]
pub fn written(path: &Path) -> String {
    match path.extension().and_then(|it| it.to_str()) {
        None | Some("html") => format!("{}: open it in a browser\n", path.display()),
        Some(_) => format!("{}\n", path.display()),
    }
}

/// A report that was saved in the snapshot `path` of `bytes` bytes, and the next command.
#[must_use]
pub fn saved_snapshot(report: &Report, path: &Path, bytes: u64) -> String {
    format!(
        "{}: process {} ({}), {} of RSS in {}{}\n",
        path.display(),
        report.process.pid,
        report.process.command,
        Size(report.process.rss_bytes),
        Size(bytes),
        match (report.capture.unread, report.is_complete()) {
            (Some(_), _) => "; its memory was not read, and `rbloat diff` will not compare it",
            (None, false) => "; a part of its memory could not be read",
            (None, true) => "",
        },
    )
}

fn write(report: &Report, out: &mut String, options: TextOptions) -> std::fmt::Result {
    write_head(report, out, options.width)?;
    let is_healthy = report.verdict.cause.is_none()
        && diagnosis::large_in_parts(report).is_none()
        && diagnosis::large_root(report).is_none()
        && diagnosis::large_room(report).is_none()
        && diagnosis::large_table(report).is_none()
        && diagnosis::uncollected_garbage(report).is_none();
    let style = if is_healthy { GREEN } else { RED };
    write_alarms(report, out, options.width)?;
    write_verdict(out, style, &words::verdict(report), options.width)?;
    write_group(report, out, options.width)?;
    write_causes(report, out, options.width)?;
    if options.arenas {
        write_arenas(report, out, options.width)?;
    }
    write_made_by(report.made_by.as_ref(), out, options.width)?;
    write_owners(report, out, options.width)?;
    write_dominators(report, out, options.width)?;
    write_waste(report, out, options.width, options.waste)?;
    write_pins(report, out, options.width)?;
    write_files(report, out, options.width)?;
    write_interpreter(report, out, options.width, options.code)?;
    write_ractors(report, out, options.width)?;
    write_threads(report, out, options.width)?;
    write_advice(report, out, options.width)?;
    let (_, findings) = alarms(report);
    write_findings(&findings, out, options.width)?;
    write_paragraph(out, DIM, &foot(report), "", options.width)
}

/// The reasons for which the agent saved this snapshot, and the other findings.
fn alarms(report: &Report) -> (Vec<FindingRow>, Vec<FindingRow>) {
    let is_alarm = |it: &FindingRow| matches!(it.kind, FindingKind::GroupAlarm { .. });
    report.findings.iter().cloned().partition(is_alarm)
}

/// Who reads about a kill asks first when and why.
fn write_alarms(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let (alarms, _) = alarms(report);
    if alarms.is_empty() {
        return Ok(());
    }
    let sentences: Vec<String> = alarms.iter().map(words::finding).collect();
    let time = words::utc(report.capture.unix_ms);
    write_wrapped(out, "", &format!("{time}: {}.", sentences.join("; ")), width)?;
    writeln!(out)
}

fn write_head(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let process = &report.process;
    let ruby = process.ruby_version.as_deref().unwrap_or("unknown");
    let parts = [
        format!("{BOLD}pid {}{BOLD:#}  {} resident", process.pid, Size(process.rss_bytes)),
        format!("ruby {ruby}"),
        process.libc.clone(),
        format!("malloc by {}", words::allocator(report)),
        words::counted(process.threads, "thread"),
    ];
    write_parts(out, &parts, width)?;
    writeln!(out, "{DIM}{}{DIM:#}", process.command)?;
    for sentence in words::gc(report) {
        write_wrapped(out, "", &sentence, width)?;
    }
    if let Some(family) = report.family {
        let text = format!(
            "One of {} forked processes: their RSS adds up to {}, of which {} exist once. All of them as one account: \
             rbloat report --tree {}",
            family.processes,
            Size(family.rss_bytes),
            Size(family.pss_bytes),
            process.pid
        );
        write_wrapped(out, "", &text, width)?;
    }
    writeln!(out)
}

/// Writes the account of the control group, unless the verdict has it, and the open files in memory.
fn write_group(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(group) = &report.group else { return Ok(()) };
    if report.verdict.cause.is_some() {
        write_wrapped(out, "", &format!("{}\n", words::group(group)), width)?;
    }
    if group.files.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}OPEN FILES IN TMPFS{BOLD:#}")?;
    for file in &group.files {
        write_wrapped(out, " · ", &words::tmpfs_file(file), width)?;
    }
    writeln!(out)
}

fn write_causes(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let rss = report.process.rss_bytes;
    let has_bars = width >= BEFORE_MEANING + MEANING;
    let bar = |bytes| bar(bytes, rss, BAR);
    let longest = report.causes.iter().map(|row| bar(row.bytes).chars().count()).max().unwrap_or(0);
    let row = |row: &formats::CauseRow| {
        let is_culprit = Some(row.cause) == report.verdict.cause;
        let share = format!("{:.1}", percent(row.bytes, rss));
        let bar = has_bars.then(|| format!("{:<longest$}", bar(row.bytes)));
        Row {
            style: if is_culprit { RED } else { Style::new() },
            name: row.cause.name().to_owned(),
            figures: [mebibytes(row.bytes), share].into_iter().chain(bar).collect(),
            note: vec![(DIM, words::meaning(row.cause).to_owned())],
        }
    };
    let mut rows: Vec<_> = report.causes.iter().filter(|row| row.bytes > 0).map(row).collect();
    rows.push(Row {
        style: BOLD,
        name: "RSS".into(),
        figures: vec![mebibytes(rss), "100.0".into()],
        note: Vec::new(),
    });
    let figures = &["MiB", "%", ""][..if has_bars { 3 } else { 2 }];
    write_rows(out, &Heads { name: "CAUSE", figures, ..Heads::default() }, &rows, width)?;
    // What follows belongs to the table.
    out.pop();
    if report.process.swap_bytes > 0 {
        writeln!(out, "  and {} in swap", Size(report.process.swap_bytes))?;
    }
    if report.process.lost_bytes > 0 {
        let lost = Size(report.process.lost_bytes);
        writeln!(
            out,
            "  and {lost} that the core lacks: it is unknown how much of it was resident"
        )?;
    }
    writeln!(out)
}

fn write_arenas(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(arenas) = &report.arenas else { return Ok(()) };
    let figures = &[
        "HEAPS",
        "OB-\nTAINED",
        "IN USE",
        "UNRE-\nTURNED",
        "FRAG-\nMENTED",
        "CACHED",
        "TOP",
        "OVER-\nHEAD",
        "NOT RE-\nSIDENT",
    ];
    let row = |arena: &formats::Arena| {
        let parts = [
            arena.system_bytes,
            arena.in_use_bytes,
            arena.unreturned_bytes,
            arena.fragmented_bytes,
            arena.cached_bytes,
            arena.top_bytes,
            arena.overhead_bytes,
            arena.returned_bytes,
        ];
        let name = if arena.main { "main" } else { &arena.address };
        let figures = [arena.heaps.to_string()].into_iter().chain(parts.map(mebibytes)).collect();
        Row { name: name.to_owned(), figures, ..Row::default() }
    };
    let rows: Vec<_> = arenas.iter().map(row).collect();
    write_rows(out, &Heads { name: "ARENA", figures, ..Heads::default() }, &rows, width)
}

fn write_owners(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(owners) = &report.owners else { return Ok(()) };
    let heads = Heads {
        name: "OWNER, MiB",
        figures: &["OBJECTS", "SLOTS", "EXCLUSIVE", "SHARED", "RESIDENT"],
        note: "CAUSE",
        lead: Some(""),
    };
    let rows: Vec<_> = owners.iter().map(|owner| owner_row(owner, report)).collect();
    write_rows(out, &heads, &rows, width)?;
    let least = MIN_RETAINED_BYTES.max(report.process.rss_bytes / MIN_RETAINED_FRACTION);
    write_retaining_paths(out, owners, least, width)
}

/// Writes the dominator tree, and the retained sizes of classes.
fn write_dominators(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(dominators) = &report.dominators else { return Ok(()) };
    let least = MIN_DOMINATOR_BYTES.max(report.process.rss_bytes / MIN_DOMINATOR_FRACTION);
    let mut rows = Vec::new();
    add_dominators(dominators, MAX_DOMINATORS, 0, least, &mut rows);
    let row = |(row, depth): (&DominatorRow, usize)| {
        let [retained, unused] = [row.retained_bytes, row.unused_bytes].map(mebibytes);
        let used = RootUses::of_path(&row.name, &report.root_uses).and_then(used_in);
        let used = used.map_or_else(String::new, |used| format!("; {used}"));
        let name = format!("{}{}{used}", " ".repeat(2 * depth), words::dominator(row));
        Row {
            figures: vec![retained, unused, Count(row.objects).to_string()],
            note: vec![(Style::new(), name)],
            ..Row::default()
        }
    };
    let rows: Vec<_> = rows.into_iter().map(row).collect();
    let figures = &["RETAINED, MiB", "UNUSED", "OBJECTS"];
    let heads = Heads { name: "", figures, note: "RETAINED BY", lead: Some("") };
    write_rows(out, &heads, &rows, width)?;
    let mut classes: Vec<_> = report
        .owners
        .iter()
        .flatten()
        .filter_map(|owner| Some((owner, owner.retained_bytes.filter(|&bytes| bytes >= least)?)))
        .collect();
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let heads = Heads {
        name: "",
        figures: &["RETAINED, MiB", "OBJECTS"],
        note: "BY ALL OBJECTS OF",
        lead: Some(""),
    };
    let row = |(owner, bytes): (&Owner, u64)| Row {
        figures: vec![mebibytes(bytes), Count(owner.objects).to_string()],
        note: vec![(Style::new(), owner.owner.clone())],
        ..Row::default()
    };
    let rows: Vec<_> = classes.into_iter().take(MAX_DOMINATORS).map(row).collect();
    write_rows(out, &heads, &rows, width)
}

/// Adds the rows of dominators that retain at least `least` bytes, each before those of its parts, with their depth.
fn add_dominators<'a>(
    dominators: &'a [DominatorRow],
    max: usize,
    depth: usize,
    least: u64,
    rows: &mut Vec<(&'a DominatorRow, usize)>,
) {
    for row in dominators.iter().filter(|row| row.retained_bytes >= least).take(max) {
        rows.push((row, depth));
        add_dominators(&row.parts, MAX_PARTS, depth + 1, least, rows);
    }
}

fn write_advice(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    if report.advice.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}WHAT TO DO{BOLD:#}")?;
    for (index, step) in report.advice.iter().enumerate() {
        let words = words::advice(step, report);
        let saving = match step.saves_bytes {
            Some(bytes) => format!(" Saves {}.", Size(bytes)),
            None => String::new(),
        };
        let first = format!(" {}. ", index + 1);
        write_wrapped(out, &first, &format!("{}{saving}", words.action), width)?;
        // Commands are not wrapped, so that they can be copied.
        let remark = words.remark.map_or_else(String::new, |remark| format!("({remark})"));
        let columns = |text: &str| textwrap::core::display_width(text);
        let is_beside = 7 + columns(&words.command) + columns(&remark) < width;
        let beside =
            if is_beside && !remark.is_empty() { format!("   {remark}") } else { String::new() };
        writeln!(out, "    {GREEN}{}{GREEN:#}{beside}", words.command)?;
        if !is_beside && !remark.is_empty() {
            write_wrapped(out, "    ", &remark, width)?;
        }
        write_wrapped(out, "    ", &format!("Costs: {}", words.costs), width)?;
    }
    writeln!(out)
}

pub(crate) fn write_findings(
    findings: &[FindingRow],
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    if findings.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}FINDINGS{BOLD:#}")?;
    for finding in findings {
        let severity = severity(finding);
        write_wrapped(out, &format!(" {severity}: "), &words::finding(finding), width)?;
    }
    writeln!(out)
}

pub(crate) fn severity(finding: &FindingRow) -> &'static str {
    match finding.severity {
        FindingSeverity::Note => "note",
        FindingSeverity::Warning => "warning",
        FindingSeverity::Error => "error",
    }
}

/// Returns how the process was captured, and what that cost it.
pub(crate) fn foot(report: &Report) -> String {
    let capture = &report.capture;
    let (pause, total) = (capture.pause_ms, capture.elapsed_ms);
    match capture.method {
        CaptureMethod::Core => format!("{}. {total:.0} ms in total.", capture.reason),
        CaptureMethod::Freeze => format!(
            "Paused for {pause:.0} ms ({}{}), {total:.0} ms in total. Nothing was written to the process.",
            capture.reason,
            capture.no_copy.map_or("", words::no_copy)
        ),
        CaptureMethod::Fork => {
            let copied = match capture.copied_bytes {
                Some(bytes) => {
                    format!(
                        " {} were copied because the process changed them meanwhile.",
                        Size(bytes)
                    )
                }
                None => String::new(),
            };
            format!(
                "Paused for {pause:.0} ms ({}), then read from a forked copy while the process kept running ({total:.0} \
                 ms in total).{copied}",
                capture.reason
            )
        }
    }
}

fn owner_row(owner: &Owner, report: &Report) -> Row {
    let is_culprit = owner.cause.is_some() && owner.cause == report.verdict.cause;
    let remark = match owner.memsize {
        Some(Memsize::None) => "its type reports no size",
        _ => "",
    };
    let objects = if owner.objects > 0 { Count(owner.objects).to_string() } else { String::new() };
    Row {
        style: if is_culprit { RED } else { Style::new() },
        name: owner.owner.clone(),
        figures: vec![
            objects,
            mebibytes(owner.slot_bytes),
            mebibytes(owner.exclusive_bytes),
            mebibytes(owner.shared_bytes),
            owner.resident_bytes.map_or_else(String::new, mebibytes),
        ],
        note: vec![
            (Style::new(), owner.cause.map_or("", Cause::name).to_owned()),
            (DIM, remark.to_owned()),
        ],
    }
}

/// Writes the retaining paths of the owners that hold most.
fn write_retaining_paths(
    out: &mut String,
    owners: &[Owner],
    least: u64,
    width: usize,
) -> std::fmt::Result {
    let held = |owner: &&Owner| {
        words::total([owner.slot_bytes, owner.exclusive_bytes, owner.shared_bytes])
    };
    let large = |owner: &&Owner| held(owner) >= least && !owner.kept_by.is_empty();
    let mut large = owners.iter().filter(large).take(MAX_RETAINED).peekable();
    if large.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "{BOLD}RETAINED BY{BOLD:#}")?;
    for owner in large {
        let retained = words::total(owner.kept_by.iter().map(|retainer| retainer.bytes));
        let is_main = |retainer: &&KeptBy| retainer.bytes >= retained / MIN_PATH_FRACTION;
        for retainer in owner.kept_by.iter().filter(is_main).take(MAX_PATHS) {
            let path = match &retainer.path {
                Some(path) => path.clone(),
                None => format!("nothing (garbage until the GC runs) → {}", owner.owner),
            };
            let share = words::retained_share(retainer, owner.objects);
            write_wrapped(out, " · ", &format!("{path}  {share}"), width)?;
        }
    }
    writeln!(out)
}
