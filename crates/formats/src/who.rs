//! The growth of processes by the code that caused it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Content, page_size};

/// The document of `rbloat who`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Who {
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// The time of the observation.
    pub elapsed_ms: f64,
    /// The samples, and how sure they are.
    pub sampling: Sampling,
    /// The growth of RSS: for each process from its first RSS to its peak, summed up.
    pub growth_bytes: u64,
    /// The average growth per minute.
    pub bytes_per_minute: u64,
    /// The part of the growth whose code is unknown: no Ruby stack could be read, or there was no sample.
    pub unknown_bytes: u64,
    /// The part of `unknown_bytes` without any sample.
    pub unsampled_bytes: u64,
    /// The bytes that the samples stand for. More than the growth if pages were copied after a fork, were used again after they
    /// had been returned, or belong to files.
    pub faulted_bytes: u64,
    /// The part of `faulted_bytes` in pages that processes share since a fork: they were copied when they were written to.
    pub copied_bytes: u64,
    /// The rise of the number of old objects, if it was steady. Otherwise `null`.
    pub old_objects: Option<WhoOldObjects>,
    /// The processes. One that executed another program has two rows.
    pub processes: Vec<WhoProcess>,
    /// Requests and jobs, those with most growth first.
    pub tasks: Vec<WhoTask>,
    /// Methods. Their `self_bytes` and `unknown_bytes` add up to `growth_bytes`.
    pub methods: Vec<WhoMethod>,
    /// The innermost line of the application on each stack.
    pub lines: Vec<WhoLine>,
    /// The same for `copied_bytes`.
    pub copies: Vec<WhoLine>,
    /// Threads by name. The rows add up to `growth_bytes` without `unsampled_bytes`, as those of `kinds` and of `machine_code`
    /// do.
    pub threads: Vec<WhoShare>,
    /// The kinds of memory.
    pub kinds: Vec<WhoKindShare>,
    /// The machine code that touched the memory.
    pub machine_code: Vec<WhoMachineCode>,
    /// All frames of the stacks.
    pub frames: Vec<WhoFrame>,
    /// The stacks.
    pub stacks: Vec<WhoStack>,
    /// For each process the sampled pages that it has not returned to the kernel, in three lists of the same length. Empty when
    /// polling. `--who` of other commands reads this.
    pub touched: Vec<WhoTouched>,
}

impl Content for Who {
    const KIND: &'static str = "who";
}

/// The samples, and how sure they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sampling {
    /// The way in which growth is noticed.
    pub method: SamplingMethod,
    /// The number of samples.
    pub samples: u64,
    /// The number of samples that the kernel dropped.
    pub lost: u64,
    /// The samples whose stacks the kernel copied at the page fault. The other stacks were read afterwards.
    pub copied: u64,
    /// Stacks that changed while they were read: their innermost methods are missing.
    pub torn: u64,
    /// The number of samples whose code is unknown, by the reason.
    pub unknown_stacks: UnknownStacks,
    /// The growth whose stacks were copied at the page fault, or read within 1 ms of it and before the thread waited. 0 when
    /// polling.
    pub prompt_bytes: u64,
    /// The time between two counts. `null` unless polling.
    pub interval_ms: Option<f64>,
}

/// The way in which growth is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SamplingMethod {
    /// By events of the kernel for page faults.
    PageFaults,
    /// By such events, without those inside of system calls.
    UserPageFaults,
    /// The page faults of threads were counted again and again.
    Polling,
}

impl From<sampler::Method> for SamplingMethod {
    fn from(method: sampler::Method) -> Self {
        match method {
            sampler::Method::PageFaults => Self::PageFaults,
            sampler::Method::UserPageFaults => Self::UserPageFaults,
            sampler::Method::Polling => Self::Polling,
        }
    }
}

/// The numbers of samples without a stack, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnknownStacks {
    /// The layouts of the process were not known yet, or it does not run Ruby.
    pub not_derived: u64,
    /// The thread, or the code that it ran, had ended.
    pub ended: u64,
    /// The thread was not in glibc's list of threads.
    pub not_found: u64,
    /// The thread runs no Ruby, or did not run it yet.
    pub no_ruby: u64,
    /// A part of the stack could not be read.
    pub unreadable: u64,
    /// The stack was read too late: the thread was already in a method that only waits, such as `Kernel#sleep`.
    pub late: u64,
}

impl From<sampler::UnknownStacks> for UnknownStacks {
    fn from(stacks: sampler::UnknownStacks) -> Self {
        let sampler::UnknownStacks { not_derived, ended, not_found, no_ruby, unreadable, late } =
            stacks;
        Self { not_derived, ended, not_found, no_ruby, unreadable, late }
    }
}

/// The rise of the number of old objects of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoOldObjects {
    /// The process.
    pub pid: i32,
    /// The least number in the first quarter of the observation.
    pub first: u64,
    /// The least number in the last quarter.
    pub last: u64,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoProcess {
    /// Its process id.
    pub pid: i32,
    /// Its first RSS.
    pub start_bytes: u64,
    /// Its highest RSS.
    pub peak_bytes: u64,
    /// Their difference.
    pub growth_bytes: u64,
}

/// The growth by one method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoMethod {
    /// Its name.
    pub method: String,
    /// Its file. `null` for functions in C.
    pub path: Option<String>,
    /// The growth by the method itself.
    pub self_bytes: u64,
    /// The same with all that the method called.
    pub total_bytes: u64,
}

/// The growth by one line of the application, or the memory that it copied, with everything that it called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoLine {
    /// Its file.
    pub path: String,
    /// Its number.
    pub line: u64,
    /// Its method.
    pub method: String,
    /// Its bytes, with all that it called.
    pub bytes: u64,
}

/// The growth of one kind of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoKindShare {
    /// The kind.
    pub kind: WhoKind,
    /// Its growth.
    pub bytes: u64,
}

/// The purpose of memory, as far as its address tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhoKind {
    /// Of brk(2), which glibc's main arena extends.
    #[serde(alias = "main_heap")]
    Heap,
    /// glibc's other arenas.
    Arena,
    /// Ruby's heap.
    HeapPages,
    /// Other anonymous memory: large chunks, stacks, other allocators.
    Mapping,
    /// Pages of files.
    File,
    /// Memory that is not mapped any more.
    Unknown,
}

impl From<sampler::Kind> for WhoKind {
    fn from(kind: sampler::Kind) -> Self {
        match kind {
            sampler::Kind::Heap => Self::Heap,
            sampler::Kind::Arena => Self::Arena,
            sampler::Kind::HeapPages => Self::HeapPages,
            sampler::Kind::Mapping => Self::Mapping,
            sampler::Kind::File => Self::File,
            sampler::Kind::Unknown => Self::Unknown,
        }
    }
}

/// The place of machine code.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WhoOrigin {
    /// A library or program.
    Library,
    /// System calls.
    Kernel,
    /// Code in no file, such as that of a JIT compiler.
    Generated,
    /// Unknown, or not mapped any more.
    Unknown,
}

/// The growth by the machine code that touched the memory. The name is a library's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoMachineCode {
    /// The place of the code.
    pub origin: WhoOrigin,
    /// The file name of the library or program. Otherwise `null`.
    pub name: Option<String>,
    /// Its growth.
    pub bytes: u64,
}

/// The growth by threads of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoShare {
    /// The name of the native thread.
    pub name: String,
    /// Their growth.
    pub bytes: u64,
}

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct WhoFrame {
    /// Its method.
    pub method: String,
    /// Its file. `null` for functions in C.
    pub path: Option<String>,
    /// Its line. `null` if it is unknown.
    pub line: Option<u64>,
}

/// A stack, as indices into the frames, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoStack {
    /// Indices into `frames`, outermost first.
    pub frames: Vec<u32>,
    /// Its growth. 0 if it only touched pages again.
    pub bytes: u64,
    /// An index into `tasks`, or `null`.
    pub task: Option<u32>,
}

/// The kind of a task.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Requests of one action.
    Action,
    /// Jobs of one class.
    Job,
}

/// The growth by one action or class of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct WhoTask {
    /// Their kind.
    pub kind: TaskKind,
    /// Controller and action, or the class.
    pub name: String,
    /// Their growth.
    pub bytes: u64,
}

/// The sampled pages of a process in columns: page numbers (addresses divided by the size of a page), ascending, the stacks whose
/// page faults mapped them in, and the bytes that they stand for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhoTouched {
    /// The process.
    pub pid: i32,
    /// Its start, in clock ticks since the machine booted.
    pub started_ticks: Option<u64>,
    /// The size of a page. Left out if it is 4096.
    #[serde(default = "page_size::smallest", skip_serializing_if = "page_size::is_smallest")]
    pub page_bytes: u64,
    /// Numbers of pages, ascending: addresses divided by the size of a page.
    pub pages: Vec<u64>,
    /// Indices into `stacks`, or `null`.
    pub stacks: Vec<Option<u32>>,
    /// The bytes that each page stands for.
    pub bytes: Vec<u64>,
}
