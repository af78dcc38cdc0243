//! The growth of a part of a recording by code.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Sampling, Who, WhoFrame, WhoStack, WhoTask};

/// The maximum number of stacks of a line, and of the frames of a stack.
const MAX_STACKS: usize = 24;
const MAX_FRAMES: usize = 160;

/// The growth of all processes from `from_ms` to `t_ms`. The bytes of all stacks, of unknown code and of other stacks add up
/// to the growth.
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
    pub frames: Vec<WhoFrame>,
    pub stacks: Vec<WhoStack>,
    pub recorder_cpu_ms: f64,
}

impl GrowthSample {
    /// Extracts the stacks with most growth from an observation that has just ended. Of deep stacks, frames in the middle are left
    /// out.
    #[must_use]
    pub fn new(t_ms: u64, who: Who, recorder_cpu_ms: f64) -> Self {
        let from_ms = t_ms.saturating_sub(who.elapsed_ms as u64);
        let mut sample = Self {
            t_ms,
            from_ms,
            sampling: who.sampling,
            growth_bytes: who.growth_bytes,
            unknown_bytes: who.unknown_bytes,
            other_bytes: 0,
            tasks: Vec::new(),
            frames: Vec::new(),
            stacks: Vec::new(),
            recorder_cpu_ms,
        };
        let (mut tasks, mut frames) = (HashMap::new(), HashMap::new());
        for (index, mut stack) in who.stacks.into_iter().enumerate() {
            if index >= MAX_STACKS {
                sample.other_bytes += stack.bytes;
                continue;
            }
            if stack.frames.len() > MAX_FRAMES {
                let end = stack.frames.len() - MAX_FRAMES / 2;
                stack.frames.drain(MAX_FRAMES / 2..end);
            }
            let frame = |frame| number(frame, &mut frames, &mut sample.frames, &who.frames);
            stack.frames = stack.frames.into_iter().filter_map(frame).collect();
            let task = stack.task;
            stack.task = task.and_then(|it| number(it, &mut tasks, &mut sample.tasks, &who.tasks));
            sample.stacks.push(stack);
        }
        sample
    }

    /// Checks that everything that it refers to exists.
    pub(crate) fn check(&self) -> Result<(), String> {
        let has_frames = |stack: &WhoStack| {
            let is_known = |list: usize, index: &u32| (*index as usize) < list;
            stack.frames.iter().all(|frame| is_known(self.frames.len(), frame))
                && stack.task.iter().all(|task| is_known(self.tasks.len(), task))
        };
        match self.stacks.iter().all(has_frames) {
            true => Ok(()),
            false => Err("a stack has a frame or task that does not exist".into()),
        }
    }
}

/// The place of a value in `own`, where it is added if it is new. It is the one at `index` of `all`.
fn number<T: Clone>(
    index: u32,
    known: &mut HashMap<u32, u32>,
    own: &mut Vec<T>,
    all: &[T],
) -> Option<u32> {
    if let Some(&number) = known.get(&index) {
        return Some(number);
    }
    let number = own.len() as u32;
    own.push(all.get(index as usize)?.clone());
    known.insert(index, number);
    Some(number)
}
