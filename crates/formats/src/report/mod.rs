//! The JSON of a report, part of rbloat's stable interface.
//!
//! Sizes are bytes, times are milliseconds, addresses are `"0x…"` strings. A part that could not be
//! read is `null`, with a finding that says why. Fields may be added; none is renamed.

mod capture;
mod check;
mod files;
mod finding_figures;
mod finding_rows;
mod findings;
mod group;
mod interpreter;
mod malloc;
mod owners;
mod pins;
mod process;
mod root_uses;
mod ruby;
mod threads;
mod unknown;
mod waste;

use ledger::{Cause, Ledger};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Advice, Content, Deployment, MadeBy, Verdict};

pub(crate) use check::check_causes;

pub use capture::{Capture, CaptureMethod, NoCopy, Unread, milliseconds};
pub use files::MappedFile;
pub use finding_figures::{
    ArenaProblem, CacheProblem, CacheUnit, CachesProblem, DifferentFile, HeapPart, MissingFile,
    ResidencyEvidence, RssCount, RubyPart,
};
pub use findings::{FindingKind, FindingRow, FindingSeverity};
pub use group::{ReportGroup, TmpfsFile};
pub use interpreter::{FileCode, GemCode, Interpreter, InterpreterPart};
pub use malloc::{Arena, Malloc};
pub use owners::{DominatorRow, KeptBy, Memsize, Owner};
pub use pins::{ArenaSlabs, MallocTuning, PinRow, SizeClass};
pub use process::ProcessSummary;
pub use root_uses::RootUses;
pub use ruby::{Class, Gc, Ractor, Ruby};
pub use threads::ThreadRow;
pub use unknown::UnknownRow;
pub use waste::{
    CopiesRow, FewRow, FewThings, TextRow, Waste, WasteContents, WasteGroup, WasteRow,
};

/// The maximum number of classes in a brief report.
const MAX_CLASSES: usize = 30;
/// The maximum number of files in a brief report.
const MAX_FILES: usize = 30;
/// The maximum number of groups of threads in a brief report.
const MAX_THREADS: usize = 30;
/// The maximum number of files of bytecode in a brief report.
const MAX_CODE_FILES: usize = 100;

/// The document of `rbloat report`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The process.
    pub process: ProcessSummary,
    /// The way in which its memory was read, and the time.
    pub capture: Capture,
    /// The processes that were forked from each other, this one included. `null` for a process that was not forked and has no
    /// forked children, for a core, and in recordings.
    pub family: Option<FamilyMemory>,
    /// The control group of the process, if at least 48 MiB and 25 % of its memory are in no process (page cache counts only if
    /// the group has a limit). Otherwise `null`.
    #[serde(default)]
    pub group: Option<ReportGroup>,
    /// All causes in a fixed order, including those with 0 bytes.
    pub causes: Vec<CauseRow>,
    /// Malloc's own counts, as malloc_info(3) returns them. They include memory that is not resident. `null` if malloc could not
    /// be read.
    pub malloc: Option<Malloc>,
    /// Malloc's arenas. `null` if malloc could not be read.
    pub arenas: Option<Vec<Arena>>,
    /// Ruby's own heap. `null` if Ruby could not be read.
    pub ruby: Option<Ruby>,
    /// The owners of malloc'ed memory in use. Those with most resident memory (slots included) come first. `null` if owners were
    /// not searched for.
    pub owners: Option<Vec<Owner>>,
    /// The memory that would be freed if a constant, a thread or an object went away, as a tree. `null` without `--retained`, and
    /// if owners are `null`.
    pub dominators: Option<Vec<DominatorRow>>,
    /// Memory that live objects do not use. `null` if owners were not searched for, and in older documents.
    #[serde(default)]
    pub waste: Option<Waste>,
    /// The lines that set the constants with which paths begin, and that define the classes of objects, by name. Constants of Ruby itself
    /// have no line. Empty in older documents.
    #[serde(default)]
    pub places: Vec<PlaceRow>,
    /// The 30 mapped files with most resident memory, largest first. Shared memory has a path, too, such as `/memfd:name
    /// (deleted)`.
    pub files: Vec<MappedFile>,
    /// The anonymous mappings with memory under the cause `unknown`, by permissions, those with most first.
    #[serde(default)]
    pub unknown: Vec<UnknownRow>,
    /// The interpreter's own memory: by kind, and its bytecode by gem and file. `null` if owners were not searched for.
    pub interpreter: Option<Interpreter>,
    /// The 30 largest groups of threads that run the same line of the same method. `null` if owners were not searched for, or
    /// stacks could not be read.
    pub threads: Option<Vec<ThreadRow>>,
    /// Stacks that are kept for new threads and fibers. `null` in older documents.
    #[serde(default)]
    pub kept_stacks: Option<KeptStacks>,
    /// The code that uses the constants and variables with which paths begin, ascending by root. Those without such code are left out.
    /// Empty if owners were not searched for, and in older documents.
    #[serde(default)]
    pub root_uses: Vec<RootUses>,
    /// The code that touched memory first, by the samples that `--who` named. docs/who.md says what these cannot know. `null`
    /// without `--who`.
    pub made_by: Option<Vec<MadeBy>>,
    /// The verdict on the process.
    pub verdict: Verdict,
    /// Steps that a user can take. Empty if healthy.
    pub advice: Vec<Advice>,
    /// Observations during the reading. If a part of the process could not be read, a finding has the reason.
    pub findings: Vec<FindingRow>,
}

/// The line that set a constant, or defined a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlaceRow {
    /// The constant or class.
    pub name: String,
    /// The file.
    pub file: String,
    /// The line of the file.
    pub line: u32,
}

impl PlaceRow {
    /// The row of the constant that is a root, or of the class whose variable it is: `Cache` for `Cache.@items`.
    #[must_use]
    pub fn of_root<'a>(rows: &'a [Self], root: &str) -> Option<&'a Self> {
        let row = |name: &str| rows.iter().find(|it| it.name == name);
        let variable = || root.find(".@").or_else(|| root.find("@@"));
        row(root).or_else(|| row(&root[..variable()?]))
    }

    /// The place as a person writes it: `file:line`.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

impl From<&ledger::Place> for PlaceRow {
    fn from(place: &ledger::Place) -> Self {
        Self { name: place.name.clone(), file: place.file.to_string(), line: place.line }
    }
}

/// The stacks that are kept for new threads and fibers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptStacks {
    /// Bytes of stacks on which no thread runs, resident or not.
    pub thread_bytes: u64,
    /// The resident part of them.
    pub resident_thread_bytes: u64,
    /// The number of threads that native threads run in turn, such as those of Ractors. 0 in older documents.
    #[serde(default)]
    pub mn_threads: u64,
    /// The resident bytes of stacks that no such thread has any more. 0 in older documents.
    #[serde(default)]
    pub resident_mn_bytes: u64,
    /// The resident bytes of the main thread's stack that no call uses any more. 0 in older documents.
    #[serde(default)]
    pub main_bytes: u64,
    /// The same bytes of the stacks of other threads that run. 0 in older documents.
    #[serde(default)]
    pub unused_thread_bytes: u64,
    /// The same bytes of the stacks of fibers, with their VM stacks, by the place where each one stopped. `null` as `fibers`, and in
    /// older documents.
    #[serde(default)]
    pub unused_fiber_bytes: Option<u64>,
    /// The resident bytes of the VM stacks of threads that no value and no frame uses any more. 0 in older documents.
    #[serde(default)]
    pub unused_vm_bytes: u64,
    /// The number of fibers that have a stack. `null` if owners were not searched for, or fibers are not recognized.
    pub fibers: Option<u64>,
    /// The resident bytes of stacks that no fiber has any more. `null` as `fibers`.
    pub resident_fiber_bytes: Option<u64>,
    /// Bytes that are free, but only for threads of these stacks, which a forked process does not have. 0 in older documents.
    #[serde(default)]
    pub cached_bytes: u64,
    /// The number of native threads that run no thread of Ruby. `null` if unknown.
    #[serde(default)]
    pub other_threads: Option<u64>,
}

impl From<ledger::KeptStacks> for KeptStacks {
    fn from(stacks: ledger::KeptStacks) -> Self {
        let ledger::KeptStacks {
            thread_bytes,
            resident_thread_bytes,
            mn_threads,
            resident_mn_bytes,
            main_bytes,
            unused_thread_bytes,
            unused_fiber_bytes,
            unused_vm_bytes,
            fibers,
            resident_fiber_bytes,
            cached_bytes,
            other_threads,
        } = stacks;
        Self {
            thread_bytes,
            resident_thread_bytes,
            mn_threads,
            resident_mn_bytes,
            main_bytes,
            unused_thread_bytes,
            unused_fiber_bytes,
            unused_vm_bytes,
            fibers,
            resident_fiber_bytes,
            cached_bytes,
            other_threads,
        }
    }
}

/// The memory of a process's family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyMemory {
    /// Their number.
    pub processes: u64,
    /// The sum of their RSS.
    pub rss_bytes: u64,
    /// The sum of their PSS.
    pub pss_bytes: u64,
}

impl Content for Report {
    const KIND: &'static str = "report";
}

impl Report {
    /// Returns the report of a ledger, with all owners and classes.
    #[must_use]
    pub fn new(
        ledger: &Ledger,
        capture: Capture,
        deployment: Deployment,
        verdict: Verdict,
        advice: Vec<Advice>,
    ) -> Self {
        Self {
            process: ProcessSummary {
                pid: ledger.process.pid,
                started_ticks: ledger.process.started_ticks,
                uptime_ms: ledger.process.uptime_ms,
                command: ledger.process.command.clone(),
                ruby_version: ledger.ruby.as_ref().map(|ruby| ruby.version.clone()),
                libc: ledger.libc.to_string(),
                allocator: ledger.allocator.to_string(),
                threads: ledger.process.threads,
                rss_bytes: ledger.rss_bytes,
                swap_bytes: ledger.swap_bytes,
                lost_bytes: ledger.lost_bytes,
                locked_bytes: ledger.locked_bytes,
                locked_file_bytes: ledger.locked_file_bytes,
                deployment,
            },
            capture,
            family: None,
            group: None,
            causes: ledger.causes.iter().map(|(cause, bytes)| CauseRow { cause, bytes }).collect(),
            malloc: ledger.malloc.as_ref().map(Malloc::from),
            arenas: ledger
                .malloc
                .as_ref()
                .map(|malloc| malloc.arenas.iter().map(Arena::from).collect()),
            ruby: ledger.ruby.as_ref().map(|ruby| Ruby::new(ruby, ledger)),
            owners: ledger.is_traced.then(|| ledger.owners.iter().map(Owner::from).collect()),
            dominators: ledger
                .dominators
                .as_ref()
                .map(|dominators| dominators.iter().map(DominatorRow::from).collect()),
            waste: ledger.is_traced.then(|| Waste::from(&ledger.waste)),
            places: ledger.places.iter().map(PlaceRow::from).collect(),
            files: ledger.files.iter().map(MappedFile::from).collect(),
            unknown: ledger.unknown.iter().map(UnknownRow::from).collect(),
            interpreter: ledger.interpreter.as_ref().map(Interpreter::from),
            threads: ledger
                .threads
                .as_ref()
                .map(|groups| groups.iter().map(ThreadRow::from).collect()),
            kept_stacks: Some(ledger.kept_stacks.into()),
            root_uses: ledger.root_uses.iter().map(RootUses::from).collect(),
            made_by: None,
            verdict,
            advice,
            findings: finding_rows::rows(&ledger.findings),
        }
    }

    /// Shortens a report to the largest classes, mapped files and groups of threads, the `max_owners` largest owners, and the largest
    /// files of bytecode. The other owners are summed up in one row, and so are the other files of bytecode, so that these rows
    /// still add up.
    #[must_use]
    pub fn brief(mut self, max_owners: usize) -> Self {
        if let Some(ruby) = &mut self.ruby {
            ruby.classes.truncate(MAX_CLASSES);
        }
        self.files.truncate(MAX_FILES);
        if let Some(threads) = &mut self.threads {
            threads.truncate(MAX_THREADS);
        }
        if let Some(owners) = &mut self.owners
            && owners.len() > max_owners
        {
            let mut sizes: Vec<u64> = owners.iter().map(Owner::bytes_with_singletons).collect();
            sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
            // A class of few bytes is listed if its objects have large singleton classes, or refer to large mappings.
            let mapper = self.unknown.first().and_then(|row| row.owner.as_ref());
            let least = max_owners.checked_sub(1).map_or(u64::MAX, |last| sizes[last]);
            // Of those with as few as the last one, the first ones.
            let mut room = max_owners - sizes.partition_point(|bytes| *bytes > least);
            let (listed, others): (Vec<Owner>, Vec<Owner>) =
                std::mem::take(owners).into_iter().partition(|owner| {
                    let bytes = owner.bytes_with_singletons();
                    let is_last = bytes == least && room > 0;
                    room -= usize::from(is_last);
                    bytes > least || is_last || Some(&owner.owner) == mapper
                });
            *owners = listed;
            owners.push(Owner::sum(&others));
        }
        if let Some(files) = self.interpreter.as_mut().and_then(|it| it.files.as_mut())
            && files.len() > MAX_CODE_FILES
        {
            let others = files.split_off(MAX_CODE_FILES);
            files.push(FileCode::sum(&others));
        }
        self
    }

    /// Returns true if every part of the process could be read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let mut arenas = self.arenas.iter().flatten();
        self.malloc.is_some()
            && self.ruby.is_some()
            && self.process.lost_bytes == 0
            && arenas.all(|arena| arena.walked)
    }

    /// Returns false if a major collection was marking: it forgot at its start which objects are old.
    #[must_use]
    pub fn knows_ages(&self) -> bool {
        self.ruby.as_ref().is_none_or(|ruby| ruby.gc.marking != Some(true))
    }
}

/// A row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CauseRow {
    /// The cause (docs/json.md#causes).
    #[serde(with = "crate::names::cause")]
    #[schemars(schema_with = "crate::names::cause::schema")]
    pub cause: Cause,
    /// Its resident bytes.
    pub bytes: u64,
}
