//! The layout of pages (`mi_page_t`, include/mimalloc/types.h), derived from their contents.

use std::ops::Range;

use linux::{Address, length};

use super::pages::{Page, WORDS};
use crate::structures::Structures;

/// The pages that decide, from all over the heap. The walk checks the others.
const SAMPLE: usize = 256;
/// Fewer pages prove nothing.
const MIN_PAGES: usize = 4;
/// Blocks that are followed on lists at most, until a layout is found: none of a sane heap needs so many.
const MAX_STEPS: u64 = 1 << 26;
/// The count of a page's blocks has 16 bits.
const MAX_BLOCKS: u64 = u16::MAX as u64;
/// More members of a structure than are lists of blocks.
const MAX_LISTS: usize = 5;
/// More ways to read the counts of a heap than there are: copies, and constants that agree.
const MAX_COUNTS: usize = 64;
/// The alignment of blocks.
const ALIGNMENT: u64 = 8;

/// Where the first block of a page is.
#[derive(Debug, Clone, Copy)]
enum Start {
    /// At the address in this word (v2 since 2.1.4, v3).
    At(usize),
    /// So many bytes behind the structure (v3 since 3.4).
    Behind(usize),
    /// So many bytes behind the beginning of the area, by the size of blocks (`_mi_segment_page_start_from_slice`).
    By(fn(u64) -> u64),
}

/// The rules of v2 before 2.1.4.
const RULES: [fn(u64) -> u64; 3] = [
    |bytes| if bytes <= 1024 { 384 } else { 0 },
    |bytes| if bytes <= 1024 { 128 } else { 0 },
    |bytes| match bytes {
        ..=64 => 3 * bytes,
        65..=512 => bytes,
        _ => 0,
    },
];

/// A member with the size of blocks.
#[derive(Debug, Clone, Copy)]
enum Size {
    Word(usize),
    Half(usize),
}

/// The offsets of the members of a page's structure.
#[derive(Debug, Clone)]
pub(super) struct PageLayout {
    counts: Counts,
    size: Size,
    start: Start,
}

#[derive(Debug, Clone)]
struct Counts {
    /// Lists of free blocks (`free`, `local_free`), as words.
    free: Vec<usize>,
    /// Lists of blocks that other threads freed (`xthread_free`): they still count as used.
    foreign: Vec<usize>,
    /// The number of blocks in use, and of blocks that were ever made, in units of two bytes.
    used: usize,
    capacity: usize,
}

/// The blocks of a page.
#[derive(Debug)]
pub(super) struct PageBlocks {
    /// The address of the first one.
    pub(super) start: Address,
    /// The size of each.
    pub(super) bytes: u64,
    /// For each block that was ever made, whether it is free.
    pub(super) is_free: Vec<bool>,
}

impl PageLayout {
    /// The layout under which the most pages are consistent: all but a few, which threads were changing.
    pub(super) fn find(
        structures: &mut Structures<'_>,
        pages: &[Page],
        changing: usize,
    ) -> Option<Self> {
        let step = pages.len().div_ceil(SAMPLE).max(1);
        let sample: Vec<&Page> = pages.iter().step_by(step).collect();
        let changing = changing.min(sample.len() / 4);
        if sample.len() < MIN_PAGES {
            return None;
        }
        let lists = lists(structures, &sample, changing);
        let found = counts(&sample, &lists, changing);
        found.into_iter().find_map(|counts| Self::placed(structures, &sample, &counts, changing))
    }

    /// A layout with these counts under which pages are consistent.
    fn placed(
        structures: &mut Structures<'_>,
        sample: &[&Page],
        counts: &Counts,
        changing: usize,
    ) -> Option<Self> {
        let sizes = (0..WORDS).map(Size::Word).chain((0..2 * WORDS).map(Size::Half));
        let starts = || {
            let words = (0..WORDS).flat_map(|word| [Start::At(word), Start::Behind(word)]);
            words.chain(RULES.map(Start::By))
        };
        let layouts = sizes.flat_map(|size| starts().map(move |start| (size, start)));
        let judged = layouts.filter_map(|(size, start)| {
            let layout = Self { counts: counts.clone(), size, start };
            let fits = |page: &&Page| layout.fits(structures, page);
            Some((misfits(sample, changing, fits)?, layout))
        });
        let mut judged: Vec<_> = judged.collect();
        judged.sort_by_key(|(misfits, _)| *misfits);
        // Of few pages, other words may lead to free blocks, too.
        let agrees = |layout: &Self| {
            let agrees = |page: &&Page| layout.read(structures, page).is_some();
            misfits(sample, changing, agrees).is_some()
        };
        let layout = judged.into_iter().map(|(_, layout)| layout).find(agrees)?;
        layout.has_all_lists(structures, sample).then_some(layout)
    }

    /// Returns false if another word has nothing but blocks of its page: a list that is broken. Its blocks would count as in use.
    fn has_all_lists(&self, structures: &Structures<'_>, sample: &[&Page]) -> bool {
        let lists = || self.counts.free.iter().chain(&self.counts.foreign);
        let start = match self.start {
            Start::At(word) => Some(word),
            _ => None,
        };
        let others =
            (0..WORDS).filter(|word| lists().all(|list| list != word) && Some(*word) != start);
        others.into_iter().all(|word| {
            let is_block = |page: &&&Page| {
                let capacity = page.quarter(self.counts.capacity);
                self.blocks(structures, page).is_some_and(|(start, bytes)| {
                    number_of(page.head(word), start, bytes).is_some_and(|it| it < capacity)
                })
            };
            let is_empty = |page: &&&Page| page.head(word) == 0;
            !sample.iter().any(|page| is_block(&page))
                || !sample.iter().all(|page| is_empty(&page) || is_block(&page))
        })
    }

    /// Returns true if the heads of the page's lists are addresses of its blocks.
    fn fits(&self, structures: &Structures<'_>, page: &Page) -> bool {
        let Some((start, bytes)) = self.blocks(structures, page) else { return false };
        let capacity = page.quarter(self.counts.capacity);
        let lists = self.counts.free.iter().chain(&self.counts.foreign);
        let mut heads = lists.map(|list| page.head(*list)).filter(|head| *head != 0);
        heads.all(|head| number_of(head, start, bytes).is_some_and(|it| it < capacity))
    }

    /// The first block and the size of blocks, if they can be those of the page.
    fn blocks(&self, structures: &Structures<'_>, page: &Page) -> Option<(Address, u64)> {
        let bytes = match self.size {
            Size::Word(word) => page.words[word],
            Size::Half(half) => page.half(half),
        };
        let start = match self.start {
            Start::At(word) => Address(page.words[word]),
            Start::Behind(word) => Address(page.at.0.checked_add(page.words[word])?),
            Start::By(rule) => page.area.start.offset(rule(bytes)),
        };
        let capacity = page.quarter(self.counts.capacity);
        let end = Address(start.0.checked_add(bytes.checked_mul(capacity)?)?);
        let is_within = page.area.contains(&start)
            && (end <= page.area.end || capacity == 1 && structures.lies_in_memory(&(start..end)));
        let is_sound = bytes >= ALIGNMENT && bytes % ALIGNMENT == 0 && capacity > 0;
        (is_within && is_sound).then_some((start, bytes))
    }

    /// Reads the lists of a page. `None` if they do not agree with its counts.
    pub(super) fn read(&self, structures: &mut Structures<'_>, page: &Page) -> Option<PageBlocks> {
        let (start, bytes) = self.blocks(structures, page)?;
        let [used, capacity] =
            [self.counts.used, self.counts.capacity].map(|it| page.quarter(it) as usize);
        let mut is_free = vec![false; capacity];
        let mut mark = |list: &usize| {
            let mut next = page.head(*list);
            let mut count = 0;
            while next != 0 {
                let number = number_of(next, start, bytes)?;
                // No block is twice on lists, so this ends.
                if std::mem::replace(is_free.get_mut(number as usize)?, true) {
                    return None;
                }
                count += 1;
                next = structures.word(Address(next)).ok()?;
            }
            Some(count)
        };
        let mut total = |lists: &[usize]| lists.iter().map(&mut mark).sum::<Option<usize>>();
        let (free, foreign) = (total(&self.counts.free)?, total(&self.counts.foreign)?);
        (free + used == capacity && foreign <= used).then_some(PageBlocks { start, bytes, is_free })
    }
}

/// The number of the block at `at`, if a block begins there.
pub(super) fn number_of(at: u64, start: Address, bytes: u64) -> Option<u64> {
    let distance = at.checked_sub(start.0)?;
    (distance % bytes == 0).then_some(distance / bytes)
}

/// The number of pages that are not consistent; `None` if they are too many.
fn misfits(
    pages: &[&Page],
    changing: usize,
    mut is_consistent: impl FnMut(&&Page) -> bool,
) -> Option<usize> {
    let mut misfits = 0;
    for page in pages {
        misfits += usize::from(!is_consistent(page));
        if misfits > changing {
            return None;
        }
    }
    Some(misfits)
}

/// The words that are lists of blocks within their pages, with the lengths of the lists; without a length where a list is broken.
type Lists = Vec<(usize, Vec<Option<u64>>)>;

fn lists(structures: &mut Structures<'_>, pages: &[&Page], changing: usize) -> Lists {
    let mut steps = MAX_STEPS;
    let mut lists = Lists::new();
    for word in 0..WORDS {
        let mut lengths = Vec::new();
        let is_list = |page: &&Page| {
            let length = list_length(structures, page.head(word), &page.area, &mut steps);
            lengths.push(length);
            length.is_some()
        };
        if misfits(pages, changing, is_list).is_some()
            && lengths.iter().any(|length| length.is_some_and(|it| it > 0))
        {
            lists.push((word, lengths));
        }
    }
    lists
}

/// The number of blocks of the list, if it stays within the area and ends.
fn list_length(
    structures: &mut Structures<'_>,
    head: u64,
    area: &Range<Address>,
    steps: &mut u64,
) -> Option<u64> {
    let mut blocks = 0;
    let mut next = Address(head);
    while next.0 != 0 {
        let may_be_block = area.contains(&next) && next.is_aligned(ALIGNMENT);
        if !may_be_block || blocks > MAX_BLOCKS.min(length(area) / ALIGNMENT) {
            return None;
        }
        *steps = steps.checked_sub(1)?;
        blocks += 1;
        next = structures.pointer(next).ok()?;
    }
    Some(blocks)
}

/// The lists and counts under which pages add up, those with the most pages first.
fn counts(pages: &[&Page], lists: &Lists, changing: usize) -> Vec<Counts> {
    if lists.len() > MAX_LISTS {
        return Vec::new();
    }
    let mut found: Vec<(usize, Counts)> = Vec::new();
    for subset in 1_u32..1 << lists.len() {
        let is_free = |index: usize| subset >> index & 1 == 1;
        let free = || lists.iter().enumerate().filter(|it| is_free(it.0)).map(|it| it.1);
        let sum_of = |page| free().map(|(_, lengths)| lengths[page]).sum::<Option<u64>>();
        let sums: Vec<Option<u64>> = (0..pages.len()).map(sum_of).collect();
        for capacity in 0..4 * WORDS {
            for used in (0..4 * WORDS).filter(|used| *used != capacity) {
                let mut sums = sums.iter();
                let adds_up = |page: &&Page| {
                    let made = page.quarter(capacity);
                    let sum = sums.next().copied().flatten();
                    made > 0 && sum.is_some_and(|sum| sum + page.quarter(used) == made)
                };
                let Some(misfits) = misfits(pages, changing, adds_up) else { continue };
                let foreign = lists.iter().enumerate().filter(|it| !is_free(it.0));
                let foreign = foreign.map(|it| it.1.0).collect();
                let free = free().map(|(word, _)| *word).collect();
                found.push((misfits, Counts { free, foreign, used, capacity }));
            }
        }
    }
    found.sort_by_key(|(misfits, _)| *misfits);
    found.into_iter().map(|(_, counts)| counts).take(MAX_COUNTS).collect()
}
