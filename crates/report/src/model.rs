//! The JSON of a report, rbloat's stable interface.
//!
//! Sizes are bytes, times are milliseconds, addresses are `"0x…"` strings. A part that could not be
//! read is `null`, with a finding that says why. Fields may be added; none is renamed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use capture::{Finding, Severity};
use ledger::{
    Advice, ArenaAccount, Cause, Ledger, MallocAccount, OwnerAccount, RubyAccount, Verdict, advise,
};
use serde::{Deserialize, Serialize};

/// The version of this interface.
pub const SCHEMA: u32 = 1;

/// How many classes a report names.
const CLASSES: usize = 30;

/// What `rbloat report` says of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Report {
    pub schema: u32,
    pub process: Process,
    pub capture: Capture,
    pub causes: Vec<CauseRow>,
    pub malloc: Option<Malloc>,
    pub allocator_statistics: Option<AllocatorStatistics>,
    pub arenas: Option<Vec<Arena>>,
    pub ruby: Option<Ruby>,
    pub owners: Option<Vec<Owner>>,
    pub verdict: VerdictPart,
    pub advice: Vec<AdvicePart>,
    pub findings: Vec<FindingPart>,
}

/// Who the process is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct Process {
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
}

/// How the process was looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct Capture {
    pub method: String,
    pub reason: String,
    pub unix_ms: u64,
    pub pause_ms: f64,
    pub elapsed_ms: f64,
    pub consistent: bool,
    pub copied_bytes: Option<u64>,
}

/// How the process was held still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMethod {
    /// It stood while it was read.
    Freeze,
    /// It stood while it made a clone of itself, which was read.
    Fork {
        /// What the kernel copied for it because it changed pages meanwhile, in bytes.
        copied_bytes: Option<u64>,
    },
    /// It was not: a core file was read.
    Core,
}

impl Capture {
    /// A capture `at` some time that stopped the process for `pause` (all stops together, where more than
    /// one was needed; none for a core), of a report that took `elapsed` in all.
    #[must_use]
    pub fn new(
        method: CaptureMethod,
        reason: String,
        at: SystemTime,
        pause: Duration,
        elapsed: Duration,
    ) -> Self {
        let (method, copied_bytes) = match method {
            CaptureMethod::Freeze => ("freeze", None),
            CaptureMethod::Fork { copied_bytes } => ("fork", copied_bytes),
            CaptureMethod::Core => ("core", None),
        };
        Self {
            method: method.into(),
            reason,
            unix_ms: at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64),
            pause_ms: milliseconds(pause),
            elapsed_ms: milliseconds(elapsed),
            consistent: true,
            copied_bytes,
        }
    }

    /// The same, of a report that took `elapsed` in all.
    #[must_use]
    pub fn with_elapsed(self, elapsed: Duration) -> Self {
        Self { elapsed_ms: milliseconds(elapsed), ..self }
    }
}

/// A time as the JSON has it.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// A row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct CauseRow {
    pub cause: String,
    pub bytes: u64,
}

/// malloc's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Of these, such as the kernel has back only when it splits the huge pages that they lie in.
    pub trim_deferred_bytes: u64,
}

/// What jemalloc counts itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct AllocatorStatistics {
    pub allocated_bytes: u64,
    pub active_bytes: u64,
    pub resident_bytes: u64,
    pub retained_bytes: u64,
}

/// An arena: its resident bytes by use, and what of it is not resident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Ruby's side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// What the objects of one class hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct Class {
    pub name: String,
    pub objects: u64,
    pub slot_bytes: u64,
    pub malloc_bytes: u64,
}

/// Who holds malloc'ed memory, and how much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct Owner {
    pub owner: String,
    pub kind: String,
    pub cause: Option<String>,
    pub objects: u64,
    pub slot_bytes: u64,
    pub chunks: u64,
    pub exclusive_bytes: u64,
    pub shared_bytes: u64,
    pub resident_bytes: Option<u64>,
    pub memsize: Option<String>,
    pub kept_by: Vec<KeptBy>,
}

/// Who keeps objects of an owner alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct KeptBy {
    pub path: Option<String>,
    pub objects: u64,
    pub bytes: u64,
}

/// The verdict; its cause is the name of a row, or `healthy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct VerdictPart {
    pub cause: String,
    pub bytes: u64,
    pub confidence: String,
    pub summary: String,
    pub evidence: Vec<String>,
    pub falsified_by: String,
}

/// A step that the user can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct AdvicePart {
    pub action: String,
    pub command: String,
    pub saves_bytes: Option<u64>,
    pub already_set: bool,
    pub costs: String,
}

/// Something noticed on the way; its severity is `note`, `warning` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Report")]
pub struct FindingPart {
    pub severity: String,
    pub what: String,
    pub address: Option<String>,
}

impl Report {
    /// The report of a ledger, with all its owners and classes.
    #[must_use]
    pub fn new(ledger: &Ledger, capture: Capture) -> Self {
        Self {
            schema: SCHEMA,
            process: Process {
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
            },
            capture,
            causes: ledger
                .causes
                .iter()
                .map(|(cause, bytes)| CauseRow { cause: cause.name().into(), bytes })
                .collect(),
            malloc: ledger.malloc.as_ref().map(Malloc::from),
            allocator_statistics: None,
            arenas: ledger
                .malloc
                .as_ref()
                .map(|malloc| malloc.arenas.iter().map(Arena::from).collect()),
            ruby: ledger.ruby.as_ref().map(|ruby| Ruby::new(ruby, ledger)),
            owners: ledger.is_traced.then(|| ledger.owners.iter().map(Owner::from).collect()),
            verdict: Verdict::of(ledger).into(),
            advice: advise(ledger).into_iter().map(AdvicePart::from).collect(),
            findings: ledger.findings.iter().map(FindingPart::from).collect(),
        }
    }

    /// The same with the classes that hold most, and the `most_owners` owners that hold most; the other
    /// owners stand in one row, so that the rows add up.
    #[must_use]
    pub fn brief(mut self, most_owners: usize) -> Self {
        if let Some(ruby) = &mut self.ruby {
            ruby.classes.truncate(CLASSES);
        }
        if let Some(owners) = &mut self.owners
            && owners.len() > most_owners
        {
            let others = owners.split_off(most_owners);
            owners.push(Owner::sum(&others));
        }
        self
    }

    /// Whether every part of the process could be read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.malloc.is_some() && self.ruby.is_some()
    }

    /// The report as JSON, one object, with a line's end.
    #[must_use]
    pub fn render_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self)
            .expect("a report has string keys and finite numbers");
        json.push('\n');
        json
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
            // What is neither free nor malloc's own is in use, be it by Ruby or by others.
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
    /// Owners in one row.
    fn sum(owners: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> u64| owners.iter().map(of).sum();
        Self {
            owner: format!("({} others)", owners.len()),
            kind: "others".into(),
            cause: None,
            objects: sum(|owner| owner.objects),
            slot_bytes: sum(|owner| owner.slot_bytes),
            chunks: sum(|owner| owner.chunks),
            exclusive_bytes: sum(|owner| owner.exclusive_bytes),
            shared_bytes: sum(|owner| owner.shared_bytes),
            resident_bytes: owners.iter().map(|owner| owner.resident_bytes).sum(),
            memsize: None,
            kept_by: vec![],
        }
    }
}

impl From<&OwnerAccount> for Owner {
    fn from(account: &OwnerAccount) -> Self {
        Self {
            owner: account.name.clone(),
            kind: account.kind.name().into(),
            cause: Some(account.cause.name().into()),
            objects: account.objects,
            slot_bytes: account.slot_bytes,
            chunks: account.chunks,
            exclusive_bytes: account.exclusive_bytes,
            shared_bytes: account.shared_bytes,
            resident_bytes: account.resident_bytes,
            memsize: account.has_memsize.map(|has| if has { "function" } else { "none" }.into()),
            kept_by: account
                .retainers
                .iter()
                .map(|retainer| KeptBy {
                    path: retainer.path.clone(),
                    objects: retainer.objects,
                    bytes: retainer.bytes,
                })
                .collect(),
        }
    }
}

impl From<Verdict> for VerdictPart {
    fn from(verdict: Verdict) -> Self {
        Self {
            cause: verdict.cause.map_or("healthy", Cause::name).into(),
            bytes: verdict.bytes,
            confidence: verdict.confidence.name().into(),
            summary: verdict.summary,
            evidence: verdict.evidence,
            falsified_by: verdict.falsified_by,
        }
    }
}

impl From<Advice> for AdvicePart {
    fn from(advice: Advice) -> Self {
        let Advice { action, command, saves_bytes, already_set, costs } = advice;
        Self { action, command, saves_bytes, already_set, costs }
    }
}

impl From<&Finding> for FindingPart {
    fn from(finding: &Finding) -> Self {
        let severity = match finding.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        Self {
            severity: severity.into(),
            what: finding.what.clone(),
            address: finding.address.map(|address| address.to_string()),
        }
    }
}
