use ledger::{Cause, InterpreterKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Confidence, Maker, names};

/// The verdict on a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The cause that explains the process's memory; `None`, in JSON `"healthy"`, if none does.
    #[serde(with = "names::cause_or_healthy")]
    #[schemars(schema_with = "names::cause_or_healthy::schema")]
    pub cause: Option<Cause>,
    /// The causes that `bytes` counts: they mean the same to a user, and `cause` is the largest of them.
    #[serde(with = "names::causes")]
    #[schemars(schema_with = "names::causes::schema")]
    pub rows: Vec<Cause>,
    /// The resident bytes of `rows`; all of RSS if the process is healthy.
    pub bytes: u64,
    /// The confidence in the verdict.
    pub confidence: Confidence,
}

/// A step that a user can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// The step.
    #[serde(flatten)]
    pub action: Action,
    /// The RSS that it saves, in bytes; `None` unless that can be predicted.
    pub saves_bytes: Option<u64>,
}

/// A step and its object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// Return whole free pages now, by `rbloat trim`.
    Trim,
    /// Lock less memory, so that free pages and pages of files can be taken back.
    UnlockMemory {
        /// The resident bytes that are locked.
        bytes: u64,
    },
    /// Let the gem's AutoTrim return free pages whenever that is worth it.
    AutoTrim,
    /// Restart the process with jemalloc and its background thread.
    PreloadJemalloc {
        /// True if LD_PRELOAD names jemalloc already, but it was not loaded.
        is_broken: bool,
        /// True if most of the free memory is pinned: blocks in use share its pages.
        is_pinned: bool,
    },
    /// Restart the process with jemalloc's background thread.
    DecayInBackground,
    /// Start the process without an environment variable that lets glibc keep the free end of its heap.
    ReturnTop {
        /// Its name, or the name of the tunable: `glibc.malloc.top_pad in GLIBC_TUNABLES`.
        variable: String,
        /// The size that it has set.
        threshold_bytes: u64,
        /// The resident bytes of that end.
        bytes: u64,
    },
    /// Start the process without an environment variable that lets glibc take large blocks from its heap.
    MapLargeBlocks {
        /// Its name, or the name of the tunable.
        variable: String,
        /// The size that it has set: larger blocks have mappings of their own.
        threshold_bytes: u64,
    },
    /// Restart the process with at most two arenas.
    LimitArenas {
        /// Free bytes in all arenas but the two largest.
        kept_bytes: u64,
    },
    /// Enable the garbage collector.
    EnableGc {
        /// The bytes of garbage that is known; 0 in older documents.
        #[serde(default)]
        garbage_bytes: u64,
    },
    /// Let the garbage collector collect old objects, too.
    AllowFullMark {
        /// The bytes of garbage that is known.
        garbage_bytes: u64,
    },
    /// Start the process without environment variables that make the garbage collector keep free slots.
    UnsetInitialSlots {
        /// Their names.
        variables: Vec<String>,
    },
    /// Let Ruby free the heap pages without slots that it keeps.
    FreePages,
    /// Compact Ruby's heap.
    Compact,
    /// Release the objects of one class.
    ReleaseObjects {
        /// The class.
        class: String,
        /// The bytes that its objects hold, with their singleton classes.
        bytes: u64,
        /// The path that retains more than half of these bytes, or of the objects.
        path: Option<String>,
        /// True if more than half of these bytes, or of the objects, are garbage.
        are_garbage: bool,
        /// The bytes of those that are garbage; 0 in older documents.
        #[serde(default)]
        garbage_bytes: u64,
    },
    /// Rebuild the tables of hashes, or of Sets, that were large once.
    Rehash {
        /// `Hash`, or `Set` if they are written in C (from Ruby 4.0 on).
        #[serde(default = "hash")]
        class: String,
        /// The number of hashes.
        hashes: u64,
        /// Their entries.
        entries: u64,
        /// The entries that their tables have room for.
        capacity: u64,
        /// The resident bytes that smaller tables save.
        bytes: u64,
        /// The path that retains the largest one.
        path: String,
    },
    /// Copy short strings that are slices of long ones.
    CopySlices {
        /// The number of slices.
        slices: u64,
        /// The bytes of all of them.
        used_bytes: u64,
        /// The number of long strings.
        strings: u64,
        /// The resident bytes that the copies save.
        bytes: u64,
        /// The path that retains the longest one.
        path: String,
    },
    /// Replace strings or arrays that were large once by copies, which have less room.
    CopyBuffers {
        /// `String` or `Array`.
        class: String,
        /// The number of buffers.
        objects: u64,
        /// The bytes of their contents.
        used_bytes: u64,
        /// The bytes that there is room for.
        room_bytes: u64,
        /// The bytes of objects that only the buffers retain, of which slices are in use.
        #[serde(default)]
        elements_bytes: u64,
        /// The resident bytes that the copies save.
        bytes: u64,
        /// The path that retains the largest one.
        path: String,
    },
    /// Let strings with the same text share one.
    ShareStrings {
        /// The number of strings, without one of each text.
        strings: u64,
        /// The number of different texts.
        texts: u64,
        /// Their resident bytes.
        bytes: u64,
        /// The path that retains them.
        path: String,
    },
    /// Start the process without settings that delay the GC.
    UnsetMallocLimits {
        /// Their names.
        variables: Vec<String>,
    },
    /// Stop measuring code coverage.
    StopCoverage {
        /// The bytes of the counters.
        bytes: u64,
    },
    /// Free the native memory of one class's objects.
    FreeNative {
        /// The class.
        class: String,
        /// The number of its objects.
        objects: u64,
        /// The path that retains more than half of them.
        path: Option<String>,
        /// The number of garbage objects if they are the majority, else 0.
        garbage_objects: u64,
    },
    /// Let the gem's NativePressure tell the GC how much native memory there is.
    NativePressure {
        /// The class whose garbage holds most of it.
        class: String,
    },
    /// Find the code that allocates native memory and does not free it.
    FindNativeLeak,
    /// Find the code that fills native memory which variables of libraries and threads hold.
    FindNativeUse,
    /// Look for native memory of C extensions, whose owners were not searched for.
    LookForNative,
    /// Find the code that maps anonymous memory which belongs neither to malloc nor to Ruby.
    FindMapper,
    /// Load fewer gems, or load them before the process forks.
    LoadLessCode {
        /// The gems with most bytecode, the largest first.
        gems: Vec<LargeGem>,
    },
    /// Let the program make fewer entries of a table of the interpreter.
    LimitTable {
        /// The table.
        #[serde(with = "names::interpreter_kind")]
        #[schemars(schema_with = "names::interpreter_kind::schema")]
        table: InterpreterKind,
        /// The bytes of the table; if objects of one root are most of it, of them.
        bytes: u64,
        /// True if most of it is room for entries that are gone; false in older documents.
        #[serde(default)]
        is_room: bool,
    },
    /// Define code once that is defined again and again.
    DefineCodeOnce {
        /// The name of its file, or of an `eval`.
        path: String,
        /// The number of methods, blocks and files with bytecode of this name.
        iseqs: u64,
        /// The bytes of their bytecode: slots, and resident malloc'ed memory.
        bytes: u64,
    },
    /// Limit the memory of the JIT compiler.
    LimitJit {
        /// The option of Ruby.
        option: String,
        /// A limit in MiB.
        mebibytes: u64,
    },
    /// Run fewer threads.
    RunFewerThreads {
        /// Their number now.
        threads: u64,
        /// The block that started more than half of them.
        #[serde(default)]
        starter: Option<ThreadStarter>,
        /// Whose they are, if Ruby runs less than half of them.
        #[serde(default)]
        others: Option<OtherThreads>,
        /// The class of more than half of them, which C code started, and their number: 900 `Process::Waiter`.
        #[serde(default)]
        class: Option<(String, u64)>,
    },
    /// Let a thread end, so that the C library frees stacks of threads that do not run.
    EndThread {
        /// The resident bytes of these stacks.
        bytes: u64,
    },
    /// Turn the thread caches of malloc off in the process that forks.
    DisableThreadCaches {
        /// The bytes that are free, but only for threads that the process does not have.
        bytes: u64,
    },
    /// Recurse less deeply in the main thread.
    RecurseLess {
        /// The resident bytes of its VM stack, and of its other stack as far as no call uses them.
        bytes: u64,
    },
    /// Run fewer fibers at the same time.
    RunFewerFibers {
        /// The resident bytes of stacks that no fiber has any more.
        bytes: u64,
    },
    /// End fibers, or release them.
    EndFibers {
        /// The number of fibers that have a stack.
        fibers: u64,
        /// The path that retains more than half of them.
        path: Option<String>,
        /// True if more than half of them are garbage.
        are_garbage: bool,
    },
    /// Use less shared memory: files in memory that are mapped.
    UseLessSharedMemory {
        /// The resident bytes of all of them.
        bytes: u64,
        /// The largest one, as the kernel names it.
        path: String,
        /// Its resident bytes.
        path_bytes: u64,
    },
    /// Close or delete files in memory that no process of the control group has mapped.
    CloseFilesInMemory {
        /// The bytes of all files in memory that no process has mapped.
        bytes: u64,
        /// The largest one that a process has open.
        path: String,
        /// Its size in memory.
        path_bytes: u64,
        /// True if it is deleted, so that its memory is free as soon as it is closed.
        is_deleted: bool,
        /// A process that has it open.
        pid: i32,
    },
    /// Unmap files on disk that the process maps to write to.
    UnmapFiles {
        /// The resident bytes of all of them.
        bytes: u64,
        /// The largest one, as the kernel names it.
        path: String,
        /// Its resident bytes.
        path_bytes: u64,
    },
    /// Watch PSS instead of RSS.
    WatchPss,
    /// Change the code that needs the memory.
    ChangeCode {
        /// The cause of the memory.
        #[serde(with = "names::cause")]
        #[schemars(schema_with = "names::cause::schema")]
        of: Cause,
        /// The owner of the memory, if it has one.
        owner: Option<String>,
        /// The code that touched most of it.
        code: Maker,
    },
}

/// A gem with much bytecode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LargeGem {
    /// Its name.
    pub gem: String,
    /// The bytes of its bytecode: slots, and resident malloc'ed memory.
    pub bytes: u64,
}

/// Native threads that run no thread of Ruby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherThreads {
    /// Their number.
    pub threads: u64,
    /// True if Ruby keeps the native threads of its ended ones for some seconds (up to Ruby 3.1).
    pub may_have_ended: bool,
    /// The only name of a thread that Ruby has made of a file and a line: of the block that started threads.
    pub name: Option<String>,
}

/// A block that started threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadStarter {
    /// Its file and line: `/srv/app/client.rb:9`.
    pub place: String,
    /// The gem that the file belongs to; `None` for files of the application.
    pub gem: Option<String>,
    /// The number of threads that it started and that still run.
    pub threads: u64,
    /// The method that more than half of them run: `Client#run (/srv/app/client.rb:14)`.
    pub run: Option<String>,
}

/// The class in older documents.
fn hash() -> String {
    "Hash".into()
}
