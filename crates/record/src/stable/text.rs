//! The stable point in words.

use ledger::Size;

use super::{Confidence, Early, LEAST_STRETCHES, Shape, Slope, StablePoint};

impl StablePoint {
    /// What it says, in a sentence or two; with the bytes that are left below a limit, when that will be reached.
    #[must_use]
    pub fn render_text(&self, room_bytes: Option<u64>) -> String {
        let window = time(self.to_seconds - self.from_seconds);
        let sure = match self.confidence {
            Confidence::High => "high confidence",
            Confidence::Medium => "medium confidence",
            Confidence::Low => "low confidence",
        };
        match &self.shape {
            Shape::Plateau { level_bytes, low_bytes, high_bytes, slope } => format!(
                "plateau at {} for the last {window} ({} to {}; {}; {sure})",
                size(*level_bytes),
                size(*low_bytes),
                size(*high_bytes),
                at_most(*slope),
            ),
            Shape::SawTooth { teeth, slope } => format!(
                "saw-tooth: it rises from {} to {} and falls again each {}, for the last {window} ({} after \
                 each fall; {sure})",
                size(teeth.trough_bytes),
                size(teeth.peak_bytes),
                time(teeth.period_seconds),
                at_most(*slope),
            ),
            Shape::Growth { slope, teeth } => {
                let after = if teeth.is_some() { " after each fall of a saw-tooth" } else { "" };
                let mut text = format!(
                    "growth: {}{after} for the last {window} (95 %: {} to {}; {sure})",
                    rate(slope.bytes_per_second),
                    rate(slope.low),
                    rate(slope.high),
                );
                if let Some(room) = room_bytes
                    && let Some((likely, least, most)) = self.seconds_until(room as f64)
                {
                    let most = most.map_or("never".into(), time);
                    text += &format!(
                        "; at this rate the limit is reached in {} (95 %: {} to {most})",
                        time(likely),
                        time(least)
                    );
                }
                text
            }
            Shape::TooEarly { why: Early::FewTeeth { teeth } } => format!(
                "too early to say: so far it rises from {} to {} and falls again each {}; {LEAST_STRETCHES} such falls \
                 tell whether it grows",
                size(teeth.trough_bytes),
                size(teeth.peak_bytes),
                time(teeth.period_seconds),
            ),
            Shape::TooEarly { why: Early::Short } => {
                format!(
                    "too early to say: {} is too short",
                    time(self.to_seconds - self.from_seconds)
                )
            }
            Shape::TooEarly { why: Early::Slowing { slope } } => format!(
                "too early to say: it still grows ({} of late), but slower and slower",
                rate(slope.bytes_per_second)
            ),
            Shape::TooEarly { why: Early::Falling { slope } } => {
                format!("too early to say: it falls ({})", rate(slope.bytes_per_second))
            }
        }
    }
}

fn size(bytes: f64) -> String {
    Size(bytes.max(0.0) as u64).to_string()
}

fn at_most(slope: Slope) -> String {
    format!("growth above {} is ruled out", rate(slope.high.max(0.0)))
}

/// Bytes per second, in the unit in which there is something to see.
fn rate(bytes_per_second: f64) -> String {
    let sign = if bytes_per_second < 0.0 { "-" } else { "" };
    let bytes = bytes_per_second.abs();
    let (bytes, unit) = [(1.0, "s"), (60.0, "min"), (3600.0, "h")]
        .into_iter()
        .map(|(seconds, unit)| (bytes * seconds, unit))
        .find(|(bytes, _)| *bytes >= 1e6)
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
