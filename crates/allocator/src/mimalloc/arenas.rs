//! The arenas of v3 (`mi_arena_t`, include/mimalloc/types.h): memory of which pages are made, and what no page has of it.

use std::collections::BTreeMap;
use std::ops::Range;

use linux::{Address, Mapping};

use super::pages::{Page, SLICE, WORDS};
use crate::structures::Structures;

/// The words of an arena's structure that are read: its counts, and the addresses of its first bitmaps.
const ARENA_WORDS: usize = 20;
/// More slices than an arena has: 1 TiB.
const MAX_SLICES: u64 = 1 << 24;
/// The bits of a bitmap are in chunks (`MI_BCHUNK_BITS`).
const CHUNK_BITS: u64 = 512;

/// An arena.
#[derive(Debug)]
pub(super) struct MemoryArena {
    /// The address of its structure.
    at: Address,
    /// Its memory.
    range: Range<Address>,
    /// For each slice, whether it is free.
    free: Vec<u8>,
}

impl MemoryArena {
    /// The arenas that the pages belong to; none if their layout is not found. Pages get exactly their slices: the map does not
    /// have the last ones of large pages, and in 3.0 it keeps some of pages that are gone. Those pages are removed: their memory is
    /// free, or they do not say where it is from.
    pub(super) fn all(structures: &mut Structures<'_>, pages: &mut Vec<Page>) -> Vec<Self> {
        let Some((word, members)) = Members::of(pages) else { return Vec::new() };
        let with_words = members.into_iter().map(|member| {
            let mut words = [0; ARENA_WORDS];
            for (word, number) in words.iter_mut().zip(0..) {
                *word = structures.word(member.at.offset(number * 8)).unwrap_or(0);
            }
            (member, words)
        });
        let arenas: Vec<(Members, [u64; ARENA_WORDS])> = with_words.collect();
        let pages_of = |count: usize| {
            let agree = arenas.iter().filter(|(it, words)| it.agrees(structures, words, count));
            agree.map(|(it, _)| it.slices.len()).sum::<usize>()
        };
        // The first one of equals.
        let count = (2..ARENA_WORDS - 2).rev().max_by_key(|count| pages_of(*count)).unwrap_or(2);
        let read = |(member, words): &(Members, [u64; ARENA_WORDS])| {
            member.arena(structures, words, count)
        };
        let mut arenas: Vec<Self> = arenas.iter().filter_map(read).collect();
        arenas.sort_by_key(|arena| arena.range.start);
        arenas.dedup_by(|next, last| next.range.start < last.range.end);
        let mut last = Address(0);
        pages.retain_mut(|page| {
            let [from, number, slices] =
                [page.words[word], page.half(2 * word + 2), page.half(2 * word + 3)];
            let around = arenas.iter().find(|arena| arena.range.contains(&page.area.start));
            let own = match around {
                Some(arena) if from == arena.at.0 => {
                    let start = arena.range.start.offset(number * SLICE);
                    let end = start.offset(slices * SLICE).min(arena.range.end);
                    (start == page.area.start && !arena.is_free(start)).then_some(start..end)
                }
                Some(_) => None,
                // The kernel gave its memory: an address and a size.
                None => {
                    from.checked_add(page.words[word + 1]).map(|end| Address(from)..Address(end))
                }
            };
            let own =
                own.filter(|own| own.contains(&page.area.start) && structures.lies_in_memory(own));
            let Some(own) = own.filter(|_| page.area.start >= last) else { return false };
            page.area.end = own.end;
            last = own.end;
            true
        });
        arenas
    }

    /// Returns true if the slice at this address is free.
    fn is_free(&self, at: Address) -> bool {
        self.range.contains(&at) && is_set(&self.free, (at - self.range.start) / SLICE)
    }

    /// The memory that no page has, with true for free memory. The rest are structures.
    pub(super) fn gaps(&self, pages: &[Page]) -> Vec<(Range<Address>, bool)> {
        let mut gaps: Vec<(Range<Address>, bool)> = Vec::new();
        let mut page = pages.partition_point(|page| page.area.end <= self.range.start);
        let mut at = self.range.start;
        while at < self.range.end {
            while pages.get(page).is_some_and(|it| it.area.end <= at) {
                page += 1;
            }
            if let Some(around) = pages.get(page).filter(|it| it.area.start <= at) {
                at = around.area.end;
                continue;
            }
            let next = at.offset(SLICE);
            let is_free = self.is_free(at);
            match gaps.last_mut() {
                Some((last, state)) if last.end == at && *state == is_free => last.end = next,
                _ => gaps.push((at..next, is_free)),
            }
            at = next;
        }
        gaps
    }
}

fn is_set(bits: &[u8], number: u64) -> bool {
    bits.get(number as usize / 8).is_some_and(|byte| byte >> (number % 8) & 1 == 1)
}

/// The members of an arena, as its pages show them.
#[derive(Debug, Clone)]
struct Members {
    /// The beginning of the arena's memory.
    base: Address,
    /// The address of its structure.
    at: Address,
    /// The numbers of its slices that pages begin with, ascending.
    slices: Vec<u64>,
}

impl Members {
    /// Groups the pages by arena: each has the address of its arena (`memid.mem.arena`), and the number of its slice there.
    /// Returns the word with the address, too.
    fn of(pages: &[Page]) -> Option<(usize, Vec<Self>)> {
        let by_word = (0..WORDS - 1).map(|word| {
            let mut slices = BTreeMap::<(Address, Address), Vec<u64>>::new();
            for page in pages {
                let at = Address(page.words[word]);
                let number = page.half(2 * word + 2);
                let Some(base) = page.area.start.0.checked_sub(number * SLICE).map(Address) else {
                    continue;
                };
                if at.is_aligned(8) && number > 0 && base <= at && at < page.area.start {
                    slices.entry((at, base)).or_default().push(number);
                }
            }
            // What is left of pages that are gone may lead elsewhere.
            let mut arenas = BTreeMap::<Address, Self>::new();
            for ((at, base), slices) in slices {
                let most = arenas.get(&at).map_or(0, |arena| arena.slices.len());
                if slices.len() > most {
                    arenas.insert(at, Self { base, at, slices });
                }
            }
            let count = arenas.values().map(|arena| arena.slices.len()).sum::<usize>();
            (count, word, arenas)
        });
        let (count, word, arenas) = by_word.max_by_key(|(count, ..)| *count)?;
        // Others have memory of their own.
        (count * 2 > pages.len()).then(|| (word, arenas.into_values().collect()))
    }

    /// Returns true if this word may be the arena's number of slices, and the next one that of slices with its structures.
    fn agrees(&self, structures: &Structures<'_>, words: &[u64; ARENA_WORDS], word: usize) -> bool {
        let (count, info) = (words[word], words[word + 1]);
        let first = self.slices.first().copied().unwrap_or(0);
        let last = self.slices.last().copied().unwrap_or(0);
        if !(last < count && count <= MAX_SLICES && 0 < info && info <= first) {
            return false;
        }
        let mappings = &structures.image.state.mappings;
        let around = mappings.contiguous(self.base, Mapping::is_private_anonymous);
        let range = self.base..self.base.offset(count * SLICE);
        around.start <= range.start
            && range.end <= around.end
            && self.at < self.base.offset(info * SLICE)
    }

    fn arena(
        &self,
        structures: &Structures<'_>,
        words: &[u64; ARENA_WORDS],
        word: usize,
    ) -> Option<MemoryArena> {
        use image::Memory;

        if !self.agrees(structures, words, word) {
            return None;
        }
        let (count, info_slices) = (words[word], words[word + 1]);
        let range = self.base..self.base.offset(count * SLICE);
        let info = self.at..self.base.offset(info_slices * SLICE);
        // The bitmap of free slices is the first one, and ends where the next one begins.
        let is_bitmap =
            |pair: &&[u64]| pair[0] < pair[1] && pair.iter().all(|at| info.contains(&Address(*at)));
        let bitmaps = words[word + 2..].windows(2).find(is_bitmap)?;
        let mut free = vec![0; count.div_ceil(CHUNK_BITS) as usize * (CHUNK_BITS / 8) as usize];
        let start = bitmaps[1].checked_sub(free.len() as u64).filter(|it| *it > bitmaps[0])?;
        structures.image.read_exact(Address(start), &mut free).ok()?;
        let stale = self.slices.iter().filter(|number| is_set(&free, **number)).count();
        let agrees =
            stale <= self.slices.len() / 2 && (0..info_slices).all(|number| !is_set(&free, number));
        if !agrees {
            // Then nothing counts as free.
            free.fill(0);
        }
        Some(MemoryArena { at: self.at, range, free })
    }
}
