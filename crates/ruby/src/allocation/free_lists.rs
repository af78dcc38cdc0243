use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use image::{Image, Memory};
use linux::Address;

use crate::allocation::cursors::CursorSearch;
use crate::backtrace::structure;
use crate::heap_pages::HeapPages;
use crate::model::data_type::DataType;
use crate::model::heap_page::HeapPage;
use crate::object_space::ObjectSpace;
use crate::word::words;

/// The first bytes of a thread (`rb_thread_t`), among which the pointer to its Ractor is.
const THREAD_BYTES: usize = 1024;
/// The bytes of a Ractor (`rb_ractor_t`), and of a structure behind a pointer in it, among which the lists are.
const RACTOR_BYTES: usize = 2 << 10;
const CACHE_BYTES: usize = 512;
/// The bytes around the list of pages in an object space among which the list is up to 2.7, which has no Ractors.
const AROUND_PAGES: u64 = 128;
/// The distances of the lists of two sizes of slots that are tried.
const STRIDES: [u64; 3] = [16, 24, 32];
/// `SIZE_POOL_COUNT` (gc.c) is 5 in Ruby 3.3; a list of more pools than this is rejected.
const MAX_POOLS: usize = 12;
/// The Ractors that are looked at.
const MAX_RACTORS: usize = 16;
/// After so many looks at which only one size of slots had a list, the program hardly takes others.
const ENOUGH_VOTES: u64 = 100;
/// Further places are not looked at: they are no lists.
const MAX_PLACES: usize = 1 << 12;

/// The lists of free slots from which the running thread allocates, one for each size of slots.
///
/// A Ractor has its own (`rb_ractor_newobj_cache_t`, from 3.4 on behind a pointer); up to 2.7 the object space has one. Each is a
/// pointer to the first free slot, or zero, and one to the descriptor of its page. From 4.1 on they are those of the main Ractor's object
/// space, in which no other one allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeLists {
    pub(super) place: Place,
    /// Ascending by their offsets.
    lists: Vec<List>,
    pub(super) order: Order,
    pub(super) page_bytes: u64,
}

/// A list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List {
    /// The offset of the pointer to its first slot from the first list.
    pub(super) at: u64,
    pub(super) slot_bytes: u64,
}

/// The order in which the slots of a page are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// From the last one: a page's list is built in the order of its slots when it is swept (`gc_sweep_page` in gc.c).
    Descending,
    /// From the first one (from 4.1 on): what is free is a list of regions.
    Ascending,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Offsets of pointers from the execution context on, and the offset of the first list.
    OfRactor { path: Vec<u64>, at: u64 },
    /// The address of the only list.
    Fixed(Address),
}

/// Finds [`FreeLists`] by what the words of a process are, at several instants: between two pages there is no list.
#[derive(Clone)]
pub struct FreeListSearch {
    pages: Pages,
    pools: Vec<u64>,
    /// The structures of Ractors, and the ways to them from an execution context.
    ractors: Vec<Address>,
    paths: Vec<Vec<u64>>,
    /// The list of pages of an object space without Ractors.
    page_list: Option<Address>,
    /// Places, the distance of two lists, and how often a list was there.
    votes: BTreeMap<(Place, u64), u64>,
    cursors: Option<CursorSearch>,
}

/// The pages that the capture has, by their addresses.
#[derive(Clone)]
pub(super) struct Pages {
    pub(super) pages: HashMap<u64, Page>,
    pub(super) bytes: u64,
}

/// A page that the capture has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub(super) descriptor: Address,
    pub(super) first_slot: Address,
    pub(super) slot_bytes: u64,
    pub(super) slots: u64,
}

impl Pages {
    /// The page around an address.
    pub(super) fn of(&self, at: u64) -> Option<&Page> {
        self.pages.get(&(at & !(self.bytes - 1)))
    }
}

impl Page {
    /// Returns true if a slot begins at this address.
    pub(super) fn has(&self, at: u64) -> bool {
        let offset = at.checked_sub(self.first_slot.0);
        offset.is_some_and(|it| it % self.slot_bytes == 0 && it / self.slot_bytes < self.slots)
    }
}

impl std::fmt::Debug for FreeListSearch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FreeListSearch")
            .field("pools", &self.pools)
            .field("ractors", &self.ractors)
            .field("votes", &self.votes)
            .field("cursors", &self.cursors)
            .finish_non_exhaustive()
    }
}

impl FreeListSearch {
    /// Begins with a capture; `None` if it has no layout of threads, or its collector was not found.
    #[must_use]
    pub fn begin(image: &Image<'_>, space: &ObjectSpace) -> Option<Self> {
        let thread_at = space.stack_layout?.thread_at as u64;
        let page_list = space.collector_address?;
        let with_slots = || space.pages.iter().filter(|page| !page.slots.is_empty());
        let page_bytes = HeapPages::derive(image, space)?.page_bytes();
        let entry = |page: &HeapPage| {
            let it = Page {
                descriptor: page.descriptor(image)?,
                first_slot: page.first_slot,
                slot_bytes: page.slot_bytes.max(8).into(),
                slots: page.slots.len() as u64,
            };
            Some((page.range.start.align_down(page_bytes).0, it))
        };
        let mut pools: Vec<u64> = with_slots().map(|page| page.slot_bytes.into()).collect();
        pools.sort_unstable();
        pools.dedup();
        let is_ractor = |slot| space.data_type_of(slot).is_some_and(DataType::is_ractor);
        let objects = space.data_objects.iter().map(|it| it.0).filter(|&slot| is_ractor(slot));
        let addresses = objects.filter_map(|slot| space.slot_address(slot as usize));
        let ractors: Vec<Address> =
            addresses.filter_map(|at| structure(image, at)).take(MAX_RACTORS).collect();
        let threads: Vec<Vec<u64>> = space
            .vm_stacks
            .iter()
            .map(|it| read_words(image, it.structure, THREAD_BYTES))
            .collect();
        let leads_to_ractor = |at: &usize| {
            let word = |thread: &Vec<u64>| thread.get(*at).copied().map(Address);
            threads.iter().all(|it| word(it).is_some_and(|word| ractors.contains(&word)))
        };
        let offsets = (0..THREAD_BYTES / 8).filter(leads_to_ractor).map(|at| at as u64 * 8);
        let paths: Vec<Vec<u64>> = offsets.map(|at| vec![thread_at, at]).collect();
        let cursors = CursorSearch::begin(image, page_list);
        let page_list = ractors.is_empty().then_some(page_list);
        let is_possible = !threads.is_empty() && (page_list.is_some() || !paths.is_empty());
        (is_possible && pools.len() <= MAX_POOLS).then(|| Self {
            pages: Pages { pages: with_slots().filter_map(entry).collect(), bytes: page_bytes },
            pools,
            ractors,
            paths,
            page_list,
            votes: BTreeMap::new(),
            cursors,
        })
    }

    /// Looks at the process once more.
    pub fn look(&mut self, memory: &dyn Memory) {
        if let Some(cursors) = &mut self.cursors {
            cursors.look(memory, &self.pages);
        }
        for ractor in self.ractors.clone() {
            let words = read_words(memory, ractor, RACTOR_BYTES);
            self.vote(memory, &[], ractor, &words);
            for (index, &cache) in words.iter().enumerate() {
                let is_pointer = cache & 7 == 0 && cache >> 12 != 0;
                if is_pointer && !self.is_link(index, cache) && !self.is_of_page(cache) {
                    let words = read_words(memory, Address(cache), CACHE_BYTES);
                    self.vote(memory, &[index as u64 * 8], Address(cache), &words);
                }
            }
        }
        let Some(list) = self.page_list else { return };
        let start = list.before(AROUND_PAGES);
        let words = read_words(memory, start, 2 * AROUND_PAGES as usize);
        for (index, &first) in words.iter().enumerate() {
            let at = start.offset(index as u64 * 8);
            let mut next = words.iter().skip(index + 1).take(2);
            if next.any(|&page| self.pool(memory, at, [first, page]).is_some()) {
                let place = Place::Fixed(at);
                *self.votes.entry((place, STRIDES[0])).or_default() += 1;
            }
        }
    }

    /// Counts the lists among the words of a Ractor, or of a structure that it points to, which begins at `start`.
    fn vote(&mut self, memory: &dyn Memory, inner: &[u64], start: Address, words: &[u64]) {
        for (index, pair) in words.windows(2).enumerate() {
            let at = start.offset(index as u64 * 8);
            let Some(pool) = self.pool(memory, at, [pair[0], pair[1]]) else { continue };
            let strides = if self.pools.len() == 1 { &STRIDES[..1] } else { &STRIDES[..] };
            for &stride in strides {
                let Some(at) = (index as u64 * 8).checked_sub(pool as u64 * stride) else {
                    continue;
                };
                for path in &self.paths {
                    let path = [path, inner].concat();
                    let key = (Place::OfRactor { path, at }, stride);
                    if self.votes.len() < MAX_PLACES || self.votes.contains_key(&key) {
                        *self.votes.entry(key).or_default() += 1;
                    }
                }
            }
        }
    }

    /// Returns the place that had a list most often, if there is one alone: with the list of the smallest slots if no other one was seen.
    /// All lists there must be such, of all Ractors. Several ways may lead to the same memory, since what is read of a Ractor ends behind it:
    /// the process goes on between their looks, so their votes differ, and the way that ends nearest to the lists is taken.
    #[must_use]
    pub fn found(&self, memory: &dyn Memory) -> Option<FreeLists> {
        let page_bytes = self.pages.bytes;
        let cursors = self.cursors.as_ref();
        let found = cursors.and_then(|it| it.found(memory, &self.pages, &self.pools));
        if let Some((at, lists)) = found {
            let place = Place::Fixed(at);
            return Some(FreeLists { place, lists, order: Order::Ascending, page_bytes });
        }
        let mut by_memory = BTreeMap::<_, (u64, Reverse<u64>, &Place)>::new();
        for (key, &votes) in self.votes.iter().filter(|(key, _)| self.fits(memory, key)) {
            let (place, stride) = key;
            let way = (votes, Reverse(place.offset()), place);
            let best = by_memory.entry((self.addresses(memory, place), *stride)).or_insert(way);
            let nearest = std::cmp::max_by_key(*best, way, |it| it.1);
            *best = (best.0.max(votes), nearest.1, nearest.2);
        }
        let mut best: Vec<_> = by_memory
            .into_iter()
            .map(|((_, stride), (votes, offset, place))| ((votes, offset), place, stride))
            .collect();
        best.sort();
        let (key, place, stride) = best.pop()?;
        let others = || best.iter().rev().take_while(|it| it.0 == key);
        let pools = match others().count() {
            0 => &self.pools[..],
            // The first list was the only one that had slots, so the distance of two lists is not known.
            _ if key.0 >= ENOUGH_VOTES && others().all(|it| it.1 == place) => &self.pools[..1],
            _ => return None,
        };
        let lists = (0..).map(|pool| pool * stride).zip(pools);
        Some(FreeLists {
            place: place.clone(),
            lists: lists.map(|(at, &slot_bytes)| List { at, slot_bytes }).collect(),
            order: Order::Descending,
            page_bytes,
        })
    }

    /// Returns true if there are only lists, or empty ones, at this place of all Ractors.
    fn fits(&self, memory: &dyn Memory, (place, stride): &(Place, u64)) -> bool {
        if let Place::Fixed(_) = place {
            return true;
        }
        // A Ractor that has ended has no lists any more.
        self.addresses(memory, place).into_iter().flatten().all(|lists| {
            (0..).zip(&self.pools).all(|(pool, &slot_bytes)| {
                let pair = read_words(memory, lists.offset(pool * stride), 16);
                match pair[..] {
                    [0, page] => page == 0 || self.slot_bytes_of(page) == Some(slot_bytes),
                    [list, page] => match self.pages.of(list) {
                        Some(known) => known.descriptor.0 == page && known.slot_bytes == slot_bytes,
                        // It is newer than the capture.
                        None => self.is_descriptor(memory, list, page),
                    },
                    _ => true,
                }
            })
        })
    }

    /// The addresses of the first list at this place, of each Ractor that has one.
    fn addresses(&self, memory: &dyn Memory, place: &Place) -> Vec<Option<Address>> {
        let (path, at) = match place {
            Place::OfRactor { path, at } => (path, *at),
            Place::Fixed(at) => return vec![Some(*at)],
        };
        let follow = |from: Address, offset: &u64| {
            memory.read_address(from.offset(*offset)).ok().filter(|it| it.0 != 0)
        };
        // A path begins with the way from a context to the Ractor.
        let inner = path.get(2..).unwrap_or_default();
        let of = |&ractor: &Address| Some(inner.iter().try_fold(ractor, follow)?.offset(at));
        self.ractors.iter().map(of).collect()
    }

    /// The size of slots, by its number, if the words, which were read at `at`, are a free slot and the descriptor of its page.
    fn pool(
        &self,
        memory: &dyn Memory,
        at: Address,
        [list, descriptor]: [u64; 2],
    ) -> Option<usize> {
        let page = self.pages.of(list)?;
        let is_list = page.descriptor.0 == descriptor && page.has(list);
        // Free slots have no flags. A program that allocates often may have taken it since, and then the list has another one.
        let is_free = || memory.read_u64(Address(list)) == Ok(0);
        let is_taken = || memory.read_u64(at).is_ok_and(|it| it != list);
        let is_list = is_list && (is_free() || is_taken());
        self.pools.iter().position(|&it| it == page.slot_bytes).filter(|_| is_list)
    }

    /// Returns true if the word with this index of a Ractor links it to the same place of a Ractor, or to a Ractor: in a list, whose head
    /// points to itself if it is empty. That leads to the lists of another one.
    fn is_link(&self, index: usize, to: u64) -> bool {
        let offset = index as u64 * 8;
        let offsets = [0, offset.saturating_sub(8), offset, offset + 8];
        offsets.iter().any(|offset| self.ractors.contains(&Address(to.wrapping_sub(*offset))))
    }

    fn is_of_page(&self, at: u64) -> bool {
        self.pages.of(at).is_some()
    }

    fn slot_bytes_of(&self, descriptor: u64) -> Option<u64> {
        self.pages
            .pages
            .values()
            .find(|page| page.descriptor.0 == descriptor)
            .map(|it| it.slot_bytes)
    }

    fn is_descriptor(&self, memory: &dyn Memory, list: u64, descriptor: u64) -> bool {
        let page = Address(list).align_down(self.pages.bytes);
        list & 7 == 0 && memory.read_u64(page) == Ok(descriptor)
    }
}

impl Place {
    /// The offset of the lists from the pointer that leads to them.
    fn offset(&self) -> u64 {
        match self {
            Self::OfRactor { at, .. } => *at,
            Self::Fixed(_) => 0,
        }
    }
}

impl FreeLists {
    /// The bytes of the smallest slots.
    #[must_use]
    pub fn smallest_slot(&self) -> u64 {
        self.lists.iter().map(|list| list.slot_bytes).min().unwrap_or_default()
    }

    /// Bytes from the first list to the end of the last one.
    pub(super) fn bytes(&self) -> u64 {
        self.lists.last().map_or(0, |list| list.at) + 8
    }

    /// The slots that the thread with this execution context allocates next, and their sizes. In a process that runs they may be
    /// in use by now.
    #[must_use]
    pub fn next_slots(&self, memory: &dyn Memory, context: Address) -> Vec<(Address, u64)> {
        let lists = match &self.place {
            Place::Fixed(at) => Some(*at),
            Place::OfRactor { path, at } => {
                let follow = |from: Address, offset: &u64| {
                    memory.read_address(from.offset(*offset)).ok().filter(|it| it.0 != 0)
                };
                path.iter().try_fold(context, follow).map(|base| base.offset(*at))
            }
        };
        let mut bytes = vec![0; self.bytes() as usize];
        let read = lists.map(|at| memory.read_exact(at, &mut bytes));
        let slots = self.heads(&bytes).map(|(slot, bytes)| (Address(slot), bytes));
        if read == Some(Ok(())) { slots.collect() } else { Vec::new() }
    }

    /// The free slots that are next in these words, one for each size of slots that has any.
    pub(super) fn heads<'a>(&'a self, lists: &'a [u8]) -> impl Iterator<Item = (u64, u64)> + 'a {
        let head =
            |list: &List| Some((words(lists.get(list.at as usize..)?).next()?, list.slot_bytes));
        self.lists.iter().filter_map(head).filter(|it| it.0 != 0)
    }
}

/// The readable words at `at`.
pub(super) fn read_words(memory: &dyn Memory, at: Address, bytes: usize) -> Vec<u64> {
    let mut buffer = vec![0; bytes];
    let read = memory.read(at, &mut buffer);
    words(&buffer[..read / 8 * 8]).collect()
}
