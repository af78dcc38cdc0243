//! A comparison as a table: in Markdown, which reads well on a terminal too.

use std::fmt::Write;

use diagnosis::Setting;
use formats::{
    Comparison, Drawback, FailedRun, Medians, PassedOver, Reason, Recommendation, Spread,
};
use ledger::Size;
use textwrap::core::display_width;

use crate::text::write_wrapped;
use crate::words;

/// A column: its heading, and the cell of a setting.
type Column = (&'static str, fn(&Medians) -> Option<String>);

/// The maximum number of digits after the point that a small number adds.
const MAX_DIGITS: f64 = 3.0;

const COLUMNS: [Column; 11] = [
    ("peak, MiB", |it| Some(mebibytes(&it.rss_peak_bytes))),
    ("end of work, MiB", |it| Some(mebibytes(&it.rss_end_bytes))),
    ("settled, MiB", |it| it.rss_settled_bytes.as_ref().map(mebibytes)),
    ("wall, s", |it| Some(show(&it.wall_ms, 1e3, 2))),
    ("user, s", |it| Some(show(&it.user_ms, 1e3, 2))),
    ("system, s", |it| Some(show(&it.system_ms, 1e3, 2))),
    ("page faults (thousands)", |it| Some(show(&it.minor_faults, 1e3, 0))),
    ("requests/s", |it| it.requests_per_second.as_ref().map(|it| show(it, 1.0, 0))),
    ("failed", |it| it.failures.map(|count| count.to_string())),
    ("p99, ms", |it| it.p99_ms.as_ref().map(|it| show(it, 1.0, 1))),
    ("max, ms", |it| it.max_ms.as_ref().map(|it| show(it, 1.0, 1))),
];

/// Returns a comparison as Markdown: the table, the settings that were not tried, and the recommendation.
#[must_use]
pub fn comparison(comparison: &Comparison) -> String {
    comparison_on_terminal(comparison, usize::MAX)
}

/// Returns the same for a terminal of `width` columns: a table that is too wide becomes several, and sentences are wrapped.
#[must_use]
pub fn comparison_on_terminal(comparison: &Comparison, width: usize) -> String {
    let mut text = String::new();
    write_comparison(comparison, width, &mut text).expect("a string takes all text");
    text
}

fn write_comparison(comparison: &Comparison, width: usize, out: &mut String) -> std::fmt::Result {
    writeln!(out, "`{}`", comparison.command.join(" ").replace(char::is_control, " "))?;
    if let Some(load) = &comparison.load {
        writeln!(out, "under `{load}`")?;
    }
    let runs = comparison.medians.iter().map(|it| it.runs).max().unwrap_or(0);
    let differences = if runs == 1 {
        "One run of a setting shows no differences, because noise cannot be estimated"
    } else {
        "A percentage is the difference from the first row if it is at least 2 % and is not noise (5 % error for each \
         column); other differences may be noise"
    };
    let head = format!(
        "Medians of {} (min–max). *Settled* is {} s after the work. {differences}.",
        words::counted(u64::from(runs), "run"),
        comparison.settle_seconds
    );
    writeln!(out)?;
    write_wrapped(out, "", &head, width)?;
    writeln!(out)?;
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|(_, cell)| comparison.medians.iter().any(|it| cell(it).is_some()))
        .collect();
    let mut rest = &columns[..];
    while !rest.is_empty() {
        // The most columns that fit.
        let tables = (1..=rest.len()).rev().map(|count| (count, table(comparison, &rest[..count])));
        let is_narrow = |(count, table): &(usize, String)| {
            *count == 1 || table.lines().all(|line| display_width(line) <= width)
        };
        let Some((count, table)) = tables.into_iter().find(is_narrow) else { break };
        writeln!(out, "{table}\n")?;
        rest = &rest[count..];
    }
    for missing in &comparison.missing {
        let text = format!("Not tried: {}. It needs {}.", missing.setting, missing.needs);
        write_wrapped(out, "", &text, width)?;
    }
    for FailedRun { setting, number, why } in &comparison.failed {
        write_wrapped(out, "", &format!("Failed: {setting}, run {number}: {why}."), width)?;
    }
    write_wrapped(out, "", &recommendation(comparison), width)?;
    for it in &comparison.recommendation.passed_over {
        write_wrapped(out, "- ", &passed_over(it, &comparison.recommendation), width)?;
    }
    Ok(())
}

/// A table of some columns.
fn table(comparison: &Comparison, columns: &[&Column]) -> String {
    let head = std::iter::once("setting").chain(columns.iter().map(|it| it.0));
    let row = |medians: &Medians| -> Vec<String> {
        let cells = columns.iter().map(|(_, cell)| cell(medians).unwrap_or_default());
        std::iter::once(medians.setting.clone()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = std::iter::once(head.map(str::to_owned).collect())
        .chain(comparison.medians.iter().map(row))
        .collect();
    let width = |column: usize| rows.iter().map(|row| display_width(&row[column])).max();
    let widths: Vec<usize> = (0..=columns.len()).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let blanks = " ".repeat(width - display_width(cell));
            if column == 0 { format!(" {cell}{blanks} ") } else { format!(" {blanks}{cell} ") }
        });
        format!("|{}|", cells.collect::<Vec<_>>().join("|"))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| {
        let end = if column == 0 { "-" } else { ":" };
        format!("{}{end}", "-".repeat(width + 1))
    });
    let rule = format!("|{}|", rule.collect::<Vec<_>>().join("|"));
    let mut lines: Vec<_> = rows.iter().map(line).collect();
    lines.insert(1, rule);
    lines.join("\n")
}

/// Returns the recommendation of a comparison in words.
#[must_use]
pub fn recommendation(comparison: &Comparison) -> String {
    let recommendation = &comparison.recommendation;
    let confidence = words::confidence(recommendation.confidence);
    let medians = |setting: &str| comparison.medians.iter().find(|it| it.setting == setting);
    let (Some(base), Some(best)) = (comparison.medians.first(), medians(&recommendation.setting))
    else {
        return format!("Change nothing: nothing was measured. {confidence}");
    };
    match recommendation.reason {
        Reason::OnlyOne => {
            return format!("Change nothing: no other setting was tried. {confidence}");
        }
        Reason::TooFewRuns => {
            return format!(
                "Change nothing yet: noise cannot be estimated from one run. Use --runs 3 or more. {confidence}"
            );
        }
        Reason::NoneSaves => {
            return format!(
                "Change nothing: no setting was found to save 10 % of the remaining memory at little cost. {confidence}"
            );
        }
        Reason::Saves => {}
    }
    let speed = match recommendation.slower_percent {
        None => "no difference in speed was found".to_owned(),
        Some(percent) if percent > 0.0 => format!("it is {percent:.0} % slower"),
        Some(percent) => format!("it is {:.0} % faster", -percent),
    };
    let peak = match recommendation.peak_percent {
        None => "no difference in the peak was found".to_owned(),
        Some(percent) if percent > 0.0 => format!("the peak is {percent:.0} % higher"),
        Some(percent) => format!("the peak is {:.0} % lower", -percent),
    };
    let setting = comparison.settings.iter().find(|it| it.setting == recommendation.setting);
    format!(
        "Use {}: {}. It leaves {} instead of {} ({:.0} % less); {peak}; {speed}. {confidence}",
        recommendation.setting,
        setting.map_or_else(String::new, |setting| how(&Setting::of(setting))),
        Size(best.left_bytes().median as u64),
        Size(base.left_bytes().median as u64),
        recommendation.saves_percent,
    )
}

/// The way to apply a setting.
fn how(setting: &Setting) -> String {
    let how = match setting {
        Setting::Own(_, variables) => {
            let set: Vec<_> =
                variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
            return format!("set {}", set.join(" "));
        }
        Setting::Default => "change nothing",
        Setting::Arena2 => "set MALLOC_ARENA_MAX=2",
        Setting::Jemalloc => "set LD_PRELOAD to libjemalloc.so.2",
        Setting::JemallocBackground => {
            "set LD_PRELOAD to libjemalloc.so.2 and MALLOC_CONF=background_thread:true"
        }
        Setting::JemallocDecay => {
            "set LD_PRELOAD to libjemalloc.so.2 and MALLOC_CONF=dirty_decay_ms:1000"
        }
        Setting::JemallocArena2 => "set LD_PRELOAD to libjemalloc.so.2 and MALLOC_CONF=narenas:2",
        Setting::Tcmalloc => "set LD_PRELOAD to libtcmalloc_minimal.so.4",
        Setting::Mimalloc => "set LD_PRELOAD to libmimalloc.so.2",
        Setting::Trim => "run `rbloat trim PID` after such work",
        Setting::Gem => "add the gem rbloat and set RBLOAT_AUTO_TRIM=1",
    };
    how.to_owned()
}

fn passed_over(passed_over: &PassedOver, recommendation: &Recommendation) -> String {
    let size = |bytes: f64| Size(bytes.max(0.0) as u64);
    let best = &recommendation.setting;
    let because = match &passed_over.because {
        Drawback::Noise => {
            "its difference of the remaining memory is negligible or noise".to_owned()
        }
        Drawback::TooFewRuns => "it has too few runs to estimate the noise".to_owned(),
        Drawback::SavesLittle { bytes, percent } => {
            format!("saves only {} ({percent:.0} %)", size(*bytes))
        }
        Drawback::UsesMore { bytes } => format!("leaves {} more", size(*bytes)),
        Drawback::FailedRequests { count } => format!("{count} requests failed"),
        Drawback::SlowerTail { percent } => {
            format!("the 99th percentile of latency is {percent:.0} % higher")
        }
        Drawback::Slower { saves_bytes, percent } => {
            format!("saves {}, but is {percent:.0} % slower", size(*saves_bytes))
        }
        Drawback::SavesLess { saves_bytes } => {
            format!("saves {}, less than {best}", size(*saves_bytes))
        }
        Drawback::LessSimple { saves_bytes } => {
            format!("saves {}, hardly more than {best}, which is simpler", size(*saves_bytes))
        }
    };
    format!("{}: {because}", passed_over.setting)
}

fn mebibytes(spread: &Spread) -> String {
    show(spread, f64::from(1 << 20), 0)
}

/// A median, its range, and its difference from the first row. All numbers have the same digits after the point: at least
/// `digits`, and enough for two significant digits of the median.
fn show(spread: &Spread, unit: f64, digits: usize) -> String {
    let median = (spread.median / unit).abs();
    let needed = if median > 0.0 { 1.0 - median.log10().floor() } else { 0.0 };
    let digits = digits.max(needed.clamp(0.0, MAX_DIGITS) as usize);
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
