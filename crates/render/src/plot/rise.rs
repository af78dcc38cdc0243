//! The parts of a recording in which memory grew, with the code that made it grow, and the owners of memory at its peaks.

use std::collections::HashMap;

use formats::{CauseSample, GrowthSample, Owner, Recording, WhoFrame};
use ledger::{Gem, Size};
use serde::Serialize;

/// Rises that are drawn, at most: the largest ones.
const MAX_RISES: usize = 200;
/// The length of a rise, as a part of the recording, at most. A rise ends when little grew for some time.
const MAX_PART: u64 = 50;
/// The shortest limit of the length, in ms.
const MIN_LIMIT_MS: u64 = 60_000;
/// Stacks of a rise, at most.
const MAX_STACKS: usize = 40;
/// Owners of a peak that the text names.
const MAX_OWNERS: usize = 3;

/// The growth of memory by code, from one time to another. Times are seconds since the recording began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Rise {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) bytes: u64,
    /// Growth by unknown code, and by stacks that were left out.
    pub(super) unknown: u64,
    pub(super) other: u64,
    /// Bytes, and the names of frames as indices, outermost first.
    pub(super) stacks: Vec<(u64, Vec<u32>)>,
    /// The line of the application with most growth: bytes, and the name of its frame.
    #[serde(skip)]
    line: Option<(u64, u32)>,
}

/// The memory of a process at a peak of its RSS.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Peak {
    pub(super) t: f64,
    pub(super) pid: i32,
    pub(super) rss: u64,
    /// The name of each owner, its bytes, and the path that retains it.
    pub(super) owners: Vec<(String, u64, Option<String>)>,
}

/// The names of frames, and the rises in the order of their time.
pub(super) fn rises(recording: &Recording) -> (Vec<String>, Vec<Rise>) {
    let limit = (recording.length_ms() / MAX_PART).max(MIN_LIMIT_MS);
    let mut names = Names::default();
    let frame = |frame: &WhoFrame| Frame {
        name: names.number(crate::stacks::name(frame)),
        is_of_application: Gem::of(frame.path.as_deref()).is_application(),
    };
    let frames: Vec<Frame> = recording.frames.iter().map(frame).collect();
    let mut rises: Vec<(u64, u64, Sums)> = Vec::new();
    for growth in recording.growth() {
        match rises.last_mut() {
            Some((from, to, sums))
                if growth.from_ms <= *to + 1000 && growth.t_ms.saturating_sub(*from) <= limit =>
            {
                *to = growth.t_ms;
                sums.add(growth, &frames);
            }
            _ => {
                let mut sums = Sums::default();
                sums.add(growth, &frames);
                rises.push((growth.from_ms, growth.t_ms, sums));
            }
        }
    }
    let mut rises: Vec<Rise> =
        rises.into_iter().map(|(from, to, sums)| sums.rise(from, to)).collect();
    rises.sort_by_key(|rise| std::cmp::Reverse(rise.bytes));
    rises.truncate(MAX_RISES);
    rises.sort_by(|a, b| a.from.total_cmp(&b.from));
    (names.all, rises)
}

/// The peaks whose owners were captured.
pub(super) fn peaks(recording: &Recording) -> Vec<Peak> {
    let peak = |it: &CauseSample| {
        let owner = |owner: &Owner| {
            let bytes = owner.slot_bytes + owner.exclusive_bytes + owner.shared_bytes;
            let path = owner.kept_by.first().and_then(|kept| kept.path.clone());
            (owner.owner.clone(), bytes, path)
        };
        let owners = it.owners.as_ref()?.iter().map(owner).collect();
        Some(Peak { t: it.t_ms as f64 / 1e3, pid: it.pid, rss: it.rss_bytes, owners })
    };
    recording.causes().filter_map(peak).collect()
}

/// A frame of a stack.
struct Frame {
    name: u32,
    is_of_application: bool,
}

/// The sums of a rise.
#[derive(Debug, Default)]
struct Sums {
    bytes: u64,
    unknown: u64,
    other: u64,
    stacks: HashMap<Vec<u32>, u64>,
    /// By the innermost frame of the application, or of all frames without one.
    lines: HashMap<u32, u64>,
}

impl Sums {
    fn add(&mut self, growth: &GrowthSample, frames: &[Frame]) {
        self.bytes += growth.growth_bytes;
        self.unknown += growth.unknown_bytes;
        self.other += growth.other_bytes;
        for stack in &growth.stacks {
            let stack_frames = stack.frames.iter().filter_map(|&it| frames.get(it as usize));
            let frames: Vec<&Frame> = stack_frames.collect();
            let own = frames.iter().rfind(|it| it.is_of_application);
            if let Some(line) = own.or(frames.last()) {
                *self.lines.entry(line.name).or_default() += stack.bytes;
            }
            let names = frames.iter().map(|it| it.name).collect();
            *self.stacks.entry(names).or_default() += stack.bytes;
        }
    }

    fn rise(self, from: u64, to: u64) -> Rise {
        let mut stacks: Vec<(u64, Vec<u32>)> =
            self.stacks.into_iter().map(|(frames, bytes)| (bytes, frames)).collect();
        stacks.sort_by(|a, b| b.cmp(a));
        let rest = stacks.split_off(stacks.len().min(MAX_STACKS));
        let other = self.other + rest.iter().map(|stack| stack.0).sum::<u64>();
        let (from, to) = (from as f64 / 1e3, to as f64 / 1e3);
        let line = self.lines.into_iter().map(|(name, bytes)| (bytes, name)).max();
        Rise { from, to, bytes: self.bytes, unknown: self.unknown, other, stacks, line }
    }
}

/// The names of frames, each once.
#[derive(Debug, Default)]
struct Names {
    all: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    fn number(&mut self, name: String) -> u32 {
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.all.push(name.clone());
            self.all.len() as u32 - 1
        })
    }
}

impl Rise {
    /// "grew by 120.0 MiB from 10 s to 40 s, most of it in Reports#export".
    pub(super) fn sentence(&self, names: &[String]) -> String {
        let Self { from, to, .. } = self;
        let mut text = format!("grew by {} from {from:.0} s to {to:.0} s", Size(self.bytes));
        if let Some((bytes, name)) = self.line
            && let Some(name) = names.get(name as usize)
        {
            text += &format!("; {} of it in {name}", Size(bytes));
        }
        text
    }
}

impl Peak {
    /// "peak of 300.0 MiB at 60 s: String 120.0 MiB, Array 10.0 MiB".
    pub(super) fn sentence(&self) -> String {
        let owner =
            |(name, bytes, _): &(String, u64, Option<String>)| format!("{name} {}", Size(*bytes));
        let owners: Vec<String> = self.owners.iter().take(MAX_OWNERS).map(owner).collect();
        format!("peak of {} at {:.0} s: {}", Size(self.rss), self.t, owners.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use formats::{Line, Sampling, SamplingMethod, UnknownStacks, WhoStack};

    use super::*;
    use crate::plot::tests::{causes, recording};

    /// Growth by `main`, which calls the method with this number.
    fn growth(from_ms: u64, t_ms: u64, method: u32, bytes: u64) -> Line {
        Line::Growth(GrowthSample {
            t_ms,
            from_ms,
            sampling: Sampling {
                method: SamplingMethod::PageFaults,
                samples: 1,
                lost: 0,
                copied: 0,
                torn: 0,
                unknown_stacks: UnknownStacks::default(),
                prompt_bytes: bytes,
                interval_ms: None,
            },
            growth_bytes: bytes + 5,
            unknown_bytes: 3,
            other_bytes: 2,
            tasks: vec![],
            first_frame: 0,
            frames: vec![],
            stacks: vec![WhoStack { frames: vec![0, method], bytes, task: None }],
            recorder_cpu_ms: 0.0,
        })
    }

    #[test]
    fn intervals_that_follow_each_other_are_one_rise() {
        let lines = vec![
            growth(0, 10_000, 1, 100),
            growth(10_001, 20_000, 2, 300),
            growth(20_000, 30_000, 1, 100),
            growth(90_000, 95_000, 1, 50),
        ];
        let frames =
            ["main", "a", "b"].map(|name| WhoFrame { method: name.into(), path: None, line: None });
        let recording = Recording { frames: frames.into(), ..recording(lines) };
        let (names, rises) = rises(&recording);
        assert_eq!(names, ["main", "a", "b"]);
        let times: Vec<_> = rises.iter().map(|it| (it.from, it.to, it.bytes)).collect();
        assert_eq!(times, [(0.0, 30.0, 515), (90.0, 95.0, 55)]);
        assert_eq!(rises[0].stacks, [(300, vec![0, 2]), (200, vec![0, 1])]);
        assert_eq!((rises[0].unknown, rises[0].other), (9, 6));
        let sentence = "grew by 515 B from 0 s to 30 s; 300 B of it in b";
        assert_eq!(rises[0].sentence(&names), sentence);
    }

    /// A rise of 53.6 MiB was named after a method of a gem with 7.0 MiB, since the calls of a template have many stacks.
    #[test]
    fn a_rise_is_named_after_the_line_of_the_application() {
        let frame = |method: &str, path: &str| WhoFrame {
            method: method.into(),
            path: Some(path.into()),
            line: Some(7),
        };
        let frames = vec![
            frame("Orders#index", "/srv/app/orders.rb"),
            frame("Builder#tag", "/gems/builder-3.2.4/lib/builder.rb"),
            frame("Builder#text", "/gems/builder-3.2.4/lib/builder.rb"),
            frame("Logger#add", "/gems/logger-1.5.0/lib/logger.rb"),
        ];
        let stack = |frames: &[u32], bytes| WhoStack { frames: frames.into(), bytes, task: None };
        let mut growth = growth(0, 10_000, 0, 250);
        if let Line::Growth(growth) = &mut growth {
            growth.stacks = vec![stack(&[3], 100), stack(&[0, 1], 80), stack(&[0, 1, 2], 70)];
        }
        let (names, rises) = rises(&Recording { frames, ..recording(vec![growth]) });
        let sentence = "grew by 255 B from 0 s to 10 s; 150 B of it in Orders#index (orders.rb:7)";
        assert_eq!(rises[0].sentence(&names), sentence);
    }

    #[test]
    fn growth_without_end_is_divided_into_rises() {
        let lines = (0..1000).map(|at| growth(at * 10_000, at * 10_000 + 10_000, 1, 100));
        let (_, rises) = rises(&recording(lines.collect()));
        assert!((40..=60).contains(&rises.len()), "{}", rises.len());
        assert_eq!(rises.iter().map(|rise| rise.bytes).sum::<u64>(), 105_000);
    }

    #[test]
    fn captures_without_owners_are_no_peaks() {
        assert_eq!(peaks(&recording(vec![causes(1, 1, &[("ruby.malloc", 10)])])), []);
    }
}
