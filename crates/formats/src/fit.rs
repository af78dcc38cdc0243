//! The number of workers that fit into a memory limit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Content;

/// The document of `rbloat report --fit` on recordings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fit {
    /// The role of the workers, such as `puma worker`. Empty if there are none.
    pub role: String,
    /// The most workers at one time in a recording.
    pub workers: u64,
    /// The threads of a worker, as the kernel counts them. Of recordings with different numbers, those with the largest count.
    pub threads: u64,
    /// The resident stacks of a thread, from the last captures of the workers. `null` without captures, and in older documents.
    #[serde(default)]
    pub thread_stack_bytes: Option<u64>,
    /// The time that the figures are from: the shortest steady part of a worker that counts.
    pub steady_seconds: f64,
    /// The limit: that of the option, or else of the control group. `null` if there is none.
    pub limit_bytes: Option<u64>,
    /// The time for which all probabilities are, in seconds.
    pub for_seconds: f64,
    /// The least probability with which workers fit.
    pub probability: f64,
    /// The reason why rbloat cannot tell. `null` if it can. The fields below are then empty.
    pub doubt: Option<FitDoubt>,
    /// The length of a recording that may be enough, in seconds. `null` if a longer one does not help.
    pub record_seconds: Option<f64>,
    /// With a doubt, what the workers have at the last look. `null` without a doubt, without workers, and in older documents.
    #[serde(default)]
    pub now: Option<FitNow>,
    /// The model. `null` if there is a doubt.
    pub model: Option<FitModel>,
    /// The memory of different numbers of workers, ascending from 1.
    pub rows: Vec<FitRow>,
    /// The most workers that fit. `null` without a limit.
    pub max_workers: Option<u64>,
    /// The least limit for the recorded number of workers.
    pub safe_limit_bytes: Option<u64>,
    /// The changes whose effect can be computed.
    pub remedies: Vec<FitRemedy>,
    /// The answers of recordings with fewer threads, ascending. Empty in older documents.
    #[serde(default)]
    pub with_fewer_threads: Vec<FitThreads>,
}

impl Content for Fit {
    const KIND: &'static str = "fit";
}

/// The reason why a recording does not show how many workers fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FitDoubt {
    /// No processes with most of the memory have the same parent.
    NoWorkers,
    /// There is only one worker, so the difference between workers is unknown.
    OneWorker,
    /// The recordings are of different kinds of workers.
    UnlikeRecordings,
    /// A process was looked at once, which does not show how its memory changes.
    OneLook,
    /// The recording has too few samples with private memory.
    NoPrivateMemory,
    /// The kernel killed processes at the memory limit, so the memory that they need was not seen.
    Killed,
    /// A part of the memory is in swap.
    Swapped,
    /// The workers did hardly anything.
    NoLoad,
    /// Workers were replaced, and too few of them were recorded from start to end.
    Replaced,
    /// The memory of a worker grows.
    Growing,
    /// The memory of a worker is not stable yet.
    Unsettled,
}

/// The answer for a number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FitThreads {
    /// The threads of a worker.
    pub threads: u64,
    /// The most workers at one time in these recordings.
    pub workers: u64,
    /// The reason why rbloat cannot tell. `null` if it can.
    pub doubt: Option<FitDoubt>,
    /// The private memory of a worker that is stable. `null` with a doubt, as the next two.
    pub worker_bytes: Option<u64>,
    /// The most workers that fit. `null` without a limit.
    pub max_workers: Option<u64>,
    /// The least limit for the recorded number of workers.
    pub safe_limit_bytes: Option<u64>,
}

/// The memory of workers at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FitNow {
    /// The number of workers.
    pub workers: u64,
    /// The memory of all other processes of the family, and all that is shared.
    pub fixed_bytes: u64,
    /// The private memory of the smallest worker.
    pub least_bytes: u64,
    /// The private memory of the largest one.
    pub most_bytes: u64,
    /// The least number of workers, each with the mean of their private memory, that have more than the limit: with pages of files, which
    /// the kernel can take back. `null` without a limit.
    pub above_limit: Option<u64>,
}

/// The model: `fixed_bytes` + workers × `worker_bytes`, and the memory of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FitModel {
    /// The memory that does not depend on the number of workers: that of all other processes of the family, and all that is shared.
    pub fixed_bytes: u64,
    /// The private memory of a worker that is stable.
    pub worker_bytes: u64,
    /// The workers from which it was estimated.
    pub basis: FitBasis,
    /// The deviation of workers from it (a standard deviation).
    pub spread_bytes: u64,
    /// The most that a worker had above its own level.
    pub peak_bytes: u64,
    /// The memory of the kernel for the processes, as a share of theirs.
    pub kernel_share: f64,
    /// The memory of other programs in the control group, if its limit counts.
    pub other_bytes: u64,
}

/// The workers from which a worker's memory was estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FitBasis {
    /// The mean of all.
    Mean,
    /// The largest, because workers differ: the others may become as large.
    Largest,
    /// The largest memory in the life of each, because workers are replaced.
    Lives,
}

/// The memory of a number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FitRow {
    /// The number of workers.
    pub workers: u64,
    /// The expected memory, between peaks.
    pub expected_bytes: u64,
    /// The least limit into which they fit.
    pub safe_limit_bytes: u64,
    /// The probability that they stay below the limit. `null` without a limit.
    pub probability: Option<f64>,
}

/// A change whose effect on memory was computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum FitRemedy {
    /// Workers keep the memory that they shared with their parent at first.
    KeepSharing {
        /// The memory that a worker has copied: it saves at most this.
        max_bytes_per_worker: u64,
    },
    /// The server loads the code before it forks workers, which have loaded it by themselves.
    Preload {
        /// The interpreter's own memory in a worker at its last capture: code and classes. Workers share it until they change it.
        code_bytes_per_worker: u64,
    },
    /// Free memory of malloc is returned.
    Trim {
        /// The memory that a trim of a worker would return: it saves at most this between peaks.
        max_bytes_per_worker: u64,
    },
    /// Fewer arenas of glibc.
    FewerArenas {
        /// The free memory of malloc in a worker at its last capture: they save at most this between peaks, and maybe nothing.
        max_bytes_per_worker: u64,
    },
    /// Workers that grow at a constant rate are replaced before they reach the limit.
    Replace {
        /// The growth of a worker: the upper bound of its interval of 95 %.
        bytes_per_second: f64,
        /// The age at which workers must be replaced, so that the recorded number of them stays below the limit.
        after_seconds: f64,
    },
}
