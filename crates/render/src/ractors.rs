//! The memory of each Ractor that has an object space of its own.

use formats::{Ractor, Report};
use ledger::Count;

use crate::rows::{Heads, Row, write_rows};
use crate::text::{DIM, mebibytes};
use crate::words::total;

/// Ractors that are shown, at most: those with most memory.
const MAX_ROWS: usize = 8;

/// Writes the heap pages of each Ractor, if there are several.
pub(crate) fn write_ractors(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(ruby) = report.ruby.as_ref().filter(|ruby| !ruby.ractors.is_empty()) else {
        return Ok(());
    };
    let (ended, running): (Vec<&Ractor>, Vec<&Ractor>) =
        ruby.ractors.iter().partition(|ractor| ractor.ended);
    let (main, others) = running.split_at(running.len().min(1));
    let mut others = others.to_vec();
    others.sort_by_key(|ractor| std::cmp::Reverse(ractor.resident_bytes));
    let rest = others.split_off(others.len().min(MAX_ROWS));
    let shown = main.iter().map(|it| (true, *it)).chain(others.iter().map(|it| (false, *it)));
    let mut rows: Vec<Row> =
        shown.map(|(is_main, it)| row(name(it, is_main), it.place.clone(), &[it])).collect();
    for (name, ractors) in [("others", rest), ("that have ended", ended)] {
        if !ractors.is_empty() {
            rows.push(row(format!("({} {name})", ractors.len()), None, &ractors));
        }
    }
    let figures = &["PAGES", "RESIDENT", "OBJECTS", "IN USE", "GARBAGE", "FREE"];
    let heads =
        Heads { name: "RACTOR, MiB", figures, note: "CREATED AT", lead: Some("created at ") };
    write_rows(out, &heads, &rows, width)
}

fn name(ractor: &Ractor, is_main: bool) -> String {
    let number = ractor.number.map(|it| format!("#{it}"));
    let main = is_main.then(|| "main".to_owned());
    let parts: Vec<String> = number.into_iter().chain(main).chain(ractor.name.clone()).collect();
    if parts.is_empty() { "?".into() } else { parts.join(" ") }
}

fn row(name: String, place: Option<String>, ractors: &[&Ractor]) -> Row {
    let sum = |of: fn(&Ractor) -> u64| total(ractors.iter().map(|it| of(it)));
    let garbage = ractors.iter().map(|it| it.garbage_slot_bytes).collect::<Option<Vec<u64>>>();
    let garbage = garbage.map(total);
    let live = sum(|it| it.slot_bytes_live);
    Row {
        name,
        figures: vec![
            Count(sum(|it| it.heap_pages)).to_string(),
            mebibytes(sum(|it| it.resident_bytes)),
            Count(sum(|it| it.slots_live)).to_string(),
            mebibytes(live.saturating_sub(garbage.unwrap_or_default())),
            garbage.map_or_else(|| "?".into(), mebibytes),
            mebibytes(sum(|it| it.slot_bytes_free)),
        ],
        note: place.map(|it| (DIM, it)).into_iter().collect(),
        ..Row::default()
    }
}
