//! A diff as text.

use std::fmt::Write;

use ledger::Count;

use crate::diff::verdict::{signed, signed_count};
use crate::diff::{Diff, DiffKind, Series};
use crate::text::{
    BOLD, DIM, GREEN, RED, YELLOW, align_right, megabytes, table, trimmed, write_paragraph,
    write_wrapped,
};

/// Rows of classes and of owners.
const MOST_ROWS: usize = 12;
/// A change of less is not shown, in bytes.
const LEAST_BYTES: u64 = 16 << 10;
/// Columns of a name.
const NAME: usize = 40;

impl Diff {
    /// The diff as text for a terminal of `width` columns: verdict, causes, classes, owners. With ANSI
    /// colours, for the caller to strip where they are not wanted.
    #[must_use]
    pub fn render_text(&self, width: usize) -> String {
        let mut text = String::new();
        self.write(&mut text, width).expect("a string takes what is written");
        text
    }

    fn write(&self, out: &mut String, width: usize) -> std::fmt::Result {
        self.write_head(out)?;
        let verdict = &self.verdict;
        let style = match verdict.kind {
            DiffKind::ManagedLeak | DiffKind::NativeLeak => RED,
            DiffKind::Growth | DiffKind::Retention => YELLOW,
            DiffKind::WarmUp | DiffKind::Stable | DiffKind::Shrank => GREEN,
        };
        write_paragraph(out, style, &verdict.summary, "", width)?;
        for evidence in &verdict.evidence {
            write_wrapped(out, " · ", evidence, width)?;
        }
        let sure =
            format!("confidence {}; proved wrong if: {}", verdict.confidence, verdict.falsified_by);
        write_paragraph(out, YELLOW, &sure, "   ", width)?;
        writeln!(out)?;
        self.write_causes(out)?;
        self.write_classes(out)?;
        self.write_owners(out)
    }

    fn write_head(&self, out: &mut String) -> std::fmt::Result {
        for (index, point) in self.points.iter().enumerate() {
            let after = match self.points.first() {
                Some(first) if index > 0 && self.same_process => format!(
                    "  ·  {:.0} s later",
                    point.unix_ms.saturating_sub(first.unix_ms) as f64 / 1e3
                ),
                _ => String::new(),
            };
            writeln!(
                out,
                "{BOLD}{}{BOLD:#}  pid {}  ·  {} resident{after}  {DIM}{}{DIM:#}",
                point.source,
                point.pid,
                ledger::Size(self.rss_bytes.at[index]),
                point.command.chars().take(NAME).collect::<String>(),
            )?;
        }
        writeln!(out)
    }

    fn write_causes(&self, out: &mut String) -> std::fmt::Result {
        let mut causes = table(["WHERE IT WENT, MB", "FIRST", "LAST", "CHANGE"]);
        let row = |name: &str, series: &Series| {
            let [first, last] = [series.at.first(), series.at.last()]
                .map(|bytes| bytes.map_or_else(String::new, |&bytes| megabytes(bytes)));
            [name.to_owned(), first, last, change(series.change)]
        };
        for cause in &self.causes {
            if cause.bytes.change.unsigned_abs() >= LEAST_BYTES {
                causes.add_row(row(&cause.cause, &cause.bytes));
            }
        }
        causes.add_row(row("RSS", &self.rss_bytes));
        align_right(&mut causes, 1..4);
        writeln!(out, "{}\n", trimmed(&causes))
    }

    fn write_classes(&self, out: &mut String) -> std::fmt::Result {
        let heads =
            ["CLASS", "OBJECTS", "CHANGE", "SURVIVED", "NEW", "OLD OF THE NEW", "MB", "GAINED BY"];
        let mut classes = table(heads);
        let large = |bytes: &Series| bytes.change.unsigned_abs() >= LEAST_BYTES;
        let shown: Vec<_> =
            self.classes.iter().filter(|class| large(&class.bytes)).take(MOST_ROWS).collect();
        if shown.is_empty() {
            return Ok(());
        }
        for class in shown {
            // Without owners nothing tells whose a slot is.
            let is_told = self.same_process && class.survivors + class.newcomers > 0;
            let told = |count| {
                if is_told { Count(count).to_string() } else { String::new() }
            };
            classes.add_row([
                class.name.chars().take(NAME).collect(),
                Count(class.objects.last()).to_string(),
                signed_count(class.objects.change),
                told(class.survivors),
                told(class.newcomers),
                told(class.old_newcomers),
                change(class.bytes.change),
                class.kept_by.as_deref().unwrap_or_default().chars().take(NAME).collect(),
            ]);
        }
        align_right(&mut classes, 1..7);
        writeln!(out, "{}\n", trimmed(&classes))
    }

    fn write_owners(&self, out: &mut String) -> std::fmt::Result {
        let mut owners = table(["NATIVE MEMORY OF", "FIRST", "LAST", "CHANGE, MB", "CAUSE"]);
        let is_native = |cause: &str| cause.starts_with("native.");
        let shown: Vec<_> = self
            .owners
            .iter()
            .filter(|it| is_native(&it.cause) && it.bytes.change.unsigned_abs() >= LEAST_BYTES)
            .take(MOST_ROWS)
            .collect();
        if shown.is_empty() {
            return Ok(());
        }
        for owner in shown {
            owners.add_row([
                owner.owner.chars().take(NAME).collect(),
                megabytes(owner.bytes.at.first().copied().unwrap_or(0)),
                megabytes(owner.bytes.last()),
                change(owner.bytes.change),
                owner.cause.clone(),
            ]);
        }
        align_right(&mut owners, 1..4);
        writeln!(out, "{}\n", trimmed(&owners))
    }
}

/// A change in MB, with its sign.
fn change(bytes: i64) -> String {
    if bytes.unsigned_abs() < LEAST_BYTES {
        return signed(bytes);
    }
    format!("{:+.1}", bytes as f64 / f64::from(1 << 20))
}
