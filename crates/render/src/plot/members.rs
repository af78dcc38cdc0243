//! The processes of a recording: their memory at the first and the last exact sample.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::Style;
use formats::{ProcessSample, Recording};

use crate::rows::{Heads, Row, write_rows};
use crate::text::mebibytes;

/// The most processes that are listed.
const MAX_MEMBERS: usize = 20;

/// A process of a recording of several.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordedMember {
    pid: i32,
    command: String,
    first: Memory,
    last: Memory,
    /// The time between the two.
    minutes: f64,
}

/// The memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Memory {
    t_ms: u64,
    pss: u64,
    private: u64,
    shared: u64,
}

/// Returns the processes of a recording, by their private memory at the end; none for a recording of one process.
pub(super) fn members(recording: &Recording) -> Vec<RecordedMember> {
    let mut found: BTreeMap<(i32, u64), [Memory; 2]> = BTreeMap::new();
    for sample in recording.samples().filter(|sample| sample.exact) {
        for process in &sample.processes {
            if let Some(memory) = Memory::of(sample.t_ms, process) {
                let key = (process.pid, process.started_ticks);
                found.entry(key).or_insert([memory; 2])[1] = memory;
            }
        }
    }
    let command = |key: (i32, u64)| {
        let arrivals = recording.processes().filter(|it| (it.pid, it.started_ticks) == key);
        arrivals.last().map_or_else(String::new, |it| it.command.clone())
    };
    let member = |(key, [first, last]): ((i32, u64), [Memory; 2])| RecordedMember {
        pid: key.0,
        command: command(key),
        first,
        last,
        minutes: last.t_ms.saturating_sub(first.t_ms) as f64 / 60e3,
    };
    let mut members: Vec<RecordedMember> = found.into_iter().map(member).collect();
    members.sort_by_key(|it| (std::cmp::Reverse(it.last.private), it.pid));
    if members.len() < 2 { Vec::new() } else { members }
}

impl Memory {
    fn of(t_ms: u64, process: &ProcessSample) -> Option<Self> {
        let (pss, private) = process.pss_bytes.zip(process.uss_bytes)?;
        Some(Self { t_ms, pss, private, shared: process.rss_bytes.saturating_sub(private) })
    }
}

/// Returns processes as a table for a terminal of `width` columns, and nothing for none.
pub(super) fn text(members: &[RecordedMember], width: usize) -> String {
    if members.is_empty() {
        return String::new();
    }
    let figures = &[
        "PID",
        "PSS\nFIRST",
        "\nLAST",
        "PRIVATE\nFIRST",
        "\nLAST",
        "MiB\n/min",
        "SHARED\nFIRST",
        "\nLAST",
    ];
    let row = |RecordedMember { pid, command, first, last, minutes }: &RecordedMember| {
        let grown = last.private.cast_signed() - first.private.cast_signed();
        let rate = if *minutes > 0.0 {
            format!("{:+.1}", grown as f64 / minutes / f64::from(1 << 20))
        } else {
            String::new()
        };
        Row {
            figures: vec![
                pid.to_string(),
                mebibytes(first.pss),
                mebibytes(last.pss),
                mebibytes(first.private),
                mebibytes(last.private),
                rate,
                mebibytes(first.shared),
                mebibytes(last.shared),
            ],
            note: vec![(Style::new(), command.replace(linux::is_control, " "))],
            ..Row::default()
        }
    };
    let rows: Vec<_> = members.iter().take(MAX_MEMBERS).map(row).collect();
    let heads = Heads { name: "", figures, note: "COMMAND", lead: Some("") };
    let mut text = String::new();
    let _ = write_rows(&mut text, &heads, &rows, width);
    text.pop();
    if members.len() > MAX_MEMBERS {
        let _ = writeln!(text, "  and {} others", members.len() - MAX_MEMBERS);
    }
    text
}
