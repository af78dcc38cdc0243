use std::time::Duration;

use ruby::Frame;

use crate::kind::Kind;

/// The growth of processes by the code that caused it.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// The frames of all stacks.
    pub frames: Vec<Frame>,
    /// The stacks, as indices into `frames`, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// The names of threads.
    pub threads: Vec<String>,
    /// The native libraries: file names, `(kernel)`, and `(generated code)`.
    pub libraries: Vec<String>,
    /// The growth. All rows together have all bytes that were attributed to samples.
    pub growth: Vec<Growth>,
    /// The processes, in the order in which they were first seen.
    pub processes: Vec<ProcessGrowth>,
    /// Bytes of growth without any sample.
    pub unsampled_bytes: u64,
    /// The number of samples.
    pub samples: u64,
    /// The number of samples that the kernel lost because a ring was full.
    pub lost: u64,
    /// Stacks whose innermost frames are missing, because they changed while they were read.
    pub torn: u64,
    /// Samples of threads whose stack could not be read.
    pub unreadable: u64,
    /// The time of the observation.
    pub elapsed: Duration,
}

/// The growth that samples with the same stack, thread name, kind and library stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// The stack; `None` if it is unknown.
    pub stack: Option<u32>,
    /// The name of the thread.
    pub thread: u32,
    /// The purpose of the memory.
    pub kind: Kind,
    /// The library whose code touched the memory.
    pub library: u32,
    /// The growth, in bytes.
    pub bytes: u64,
    /// The part of `bytes` whose stacks were read within 1 ms.
    pub prompt_bytes: u64,
    /// The bytes that were faulted in. More than `bytes` if RSS did not grow: pages were copied on write, or returned and
    /// used again.
    pub faulted_bytes: u64,
}

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessGrowth {
    /// Its id.
    pub pid: i32,
    /// RSS when it was first seen.
    pub start_bytes: u64,
    /// The largest RSS.
    pub peak_bytes: u64,
}

impl ProcessGrowth {
    /// The growth of RSS up to its peak.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.start_bytes)
    }
}
