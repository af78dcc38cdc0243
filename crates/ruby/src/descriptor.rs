//! A heap page's descriptor (`struct heap_page` in gc.c, from 3.4 on gc/default/default.c): where
//! its members stand, and what one of them says.
//!
//! Nothing here depends on a version. Members are found by what they must satisfy.

use capture::{Address, Image, Memory};

use crate::territory::is_private;
use crate::word::word;

/// Members that the derivation looks for stand within so many bytes.
const SEARCHED_BYTES: usize = 256;
/// The slot size and the number of slots stand within so many 16-bit words.
const SHORTS: usize = 24;
/// Slots of pages that do not say their size (up to 3.0): `sizeof(RVALUE)`.
const ONLY_SLOT_BYTES: u32 = 40;
/// The first slot begins so near behind a page's beginning.
const FARTHEST_START: u64 = 1032;
/// A page may end in so many bytes less than a slot that is not there: up to 3.0, 40 of them are
/// left for malloc's header (gc.c, `REQUIRED_SIZE_BY_MALLOC`).
const MOST_TAIL: u64 = 64;

/// Where the members stand that tie descriptors to their pages and to one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Linkage {
    /// The size of heap pages, as a power of two.
    pub(crate) page_log2: u32,
    /// The address of the first slot; zero on a page without slots.
    pub(crate) start: usize,
    /// The address of the page (from 3.4 on).
    pub(crate) body: Option<usize>,
    /// The list node (`page_node`).
    pub(crate) node: usize,
}

/// Where the members stand that say how many slots of which size there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The size of slots, a 16-bit number; `None` where all are of one size.
    pub(crate) slot_bytes: Option<usize>,
    /// The number of slots, a 16-bit number.
    pub(crate) slot_count: usize,
}

/// What a descriptor says whose page names it in return.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(crate) base: Address,
    pub(crate) start: Address,
    /// The next list node.
    pub(crate) next: Address,
    /// The list node before.
    pub(crate) previous: Address,
    shorts: [u16; SHORTS],
}

impl Linkage {
    /// The ways in which the members can stand in the descriptor of the page at `base`.
    pub(crate) fn candidates(image: &Image<'_>, base: Address, page_log2: u32) -> Vec<Self> {
        let Some(descriptor) = image.read_address(base).ok().filter(|it| may_point(image, *it))
        else {
            return Vec::new();
        };
        let mut bytes = [0; SEARCHED_BYTES];
        let read = image.read(descriptor, &mut bytes);
        let bytes = &bytes[..read];
        let offsets = |fits: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..read / 8 * 8).step_by(8).filter(|&at| fits(at)).collect()
        };
        let starts = offsets(&|at| {
            let first = word(bytes, at).wrapping_sub(base.0);
            (8..=FARTHEST_START).contains(&first) && first.is_multiple_of(8)
        });
        let bodies = offsets(&|at| word(bytes, at) == base.0);
        let nodes = offsets(&|at| {
            let own = descriptor.offset(at as u64);
            let (next, previous) = (word(bytes, at), word(bytes, at + 8));
            next != 0
                && next.is_multiple_of(8)
                && image.read_address(Address(next).offset(8)) == Ok(own)
                && image.read_address(Address(previous)) == Ok(own)
        });
        let bodies: Vec<Option<usize>> =
            if bodies.is_empty() { vec![None] } else { bodies.into_iter().map(Some).collect() };
        let mut all = Vec::new();
        for &node in &nodes {
            for &start in &starts {
                for &body in &bodies {
                    all.push(Self { page_log2, start, body, node });
                }
            }
        }
        all
    }

    /// The first byte after a page.
    fn end_of(&self, base: Address) -> Address {
        base.offset(1 << self.page_log2)
    }

    /// Reads the descriptor at `descriptor`; `None` where its page does not name it in return.
    pub(crate) fn read(&self, image: &Image<'_>, descriptor: Address) -> Option<Sighting> {
        if descriptor.0 == 0 || !descriptor.is_aligned(8) {
            return None;
        }
        let mut bytes = [0; SEARCHED_BYTES + 16];
        let needed = self.start.max(self.body.unwrap_or(0)).max(self.node + 8) + 8;
        image.read_exact(descriptor, &mut bytes[..needed.max(SHORTS * 2)]).ok()?;
        let start = Address(word(&bytes, self.start));
        let base = match self.body {
            Some(body) => Address(word(&bytes, body)),
            None => start.align_down(1 << self.page_log2),
        };
        let has_a_page = base.0 != 0
            && base.is_aligned(1 << self.page_log2)
            && image.read_address(base) == Ok(descriptor);
        has_a_page.then(|| Sighting {
            base,
            start,
            next: Address(word(&bytes, self.node)),
            previous: Address(word(&bytes, self.node + 8)),
            shorts: std::array::from_fn(|at| {
                u16::from_le_bytes([bytes[at * 2], bytes[at * 2 + 1]])
            }),
        })
    }

    /// The page that the descriptor at `descriptor` names, where it is mapped but cannot be read:
    /// Ruby protects pages while it compacts its heap.
    pub(crate) fn unread_page(&self, image: &Image<'_>, descriptor: Address) -> Option<Address> {
        let named = image.read_address(descriptor.offset(self.body.unwrap_or(self.start) as u64));
        let base = named.ok()?.align_down(1 << self.page_log2);
        let mapping = image.state.mappings.find(base)?;
        let is_heap = mapping.is_private_anonymous() && image.read_u64(base).is_err();
        is_heap.then_some(base)
    }

    /// The ways to read a slot size and a number of slots that fit all of `pages`.
    pub(crate) fn extents<'s>(&self, pages: impl Iterator<Item = &'s Sighting>) -> Vec<Extent> {
        let offsets = || (0..(SHORTS * 2).min(self.node)).step_by(2);
        let mut extents: Vec<Extent> = offsets()
            .flat_map(|slot_count| {
                let sizes = offsets().filter(move |&size| size != slot_count).map(Some);
                sizes.chain([None]).map(move |slot_bytes| Extent { slot_bytes, slot_count })
            })
            .collect();
        for page in pages {
            extents.retain(|extent| self.slots(page, *extent).is_some());
        }
        extents
    }

    /// The size and number of a page's slots; `None` where they do not fill it.
    pub(crate) fn slots(&self, page: &Sighting, extent: Extent) -> Option<(u32, u32)> {
        let short = |at: usize| page.shorts.get(at / 2).copied().map(u32::from);
        let count = short(extent.slot_count)?;
        let bytes = extent.slot_bytes.map_or(Some(ONLY_SLOT_BYTES), short)?;
        if page.start.0 == 0 {
            // From 3.4 on pages without objects are kept without slots, for any size of them.
            let empty =
                self.body.is_some() && count == 0 && (bytes == 0 || extent.slot_bytes.is_none());
            return empty.then_some((0, 0));
        }
        let first = page.start.0.checked_sub(page.base.0)?;
        let last = page.start.offset(u64::from(bytes) * u64::from(count));
        let end = self.end_of(page.base);
        let fits = (32..=2048).contains(&bytes)
            && bytes.is_multiple_of(8)
            && (8..=FARTHEST_START).contains(&first)
            && last <= end
            && end - last < u64::from(bytes) + MOST_TAIL;
        fits.then_some((bytes, count))
    }
}

/// Whether a descriptor can be at `at`.
fn may_point(image: &Image<'_>, at: Address) -> bool {
    at.is_aligned(8) && image.state.mappings.find(at).is_some_and(is_private)
}
