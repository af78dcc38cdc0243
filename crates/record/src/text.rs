//! What a recorder says meanwhile.

use std::time::Duration;

use ledger::{Count, Size};
use report::CauseRow;

use crate::{Causes, Sample};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Values as a line of bars, the least as the lowest and the greatest as the highest. Where there are more
/// than `width`, the greatest of each few stands for them.
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

/// A time as hours, minutes and seconds: 1:02:03.
#[must_use]
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The causes of some processes taken together, those with most bytes first.
#[must_use]
pub fn top_causes<'a>(causes: impl Iterator<Item = &'a Causes>) -> Vec<CauseRow> {
    let mut rows: Vec<CauseRow> = Vec::new();
    for row in causes.flat_map(|causes| &causes.causes) {
        match rows.iter_mut().find(|known| known.cause == row.cause) {
            Some(known) => known.bytes += row.bytes,
            None => rows.push(row.clone()),
        }
    }
    rows.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.cause.cmp(&other.cause)));
    rows
}

/// A line on how things stand.
#[must_use]
pub fn minute(sample: &Sample, causes: &[CauseRow]) -> String {
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
        text += &format!("; group {} of {}", Size(group.usage_bytes), Size(limit));
    }
    let causes: Vec<String> =
        causes.iter().take(3).map(|row| format!("{} {}", row.cause, Size(row.bytes))).collect();
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
