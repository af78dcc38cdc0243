//! The memory that live objects have and do not use.

use anstyle::Style;
use formats::{
    CopiesRow, Diff, FewRow, FewThings, KeptStacks, Report, TextRow, Waste, WasteChange,
    WasteContents, WasteGroup,
};
use ledger::{Count, Size, WasteKind, percent};
use serde_json::{Value, json};

use crate::rows::{Heads, Row, write_rows};
use crate::text::{BOLD, DIM, changes, mebibytes, write_wrapped};
use crate::words::{self, counted, line_of_root};

/// The part of RSS from which a report mentions it unasked, in percent.
const MIN_MENTIONED: f64 = 10.0;
/// Rows of each table, at most.
const MAX_ROWS: usize = 10;
/// The first characters of a text that are shown.
const MAX_TEXT: usize = 40;
/// Smaller groups are not shown.
const MIN_SHOWN_BYTES: u64 = 50 << 10;
/// Smaller changes of unused room are not shown, nor are smaller sums of the whole process.
const MIN_SHOWN_CHANGE: u64 = 1 << 20;

/// Writes the whole account, or one line if there is much and the account was not asked for.
pub(crate) fn write_waste(
    report: &Report,
    out: &mut String,
    width: usize,
    is_wanted: bool,
) -> std::fmt::Result {
    let Some(waste) = &report.waste else {
        let text =
            "The memory that live objects do not use is unknown: owners were not searched for.\n";
        return if is_wanted { write_wrapped(out, "", text, width) } else { Ok(()) };
    };
    let (unused, saved) = (waste.unused_bytes(), waste.saved_bytes());
    let rss = report.process.rss_bytes;
    if !is_wanted {
        if percent(saved, rss) < MIN_MENTIONED {
            return Ok(());
        }
        let text = format!(
            "Live objects keep {} of room that they do not need ({:.0} % of RSS): rbloat report {} --waste\n",
            Size(saved),
            percent(saved, rss),
            words::process(report)
        );
        return write_wrapped(out, "", &text, width);
    }
    out.push_str(&format!("{BOLD}MEMORY THAT LIVE OBJECTS DO NOT USE{BOLD:#}\n"));
    let text = format!(
        "{} of room ({:.1} % of RSS). {} of it would be free for other objects if each had only the memory that it needs.\n",
        Size(unused),
        percent(unused, rss),
        Size(saved)
    );
    write_wrapped(out, "", &text, width)?;
    let rounded = [
        (waste.rounded_bytes, "malloc", "the requests of strings, arrays and variables", "blocks"),
        (waste.slack_bytes, "Ruby", "the needs of strings, arrays, structs and objects", "slots"),
    ];
    for (bytes, by, to, memory) in rounded.into_iter().filter(|it| it.0 >= MIN_SHOWN_CHANGE) {
        let text = format!(
            "{by} added {} to {to}, because its {memory} have certain sizes.\n",
            Size(bytes)
        );
        write_wrapped(out, "", &text, width)?;
    }
    if let Some(text) = report.kept_stacks.as_ref().and_then(of_stacks) {
        write_wrapped(out, "", &text, width)?;
    }
    write_groups(report, waste, out, width)?;
    match &waste.contents {
        Some(contents) => write_contents(contents, out, width),
        None => write_wrapped(
            out,
            "",
            "Contents were not compared: the snapshot was taken without --waste.\n",
            width,
        ),
    }
}

/// A sentence on the parts of stacks that no call uses, if they are large.
fn of_stacks(stacks: &KeptStacks) -> Option<String> {
    let threads = stacks.main_bytes.saturating_add(stacks.unused_thread_bytes);
    let (fibers, vm) = (stacks.unused_fiber_bytes.unwrap_or_default(), stacks.unused_vm_bytes);
    let sum = threads.saturating_add(fibers).saturating_add(vm);
    (sum >= MIN_SHOWN_CHANGE).then(|| {
        format!(
            "Stacks have {} that no call uses now: {} of threads, {} of fibers, and {} of VM stacks.\n",
            Size(sum),
            Size(threads),
            Size(fibers),
            Size(vm)
        )
    })
}

fn write_groups(
    report: &Report,
    waste: &Waste,
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    let row = |group: &WasteGroup| Row {
        name: name(group.row.kind, &group.class),
        figures: vec![
            mebibytes(group.row.unused_bytes),
            mebibytes(group.row.saved_bytes),
            Count(group.row.objects).to_string(),
            mebibytes(group.row.bytes),
            format!("{:.1}", percent(group.row.used_bytes, group.row.bytes)),
        ],
        note: vec![(Style::new(), group.path.clone()), (DIM, line_of_root(report, &group.path))],
        ..Row::default()
    };
    let is_shown = |group: &&WasteGroup| group.row.unused_bytes >= MIN_SHOWN_BYTES;
    let rows: Vec<_> = waste.groups.iter().filter(is_shown).take(MAX_ROWS).map(row).collect();
    let heads = Heads {
        name: "ROOM OF, MiB",
        figures: &["UNUSED", "SAVED", "OBJECTS", "ALLOCATED", "USED, %"],
        note: "RETAINED BY",
        lead: Some("retained by "),
    };
    write_rows(out, &heads, &rows, width)
}

/// Writes how much more or less of their room objects leave unused, if that changed much.
pub(crate) fn write_waste_changes(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let is_shown = |it: &&WasteChange| it.unused_bytes.change.unsigned_abs() >= MIN_SHOWN_CHANGE;
    let row = |it: &WasteChange| Row {
        name: name(it.kind, &it.class),
        figures: changes(&it.unused_bytes),
        note: vec![
            (Style::new(), it.path.clone()),
            (
                DIM,
                if it.is_room_only() { "the room grew, not what is in it" } else { "" }.to_owned(),
            ),
        ],
        ..Row::default()
    };
    let rows: Vec<_> = diff.waste.iter().filter(is_shown).take(MAX_ROWS).map(row).collect();
    let heads = Heads {
        name: "UNUSED ROOM OF",
        figures: &["FIRST", "LAST", "CHANGE, MiB"],
        note: "RETAINED BY",
        lead: Some("retained by "),
    };
    write_rows(out, &heads, &rows, width)
}

/// The account as rows of a page: of the room, of equal objects, and of nearly empty ones. Names are the first cells, paths the last ones.
pub(crate) fn page_rows(waste: &Waste) -> Value {
    let room = waste.groups.iter().filter(|group| group.row.unused_bytes >= MIN_SHOWN_BYTES);
    let room = room.take(MAX_ROWS).map(|group| {
        let row = &group.row;
        let used = format!("{:.1}", percent(row.used_bytes, row.bytes));
        let objects = Count(row.objects).to_string();
        json!([
            name(row.kind, &group.class),
            row.unused_bytes,
            row.saved_bytes,
            objects,
            used,
            group.path
        ])
    });
    let contents = waste.contents.iter();
    let copies =
        contents.clone().flat_map(|it| &it.copies).filter(|row| row.bytes >= MIN_SHOWN_BYTES);
    let copies = copies.take(MAX_ROWS).map(|row| {
        let [objects, contents] = [row.objects, row.contents].map(|it| Count(it).to_string());
        json!([row.class, row.bytes, objects, contents, row.path])
    });
    let few = contents.flat_map(|it| &it.few).filter(|row| row.bytes >= MIN_SHOWN_BYTES);
    let few = few
        .take(MAX_ROWS)
        .map(|row| json!([name_of_few(row), row.bytes, Count(row.objects).to_string(), row.path]));
    json!({
        "room": room.collect::<Vec<_>>(),
        "copies": copies.collect::<Vec<_>>(),
        "few": few.collect::<Vec<_>>(),
    })
}

/// The class of objects with next to nothing in them.
fn name_of_few(row: &FewRow) -> String {
    match row.has {
        FewThings::Nothing => format!("{}, empty", row.class),
        FewThings::OneElement => format!("{}, with one element", row.class),
        FewThings::OnlyNil => format!("{}, with nothing but nil", row.class),
        FewThings::MostlyNil => format!("{}, with nil in 7 of 8 places", row.class),
    }
}

/// The class of objects, and what they have room for.
fn name(kind: WasteKind, class: &str) -> String {
    match kind {
        WasteKind::Strings | WasteKind::Arrays => class.to_owned(),
        WasteKind::SlicedStrings => format!("{class}, of which others are slices"),
        // Programs do not know the array that owns the elements.
        WasteKind::SlicedArrays => "Array, of which others are slices".to_owned(),
        WasteKind::Hashes => format!("{class}, for entries"),
        WasteKind::IoBuffers => format!("{class}, in buffers"),
        WasteKind::Sets => format!("{class}, for elements"),
        WasteKind::Variables => format!("{class}, for variables"),
        WasteKind::Slots => format!("{class}, in slots"),
    }
}

fn write_contents(contents: &WasteContents, out: &mut String, width: usize) -> std::fmt::Result {
    let text = format!(
        "{} ({}) equal another object. One of each does not count.{}\n",
        counted(contents.copy_objects, "object"),
        Size(contents.copy_bytes),
        match contents.left_out {
            0 => String::new(),
            left_out => format!(" {} could not be compared.", counted(left_out, "string")),
        }
    );
    write_wrapped(out, "", &text, width)?;
    let row = |row: &CopiesRow| Row {
        name: row.class.clone(),
        figures: vec![
            mebibytes(row.bytes),
            Count(row.objects).to_string(),
            Count(row.contents).to_string(),
        ],
        note: vec![(Style::new(), row.path.clone())],
        ..Row::default()
    };
    let is_shown = |bytes: u64| bytes >= MIN_SHOWN_BYTES;
    let copies = contents.copies.iter().filter(|row| is_shown(row.bytes));
    let rows: Vec<_> = copies.take(MAX_ROWS).map(row).collect();
    let heads = Heads {
        name: "EQUAL, MiB",
        figures: &["RESIDENT", "OBJECTS", "DIFFERENT"],
        note: "RETAINED BY",
        lead: Some("retained by "),
    };
    write_rows(out, &heads, &rows, width)?;
    write_texts(contents, out, width)?;
    let row = |row: &FewRow| Row {
        name: name_of_few(row),
        figures: vec![mebibytes(row.bytes), Count(row.objects).to_string()],
        note: vec![(Style::new(), row.path.clone())],
        ..Row::default()
    };
    let few = contents.few.iter().filter(|row| is_shown(row.bytes));
    let rows: Vec<_> = few.take(MAX_ROWS).map(row).collect();
    let heads = Heads {
        name: "NEARLY EMPTY, MiB",
        figures: &["RESIDENT", "OBJECTS"],
        note: "RETAINED BY",
        lead: Some("retained by "),
    };
    write_rows(out, &heads, &rows, width)
}

/// Writes the texts of which there are most copies, if they were wanted.
fn write_texts(contents: &WasteContents, out: &mut String, width: usize) -> std::fmt::Result {
    let row = |row: &TextRow| {
        let text = row.text.as_ref()?;
        let mut shown: String = text.chars().take(MAX_TEXT).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Some(Row {
            name: format!("\"{shown}\""),
            figures: vec![
                mebibytes(row.bytes),
                Count(row.objects).to_string(),
                Count(row.length).to_string(),
            ],
            note: vec![(Style::new(), row.path.clone())],
            ..Row::default()
        })
    };
    let is_shown = |row: &&TextRow| row.bytes >= MIN_SHOWN_BYTES;
    let rows: Vec<_> =
        contents.texts.iter().filter(is_shown).filter_map(row).take(MAX_ROWS).collect();
    let heads = Heads {
        name: "TEXT, MiB",
        figures: &["RESIDENT", "OBJECTS", "LENGTH"],
        note: "RETAINED BY",
        lead: Some("retained by "),
    };
    write_rows(out, &heads, &rows, width)
}
