//! The growth of processes by the code that caused it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Content, page_size, untrusted};

/// The document of `rbloat who`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Who {
    pub pid: i32,
    pub command: String,
    pub elapsed_ms: f64,
    pub sampling: Sampling,
    pub growth_bytes: u64,
    pub bytes_per_minute: u64,
    pub unknown_bytes: u64,
    pub unsampled_bytes: u64,
    pub faulted_bytes: u64,
    pub copied_bytes: u64,
    pub old_objects: Option<WhoOldObjects>,
    pub processes: Vec<WhoProcess>,
    pub tasks: Vec<WhoTask>,
    pub methods: Vec<WhoMethod>,
    pub lines: Vec<WhoLine>,
    pub copies: Vec<WhoLine>,
    pub threads: Vec<WhoShare>,
    pub kinds: Vec<WhoKindShare>,
    pub machine_code: Vec<WhoMachineCode>,
    pub frames: Vec<WhoFrame>,
    pub stacks: Vec<WhoStack>,
    pub touched: Vec<WhoTouched>,
}

impl Content for Who {
    const KIND: &'static str = "who";
}

impl Who {
    /// Reads the document that `rbloat who --json` printed.
    ///
    /// # Errors
    /// If it is something else. The error says what is wrong.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        /// The beginning of every document.
        #[derive(Deserialize)]
        struct Head {
            kind: String,
        }
        let head: Head = untrusted::parse_addresses(json)?;
        if head.kind != Self::KIND {
            return Err(format!("it is the document of `rbloat {}`", linux::one_line(&head.kind)));
        }
        untrusted::parse_addresses(json)
    }
}

/// The samples, and how sure they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct Sampling {
    pub method: SamplingMethod,
    pub samples: u64,
    pub lost: u64,
    pub copied: u64,
    pub torn: u64,
    pub unknown_stacks: UnknownStacks,
    pub prompt_bytes: u64,
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
    /// By the number of page faults of each thread, read again and again.
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

impl From<sampler::UnknownStacks> for UnknownStacks {
    fn from(stacks: sampler::UnknownStacks) -> Self {
        let sampler::UnknownStacks { not_derived, ended, not_found, no_ruby, unreadable, late } =
            stacks;
        Self { not_derived, ended, not_found, no_ruby, unreadable, late }
    }
}

/// The rise of the number of old objects of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoOldObjects {
    pub pid: i32,
    pub first: u64,
    pub last: u64,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoProcess {
    pub pid: i32,
    pub start_bytes: u64,
    pub peak_bytes: u64,
    pub growth_bytes: u64,
}

/// The growth by one method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoMethod {
    pub method: String,
    pub path: Option<String>,
    pub self_bytes: u64,
    pub total_bytes: u64,
}

/// The growth by one line of the application, or the memory that it copied, with everything that it called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoLine {
    pub path: String,
    pub line: u64,
    pub method: String,
    pub bytes: u64,
}

/// The growth of one kind of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoKindShare {
    pub kind: WhoKind,
    pub bytes: u64,
}

/// The purpose of memory, as far as its address tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhoKind {
    /// The heap of brk(2), which glibc's main arena extends.
    #[serde(alias = "main_heap")]
    Heap,
    /// glibc's other arenas.
    Arena,
    /// Ruby's heap pages.
    HeapPages,
    /// Other anonymous memory: large chunks with a mapping of their own, stacks, other allocators.
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
    /// The kernel, during a system call.
    Kernel,
    /// Code in no file, as of a JIT compiler.
    Generated,
    /// Unknown, or not mapped any more.
    Unknown,
}

/// The growth by the machine code that touched the memory. The name is a library's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoMachineCode {
    pub origin: WhoOrigin,
    pub name: Option<String>,
    pub bytes: u64,
}

/// The growth by threads of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoShare {
    pub name: String,
    pub bytes: u64,
}

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoFrame {
    pub method: String,
    pub path: Option<String>,
    pub line: Option<u64>,
}

/// A stack, as indices into the frames, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoStack {
    pub frames: Vec<u32>,
    pub bytes: u64,
    pub task: Option<u32>,
}

/// The kind of a task.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// A request, by its controller and action.
    Action,
    /// A job, by its class.
    Job,
}

/// The growth by one action or class of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoTask {
    pub kind: TaskKind,
    pub name: String,
    pub bytes: u64,
}

/// The sampled pages of a process in columns: page numbers (addresses divided by the size of a page), ascending, the stacks whose
/// page faults mapped them in, and the bytes that they stand for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoTouched {
    pub pid: i32,
    pub started_ticks: Option<u64>,
    /// Bytes of a page.
    #[serde(default = "page_size::smallest", skip_serializing_if = "page_size::is_smallest")]
    pub page_bytes: u64,
    pub pages: Vec<u64>,
    pub stacks: Vec<Option<u32>>,
    pub bytes: Vec<u64>,
}
