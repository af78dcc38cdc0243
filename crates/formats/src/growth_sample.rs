//! The growth of a part of a recording by code.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use ledger::Gem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Sampling, Who, WhoFrame, WhoStack, WhoTask};

/// The maximum number of stacks of a line, and of the frames of a stack.
const MAX_STACKS: usize = 24;
const MAX_FRAMES: usize = 160;
/// The number of frames after which they are numbered anew: a program may compile code again and again.
const MAX_NUMBERED: usize = 65_536;

/// The growth of all processes from `from_ms` to `t_ms`. The bytes of all stacks, of unknown code and of other stacks add up
/// to the growth.
///
/// `frames` are those that no line before had. In the file they are numbered from `first_frame` on. [`crate::Recording`] has the
/// frames of all lines, to which its stacks refer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct GrowthSample {
    pub t_ms: u64,
    pub from_ms: u64,
    pub sampling: Sampling,
    pub growth_bytes: u64,
    pub unknown_bytes: u64,
    pub other_bytes: u64,
    pub tasks: Vec<WhoTask>,
    #[serde(default)]
    pub first_frame: u32,
    pub frames: Vec<WhoFrame>,
    pub stacks: Vec<WhoStack>,
    pub recorder_cpu_ms: f64,
}

impl GrowthSample {
    /// Moves its frames to `all`, the frames of the lines before, and checks that everything that it refers to exists.
    pub(crate) fn join(&mut self, all: &mut Vec<WhoFrame>) -> Result<(), String> {
        let start = all.len().checked_sub(self.first_frame as usize);
        let start = start.ok_or("the lines with its frames are missing")? as u32;
        all.append(&mut self.frames);
        for stack in &mut self.stacks {
            for frame in &mut stack.frames {
                *frame = frame.saturating_add(start);
            }
            if stack.frames.iter().any(|&frame| frame as usize >= all.len())
                || stack.task.is_some_and(|task| task as usize >= self.tasks.len())
            {
                return Err("a stack has a frame or task that does not exist".into());
            }
        }
        Ok(())
    }
}

/// The numbers of the frames that a recording has.
#[derive(Debug, Default)]
pub struct GrowthFrames {
    numbers: HashMap<WhoFrame, u32>,
}

impl GrowthFrames {
    /// Extracts the stacks with most growth from an observation that ended at `t_ms`. Frames of libraries are folded, and of stacks that
    /// are still deep, frames in the middle are left out.
    #[must_use]
    pub fn sample(&mut self, t_ms: u64, who: Who, recorder_cpu_ms: f64) -> GrowthSample {
        if self.numbers.len() > MAX_NUMBERED {
            self.numbers.clear();
        }
        let mut sample = GrowthSample {
            t_ms,
            from_ms: t_ms.saturating_sub(who.elapsed_ms as u64),
            sampling: who.sampling,
            growth_bytes: who.growth_bytes,
            unknown_bytes: who.unknown_bytes,
            other_bytes: 0,
            tasks: Vec::new(),
            first_frame: self.numbers.len() as u32,
            frames: Vec::new(),
            stacks: Vec::new(),
            recorder_cpu_ms,
        };
        let mut tasks = HashMap::new();
        for (index, mut stack) in folded(&who.frames, who.stacks).into_iter().enumerate() {
            if index >= MAX_STACKS {
                sample.other_bytes += stack.bytes;
                continue;
            }
            if stack.frames.len() > MAX_FRAMES {
                let end = stack.frames.len() - MAX_FRAMES / 2;
                stack.frames.drain(MAX_FRAMES / 2..end);
            }
            let frames = stack.frames.into_iter().filter_map(|it| who.frames.get(it as usize));
            let frames = frames.map(|it| number(it, &mut self.numbers, &mut sample.frames));
            stack.frames = frames.collect();
            let task = stack.task.and_then(|it| who.tasks.get(it as usize));
            stack.task = task.map(|it| number(it, &mut tasks, &mut sample.tasks));
            sample.stacks.push(stack);
        }
        sample
    }
}

/// The stacks without frames of libraries that libraries called, except the innermost one; those with most growth first. Stacks that
/// have become equal are one.
fn folded(frames: &[WhoFrame], stacks: Vec<WhoStack>) -> Vec<WhoStack> {
    let mut of_paths: HashMap<Option<&str>, bool> = HashMap::new();
    let is_library = frames.iter().map(|frame| {
        let path = frame.path.as_deref();
        *of_paths.entry(path).or_insert_with(|| !Gem::of(path).is_application())
    });
    let is_library: Vec<bool> = is_library.collect();
    let is_library = |frame: u32| is_library.get(frame as usize) != Some(&false);
    let mut sums: HashMap<(Vec<u32>, Option<u32>), u64> = HashMap::new();
    for WhoStack { frames, bytes, task } in stacks {
        let last = frames.len().saturating_sub(1);
        let is_kept = |&at: &usize| {
            at == 0 || at == last || !(is_library(frames[at - 1]) && is_library(frames[at]))
        };
        let kept = (0..frames.len()).filter(is_kept).map(|at| frames[at]).collect();
        *sums.entry((kept, task)).or_default() += bytes;
    }
    let stack = |((frames, task), bytes)| WhoStack { frames, bytes, task };
    let mut stacks: Vec<WhoStack> = sums.into_iter().map(stack).collect();
    stacks.sort_by(|a, b| (Reverse(a.bytes), &a.frames).cmp(&(Reverse(b.bytes), &b.frames)));
    stacks
}

/// The number of a value. One without a number gets the next one, and is added to `new`.
fn number<T: Clone + Eq + Hash>(value: &T, numbers: &mut HashMap<T, u32>, new: &mut Vec<T>) -> u32 {
    if let Some(&number) = numbers.get(value) {
        return number;
    }
    let number = numbers.len() as u32;
    numbers.insert(value.clone(), number);
    new.push(value.clone());
    number
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Line, Recording, RecordingStart};

    /// An observation of 10 s with these stacks: bytes, and methods with their paths, outermost first.
    fn who(stacks: &[(u64, Vec<(String, &str)>)]) -> Who {
        let (mut numbers, mut frames) = (HashMap::new(), Vec::new());
        let mut frame = |(method, path): &(String, &str)| {
            let path = (!path.is_empty()).then(|| (*path).to_owned());
            let frame = WhoFrame { method: method.clone(), path, line: Some(1) };
            number(&frame, &mut numbers, &mut frames)
        };
        let mut stack = |(bytes, frames): &(u64, Vec<_>)| {
            let frames: Vec<u32> = frames.iter().map(&mut frame).collect();
            json!({"bytes": bytes, "frames": frames, "task": 0})
        };
        let stacks: Vec<Value> = stacks.iter().map(&mut stack).collect();
        let bytes: u64 = stacks.iter().filter_map(|it| it["bytes"].as_u64()).sum();
        let unknown = json!({"not_derived": 0, "ended": 0, "not_found": 0, "no_ruby": 0, "unreadable": 0, "late": 0});
        serde_json::from_value(json!({
            "pid": 1, "command": "", "elapsed_ms": 10_000.0, "growth_bytes": bytes, "bytes_per_minute": 0, "unknown_bytes": 0,
            "unsampled_bytes": 0, "faulted_bytes": 0, "copied_bytes": 0, "old_objects": null, "processes": [], "methods": [],
            "sampling": {"method": "page_faults", "samples": 1, "lost": 0, "copied": 0, "torn": 0, "unknown_stacks": unknown,
                         "prompt_bytes": 0, "interval_ms": null},
            "tasks": [{"kind": "action", "name": "orders#index", "bytes": bytes}], "lines": [], "copies": [], "threads": [],
            "kinds": [], "machine_code": [], "frames": frames, "stacks": stacks, "touched": [],
        }))
        .unwrap()
    }

    /// A stack of 60 middlewares, an action, `depth` methods of a template engine, and a method of C.
    fn stack(bytes: u64, action: &str, depth: usize) -> (u64, Vec<(String, &'static str)>) {
        let library = "/usr/share/rubygems-integration/all/gems/actionpack-6.1.7/lib/action_dispatch/journey.rb";
        let frames = |name: &str, number: usize| {
            (0..number).map(|it| (format!("{name}{it}"), library)).collect()
        };
        let middlewares: Vec<_> = frames("ActionDispatch::Middleware#call", 60);
        let engine: Vec<_> = frames("ActionView::Template#render", depth);
        let own =
            (format!("OrdersController#{action}"), "/srv/app/controllers/orders_controller.rb");
        (bytes, [middlewares, vec![own], engine, vec![("String#*".to_owned(), "")]].concat())
    }

    /// The lines as they are read.
    fn read(samples: Vec<GrowthSample>) -> Result<Recording, crate::RecordingError> {
        let start = RecordingStart {
            rbloat: String::new(),
            unix_ms: 0,
            pid: 1,
            command: None,
            every_ms: 1000,
            causes_every_ms: None,
            label: None,
        };
        let lines = [Line::Start(start)].into_iter().chain(samples.into_iter().map(Line::Growth));
        Recording::read(lines.map(|it| it.to_json()).collect::<String>().as_bytes())
    }

    fn methods<'a>(recording: &'a Recording, stack: &WhoStack) -> Vec<&'a str> {
        let frames = stack.frames.iter().map(|&it| recording.frames[it as usize].method.as_str());
        frames.collect()
    }

    #[test]
    fn lines_of_deep_stacks_are_short() {
        let mut frames = GrowthFrames::default();
        let mut line = |from: usize| {
            let stacks: Vec<_> =
                (from..from + 40).map(|it| stack(1000, &format!("a{it}"), it)).collect();
            frames.sample(10_000, who(&stacks), 0.0)
        };
        let lines = [line(10), line(10), line(11)];
        let bytes = lines.each_ref().map(|it| Line::Growth(it.clone()).to_json().len());
        assert!(bytes[0] < 15_000 && bytes[1] < 2_500 && bytes[2] < 3_000, "{bytes:?}");
        let recording = read(lines.into()).unwrap();
        for growth in recording.growth() {
            let stacks: u64 = growth.stacks.iter().map(|it| it.bytes).sum();
            assert_eq!((stacks, growth.other_bytes, growth.growth_bytes), (24_000, 16_000, 40_000));
        }
        let last = recording.growth().last().unwrap();
        let expected = [
            "ActionDispatch::Middleware#call0",
            "OrdersController#a11",
            "ActionView::Template#render0",
            "String#*",
        ];
        assert_eq!(methods(&recording, &last.stacks[0]), expected);
    }

    #[test]
    fn stacks_that_differ_in_libraries_only_are_one() {
        let stacks = [stack(1, "show", 3), stack(10, "index", 70), stack(5, "index", 30)];
        let sample = GrowthFrames::default().sample(10_000, who(&stacks), 0.0);
        assert_eq!(sample.stacks.iter().map(|it| it.bytes).collect::<Vec<_>>(), [15, 1]);
        let own: Vec<_> = (0..200).map(|it| (format!("A#m{it}"), "/srv/app/a.rb")).collect();
        let sample = GrowthFrames::default().sample(10_000, who(&[(1, own)]), 0.0);
        assert_eq!(sample.stacks[0].frames.len(), MAX_FRAMES);
    }

    #[test]
    fn frames_are_numbered_anew_after_many() {
        let mut frames = GrowthFrames::default();
        let line = |frames: &mut GrowthFrames, name: &str| {
            frames.sample(10_000, who(&[stack(1, name, 1)]), 0.0)
        };
        let mut lines = vec![line(&mut frames, "index")];
        for number in 0..MAX_NUMBERED as u32 {
            let method = number.to_string();
            frames.numbers.insert(WhoFrame { method, path: None, line: None }, number);
        }
        lines.extend(["index", "show"].map(|name| line(&mut frames, name)));
        assert_eq!(lines.iter().map(|it| it.first_frame).collect::<Vec<_>>(), [0, 0, 4]);
        let recording = read(lines.clone()).unwrap();
        let own = |it: &GrowthSample| methods(&recording, &it.stacks[0])[1].to_owned();
        let found: Vec<_> = recording.growth().map(own).collect();
        assert_eq!(
            found,
            ["OrdersController#index", "OrdersController#index", "OrdersController#show"]
        );
        let error = read(lines.split_off(2)).unwrap_err().to_string();
        assert_eq!(error, "line 2 is invalid: the lines with its frames are missing");
    }
}
