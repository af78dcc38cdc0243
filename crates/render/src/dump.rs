use std::fmt::Write;
use std::path::Path;

use formats::{DumpCount, DumpDiff, DumpGroup};
use ledger::{Count, Size};
use linux::one_line;

use crate::kept::seconds;
use crate::rows::{Heads, Row, write_rows};
use crate::text::{BOLD, DIM, write_paragraph, write_wrapped};
use crate::words::lines::made_by_line;
use crate::words::{counted, signed};

/// The groups that a terminal shows.
const MAX_ROWS: usize = 15;

/// The summary of a dump that was saved: the numbers of objects, of references, and of slots that could not be read.
#[must_use]
pub fn saved_dump(counts: [u64; 3], path: &Path, values: bool) -> String {
    let [objects, references, unread_slots] = counts;
    let contents = match values {
        true => {
            "The dump has the texts of strings, so keep it as secret as the memory of the process."
        }
        false => {
            "The dump has addresses, sizes, and names of classes, constants, variables, methods and files, but no texts of strings."
        }
    };
    let mut text = format!(
        "{} objects with {} references saved in {}\n{contents}\n",
        Count(objects),
        Count(references),
        one_line(&path.display().to_string()),
    );
    if unread_slots > 0 {
        text += &format!(
            "Incomplete: {} slots are swapped out and were not read.\n",
            Count(unread_slots)
        );
    }
    text
}

/// What dumps have apart, in one sentence.
#[must_use]
pub fn dump_diff_summary(diff: &DumpDiff) -> String {
    let objects =
        |count: DumpCount| format!("{} ({})", counted(count.objects, "object"), Size(count.bytes));
    match diff.gone {
        Some(gone) => format!(
            "The second dump has {} that the first has not; the first has {} that the second has not.",
            objects(diff.new),
            objects(gone)
        ),
        None => format!("The last two dumps have {} that the first has not.", objects(diff.new)),
    }
}

/// Returns what dumps have apart as text for a terminal of `width` columns.
#[must_use]
pub fn dump_diff(diff: &DumpDiff, width: usize) -> String {
    let mut text = String::new();
    write(diff, &mut text, width).expect("a string takes all text");
    text
}

fn write(diff: &DumpDiff, out: &mut String, width: usize) -> std::fmt::Result {
    write_paragraph(out, BOLD, &dump_diff_summary(diff), "", width)?;
    for dump in diff.dumps.iter().filter(|it| it.unreadable_lines > 0) {
        let lines = counted(dump.unreadable_lines, "line");
        let text = format!("Incomplete: {lines} of {} cannot be read.", one_line(&dump.file));
        write_wrapped(out, "", &text, width)?;
    }
    writeln!(out)?;
    if diff.groups.is_empty() {
        return Ok(());
    }
    let figures: &[&str] = match diff.gone {
        Some(_) => &["new", "gone", "change"],
        None => &["objects", "bytes"],
    };
    let heads = Heads { name: "class", figures, note: "line and path", lead: Some("") };
    let row = |group: &DumpGroup| Row {
        name: one_line(&group.class),
        figures: match diff.gone {
            Some(_) => vec![
                Count(group.new.objects).to_string(),
                Count(group.gone.objects).to_string(),
                signed(group.change()),
            ],
            None => vec![Count(group.new.objects).to_string(), Size(group.new.bytes).to_string()],
        },
        note: note(group),
        ..Row::default()
    };
    let rows: Vec<Row> = diff.groups.iter().take(MAX_ROWS).map(row).collect();
    write_rows(out, &heads, &rows, width)?;
    if diff.groups.len() > MAX_ROWS {
        let more = counted((diff.groups.len() - MAX_ROWS) as u64, "group");
        write_paragraph(out, DIM, &format!("{more} more: --json"), "", width)?;
    }
    match lines(diff) {
        text if text.is_empty() => Ok(()),
        text => write_wrapped(out, "", &text, width),
    }
}

/// Where the lines are from, or why there are none.
fn lines(diff: &DumpDiff) -> String {
    let is_traced = diff.groups.iter().any(|it| it.line.is_some());
    match &diff.sampling {
        Some(it) => {
            let lines = match diff.groups.iter().any(|it| !it.made_by.is_empty()) {
                true => "Lines are those of",
                false => "No line is named by",
            };
            let (time, command) = (seconds(it.elapsed_ms), one_line(&it.command));
            format!("{lines} the samples of process {} in {time} ({command}).", it.pid)
        }
        None if is_traced => String::new(),
        None => "No lines: the allocation of these objects was not traced. While the process runs, `rbloat who PID --kept -o kept.json` \
                 finds them; give that file by --who."
            .into(),
    }
}

/// The line, and the path or at least the root.
fn note(group: &DumpGroup) -> Vec<(anstyle::Style, String)> {
    let traced = group.line.as_ref().map(|it| one_line(it));
    let sampled = || Some(one_line(&made_by_line(group.made_by.first()?, group.samples)));
    let line = traced.or_else(sampled);
    let path = match &group.path[..] {
        [] => group.root.iter().map(|it| one_line(it)).collect(),
        path => path.iter().map(|it| one_line(it)).collect::<Vec<_>>().join(" → "),
    };
    let parts = line.into_iter().chain([path]).filter(|it| !it.is_empty());
    parts.map(|it| (DIM, it)).collect()
}

#[cfg(test)]
mod tests {
    use formats::{DumpPoint, DumpSampling, KeptLine};

    use super::*;

    fn diff(gone: Option<DumpCount>) -> DumpDiff {
        let point = |file: &str, unreadable_lines| DumpPoint {
            file: file.into(),
            objects: 9,
            unreadable_lines,
        };
        let group = DumpGroup {
            class: "Entry\u{1b}[2J".into(),
            line: Some("app/cache.rb:7".into()),
            root: Some("Cache::LEAK".into()),
            new: DumpCount { objects: 3000, bytes: 192_000 },
            gone: gone.unwrap_or_default(),
            example: None,
            path: ["Cache::LEAK", "Array", "Entry"].map(str::to_owned).into(),
            samples: 0,
            made_by: Vec::new(),
        };
        let text = DumpGroup {
            class: "String".into(),
            line: None,
            path: Vec::new(),
            new: DumpCount { objects: 1, bytes: 40 },
            ..group.clone()
        };
        let dumps = vec![point("heap-1.ndjson", 0), point("heap-2.ndjson", 2)];
        DumpDiff { dumps, new: group.new, gone, groups: vec![group, text], sampling: None }
    }

    #[test]
    fn the_leak_between_three_dumps() {
        insta::assert_snapshot!(crate::text::without_styles(&dump_diff(&diff(None), 80)));
    }

    #[test]
    fn who_keeps_objects_that_were_not_traced() {
        let mut diff = diff(None);
        diff.groups[0].line = None;
        assert!(dump_diff(&diff, 200).contains("`rbloat who PID --kept -o kept.json`"));
        diff.sampling =
            Some(DumpSampling { pid: 7, command: "puma\u{1b}".into(), elapsed_ms: 9e3 });
        let none = "No line is named by the samples of process 7 in 9 s (puma ).";
        assert!(dump_diff(&diff, 200).contains(none), "{}", dump_diff(&diff, 200));
        let (method, path) = ("Cache#add".into(), Some("cache.rb".into()));
        let line = KeptLine { samples: 8, method, calls: None, path, line: Some(7) };
        (diff.groups[0].samples, diff.groups[0].made_by) = (9, vec![line]);
        let text = dump_diff(&diff, 200);
        for part in [
            "made by Cache#add (cache.rb:7), about 8 of 9 samples",
            "Lines are those of the samples of process 7 in 9 s",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn what_two_dumps_have_apart() {
        let gone = DumpCount { objects: 20, bytes: 1_000_000 };
        insta::assert_snapshot!(crate::text::without_styles(&dump_diff(&diff(Some(gone)), 100)));
    }
}
