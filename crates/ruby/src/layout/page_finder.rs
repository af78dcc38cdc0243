//! Finds the heap pages of a process, starting from the class Object alone.
//!
//! Object's page points to its descriptor. Descriptors are linked in a ring through a list head that
//! is a member of the object space, and near the list head is a pointer to the array of all pages.
//! No version is consulted: the checks decide, see [`Check`].

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use image::{Image, Memory, Window};
use linux::{Address, MIN_PAGE_SIZE};

use crate::address_classifier::is_private;
use crate::error::{Check, Failure};
use crate::layout::heap_layout::{HeapLayout, SpaceMembers, page_bytes};
use crate::layout::page_descriptor::{DescriptorLayout, PageDescriptor, SlotMembers};
use crate::model::heap_page::HeapPage;
use crate::word::words;

/// The bytes before the list head in which the pointer to the array of pages is searched for ...
const SEARCHED_BEFORE: u64 = 0x1000;
/// ... and those behind it.
const SEARCHED_BEHIND: u64 = 0x2000;
/// The size and the capacity of an `rb_darray`, before its elements (darray.h).
const DARRAY_HEADER: u64 = 16;
/// More slots than 32 bits can number beside their other meanings: 64 GiB of the smallest.
const MAX_SLOTS: usize = u32::MAX as usize / 2;
/// More object spaces than a process has: one, and from 4.1 on one for each Ractor.
const MAX_SPACES: usize = 4096;

/// Finds the heap pages of a process whose class Object is in the slot at `object`, if pages have
/// 2^`page_log2` bytes. There may be several layouts, and further checks have to decide between
/// them.
pub(crate) fn find(
    image: &Image<'_>,
    object: Address,
    page_log2: u32,
) -> Result<Vec<HeapLayout>, Failure> {
    let base = object.align_down(1 << page_log2);
    let mut furthest = Failure { check: Check::Descriptor, at: base, page_bytes: 1 << page_log2 };
    let mut found: Vec<HeapLayout> = Vec::new();
    for layout in DescriptorLayout::candidates(image, base, page_log2) {
        match find_with(image, base, layout) {
            Ok(layouts) => found.extend(layouts),
            Err(failure) if failure.check > furthest.check => furthest = failure,
            Err(_) => {}
        }
    }
    found.dedup_by(|a, b| a.has_slots_of(b));
    if found.is_empty() { Err(furthest) } else { Ok(found) }
}

/// Finds the heap pages, one of which is at `base`, if descriptors have this layout.
pub(crate) fn find_with(
    image: &Image<'_>,
    base: Address,
    layout: DescriptorLayout,
) -> Result<Vec<HeapLayout>, Failure> {
    let mut finder = PageFinder::new(image, layout);
    let descriptor =
        image.read_address(base).map_err(|_| finder.failure(Check::Descriptor, base))?;
    finder.all_pages(descriptor).and_then(|pages| finder.fit(&pages))
}

#[cfg(test)]
pub(crate) fn read_with(
    image: &Image<'_>,
    base: Address,
    layout: DescriptorLayout,
    members: SlotMembers,
) -> Option<HeapLayout> {
    let mut finder = PageFinder::new(image, layout);
    let pages = finder.all_pages(image.read_address(base).ok()?).ok()?;
    finder.heap_layout(&pages, members)
}

/// The readable words of the object space around its list head.
pub(crate) fn words_around(image: &Image<'_>, head: Address) -> Vec<u64> {
    let Some(from) = words_around_start(image, head) else { return Vec::new() };
    let mut bytes = vec![0; (head.offset(SEARCHED_BEHIND) - from) as usize];
    let read = image.read(from, &mut bytes);
    words(&bytes[..read]).collect()
}

/// The address of the first of [`words_around`].
pub(crate) fn words_around_start(image: &Image<'_>, head: Address) -> Option<Address> {
    let mapping = image.state.mappings.find(head)?;
    Some(mapping.range.start.max(head.before(SEARCHED_BEFORE)))
}

/// Searches for descriptors, and remembers those that it has read.
struct PageFinder<'a> {
    image: &'a Image<'a>,
    layout: DescriptorLayout,
    known: HashMap<Address, PageDescriptor>,
    spaces: Vec<SpaceMembers>,
    /// The index of the space that each descriptor belongs to.
    space_of_page: HashMap<Address, u32>,
    /// Descriptors that are known to be in a list.
    listed: HashSet<Address>,
    /// More pages than fit into the process's memory; bounds every walk.
    max_pages: usize,
}

impl<'a> PageFinder<'a> {
    fn new(image: &'a Image<'a>, layout: DescriptorLayout) -> Self {
        let mappings = image.state.mappings.iter().filter(|mapping| is_private(mapping));
        let bytes: u64 = mappings.map(|mapping| linux::length(&mapping.range)).sum();
        let max_pages = (bytes >> layout.page_log2) as usize;
        let (known, listed) = (HashMap::new(), HashSet::new());
        let (spaces, space_of_page) = (Vec::new(), HashMap::new());
        Self { image, layout, known, spaces, space_of_page, listed, max_pages }
    }

    fn failure(&self, check: Check, at: Address) -> Failure {
        Failure { check, at, page_bytes: 1 << self.layout.page_log2 }
    }

    fn read(&mut self, at: Address) -> Option<PageDescriptor> {
        if let Some(descriptor) = self.known.get(&at) {
            return Some(*descriptor);
        }
        let descriptor = self.layout.read(self.image, at)?;
        self.known.insert(at, descriptor);
        Some(descriptor)
    }

    /// Returns true if the neighbours of a descriptor in its list point back to it. The neighbours of a freed page do
    /// not, although its memory may still look like a page (up to 3.0, where it is malloc's).
    fn is_listed(&mut self, at: Address, descriptor: &PageDescriptor) -> bool {
        if self.listed.contains(&at) {
            return true;
        }
        let own = at.offset(self.layout.node as u64);
        let listed = self.image.read_address(descriptor.next.offset(8)) == Ok(own)
            && self.image.read_address(descriptor.previous) == Ok(own);
        if listed {
            self.listed.insert(at);
        }
        listed
    }

    /// The descriptors of all pages: the pages of the object space that `descriptor` belongs to, and of the other
    /// object spaces, if a scan of all memory finds pages that no array contains.
    fn all_pages(&mut self, descriptor: Address) -> Result<Vec<Address>, Failure> {
        let first = self.read(descriptor).ok_or(self.failure(Check::Descriptor, descriptor))?;
        if self.layout.slot_members([&first].into_iter()).is_empty() {
            return Err(self.failure(Check::Extent, descriptor));
        }
        let mut pages = self.space_of(descriptor)?;
        let mut bases: HashSet<Address> = pages.iter().map(|page| self.known[page].base).collect();
        let mut spaces = 1;
        for stray in self.scan(&bases) {
            let base = self.known[&stray].base;
            if bases.contains(&base) {
                continue;
            }
            let missing = self.failure(Check::MissingPage, base);
            let more = self.space_of(stray).map_err(|_| missing)?;
            let before = bases.len();
            bases.extend(more.iter().map(|page| self.known[page].base));
            spaces += 1;
            if bases.len() != before + more.len() || spaces > MAX_SPACES {
                return Err(missing);
            }
            pages.extend(more);
        }
        Ok(pages)
    }

    /// The descriptors of the pages of the object space that `descriptor` belongs to.
    fn space_of(&mut self, descriptor: Address) -> Result<Vec<Address>, Failure> {
        let list_head = self.find_head(descriptor)?;
        let (page_array, pages) = self.find_array(list_head, descriptor)?;
        let number = self.spaces.len() as u32;
        self.space_of_page.extend(pages.iter().map(|page| (*page, number)));
        self.spaces.push(SpaceMembers { list_head, page_array });
        Ok(pages)
    }

    /// Walks the ring that `descriptor` is in: the only node that belongs to no page is the list
    /// head, a member of the object space.
    fn find_head(&mut self, descriptor: Address) -> Result<Address, Failure> {
        let node_offset = self.layout.node as u64;
        let own = descriptor.offset(node_offset);
        let start = self.read(descriptor).ok_or(self.failure(Check::Ring, descriptor))?;
        let (mut before, mut node) = (own, start.next);
        let mut head = None;
        for _ in 0..=self.max_pages + 1 {
            if node == own {
                let closes = self.read(descriptor).is_some_and(|page| page.previous == before);
                let head = head.filter(|_| closes);
                return head.ok_or(self.failure(Check::Ring, descriptor));
            }
            let at = node.before(node_offset);
            let (next, previous) = match self.read(at) {
                Some(descriptor) => {
                    self.listed.insert(at);
                    (descriptor.next, descriptor.previous)
                }
                None if head.is_none() => {
                    head = Some(node);
                    let link = |at| self.image.read_address(at);
                    let links = link(node).and_then(|next| Ok((next, link(node.offset(8))?)));
                    links.map_err(|_| self.failure(Check::Ring, node))?
                }
                None => {
                    return Err(match self.layout.unread_page(self.image, at) {
                        Some(base) => self.failure(Check::Readable, base),
                        None => self.failure(Check::Ring, node),
                    });
                }
            };
            if previous != before {
                break;
            }
            (before, node) = (node, next);
        }
        Err(self.failure(Check::Ring, node))
    }

    /// The longest array of pages that a word near the list head points to and that has the page of `descriptor`, if its length is
    /// where lengths are. Returns the part of it that is in use, and the pages. From 4.1 on the array of another Ractor's object space
    /// may be as near.
    fn find_array(
        &mut self,
        head: Address,
        descriptor: Address,
    ) -> Result<(Range<Address>, Vec<Address>), Failure> {
        let words = words_around(self.image, head);
        let (mut longest, mut range, mut is_counted) = (Vec::new(), head..head, false);
        let mut consider = |at: Address, header: u64, pages: Vec<Address>, counted: bool| {
            let is_longer =
                pages.len() > longest.len() || (pages.len() == longest.len() && counted);
            if is_longer && pages.contains(&descriptor) {
                range = at..at.offset(header + 8 * pages.len() as u64);
                (longest, is_counted) = (pages, counted);
            }
        };
        for (index, &at) in words.iter().enumerate() {
            let at = Address(at);
            if at.0 == 0 || !at.is_aligned(8) {
                continue;
            }
            // Up to 3.3: an array of pointers, whose length is in the object space.
            let pages = self.read_array(at, u64::MAX);
            let counted = words.get(index + 1) == Some(&(pages.len() as u64));
            consider(at, 0, pages, counted);
            // From 3.4 on: an rb_darray, which has its size and capacity before the pointers.
            let length = self.image.read_u64(at).unwrap_or(0);
            if length <= self.max_pages as u64 {
                let pages = self.read_array(at.offset(DARRAY_HEADER), length);
                let counted = length == pages.len() as u64;
                consider(at, DARRAY_HEADER, pages, counted);
            }
        }
        if is_counted { Ok((range, longest)) } else { Err(self.failure(Check::Array, descriptor)) }
    }

    /// The pointers from `at` on, at most `length`, up to the first that does not point to a
    /// descriptor or repeats another.
    fn read_array(&mut self, at: Address, length: u64) -> Vec<Address> {
        let mut pages = Vec::new();
        let mut known = HashSet::new();
        // Most candidates are not arrays, which their first word shows.
        if !self.image.read_address(at).is_ok_and(|first| self.read(first).is_some()) {
            return pages;
        }
        let mut window = Window::new(self.image, 16 << 10);
        let max = length.min(self.max_pages as u64);
        while (pages.len() as u64) < max {
            let Ok(word) = window.word(at.offset(pages.len() as u64 * 8)) else { break };
            let page = Address(word);
            let Some(descriptor) = self.read(page) else { break };
            // Behind an array that has shrunk there may be pages that were freed. A new page may not
            // be in its list yet.
            let is_new = descriptor.next.0 == 0 && descriptor.previous.0 == 0;
            let belongs = length != u64::MAX || is_new || self.is_listed(page, &descriptor);
            if !belongs || !known.insert(page) {
                break;
            }
            pages.push(page);
        }
        pages
    }

    /// Searches memory for pages that are in a list but whose addresses are not among `bases`, and
    /// returns their descriptors.
    ///
    /// Each attempt costs a system call. Up to 3.3 there is one object space and pages are small, so
    /// only mappings that contain pages are searched; the others are mostly malloc's, and large.
    fn scan(&mut self, bases: &HashSet<Address>) -> Vec<Address> {
        // Without page states, reading could map pages in.
        let Some(states) = &self.image.state.pages else { return Vec::new() };
        let mappings = &self.image.state.mappings;
        let with_pages: HashSet<Address> = bases
            .iter()
            .filter_map(|&page| mappings.find(page).map(|mapping| mapping.range.start))
            .collect();
        let mut strays = Vec::new();
        let size = 1 << self.layout.page_log2;
        for mapping in mappings.iter().filter(|mapping| is_private(mapping)) {
            if self.layout.body.is_none() && !with_pages.contains(&mapping.range.start) {
                continue;
            }
            for run in states.runs_in(&mapping.range).filter(|run| run.state.is_readable()) {
                let part: Range<Address> = linux::intersection(&run.range, &mapping.range);
                let mut base = part.start.align_up(size);
                while base < part.end && part.end - base >= MIN_PAGE_SIZE {
                    if !bases.contains(&base)
                        && let Some(descriptor) = self.stray_at(base)
                    {
                        strays.push(descriptor);
                    }
                    base = base.offset(size);
                }
            }
        }
        strays
    }

    /// The descriptor of the page at `base`, if there is one and it is in a list.
    fn stray_at(&mut self, base: Address) -> Option<Address> {
        let at = Address(self.image.peek_u64(base).ok()?);
        let mapping = self.image.state.mappings.find(at)?;
        if !is_private(mapping) {
            return None;
        }
        let descriptor = self.layout.read(self.image, at).filter(|page| page.base == base)?;
        if !self.is_listed(at, &descriptor) {
            return None;
        }
        self.known.insert(at, descriptor);
        Some(at)
    }

    /// The layouts of the slots that fit the pages with these descriptors.
    fn fit(&self, descriptors: &[Address]) -> Result<Vec<HeapLayout>, Failure> {
        let members = self.layout.slot_members(descriptors.iter().map(|at| &self.known[at]));
        let mut layouts: Vec<HeapLayout> =
            members.into_iter().filter_map(|it| self.heap_layout(descriptors, it)).collect();
        layouts.dedup_by(|a, b| a.has_slots_of(b));
        let at = descriptors.first().copied().unwrap_or_default();
        if layouts.is_empty() { Err(self.failure(Check::Extent, at)) } else { Ok(layouts) }
    }

    /// The pages with these descriptors, if `members` fit all of them.
    fn heap_layout(&self, descriptors: &[Address], members: SlotMembers) -> Option<HeapLayout> {
        let bytes = page_bytes(self.layout.page_log2, members);
        let mut descriptors = descriptors.to_vec();
        descriptors.sort_unstable_by_key(|at| self.known[at].base);
        let mut slots = 0;
        let mut pages = Vec::with_capacity(descriptors.len());
        for at in &descriptors {
            let descriptor = &self.known[at];
            let (slot_bytes, slot_count) = self.layout.slots(descriptor, members)?;
            let base = descriptor.base;
            let own = slots..slots + slot_count as usize;
            slots = own.end;
            pages.push(HeapPage {
                range: base..base.offset(bytes),
                first_slot: if slot_count == 0 { base } else { descriptor.start },
                slot_bytes,
                slots: own,
                space: self.space_of_page.get(at).copied().unwrap_or_default(),
            });
        }
        // A heap has slots, not more than an index can number, and one descriptor per page.
        let apart = pages.windows(2).all(|two| two[0].range.start < two[1].range.start);
        (apart && (1..MAX_SLOTS).contains(&slots)).then_some(HeapLayout {
            descriptor: self.layout,
            members,
            pages,
            descriptors,
            spaces: self.spaces.clone(),
        })
    }
}
