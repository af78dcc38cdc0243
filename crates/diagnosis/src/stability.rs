//! The judgement on the memory of a recording, as data.

use formats::{
    GrowthRate, MemoryLevel, MemoryMeasure, MemoryShape, RecordingStability, TimeToLimit,
};

use crate::{Basis, Early, MemorySeries, Shape, Slope};

/// Returns the judgement on the memory of a recording with this name.
#[must_use]
pub fn stability(name: String, series: &MemorySeries) -> RecordingStability {
    let point = series.stable_point();
    let level =
        |low: f64, high: f64| Some(MemoryLevel { low_bytes: low as u64, high_bytes: high as u64 });
    let (shape, level, slope) = match point.shape {
        Shape::Plateau { low_bytes, high_bytes, slope, .. } => {
            (MemoryShape::Plateau, level(low_bytes, high_bytes), Some(slope))
        }
        Shape::SawTooth { teeth, slope } => {
            (MemoryShape::SawTooth, level(teeth.trough_bytes, teeth.peak_bytes), Some(slope))
        }
        Shape::Growth { slope, .. } => (MemoryShape::Growth, None, Some(slope)),
        Shape::TooEarly { why: Early::Slowing { slope } | Early::Falling { slope } } => {
            (MemoryShape::TooEarly, None, Some(slope))
        }
        Shape::TooEarly { .. } => (MemoryShape::TooEarly, None, None),
    };
    let measure = match series.points().0 {
        Basis::Pss => MemoryMeasure::Pss,
        Basis::Rss if series.max_processes() > 1 => MemoryMeasure::SumOfRss,
        Basis::Rss => MemoryMeasure::Rss,
    };
    let growth = |Slope { bytes_per_second, low, high }| GrowthRate { bytes_per_second, low, high };
    let until = series.room_bytes().and_then(|room| point.seconds_until(room as f64));
    let limit =
        |(seconds, min_seconds, max_seconds)| TimeToLimit { seconds, min_seconds, max_seconds };
    RecordingStability {
        name,
        measure,
        shape,
        confidence: point.confidence,
        from_seconds: point.from_seconds,
        to_seconds: point.to_seconds,
        last_bytes: point.last_bytes as u64,
        level,
        growth: slope.map(growth),
        limit: until.map(limit),
        max_processes: series.max_processes() as u64,
        oom_kills: series.oom_kills(),
    }
}
