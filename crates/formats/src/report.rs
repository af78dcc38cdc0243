//! The JSON of a report, part of rbloat's stable interface.
//!
//! Sizes are bytes, times are milliseconds, addresses are `"0x…"` strings. A part that could not be
//! read is `null`, with a finding that says why. Fields may be added; none is renamed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use capture::{Finding, Severity};
use ledger::{
    ArenaAccount, Cause, CodeFileAccount, Dominator, FileAccount, GemAccount, InterpreterAccount,
    InterpreterKind, KindAccount, Ledger, MallocAccount, OwnerAccount, Retainer, RubyAccount,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Advice, Content, Deployment, Verdict};

/// The maximum number of classes in a brief report.
const MAX_CLASSES: usize = 30;

/// The maximum number of files in a brief report.
const MAX_FILES: usize = 30;
/// The maximum number of files of bytecode in a brief report.
const MAX_CODE_FILES: usize = 100;

/// The document of `rbloat report`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Report {
    pub process: ProcessSummary,
    pub capture: Capture,
    pub causes: Vec<CauseRow>,
    pub malloc: Option<Malloc>,
    pub allocator_statistics: Option<AllocatorStatistics>,
    pub arenas: Option<Vec<Arena>>,
    pub ruby: Option<Ruby>,
    pub owners: Option<Vec<Owner>>,
    #[serde(default)]
    pub dominators: Option<Vec<DominatorRow>>,
    /// Empty in snapshots of older versions of rbloat.
    #[serde(default)]
    pub files: Vec<MappedFile>,
    #[serde(default)]
    pub interpreter: Option<Interpreter>,
    pub verdict: Verdict,
    pub advice: Vec<Advice>,
    pub findings: Vec<FindingRow>,
}

impl Content for Report {
    const KIND: &'static str = "report";
}

/// The identity of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct ProcessSummary {
    pub pid: i32,
    pub started_ticks: Option<u64>,
    pub uptime_ms: Option<u64>,
    pub command: String,
    pub ruby_version: Option<String>,
    pub libc: String,
    pub allocator: String,
    pub threads: u64,
    pub rss_bytes: u64,
    pub swap_bytes: u64,
    /// `None` only in snapshots of older versions of rbloat.
    #[serde(default)]
    pub deployment: Option<Deployment>,
}

/// The method and the time of the capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Capture {
    pub method: CaptureMethod,
    pub reason: String,
    pub unix_ms: u64,
    pub pause_ms: f64,
    pub elapsed_ms: f64,
    pub consistent: bool,
    pub copied_bytes: Option<u64>,
}

/// The method of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMethod {
    /// The process was paused while its memory was read.
    Freeze,
    /// The process was paused while the kernel made a forked copy, which was read afterwards.
    Fork,
    /// A core file was read.
    Core,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// Good to know.
    Note,
    /// A part of the report may be incomplete.
    Warning,
    /// A part of the report is missing.
    Error,
}

/// A type's way to tell Ruby's GC about its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Memsize {
    /// It has a function that returns the size.
    Function,
    /// It has none, so the GC counts slots only.
    None,
}

impl Capture {
    /// A capture at the time `at` that paused the process for `pause` (the sum of all pauses if it took several
    /// attempts), for a report that took `elapsed` in total. `copied_bytes` are the pages that the kernel copied while
    /// a forked copy existed.
    #[must_use]
    pub fn new(
        method: CaptureMethod,
        reason: String,
        at: SystemTime,
        pause: Duration,
        elapsed: Duration,
        copied_bytes: Option<u64>,
    ) -> Self {
        Self {
            method,
            reason,
            unix_ms: at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64),
            pause_ms: milliseconds(pause),
            elapsed_ms: milliseconds(elapsed),
            consistent: true,
            copied_bytes,
        }
    }

    /// The same capture, for a report that took `elapsed` in total.
    #[must_use]
    pub fn with_elapsed(self, elapsed: Duration) -> Self {
        Self { elapsed_ms: milliseconds(elapsed), ..self }
    }
}

/// Returns a time in milliseconds, rounded to microseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// A row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct CauseRow {
    #[serde(with = "crate::names::cause")]
    #[schemars(schema_with = "crate::names::cause::schema")]
    pub cause: Cause,
    pub bytes: u64,
}

/// The totals of malloc.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Malloc {
    pub system_bytes: u64,
    pub in_use_chunks: u64,
    pub in_use_bytes: u64,
    pub free_chunks: u64,
    pub free_bytes: u64,
    pub fastbin_chunks: u64,
    pub fastbin_bytes: u64,
    pub tcache_chunks: u64,
    pub tcache_bytes: u64,
    pub mmapped_chunks: u64,
    pub mmapped_bytes: u64,
    pub trim_yield_bytes: u64,
    /// The part that leaves RSS at once, but is freed only when the kernel splits the huge pages around it.
    pub trim_deferred_bytes: u64,
}

/// jemalloc's own statistics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct AllocatorStatistics {
    pub allocated_bytes: u64,
    pub active_bytes: u64,
    pub resident_bytes: u64,
    pub retained_bytes: u64,
}

/// An arena: its resident bytes by use, and its bytes that are not resident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Arena {
    pub address: String,
    pub main: bool,
    pub heaps: u32,
    pub system_bytes: u64,
    pub in_use_bytes: u64,
    pub unreturned_bytes: u64,
    pub fragmented_bytes: u64,
    pub cached_bytes: u64,
    pub top_bytes: u64,
    pub overhead_bytes: u64,
    pub returned_bytes: u64,
}

/// The totals of Ruby's heap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Ruby {
    pub heap_pages: u64,
    pub slots_live: u64,
    pub slots_unmarked: u64,
    pub slots_free: u64,
    pub slot_bytes_live: u64,
    pub slot_bytes_free: u64,
    pub objects: BTreeMap<String, u64>,
    pub classes: Vec<Class>,
}

/// The memory of the objects of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Class {
    pub name: String,
    pub objects: u64,
    pub slot_bytes: u64,
    pub malloc_bytes: u64,
}

/// An owner of malloc'ed memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Owner {
    pub owner: String,
    pub kind: String,
    #[serde(with = "crate::names::cause_or_none")]
    #[schemars(schema_with = "crate::names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    pub objects: u64,
    pub slot_bytes: u64,
    pub chunks: u64,
    pub exclusive_bytes: u64,
    pub shared_bytes: u64,
    pub resident_bytes: Option<u64>,
    pub memsize: Option<Memsize>,
    #[serde(default)]
    pub retained_bytes: Option<u64>,
    pub kept_by: Vec<KeptBy>,
}

/// A path that retains objects of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct KeptBy {
    pub path: Option<String>,
    pub objects: u64,
    pub bytes: u64,
}

/// A constant, thread or object, or several like it, and the memory that would be freed if they went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct DominatorRow {
    pub kind: String,
    pub name: String,
    pub method: Option<String>,
    pub address: Option<String>,
    pub count: u64,
    pub objects: u64,
    pub retained_bytes: u64,
    pub path: Option<String>,
    pub parts: Vec<DominatorRow>,
}

/// A mapped file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct MappedFile {
    pub path: String,
    pub private_bytes: u64,
    pub shared_bytes: u64,
    pub repeated_bytes: u64,
    pub mappings: u64,
    pub times: u64,
}

/// An observation about the capture or the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct FindingRow {
    pub severity: FindingSeverity,
    pub what: String,
    pub address: Option<String>,
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
                deployment: Some(deployment),
            },
            capture,
            causes: ledger.causes.iter().map(|(cause, bytes)| CauseRow { cause, bytes }).collect(),
            malloc: ledger.malloc.as_ref().map(Malloc::from),
            allocator_statistics: None,
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
            files: ledger.files.iter().map(MappedFile::from).collect(),
            interpreter: ledger.interpreter.as_ref().map(Interpreter::from),
            verdict,
            advice,
            findings: ledger.findings.iter().map(FindingRow::from).collect(),
        }
    }

    /// Shortens a report to the largest classes, the largest mapped files, the `max_owners` largest owners, and the largest
    /// files of bytecode. The other owners are summed up in one row, and so are the other files of bytecode, so that these rows
    /// still add up.
    #[must_use]
    pub fn brief(mut self, max_owners: usize) -> Self {
        if let Some(ruby) = &mut self.ruby {
            ruby.classes.truncate(MAX_CLASSES);
        }
        self.files.truncate(MAX_FILES);
        if let Some(owners) = &mut self.owners
            && owners.len() > max_owners
        {
            let others = owners.split_off(max_owners);
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
        self.malloc.is_some() && self.ruby.is_some()
    }
}

impl From<&MallocAccount> for Malloc {
    fn from(account: &MallocAccount) -> Self {
        let totals = &account.totals;
        Self {
            system_bytes: totals.system_bytes,
            in_use_chunks: totals.in_use_chunks,
            in_use_bytes: totals.in_use_bytes,
            free_chunks: totals.free_chunks,
            free_bytes: totals.free_bytes,
            fastbin_chunks: totals.fastbin_chunks,
            fastbin_bytes: totals.fastbin_bytes,
            tcache_chunks: totals.tcache_chunks,
            tcache_bytes: totals.tcache_bytes,
            mmapped_chunks: totals.mmapped_chunks,
            mmapped_bytes: totals.mmapped_bytes,
            trim_yield_bytes: account.trim_yield_bytes,
            trim_deferred_bytes: account.trim_deferred_bytes,
        }
    }
}

impl From<&ArenaAccount> for Arena {
    fn from(arena: &ArenaAccount) -> Self {
        let known = [
            Cause::MallocUnreturned,
            Cause::MallocFragmented,
            Cause::MallocCached,
            Cause::MallocTop,
            Cause::MallocOverhead,
        ];
        let [unreturned, fragmented, cached, top, overhead] =
            known.map(|cause| arena.causes[cause]);
        Self {
            address: arena.address.to_string(),
            main: arena.is_main,
            heaps: arena.heaps,
            system_bytes: arena.system_bytes,
            // All other bytes are in use, by Ruby or by other code.
            in_use_bytes: arena.causes.total()
                - (unreturned + fragmented + cached + top + overhead),
            unreturned_bytes: unreturned,
            fragmented_bytes: fragmented,
            cached_bytes: cached,
            top_bytes: top,
            overhead_bytes: overhead,
            returned_bytes: arena.returned_bytes,
        }
    }
}

impl Ruby {
    fn new(account: &RubyAccount, ledger: &Ledger) -> Self {
        Self {
            heap_pages: account.heap_pages,
            slots_live: account.slots_live,
            slots_unmarked: account.slots_unmarked,
            slots_free: account.slots_free,
            slot_bytes_live: account.slot_bytes_live,
            slot_bytes_free: account.slot_bytes_free,
            objects: account.objects.iter().map(|(name, count)| ((*name).into(), *count)).collect(),
            classes: ledger
                .classes()
                .map(|class| Class {
                    name: class.name.clone(),
                    objects: class.objects,
                    slot_bytes: class.slot_bytes,
                    malloc_bytes: class.held_bytes(),
                })
                .collect(),
        }
    }
}

impl Owner {
    /// Sums up owners in one row.
    fn sum(owners: &[Self]) -> Self {
        // A snapshot may have sizes that no process has.
        let sum = |of: fn(&Self) -> u64| owners.iter().map(of).fold(0, u64::saturating_add);
        Self {
            owner: format!("({} others)", owners.len()),
            kind: "others".into(),
            cause: None,
            objects: sum(|owner| owner.objects),
            slot_bytes: sum(|owner| owner.slot_bytes),
            chunks: sum(|owner| owner.chunks),
            exclusive_bytes: sum(|owner| owner.exclusive_bytes),
            shared_bytes: sum(|owner| owner.shared_bytes),
            resident_bytes: owners
                .iter()
                .try_fold(0, |sum: u64, owner| Some(sum.saturating_add(owner.resident_bytes?))),
            memsize: None,
            retained_bytes: None,
            kept_by: vec![],
        }
    }
}

impl From<&OwnerAccount> for Owner {
    fn from(account: &OwnerAccount) -> Self {
        Self {
            owner: account.name.clone(),
            kind: account.kind.name().into(),
            cause: Some(account.cause),
            objects: account.objects,
            slot_bytes: account.slot_bytes,
            chunks: account.chunks,
            exclusive_bytes: account.exclusive_bytes,
            shared_bytes: account.shared_bytes,
            resident_bytes: Some(account.resident_bytes),
            memsize: account
                .has_memsize
                .map(|has| if has { Memsize::Function } else { Memsize::None }),
            retained_bytes: account.retained_bytes,
            kept_by: account.retainers.iter().map(KeptBy::from).collect(),
        }
    }
}

impl From<&Dominator> for DominatorRow {
    fn from(dominator: &Dominator) -> Self {
        Self {
            kind: dominator.kind.name().into(),
            name: dominator.name.clone(),
            method: dominator.method.clone(),
            address: dominator.address.map(|address| address.to_string()),
            count: dominator.count,
            objects: dominator.objects,
            retained_bytes: dominator.retained_bytes,
            path: dominator.path.clone(),
            parts: dominator.parts.iter().map(Self::from).collect(),
        }
    }
}

impl MappedFile {
    /// Its part of RSS.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.private_bytes.saturating_add(self.shared_bytes)
    }
}

impl From<&FileAccount> for MappedFile {
    fn from(file: &FileAccount) -> Self {
        Self {
            path: file.path.clone(),
            private_bytes: file.private_bytes,
            shared_bytes: file.shared_bytes,
            repeated_bytes: file.repeated_bytes,
            mappings: file.mappings,
            times: file.times,
        }
    }
}

impl From<&Retainer> for KeptBy {
    fn from(retainer: &Retainer) -> Self {
        Self { path: retainer.path.clone(), objects: retainer.objects, bytes: retainer.bytes }
    }
}

impl From<&Finding> for FindingRow {
    fn from(finding: &Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Note => FindingSeverity::Note,
                Severity::Warning => FindingSeverity::Warning,
                Severity::Error => FindingSeverity::Error,
            },
            what: finding.what.clone(),
            address: finding.address.map(|address| address.to_string()),
        }
    }
}

/// The interpreter's own memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Interpreter {
    pub kinds: Vec<InterpreterPart>,
    pub gems: Option<Vec<GemCode>>,
    pub files: Option<Vec<FileCode>>,
}

/// The interpreter's memory of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct InterpreterPart {
    #[serde(with = "crate::names::interpreter_kind")]
    #[schemars(schema_with = "crate::names::interpreter_kind::schema")]
    pub kind: InterpreterKind,
    pub objects: u64,
    pub slot_bytes: u64,
    pub resident_bytes: u64,
}

/// The bytecode of one gem, or of another group of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct GemCode {
    pub gem: String,
    pub version: Option<String>,
    pub files: u64,
    pub iseqs: u64,
    pub slot_bytes: u64,
    pub resident_bytes: u64,
}

/// The bytecode of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct FileCode {
    pub path: Option<String>,
    pub gem: String,
    pub iseqs: u64,
    pub slot_bytes: u64,
    pub resident_bytes: u64,
}

impl From<&InterpreterAccount> for Interpreter {
    fn from(account: &InterpreterAccount) -> Self {
        Self {
            kinds: account.kinds.iter().map(InterpreterPart::from).collect(),
            gems: account.gems().map(|gems| gems.into_iter().map(GemCode::from).collect()),
            files: account.files.as_ref().map(|files| files.iter().map(FileCode::from).collect()),
        }
    }
}

impl From<&KindAccount> for InterpreterPart {
    fn from(account: &KindAccount) -> Self {
        Self {
            kind: account.kind,
            objects: account.size.objects,
            slot_bytes: account.size.slot_bytes,
            resident_bytes: account.size.resident_bytes,
        }
    }
}

impl From<GemAccount> for GemCode {
    fn from(account: GemAccount) -> Self {
        Self {
            gem: account.gem.name,
            version: account.gem.version,
            files: account.files,
            iseqs: account.size.objects,
            slot_bytes: account.size.slot_bytes,
            resident_bytes: account.size.resident_bytes,
        }
    }
}

impl From<&CodeFileAccount> for FileCode {
    fn from(account: &CodeFileAccount) -> Self {
        Self {
            path: account.path.clone(),
            gem: account.gem.name.clone(),
            iseqs: account.size.objects,
            slot_bytes: account.size.slot_bytes,
            resident_bytes: account.size.resident_bytes,
        }
    }
}

impl FileCode {
    /// Sums up files in one row.
    fn sum(files: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
        Self {
            path: None,
            gem: format!("({} others)", files.len()),
            iseqs: sum(|file| file.iseqs),
            slot_bytes: sum(|file| file.slot_bytes),
            resident_bytes: sum(|file| file.resident_bytes),
        }
    }
}
