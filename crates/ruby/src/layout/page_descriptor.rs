//! The descriptor of a heap page (`struct heap_page` in gc.c, from 3.4 on gc/default/default.c): the
//! offsets of its members, and their values.
//!
//! Nothing here depends on a version. Members are found by the conditions that they must satisfy.

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::is_private;
use crate::word::word;

/// The first bytes of a descriptor, among which its members are searched for.
const SEARCHED_BYTES: usize = 256;
/// The first 16-bit words, among which the slot size and the number of slots are searched for.
const SHORTS: usize = 24;
/// The slot size of pages that do not state it (up to 3.0): `sizeof(RVALUE)`.
const ONLY_SLOT_BYTES: u32 = 40;
/// The farthest that the first slot is from the beginning of its page.
pub(crate) const MAX_START: u64 = 1032;
/// A page ends at most this much less than a slot behind its last one: up to 3.0, 40 bytes are left
/// for malloc's header (gc.c, `REQUIRED_SIZE_BY_MALLOC`).
const MAX_TAIL: u64 = 64;

/// The offsets of the members that tie descriptors to their pages and to one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorLayout {
    /// The size of heap pages, as a power of two.
    pub(crate) page_log2: u32,
    /// `start`: the address of the first slot; zero on a page without slots.
    pub(crate) start: usize,
    /// `body`: the address of the page (from 3.4 on).
    pub(crate) body: Option<usize>,
    /// `page_node`: the list node.
    pub(crate) node: usize,
}

/// The offsets of the members that describe a page's slots, 16-bit numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotMembers {
    /// `slot_size`; `None` if all slots are of one size (up to 3.0).
    pub(crate) slot_bytes: Option<usize>,
    /// `total_slots`.
    pub(crate) slot_count: usize,
}

/// The descriptor of a page that points back to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageDescriptor {
    pub(crate) base: Address,
    pub(crate) start: Address,
    /// The next list node.
    pub(crate) next: Address,
    /// The previous list node.
    pub(crate) previous: Address,
    shorts: [u16; SHORTS],
}

impl DescriptorLayout {
    /// All possible layouts of the descriptor of the page at `base`.
    pub(crate) fn candidates(image: &Image<'_>, base: Address, page_log2: u32) -> Vec<Self> {
        let descriptor = image.read_address(base).ok().filter(|it| may_be_descriptor(image, *it));
        let Some(descriptor) = descriptor else { return Vec::new() };
        let mut bytes = [0; SEARCHED_BYTES];
        let read = image.read(descriptor, &mut bytes);
        let bytes = &bytes[..read];
        let offsets = |fits: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..read / 8 * 8).step_by(8).filter(|&at| fits(at)).collect()
        };
        let starts = offsets(&|at| {
            let first = word(bytes, at).wrapping_sub(base.0);
            (8..=MAX_START).contains(&first) && first.is_multiple_of(8)
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

    /// Reads the descriptor at `at`; `None` if its page does not point back to it.
    pub(crate) fn read(&self, image: &Image<'_>, at: Address) -> Option<PageDescriptor> {
        if at.0 == 0 || !at.is_aligned(8) {
            return None;
        }
        let mut bytes = [0; SEARCHED_BYTES + 16];
        let needed = self.start.max(self.body.unwrap_or(0)).max(self.node + 8) + 8;
        image.read_exact(at, &mut bytes[..needed.max(SHORTS * 2)]).ok()?;
        let start = Address(word(&bytes, self.start));
        let base = match self.body {
            Some(body) => Address(word(&bytes, body)),
            None => start.align_down(1 << self.page_log2),
        };
        let has_a_page = base.0 != 0
            && base.is_aligned(1 << self.page_log2)
            && image.read_address(base) == Ok(at);
        has_a_page.then(|| PageDescriptor {
            base,
            start,
            next: Address(word(&bytes, self.node)),
            previous: Address(word(&bytes, self.node + 8)),
            shorts: std::array::from_fn(|at| {
                u16::from_le_bytes([bytes[at * 2], bytes[at * 2 + 1]])
            }),
        })
    }

    /// The page of the descriptor at `at` if it is mapped but unreadable: Ruby protects pages while
    /// it compacts its heap.
    pub(crate) fn unread_page(&self, image: &Image<'_>, at: Address) -> Option<Address> {
        let page = image.read_address(at.offset(self.body.unwrap_or(self.start) as u64));
        let base = page.ok()?.align_down(1 << self.page_log2);
        let mapping = image.state.mappings.find(base)?;
        let is_heap = mapping.is_private_anonymous() && image.read_u64(base).is_err();
        is_heap.then_some(base)
    }

    /// The offsets of slot size and number of slots that fit all of `pages`.
    pub(crate) fn slot_members<'s>(
        &self,
        pages: impl Iterator<Item = &'s PageDescriptor>,
    ) -> Vec<SlotMembers> {
        let offsets = || (0..(SHORTS * 2).min(self.node)).step_by(2);
        let mut all: Vec<SlotMembers> = offsets()
            .flat_map(|slot_count| {
                let sizes = offsets().filter(move |&size| size != slot_count).map(Some);
                sizes.chain([None]).map(move |slot_bytes| SlotMembers { slot_bytes, slot_count })
            })
            .collect();
        for page in pages {
            all.retain(|members| self.slots(page, *members).is_some());
        }
        all
    }

    /// The size and number of a page's slots; `None` if they do not fill it.
    pub(crate) fn slots(&self, page: &PageDescriptor, members: SlotMembers) -> Option<(u32, u32)> {
        let short = |at: usize| page.shorts.get(at / 2).copied().map(u32::from);
        let count = short(members.slot_count)?;
        let bytes = members.slot_bytes.map_or(Some(ONLY_SLOT_BYTES), short)?;
        if page.start.0 == 0 {
            // From 3.4 on Ruby keeps empty pages without slots, for slots of any size.
            let is_empty =
                self.body.is_some() && count == 0 && (bytes == 0 || members.slot_bytes.is_none());
            return is_empty.then_some((0, 0));
        }
        let first = page.start.0.checked_sub(page.base.0)?;
        let last = page.start.offset(u64::from(bytes) * u64::from(count));
        let end = page.base.offset(1 << self.page_log2);
        let fits = (32..=2048).contains(&bytes)
            && bytes.is_multiple_of(8)
            && (8..=MAX_START).contains(&first)
            && last <= end
            && end - last < u64::from(bytes) + MAX_TAIL;
        fits.then_some((bytes, count))
    }
}

fn may_be_descriptor(image: &Image<'_>, at: Address) -> bool {
    at.is_aligned(8) && image.state.mappings.find(at).is_some_and(is_private)
}
