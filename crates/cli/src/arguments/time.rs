//! Times in arguments.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Parses a time of at least a second, such as `60s`, `5m` or `1h 30m`. It needs a unit: `50` could be seconds or milliseconds.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    parse(text, SECOND..=DAY)
}

/// Like [`parse_time`], up to a year.
pub(crate) fn parse_long_time(text: &str) -> Result<Duration, String> {
    parse(text, SECOND..=366 * DAY)
}

/// Parses a date in UTC, also with a time, such as `2026-11-20` and `2026-11-20T14:00:00Z`.
pub(crate) fn parse_date(text: &str) -> Result<SystemTime, String> {
    let with_time = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    let date = humantime::parse_rfc3339_weak(&with_time);
    date.map_err(|_| "write a date as 2026-11-20 or 2026-11-20T14:00:00Z".to_owned())
}

/// Like [`parse_time`], or 0 with any unit or none.
pub(crate) fn parse_time_or_never(text: &str) -> Result<Duration, String> {
    let is_zero = text == "0" || humantime::parse_duration(text).is_ok_and(|it| it.is_zero());
    if is_zero { Ok(Duration::ZERO) } else { parse_time(text) }
}

/// Like [`parse_time`], but at least 10 ms, the least time that makes sense between two samples.
pub(crate) fn parse_short_time(text: &str) -> Result<Duration, String> {
    parse(text, 10 * MILLISECOND..=DAY)
}

fn parse(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("a time needs a unit: {text}s for seconds, {text}m for minutes"));
    }
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a time as 60s, 5m or 1h"))?;
    if range.contains(&time) {
        return Ok(time);
    }
    let (least, most) = range.into_inner();
    Err(format!(
        "a time here is from {} to {}",
        humantime::format_duration(least),
        humantime::format_duration(most)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bounds() {
        assert_eq!(parse_time("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_time("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_short_time("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_time_or_never("0"), Ok(Duration::ZERO));
        assert_eq!(parse_time("0s").unwrap_err(), "a time here is from 1s to 1day");
        for number in ["0", "3", "50"] {
            let error = parse_short_time(number).unwrap_err();
            let expected = "a time needs a unit: ";
            assert!(error.starts_with(&format!("{expected}{number}s for seconds")), "{error}");
        }
        for never in ["0", "0s", "0m"] {
            assert_eq!(parse_time_or_never(never), Ok(Duration::ZERO));
        }
        assert!(parse_time_or_never("0.5s").is_err());
        assert_eq!(parse_short_time("9ms").unwrap_err(), "a time here is from 10ms to 1day");
        assert_eq!(parse_long_time("7d"), Ok(7 * DAY));
        let date = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        assert_eq!(parse_date("2024-10-04"), Ok(date));
        assert_eq!(parse_date("2024-10-04T00:00:00Z"), Ok(date));
        assert!(parse_date("yesterday").unwrap_err().contains("2026-11-20"));
        assert!(parse_time("soon").unwrap_err().ends_with("write a time as 60s, 5m or 1h"));
        assert!(parse_time("99999999999999999999h").is_err());
    }
}
