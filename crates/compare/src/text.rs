//! A comparison as a table: in Markdown, which reads well on a terminal too.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use crate::{Comparison, Failed, Medians, Spread};

/// A column: its heading, and the cell of a setting.
type Column = (&'static str, fn(&Medians) -> Option<String>);

const COLUMNS: [Column; 11] = [
    ("peak, MB", |it| Some(megabytes(&it.rss_peak_bytes))),
    ("end of work, MB", |it| Some(megabytes(&it.rss_end_bytes))),
    ("settled, MB", |it| it.rss_settled_bytes.as_ref().map(megabytes)),
    ("wall, s", |it| Some(show(&it.wall_ms, 1e3, 2))),
    ("user, s", |it| Some(show(&it.user_ms, 1e3, 2))),
    ("system, s", |it| Some(show(&it.system_ms, 1e3, 2))),
    ("page faults, thousands", |it| Some(show(&it.minor_faults, 1e3, 0))),
    ("requests/s", |it| it.requests_per_second.as_ref().map(|it| show(it, 1.0, 0))),
    ("failed", |it| it.failures.map(|count| count.to_string())),
    ("p99, ms", |it| it.p99_ms.as_ref().map(|it| show(it, 1.0, 1))),
    ("slowest, ms", |it| it.max_ms.as_ref().map(|it| show(it, 1.0, 1))),
];

impl Comparison {
    /// The comparison as Markdown: the table, what is missing, the recommendation.
    #[must_use]
    pub fn render_markdown(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("a string takes what is written");
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "`{}`", self.command.join(" ").replace(char::is_control, " "))?;
        if let Some(load) = &self.load {
            writeln!(out, "under `{load}`")?;
        }
        let runs = self.medians.iter().map(|it| it.runs).max().unwrap_or(0);
        writeln!(
            out,
            "\nMedians of {runs} run{} (least–most); settled: {} s after the work. What differs from the first row \
             in every run, by 2 % or more (a quarter with fewer than three runs), is marked by how much; the rest is noise.\n",
            if runs == 1 { "" } else { "s" },
            self.settle_seconds
        )?;
        let columns: Vec<&Column> = COLUMNS
            .iter()
            .filter(|(_, cell)| self.medians.iter().any(|it| cell(it).is_some()))
            .collect();
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(std::iter::once("setting").chain(columns.iter().map(|it| it.0)));
        for medians in &self.medians {
            let cells = columns.iter().map(|(_, cell)| cell(medians).unwrap_or_default());
            table.add_row(std::iter::once(medians.setting.clone()).chain(cells));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(out, "{}\n", table.trim_fmt())?;
        for missing in &self.missing {
            writeln!(out, "Not tried: {}, which needs {}.", missing.setting, missing.needs)?;
        }
        for Failed { setting, number, why } in &self.failed {
            writeln!(out, "Failed: {setting}, run {number}: {why}.")?;
        }
        let recommendation = &self.recommendation;
        writeln!(
            out,
            "{} Confidence {}.",
            recommendation.summary,
            recommendation.confidence.name()
        )?;
        for passed_over in &recommendation.passed_over {
            writeln!(out, "- {passed_over}")?;
        }
        Ok(())
    }
}

fn megabytes(spread: &Spread) -> String {
    show(spread, f64::from(1 << 20), 0)
}

/// A median with its range, and what it differs by.
fn show(spread: &Spread, unit: f64, digits: usize) -> String {
    let number = |value: f64| format!("{:.digits$}", value / unit);
    let mut text = number(spread.median);
    let (least, most) = (number(spread.min), number(spread.max));
    if least != most {
        let _ = write!(text, " ({least}–{most})");
    }
    if let Some(percent) = spread.differs_percent {
        let _ = write!(text, " {percent:+.0} %");
    }
    text
}
