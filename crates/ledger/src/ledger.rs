use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use allocator::{Allocator, HeapMap, Libc, Totals, Tuning};
use capture::{
    Address, Finding, Mapping, Origin, Pages, ProcessInfo, ProcessState, Severity, both,
};
use ruby::{HeapPage, ObjectSpace, SlotState};

use crate::claims::{Booking, Overlay, Span, book, heap_spans, ruby_spans};
use crate::interpreter::{CodeFileAccount, InterpreterAccount};
use crate::ownership::{Dominator, OwnerAccount, OwnerKind, Owners, Parts, PointerGraph, Reach};
use crate::pages::pages_of;
use crate::pins::{self, Pin, Pins, SizeClassAccount};
use crate::threads::{self, ThreadGroup};
use crate::{Cause, Causes, Facts, FileAccount, MemoryMap, Size, memory_map};

/// The account of one process at one instant: every resident byte under one cause, with the facts about malloc and
/// Ruby.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// The process.
    pub process: ProcessInfo,
    /// The source of the facts.
    pub origin: Origin,
    /// The resident bytes: the sum of `causes`.
    pub rss_bytes: u64,
    /// The bytes in swap, which are not resident and belong to no cause.
    pub swap_bytes: u64,
    /// The bytes of pages that a core file lacks, which belong to no cause: it is not known whether they were resident.
    pub lost_bytes: u64,
    /// The C library.
    pub libc: Libc,
    /// The allocator that serves malloc(3).
    pub allocator: Allocator,
    /// The resident bytes by cause.
    pub causes: Causes,
    /// True if the rows are estimates, since a core has no page states.
    pub is_estimated: bool,
    /// malloc's side; `None` if it could not be read.
    pub malloc: Option<MallocAccount>,
    /// Ruby's side; `None` if it could not be read.
    pub ruby: Option<RubyAccount>,
    /// True if the owners of all blocks were traced; otherwise objects own only the blocks that they refer to
    /// themselves.
    pub is_traced: bool,
    /// The owners by their part of RSS, largest first.
    pub owners: Vec<OwnerAccount>,
    /// The constants, threads and objects that retain most, largest first; `None` if owners were not traced, or retained
    /// sizes were not asked for.
    pub dominators: Option<Vec<Dominator>>,
    /// The mapped files by their part of RSS, largest first.
    pub files: Vec<FileAccount>,
    /// The interpreter's own memory by kind and by file; `None` if owners were not traced.
    pub interpreter: Option<InterpreterAccount>,
    /// The threads of Ruby by the method that they run; `None` if that is unknown.
    pub threads: Option<Vec<ThreadGroup>>,
    /// Problems, and facts that a reader should know, the most severe first.
    pub findings: Vec<Finding>,
}

/// The parts that a [`Ledger`] has beyond causes and owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Retained sizes: some seconds for a process with millions of objects.
    pub retained_sizes: bool,
    /// A map of the memory.
    pub memory_map: bool,
}

/// malloc's side of a [`Ledger`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MallocAccount {
    /// Blocks and bytes as malloc itself counts them, resident or not.
    pub totals: Totals,
    /// The bytes by which a trim (malloc_trim, or a purge of jemalloc's arenas) would lower RSS.
    pub trim_yield_bytes: u64,
    /// The part that leaves RSS at once but is freed only when the kernel splits the huge page.
    pub trim_deferred_bytes: u64,
    /// The call that trims, as a person writes it: `malloc_trim(0)`.
    pub trim_call: Option<&'static str>,
    /// The allocator with its version, such as `glibc 2.36`.
    pub walker: String,
    /// Its tuning; `None` if that is not known.
    pub tuning: Option<Tuning>,
    /// The owners whose blocks keep free memory resident, the largest amount first; empty if owners were not traced.
    pub pins: Vec<Pin>,
    /// The slabs by the size of their regions; empty if the allocator has no slabs.
    pub size_classes: Vec<SizeClassAccount>,
    /// The arenas, the main one first.
    pub arenas: Vec<ArenaAccount>,
}

/// An arena's bytes: the resident ones by cause, and the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaAccount {
    /// The address of its structure.
    pub address: Address,
    /// True for the main arena.
    pub is_main: bool,
    /// False if it could not be read; its memory is in `unknown`.
    pub walked: bool,
    /// The number of its heaps, or of its extents in use.
    pub heaps: u32,
    /// The number of threads that allocate from it; `None` if the allocator does not count them.
    pub threads: Option<u32>,
    /// Bytes that it obtained from the kernel, by its own count.
    pub system_bytes: u64,
    /// Resident bytes by cause.
    pub causes: Causes,
    /// Obtained bytes that are not resident: returned to the kernel, never touched, or swapped out.
    pub returned_bytes: u64,
}

/// Ruby's side of a [`Ledger`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RubyAccount {
    /// Ruby's version.
    pub version: String,
    /// The number of heap pages.
    pub heap_pages: u64,
    /// Slots that hold an object.
    pub slots_live: u64,
    /// The live slots without a mark: young objects, or garbage that is not swept yet.
    pub slots_unmarked: u64,
    /// Free slots.
    pub slots_free: u64,
    /// The bytes of live slots, resident or not.
    pub slot_bytes_live: u64,
    /// The bytes of free slots, resident or not.
    pub slot_bytes_free: u64,
    /// The number of slots of each type, as `ObjectSpace.count_objects` counts them.
    pub objects: BTreeMap<&'static str, u64>,
}

impl Ledger {
    /// Books the facts: a pure function that cannot fail. If a part could not be read, a finding reports it, and its
    /// bytes are under [`Cause::Unknown`]. `state` must be the state of the image that the facts were read from, with
    /// page states. The ledger has no retained sizes.
    #[must_use]
    pub fn draw_up(state: &ProcessState, facts: &Facts) -> Self {
        Self::draw_up_to(Extent::default(), state, facts).0
    }

    /// The ledger, and a map of the memory, which is empty unless `extent` includes it.
    #[must_use]
    pub fn draw_up_to(extent: Extent, state: &ProcessState, facts: &Facts) -> (Self, MemoryMap) {
        // Following pointers takes one thread.
        let count_slots = || facts.ruby.as_ref().ok().map(RubyAccount::new);
        let (owners, ruby) = both(|| find_owners(facts), count_slots);
        let ledger = Self::with_owners(state, facts, &owners, ruby, extent);
        if !extent.memory_map {
            return (ledger, MemoryMap::default());
        }
        // Without tracing, the map names no owners.
        let accounts = if ledger.is_traced { &ledger.owners[..] } else { &[] };
        let memory_map = memory_map::draw(state, facts, &owners, accounts);
        (ledger, memory_map)
    }

    fn with_owners(
        state: &ProcessState,
        facts: &Facts,
        owners: &Owners<'_>,
        ruby: Option<RubyAccount>,
        extent: Extent,
    ) -> Self {
        let mut findings = state.findings.clone();
        let malloc = facts.malloc.as_ref();
        let space = facts.ruby.as_ref();
        findings.extend(malloc.map_or_else(
            |error| vec![Finding::general(Severity::Error, error)],
            |malloc| malloc.findings.clone(),
        ));
        findings.extend(space.map_or_else(
            // A reason that both sides share is reported once.
            |error| match malloc {
                Err(same) if same == error => Vec::new(),
                _ => vec![Finding::general(Severity::Error, error)],
            },
            |space| space.findings.clone(),
        ));
        findings.extend(facts.findings.iter().cloned());
        if state.origin == Origin::Core && facts.ruby.is_err() {
            // ruby_cleanup of eval.c frees the heap before it lets a signal end the process.
            let what = "Ruby frees its heap before SIGTERM, SIGINT or SIGQUIT ends it, so the core of such a process has no objects; \
                        make the core by gcore or SIGABRT";
            findings.push(Finding::general(Severity::Note, what));
        }
        if let Some(bytes) = facts.graph.as_ref().map(PointerGraph::unread_bytes)
            && bytes > 0
        {
            let where_they_are = match state.origin {
                Origin::Process => "swapped out",
                Origin::Core => "not in the core",
            };
            let what = format!(
                "{} of malloc'ed memory, stacks and variables are {where_they_are}: memory that only they point to is \
                 listed as unreachable",
                Size(bytes)
            );
            findings.push(Finding::general(Severity::Warning, what));
        }
        if let Some(words) = facts.graph.as_ref().map(PointerGraph::dropped_words)
            && words > 0
        {
            let what = format!(
                "owners are incomplete: {words} pointers were left out, since a single chunk has more pointers than \
                 rbloat can keep; memory that only they point to is listed as unreachable"
            );
            findings.push(Finding::general(Severity::Warning, what));
        }
        let pages = pages_of(state);
        let reach = if extent.retained_sizes { Reach::All } else { Reach::Inner };
        // Without paths, the second thread has time for these; with them, the first one is usually earlier.
        let accounts = OnceLock::new();
        let sum_up_owners = || accounts.get_or_init(|| owners.accounts(pages));
        let ((interpreter, booking, malloc), paths) = both(
            || {
                let parts = owners.parts(facts.code_paths.as_ref());
                let booking = book_all(state, facts, owners, pages, parts.as_ref(), &mut findings);
                let accounts = sum_up_owners();
                let malloc = malloc.ok().map(|heap| {
                    let accounts = if facts.graph.is_some() { &accounts[..] } else { &[] };
                    let pins = pins::find(heap, state, owners, accounts);
                    MallocAccount::new(heap, &booking, state, pins)
                });
                let interpreter = parts.map(|parts| parts.account(&booking.parts));
                (interpreter, booking, malloc)
            },
            || {
                let paths = owners.paths(reach);
                sum_up_owners();
                paths
            },
        );
        let mut accounts = accounts.into_inner().unwrap_or_default();
        let dominators = paths
            .and_then(|paths| owners.add_retainers(&mut accounts, &paths, extent.retained_sizes));
        let rss_bytes = booking.causes.total();
        check_rss(state, rss_bytes, &mut findings);
        if state.process.environment.is_none() {
            let what = "the environment cannot be read, so advice may already be in effect";
            findings.push(Finding::general(Severity::Note, what));
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));

        Self {
            process: state.process.clone(),
            origin: state.origin,
            rss_bytes,
            swap_bytes: state.swap_bytes(),
            lost_bytes: pages.lost_bytes(),
            libc: facts.libc.clone(),
            allocator: facts.allocator.clone(),
            causes: booking.causes,
            is_traced: facts.graph.is_some(),
            is_estimated: state.origin == Origin::Core,
            malloc,
            ruby,
            owners: accounts,
            dominators,
            files: booking.files.accounts(),
            threads: threads::groups(facts),
            interpreter,
            findings,
        }
    }

    /// The classes of the program's own objects, without the classes of C extensions and of the interpreter, by their
    /// part of RSS, largest first.
    pub fn managed(&self) -> impl Iterator<Item = &OwnerAccount> {
        let is_managed = |owner: &&OwnerAccount| owner.cause == Cause::RubyMalloc;
        self.owners.iter().filter(is_managed)
    }

    /// All classes, internal ones included, by their part of RSS, largest first.
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

pub(crate) fn find_owners(facts: &Facts) -> Owners<'_> {
    Owners::find(
        facts.heap(),
        facts.objects(),
        &facts.modules,
        facts.graph.as_ref(),
        &facts.slot_edges,
        &facts.named_roots,
        &facts.current_frames,
    )
}

/// Returns the resident bytes of a part of the pages by cause.
pub(crate) fn causes_of(
    state: &ProcessState,
    facts: &Facts,
    owners: &Owners<'_>,
    pages: &Pages,
) -> Causes {
    // The whole ledger has the findings.
    book_all(state, facts, owners, pages, None, &mut Vec::new()).causes
}

/// Returns the bytecode on a part of the pages by file; `None` if owners were not traced, or files are unknown.
pub(crate) fn bytecode_of(
    state: &ProcessState,
    facts: &Facts,
    owners: &Owners<'_>,
    pages: &Pages,
) -> Option<Vec<CodeFileAccount>> {
    let parts = owners.parts(facts.code_paths.as_ref())?;
    let booking = book_all(state, facts, owners, pages, Some(&parts), &mut Vec::new());
    parts.account(&booking.parts).files
}

fn book_all(
    state: &ProcessState,
    facts: &Facts,
    owners: &Owners<'_>,
    pages: &Pages,
    parts: Option<&Parts<'_>>,
    findings: &mut Vec<Finding>,
) -> Booking {
    let (heap, objects) = (facts.heap(), facts.objects());
    let of = |ranges: &[Range<Address>], cause| {
        ranges.iter().map(|range| Span::new(range.clone(), cause)).collect::<Vec<_>>()
    };
    let mut carved = of(&facts.stacks, Cause::StackThreads);
    carved.extend(of(&objects.fiber_stacks, Cause::StackFibers));
    carved.extend(of(&objects.jit_code, Cause::RubyJit));
    // Small arrays, hashes and structs up to Ruby 3.2.
    carved.extend(of(objects.transient_heap.as_slice(), Cause::RubyMalloc));
    carved.sort_by_key(|span| span.range.start);

    let mut carved_clashes = Clashes::default();
    let carved = disjoint(carved, &mut carved_clashes);
    let libraries: Vec<_> = facts.modules.iter().map(|module| module.range.clone()).collect();
    let book_portion = |portion: Portion<'_>| {
        let (mut clashes, mut carved_clashes) = (Clashes::default(), Clashes::default());
        let blocks =
            heap_spans(heap, portion.extents, |block| match (owners.cause(block), parts) {
                (Cause::RubyVm, Some(parts)) => (Cause::RubyVm, parts.of(block)),
                (cause, _) => (cause, None),
            });
        let slots = ruby_spans(objects, portion.heap_pages);
        let spans = Overlay::new(slots, blocks, |upper, lower| {
            // Up to 2.7 Ruby has its heap pages from malloc.
            if !is_in_use(lower.cause) {
                clashes.note(upper, lower);
            }
        });
        let spans = Overlay::new(portion.carved.iter().cloned(), spans, |upper, lower| {
            if upper.cause != Cause::RubyMalloc || !is_in_use(lower.cause) {
                carved_clashes.note(upper, lower);
            }
        });
        let (arenas, parts) = (heap.arenas.len(), parts.map_or(0, Parts::count));
        let booking = book(portion.mappings, pages, &libraries, spans, arenas, parts);
        (booking, clashes, carved_clashes)
    };
    let all = Portion {
        mappings: state.mappings.iter().as_slice(),
        extents: &heap.extents,
        heap_pages: &objects.pages,
        carved: &carved,
    };
    // With owners, the second processor is busy with paths.
    let halves = parts.is_none().then(|| all.halves(heap, &libraries)).flatten();
    let (booking, clashes, of_carved) = match halves {
        Some((lower, upper)) => {
            let (mut lower, upper) = both(|| book_portion(lower), || book_portion(upper));
            lower.0.add(upper.0);
            (lower.0, lower.1.and(upper.1), lower.2.and(upper.2))
        }
        None => book_portion(all),
    };
    findings.extend(clashes.finding());
    findings.extend(carved_clashes.and(of_carved).finding());
    booking
}

/// A part of the address space, and the claims on it.
#[derive(Clone, Copy)]
struct Portion<'a> {
    mappings: &'a [Mapping],
    extents: &'a [allocator::Extent],
    heap_pages: &'a [HeapPage],
    carved: &'a [Span],
}

impl<'a> Portion<'a> {
    /// Two portions with about half of the blocks each, cut where a mapping begins and no claim or library is cut; `None` if
    /// there is no such place.
    fn halves(self, heap: &HeapMap, libraries: &[Range<Address>]) -> Option<(Self, Self)> {
        let middle = heap.blocks.address_of(heap.block_count() / 2)?;
        let Self { mappings, extents, heap_pages, carved } = self;
        let first = mappings.partition_point(|mapping| mapping.range.start < middle);
        let is_apart = |at: Address| {
            !cuts(extents, at, |extent| &extent.range)
                && !cuts(heap_pages, at, |page| &page.range)
                && !cuts(carved, at, |span| &span.range)
                && !cuts(libraries, at, |range| range)
        };
        let cut = (first..mappings.len()).find(|&it| is_apart(mappings[it].range.start))?;
        let at = mappings[cut].range.start;
        let (mappings, upper_mappings) = mappings.split_at(cut);
        let (extents, upper_extents) =
            extents.split_at(extents.partition_point(|extent| extent.range.start < at));
        let (heap_pages, upper_pages) =
            heap_pages.split_at(heap_pages.partition_point(|page| page.range.start < at));
        let (carved, upper_carved) =
            carved.split_at(carved.partition_point(|span| span.range.start < at));
        let upper = Self {
            mappings: upper_mappings,
            extents: upper_extents,
            heap_pages: upper_pages,
            carved: upper_carved,
        };
        Some((Self { mappings, extents, heap_pages, carved }, upper))
    }
}

/// Returns true if a range of these, which are ascending, begins before `at` and ends behind it.
fn cuts<T>(ranges: &[T], at: Address, range_of: impl Fn(&T) -> &Range<Address>) -> bool {
    let before = ranges.partition_point(|it| range_of(it).start < at);
    before.checked_sub(1).is_some_and(|last| range_of(&ranges[last]).end > at)
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

/// The spans, ascending, without spans that overlap the one before.
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

/// Bytes that two parts claim. They are never given to one of them without a finding.
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

    /// These clashes, and those at higher addresses.
    fn and(self, more: Self) -> Self {
        Self { count: self.count + more.count, first: self.first.or(more.first) }
    }

    fn finding(self) -> Option<Finding> {
        let (upper, lower) = self.first?;
        let what = format!(
            "{} ranges of memory are claimed twice, the first by {} and by {}; {} has them",
            self.count, upper.cause, lower.cause, upper.cause
        );
        Some(Finding::at(Severity::Warning, upper.range.start.max(lower.range.start), what))
    }
}

/// Compares the sum of the rows with a count of the same instant that was not made from page states.
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
    fn new(heap: &HeapMap, booking: &Booking, state: &ProcessState, pins: Pins) -> Self {
        let arenas = heap.arenas.iter().zip(&booking.arenas).map(|(arena, causes)| ArenaAccount {
            address: arena.address,
            is_main: arena.is_main,
            walked: arena.walked,
            heaps: arena.heaps,
            threads: arena.threads,
            system_bytes: arena.system_bytes,
            causes: *causes,
            returned_bytes: arena.system_bytes.saturating_sub(causes.total()),
        });
        Self {
            totals: heap.totals,
            trim_yield_bytes: booking.causes[Cause::MallocUnreturned]
                + booking.causes[Cause::MallocMuzzy],
            trim_deferred_bytes: pages_of(state)
                .deferred_bytes(&heap.trimmable, state.machine.huge_page_size()),
            trim_call: heap.trim_call.map(|call| call.shown),
            walker: heap.walker.clone(),
            tuning: heap.tuning,
            pins: pins.owners,
            size_classes: pins.size_classes,
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
            if slot.state() == SlotState::Free {
                account.slots_free += 1;
                account.slot_bytes_free += bytes;
            } else if slot.is_live() {
                account.slots_live += 1;
                account.slot_bytes_live += bytes;
                account.slots_unmarked += u64::from(slot.state() == SlotState::Unmarked);
            }
        });
        account
    }
}
