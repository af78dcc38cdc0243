//! The heap pages of a process, derived from the class Object alone.
//!
//! Its page names its descriptor; descriptors are linked in a ring through a list head that is a
//! member of the object space; near it hangs the array of all pages. No version is asked: the
//! checks decide, see [`Check`].

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use capture::{Address, Image, Memory, PAGE_SIZE, Window};

use crate::descriptor::{Extent, Linkage, Sighting};
use crate::error::{Check, Failure};
use crate::page::Page;
use crate::territory::is_private;

/// The object space is searched for the array of its pages so far before the list head ...
const SEARCHED_BEFORE: u64 = 0x1000;
/// ... and so far behind it, in bytes.
const SEARCHED_BEHIND: u64 = 0x2000;
/// More slots than 32 bits can number beside what else they stand for: 80 GB of the smallest.
const MOST_SLOTS: u32 = u32::MAX / 2;
/// More object spaces than a process has: one, and from 4.1 on one for each Ractor.
const MOST_SPACES: usize = 4096;

/// The heap pages of a process, and how they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Derived {
    pub(crate) linkage: Linkage,
    pub(crate) extent: Extent,
    /// Ascending by address.
    pub(crate) pages: Vec<Page>,
}

impl Derived {
    /// The bytes that a page takes, its tail included.
    pub(crate) fn page_span(&self) -> u64 {
        // Up to 3.0, whose pages do not say their slots' size, pages are malloc'ed 5 words smaller
        // than their alignment (gc.c, REQUIRED_SIZE_BY_MALLOC).
        let left_to_malloc = if self.extent.slot_bytes.is_none() { 40 } else { 0 };
        (1 << self.linkage.page_log2) - left_to_malloc
    }

    /// Where the slot with this index is.
    pub(crate) fn slot_address(&self, slot: u32) -> Option<Address> {
        let after = self.pages.partition_point(|page| page.slots_before <= slot);
        let page = self.pages.get(after.checked_sub(1)?)?;
        let within = slot - page.slots_before;
        (within < page.slot_count)
            .then(|| page.first_slot.offset(u64::from(within) * u64::from(page.slot_bytes)))
    }

    /// The slots of all pages.
    pub(crate) fn slot_count(&self) -> u32 {
        self.pages.last().map_or(0, |page| page.slots_before + page.slot_count)
    }
}

/// Derives the heap pages of the process in which the class Object is in the slot `object`, with
/// pages of 2^`page_log2` bytes. There may be several ways to read them, which further checks have
/// to tell apart.
pub(crate) fn derive(
    image: &Image<'_>,
    object: Address,
    page_log2: u32,
) -> Result<Vec<Derived>, Failure> {
    let base = object.align_down(1 << page_log2);
    let mut furthest = Failure { check: Check::Descriptor, at: base, page_bytes: 1 << page_log2 };
    let mut found: Vec<Derived> = Vec::new();
    for linkage in Linkage::candidates(image, base, page_log2) {
        match derive_with(image, base, linkage) {
            Ok(facts) => found.extend(facts),
            Err(failure) if failure.check > furthest.check => furthest = failure,
            Err(_) => {}
        }
    }
    found.dedup_by(|a, b| a.pages == b.pages);
    if found.is_empty() { Err(furthest) } else { Ok(found) }
}

/// Derives the heap pages among which there is one at `base`, and whose descriptors have their
/// members where `linkage` says.
pub(crate) fn derive_with(
    image: &Image<'_>,
    base: Address,
    linkage: Linkage,
) -> Result<Vec<Derived>, Failure> {
    let mut survey = Survey::new(image, linkage);
    let descriptor =
        image.read_address(base).map_err(|_| survey.failure(Check::Descriptor, base))?;
    survey.all_pages(descriptor).and_then(|pages| survey.fit(&pages))
}

#[cfg(test)]
pub(crate) fn read_with(
    image: &Image<'_>,
    base: Address,
    linkage: Linkage,
    extent: Extent,
) -> Option<Derived> {
    let mut survey = Survey::new(image, linkage);
    let pages = survey.all_pages(image.read_address(base).ok()?).ok()?;
    survey.derived(&pages, extent)
}

/// Looks through descriptors, and remembers those that it has seen.
struct Survey<'a> {
    image: &'a Image<'a>,
    linkage: Linkage,
    seen: HashMap<Address, Sighting>,
    /// Those that are known to be in a list.
    listed: HashSet<Address>,
    /// More pages than fit into the process's memory: the end of every walk.
    most_pages: usize,
}

impl<'a> Survey<'a> {
    fn new(image: &'a Image<'a>, linkage: Linkage) -> Self {
        let mappings = image.state.mappings.iter().filter(|mapping| is_private(mapping));
        let bytes: u64 = mappings.map(|mapping| capture::length(&mapping.range)).sum();
        let most_pages = (bytes >> linkage.page_log2) as usize;
        Self { image, linkage, seen: HashMap::new(), listed: HashSet::new(), most_pages }
    }

    fn failure(&self, check: Check, at: Address) -> Failure {
        Failure { check, at, page_bytes: 1 << self.linkage.page_log2 }
    }

    fn look(&mut self, descriptor: Address) -> Option<Sighting> {
        if let Some(sighting) = self.seen.get(&descriptor) {
            return Some(*sighting);
        }
        let sighting = self.linkage.read(self.image, descriptor)?;
        self.seen.insert(descriptor, sighting);
        Some(sighting)
    }

    /// Whether the neighbours of a page in its list know it. Those of a freed page do not, whose
    /// memory may still look like that of a page (up to 3.0, where it is malloc's).
    fn is_listed(&mut self, descriptor: Address, page: &Sighting) -> bool {
        if self.listed.contains(&descriptor) {
            return true;
        }
        let own = descriptor.offset(self.linkage.node as u64);
        let listed = self.image.read_address(page.next.offset(8)) == Ok(own)
            && self.image.read_address(page.previous) == Ok(own);
        if listed {
            self.listed.insert(descriptor);
        }
        listed
    }

    /// The descriptors of all pages: those of the object space that `descriptor` belongs to, and
    /// those of the others, where a scan of all memory finds pages that no array names.
    fn all_pages(&mut self, descriptor: Address) -> Result<Vec<Address>, Failure> {
        let first = self.look(descriptor).ok_or(self.failure(Check::Descriptor, descriptor))?;
        if self.linkage.extents([&first].into_iter()).is_empty() {
            return Err(self.failure(Check::Extent, descriptor));
        }
        let mut pages = self.space_of(descriptor)?;
        let mut known: HashSet<Address> = pages.iter().map(|page| self.seen[page].base).collect();
        let mut spaces = 1;
        for stray in self.scan(&known) {
            let base = self.seen[&stray].base;
            if known.contains(&base) {
                continue;
            }
            let missing = self.failure(Check::MissingPage, base);
            let more = self.space_of(stray).map_err(|_| missing)?;
            let before = known.len();
            known.extend(more.iter().map(|page| self.seen[page].base));
            spaces += 1;
            if known.len() != before + more.len() || spaces > MOST_SPACES {
                return Err(missing);
            }
            pages.extend(more);
        }
        Ok(pages)
    }

    /// The descriptors of the pages of the object space that `descriptor` belongs to.
    fn space_of(&mut self, descriptor: Address) -> Result<Vec<Address>, Failure> {
        let head = self.find_head(descriptor)?;
        let pages = self.find_array(head)?;
        if pages.contains(&descriptor) {
            Ok(pages)
        } else {
            Err(self.failure(Check::Array, descriptor))
        }
    }

    /// Walks the ring of pages that `descriptor` is in: the one node that is no page's is the
    /// list's head, a member of the object space.
    fn find_head(&mut self, descriptor: Address) -> Result<Address, Failure> {
        let node_offset = self.linkage.node as u64;
        let own = descriptor.offset(node_offset);
        let start = self.look(descriptor).ok_or(self.failure(Check::Ring, descriptor))?;
        let (mut before, mut node) = (own, start.next);
        let mut head = None;
        for _ in 0..=self.most_pages + 1 {
            if node == own {
                let closes = self.look(descriptor).is_some_and(|page| page.previous == before);
                let head = head.filter(|_| closes);
                return head.ok_or(self.failure(Check::Ring, descriptor));
            }
            let page = node.before(node_offset);
            let (next, previous) = match self.look(page) {
                Some(sighting) => {
                    self.listed.insert(page);
                    (sighting.next, sighting.previous)
                }
                None if head.is_none() => {
                    head = Some(node);
                    let link = |at| self.image.read_address(at);
                    let links = link(node).and_then(|next| Ok((next, link(node.offset(8))?)));
                    links.map_err(|_| self.failure(Check::Ring, node))?
                }
                None => {
                    let unread = self.linkage.unread_page(self.image, page);
                    return Err(match unread {
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

    /// The longest array of pages that a word near the list head names, if its length stands where
    /// lengths stand.
    fn find_array(&mut self, head: Address) -> Result<Vec<Address>, Failure> {
        let words = self.words_around(head);
        let (mut longest, mut is_counted) = (Vec::new(), false);
        let mut consider = |pages: Vec<Address>, counted: bool| {
            if pages.len() > longest.len() || (pages.len() == longest.len() && counted) {
                (longest, is_counted) = (pages, counted);
            }
        };
        for (index, &at) in words.iter().enumerate() {
            let at = Address(at);
            if at.0 == 0 || !at.is_aligned(8) {
                continue;
            }
            // Up to 3.3 an array of pointers, whose length the object space holds.
            let pages = self.read_array(at, u64::MAX);
            let counted = words.get(index + 1) == Some(&(pages.len() as u64));
            consider(pages, counted);
            // From 3.4 on an rb_darray: its size and its capacity, then the pointers.
            let length = self.image.read_u64(at).unwrap_or(0);
            if length <= self.most_pages as u64 {
                let pages = self.read_array(at.offset(16), length);
                let counted = length == pages.len() as u64;
                consider(pages, counted);
            }
        }
        if is_counted { Ok(longest) } else { Err(self.failure(Check::Array, head)) }
    }

    /// The words of the object space, as far as it can be read around its list head.
    fn words_around(&self, head: Address) -> Vec<u64> {
        let from = match self.image.state.mappings.find(head) {
            Some(mapping) => mapping.range.start.max(head.before(SEARCHED_BEFORE)),
            None => return Vec::new(),
        };
        let mut bytes = vec![0; (head.offset(SEARCHED_BEHIND) - from) as usize];
        let read = self.image.read(from, &mut bytes);
        let words = bytes[..read].chunks_exact(8);
        words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect()
    }

    /// The pointers from `at` on, at most `length`, as far as they name descriptors, each another.
    fn read_array(&mut self, at: Address, length: u64) -> Vec<Address> {
        let mut pages = Vec::new();
        let mut known = HashSet::new();
        // Most of what is looked at is no array: a first word tells.
        if !self.image.read_address(at).is_ok_and(|first| self.look(first).is_some()) {
            return pages;
        }
        let mut window = Window::new(self.image, 16 << 10);
        let most = length.min(self.most_pages as u64);
        while (pages.len() as u64) < most {
            let Ok(word) = window.word(at.offset(pages.len() as u64 * 8)) else { break };
            let page = Address(word);
            let Some(sighting) = self.look(page) else { break };
            // Behind an array that has shrunk there may be pages that were freed; a new one may not
            // be in its list yet.
            let is_new = sighting.next.0 == 0 && sighting.previous.0 == 0;
            let belongs = length != u64::MAX || is_new || self.is_listed(page, &sighting);
            if !belongs || !known.insert(page) {
                break;
            }
            pages.push(page);
        }
        pages
    }

    /// Looks at addresses where a page could begin, and returns the descriptors of the pages that
    /// are in a list but not among those `known`.
    ///
    /// Each look costs a system call. So up to 3.3, which has one object space and small pages, only
    /// mappings that have pages are searched; others are mostly malloc's, and large.
    fn scan(&mut self, known: &HashSet<Address>) -> Vec<Address> {
        // Without page states it is not known what may be read without mapping it in.
        let Some(states) = &self.image.state.pages else { return Vec::new() };
        let mappings = &self.image.state.mappings;
        let with_pages: HashSet<Address> = known
            .iter()
            .filter_map(|&page| mappings.find(page).map(|mapping| mapping.range.start))
            .collect();
        let mut strays = Vec::new();
        let size = 1 << self.linkage.page_log2;
        for mapping in mappings.iter().filter(|mapping| is_private(mapping)) {
            if self.linkage.body.is_none() && !with_pages.contains(&mapping.range.start) {
                continue;
            }
            for run in states.runs_in(&mapping.range).filter(|run| run.state.is_resident()) {
                let part: Range<Address> = capture::intersection(&run.range, &mapping.range);
                let mut base = part.start.align_up(size);
                while base < part.end && part.end - base >= PAGE_SIZE {
                    if !known.contains(&base)
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
        let descriptor = self.image.read_address(base).ok()?;
        let mapping = self.image.state.mappings.find(descriptor)?;
        if !is_private(mapping) {
            return None;
        }
        let page = self.linkage.read(self.image, descriptor).filter(|page| page.base == base)?;
        if !self.is_listed(descriptor, &page) {
            return None;
        }
        self.seen.insert(descriptor, page);
        Some(descriptor)
    }

    /// The ways to read the slots of the pages with these descriptors.
    fn fit(&self, descriptors: &[Address]) -> Result<Vec<Derived>, Failure> {
        let sightings = descriptors.iter().map(|descriptor| &self.seen[descriptor]);
        let extents = self.linkage.extents(sightings);
        let mut facts: Vec<Derived> =
            extents.into_iter().filter_map(|extent| self.derived(descriptors, extent)).collect();
        facts.dedup_by(|a, b| a.pages == b.pages);
        let at = descriptors.first().copied().unwrap_or_default();
        if facts.is_empty() { Err(self.failure(Check::Extent, at)) } else { Ok(facts) }
    }

    /// The pages with these descriptors, if their slots can be read so.
    fn derived(&self, descriptors: &[Address], extent: Extent) -> Option<Derived> {
        let page = |descriptor: &Address| {
            let sighting = &self.seen[descriptor];
            let (slot_bytes, slot_count) = self.linkage.slots(sighting, extent)?;
            Some(Page {
                descriptor: *descriptor,
                base: sighting.base,
                first_slot: sighting.start,
                slot_bytes,
                slot_count,
                slots_before: 0,
            })
        };
        let mut pages = descriptors.iter().map(page).collect::<Option<Vec<Page>>>()?;
        pages.sort_unstable_by_key(|page| page.base);
        let mut slots = 0_u32;
        for page in &mut pages {
            page.slots_before = slots;
            slots = slots.saturating_add(page.slot_count);
        }
        // Two descriptors of one page, no slots, or more than an index holds, are no heap.
        let apart = pages.windows(2).all(|two| two[0].base < two[1].base);
        (apart && (1..MOST_SLOTS).contains(&slots)).then_some(Derived {
            linkage: self.linkage,
            extent,
            pages,
        })
    }
}
