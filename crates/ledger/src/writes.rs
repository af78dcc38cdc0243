//! The reasons why pages are copies: which words of a page differ from the parent's page, and what they are.

use std::collections::{HashMap, HashSet};

use allocator::{Block, BlockState, HeapMap};
use image::{Memory, ProcessState};
use linux::{Address, Pages};
use ruby::{HeapPage, ObjectHead, ObjectSpace, SlotState, SlotType};

use crate::ownership::{AccountIndex, Owners};
use crate::{Cause, Facts, OwnerAccount};

const WORD: u64 = 8;
/// Pages that are read at a time.
const PAGES_PER_READ: usize = 64;

/// The words of a page.
type Words = [u64];

/// A reason why a page differs from the parent's. A page counts for one: the last one here that any of its words has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// The contents are the same.
    Same,
    /// The garbage collector wrote marks and ages.
    Collector,
    /// The allocator wrote headers, or into free memory.
    Allocator,
    /// Objects were freed: their slots are in free lists.
    FreedSlots,
    /// Objects were made in slots that were free, or moved there.
    NewObjects,
    /// The interpreter wrote: inline and method caches, and the tables of code.
    Code,
    /// Objects were changed in their slots.
    Objects,
    /// Memory that objects hold was changed: the contents of strings, arrays and hashes.
    Contents,
    /// Stacks, the variables of libraries, and memory of no known use.
    Other,
    /// One of the pages could not be read.
    Unread,
}

impl Write {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Same,
        Self::Collector,
        Self::Allocator,
        Self::FreedSlots,
        Self::NewObjects,
        Self::Code,
        Self::Objects,
        Self::Contents,
        Self::Other,
        Self::Unread,
    ];

    /// Its name, part of the stable interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Collector => "collector",
            Self::Allocator => "allocator",
            Self::FreedSlots => "freed_slots",
            Self::NewObjects => "new_objects",
            Self::Code => "code",
            Self::Objects => "objects",
            Self::Contents => "contents",
            Self::Other => "other",
            Self::Unread => "unread",
        }
    }
}

/// The copied pages with one reason, of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteAccount {
    /// The reason.
    pub write: Write,
    /// The name of the class or library that was written to; `None` if it has no owner.
    pub owner: Option<String>,
    /// The bytes of the pages. A page with words of several owners is divided among them.
    pub bytes: u64,
}

/// Compares the `copied` pages of a process, whose memory is `own`, with those of its parent. `accounts` are those of `owners`.
pub(crate) fn compare(
    state: &ProcessState,
    facts: &Facts,
    owners: &Owners<'_>,
    accounts: &[OwnerAccount],
    copied: &Pages,
    [own, parents]: [&dyn Memory; 2],
) -> Vec<WriteAccount> {
    if copied.iter().next().is_none() {
        return Vec::new();
    }
    let (heap, space) = (facts.heap(), facts.objects());
    let mut pages: Vec<&HeapPage> = space.pages.iter().collect();
    pages.sort_by_key(|page| page.range.start);
    let mut blocks = heap.all_blocks();
    let mut comparison = Comparison {
        space,
        heap,
        owners,
        index: owners.index(accounts),
        descriptors: pages.iter().filter_map(|page| page.descriptor(own)).collect(),
        pages: &pages,
        block: blocks.next(),
    };
    let mut sums: HashMap<(Write, Option<u32>), u64> = HashMap::new();
    let page_size = state.machine.page_size;
    each_pair(page_size, copied, [own, parents], |at, words| {
        let Some([after, before]) = words else {
            *sums.entry((Write::Unread, None)).or_default() += page_size;
            return;
        };
        let (write, writes) = comparison.page(at, before, after, &mut blocks);
        let count = writes.iter().map(|(_, count)| count).sum::<u64>().max(1);
        let mut left = page_size;
        for (owner, words) in writes {
            let bytes = page_size * words / count;
            *sums.entry((write, owner)).or_default() += bytes;
            left -= bytes;
        }
        *sums.entry((write, None)).or_default() += left;
    });
    let account = |((write, owner), bytes): ((Write, Option<u32>), u64)| {
        let owner = owner.and_then(|owner| accounts.get(owner as usize));
        WriteAccount { write, owner: owner.map(|it| it.name.clone()), bytes }
    };
    let mut all: Vec<_> = sums.into_iter().filter(|it| it.1 > 0).map(account).collect();
    all.sort_by(|a, b| (b.bytes, a.write, &a.owner).cmp(&(a.bytes, b.write, &b.owner)));
    all
}

/// Calls `visit` with the address of each page and its words in both memories; `None` if one of them could not be read.
fn each_pair(
    page_size: u64,
    pages: &Pages,
    memories: [&dyn Memory; 2],
    mut visit: impl FnMut(Address, Option<[&Words; 2]>),
) {
    let page = page_size as usize;
    let mut buffers = [(); 2].map(|()| vec![0; PAGES_PER_READ * page]);
    let mut words = [(); 2].map(|()| vec![0; page / WORD as usize]);
    for run in pages.iter() {
        let mut at = run.range.start;
        while at < run.range.end {
            let wanted = ((run.range.end - at) as usize).min(PAGES_PER_READ * page);
            let mut read = wanted;
            // The second one, a parent that may have ended, limits what is read of the first.
            for (memory, buffer) in memories.iter().zip(&mut buffers).rev() {
                read = memory.read(at, &mut buffer[..read]) / page * page;
            }
            for start in (0..read).step_by(page) {
                for (words, buffer) in words.iter_mut().zip(&buffers) {
                    let (bytes, _) = buffer[start..start + page].as_chunks::<8>();
                    for (word, bytes) in words.iter_mut().zip(bytes) {
                        *word = u64::from_le_bytes(*bytes);
                    }
                }
                visit(at.offset(start as u64), Some([&words[0], &words[1]]));
            }
            at = at.offset(read as u64);
            if read < wanted {
                // The pages behind this one may be readable.
                visit(at, None);
                at = at.offset(page_size);
            }
        }
    }
}

struct Comparison<'a> {
    space: &'a ObjectSpace,
    heap: &'a HeapMap,
    owners: &'a Owners<'a>,
    index: AccountIndex<'a>,
    /// The collector's descriptors of heap pages, which have the marks.
    descriptors: HashSet<Address>,
    /// Ruby's heap pages that do not end before the last address, ascending.
    pages: &'a [&'a HeapPage],
    /// The first block that does not end before the last address.
    block: Option<(usize, Block)>,
}

impl<'a> Comparison<'a> {
    /// Returns the reason of a page, and the number of its words of each owner with this reason.
    fn page(
        &mut self,
        at: Address,
        before: &Words,
        after: &Words,
        blocks: &mut impl Iterator<Item = (usize, Block)>,
    ) -> (Write, Vec<(Option<u32>, u64)>) {
        let mut last = Write::Same;
        let mut writes: Vec<(Option<u32>, u64)> = Vec::new();
        // Of a page without any difference, all words count: its owners may have written what was there before.
        let is_same = before == after;
        for word in (0..after.len()).filter(|&word| is_same || before[word] != after[word]) {
            let address = at.offset(word as u64 * WORD);
            let (write, owner) = match self.heap_page(address) {
                Some(page) => self.slot_word(page, at, word, before, after),
                None => self.block_word(address, blocks),
            };
            let write = if is_same { Write::Same } else { write };
            if write > last {
                last = write;
                writes.clear();
            }
            if write == last {
                match writes.iter_mut().find(|(known, _)| *known == owner) {
                    Some((_, count)) => *count += 1,
                    None => writes.push((owner, 1)),
                }
            }
        }
        (last, writes)
    }

    fn heap_page(&mut self, at: Address) -> Option<&'a HeapPage> {
        while let Some((first, rest)) = self.pages.split_first()
            && first.range.end <= at
        {
            self.pages = rest;
        }
        self.pages.first().copied().filter(|page| page.range.contains(&at))
    }

    /// Returns the meaning of a word on one of Ruby's heap pages. `start` is the address of the words.
    fn slot_word(
        &self,
        page: &HeapPage,
        start: Address,
        word: usize,
        before: &Words,
        after: &Words,
    ) -> (Write, Option<u32>) {
        let at = start.offset(word as u64 * WORD);
        if at < page.first_slot || page.slot_bytes == 0 {
            return (Write::Collector, None);
        }
        let number = (at - page.first_slot) / u64::from(page.slot_bytes);
        let index = page.slots.start + number as usize;
        let slot = self.space.slots.get(index).copied();
        let Some(slot) = slot.filter(|_| page.slots.contains(&index)) else {
            return (Write::Collector, None);
        };
        if slot.state() == SlotState::Free {
            return (Write::FreedSlots, None);
        }
        let owner = self.index.of_slot(slot);
        let first = page.first_slot.offset(number * u64::from(page.slot_bytes));
        // The flags may lie on the page before, and the class on the next one.
        let flags = (first >= start).then(|| ((first - start) / WORD) as usize);
        if let Some(flags) = flags {
            let head = |words: &Words| ObjectHead {
                flags: words[flags],
                class: words.get(flags + 1).copied(),
            };
            let (head, head_before) = (head(after), head(before));
            if !head.is_same_object(head_before) {
                return (Write::NewObjects, owner);
            }
            if flags == word && head.has_only_aged(head_before) {
                return (Write::Collector, owner);
            }
        }
        let is_code = matches!(
            slot.kind(),
            SlotType::IMEMO | SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS
        );
        (if is_code { Write::Code } else { Write::Objects }, owner)
    }

    fn block_word(
        &mut self,
        at: Address,
        blocks: &mut impl Iterator<Item = (usize, Block)>,
    ) -> (Write, Option<u32>) {
        while let Some((_, block)) = self.block
            && self.heap.header.footprint(block).end <= at
        {
            self.block = blocks.next();
        }
        let in_heap = || self.heap.extent_at(at).is_some();
        let Some((number, block)) =
            self.block.filter(|(_, block)| self.heap.header.footprint(*block).start <= at)
        else {
            return (if in_heap() { Write::Allocator } else { Write::Other }, None);
        };
        let pointer = self.heap.header.pointer(block);
        if !matches!(block.state(), BlockState::InUse | BlockState::Mmapped) || at < pointer {
            return (Write::Allocator, None);
        }
        if self.descriptors.contains(&pointer) {
            return (Write::Collector, None);
        }
        let owner = self.index.of_block(number);
        match self.owners.cause(number) {
            Cause::RubyVm => (Write::Code, owner),
            Cause::MallocInUse => (Write::Other, owner),
            _ => (Write::Contents, owner),
        }
    }
}
