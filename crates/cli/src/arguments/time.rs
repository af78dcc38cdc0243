//! Times as they are typed.

use std::time::Duration;

/// A time as [`parse_time`] takes it, or in milliseconds: as short as makes sense for RSS.
pub(crate) fn parse_short_time(text: &str) -> Result<Duration, String> {
    let Some(number) = text.strip_suffix("ms") else { return parse_time(text) };
    match number.parse::<u64>().ok().filter(|number| (10..=86_400_000).contains(number)) {
        Some(number) => Ok(Duration::from_millis(number)),
        None => Err("a time is written 200ms, 60s, 5m or 1h, and is 10ms at least".into()),
    }
}

/// A time as [`parse_time`] takes it, or 0.
pub(crate) fn parse_time_or_never(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_time(text) }
}

/// A time in seconds or, with a unit, in seconds, minutes or hours.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| "a time is written 60s, 5m or 1h".to_owned())?;
    match number.checked_mul(unit).filter(|seconds| (1..=86_400).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("a time is between a second and a day".into()),
    }
}
