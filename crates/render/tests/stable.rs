//! The stable point in words.

use diagnosis::{Early, MemorySeries, Shape, Slope, StablePoint, Teeth};
use formats::{Confidence, Group, Sample};
use proptest::prelude::*;
use render::words::shape;

const MIB: f64 = 1_048_576.0;

fn point(shape: Shape) -> StablePoint {
    StablePoint {
        shape,
        confidence: Confidence::High,
        from_seconds: 600.0,
        to_seconds: 2400.0,
        last_bytes: 100.0 * MIB,
        top_bytes: 100.0 * MIB,
    }
}

fn slope(mib_per_second: f64) -> Slope {
    let bytes = mib_per_second * MIB;
    Slope { bytes_per_second: bytes, low: bytes * 0.9, high: bytes * 1.1 }
}

fn teeth() -> Teeth {
    Teeth { trough_bytes: 100.0 * MIB, peak_bytes: 150.0 * MIB, period_seconds: 20.0, count: 9 }
}

#[test]
fn growth_says_when_the_limit_is_reached() {
    let growth = point(Shape::Growth { slope: slope(0.1), teeth: None });
    assert_eq!(
        shape(&growth, Some((360.0 * MIB) as u64)),
        "still growing by about 6.0 MiB/min (95 %: 5.4 MiB/min to 6.6 MiB/min). At this rate it reaches its limit in 60 min \
         (95 %: 55 min to 67 min)."
    );
    let short =
        StablePoint { confidence: Confidence::Low, from_seconds: 0.0, to_seconds: 36.0, ..growth };
    assert_eq!(
        shape(&short, None),
        "still growing by about 6.0 MiB/min (95 %: 5.4 MiB/min to 6.6 MiB/min; low confidence: only 36 s of data)."
    );
}

#[test]
fn each_shape_has_a_sentence() {
    let plateau = Shape::Plateau {
        level_bytes: 100.0 * MIB,
        low_bytes: 99.0 * MIB,
        high_bytes: 101.0 * MIB,
        slope: slope(0.0),
    };
    let shapes = [
        (plateau, "stable at 100.0 MiB for the last 30 min, between 99.0 MiB and 101.0 MiB."),
        (
            Shape::SawTooth { teeth: teeth(), slope: slope(0.0) },
            "a saw-tooth between 100.0 MiB and 150.0 MiB, with a period of 20 s,",
        ),
        (
            Shape::TooEarly { why: Early::FewTeeth { teeth: teeth() } },
            "too early to tell. So far it is a saw-tooth between 100.0 MiB and 150.0 MiB, with a period of 20 s.",
        ),
        (Shape::TooEarly { why: Early::Short }, "too early to tell: 30 min of data are too few."),
        (
            Shape::TooEarly { why: Early::Slowing { slope: slope(0.1) } },
            "too early to tell. It is still growing, by 6.0 MiB/min lately, but more and more slowly.",
        ),
        (
            Shape::TooEarly { why: Early::Steps { rise_bytes: 4.2 * 1024.0 * 1024.0 } },
            "too early to tell. It rises in steps, by 4.2 MiB in the last 30 min.",
        ),
        (
            Shape::TooEarly { why: Early::Falling { slope: slope(-0.1) } },
            "too early to tell. It is falling, by 6.0 MiB/min.",
        ),
    ];
    for (it, words) in shapes {
        let text = shape(&point(it), None);
        assert!(text.starts_with(words), "{text}");
    }
}

#[test]
fn kills_are_told_in_the_plural_if_there_are_several() {
    let killed = |kills: [u64; 3]| {
        let mut series = MemorySeries::default();
        for (kills, at) in kills.into_iter().zip(0..) {
            let group = Group {
                usage_bytes: 70,
                limit_bytes: Some(100),
                cache_bytes: 5,
                oom_kills: Some(kills),
            };
            series.add(&Sample {
                t_ms: at * 1000,
                exact: true,
                rss_bytes: 100,
                pss_bytes: Some(60),
                group: Some(group),
                ..Sample::default()
            });
        }
        render::stable_point(&series)
    };
    assert!(!killed([7, 7, 7]).contains("killed"));
    assert!(killed([7, 7, 8]).contains("The kernel killed 1 process for lack of memory"));
    assert!(killed([7, 8, 10]).contains("The kernel killed 3 processes for lack of memory"));
}

proptest! {
    #[test]
    fn every_series_has_words(points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..200)) {
        let stable = StablePoint::of(&points);
        prop_assert!(!shape(&stable, Some(u64::MAX)).is_empty());
    }
}
