//! The list of threads that glibc keeps.
//!
//! glibc links the descriptors (`struct pthread`, nptl/descr.h) of all threads into lists, so the descriptor of a
//! thread that began after a capture can be found without stopping it. A new thread comes first in its list. The offsets
//! of its id and of its links are derived from threads whose descriptors are known.

use std::collections::{BTreeSet, HashSet};

use image::{Image, Memory};
use linux::{Address, MIN_PAGE_SIZE};

/// The first bytes of a descriptor, among which its members are searched for.
const SEARCHED_BYTES: u64 = 0x600;
/// More threads than a process has.
const MAX_THREADS: usize = 1 << 16;
/// The bytes before and behind the head of a list that are searched for the heads of others: they are variables of the
/// same library.
const NEIGHBOURHOOD: u64 = 32 << 10;

/// The places of a thread's id and of its links in a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadList {
    id_at: u64,
    links_at: u64,
    /// Two words by which a descriptor is recognised: each points into it.
    own_words: [OwnWord; 2],
    /// The heads of lists that were found.
    heads: BTreeSet<Address>,
}

/// The offset of a word in a descriptor, and the offset that the word leads to. Behind the links, two words lead to the head
/// of the list of robust mutexes, if the thread holds none. Only on some CPUs does a descriptor begin with its own address.
type OwnWord = (u64, u64);

impl ThreadList {
    /// Derives the places from the threads of `image`; `None` if no place fits all threads, or the C library is another.
    #[must_use]
    pub fn derive(image: &Image<'_>) -> Option<Self> {
        let threads: Vec<(i32, Address)> = image
            .state
            .threads
            .iter()
            .map(|thread| (thread.tid, thread.descriptor_base()))
            .collect();
        let fits = |at: &u64, fits: &dyn Fn(i32, Address) -> bool| {
            threads.iter().all(|&(tid, descriptor)| fits(tid, descriptor.offset(*at)))
        };
        let is_id = |tid: i32, at| image.read_u32(at).is_ok_and(|id| id.cast_signed() == tid);
        let is_link = |_, at| is_link(image, at);
        let id_at = (0..SEARCHED_BYTES).step_by(4).find(|at| fits(at, &is_id))?;
        let links_at = (0..SEARCHED_BYTES).step_by(8).find(|at| fits(at, &is_link))?;
        let &(_, first) = threads.first()?;
        let own_word = |at| {
            let leads_to = image.read_address(first.offset(at)).ok()?.0.checked_sub(first.0)?;
            let word = (at, leads_to);
            let is_own = threads.iter().all(|&(_, it)| has_own_word(image, it, word));
            (leads_to < SEARCHED_BYTES && is_own).then_some(word)
        };
        let mut own_words = (links_at..SEARCHED_BYTES).step_by(8).filter_map(own_word);
        let own_words = [own_words.next()?, own_words.next()?];
        Some(Self { id_at, links_at, own_words, heads: BTreeSet::new() })
    }

    /// The ids and descriptors of all threads that can be reached from the descriptors `known`, and from the lists that were
    /// found before. Threads may have ended, and the process may run.
    pub fn threads(&mut self, memory: &dyn Memory, known: &[Address]) -> Vec<(i32, Address)> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut heads = self.heads.clone();
        for head in self.heads.iter().copied() {
            self.walk(memory, head, &mut seen, &mut found, &mut heads);
        }
        for &descriptor in known {
            if self.is_descriptor(memory, descriptor) {
                let start = descriptor.offset(self.links_at);
                self.walk(memory, start, &mut seen, &mut found, &mut heads);
            }
        }
        // The first thread is in a list of its own.
        if let Some(&head) = heads.first().filter(|_| heads.len() == 1) {
            for head in self.heads_near(memory, head) {
                self.walk(memory, head, &mut seen, &mut found, &mut heads);
            }
        }
        self.heads = heads;
        found
    }

    /// Returns true if `descriptor` is still the one of the thread `tid`.
    #[must_use]
    pub fn is(&self, memory: &dyn Memory, descriptor: Address, tid: i32) -> bool {
        self.is_descriptor(memory, descriptor)
            && memory.read_u32(descriptor.offset(self.id_at)) == Ok(tid.cast_unsigned())
    }

    fn is_descriptor(&self, memory: &dyn Memory, at: Address) -> bool {
        let has = |&word: &OwnWord| has_own_word(memory, at, word);
        at.0 != 0 && at.is_aligned(8) && self.own_words.iter().all(has)
    }

    /// The heads of other lists near the head of one.
    fn heads_near(&self, memory: &dyn Memory, head: Address) -> Vec<Address> {
        let mut found = Vec::new();
        let start = head.before(NEIGHBOURHOOD.min(head.0));
        let mut bytes = vec![0; 2 * NEIGHBOURHOOD as usize];
        let pages = bytes
            .chunks_mut(MIN_PAGE_SIZE as usize)
            .zip((start.0..).step_by(MIN_PAGE_SIZE as usize));
        for (page, start) in pages {
            let read = memory.read(Address(start), page);
            for (word, at) in page[..read].chunks_exact(8).zip((start..).step_by(8).map(Address)) {
                let first = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                let descriptor = Address(first.wrapping_sub(self.links_at));
                let is_head =
                    at != head && self.is_descriptor(memory, descriptor) && is_link(memory, at);
                found.extend(is_head.then_some(at));
            }
        }
        found
    }

    fn walk(
        &self,
        memory: &dyn Memory,
        start: Address,
        seen: &mut HashSet<Address>,
        found: &mut Vec<(i32, Address)>,
        heads: &mut BTreeSet<Address>,
    ) {
        let mut links = start;
        while seen.len() < MAX_THREADS && seen.insert(links) {
            let descriptor = Address(links.0.wrapping_sub(self.links_at));
            if self.is_descriptor(memory, descriptor) {
                let id = memory.read_u32(descriptor.offset(self.id_at)).unwrap_or(0);
                found.push((id.cast_signed(), descriptor));
            } else {
                heads.insert(links);
            }
            match memory.read_address(links) {
                Ok(next) if next.0 != 0 => links = next,
                _ => return,
            }
        }
    }
}

/// Returns true if the word at `at` points to a link that points back (`list_t`: next and previous).
fn is_link(memory: &dyn Memory, at: Address) -> bool {
    let next = memory.read_address(at).unwrap_or_default();
    let is_other = next.0 != 0 && next.is_aligned(8) && next != at;
    is_other && memory.read_address(next.offset(8)) == Ok(at)
}

/// Returns true if the descriptor at `at` has this word.
fn has_own_word(memory: &dyn Memory, at: Address, (offset, leads_to): OwnWord) -> bool {
    memory.read_address(at.offset(offset)) == Ok(at.offset(leads_to))
}
