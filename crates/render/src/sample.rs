//! The state of a recording in words.

use std::time::Duration;

use formats::{CauseRow, Sample};
use ledger::{Count, Size};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns values as a line of at most `width` bars, from the least to the greatest value. If there are more values,
/// each bar is the greatest of several.
#[must_use]
pub fn sparkline(values: &[u64], width: usize) -> String {
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

/// Returns a sample as a line of text, with the largest of `causes`.
#[must_use]
pub fn sample(sample: &Sample, causes: &[CauseRow]) -> String {
    let many = match sample.processes.len() {
        1 => String::new(),
        number => format!(" in {} processes", Count(number as u64)),
    };
    let mut text = format!(
        "{}  RSS {}{many}",
        duration(Duration::from_millis(sample.t_ms)),
        Size(sample.rss_bytes)
    );
    if let Some(group) = &sample.group
        && let Some(limit) = group.limit_bytes
    {
        text += &format!("; control group {} of {}", Size(group.usage_bytes), Size(limit));
    }
    let causes: Vec<String> = causes
        .iter()
        .take(3)
        .map(|row| format!("{} {}", row.cause.name(), Size(row.bytes)))
        .collect();
    if !causes.is_empty() {
        text += &format!("; {}", causes.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_span_from_the_least_to_the_greatest() {
        assert_eq!(sparkline(&[], 9), "");
        assert_eq!(sparkline(&[5, 5], 9), "▁▁");
        assert_eq!(sparkline(&[0, 1, 2, 3, 4, 5, 6, 7], 8), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[u64::MAX, 0, 1, 2, 0, 0], 3), "█▁▁");
    }

    #[test]
    fn times_read_as_clocks_show_them() {
        assert_eq!(duration(Duration::from_millis(3_723_999)), "1:02:03");
    }
}
