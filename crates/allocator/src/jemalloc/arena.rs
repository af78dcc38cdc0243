//! Arenas: their counters, which judge a walk, and the blocks in which jemalloc keeps its own structures.

use std::ops::Range;

use image::Unreadable;
use linux::{Address, arch};

use crate::ExtentState;
use crate::jemalloc::layout::{ArenaLayout, MAX_ARENAS};
use crate::module_data::ModuleData;
use crate::structures::Structures;

/// More blocks than any base has: each is at least 2 MiB large, and they grow.
const MAX_BLOCKS: usize = 1 << 16;

/// An arena, as its structure describes it.
#[derive(Debug, Clone)]
pub(crate) struct ArenaRecord {
    pub(crate) number: u64,
    pub(crate) at: Address,
    /// The number of threads that allocate from it.
    pub(crate) threads: u32,
    pub(crate) pages: PageCounts,
    pub(crate) dirty_decay_ms: i64,
    pub(crate) muzzy_decay_ms: i64,
    pub(crate) used_hpa: bool,
    /// The address of its base, which lies in the base's own first block (`base_new` in base.c).
    pub(crate) base: Address,
    /// The blocks of its base.
    pub(crate) blocks: Vec<Range<Address>>,
    /// The bytes of these blocks by its own count.
    pub(crate) mapped: u64,
}

/// Pages by the state of their extents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    pub(crate) active: u64,
    pub(crate) dirty: u64,
    pub(crate) muzzy: u64,
    pub(crate) retained: u64,
}

impl PageCounts {
    /// Adds the pages of an extent in this state.
    pub(crate) fn add(&mut self, state: ExtentState, pages: u64) {
        let count = match state {
            ExtentState::Active => &mut self.active,
            ExtentState::Dirty => &mut self.dirty,
            ExtentState::Muzzy => &mut self.muzzy,
            ExtentState::Retained => &mut self.retained,
            ExtentState::Metadata => return,
        };
        *count = count.saturating_add(pages);
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Finds what may be the array of arenas: a word that leads to arena 0, followed by words that lead to arena 1, 2, ... or
/// nowhere. Returns the numbers and addresses. If there is one arena, other words may look the same.
pub(crate) fn find(
    structures: &mut Structures<'_>,
    data: &ModuleData,
    layout: &ArenaLayout,
) -> Vec<Vec<(u64, Address)>> {
    let mut all = Vec::new();
    for (_, words) in data.positions(1) {
        if number_of(structures, layout, words[0]) != Some(0) {
            continue;
        }
        let mut found = vec![(0, Address(words[0]))];
        for (number, &word) in (1..).zip(words[1..].iter().take(MAX_ARENAS - 1)) {
            match number_of(structures, layout, word) {
                Some(other) if other == number => found.push((number, Address(word))),
                _ if word == 0 => {}
                _ => break,
            }
        }
        all.push(found);
    }
    all
}

/// The number of the arena that `word` leads to; `None` if it leads to none.
fn number_of(structures: &mut Structures<'_>, layout: &ArenaLayout, word: u64) -> Option<u64> {
    let at = Address(word);
    if word == 0 || !structures.is_structure(at, 64) {
        return None;
    }
    let base = structures.pointer(at.offset(layout.base)).ok()?;
    if !structures.is_structure(base, 16) {
        return None;
    }
    let number = match layout.number {
        Some(offset) => structures.half(at.offset(offset)),
        // `base_s` begins with it.
        None => structures.half(base),
    };
    number.ok().map(u64::from)
}

impl ArenaRecord {
    /// Reads the arena at `at`.
    pub(crate) fn read(
        structures: &mut Structures<'_>,
        layout: &ArenaLayout,
        number: u64,
        at: Address,
    ) -> Result<Self, Unreadable> {
        let base = structures.pointer(at.offset(layout.base))?;
        let first = structures.pointer(base.offset(layout.blocks))?;
        let mut count = |offset: u64| -> Result<u64, Unreadable> {
            let all = structures.word(at.offset(offset))?;
            let guarded = match layout.guarded {
                Some(guarded) => structures.word(at.offset(offset + guarded))?,
                None => 0,
            };
            Ok(all.wrapping_add(guarded))
        };
        let [dirty, muzzy, retained] =
            [count(layout.dirty)?, count(layout.muzzy)?, count(layout.retained)?];
        let active = structures.word(at.offset(layout.active))?;
        Ok(Self {
            number,
            at,
            threads: structures.half(at.offset(layout.threads))?,
            pages: PageCounts { active, dirty, muzzy, retained },
            dirty_decay_ms: structures.word(at.offset(layout.dirty_decay))?.cast_signed(),
            muzzy_decay_ms: structures.word(at.offset(layout.muzzy_decay))?.cast_signed(),
            used_hpa: match layout.used_hpa {
                Some(offset) => structures.bytes::<1>(at.offset(offset))? != [0],
                None => false,
            },
            base,
            blocks: read_blocks(structures, first)?,
            mapped: structures.word(base.offset(layout.mapped))?,
        })
    }
}

/// The blocks of a base, ascending.
fn read_blocks(
    structures: &mut Structures<'_>,
    first: Address,
) -> Result<Vec<Range<Address>>, Unreadable> {
    let mut blocks = Vec::new();
    let mut at = first;
    while at.0 != 0 && blocks.len() < MAX_BLOCKS {
        let bytes = structures.word(at)?;
        let end = at.0.checked_add(bytes).filter(|end| *end <= arch::USER_SPACE_END);
        let Some(end) = end.filter(|_| bytes > 0) else {
            return Err(Unreadable { at, bytes: 8 });
        };
        blocks.push(at..Address(end));
        at = structures.pointer(at.offset(8))?;
    }
    blocks.sort_by_key(|block| block.start);
    // The list of a damaged base may run in circles.
    blocks.dedup_by(|next, last| next.start < last.end);
    Ok(blocks)
}
