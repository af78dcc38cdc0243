use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use allocator::{Allocator, BlockState, HeapMap, Libc, Totals, Tuning};
use image::{Origin, ProcessState};
use linux::{Address, Backing, Mapping, PageState, Pages, ProcessInfo, both};
use ruby::{Collector, HeapPage, ObjectSpace, SlotState};

use crate::claims::{Booking, book_all};
use crate::interpreter::{CodeFileAccount, InterpreterAccount};
use crate::ownership::{
    Dominator, OwnerAccount, OwnerKind, Owners, PointerGraph, Reach, SlotRoots, SpareAccount,
    WasteAccounts,
};
use crate::pages::pages_of;
use crate::pins::{self, Pin, Pins, SizeClassAccount};
use crate::places::{self, Place};
use crate::ractors::{self, RactorAccount};
use crate::root_uses::{RootUses, root_uses};
use crate::stacks::KeptStacks;
use crate::threads::{self, ThreadGroup};
use crate::{Cause, Causes, Facts, FileAccount, Finding, MemoryMap, UnknownMappings, memory_map};

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
    /// The resident bytes of mappings that are locked in memory, by mlock(2) or mlockall(2).
    pub locked_bytes: u64,
    /// The part of them that are pages of files, or shared memory.
    pub locked_file_bytes: u64,
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
    /// The memory of which objects use a small part, by kind.
    pub spare: Vec<SpareAccount>,
    /// The memory that objects do not use.
    pub waste: WasteAccounts,
    /// The lines that set the constants and classes of paths, by name; empty if owners were not traced.
    pub places: Vec<Place>,
    /// The anonymous mappings with memory under [`Cause::Unknown`], by permissions, largest first.
    pub unknown: Vec<UnknownMappings>,
    /// The interpreter's own memory by kind and by file; `None` if owners were not traced.
    pub interpreter: Option<InterpreterAccount>,
    /// The threads of Ruby by the method that they run; `None` if that is unknown.
    pub threads: Option<Vec<ThreadGroup>>,
    /// The stacks that are kept for new threads and fibers.
    pub kept_stacks: KeptStacks,
    /// The code that uses the constants and variables that retain much, ascending by name.
    pub root_uses: Vec<RootUses>,
    /// Problems, and facts that a reader should know.
    pub findings: Vec<Finding>,
}

/// The analyses that are wanted beyond causes and owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Analyses {
    /// Retained sizes: some seconds for a process with millions of objects.
    pub retained_sizes: bool,
    /// A map of the memory.
    pub memory_map: bool,
    /// Objects that contain the same as others.
    pub contents: bool,
    /// With `contents`: the most frequent texts.
    pub texts: bool,
    /// The fields of each object, for a dump.
    pub objects: bool,
    /// With `objects`: the texts of strings.
    pub values: bool,
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
    /// The resident bytes of the free end of the main arena; 0 if the allocator has none.
    pub top_bytes: u64,
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

/// The beginning of the names of environment variables that set Ruby's garbage collector.
pub const GC_SETTINGS: &str = "RUBY_GC_";

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
    /// The bytes of free slots on heap pages without an object, resident or not.
    pub slot_bytes_empty: u64,
    /// The bytes of heap pages that have no slots now, resident or not: Ruby keeps them for slots of any size (from 3.4 on).
    pub page_bytes_free: u64,
    /// The number of Ractor objects, also of Ractors that have ended.
    pub ractors: u64,
    /// The state of the garbage collector; `None` if it is unknown.
    pub collector: Option<Collector>,
    /// The environment variables that make the collector keep slots, with the number of slots.
    pub initial_slots: Vec<(String, u64)>,
    /// The memory of each Ractor; empty if all share an object space.
    pub ractor_memory: Vec<RactorAccount>,
    /// The number of slots of each type, as `ObjectSpace.count_objects` counts them.
    pub objects: BTreeMap<&'static str, u64>,
}

impl Ledger {
    /// Books the facts: a pure function that cannot fail. If a part could not be read, a finding reports it, and its
    /// bytes are under [`Cause::Unknown`]. `state` must be the state of the image that the facts were read from, with
    /// page states. The ledger has no retained sizes.
    #[must_use]
    pub fn draw_up(state: &ProcessState, facts: &Facts) -> Self {
        Self::draw_up_with(Analyses::default(), state, facts).0
    }

    /// The ledger, and a map of the memory, which is empty unless `analyses` includes it.
    #[must_use]
    pub fn draw_up_with(
        analyses: Analyses,
        state: &ProcessState,
        facts: &Facts,
    ) -> (Self, MemoryMap) {
        let owners = owners_of(facts);
        let (ledger, roots) = Self::with_owners(state, facts, &owners, analyses);
        if !analyses.memory_map {
            return (ledger, MemoryMap::default());
        }
        // Without tracing, the map names no owners.
        let accounts = if ledger.is_traced { &ledger.owners[..] } else { &[] };
        let memory_map = memory_map::draw(state, facts, &owners, accounts, roots);
        (ledger, memory_map)
    }

    /// Also returns what retains each object, if that is known and wanted for a map.
    fn with_owners(
        state: &ProcessState,
        facts: &Facts,
        owners: &Owners<'_>,
        analyses: Analyses,
    ) -> (Self, Option<SlotRoots>) {
        let mut findings: Vec<_> = state.findings.iter().cloned().map(Finding::Core).collect();
        let malloc = facts.malloc.as_ref();
        let space = facts.ruby.as_ref();
        match malloc {
            Ok(heap) => findings.extend(heap.findings.iter().cloned().map(Finding::Malloc)),
            Err(reason) => findings.push(reason.clone()),
        }
        match space {
            Ok(space) => findings.extend(space.findings.iter().cloned().map(Finding::Ruby)),
            // A reason that both sides share is reported once.
            Err(reason) if malloc.err() == Some(reason) => {}
            Err(reason) => findings.push(reason.clone()),
        }
        findings.extend(facts.findings.iter().cloned());
        if state.origin == Origin::Core && facts.ruby.is_err() {
            // ruby_cleanup of eval.c frees the heap before it lets a signal end the process.
            findings.push(Finding::CoreWithoutObjects);
        }
        if let Some(bytes) = facts.graph.as_ref().map(PointerGraph::unread_bytes)
            && bytes > 0
        {
            findings.push(match state.origin {
                Origin::Process => Finding::PointersSwapped { bytes },
                Origin::Core => Finding::PointersNotDumped { bytes },
            });
        }
        if let Some(pointers) = facts.graph.as_ref().map(PointerGraph::dropped_words)
            && pointers > 0
        {
            findings.push(Finding::PointersLeftOut { pointers });
        }
        let pages = pages_of(state);
        let reach = if analyses.retained_sizes { Reach::All } else { Reach::Inner };
        // Without paths, the second thread has time for these; with them, the first one is usually earlier.
        let accounts = OnceLock::new();
        let sum_up_owners = || accounts.get_or_init(|| owners.accounts(pages));
        let ((booking, interpreter, pins), (ruby, paths)) = both(
            || {
                let parts = owners.parts();
                let booking = book_all(state, facts, owners, pages, parts.as_ref(), &mut findings);
                let interpreter = parts.as_ref().map(|parts| parts.account(&booking.parts));
                let accounts = sum_up_owners();
                let traced = if facts.graph.is_some() { &accounts[..] } else { &[] };
                let pins = malloc.ok().map(|heap| pins::find(heap, state, owners, traced));
                (booking, interpreter, pins)
            },
            || {
                let paths = owners.paths(reach);
                let ruby = space.ok().map(|space| RubyAccount {
                    ractor_memory: ractors::accounts(space, pages, paths.as_ref()),
                    ..RubyAccount::new(space, facts.collector, &state.process)
                });
                sum_up_owners();
                (ruby, paths)
            },
        );
        let mut accounts = accounts.into_inner().unwrap_or_default();
        let (waste, (roots, dominators)) = both(
            || paths.as_ref().map(|paths| owners.waste(pages, paths)),
            || {
                let Some(paths) = &paths else { return (None, None) };
                let roots = analyses.memory_map.then(|| SlotRoots::find(&paths.0, &paths.1));
                let retained_sizes = analyses.retained_sizes;
                (roots, owners.add_retainers(&mut accounts, paths, retained_sizes, pages))
            },
        );
        let (spare, waste) = waste.unwrap_or_default();
        let malloc = malloc.ok().zip(pins);
        let malloc = malloc.map(|(heap, pins)| MallocAccount::new(heap, &booking, state, pins));
        let rss_bytes = booking.causes.total();
        check_rss(state, rss_bytes, &mut findings);
        if state.process.environment.is_none() {
            findings.push(Finding::EnvironmentUnknown);
        }

        let threads = threads::groups(facts);
        let kept_stacks = KeptStacks::find(state, facts, &booking.causes, threads.as_deref());
        let root_uses = root_uses(facts, &accounts, dominators.as_deref(), roots.as_ref());
        let ledger = Self {
            process: state.process.clone(),
            origin: state.origin,
            rss_bytes,
            swap_bytes: state.swap_bytes(),
            lost_bytes: pages.lost_bytes(),
            locked_bytes: locked_bytes(state, PageState::is_resident),
            locked_file_bytes: locked_bytes(state, |page| page == PageState::File),
            libc: facts.libc.clone(),
            allocator: facts.allocator.clone(),
            causes: booking.causes,
            is_traced: facts.graph.is_some(),
            is_estimated: state.origin == Origin::Core,
            malloc,
            ruby,
            places: places::find(&facts.named_roots, &accounts, &spare, &waste),
            owners: accounts,
            dominators,
            files: booking.files.accounts(),
            spare,
            waste,
            unknown: booking
                .unknown
                .accounts(&state.mappings, owners.owners_of_mappings(paths.as_ref())),
            threads,
            kept_stacks,
            root_uses,
            interpreter,
            findings,
        };
        (ledger, roots)
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

pub(crate) fn owners_of(facts: &Facts) -> Owners<'_> {
    Owners::new(
        facts.heap(),
        facts.objects(),
        &facts.modules,
        facts.graph.as_ref(),
        &facts.trace,
        &facts.named_roots,
        &facts.object_code,
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
    let parts = owners.parts()?;
    let booking = book_all(state, facts, owners, pages, Some(&parts), &mut Vec::new());
    parts.account(&booking.parts).files
}

/// Compares the sum of the rows with that of the page states, and with a count of the same instant that was not made from
/// these.
fn check_rss(state: &ProcessState, rss_bytes: u64, findings: &mut Vec<Finding>) {
    let all = Address(0)..Address(u64::MAX);
    let resident = pages_of(state).resident_bytes(&all);
    if resident != rss_bytes {
        findings.push(Finding::RowsDiffer { bytes: rss_bytes, resident_bytes: resident });
        return;
    }
    let exact = state.mappings.kernel_rss_bytes().map(|bytes| bytes..=bytes);
    let Some(bounds) = exact.or_else(|| state.rss_bounds.clone()) else { return };
    if bounds.contains(&rss_bytes) {
        return;
    }
    let (min_bytes, max_bytes) = bounds.into_inner();
    let is_kernels = state.origin == Origin::Process;
    findings.push(Finding::CountDiffers { bytes: rss_bytes, min_bytes, max_bytes, is_kernels });
}

/// The bytes of such pages in locked mappings.
fn locked_bytes(state: &ProcessState, counts: impl Fn(PageState) -> bool) -> u64 {
    locked(state).map(|mapping| pages_of(state).bytes_of(&mapping.range, &counts)).sum()
}

fn locked(state: &ProcessState) -> impl Iterator<Item = &Mapping> {
    state.mappings.iter().filter(|mapping| mapping.is_locked)
}

/// The resident bytes of free pages that a trim does not return: madvise(2) ends at the first page of a range that is locked. The end of
/// the heap is returned by brk(2), which unlocks it.
fn untrimmable_bytes(heap: &HeapMap, state: &ProcessState) -> u64 {
    let locked: Vec<&Mapping> = locked(state).collect();
    let after_lock = |range: &Range<Address>| {
        let next = locked.partition_point(|mapping| mapping.range.end <= range.start);
        let first = locked.get(next).filter(|mapping| mapping.range.start < range.end)?;
        let last = state.mappings.find(Address(range.end.0.saturating_sub(1)));
        let is_end =
            last.is_some_and(|it| it.backing == Backing::Heap && it.range.end == range.end);
        (!is_end).then(|| first.range.start.max(range.start)..range.end)
    };
    let pages = pages_of(state);
    heap.trimmable.iter().filter_map(after_lock).map(|range| pages.resident_bytes(&range)).sum()
}

/// The resident bytes of the main arena's top.
fn top_bytes(heap: &HeapMap, state: &ProcessState) -> u64 {
    let is_main = |arena: u32| heap.arenas.get(arena as usize).is_some_and(|it| it.is_main);
    let extents = heap.extents.iter().filter(|extent| extent.arena.is_some_and(is_main));
    let last = extents.filter_map(|extent| heap.block(extent.blocks.end.checked_sub(1)?));
    let tops = last.filter(|block| block.state() == BlockState::Top);
    tops.map(|top| pages_of(state).resident_bytes(&(top.address..top.end()))).sum()
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
            trim_yield_bytes: (booking.causes[Cause::MallocUnreturned]
                + booking.causes[Cause::MallocMuzzy])
                .saturating_sub(untrimmable_bytes(heap, state)),
            trim_deferred_bytes: pages_of(state)
                .deferred_bytes(&heap.trimmable, state.machine.huge_page_size()),
            trim_call: heap.trim_call.map(|call| call.shown),
            walker: heap.walker.clone(),
            tuning: heap.tuning,
            top_bytes: top_bytes(heap, state),
            pins: pins.owners,
            size_classes: pins.size_classes,
            arenas: arenas.collect(),
        }
    }
}

impl RubyAccount {
    /// The number of slots that environment variables make the collector keep, free or not.
    #[must_use]
    pub fn initial_slot_count(&self) -> u64 {
        self.initial_slots.iter().fold(0, |sum, (_, slots)| sum.saturating_add(*slots))
    }

    fn new(space: &ObjectSpace, collector: Option<Collector>, process: &ProcessInfo) -> Self {
        let is_empty = |page: &&HeapPage| {
            let mut slots = space.slots.get(page.slots.clone()).unwrap_or_default().iter();
            slots.all(|slot| slot.state() == SlotState::Free)
        };
        let initial_slots = |(name, value): &(String, String)| {
            Some((name.clone(), space.interpreter.initial_slots(name, value)?))
        };
        let empty = space.pages.iter().filter(is_empty);
        let is_ractor =
            |it: &(u32, _)| space.data_type_of(it.0).is_some_and(ruby::DataType::is_ractor);
        // Room for slots of any size.
        let pages = space.pages.iter().filter(|page| page.slot_bytes == 0);
        let ranges = pages.map(|page| &page.range).chain(&space.free_pages);
        let mut account = Self {
            version: space.interpreter.version.clone(),
            heap_pages: space.pages.len() as u64,
            slots_live: 0,
            slots_unmarked: 0,
            slots_free: 0,
            slot_bytes_live: 0,
            slot_bytes_free: 0,
            slot_bytes_empty: empty
                .map(|page| page.slots.len() as u64 * u64::from(page.slot_bytes))
                .sum(),
            page_bytes_free: ranges.map(linux::length).sum(),
            ractors: space.data_objects.iter().filter(is_ractor).count() as u64,
            collector,
            initial_slots: process.environment.iter().flatten().filter_map(initial_slots).collect(),
            ractor_memory: Vec::new(),
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
