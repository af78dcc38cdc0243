use ledger::{Cause, InterpreterKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Confidence, Maker, names};

/// The verdict on a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The cause that explains the memory of the process, or `"healthy"`.
    #[serde(with = "names::cause_or_healthy")]
    #[schemars(schema_with = "names::cause_or_healthy::schema")]
    pub cause: Option<Cause>,
    /// The causes that the verdict sums up, because they mean the same to a user. For example, the memory of live objects is
    /// `ruby.live_slots` and `ruby.malloc`. `verdict.cause` is the largest of them. Empty if healthy.
    #[serde(with = "names::causes")]
    #[schemars(schema_with = "names::causes::schema")]
    pub rows: Vec<Cause>,
    /// The sum of `verdict.rows`. All of RSS if healthy.
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
    /// The part of RSS that it saves. `null` unless that can be predicted: malloc may keep freed memory for reuse.
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
    /// Let AutoTrim of rbloat's gem return free pages whenever that is worth it.
    AutoTrim,
    /// Restart with jemalloc and its background thread.
    PreloadJemalloc {
        /// True if LD_PRELOAD names jemalloc, but it was not loaded.
        is_broken: bool,
        /// True if most of the free memory is pinned: blocks in use share its pages.
        is_pinned: bool,
    },
    /// Restart with jemalloc's background thread, and without `dirty_decay_ms:-1`.
    DecayInBackground,
    /// Restart without a variable that lets glibc keep the free end of its heap.
    ReturnTop {
        /// Its name, or the name of the tunable: `glibc.malloc.top_pad in GLIBC_TUNABLES`.
        variable: String,
        /// The size that it has set.
        threshold_bytes: u64,
        /// The resident bytes of that end.
        bytes: u64,
    },
    /// Try it without a variable that lets glibc take blocks of more than 32 MiB from its heap.
    MapLargeBlocks {
        /// Its name, or the name of the tunable.
        variable: String,
        /// The size that it has set: larger blocks have mappings of their own.
        threshold_bytes: u64,
    },
    /// Restart with MALLOC_ARENA_MAX=2.
    LimitArenas {
        /// Free memory in all arenas except the two largest.
        kept_bytes: u64,
    },
    /// Call GC.enable. Always the first step.
    EnableGc {
        /// The garbage of the classes that hold most. 0 in older documents.
        #[serde(default)]
        garbage_bytes: u64,
    },
    /// Let the GC collect old objects, too.
    AllowFullMark {
        /// The garbage of the classes that hold most.
        garbage_bytes: u64,
    },
    /// Restart without variables that make Ruby keep free slots.
    UnsetInitialSlots {
        /// Their names.
        variables: Vec<String>,
    },
    /// Run Process.warmup and GC.start, so that Ruby frees heap pages without slots.
    FreePages,
    /// Run GC.compact.
    Compact,
    /// Release the objects of a class, or run the GC: if they are garbage, or if `path` begins in memory of C extensions. A
    /// second step is against live objects, if the first one is against garbage.
    ReleaseObjects {
        /// The class.
        class: String,
        /// The bytes that its objects hold, with their singleton classes.
        bytes: u64,
        /// The path that retains more than half of these bytes or objects. `null` if there is none.
        path: Option<String>,
        /// True if more than half of these bytes or objects are garbage.
        are_garbage: bool,
        /// The bytes of those that are garbage. 0 in older documents.
        #[serde(default)]
        garbage_bytes: u64,
    },
    /// Rebuild the tables of hashes, or of Sets, that were large once.
    Rehash {
        /// `Hash`, or `Set` if they are written in C (from Ruby 4.0 on).
        #[serde(default = "hash")]
        class: String,
        /// Their number.
        hashes: u64,
        /// The entries of all of them.
        entries: u64,
        /// The entries that they have room for.
        capacity: u64,
        /// The resident bytes that smaller tables save.
        bytes: u64,
        /// The path of the largest.
        path: String,
    },
    /// Copy short strings that share the bytes of long ones.
    CopySlices {
        /// The number of the short ones.
        slices: u64,
        /// Their bytes.
        used_bytes: u64,
        /// The number of the long ones.
        strings: u64,
        /// The resident bytes that the copies save.
        bytes: u64,
        /// The path of the longest.
        path: String,
    },
    /// Replace strings, arrays or queues that were large once, or are slices of large arrays, by copies.
    CopyBuffers {
        /// `String`, `Array` or `Queue`.
        class: String,
        /// Their number.
        objects: u64,
        /// The bytes of their contents.
        used_bytes: u64,
        /// The bytes that there is room for.
        room_bytes: u64,
        /// The bytes of objects that only arrays retain of which only slices are in use.
        #[serde(default)]
        elements_bytes: u64,
        /// The resident bytes that the copies save.
        bytes: u64,
        /// The path of the largest.
        path: String,
    },
    /// Let strings with the same text share one. Only with `--waste`.
    ShareStrings {
        /// Their number, without one of each text.
        strings: u64,
        /// The number of different texts.
        texts: u64,
        /// The resident bytes that this saves, without room against which there is another step.
        bytes: u64,
        /// The path of the root that retains them.
        path: String,
    },
    /// Restart without variables that delay the GC.
    UnsetMallocLimits {
        /// Their names.
        variables: Vec<String>,
    },
    /// Stop measuring code coverage.
    StopCoverage {
        /// The bytes of the counters.
        bytes: u64,
    },
    /// Free the native memory of a class's objects.
    FreeNative {
        /// The class.
        class: String,
        /// The number of its objects.
        objects: u64,
        /// The path that retains more than half of them. `null` if there is none.
        path: Option<String>,
        /// The number of garbage objects if they are the majority, otherwise 0.
        garbage_objects: u64,
    },
    /// Use NativePressure of rbloat's gem, which tells the GC how much native memory there is.
    NativePressure {
        /// The class whose garbage holds most native memory, of which the GC does not know.
        class: String,
    },
    /// Find the code that allocates native memory and does not free it.
    FindNativeLeak,
    /// Find the code that fills native memory which variables of libraries and threads hold.
    FindNativeUse,
    /// Look for native memory of C extensions. Owners were not searched for.
    LookForNative,
    /// Find the code that maps anonymous memory which belongs neither to malloc nor to Ruby.
    FindMapper,
    /// Load fewer gems, or load them before the process forks. Only if the verdict is `ruby.vm`, and bytecode, methods or classes
    /// are its largest part.
    LoadLessCode {
        /// Up to three gems with at least 4 MiB and 2 % of RSS, the largest first.
        gems: Vec<LargeGem>,
    },
    /// Make fewer entries of a table of the interpreter.
    LimitTable {
        /// `object_ids`, `symbols`, `generic_variables`, `finalizers` or `gc_profile`.
        #[serde(with = "names::interpreter_kind")]
        #[schemars(schema_with = "names::interpreter_kind::schema")]
        table: InterpreterKind,
        /// The bytes of the table; if objects of one root are most of it, of them.
        bytes: u64,
        /// True if most of it is room for entries that are gone. False in older documents.
        #[serde(default)]
        is_room: bool,
    },
    /// Find out whether code is compiled again and again, and define it once. Only if the verdict is `ruby.vm`.
    DefineCodeOnce {
        /// The name of its file, or of an `eval`, or the class or module that has it.
        path: String,
        /// The number of its methods, blocks and files.
        iseqs: u64,
        /// The bytes of their bytecode: slots, and resident malloc'ed memory.
        bytes: u64,
    },
    /// Restart with a limit for the JIT compiler.
    LimitJit {
        /// The option of Ruby.
        option: String,
        /// The limit in MiB.
        mebibytes: u64,
    },
    /// Run fewer threads.
    RunFewerThreads {
        /// Their number now.
        threads: u64,
        /// The block that started more than half of them. `null` if there is none.
        #[serde(default)]
        starter: Option<ThreadStarter>,
        /// The native threads without a thread of Ruby, if Ruby runs less than half of them. Otherwise `null`.
        #[serde(default)]
        others: Option<OtherThreads>,
        /// The class of more than half of them, which C code started, and their number: `["Process::Waiter", 900]`. `null` if
        /// there is none.
        #[serde(default)]
        class: Option<(String, u64)>,
    },
    /// Let a thread end, so that glibc frees stacks of threads that do not run.
    EndThread {
        /// The resident bytes of these stacks.
        bytes: u64,
    },
    /// Fork before other threads start, or turn the thread caches of malloc off in the process that forks.
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
    /// End fibers, release them, or run the GC.
    EndFibers {
        /// The number of those that have a stack.
        fibers: u64,
        /// The path that retains more than half of their memory. `null` if there is none.
        path: Option<String>,
        /// True if more than half of it is garbage.
        are_garbage: bool,
    },
    /// Delete files in memory, or map less shared memory.
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
        /// The bytes of all of them.
        bytes: u64,
        /// The largest one that a process has open.
        path: String,
        /// Its size in memory.
        path_bytes: u64,
        /// True if it is deleted, so that its memory is free as soon as it is closed.
        is_deleted: bool,
        /// The process that has it open.
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
    /// Watch anonymous memory, or PSS, instead of RSS.
    WatchPss,
    /// Change the code that needs the memory. Only with `--who`, if this code first touched a quarter of the verdict's memory or
    /// more. It comes first.
    ChangeCode {
        /// The cause of the memory.
        #[serde(with = "names::cause")]
        #[schemars(schema_with = "names::cause::schema")]
        of: Cause,
        /// Its owner. `null` for free and unknown memory.
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
    /// The memory of its bytecode: slots, and resident malloc'ed memory.
    pub bytes: u64,
}

/// Native threads that run no thread of Ruby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherThreads {
    /// Their number.
    pub threads: u64,
    /// True if Ruby keeps the native threads of its ended ones for some seconds (up to Ruby 3.1).
    pub may_have_ended: bool,
    /// The only name of a thread that Ruby has made of a file and a line: of the block that started threads. `null` if there is
    /// none.
    pub name: Option<String>,
}

/// A block that started threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadStarter {
    /// Its file and line: `/srv/app/client.rb:9`.
    pub place: String,
    /// The gem of the file. `null` for the application.
    pub gem: Option<String>,
    /// The number of threads that it started and that still run.
    pub threads: u64,
    /// The method that most of these run: `Client#run (/srv/app/client.rb:14)`. `null` if there is none.
    pub run: Option<String>,
}

/// The class in older documents.
fn hash() -> String {
    "Hash".into()
}
