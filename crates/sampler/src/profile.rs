use std::time::Duration;

use ruby::Frame;

use crate::kind::Kind;

/// The growth of processes by the code that caused it.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// The way in which page faults were noticed.
    pub method: Method,
    /// The frames of all stacks.
    pub frames: Vec<Frame>,
    /// The stacks, as indices into `frames`, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// The names of threads.
    pub threads: Vec<String>,
    /// The machine code that touched memory.
    pub machine_code: Vec<MachineCode>,
    /// The growth. All rows together have all bytes that were attributed to samples.
    pub growth: Vec<Growth>,
    /// The processes, in the order in which they were first seen.
    pub processes: Vec<ProcessGrowth>,
    /// The numbers of old objects of processes that still run, at intervals of equal length.
    pub old_objects: Vec<(i32, Vec<u64>)>,
    /// The sampled pages of each process that it has not returned to the kernel.
    pub touched: Vec<Touched>,
    /// Bytes of growth without any sample. A rest of at most a period for each thread counts as the samples of its process.
    pub unsampled_bytes: u64,
    /// The number of samples.
    pub samples: u64,
    /// The number of samples that the kernel lost because a ring was full.
    pub lost: u64,
    /// The number of samples whose stacks the kernel copied at the page fault.
    pub copied: u64,
    /// Stacks whose innermost frames are missing, because they changed while they were read.
    pub torn: u64,
    /// The samples without a stack.
    pub unknown_stacks: UnknownStacks,
    /// The time between two looks, if page faults were counted.
    pub interval: Option<Duration>,
    /// The time of the observation.
    pub elapsed: Duration,
}

/// The way in which growth is noticed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    /// By events of the kernel for page faults.
    #[default]
    PageFaults,
    /// By such events, without those inside of system calls.
    UserPageFaults,
    /// By the number of page faults of each thread, read again and again.
    Polling,
}

/// The reason why the stack of a sample is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownStack {
    NotDerived,
    Ended,
    NotFound,
    NoRuby,
    Unreadable,
    Late,
}

/// The numbers of samples without a stack, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnknownStacks {
    /// The layouts of the process were not known yet, or it does not run Ruby.
    pub not_derived: u64,
    /// The thread had ended, or the code that it ran.
    pub ended: u64,
    /// The thread was not found in the list of threads.
    pub not_found: u64,
    /// The thread runs no Ruby, or did not run it yet.
    pub no_ruby: u64,
    /// A part of the stack could not be read.
    pub unreadable: u64,
    /// The stack was read too late: the thread already waited.
    pub late: u64,
}

impl UnknownStacks {
    /// Counts a sample.
    pub(crate) fn add(&mut self, reason: UnknownStack) {
        *match reason {
            UnknownStack::NotDerived => &mut self.not_derived,
            UnknownStack::Ended => &mut self.ended,
            UnknownStack::NotFound => &mut self.not_found,
            UnknownStack::NoRuby => &mut self.no_ruby,
            UnknownStack::Unreadable => &mut self.unreadable,
            UnknownStack::Late => &mut self.late,
        } += 1;
    }
}

/// The machine code that touched memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineCode {
    /// A library or program, by its file name.
    Library(String),
    /// The kernel, during a system call.
    Kernel,
    /// Code in no file, as of a JIT compiler.
    Generated,
    /// Code at an address that is unknown, or not mapped any more.
    Unknown,
}

/// The growth that samples with the same stack, thread name, kind and machine code stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// The stack; `None` if it is unknown.
    pub stack: Option<u32>,
    /// The name of the thread.
    pub thread: u32,
    /// The purpose of the memory.
    pub kind: Kind,
    /// The machine code that touched the memory.
    pub machine_code: u32,
    /// The growth, in bytes.
    pub bytes: u64,
    /// The part of `bytes` whose stacks were copied at the fault, or read within 1 ms, while the thread was still running.
    pub prompt_bytes: u64,
    /// The bytes that were faulted in. More than `bytes` if RSS did not grow: pages were copied, or returned and used again.
    pub faulted_bytes: u64,
    /// The part of `faulted_bytes` in pages that a fork shares: they were copied when they were written to.
    pub copied_bytes: u64,
}

/// The sampled pages of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// The process.
    pub pid: i32,
    /// The time at which it began, in clock ticks since boot; `None` if that is unknown.
    pub started_ticks: Option<u64>,
    /// Bytes of a page.
    pub page_size: u64,
    /// The pages, ascending.
    pub pages: Vec<TouchedPage>,
}

/// A sampled page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TouchedPage {
    /// Its number: its address divided by the size of a page.
    pub page: u64,
    /// The stack whose page fault mapped it in, the latest one if there were several; `None` if it is unknown.
    pub stack: Option<u32>,
    /// The bytes that it stands for.
    pub bytes: u64,
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
