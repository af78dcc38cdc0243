//! The lines of code that allocate what stays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Content, RootUses, WhoFrame};

/// The document of `rbloat who --kept`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Kept {
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// The time for which its new objects were sampled.
    pub elapsed_ms: f64,
    /// The ticks of the clock in a second of each thread's processor time, while the process is busy. If it uses a part of a
    /// processor only, there are up to five times as many, and at most 1000.
    pub rate: u32,
    /// The age from which objects count.
    pub older_than_ms: f64,
    /// The reason why no lines are known. `null` if there is a result. Then only `growing` and the bytes have a meaning, and with
    /// `ended` and `no_references` not these either.
    pub unknown: Option<KeptUnknown>,
    /// The ticks of all threads.
    pub ticks: u64,
    /// The new objects that ticks saw in the hands of running code.
    pub seen: u64,
    /// Garbage collections during that time. Without any, nothing is known.
    pub collections: u64,
    /// The major ones among them.
    pub major_collections: u64,
    /// The objects of `seen` that stayed: they are old enough, and something but a thread's stack retained them at the end.
    pub samples: u64,
    /// Objects of `seen` that existed at the end, but were not old enough.
    pub younger: u64,
    /// Objects of `seen` that were garbage at the end, or only in use by a thread.
    pub unreachable: u64,
    /// Objects of `seen` that could not be followed: too many collections followed one another, or the heap was compacted.
    pub ambiguous: u64,
    /// The objects of `samples` by class and root: named ones first, classes of the program before kinds of internal objects,
    /// then by their growth.
    pub rows: Vec<KeptRow>,
    /// At most five roots of which no line is named, and that retain clearly more objects of a class than at the beginning (by
    /// 100, and by three times the square root). Listed are constants and variables of the program, and at_exit, finalizers,
    /// TracePoints and signal handlers, with a path that leads through no thread, except to threads themselves: other objects may
    /// be in use.
    pub growing: Vec<KeptGrowth>,
    /// The code that uses the roots of `growing[]` at the end, as in a report. Empty in older documents.
    #[serde(default)]
    pub root_uses: Vec<RootUses>,
    /// The resident bytes of native memory (`native.held`, `native.global` and `native.unreachable` of a report) at the
    /// beginning. This memory is not made of Ruby objects, so no line is named for it.
    #[serde(default)]
    pub native_bytes_before: u64,
    /// The same at the end.
    #[serde(default)]
    pub native_bytes_after: u64,
    /// RSS at the beginning. Native memory that grows without it is in memory that malloc had free. 0 in older documents.
    #[serde(default)]
    pub rss_bytes_before: u64,
    /// The same at the end.
    #[serde(default)]
    pub rss_bytes_after: u64,
    /// The resident bytes of `ruby.malloc` at the beginning: what objects have outside of their slots.
    #[serde(default)]
    pub object_bytes_before: u64,
    /// The same at the end.
    #[serde(default)]
    pub object_bytes_after: u64,
    /// The frames of the stacks.
    pub frames: Vec<WhoFrame>,
    /// The stacks that made objects of a named row.
    pub stacks: Vec<KeptStack>,
}

impl Content for Kept {
    const KIND: &'static str = "kept";
}

/// The reason why no lines are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptUnknown {
    /// The process has collected too little garbage meanwhile: both a minor and a major collection have to be seen.
    NoCollections,
    /// The process allocated nothing meanwhile, or the layout of its lists of free slots is not known.
    NoFreeLists,
    /// The kernel does not allow rbloat to run a program at ticks of the process's clocks.
    NotAllowed,
    /// The kernel cannot do that: it needs Linux 5.13.
    NoClocks,
    /// The kernel shows none of its own ticks, for which it needs Linux 5.15 with BTF, and no other ticks were asked for.
    NoTicks,
    /// References between objects could not be read.
    NoReferences,
    /// The process has ended.
    Ended,
}

impl KeptUnknown {
    /// Returns true if the kernel refuses to sample a process.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::NotAllowed | Self::NoClocks | Self::NoTicks)
    }
}

/// The objects of one class that stayed, and that one root retains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptRow {
    /// Their class.
    pub class: String,
    /// The root that retains them. `null` if it is not known.
    pub root: Option<String>,
    /// A path from the root to such objects. `null` if the report has none.
    pub path: Option<String>,
    /// The number of samples.
    pub samples: u64,
    /// The objects of this class that the root retained at the beginning. A root that had none then has at most the growth of its
    /// class. For threads, variables of the interpreter and unknown roots, all objects of the class that something but a thread's
    /// stack and no root of the program retained.
    pub objects_before: u64,
    /// The same at the end.
    pub objects_after: u64,
    /// About the memory of the objects by which the row grew, with what they have outside of their slots: from the mean object of
    /// the class and the root. 0 in older documents.
    #[serde(default)]
    pub bytes: u64,
    /// The answer whether its lines are named, or the reason why not.
    pub judgement: KeptJudgement,
    /// The methods that made the samples, the one with most samples first.
    pub lines: Vec<KeptLine>,
}

impl KeptRow {
    /// By how many objects it has grown.
    #[must_use]
    pub fn growth(&self) -> u64 {
        self.objects_after.saturating_sub(self.objects_before)
    }
}

/// Whether the lines of a row can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptJudgement {
    /// They are: the number of objects grows, and there are enough samples of those that stay.
    Named,
    /// There are fewer than ten samples, and fewer than ten of all that the root keeps. With this and the next values its lines
    /// prove nothing.
    FewSamples,
    /// There are not more objects than before.
    Replaced,
    /// Most samples are of the last half of the time.
    Passing,
}

impl KeptJudgement {
    /// The number of samples of a row, or of all objects that its root retains, from which a line is named.
    pub const MIN_SAMPLES: u64 = 10;
}

/// A root that retains more objects than at the beginning, whose lines are not named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptGrowth {
    /// The root.
    pub root: String,
    /// A class with a Proc in its path, or else the one that grew most.
    pub class: String,
    /// Its objects that the root retained at the beginning. A root that was not known at the beginning counts for as many objects
    /// as its class has more.
    pub objects_before: u64,
    /// The same at the end.
    pub objects_after: u64,
    /// A path from the root to such objects. A Proc in it has the line that made it.
    pub path: String,
    /// By how many objects of other classes the root has grown.
    pub other_objects: u64,
    /// The samples of rows with too few.
    pub samples: u64,
}

impl KeptGrowth {
    /// By how many objects of its class the root has grown.
    #[must_use]
    pub fn growth(&self) -> u64 {
        self.objects_after.saturating_sub(self.objects_before)
    }
}

/// A method that made objects of a class, the first line at which it was seen with one, and what it mostly called then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptLine {
    /// The number of these samples.
    pub samples: u64,
    /// The innermost method of the application that had the object in its hands.
    pub method: String,
    /// The method that this line called in most of its samples. `null` if there is no such method.
    pub calls: Option<String>,
    /// The file of the method. `null` if it is unknown.
    pub path: Option<String>,
    /// The first of its lines that had the object. The object was made on this line or shortly before.
    pub line: Option<u64>,
}

/// A stack that made objects of a named row, as indices into the frames, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptStack {
    /// The class of the row.
    pub class: String,
    /// Its root.
    pub root: Option<String>,
    /// Indices into `frames`, outermost first.
    pub frames: Vec<u32>,
    /// The number of samples.
    pub samples: u64,
    /// The stack's share of the growth of the row, in proportion to its samples.
    pub objects: u64,
}
