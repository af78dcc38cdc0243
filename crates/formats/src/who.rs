//! The growth of processes by the code that caused it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Content;

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
    pub processes: Vec<WhoProcess>,
    pub methods: Vec<WhoMethod>,
    pub lines: Vec<WhoLine>,
    pub threads: Vec<WhoShare>,
    pub kinds: Vec<WhoShare>,
    pub libraries: Vec<WhoShare>,
    pub frames: Vec<WhoFrame>,
    pub stacks: Vec<WhoStack>,
}

impl Content for Who {
    const KIND: &'static str = "who";
}

/// The samples, and how sure they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct Sampling {
    pub method: SamplingMethod,
    pub samples: u64,
    pub lost: u64,
    pub torn: u64,
    pub unreadable: u64,
    pub prompt_bytes: u64,
}

/// The way in which growth was noticed.
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

/// The growth by one line of the application, with everything that it called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoLine {
    pub path: String,
    pub line: u64,
    pub method: String,
    pub bytes: u64,
}

/// The growth by threads of one name, of one kind of memory, or by one native library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Who")]
pub struct WhoShare {
    pub name: String,
    pub bytes: u64,
}

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
}
