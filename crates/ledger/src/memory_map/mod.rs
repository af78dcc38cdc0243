//! Where everything lies: each page and each piece of memory, in the order of addresses. What a
//! ledger sums up an memory_map shows; it is what pictures and comparisons are made of.

mod column;
mod drawing;

use std::ops::Range;

use capture::{Address, PAGE_SIZE, length};

pub(crate) use drawing::draw;

/// The unit of pieces' sizes, in bytes.
const UNIT: u64 = 8;

/// All memory of a process that is or was resident, or is malloc's or Ruby's: areas, ascending and disjoint, with their
/// pages and with the pieces that they consist of. Plain data of some bytes for a piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryMap {
    /// The areas, ascending by address.
    pub areas: Vec<Area>,
    /// What the areas consist of.
    pub columns: Columns,
    /// Whether the states of pages are known; otherwise all pages pass for resident.
    pub knows_pages: bool,
}

/// What areas consist of, all numbers of one kind side by side, each in as few bytes as it takes (LEB128).
/// Areas have their parts of each column one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The size of each piece, in units of 8 bytes. The pieces of an area lie side by side from its
    /// beginning on.
    pub sizes: Vec<u8>,
    /// What each piece is used for, a byte for each: [`Use`] as a number.
    pub uses: Vec<u8>,
    /// For each piece in use (a chunk, or a slot with an object) 0 where nobody is known to own it,
    /// else one more than the index of its owner among the owners of the ledger.
    pub owners: Vec<u8>,
    /// Runs of pages alike, which cover the area: four times their number, and [`PageUse`] as a number.
    pub pages: Vec<u8>,
}

/// A stretch of memory of one kind, whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Its addresses.
    pub range: Range<Address>,
    /// What it is.
    pub kind: AreaKind,
    /// The name of its file without folders, where it is of a file; empty otherwise.
    pub name: String,
    /// How many pieces it has; none where it is one thing as a whole.
    pub pieces: u64,
    /// Where its numbers are in [`Columns::sizes`].
    pub sizes: Range<usize>,
    /// Where its numbers are in [`Columns::uses`].
    pub uses: Range<usize>,
    /// Where its numbers are in [`Columns::owners`].
    pub owners: Range<usize>,
    /// Where its numbers are in [`Columns::pages`].
    pub pages: Range<usize>,
}

/// What an area is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaKind {
    /// A heap of the arena with this index in the ledger.
    Arena(u32),
    /// A chunk with a mapping of its own.
    Mmapped,
    /// Heap pages of Ruby's that lie side by side, outside malloc.
    HeapPages,
    /// The machine stack of a thread.
    ThreadStack,
    /// The machine stack of a fiber.
    FiberStack,
    /// Code that a JIT compiler made.
    Jit,
    /// Ruby's transient heap (2.6 to 3.2).
    TransientHeap,
    /// A mapping of a file, or shared memory.
    File,
    /// Other memory.
    Anonymous,
}

impl AreaKind {
    /// The kinds but for [`AreaKind::Arena`].
    const OTHERS: [Self; 8] = [
        Self::Mmapped,
        Self::HeapPages,
        Self::ThreadStack,
        Self::FiberStack,
        Self::Jit,
        Self::TransientHeap,
        Self::File,
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
            Self::Anonymous => "anonymous",
        }
    }

    /// The kind of this name; an arena's has `arena` as its index.
    #[must_use]
    pub fn by_name(name: &str, arena: Option<u32>) -> Option<Self> {
        match arena {
            Some(arena) => (name == "arena").then_some(Self::Arena(arena)),
            None => Self::OTHERS.into_iter().find(|kind| kind.name() == name),
        }
    }
}

/// What a piece of memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Use {
    /// Not malloc's, in the midst of its memory: another user of brk(2), or a gap for an alignment.
    Foreign,
    /// A structure of malloc's, or a header or the rest of one of Ruby's heap pages.
    Overhead,
    /// A chunk that the program has, or a part of one around Ruby's heap pages.
    InUse,
    /// A free chunk in a bin.
    Free,
    /// A free chunk in a fastbin.
    Fastbin,
    /// A free chunk in a tcache.
    Tcache,
    /// The top of an arena.
    Top,
    /// An old object in a slot of Ruby's, or such as the collection that is under way has marked.
    OldSlot,
    /// A slot with an object that is young, or garbage.
    YoungSlot,
    /// A free slot.
    FreeSlot,
    /// A slot of which nothing is known: it is swapped out.
    UnreadSlot,
}

impl Use {
    const ALL: [Self; 11] = [
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
    ];

    /// The use with this number.
    #[must_use]
    pub fn by_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether pieces of this use have an owner's number.
    #[must_use]
    pub fn has_owner(self) -> bool {
        matches!(self, Self::InUse) || self.is_object()
    }

    /// Whether its bytes are not free.
    #[must_use]
    pub fn is_busy(self) -> bool {
        !matches!(self, Self::Free | Self::Fastbin | Self::Tcache | Self::Top | Self::FreeSlot)
    }

    /// Whether it is a slot with an object.
    #[must_use]
    pub fn is_object(self) -> bool {
        matches!(self, Self::OldSlot | Self::YoungSlot)
    }
}

/// Where the bytes of a page are, and whether they will stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageUse {
    /// Nowhere: returned to the kernel, or never touched.
    Returned,
    /// Resident.
    Resident,
    /// In swap.
    Swapped,
    /// Resident, and malloc_trim(0) would return it.
    Unreturned,
}

impl PageUse {
    const ALL: [Self; 4] = [Self::Returned, Self::Resident, Self::Swapped, Self::Unreturned];

    /// Whether RSS counts it.
    #[must_use]
    pub fn is_resident(self) -> bool {
        matches!(self, Self::Resident | Self::Unreturned)
    }
}

/// A chunk, a slot, or what lies between those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it begins; a chunk at its header.
    pub address: Address,
    /// Its size, header included.
    pub bytes: u64,
    /// What it is used for.
    pub used: Use,
    /// Whose it is, an index into the owners of the ledger; `None` where nobody is known to own it, or
    /// nobody has it.
    pub owner: Option<u32>,
}

/// Why columns are no memory_map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the area at {at} does not fit together")]
pub struct Misfit {
    /// Where the first such area begins.
    pub at: Address,
}

impl MemoryMap {
    /// The pieces of one of its areas, ascending and side by side.
    pub fn pieces(&self, area: &Area) -> impl Iterator<Item = Block> {
        let mut sizes = part(&self.columns.sizes, &area.sizes);
        let mut owners = part(&self.columns.owners, &area.owners);
        let mut at = area.range.start;
        part(&self.columns.uses, &area.uses).iter().map_while(move |&number| {
            let used = Use::by_number(number)?;
            let bytes = column::take(&mut sizes)?.checked_mul(UNIT)?;
            let owner = if used.has_owner() { column::take(&mut owners)? } else { 0 };
            let piece =
                Block { address: at, bytes, used, owner: owner.checked_sub(1).map(|it| it as u32) };
            at = at.offset(bytes);
            Some(piece)
        })
    }

    /// The pages of one of its areas, runs that ascend and cover it.
    pub fn pages(&self, area: &Area) -> impl Iterator<Item = (Range<Address>, PageUse)> {
        let mut pages = part(&self.columns.pages, &area.pages);
        let mut at = area.range.start;
        std::iter::from_fn(move || {
            let number = column::take(&mut pages)?;
            let end = at.offset((number / 4).checked_mul(PAGE_SIZE)?);
            let run = at..end;
            at = end;
            Some((run, PageUse::ALL[(number % 4) as usize]))
        })
    }

    /// The resident bytes of all areas.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let runs = self.areas.iter().flat_map(|area| self.pages(area));
        runs.filter(|(_, used)| used.is_resident()).map(|(range, _)| length(&range)).sum()
    }

    /// Checks what came from elsewhere: that areas ascend, their pieces and pages cover them exactly, no
    /// number is without meaning, and owners are among the first `owners`.
    ///
    /// # Errors
    /// With the first area of which that is not so.
    pub fn check(&self, owners: usize) -> Result<(), Misfit> {
        let mut last = Area::new(Address(0)..Address(0), AreaKind::Anonymous, String::new());
        for area in &self.areas {
            let ascends = last.range.end <= area.range.start
                && area.range.start < area.range.end
                && area.range.start.is_aligned(PAGE_SIZE)
                && area.range.end.is_aligned(PAGE_SIZE)
                && [&area.sizes, &area.uses, &area.owners, &area.pages]
                    .into_iter()
                    .zip([&last.sizes, &last.uses, &last.owners, &last.pages])
                    .all(|(part, last)| part.start == last.end && part.start <= part.end);
            if !ascends || !self.is_covered(area, owners) {
                return Err(Misfit { at: area.range.start });
            }
            last.clone_from(area);
        }
        let Columns { sizes, uses, owners, pages } = &self.columns;
        let are_used_up = sizes.len() == last.sizes.end
            && uses.len() == last.uses.end
            && owners.len() == last.owners.end
            && pages.len() == last.pages.end;
        if are_used_up { Ok(()) } else { Err(Misfit { at: last.range.start }) }
    }

    fn is_covered(&self, area: &Area, owners: usize) -> bool {
        let bytes = length(&area.range);
        let mut pieces = 0;
        let mut covered = 0_u64;
        for piece in self.pieces(area) {
            pieces += 1;
            covered = covered.saturating_add(piece.bytes);
            if piece.owner.is_some_and(|owner| owner as usize >= owners) {
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
        let has_pieces = pieces > 0;
        pieces == area.pieces
            && area.uses.len() as u64 == pieces
            && (!has_pieces || covered == bytes)
            && paged == bytes
    }
}

impl Area {
    /// An area without pieces and pages.
    fn new(range: Range<Address>, kind: AreaKind, name: String) -> Self {
        Self { range, kind, name, pieces: 0, sizes: 0..0, uses: 0..0, owners: 0..0, pages: 0..0 }
    }
}

fn part<'a>(column: &'a [u8], part: &Range<usize>) -> &'a [u8] {
    column.get(part.clone()).unwrap_or_default()
}
