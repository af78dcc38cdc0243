//! A map of a process's memory: each page and each block, in the order of addresses. It shows the memory that a
//! ledger sums up. Pictures and comparisons are made from it.

mod area_plan;
mod column;
mod drawing;
mod roots;

use std::ops::Range;

use linux::{Address, MIN_PAGE_SIZE, length};

pub(crate) use drawing::draw;
pub(crate) use roots::{FIRST_ROOT, NOTHING, UNKNOWN};
pub use roots::{MapRoot, MapRoots, RetainedBy};

/// The unit of sizes of blocks, in bytes.
const UNIT: u64 = 8;
/// The room for numbers of [`PageUse`] in a run of pages.
const PAGE_USES: u64 = 8;

/// All memory of a process that is or was resident, or is malloc's or Ruby's: areas, ascending and disjoint, with their
/// pages and the blocks that they consist of. A block takes a few bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryMap {
    /// Bytes of a page, a power of two.
    pub page_size: u64,
    /// The areas, ascending by address.
    pub areas: Vec<Area>,
    /// The contents of the areas.
    pub columns: Columns,
    /// The roots that retain the objects.
    pub roots: MapRoots,
}

/// The contents of areas, in columns of numbers (LEB128). Each area has a part of each column, in the order of areas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The size of each block, in units of 8 bytes. The blocks of an area lie side by side from its
    /// beginning on.
    pub sizes: Vec<u8>,
    /// The use of each block, one byte for each: [`Use`] as a number.
    pub uses: Vec<u8>,
    /// For each block in use and each slot with an object, one more than the index of its owner in the ledger; 0 if
    /// the owner is not known.
    pub owners: Vec<u8>,
    /// Runs of pages with the same use, which cover the area: eight times the number of pages, plus [`PageUse`] as a
    /// number.
    pub pages: Vec<u8>,
}

/// A range of memory of one kind, in whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Its addresses.
    pub range: Range<Address>,
    /// The kind of memory.
    pub kind: AreaKind,
    /// The name of its file without folders; empty if it does not belong to a file.
    pub name: String,
    /// The number of its blocks; 0 if it is not divided.
    pub blocks: u64,
    /// Its part of [`Columns::sizes`].
    pub sizes: Range<usize>,
    /// Its part of [`Columns::uses`].
    pub uses: Range<usize>,
    /// Its part of [`Columns::owners`].
    pub owners: Range<usize>,
    /// Its part of [`Columns::pages`].
    pub pages: Range<usize>,
}

/// The kind of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaKind {
    /// A heap of the arena with this index in the ledger.
    Arena(u32),
    /// A chunk with a mapping of its own.
    Mmapped,
    /// Adjacent heap pages of Ruby's, outside malloc.
    HeapPages,
    /// The machine stack of a thread.
    ThreadStack,
    /// The machine stack of a fiber.
    FiberStack,
    /// Code that a JIT compiler made.
    Jit,
    /// Ruby's transient heap (2.6 to 3.2).
    TransientHeap,
    /// A mapping of a file on disk, or one of the kernel's own, such as `[vdso]`.
    File,
    /// A mapping of a file in memory (tmpfs, memfd), or shared memory.
    Shmem,
    /// Other memory.
    Anonymous,
}

impl AreaKind {
    /// All kinds but [`AreaKind::Arena`].
    const OTHERS: [Self; 9] = [
        Self::Mmapped,
        Self::HeapPages,
        Self::ThreadStack,
        Self::FiberStack,
        Self::Jit,
        Self::TransientHeap,
        Self::File,
        Self::Shmem,
        Self::Anonymous,
    ];

    /// Its name in files and pictures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arena(_) => "arena",
            Self::Mmapped => "mmapped",
            Self::HeapPages => "heap_pages",
            Self::ThreadStack => "thread_stack",
            Self::FiberStack => "fiber_stack",
            Self::Jit => "jit",
            Self::TransientHeap => "transient_heap",
            Self::File => "file",
            Self::Shmem => "shmem",
            Self::Anonymous => "anonymous",
        }
    }

    /// The kind with this name; `arena` is the index of an arena.
    #[must_use]
    pub fn by_name(name: &str, arena: Option<u32>) -> Option<Self> {
        match arena {
            Some(arena) => (name == "arena").then_some(Self::Arena(arena)),
            None => Self::OTHERS.into_iter().find(|kind| kind.name() == name),
        }
    }
}

/// The use of a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Use {
    /// Not malloc's, between its memory: another user of brk(2), or a gap for an alignment.
    Foreign,
    /// A structure of malloc's, or the header or padding of one of Ruby's heap pages.
    Overhead,
    /// A chunk in use, or a part of one around Ruby's heap pages.
    InUse,
    /// A free chunk in a bin.
    Free,
    /// A free chunk in a fastbin.
    Fastbin,
    /// A free chunk in a tcache.
    Tcache,
    /// The top of an arena.
    Top,
    /// A slot with an old object, or with an object that the current collection has marked.
    OldSlot,
    /// A slot with a young object, or garbage.
    YoungSlot,
    /// A free slot.
    FreeSlot,
    /// A slot that is swapped out.
    UnreadSlot,
    /// Free memory of jemalloc's that the kernel takes when memory gets short.
    Muzzy,
}

impl Use {
    const ALL: [Self; 12] = [
        Self::Foreign,
        Self::Overhead,
        Self::InUse,
        Self::Free,
        Self::Fastbin,
        Self::Tcache,
        Self::Top,
        Self::OldSlot,
        Self::YoungSlot,
        Self::FreeSlot,
        Self::UnreadSlot,
        Self::Muzzy,
    ];

    /// The use with this number.
    #[must_use]
    pub fn by_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns true if blocks of this use have an entry in [`Columns::owners`].
    #[must_use]
    pub fn has_owner(self) -> bool {
        matches!(self, Self::InUse) || self.is_object()
    }

    /// Returns true if its bytes are not free.
    #[must_use]
    pub fn is_busy(self) -> bool {
        !matches!(
            self,
            Self::Free | Self::Fastbin | Self::Tcache | Self::Top | Self::FreeSlot | Self::Muzzy
        )
    }

    /// Returns true for a slot with an object.
    #[must_use]
    pub fn is_object(self) -> bool {
        matches!(self, Self::OldSlot | Self::YoungSlot)
    }
}

/// The place of a page's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageUse {
    /// Not resident: returned to the kernel, or never touched.
    Returned,
    /// Resident.
    Resident,
    /// In swap.
    Swapped,
    /// Resident, and malloc_trim(0) would return it.
    Unreturned,
    /// Missing in a core file: it is not known whether it was resident.
    Lost,
}

impl PageUse {
    const ALL: [Self; 5] =
        [Self::Returned, Self::Resident, Self::Swapped, Self::Unreturned, Self::Lost];

    /// The use with this number.
    fn by_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns true if RSS counts it.
    #[must_use]
    pub fn is_resident(self) -> bool {
        matches!(self, Self::Resident | Self::Unreturned)
    }
}

/// A chunk, a slot, or memory between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapBlock {
    /// Its beginning; for a chunk, its header.
    pub address: Address,
    /// Its size, header included.
    pub bytes: u64,
    /// Its use.
    pub used: Use,
    /// Its owner, an index into the owners of the ledger; `None` if it is free, or the owner is not known.
    pub owner: Option<u32>,
}

/// Columns that do not form a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the area at {at} does not fit together")]
pub struct InconsistentMap {
    /// The beginning of the first area that does not fit.
    pub at: Address,
}

impl Default for MemoryMap {
    fn default() -> Self {
        Self {
            page_size: MIN_PAGE_SIZE,
            areas: Vec::new(),
            columns: Columns::default(),
            roots: MapRoots::default(),
        }
    }
}

impl MemoryMap {
    /// The blocks of one of its areas, ascending and without gaps.
    pub fn blocks(&self, area: &Area) -> impl Iterator<Item = MapBlock> {
        let mut sizes = part(&self.columns.sizes, &area.sizes);
        let mut owners = part(&self.columns.owners, &area.owners);
        let mut at = area.range.start;
        part(&self.columns.uses, &area.uses).iter().map_while(move |&number| {
            let used = Use::by_number(number)?;
            let bytes = column::take(&mut sizes)?.checked_mul(UNIT)?;
            let owner = if used.has_owner() { column::take(&mut owners)? } else { 0 };
            let block = MapBlock {
                address: at,
                bytes,
                used,
                owner: owner.checked_sub(1).map(|it| it as u32),
            };
            at = at.offset(bytes);
            Some(block)
        })
    }

    /// The pages of one of its areas, in ascending runs that cover it.
    pub fn pages(&self, area: &Area) -> impl Iterator<Item = (Range<Address>, PageUse)> {
        let page_size = self.page_size;
        let mut pages = part(&self.columns.pages, &area.pages);
        let mut at = area.range.start;
        std::iter::from_fn(move || {
            let number = column::take(&mut pages)?;
            let used = PageUse::by_number(number % PAGE_USES)?;
            let end = at.offset((number / PAGE_USES).checked_mul(page_size)?);
            let run = at..end;
            at = end;
            Some((run, used))
        })
    }

    /// The resident bytes of all areas.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let runs = self.areas.iter().flat_map(|area| self.pages(area));
        runs.filter(|(_, used)| used.is_resident()).map(|(range, _)| length(&range)).sum()
    }

    /// Checks a map from a file: areas must ascend, their blocks and pages must cover them exactly, all numbers must
    /// have a meaning, owners must be among the first `owners`, and each object must have a root or none must.
    ///
    /// # Errors
    /// If an area fails the check.
    pub fn check(&self, owners: usize) -> Result<(), InconsistentMap> {
        let mut last = Area::new(Address(0)..Address(0), AreaKind::Anonymous, String::new());
        for area in &self.areas {
            let ascends = last.range.end <= area.range.start
                && area.range.start < area.range.end
                && area.range.start.is_aligned(self.page_size)
                && area.range.end.is_aligned(self.page_size)
                && [&area.sizes, &area.uses, &area.owners, &area.pages]
                    .into_iter()
                    .zip([&last.sizes, &last.uses, &last.owners, &last.pages])
                    .all(|(part, last)| part.start == last.end && part.start <= part.end);
            if !ascends || !self.is_covered(area, owners) {
                return Err(InconsistentMap { at: area.range.start });
            }
            last.clone_from(area);
        }
        let Columns { sizes, uses, owners, pages } = &self.columns;
        let are_used_up = sizes.len() == last.sizes.end
            && uses.len() == last.uses.end
            && owners.len() == last.owners.end
            && pages.len() == last.pages.end;
        let is_consistent = are_used_up && self.roots.fit(self);
        if is_consistent { Ok(()) } else { Err(InconsistentMap { at: last.range.start }) }
    }

    fn is_covered(&self, area: &Area, owners: usize) -> bool {
        let bytes = length(&area.range);
        let mut blocks = 0;
        let mut covered = 0_u64;
        for block in self.blocks(area) {
            blocks += 1;
            covered = covered.saturating_add(block.bytes);
            // A file with objects without bytes could have any number of them.
            let is_empty = block.bytes == 0 && block.used.is_object();
            if is_empty || block.owner.is_some_and(|owner| owner as usize >= owners) {
                return false;
            }
        }
        let mut paged = 0_u64;
        for (range, _) in self.pages(area) {
            if length(&range) == 0 {
                return false;
            }
            paged = paged.saturating_add(length(&range));
        }
        let has_pieces = blocks > 0;
        blocks == area.blocks
            && area.uses.len() as u64 == blocks
            && (!has_pieces || covered == bytes)
            && paged == bytes
    }
}

impl Area {
    /// An area without blocks and pages.
    fn new(range: Range<Address>, kind: AreaKind, name: String) -> Self {
        Self { range, kind, name, blocks: 0, sizes: 0..0, uses: 0..0, owners: 0..0, pages: 0..0 }
    }
}

fn part<'a>(column: &'a [u8], part: &Range<usize>) -> &'a [u8] {
    column.get(part.clone()).unwrap_or_default()
}
