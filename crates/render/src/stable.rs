//! The stable point in words.

use diagnosis::{Early, MIN_STRETCHES, MemorySeries, Shape, Slope, StablePoint};
use formats::Confidence;
use ledger::Size;

/// The least growth that can be seen.
const PAGE_BYTES: f64 = 4096.0;

/// Returns the stable point of a series in words.
#[must_use]
pub fn stable_point(series: &MemorySeries) -> String {
    let point = series.stable_point();
    let kills = match series.oom_kills() {
        0 => String::new(),
        1 => " The kernel killed 1 process for lack of memory, so it needs more than its limit."
            .into(),
        many => {
            format!(
                " The kernel killed {many} processes for lack of memory, so it needs more than its limit."
            )
        }
    };
    let words = shape(&point, series.room_bytes());
    format!("{}: {words}{kills}", series.measure())
}

/// Returns a stable point in words, with the time until `room_bytes` more are used if it grows.
#[must_use]
pub fn shape(point: &StablePoint, room_bytes: Option<u64>) -> String {
    let seconds = point.to_seconds - point.from_seconds;
    let window = time(seconds);
    let doubt = match point.confidence {
        Confidence::High => None,
        Confidence::Medium => Some(format!("medium confidence: {window} of data")),
        Confidence::Low => Some(format!("low confidence: only {window} of data")),
    };
    let sure = doubt.as_ref().map_or(String::new(), |doubt| format!(" ({doubt})"));
    // Memory grows by whole pages.
    let limit = |slope: &Slope| rate(slope.high.max(PAGE_BYTES / seconds.max(1.0)));
    match &point.shape {
        Shape::Plateau { level_bytes, low_bytes, high_bytes, slope } => format!(
            "stable at {} for the last {window}, between {} and {}{sure}. Growth above {} is ruled out.",
            size(*level_bytes),
            size(*low_bytes),
            size(*high_bytes),
            limit(slope),
        ),
        Shape::SawTooth { teeth, slope } => format!(
            "a saw-tooth between {} and {}, with a period of {}, for the last {window}{sure}. Growth of its low points \
             above {} is ruled out.",
            size(teeth.trough_bytes),
            size(teeth.peak_bytes),
            time(teeth.period_seconds),
            limit(slope),
        ),
        Shape::Growth { slope, teeth } => {
            let low_points =
                if teeth.is_some() { ", at the low points of a saw-tooth" } else { "" };
            let mut text = format!(
                "still growing by about {}{low_points} (95 %: {} to {}{}).",
                rate(slope.bytes_per_second),
                rate(slope.low),
                rate(slope.high),
                doubt.map_or(String::new(), |doubt| format!("; {doubt}")),
            );
            if let Some(room) = room_bytes
                && let Some((likely, least, most)) = point.seconds_until(room as f64)
            {
                let most = most.map_or("never".into(), time);
                text += &format!(
                    " At this rate it reaches its limit in {} (95 %: {} to {most}).",
                    time(likely),
                    time(least)
                );
            }
            text
        }
        Shape::TooEarly { why: Early::FewTeeth { teeth } } => format!(
            "too early to tell. So far it is a saw-tooth between {} and {}, with a period of {}. {MIN_STRETCHES} periods \
             show if it grows.",
            size(teeth.trough_bytes),
            size(teeth.peak_bytes),
            time(teeth.period_seconds),
        ),
        Shape::TooEarly { why: Early::Short } => {
            format!("too early to tell: {window} of data are too few.")
        }
        Shape::TooEarly { why: Early::Slowing { slope } } => format!(
            "too early to tell. It is still growing, by {} lately, but more and more slowly.",
            rate(slope.bytes_per_second)
        ),
        Shape::TooEarly { why: Early::Steps { rise_bytes } } => format!(
            "too early to tell. It rises in steps, by {} in the last {window}.",
            size(*rise_bytes)
        ),
        Shape::TooEarly { why: Early::Falling { slope } } => {
            format!("too early to tell. It is falling, by {}.", rate(-slope.bytes_per_second))
        }
    }
}

fn size(bytes: f64) -> String {
    Size(bytes.max(0.0) as u64).to_string()
}

/// A rate in the smallest unit of time in which it exceeds a mebibyte.
fn rate(bytes_per_second: f64) -> String {
    let sign = if bytes_per_second < 0.0 { "-" } else { "" };
    let bytes = bytes_per_second.abs();
    let (bytes, unit) = [(1.0, "s"), (60.0, "min"), (3600.0, "h")]
        .into_iter()
        .map(|(seconds, unit)| (bytes * seconds, unit))
        .find(|(bytes, _)| *bytes >= f64::from(1 << 20))
        .unwrap_or((bytes * 86_400.0, "day"));
    format!("{sign}{}/{unit}", size(bytes))
}

/// A time in the unit that people would use.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}
