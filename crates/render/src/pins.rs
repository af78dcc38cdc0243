use anstyle::Style;
use formats::{Diff, Malloc, PinChange, PinRow, Report, SizeClass, SizeClassChange, Trajectory};
use ledger::{Cause, Count, percent};

use crate::rows::{Heads, Row, write_rows};
use crate::text::{change, mebibytes};
use crate::words::{signed_count, total};

/// The least free memory on pages in use that a report explains, in bytes and in percent of RSS.
const MIN_BYTES: u64 = 8 << 20;
const MIN_SHARE: f64 = 5.0;
/// Owners and size classes that are shown, at most.
const MAX_ROWS: usize = 5;
/// Owners that are named for one size class, at most.
const MAX_NAMES: usize = 3;

/// Writes whose blocks keep free memory resident, if there is much of it, and how full slabs are.
pub(crate) fn write_pins(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let rows = report.causes.iter().filter(|row| row.cause == Cause::MallocFragmented);
    let bytes = total(rows.map(|row| row.bytes));
    let is_much = bytes >= MIN_BYTES && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    let Some(malloc) = report.malloc.as_ref().filter(|_| is_much) else { return Ok(()) };
    if !malloc.pinned_by.is_empty() {
        write_owners(malloc, bytes, out, width)?;
    }
    if !malloc.size_classes.is_empty() {
        write_classes(malloc, out, width)?;
    }
    Ok(())
}

fn write_owners(malloc: &Malloc, bytes: u64, out: &mut String, width: usize) -> std::fmt::Result {
    let row = |pin: &PinRow| Row {
        name: pin.owner.clone(),
        figures: vec![
            Count(pin.blocks).to_string(),
            mebibytes(pin.bytes),
            format!("{:.1}", percent(pin.bytes, bytes)),
        ],
        ..Row::default()
    };
    let rows: Vec<_> = malloc.pinned_by.iter().take(MAX_ROWS).map(row).collect();
    let figures = &["BLOCKS", "KEPT", "%"];
    let heads = Heads { name: "KEEPS FREE MEMORY, MiB", figures, note: "", lead: Some("") };
    write_rows(out, &heads, &rows, width)
}

fn write_classes(malloc: &Malloc, out: &mut String, width: usize) -> std::fmt::Result {
    let mut classes: Vec<&SizeClass> = malloc.size_classes.iter().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.free_bytes));
    let row = |class: &&SizeClass| Row {
        figures: vec![
            format!("{} B", Count(class.region_bytes)),
            Count(class.slabs).to_string(),
            Count(class.regions).to_string(),
            format!("{:.1}", percent(class.in_use, class.regions)),
            mebibytes(class.free_bytes),
        ],
        note: vec![(Style::new(), names(&class.pinned_by, class.free_bytes))],
        ..Row::default()
    };
    let shown = classes.iter().take(MAX_ROWS).filter(|class| class.free_bytes > 0);
    let rows: Vec<_> = shown.map(row).collect();
    let figures = &["SLABS OF", "SLABS", "REGIONS", "IN USE %", "FREE, MiB"];
    write_rows(out, &Heads { name: "", figures, note: "KEPT BY", lead: Some("") }, &rows, width)
}

/// The owners of the regions that keep `bytes`, with their shares.
fn names(pins: &[PinRow], bytes: u64) -> String {
    let names = pins.iter().take(MAX_NAMES).map(|pin| {
        let share = percent(pin.bytes, bytes);
        format!("{} {share:.0} %", pin.owner)
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Writes which blocks keep more or less free memory resident, if that memory changed much.
pub(crate) fn write_pin_changes(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let row = diff.causes.iter().find(|row| row.cause == Cause::MallocFragmented);
    let bytes = row.map_or(0, |row| row.bytes.change.unsigned_abs());
    let rss = diff.rss_bytes.at.iter().copied().max().unwrap_or(0);
    if bytes < MIN_BYTES || percent(bytes, rss) < MIN_SHARE {
        return Ok(());
    }
    let first = |it: &Trajectory| it.at.first().copied().unwrap_or(0);
    let pin = |pin: &PinChange| Row {
        name: pin.owner.clone(),
        figures: vec![
            mebibytes(first(&pin.bytes)),
            mebibytes(pin.bytes.last()),
            change(pin.bytes.change),
            Count(pin.blocks.last()).to_string(),
            signed_count(pin.blocks.change),
        ],
        ..Row::default()
    };
    let pins: Vec<_> = diff.pins.iter().flatten().take(MAX_ROWS).map(pin).collect();
    let figures = &["FIRST", "LAST", "CHANGE", "BLOCKS", "CHANGE"];
    let heads = Heads { name: "KEEPS FREE MEMORY, MiB", figures, ..Heads::default() };
    write_rows(out, &heads, &pins, width)?;
    let class = |class: &SizeClassChange| Row {
        figures: vec![
            format!("{} B", Count(class.region_bytes)),
            Count(class.slabs.last()).to_string(),
            signed_count(class.slabs.change),
            share(first(&class.in_use), first(&class.regions)),
            share(class.in_use.last(), class.regions.last()),
            mebibytes(class.free_bytes.last()),
            change(class.free_bytes.change),
        ],
        ..Row::default()
    };
    let classes: Vec<_> = diff.size_classes.iter().flatten().take(MAX_ROWS).map(class).collect();
    let figures =
        &["SLABS OF", "SLABS", "CHANGE", "IN USE %, FIRST", "LAST", "FREE, MiB", "CHANGE"];
    write_rows(out, &Heads { figures, ..Heads::default() }, &classes, width)
}

/// A share in percent; nothing if there is no whole.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 { String::new() } else { format!("{:.1}", percent(part, whole)) }
}
