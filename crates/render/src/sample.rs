//! The state of a recording in words.

use std::time::Duration;

use diagnosis::LatestFigures;
use formats::{EndReason, RecordingEnd, Sample};
use ledger::{Count, Size};

use crate::text::{bar, clipped};
use crate::words;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Columns of the bar for the largest cause.
const BAR: u64 = 30;
/// The maximum number of causes in the view of a recording.
const MAX_CAUSES: usize = 6;

/// Returns the view of a recording in lines of at most `width` columns: the latest sample, RSS so far, and the causes.
#[must_use]
pub fn sample_view(
    sample: &Sample,
    latest: &LatestFigures,
    rss: &[u64],
    width: usize,
) -> Vec<String> {
    let (low, high) = (rss.iter().min(), rss.iter().max());
    let measure = if sample.processes.len() > 1 { "sum of RSS" } else { "RSS" };
    let range = format!(" {measure} {} to {}", Size(*low.unwrap_or(&0)), Size(*high.unwrap_or(&0)));
    let graph = sparkline(rss, width.saturating_sub(range.len()));
    let mut lines = vec![headline(sample, latest), graph + &range];
    if let Some(t_ms) = latest.causes_t_ms {
        lines.push(format!("causes, {}:", age(sample, t_ms)));
    }
    let longest = latest.causes.first().map_or(0, |row| row.bytes);
    for row in latest.causes.iter().take(MAX_CAUSES) {
        let (name, size) = (row.cause.name(), Size(row.bytes).to_string());
        lines.push(format!("{name:>20} {size:>10}  {}", bar(row.bytes, longest, BAR)));
    }
    lines.iter().map(|line| clipped(line, width).to_owned()).collect()
}

/// Returns values as a line of at most `width` bars, from the least to the greatest value. If there are more values,
/// each bar is the greatest of several.
fn sparkline(values: &[u64], width: usize) -> String {
    let (Some(&low), Some(&high)) = (values.iter().min(), values.iter().max()) else {
        return String::new();
    };
    let per_bar = values.len().div_ceil(width.max(1));
    let bar = |values: &[u64]| {
        let value = values.iter().max().copied().unwrap_or(low);
        let steps = (u128::from(value - low) * (BARS.len() as u128 - 1) * 2
            + u128::from(high - low))
        .checked_div(u128::from(high - low) * 2);
        BARS[steps.unwrap_or(0) as usize]
    };
    values.chunks(per_bar).map(bar).collect()
}

/// Returns a time as hours, minutes and seconds: 1:02:03.
#[must_use]
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Returns a recording of the process `pid` in one line.
#[must_use]
pub fn recording_end(pid: i32, end: &RecordingEnd) -> String {
    let why = match end.why {
        EndReason::TargetEnded => "the process ended",
        EndReason::Interrupted => "interrupted",
        EndReason::TimeOver => "the time was over",
    };
    let share = end.recorder_cpu_ms * 100.0 / end.t_ms.max(1) as f64;
    format!(
        "{pid}: {why} after {}; {}, {} of them exact, {}, {share:.2} % of a processor",
        duration(Duration::from_millis(end.t_ms)),
        words::counted(end.samples, "sample"),
        end.exact_samples,
        words::counted(end.captures, "capture"),
    )
}

/// Returns the fact that causes were searched for `made` times, but `planned` times were planned. `limited_to` is the share of
/// a processor for these searches, if it delayed one.
#[must_use]
pub fn fewer_searches(made: u64, planned: u64, limited_to: Option<f64>) -> String {
    let why = limited_to.map_or_else(String::new, |share| {
        format!(": more would have cost over {} % of a processor", share * 100.0)
    });
    format!("searched for causes {}, not {planned}{why}", words::counted(made, "time"))
}

/// Returns a sample as a line of text.
fn headline(sample: &Sample, latest: &LatestFigures) -> String {
    let rss = Size(sample.rss_bytes);
    let number = Count(sample.processes.len() as u64);
    let memory = match (sample.processes.len(), latest.pss) {
        (1, _) => format!("RSS {rss}"),
        (_, None) => {
            format!("sum of RSS {rss} in {number} processes, shared pages counted once per process")
        }
        (_, Some((pss, t_ms))) if t_ms == sample.t_ms => {
            format!("PSS {} in {number} processes; sum of RSS {rss}", Size(pss))
        }
        (_, Some((pss, t_ms))) => format!(
            "PSS {} ({}) in {number} processes; sum of RSS {rss}",
            Size(pss),
            age(sample, t_ms)
        ),
    };
    let mut text = format!("{}  {memory}", duration(Duration::from_millis(sample.t_ms)));
    if let Some(group) = &sample.group
        && let Some(limit) = group.limit_bytes
    {
        text += &format!("; control group {} of {}", Size(group.usage_bytes), Size(limit));
    }
    text
}

/// Returns a sample as a line of text, with the largest causes.
#[must_use]
pub fn sample(sample: &Sample, latest: &LatestFigures) -> String {
    let mut text = headline(sample, latest);
    let causes: Vec<String> = latest
        .causes
        .iter()
        .take(3)
        .map(|row| format!("{} {}", row.cause.name(), Size(row.bytes)))
        .collect();
    if let Some(t_ms) = latest.causes_t_ms
        && !causes.is_empty()
    {
        text += &format!("; causes {}: {}", age(sample, t_ms), causes.join(", "));
    }
    text
}

/// Returns the age of a figure of the time `t_ms` at the time of a sample.
fn age(sample: &Sample, t_ms: u64) -> String {
    format!("{} s ago", sample.t_ms.saturating_sub(t_ms) / 1000)
}

#[cfg(test)]
mod tests {
    use formats::CauseRow;

    use super::*;

    #[test]
    fn bars_span_from_the_least_to_the_greatest() {
        assert_eq!(sparkline(&[], 9), "");
        assert_eq!(sparkline(&[5, 5], 9), "▁▁");
        assert_eq!(sparkline(&[0, 1, 2, 3, 4, 5, 6, 7], 8), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[u64::MAX, 0, 1, 2, 0, 0], 3), "█▁▁");
    }

    fn of_processes(count: usize, t_ms: u64) -> Sample {
        let process = serde_json::json!({
            "pid": 1, "started_ticks": 1, "state": "S", "rss_bytes": 3 << 20, "user_ms": 0, "system_ms": 0,
            "minor_faults": 0, "major_faults": 0, "threads": 1,
        });
        serde_json::from_value(serde_json::json!({
            "t_ms": t_ms, "exact": false, "rss_bytes": count << 20, "recorder_cpu_ms": 0.0,
            "processes": vec![process; count],
        }))
        .unwrap()
    }

    #[test]
    fn several_processes_have_pss_and_its_age() {
        let line = |count, pss| {
            headline(
                &of_processes(count, 9_000),
                &LatestFigures { pss, ..LatestFigures::default() },
            )
        };
        assert_eq!(line(1, Some((1 << 20, 9_000))), "0:00:09  RSS 1.0 MiB");
        assert_eq!(
            line(3, None),
            "0:00:09  sum of RSS 3.0 MiB in 3 processes, shared pages counted once per process"
        );
        assert_eq!(
            line(3, Some((1 << 20, 9_000))),
            "0:00:09  PSS 1.0 MiB in 3 processes; sum of RSS 3.0 MiB"
        );
        assert_eq!(
            line(3, Some((1 << 20, 4_900))),
            "0:00:09  PSS 1.0 MiB (4 s ago) in 3 processes; sum of RSS 3.0 MiB"
        );
    }

    #[test]
    fn causes_have_their_age() {
        let causes = vec![CauseRow { cause: ledger::Cause::MallocUnreturned, bytes: 1 << 20 }];
        let latest = LatestFigures { causes, causes_t_ms: Some(1_500), pss: None };
        let line = sample(&of_processes(1, 60_000), &latest);
        assert_eq!(line, "0:01:00  RSS 1.0 MiB; causes 58 s ago: malloc.unreturned 1.0 MiB");
    }

    #[test]
    fn times_read_as_clocks_show_them() {
        assert_eq!(duration(Duration::from_millis(3_723_999)), "1:02:03");
    }
}
