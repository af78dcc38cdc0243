use std::collections::BTreeMap;

use allocator::glibc::{Malloc, Totals};
use allocator::{Allocator, Libc};
use capture::{Address, Finding, Origin, Pages, Process, ProcessState, Severity};
use ruby::{ObjectSpace, SlotState};

use crate::books::{Books, book, book_estimated};
use crate::malloc_spans::malloc_spans;
use crate::owners::{OwnerAccount, OwnerKind, Owners, Pointers};
use crate::ruby_spans::ruby_spans;
use crate::span::{Over, Span};
use crate::{Cause, Causes, Facts, MemoryMap, Size, memory_map};

/// The account of one process at one instant: every resident byte under one cause, and what the
/// parts say of themselves.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Who the process is.
    pub process: Process,
    /// Where what is known of it is from.
    pub origin: Origin,
    /// Its resident bytes: the sum of `causes`.
    pub rss_bytes: u64,
    /// Its bytes in swap, which are no resident bytes and stand beside the ledger.
    pub swap_bytes: u64,
    /// Its C library.
    pub libc: Libc,
    /// Who serves its malloc(3).
    pub allocator: Allocator,
    /// Every resident byte, by cause.
    pub causes: Causes,
    /// Whether the rows are estimates, since the states of pages are not known for certain.
    pub is_estimated: bool,
    /// malloc's side; `None` where it could not be read.
    pub malloc: Option<MallocAccount>,
    /// Ruby's side; `None` where it could not be read.
    pub ruby: Option<RubyAccount>,
    /// Whether the owners of all chunks were looked for; otherwise `owners` holds what objects name
    /// themselves.
    pub is_traced: bool,
    /// Who holds how much, those that take most of RSS first.
    pub owners: Vec<OwnerAccount>,
    /// What was noticed, the gravest first.
    pub findings: Vec<Finding>,
}

/// malloc's side of a [`Ledger`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MallocAccount {
    /// Chunks and bytes as malloc itself counts them, resident or not.
    pub totals: Totals,
    /// By how much malloc_trim(0) would lower RSS, in bytes.
    pub trim_yield_bytes: u64,
    /// Of these, such as RSS loses at once, but the kernel has back only when it splits the huge
    /// pages that they are parts of.
    pub trim_deferred_bytes: u64,
    /// How many arenas malloc may make at most, by MALLOC_ARENA_MAX, a tunable or mallopt(3);
    /// `None` where nothing limits it but the number of processors, or it is not known.
    pub arena_max: Option<u64>,
    /// The arenas, the main one first.
    pub arenas: Vec<ArenaAccount>,
}

/// An arena's resident bytes by what they are used for, and those that are not resident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaAccount {
    /// Where its `malloc_state` is.
    pub address: Address,
    /// Whether it is the main arena.
    pub is_main: bool,
    /// How many heaps it has.
    pub heaps: u32,
    /// Bytes that it obtained from the kernel, by its own count.
    pub system_bytes: u64,
    /// Resident bytes by cause.
    pub causes: Causes,
    /// Obtained bytes that are not resident: returned to the kernel, or never touched, or swapped
    /// out: the "white" pages.
    pub returned_bytes: u64,
}

/// Ruby's side of a [`Ledger`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RubyAccount {
    /// Ruby's version.
    pub version: String,
    /// How many heap pages there are.
    pub heap_pages: u64,
    /// Slots that hold an object.
    pub slots_live: u64,
    /// Of these, such as have no mark: young objects, or garbage that is not swept yet.
    pub slots_unmarked: u64,
    /// Free slots.
    pub slots_free: u64,
    /// The bytes of live slots, resident or not.
    pub slot_bytes_live: u64,
    /// The bytes of free slots, resident or not.
    pub slot_bytes_free: u64,
    /// How many slots there are of each type, as `ObjectSpace.count_objects` counts them.
    pub objects: BTreeMap<&'static str, u64>,
}

impl Ledger {
    /// Books what was read of a target: a pure function, which cannot fail. What could not be
    /// read is a finding, and its bytes stand under [`Cause::Unknown`].
    #[must_use]
    pub fn draw_up(state: &ProcessState, facts: &Facts) -> Self {
        Self::with_owners(state, facts, &find_owners(facts))
    }

    /// The same, and where everything lies.
    #[must_use]
    pub fn draw_up_with_atlas(state: &ProcessState, facts: &Facts) -> (Self, MemoryMap) {
        let owners = find_owners(facts);
        let ledger = Self::with_owners(state, facts, &owners);
        let memory_map = memory_map::draw(state, facts, &owners, &ledger);
        (ledger, memory_map)
    }

    fn with_owners(state: &ProcessState, facts: &Facts, owners: &Owners<'_>) -> Self {
        let mut findings = state.findings.clone();
        let malloc = facts.malloc.as_ref();
        let space = facts.ruby.as_ref();
        findings.extend(malloc.map_or_else(
            |error| vec![Finding::general(Severity::Error, error)],
            |malloc| malloc.findings.clone(),
        ));
        findings.extend(space.map_or_else(
            // What keeps both sides from being read is told once.
            |error| match malloc {
                Err(same) if same == error => Vec::new(),
                _ => vec![Finding::general(Severity::Error, error)],
            },
            |space| space.findings.clone(),
        ));
        findings.extend(facts.findings.iter().cloned());
        if state.origin == Origin::Core && facts.ruby.is_err() {
            // ruby_cleanup of eval.c frees the heap before it lets a signal end the process.
            let what = "a core cannot be read again: a Ruby that ends by SIGTERM, SIGINT or SIGQUIT takes its \
                        heap apart first; SIGABRT, and gcore, leave all as it is";
            findings.push(Finding::general(Severity::Note, what));
        }
        if let Some(bytes) = facts.pointers.as_ref().map(Pointers::unread_bytes)
            && bytes > 0
        {
            let where_they_are = match state.origin {
                Origin::Process => "swapped out",
                Origin::Core => "not in the core",
            };
            let what = format!(
                "{} of malloc'ed memory are {where_they_are}: what they point to may be called unreachable",
                Size(bytes)
            );
            findings.push(Finding::general(Severity::Warning, what));
        }
        if let Some(words) = facts.pointers.as_ref().map(Pointers::dropped_words)
            && words > 0
        {
            let what = format!(
                "owners are incomplete: {words} pointers were left out, since a single chunk has \
                 more of them than rbloat can keep; what they point to may be called unreachable"
            );
            findings.push(Finding::general(Severity::Warning, what));
        }
        let (chunks, objects) = (facts.chunks(), facts.objects());
        let books = book_all(state, facts, chunks, objects, owners, &mut findings);
        let rss_bytes = books.causes.total();
        check_rss(state, rss_bytes, &mut findings);
        if state.process.environment.is_none() {
            let what =
                "the environment cannot be read: whether an advice is already set is not known";
            findings.push(Finding::general(Severity::Note, what));
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));

        Self {
            process: state.process.clone(),
            origin: state.origin,
            rss_bytes,
            swap_bytes: state.swap_bytes(),
            libc: facts.libc.clone(),
            allocator: facts.allocator.clone(),
            causes: books.causes,
            is_traced: facts.pointers.is_some(),
            is_estimated: state.pages.is_none() || state.origin == Origin::Core,
            malloc: malloc
                .ok()
                .map(|malloc| MallocAccount::new(malloc, &books, state.pages.as_ref())),
            ruby: space.ok().map(RubyAccount::new),
            owners: owners.accounts(state.pages.as_ref()),
            findings,
        }
    }

    /// What the program's own objects hold, by class, those of C extensions and of the interpreter
    /// left out; those that take most of RSS first.
    pub fn managed(&self) -> impl Iterator<Item = &OwnerAccount> {
        let is_managed = |owner: &&OwnerAccount| owner.cause == Cause::RubyMalloc;
        self.owners.iter().filter(is_managed)
    }

    /// What the objects of each class hold, internal ones included; the most bytes first.
    pub fn classes(&self) -> impl Iterator<Item = &OwnerAccount> {
        let is_class =
            |owner: &&OwnerAccount| matches!(owner.kind, OwnerKind::Class | OwnerKind::Internal);
        self.owners.iter().filter(is_class)
    }

    /// The resident bytes of some causes together.
    #[must_use]
    pub fn sum(&self, causes: &[Cause]) -> u64 {
        causes.iter().map(|&cause| self.causes[cause]).sum()
    }
}

fn find_owners(facts: &Facts) -> Owners<'_> {
    Owners::find(
        facts.chunks(),
        facts.objects(),
        &facts.modules,
        facts.pointers.as_ref(),
        &facts.named_roots,
    )
}

fn book_all(
    state: &ProcessState,
    facts: &Facts,
    chunks: &Malloc,
    objects: &ObjectSpace,
    owners: &Owners<'_>,
    findings: &mut Vec<Finding>,
) -> Books {
    let of = |ranges: &[std::ops::Range<Address>], cause| {
        ranges.iter().map(|range| Span::new(range.clone(), cause)).collect::<Vec<_>>()
    };
    let mut carved = of(&facts.stacks, Cause::StackThreads);
    carved.extend(of(&objects.fiber_stacks, Cause::StackFibers));
    carved.extend(of(&objects.jit_code, Cause::RubyJit));
    // Small arrays, hashes and structs live there up to Ruby 3.2.
    carved.extend(of(objects.transient_heap.as_slice(), Cause::RubyMalloc));
    carved.sort_by_key(|span| span.range.start);

    let mut clashes = Clashes::default();
    let mut carved_clashes = Clashes::default();
    let carved = disjoint(carved, &mut carved_clashes);
    let spans = Over::new(ruby_spans(objects), malloc_spans(chunks, owners), |upper, lower| {
        // Ruby may have its heap pages from malloc, as it does up to 2.7.
        if !is_in_use(lower.cause) {
            clashes.note(upper, lower);
        }
    });
    let spans = Over::new(carved.into_iter(), spans, |upper, lower| {
        if upper.cause != Cause::RubyMalloc || !is_in_use(lower.cause) {
            carved_clashes.note(upper, lower);
        }
    });
    let libraries: Vec<_> = facts.modules.iter().map(|module| module.range.clone()).collect();
    let libraries = &libraries;
    let books = match &state.pages {
        Some(pages) => book(state, pages, libraries, spans, chunks.arenas.len()),
        None => {
            let what = "the kernel keeps the page states from us (rbloat needs CAP_DAC_READ_SEARCH \
                        beside CAP_SYS_PTRACE for another user's process): rows are estimated where \
                        a mapping is resident in part";
            findings.push(Finding::general(Severity::Warning, what));
            book_estimated(state, libraries, spans, chunks.arenas.len())
        }
    };
    findings.extend(clashes.finding());
    findings.extend(carved_clashes.finding());
    books
}

fn is_in_use(cause: Cause) -> bool {
    use Cause::{
        MallocInUse, NativeGlobal, NativeHeld, NativeUnreachable, RubyJit, RubyMalloc, RubyVm,
    };
    matches!(
        cause,
        MallocInUse | RubyMalloc | RubyVm | RubyJit | NativeHeld | NativeGlobal | NativeUnreachable
    )
}

/// The spans, ascending, without such as overlap the one before them.
fn disjoint(mut spans: Vec<Span>, clashes: &mut Clashes) -> Vec<Span> {
    spans.dedup_by(|next, last| {
        let overlap = next.range.start < last.range.end;
        if overlap {
            clashes.note(last, next);
        }
        overlap
    });
    spans
}

/// Bytes that two parts claim: never silently given to one of them.
#[derive(Default)]
struct Clashes {
    count: u64,
    first: Option<(Span, Span)>,
}

impl Clashes {
    fn note(&mut self, upper: &Span, lower: &Span) {
        self.count += 1;
        self.first.get_or_insert_with(|| (upper.clone(), lower.clone()));
    }

    fn finding(self) -> Option<Finding> {
        let (upper, lower) = self.first?;
        let what = format!(
            "{} stretches of memory are claimed twice, the first by {} and by {}; {} has them",
            self.count, upper.cause, lower.cause, upper.cause
        );
        Some(Finding::at(Severity::Warning, upper.range.start.max(lower.range.start), what))
    }
}

/// Holds the sum of the rows against a count at the same instant that was not made from page states.
fn check_rss(state: &ProcessState, rss_bytes: u64, findings: &mut Vec<Finding>) {
    let exact = state.mappings.kernel_rss_bytes().map(|bytes| bytes..=bytes);
    let Some(bounds) = exact.or_else(|| state.rss_bounds.clone()) else { return };
    if bounds.contains(&rss_bytes) {
        return;
    }
    let (least, most) = bounds.into_inner();
    let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let counted = match state.origin {
        Origin::Process => format!("the kernel counts {count} resident bytes"),
        Origin::Core => format!("the core accounts for {count} bytes"),
    };
    let what = format!("the rows add up to {rss_bytes} bytes, but {counted}");
    findings.push(Finding::general(Severity::Warning, what));
}

impl MallocAccount {
    fn new(malloc: &Malloc, books: &Books, pages: Option<&Pages>) -> Self {
        let arenas = malloc.arenas.iter().zip(&books.arenas).map(|(arena, causes)| ArenaAccount {
            address: arena.address,
            is_main: arena.is_main,
            heaps: arena.heaps,
            system_bytes: arena.system_bytes,
            causes: *causes,
            returned_bytes: arena.system_bytes.saturating_sub(causes.total()),
        });
        Self {
            totals: malloc.totals(),
            trim_yield_bytes: books.causes[Cause::MallocUnreturned],
            trim_deferred_bytes: pages.map_or(0, |pages| pages.deferred_bytes(&malloc.trimmable)),
            arena_max: malloc.settings.and_then(|settings| settings.arena_max),
            arenas: arenas.collect(),
        }
    }
}

impl RubyAccount {
    fn new(space: &ObjectSpace) -> Self {
        let mut account = Self {
            version: space.interpreter.version.clone(),
            heap_pages: space.pages.len() as u64,
            slots_live: 0,
            slots_unmarked: 0,
            slots_free: 0,
            slot_bytes_live: 0,
            slot_bytes_free: 0,
            objects: space.counts(),
        };
        space.sized_slots().for_each(|(slot, bytes)| {
            if slot.state == SlotState::Free {
                account.slots_free += 1;
                account.slot_bytes_free += bytes;
            } else if slot.is_live() {
                account.slots_live += 1;
                account.slot_bytes_live += bytes;
                account.slots_unmarked += u64::from(slot.state == SlotState::Unmarked);
            }
        });
        account
    }
}
