//! Round numbers for axes.

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1024.0 * MIB;

/// Returns about `number` marks of an axis of bytes from 0 to `most`, with their names. The unit is the one that
/// `ledger::Size` would show `most` in, and MiB below that.
pub(crate) fn byte_marks(most: f64, number: f64) -> Vec<(f64, String)> {
    let (unit, name) = if most < 10_000.0 * MIB { (MIB, "MiB") } else { (GIB, "GiB") };
    let rough = (most / unit / number).max(1e-3);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|it| it * power).find(|it| *it >= rough);
    let step = step.unwrap_or(10.0 * power);
    let digits = if step >= 1.0 { 0 } else { 2 };
    let name = |value: f64| format!("{value:.digits$} {name}");
    marks(most / unit, step).map(|value| (value * unit, name(value))).collect()
}

/// Returns about `number` marks of an axis of times from 0 to `most` seconds, with their names.
pub(super) fn time_marks(most: f64, number: f64) -> Vec<(f64, String)> {
    const STEPS: [f64; 18] = [
        1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
        10_800.0, 21_600.0, 43_200.0, 86_400.0,
    ];
    let rough = most / number;
    let step = STEPS.into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or_else(|| (rough / 86_400.0).ceil() * 86_400.0);
    let name = |seconds: f64| match seconds {
        s if step >= 86_400.0 => format!("{:.0} d", s / 86_400.0),
        s if step >= 3600.0 => format!("{:.0} h", s / 3600.0),
        s if most >= 3600.0 => format!("{}:{:02} h", s as u64 / 3600, s as u64 / 60 % 60),
        s if step >= 60.0 => format!("{:.0} min", s / 60.0),
        s if most >= 120.0 => format!("{}:{:02} min", s as u64 / 60, s as u64 % 60),
        s => format!("{s:.0} s"),
    };
    marks(most, step).map(|seconds| (seconds, name(seconds))).collect()
}

fn marks(most: f64, step: f64) -> impl Iterator<Item = f64> {
    let count = (most / step + 1e-9).floor().clamp(0.0, 100.0) as u32;
    (0..=count).map(move |index| f64::from(index) * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        let names =
            |marks: Vec<(f64, String)>| marks.into_iter().map(|mark| mark.1).collect::<Vec<_>>();
        assert_eq!(
            names(byte_marks(410.0 * MIB, 5.0)),
            ["0 MiB", "100 MiB", "200 MiB", "300 MiB", "400 MiB"]
        );
        assert_eq!(names(byte_marks(45.0 * GIB, 4.0)), ["0 GiB", "20 GiB", "40 GiB"]);
        assert_eq!(names(byte_marks(0.0, 5.0)).len(), 1);
        assert_eq!(names(time_marks(25.0, 6.0)), ["0 s", "5 s", "10 s", "15 s", "20 s", "25 s"]);
        assert_eq!(
            names(time_marks(7200.0, 4.0)),
            ["0:00 h", "0:30 h", "1:00 h", "1:30 h", "2:00 h"]
        );
        for power in 0..18 {
            let most = 10_f64.powi(power);
            assert!((1..=11).contains(&time_marks(most, 8.0).len()), "{most}");
            assert!((1..=11).contains(&byte_marks(most, 5.0).len()), "{most}");
        }
    }
}
