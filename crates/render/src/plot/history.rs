//! The part of a recording that a plot shows: curves, causes and events.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use formats::{CauseSample, Kept, Line, Recording, Sample};

use super::rise::{Peak, Rise, peaks, rises};
use crate::draw::{CAUSE_LEGEND, group_of};

/// The most points of a curve. Of more samples, each chunk is drawn by its lowest and its highest.
const MAX_POINTS: usize = 1000;
/// A drop between two samples is marked if it exceeds this share of RSS, and these bytes.
const MIN_DROP_SHARE: f64 = 0.05;
const MIN_DROP_BYTES: u64 = 8 << 20;

/// The history of one recording. Times are seconds since it began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct History {
    pub(super) name: String,
    pub(super) seconds: f64,
    pub(super) points: Vec<Point>,
    /// Bytes of each group of causes, of all processes together.
    pub(super) stacks: Vec<(f64, Vec<u64>)>,
    pub(super) marks: Vec<Mark>,
    pub(super) limit: Option<u64>,
    /// The names of the frames of rises.
    pub(super) names: Vec<String>,
    pub(super) rises: Vec<Rise>,
    pub(super) peaks: Vec<Peak>,
    /// The last result of `--kept`.
    #[serde(skip)]
    pub(super) kept: Option<Kept>,
}

/// The kernel's counters at one time. A counter that was not read has its previous value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Point {
    pub(super) t: f64,
    pub(super) exact: bool,
    pub(super) rss: u64,
    pub(super) pss: Option<u64>,
    pub(super) uss: Option<u64>,
    pub(super) swap: Option<u64>,
    /// The memory that the control group's limit counts.
    pub(super) group: Option<u64>,
    pub(super) processes: usize,
}

/// An event in the picture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Mark {
    pub(super) t: f64,
    pub(super) event: Event,
    /// The number of kills.
    #[serde(skip)]
    pub(super) count: u64,
    pub(super) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    OomKill,
    Drop,
}

impl History {
    pub(super) fn of(name: &str, recording: &Recording) -> Self {
        let samples: Vec<&Sample> = recording.samples().collect();
        let (names, rises) = rises(recording);
        Self {
            name: name.into(),
            seconds: recording.length_ms() as f64 / 1e3,
            points: points(&samples),
            stacks: stacks(recording),
            marks: marks(&samples),
            limit: samples.iter().rev().find_map(|sample| sample.group?.limit_bytes),
            names,
            rises,
            peaks: peaks(recording),
            kept: recording.kept().cloned(),
        }
    }

    /// Returns the highest value of its curves.
    pub(super) fn most(&self) -> u64 {
        let of_point = |point: &Point| point.rss.max(point.group.unwrap_or(0));
        self.points.iter().map(of_point).max().unwrap_or(0)
    }
}

fn points(samples: &[&Sample]) -> Vec<Point> {
    let mut known = (None, None, None);
    let mut all = Vec::with_capacity(samples.len());
    for sample in samples {
        if sample.exact {
            known = (sample.pss_bytes, sample.uss_bytes, sample.swap_bytes);
        }
        all.push(Point {
            t: sample.t_ms as f64 / 1e3,
            exact: sample.exact,
            rss: sample.rss_bytes,
            pss: known.0,
            uss: known.1,
            swap: known.2,
            // Other processes may be in a group without a limit.
            group: sample.group.filter(|it| it.limit_bytes.is_some()).map(|it| it.usage_bytes),
            processes: sample.processes.len(),
        });
    }
    if all.len() <= MAX_POINTS {
        return all;
    }
    let mut few = Vec::with_capacity(MAX_POINTS);
    for part in all.chunks(all.len().div_ceil(MAX_POINTS / 2)) {
        let least = part.iter().min_by_key(|point| point.rss);
        let greatest = part.iter().max_by_key(|point| point.rss);
        let mut both: Vec<Point> = least.into_iter().chain(greatest).copied().collect();
        both.sort_by(|one, other| one.t.total_cmp(&other.t));
        both.dedup_by_key(|point| point.t);
        few.extend(both);
    }
    few
}

/// Returns the sum of all processes' latest causes after each round of captures.
fn stacks(recording: &Recording) -> Vec<(f64, Vec<u64>)> {
    let mut last: BTreeMap<i32, &CauseSample> = BTreeMap::new();
    let mut in_round = BTreeSet::new();
    let mut stacks = Vec::new();
    let mut time = 0.0;
    let sum = |last: &BTreeMap<i32, &CauseSample>| {
        let mut sums = vec![0; CAUSE_LEGEND.len()];
        for row in last.values().flat_map(|causes| &causes.causes) {
            sums[group_of(row.cause)] += row.bytes;
        }
        sums
    };
    for line in &recording.lines {
        match line {
            Line::Causes(causes) => {
                if !in_round.insert(causes.pid) {
                    stacks.push((time, sum(&last)));
                    in_round = BTreeSet::from([causes.pid]);
                }
                last.insert(causes.pid, causes);
                time = causes.t_ms as f64 / 1e3;
            }
            Line::Gone(gone) => {
                if !std::mem::take(&mut in_round).is_empty() {
                    stacks.push((time, sum(&last)));
                }
                last.remove(&gone.pid);
            }
            _ => {}
        }
    }
    if !in_round.is_empty() {
        stacks.push((time, sum(&last)));
    }
    stacks
}

fn marks(samples: &[&Sample]) -> Vec<Mark> {
    let mut marks = Vec::new();
    for pair in samples.windows(2) {
        let (one, next) = (pair[0], pair[1]);
        let t = next.t_ms as f64 / 1e3;
        let kills = match (one.group, next.group) {
            (Some(before), Some(group)) => group.kills_since(before),
            _ => 0,
        };
        if kills > 0 {
            let text = if kills == 1 { "OOM kill".into() } else { format!("{kills} OOM kills") };
            marks.push(Mark { t, event: Event::OomKill, count: kills, text });
        }
        let same = living(one).eq(living(next));
        let drop = one.rss_bytes.saturating_sub(next.rss_bytes);
        if same && drop >= MIN_DROP_BYTES && drop as f64 > MIN_DROP_SHARE * one.rss_bytes as f64 {
            marks.push(Mark {
                t,
                event: Event::Drop,
                count: 1,
                text: format!("{} returned", ledger::Size(drop)),
            });
        }
    }
    marks
}

/// Returns the running processes of a sample. Memory of a zombie is gone, but no process returned it.
fn living(sample: &Sample) -> impl Iterator<Item = (i32, u64)> {
    let living = sample.processes.iter().filter(|process| !matches!(process.state, 'Z' | 'X'));
    living.map(|process| (process.pid, process.started_ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::tests::{causes, recording, sample};
    use formats::Departure;
    use ledger::Cause;

    const MIB: u64 = 1 << 20;

    #[test]
    fn of_many_samples_each_peak_and_trough_stays() {
        let samples: Vec<_> = (0..50_000)
            .map(|second| sample(second, if second == 31_234 { 900 * MIB } else { 100 * MIB }, 0))
            .collect();
        let history = History::of("a", &recording(samples.into_iter().map(Line::Sample).collect()));
        assert!(history.points.len() <= MAX_POINTS, "{}", history.points.len());
        // The group has one more.
        assert_eq!(history.most(), 901 * MIB);
        assert_eq!(history.points.iter().filter(|point| point.rss == 900 * MIB).count(), 1);
        assert!(history.points.is_sorted_by(|one, next| one.t < next.t));
    }

    #[test]
    fn drops_and_kills_are_marked() {
        let values = [(100, 0), (100, 0), (80, 0), (79, 0), (200, 0), (198, 2)];
        let samples = values.into_iter().zip(0..);
        let lines =
            samples.map(|((mb, kills), at)| Line::Sample(sample(at, mb * MIB, kills))).collect();
        let marks = History::of("a", &recording(lines)).marks;
        let told: Vec<_> =
            marks.iter().map(|mark| (mark.t, mark.event, mark.text.as_str())).collect();
        assert_eq!(
            told,
            [(2.0, Event::Drop, "20.0 MiB returned"), (5.0, Event::OomKill, "2 OOM kills")]
        );
    }

    #[test]
    fn memory_of_a_killed_process_is_not_a_drop() {
        let mut killed = sample(1, 20 * MIB, 0);
        killed.processes[0].state = 'Z';
        let lines = vec![Line::Sample(sample(0, 100 * MIB, 0)), Line::Sample(killed)];
        let told: Vec<_> = History::of("a", &recording(lines)).marks;
        assert!(told.iter().all(|mark| mark.event != Event::Drop), "a drop is marked");
    }

    #[test]
    fn causes_of_all_processes_are_added_up_once_a_round_is_over() {
        let gone = Departure { t_ms: 35_000, pid: 2, started_ticks: 1 };
        let lines = vec![
            causes(1, 1, &[("ruby.malloc", 10), ("file.shared", 1)]),
            causes(2, 2, &[("ruby.malloc", 5)]),
            causes(31, 1, &[("ruby.malloc", 20)]),
            causes(32, 2, &[("unknown", 7)]),
            Line::Gone(gone),
            causes(61, 1, &[("ruby.malloc", 30)]),
        ];
        let stacks = History::of("a", &recording(lines)).stacks;
        let (malloc, files, unknown) =
            (group_of(Cause::RubyMalloc), group_of(Cause::FileShared), group_of(Cause::Unknown));
        let of = |index: usize| [malloc, files, unknown].map(|group| stacks[index].1[group]);
        assert_eq!(stacks.iter().map(|stack| stack.0).collect::<Vec<_>>(), [2.0, 32.0, 61.0]);
        assert_eq!(of(0), [15, 1, 0]);
        assert_eq!(of(1), [20, 0, 7]);
        assert_eq!(of(2), [30, 0, 0]);
    }
}
