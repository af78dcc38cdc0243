//! Stacks with their weights, for people (a flame graph) and for other tools.

mod flame;
mod folded;
mod speedscope;

use formats::{Kept, Who, WhoFrame};
use serde::Serialize;

use crate::kept::kept_summary;
use crate::who::{task, who_summary};

pub(crate) use flame::GRAPH;
pub(crate) use folded::name;

/// The name of weight without a stack.
pub(crate) const UNKNOWN: &str = "(unknown)";

/// The unit of the weights of stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Weight {
    /// Bytes by which RSS grew.
    GrownBytes,
    /// Objects by whose number a class grew.
    KeptObjects,
}

/// Stacks, each with what it made.
#[derive(Debug, Clone, PartialEq)]
pub struct Stacks {
    summary: String,
    pub(crate) weight: Weight,
    pub(crate) elapsed_ms: f64,
    frames: Vec<WhoFrame>,
    rows: Vec<Row>,
    /// The weight without a stack.
    pub(crate) unknown: u64,
    /// The names of requests and jobs.
    tasks: Vec<String>,
}

/// A stack: indices into the frames, outermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    frames: Vec<u32>,
    weight: u64,
    task: Option<u32>,
}

impl Stacks {
    /// The stacks that made RSS grow. Weights are bytes.
    #[must_use]
    pub fn of_growth(who: &Who) -> Self {
        let grown = who.stacks.iter().filter(|stack| stack.bytes > 0);
        let row = |stack: &formats::WhoStack| Row {
            frames: stack.frames.clone(),
            weight: stack.bytes,
            task: stack.task,
        };
        Self {
            summary: who_summary(who),
            weight: Weight::GrownBytes,
            elapsed_ms: who.elapsed_ms,
            frames: who.frames.clone(),
            rows: grown.map(row).collect(),
            unknown: who.unknown_bytes,
            tasks: who.tasks.iter().map(task).collect(),
        }
    }

    /// The stacks that made objects which stay, each with its class as the innermost frame. Weights are numbers of objects: what a class
    /// grew by, in proportion to samples.
    #[must_use]
    pub fn of_kept(kept: &Kept) -> Self {
        let mut frames = kept.frames.clone();
        let mut rows = Vec::new();
        for stack in &kept.stacks {
            let class = WhoFrame { method: stack.class.clone(), path: None, line: None };
            let known = frames.iter().skip(kept.frames.len()).position(|it| *it == class);
            let number = kept.frames.len() + known.unwrap_or(frames.len() - kept.frames.len());
            if known.is_none() {
                frames.push(class);
            }
            let stack_frames = stack.frames.iter().copied().chain([number as u32]);
            rows.push(Row { frames: stack_frames.collect(), weight: stack.objects, task: None });
        }
        Self {
            summary: kept_summary(kept),
            weight: Weight::KeptObjects,
            elapsed_ms: kept.elapsed_ms,
            frames,
            rows,
            unknown: 0,
            tasks: Vec::new(),
        }
    }

    /// Each stack's frames, outermost first, and its weight.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (Vec<&WhoFrame>, u64)> {
        self.rows.iter().map(|row| {
            let frames = row.frames.iter().filter_map(|&it| self.frames.get(it as usize));
            (frames.collect(), row.weight)
        })
    }
}
