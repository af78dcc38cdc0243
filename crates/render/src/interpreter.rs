//! The interpreter's own memory as tables.

use anstyle::Style;
use formats::{FileCode, GemCode, Interpreter, InterpreterPart, Report};
use ledger::{Cause, Count, percent};

use crate::rows::{Heads, Row, write_rows};
use crate::text::{BOLD, DIM, mebibytes};
use crate::words;

/// The least size of the interpreter's memory that a report shows without being asked, in bytes and in percent of RSS.
const MIN_BYTES: u64 = 16 << 20;
const MIN_SHARE: f64 = 20.0;
/// Gems and files that are shown, at most.
const MAX_ROWS: usize = 10;

/// Writes the interpreter's memory by kind and by gem if there is much of it. `is_wanted` shows it anyway, and by
/// file, too.
pub(crate) fn write_interpreter(
    report: &Report,
    out: &mut String,
    width: usize,
    is_wanted: bool,
) -> std::fmt::Result {
    let row = report.causes.iter().find(|row| row.cause == Cause::RubyVm);
    let bytes = row.map_or(0, |row| row.bytes);
    let is_much = bytes >= MIN_BYTES && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    let Some(interpreter) = report.interpreter.as_ref().filter(|_| is_wanted || is_much) else {
        return Ok(());
    };
    write_kinds(interpreter, out, width)?;
    if let Some(gems) = &interpreter.gems {
        write_gems(gems, out, width)?;
    }
    match &interpreter.files {
        Some(files) if is_wanted => write_files(files, out, width),
        _ => Ok(()),
    }
}

fn write_kinds(interpreter: &Interpreter, out: &mut String, width: usize) -> std::fmt::Result {
    let row = |name: &str, objects, slot_bytes, resident_bytes| Row {
        name: name.to_owned(),
        figures: vec![Count(objects).to_string(), mebibytes(slot_bytes), mebibytes(resident_bytes)],
        ..Row::default()
    };
    let kinds = interpreter.kinds.iter().map(|part| Row {
        note: vec![(DIM, words::interpreter_kind(part.kind).to_owned())],
        ..row(part.kind.name(), part.objects, part.slot_bytes, part.resident_bytes)
    });
    let sum = |of: fn(&InterpreterPart) -> u64| words::total(interpreter.kinds.iter().map(of));
    let [objects, slots, resident] =
        [sum(|it| it.objects), sum(|it| it.slot_bytes), sum(|it| it.resident_bytes)];
    let total = Row { style: BOLD, ..row(Cause::RubyVm.name(), objects, slots, resident) };
    let rows: Vec<_> = kinds.chain([total]).collect();
    let figures = &["OBJECTS", "SLOTS", "RESIDENT"];
    write_rows(out, &Heads { name: "INTERPRETER, MiB", figures, ..Heads::default() }, &rows, width)
}

fn write_gems(gems: &[GemCode], out: &mut String, width: usize) -> std::fmt::Result {
    let (first, others) = gems.split_at(gems.len().min(MAX_ROWS));
    let sum = |of: fn(&GemCode) -> u64| words::total(others.iter().map(of));
    let others = (!others.is_empty()).then(|| GemCode {
        gem: format!("({} others)", others.len()),
        version: None,
        files: sum(|gem| gem.files),
        iseqs: sum(|gem| gem.iseqs),
        slot_bytes: sum(|gem| gem.slot_bytes),
        resident_bytes: sum(|gem| gem.resident_bytes),
    });
    let row = |gem: &GemCode| {
        let name = match &gem.version {
            Some(version) => format!("{} {version}", gem.gem),
            None => gem.gem.clone(),
        };
        let figures = vec![
            Count(gem.files).to_string(),
            Count(gem.iseqs).to_string(),
            mebibytes(gem.slot_bytes),
            mebibytes(gem.resident_bytes),
        ];
        Row { name, figures, ..Row::default() }
    };
    let rows: Vec<_> = first.iter().chain(&others).map(row).collect();
    let heads = Heads {
        name: "BYTECODE OF, MiB",
        figures: &["FILES", "ISEQS", "SLOTS", "RESIDENT"],
        note: "",
        lead: Some(""),
    };
    write_rows(out, &heads, &rows, width)
}

fn write_files(files: &[FileCode], out: &mut String, width: usize) -> std::fmt::Result {
    let row = |file: &FileCode| Row {
        figures: vec![
            Count(file.iseqs).to_string(),
            mebibytes(file.slot_bytes),
            mebibytes(file.resident_bytes),
        ],
        note: vec![(Style::new(), file.path.as_ref().unwrap_or(&file.gem).clone())],
        ..Row::default()
    };
    let rows: Vec<_> = files.iter().take(MAX_ROWS).map(row).collect();
    let figures = &["ISEQS", "SLOTS", "RESIDENT"];
    let heads = Heads { name: "", figures, note: "BYTECODE OF THE FILE, MiB", lead: Some("") };
    write_rows(out, &heads, &rows, width)
}
