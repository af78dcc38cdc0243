use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};
use ledger::{Cause, Count, Size, percent};

use crate::{Owner, Report, VerdictPart};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const RED: Style = AnsiColor::Red.on_default().bold();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default().bold();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();

/// Columns of the bar that stands for all of RSS.
const BAR: f64 = 20.0;

/// Columns of a row's other cells, at most: what is left of a terminal's is for its meaning.
const BEFORE_MEANING: usize = 57;
/// Owners whose retainers are shown.
const MOST_KEPT: usize = 5;
/// Who keeps owners of less is not worth telling, in bytes and as a part of RSS.
const LEAST_KEPT_BYTES: u64 = 1 << 20;
const LEAST_KEPT_PART: u64 = 50;
/// Columns of an owner's name, at most; and such as are worth more than a figure.
const OWNER: usize = 44;
const LEAST_OWNER: usize = 24;
/// What is told of owners.
const OWNER_HEADS: [&str; 8] =
    ["WHO HOLDS IT, MB", "OBJECTS", "SLOTS", "ALONE", "SHARED", "RESIDENT", "CAUSE", ""];
/// What is left out of it where a terminal is narrow, first the remark, then the cause, what is shared,
/// and the slots.
const DISPENSABLE: [usize; 4] = [7, 6, 4, 2];
/// Fewer columns are not worth the beginning of a meaning.
const LEAST_MEANING: usize = 24;
/// Columns of a process's other cells in the list.
const BEFORE_COMMAND: usize = 70;

/// How a report is shown as text.
#[derive(Debug, Clone, Copy)]
pub struct TextOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether each arena has a row of its own.
    pub arenas: bool,
}

impl Report {
    /// The report as text: verdict, table, what to do. With ANSI colours, for the caller to strip
    /// where they are not wanted.
    #[must_use]
    pub fn render_text(&self, options: TextOptions) -> String {
        let mut text = String::new();
        self.write_parts(&mut text, options).expect("a string takes what is written");
        text
    }

    fn write_parts(&self, out: &mut String, options: TextOptions) -> std::fmt::Result {
        self.write_head(out)?;
        write_verdict(out, &self.verdict, options.width)?;
        self.write_causes(out, options.width)?;
        if options.arenas {
            self.write_arenas(out)?;
        }
        self.write_owners(out, options.width)?;
        self.write_advice(out, options.width)?;
        self.write_findings(out, options.width)?;
        self.write_foot(out, options.width)
    }

    fn write_head(&self, out: &mut String) -> std::fmt::Result {
        let process = &self.process;
        let ruby = process.ruby_version.as_deref().unwrap_or("unknown");
        writeln!(
            out,
            "{BOLD}pid {}{BOLD:#}  {} resident  ·  ruby {ruby}  ·  {}  ·  malloc by {}  ·  {} thread{}",
            process.pid,
            Size(process.rss_bytes),
            process.libc,
            process.allocator,
            process.threads,
            if process.threads == 1 { "" } else { "s" }
        )?;
        writeln!(out, "{DIM}{}{DIM:#}", process.command)?;
        if let Some(statistics) = &self.allocator_statistics {
            writeln!(
                out,
                "{} counts {} allocated on {} of pages, {} resident with its own and what it has not given \
                 back yet, {} of addresses retained",
                process.allocator,
                Size(statistics.allocated_bytes),
                Size(statistics.active_bytes),
                Size(statistics.resident_bytes),
                Size(statistics.retained_bytes),
            )?;
        }
        writeln!(out)
    }

    fn write_causes(&self, out: &mut String, width: usize) -> std::fmt::Result {
        let rss = self.process.rss_bytes;
        let mut table = table(["WHERE IT IS", "MB", "%", "", ""]);
        for row in self.causes.iter().filter(|row| row.bytes > 0) {
            let is_culprit = row.cause == self.verdict.cause;
            let style = if is_culprit { RED } else { Style::new() };
            let share = percent(row.bytes, rss);
            let meaning = Cause::ALL.iter().find(|cause| cause.name() == row.cause);
            let meaning = meaning.map_or("", |cause| cause.meaning());
            // Half a word says nothing.
            let room = width.saturating_sub(BEFORE_MEANING);
            let room = if room < LEAST_MEANING { 0 } else { room };
            let meaning: String = meaning.chars().take(room).collect();
            table.add_row([
                format!("{style}{}{style:#}", row.cause),
                format!("{style}{}{style:#}", megabytes(row.bytes)),
                format!("{share:.1}"),
                "█".repeat((share * BAR / 100.0).round() as usize),
                format!("{DIM}{meaning}{DIM:#}"),
            ]);
        }
        table.add_row([
            format!("{BOLD}RSS{BOLD:#}"),
            format!("{BOLD}{}{BOLD:#}", megabytes(rss)),
            "100.0".into(),
            String::new(),
            String::new(),
        ]);
        align_right(&mut table, [1, 2]);
        writeln!(out, "{}", trimmed(&table))?;
        if self.process.swap_bytes > 0 {
            writeln!(out, "  and {} in swap", Size(self.process.swap_bytes))?;
        }
        writeln!(out)
    }

    fn write_arenas(&self, out: &mut String) -> std::fmt::Result {
        let Some(arenas) = &self.arenas else { return Ok(()) };
        let mut table = table([
            "ARENA",
            "HEAPS",
            "OBTAINED",
            "IN USE",
            "UNRETURNED",
            "FRAGMENTED",
            "CACHED",
            "TOP",
            "OVERHEAD",
            "NOT RESIDENT",
        ]);
        for arena in arenas {
            let name = if arena.main { "main" } else { &arena.address };
            let mut row = vec![name.to_owned(), arena.heaps.to_string()];
            row.extend(
                [
                    arena.system_bytes,
                    arena.in_use_bytes,
                    arena.unreturned_bytes,
                    arena.fragmented_bytes,
                    arena.cached_bytes,
                    arena.top_bytes,
                    arena.overhead_bytes,
                    arena.returned_bytes,
                ]
                .map(megabytes),
            );
            table.add_row(row);
        }
        align_right(&mut table, 1..10);
        writeln!(out, "{}\n", trimmed(&table))
    }

    fn write_owners(&self, out: &mut String, width: usize) -> std::fmt::Result {
        let Some(owners) = &self.owners else { return Ok(()) };
        let rows: Vec<_> = owners.iter().map(owner_cells).collect();
        let (columns, name) = fitting(&rows, width);
        let mut table = table(columns.iter().map(|&column| OWNER_HEADS[column]));
        for (owner, row) in owners.iter().zip(&rows) {
            let is_culprit = owner.cause.as_ref() == Some(&self.verdict.cause);
            let style = if is_culprit { RED } else { Style::new() };
            table.add_row(columns.iter().map(|&column| match column {
                0 => format!("{style}{}{style:#}", row[0].chars().take(name).collect::<String>()),
                3 => format!("{style}{}{style:#}", row[3]),
                7 => format!("{DIM}{}{DIM:#}", row[7]),
                _ => row[column].clone(),
            }));
        }
        let figures = columns.iter().filter(|column| (1..6).contains(*column)).count();
        align_right(&mut table, 1..=figures);
        writeln!(out, "{}\n", trimmed(&table))?;
        let least = LEAST_KEPT_BYTES.max(self.process.rss_bytes / LEAST_KEPT_PART);
        write_retainers(out, owners, least, width)
    }

    fn write_advice(&self, out: &mut String, width: usize) -> std::fmt::Result {
        if self.advice.is_empty() {
            return Ok(());
        }
        writeln!(out, "{BOLD}WHAT TO DO{BOLD:#}")?;
        for (index, step) in self.advice.iter().enumerate() {
            let saving = match step.saves_bytes {
                Some(bytes) => format!(" Saves up to {}.", Size(bytes)),
                None => String::new(),
            };
            let set = if step.already_set { " Already set." } else { "" };
            let first = format!(" {}. ", index + 1);
            write_wrapped(out, &first, &format!("{}{saving}{set}", step.action), width)?;
            // A command is to be copied: it is not wrapped.
            writeln!(out, "    {GREEN}{}{GREEN:#}", step.command)?;
            write_wrapped(out, "    ", &format!("Costs: {}.", step.costs), width)?;
        }
        writeln!(out)
    }

    fn write_findings(&self, out: &mut String, width: usize) -> std::fmt::Result {
        if self.findings.is_empty() {
            return Ok(());
        }
        writeln!(out, "{BOLD}FINDINGS{BOLD:#}")?;
        for finding in &self.findings {
            let place =
                finding.address.as_ref().map(|at| format!(" (at {at})")).unwrap_or_default();
            let line = format!("{}{place}", finding.what);
            write_wrapped(out, &format!(" {}: ", finding.severity), &line, width)?;
        }
        writeln!(out)
    }

    fn write_foot(&self, out: &mut String, width: usize) -> std::fmt::Result {
        let capture = &self.capture;
        let how = match (capture.method.as_str(), capture.copied_bytes) {
            ("fork", copied) => {
                let copied = copied.map(|bytes| {
                    format!(" {} that it changed meanwhile were copied.", Size(bytes))
                });
                format!(
                    "one of its threads made a clone of it, as if in a signal handler, and that was read \
                     ({}).{}",
                    capture.reason,
                    copied.unwrap_or_default()
                )
            }
            ("core", _) => format!("{}.", capture.reason),
            _ => format!("nothing was written to the process ({}).", capture.reason),
        };
        let stopped = match capture.method.as_str() {
            "core" => String::new(),
            _ => format!("Stopped for {:.0} ms, ", capture.pause_ms),
        };
        let foot =
            format!("{stopped}{:.0} ms in all; {how} 1 MB is 1,048,576 bytes.", capture.elapsed_ms);
        write_paragraph(out, DIM, &foot, "", width)
    }
}

/// What the table says of an owner.
fn owner_cells(owner: &Owner) -> [String; OWNER_HEADS.len()] {
    let objects = if owner.objects > 0 { Count(owner.objects).to_string() } else { String::new() };
    let memsize = match owner.memsize.as_deref() {
        Some("none") => "the GC counts its slots only",
        _ => "",
    };
    [
        owner.owner.clone(),
        objects,
        megabytes(owner.slot_bytes),
        megabytes(owner.exclusive_bytes),
        megabytes(owner.shared_bytes),
        owner.resident_bytes.map_or_else(String::new, megabytes),
        owner.cause.clone().unwrap_or_default(),
        memsize.to_owned(),
    ]
}

/// The columns of the table of owners that a terminal of `width` columns has room for, and how much of
/// a name it has.
fn fitting(rows: &[[String; OWNER_HEADS.len()]], width: usize) -> (Vec<usize>, usize) {
    let widths: Vec<usize> = OWNER_HEADS
        .iter()
        .enumerate()
        .map(|(column, head)| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head.len()]).max().unwrap_or(0)
        })
        .collect();
    let name = widths[0].min(OWNER);
    let mut columns: Vec<usize> = (0..OWNER_HEADS.len()).collect();
    let mut dispensable = DISPENSABLE.into_iter();
    loop {
        let others: usize = columns[1..].iter().map(|&column| widths[column] + 2).sum();
        let room = width.saturating_sub(others + 2);
        if room >= name.min(LEAST_OWNER) {
            return (columns, name.min(room));
        }
        match dispensable.next() {
            Some(column) => columns.retain(|it| *it != column),
            None => return (columns, OWNER_HEADS[0].len().max(room)),
        }
    }
}

/// Who keeps the owners that hold most, a line for each name.
fn write_retainers(
    out: &mut String,
    owners: &[Owner],
    least: u64,
    width: usize,
) -> std::fmt::Result {
    let held = |owner: &&Owner| owner.slot_bytes + owner.exclusive_bytes + owner.shared_bytes;
    let large = |owner: &&Owner| held(owner) >= least && !owner.kept_by.is_empty();
    let mut large = owners.iter().filter(large).take(MOST_KEPT).peekable();
    if large.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "{BOLD}WHO KEEPS THEM{BOLD:#}")?;
    for owner in large {
        for retainer in &owner.kept_by {
            // What keeps a few of a million objects says nothing about the million.
            if retainer.bytes * 20 < owner.kept_by.iter().map(|retainer| retainer.bytes).sum() {
                continue;
            }
            let path = match &retainer.path {
                Some(path) => path.clone(),
                None => format!("nothing: garbage until the GC runs → {}", owner.owner),
            };
            let many = format!("{} of {}", Count(retainer.objects), Count(owner.objects));
            write_wrapped(out, " · ", &format!("{path}  ({many})"), width)?;
        }
    }
    writeln!(out)
}

fn write_verdict(out: &mut String, verdict: &VerdictPart, width: usize) -> std::fmt::Result {
    let style = if verdict.cause == "healthy" { GREEN } else { RED };
    write_paragraph(out, style, &verdict.summary, "", width)?;
    for evidence in &verdict.evidence {
        write_wrapped(out, " · ", evidence, width)?;
    }
    let sure =
        format!("confidence {}; proved wrong if: {}", verdict.confidence, verdict.falsified_by);
    write_paragraph(out, YELLOW, &sure, "   ", width)?;
    writeln!(out)
}

/// Text in one style, wrapped at `width`, with `first` before its first line.
pub(crate) fn write_paragraph(
    out: &mut String,
    style: Style,
    text: &str,
    first: &str,
    width: usize,
) -> std::fmt::Result {
    for line in textwrap::wrap(text, options(first, width)) {
        writeln!(out, "{style}{line}{style:#}")?;
    }
    Ok(())
}

pub(crate) fn write_wrapped(
    out: &mut String,
    first: &str,
    text: &str,
    width: usize,
) -> std::fmt::Result {
    for line in textwrap::wrap(text, options(first, width)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Wrapping at `width` with `first` before the first line and as many blanks before the others.
fn options(first: &str, width: usize) -> textwrap::Options<'_> {
    const BLANKS: &str = "                ";
    let indent = &BLANKS[..first.chars().count().min(BLANKS.len())];
    textwrap::Options::new(width.saturating_sub(1).max(20))
        .initial_indent(first)
        .subsequent_indent(indent)
}

/// A Ruby process in the list that bare `rbloat` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedProcess {
    /// Its process id.
    pub pid: i32,
    /// Its process id within its container, if it is in one.
    pub namespace_pid: Option<i32>,
    /// Its resident bytes, as ps(1) shows them.
    pub rss_bytes: u64,
    /// Ruby's version.
    pub ruby_version: String,
    /// The C library.
    pub libc: String,
    /// Who serves malloc.
    pub allocator: String,
    /// How many threads it has.
    pub threads: u64,
    /// Its command line.
    pub command: String,
}

/// The list of Ruby processes as text, in the order given, for a terminal of `width` columns.
#[must_use]
pub fn render_processes(processes: &[ListedProcess], width: usize) -> String {
    let mut table =
        table(["PID", "IN CONTAINER", "RSS MB", "RUBY", "LIBC", "MALLOC", "THREADS", "COMMAND"]);
    for process in processes {
        table.add_row([
            process.pid.to_string(),
            process.namespace_pid.map_or_else(String::new, |pid| pid.to_string()),
            megabytes(process.rss_bytes),
            process.ruby_version.clone(),
            process.libc.clone(),
            process.allocator.clone(),
            Count(process.threads).to_string(),
            process.command.chars().take(width.saturating_sub(BEFORE_COMMAND)).collect(),
        ]);
    }
    align_right(&mut table, [0, 1, 2, 6]);
    trimmed(&table) + "\n"
}

pub(crate) fn table<'a>(heads: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_row(heads.into_iter().map(|head| format!("{BOLD}{head}{BOLD:#}")));
    table
}

pub(crate) fn align_right(table: &mut Table, columns: impl IntoIterator<Item = usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// The table without blanks at the ends of its lines.
pub(crate) fn trimmed(table: &Table) -> String {
    table.trim_fmt()
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
