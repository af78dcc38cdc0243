//! Walks synthetic heaps of mimalloc. Their writer shares no layout with the walker: the members of a page's structure lie in any order.

use std::collections::BTreeMap;

use allocator::{BlockState, Error, ExtentState, HeapMap};
use image::elf;
use linux::length;
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{ElfModule, SyntheticMemory};

const SLICE: u64 = 0x1_0000;
const MODULE: u64 = 0x7f60_0000_0000;
const ARENA: u64 = 0x7a00_0000_0000;
const ARENA_SLICES: u64 = 1024;
/// The first slices of the arena have its structures.
const INFO_SLICES: u64 = 5;
const MAP: u64 = 0x7b00_0000_0000;
const PART: u64 = 0x7c00_0000_0000;
const SEGMENT: u64 = 0x6a00_0000_0000;
const SEGMENT_SLICES: u64 = 512;
const HEAP: u64 = 0x7d00_0000_0000;
const THREAD: u64 = 0x7e00_0000_0740;

/// What a block is. Free ones are on one of three lists, and the others are in use, or wait on the list of their heap.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Use {
    Busy,
    Free,
    Local,
    Foreign,
    Delayed,
}

/// A page, or slices without one.
#[derive(Debug, Clone)]
enum Slices {
    Page { slices: u64, bytes: u64, blocks: Vec<Use> },
    Free(u64),
    Structures,
}

fn any_page(uses: Vec<Use>) -> impl Strategy<Value = Slices> {
    let kinds = prop_oneof![
        8 => (Just(1), prop::sample::select(vec![8_u64, 16, 48, 64, 192, 512, 1024, 2048])),
        3 => (Just(8), prop::sample::select(vec![10_240_u64, 20_480, 65_536])),
        1 => (70..90_u64, Just(SLICE * 70 - 4096)),
    ];
    (kinds, prop::collection::vec(prop::sample::select(uses), 1..60), 1..100_usize).prop_map(
        |((slices, bytes), blocks, made)| {
            // Some bytes before the first block are left.
            let room = ((slices * SLICE - 2048) / bytes) as usize;
            let blocks = blocks.into_iter().cycle().take(made.min(room)).collect();
            Slices::Page { slices, bytes, blocks }
        },
    )
}

fn any_slices(uses: Vec<Use>) -> impl Strategy<Value = Vec<Slices>> {
    let one = prop_oneof![
        9 => any_page(uses),
        1 => (1..4_u64).prop_map(Slices::Free),
        1 => Just(Slices::Structures),
    ];
    // Pages that differ, with a block on each list: without them, nothing tells a layout from others.
    let mixed = |bytes, count: usize| {
        let some =
            [Use::Busy, Use::Free, Use::Local, Use::Foreign, Use::Busy, Use::Free, Use::Local];
        let blocks = some.into_iter().cycle().take(count).collect();
        Slices::Page { slices: 1, bytes, blocks }
    };
    prop::collection::vec(one, 6..14).prop_map(move |mut all| {
        all.insert(0, mixed(80, 4));
        all.extend([mixed(48, 7), mixed(192, 13), mixed(320, 29), mixed(1024, 17)]);
        all
    })
}

/// The blocks by address, with their sizes and whether they are in use; and the bytes of free slices.
#[derive(Debug, Default, PartialEq)]
struct Truth {
    blocks: BTreeMap<u64, (u64, bool)>,
    free_slices: u64,
}

/// Writes the lists of a page with its first block at `start`. Returns the heads of its three lists, and adds to the heap's one.
fn write_blocks(
    memory: &mut SyntheticMemory,
    (start, end, bytes): (u64, u64, u64),
    blocks: &[Use],
    delayed: &mut u64,
    truth: &mut Truth,
) -> [u64; 3] {
    let mut heads = [0; 3];
    for (index, usage) in blocks.iter().enumerate() {
        let at = start + index as u64 * bytes;
        let head = match usage {
            Use::Busy => None,
            Use::Free => Some(&mut heads[0]),
            Use::Local => Some(&mut heads[1]),
            Use::Foreign => Some(&mut heads[2]),
            Use::Delayed => Some(&mut *delayed),
        };
        truth.blocks.insert(at, (bytes, head.is_none()));
        // What a block in use has may look like anything.
        let word = head.map_or(0x5a5a_5a5a_5a5a_5a5a, |head| std::mem::replace(head, at));
        memory.write_u64(at, word);
    }
    // Those that were never made are one piece.
    let rest = (end - start) / bytes - blocks.len() as u64;
    if rest > 0 {
        truth.blocks.insert(start + blocks.len() as u64 * bytes, (rest * bytes, false));
    }
    // A page with nothing in use is free as a whole.
    if !blocks.contains(&Use::Busy) {
        truth.blocks.retain(|at, _| !(start..end).contains(at));
        truth.free_slices += end - start / SLICE * SLICE;
    }
    heads
}

fn write_module(memory: &mut SyntheticMemory, variable: u64) {
    let mut module = ElfModule::new("/usr/lib/libmimalloc.so", MODULE, 0x4000);
    module.symbol("malloc", MODULE + 0x3800);
    module.symbol("mi_malloc", MODULE + 0x3840);
    module.variables(None, &[1, 2, ARENA + 0x40, variable, 3]);
    module.write(memory);
}

/// A release of v3.
#[derive(Debug, Clone)]
struct Release {
    /// The words of: thread, free, counts, local_free, xthread_free, size, start, next, and the arena with the word behind it.
    words: Vec<usize>,
    /// The places of used, capacity, reserved and flags in the word of counts.
    counts: Vec<usize>,
    is_relative: bool,
    is_in_slice: bool,
    map_header: u64,
    arena_word: usize,
}

fn any_release() -> impl Strategy<Value = Release> {
    let words = Just((0..14).collect::<Vec<usize>>()).prop_shuffle();
    let counts = Just(vec![0, 1, 2, 3]).prop_shuffle();
    (words, counts, any::<bool>(), any::<bool>(), 0..20_u64, 3..7_usize).prop_map(
        |(mut words, counts, is_relative, is_in_slice, header, arena_word)| {
            // The last two words are the arena's.
            words.truncate(8);
            words.push(14);
            Release { words, counts, is_relative, is_in_slice, map_header: header * 8, arena_word }
        },
    )
}

fn write_v3(release: &Release, all: &[Slices]) -> (SyntheticMemory, Truth) {
    let (mut memory, mut truth) = (SyntheticMemory::default(), Truth::default());
    memory.map(ARENA, ARENA_SLICES * SLICE);
    memory.map(MAP, 0x20_0000 + 0x1000);
    memory.map(PART, SLICE);
    write_module(&mut memory, MAP);
    memory.write_u64(MAP + release.map_header + (ARENA >> 29) * 8, PART);
    let arena = ARENA + 0x40;
    for (word, value) in
        [ARENA_SLICES, INFO_SLICES, 7, arena + 0x200, arena + 0x400].into_iter().enumerate()
    {
        memory.write_u64(arena + (release.arena_word + word) as u64 * 8, value);
    }
    let mut free = vec![0_u8; ARENA_SLICES as usize / 8];
    let mut slice = INFO_SLICES;
    for (number, part) in all.iter().enumerate() {
        let area = ARENA + slice * SLICE;
        slice += match part {
            Slices::Free(slices) => {
                (slice..slice + slices).for_each(|it| free[it as usize / 8] |= 1 << (it % 8));
                truth.free_slices += slices * SLICE;
                *slices
            }
            Slices::Structures => 1,
            Slices::Page { slices, bytes, blocks } => {
                let structure = match release.is_in_slice {
                    true => area,
                    false => ARENA + SLICE + number as u64 * 0x100,
                };
                let start = area + if release.is_in_slice { 256 } else { 0 };
                let room = (start, area + slices * SLICE, *bytes);
                let [local, other, foreign] =
                    write_blocks(&mut memory, room, blocks, &mut 0, &mut truth);
                let is_used = |usage: &&Use| matches!(usage, Use::Busy | Use::Foreign);
                let used = blocks.iter().filter(is_used).count() as u64;
                let reserved = (area + slices * SLICE - start) / bytes;
                let numbers = [used, blocks.len() as u64, reserved, 0x300];
                let counts = numbers.iter().zip(&release.counts);
                let counts = counts.fold(0, |word, (number, place)| word | number << (16 * place));
                let place = if release.is_relative { start.wrapping_sub(structure) } else { start };
                let values =
                    [THREAD, local, counts, other, foreign | 1, *bytes, place, HEAP, arena];
                for (word, value) in release.words.iter().zip(values) {
                    memory.write_u64(structure + *word as u64 * 8, value);
                }
                memory.write_u64(structure + 15 * 8, slice | slices << 32);
                // The map does not have the last slices of large pages.
                for index in 0..(*slices).min(63) {
                    memory.write_u64(PART + (((area >> 16) + index) & 0x1fff) * 8, structure);
                }
                *slices
            }
        };
    }
    truth.free_slices += (ARENA_SLICES - slice) * SLICE;
    (slice..ARENA_SLICES).for_each(|it| free[it as usize / 8] |= 1 << (it % 8));
    memory.write(arena + 0x400 - free.len() as u64, &free);
    (memory, truth)
}

/// A release of v2: whether its pages' structures have the place of blocks, as since 2.1.4.
fn write_v2(has_start: bool, first: u64, all: &[Slices]) -> (SyntheticMemory, Truth) {
    let (mut memory, mut truth) = (SyntheticMemory::default(), Truth::default());
    memory.map(SEGMENT, SEGMENT_SLICES * SLICE);
    memory.map(HEAP, 0x2000);
    write_module(&mut memory, HEAP);
    for (distance, word) in [(40, SEGMENT_SLICES), (32, 1), (16, SEGMENT_SLICES), (8, THREAD)] {
        memory.write_u64(SEGMENT + first - distance, word);
    }
    let structure_bytes = if has_start { 96 } else { 80 };
    let mut delayed = 0;
    let mut slice = 1;
    memory.write(SEGMENT + first, &[1, 0, 0, 0]);
    let rest = SEGMENT_SLICES - 1 - all.iter().map(slices_of).sum::<u64>();
    for part in all.iter().chain([&Slices::Free(rest)]) {
        let slices = slices_of(part);
        let area = SEGMENT + slice * SLICE;
        let structure = SEGMENT + first + slice * structure_bytes;
        memory.write(structure, &(slices as u32).to_le_bytes());
        match part {
            Slices::Page { bytes, blocks, .. } => {
                let start = area + if !has_start && *bytes <= 1024 { 384 } else { 0 };
                let room = (start, area + slices * SLICE, *bytes);
                let lists = write_blocks(&mut memory, room, blocks, &mut delayed, &mut truth);
                let is_free = |usage: &&Use| matches!(usage, Use::Free | Use::Local);
                let used = (blocks.len() - blocks.iter().filter(is_free).count()) as u64;
                memory.write_u64(structure + 8, (blocks.len() as u64) << 16 | 1);
                let words = match has_start {
                    true => vec![lists[0], lists[1], used, *bytes, start, lists[2] | 2, HEAP],
                    false => vec![lists[0], used | bytes << 32, lists[1], lists[2] | 2, HEAP],
                };
                for (word, value) in words.into_iter().enumerate() {
                    memory.write_u64(structure + 16 + word as u64 * 8, value);
                }
            }
            Slices::Free(_) | Slices::Structures => truth.free_slices += slices * SLICE,
        }
        slice += slices;
    }
    memory.write_u64(HEAP + 0x300, delayed);
    memory.write_u64(HEAP + 0x308, THREAD);
    (memory, truth)
}

fn slices_of(part: &Slices) -> u64 {
    match part {
        Slices::Page { slices, .. } | Slices::Free(slices) => *slices,
        Slices::Structures => 1,
    }
}

fn walk(memory: SyntheticMemory) -> Result<HeapMap, Error> {
    let image = memory.image();
    let modules = elf::modules(&image);
    let found = allocator::find_allocator(&image, &modules, None);
    allocator::walk(&image, &found, &[])
}

fn walked(heap: &HeapMap) -> Truth {
    let mut truth = Truth::default();
    for extent in &heap.extents {
        match extent.state {
            ExtentState::Dirty => truth.free_slices += length(&extent.range),
            ExtentState::Active => {
                let blocks = heap.blocks_of(extent).map(|(_, block)| {
                    (block.address.0, (block.bytes(), block.state() == BlockState::InUse))
                });
                truth.blocks.extend(blocks);
            }
            _ => {}
        }
    }
    truth
}

const OF_V3: [Use; 4] = [Use::Busy, Use::Free, Use::Local, Use::Foreign];
const OF_V2: [Use; 5] = [Use::Busy, Use::Free, Use::Local, Use::Foreign, Use::Delayed];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever the members of a page's structure are, they are found.
    #[test]
    fn a_heap_of_any_layout_of_v3(release in any_release(), all in any_slices(OF_V3.into())) {
        let (memory, truth) = write_v3(&release, &all);
        let heap = walk(memory).unwrap();
        prop_assert_eq!(&heap.walker, "mimalloc 3");
        prop_assert_eq!(heap.findings.len(), 0);
        prop_assert_eq!(walked(&heap), truth);
    }

    #[test]
    fn a_heap_of_v2(has_start in any::<bool>(), first in 30..90_u64, all in any_slices(OF_V2.into())) {
        let (memory, truth) = write_v2(has_start, first * 8, &all);
        let heap = walk(memory).unwrap();
        prop_assert_eq!(&heap.walker, "mimalloc 2");
        prop_assert_eq!(heap.findings.len(), 0);
        prop_assert_eq!(walked(&heap), truth);
    }

    /// Without a thread that may change a page, a heap that contradicts itself is an error. No damage makes the walk fail otherwise.
    #[test]
    fn a_damaged_heap_is_never_a_wrong_report(
        release in any_release(), all in any_slices(OF_V3.into()), place in any::<Index>(), word in any::<u64>(),
    ) {
        let (mut memory, truth) = write_v3(&release, &all);
        let lists = truth.blocks.iter().filter(|(_, (_, is_in_use))| !is_in_use);
        let free: Vec<u64> = lists.map(|(at, _)| *at).filter(|at| memory.word(*at) != 0).collect();
        prop_assume!(!free.is_empty());
        // The list of a free block leads somewhere else.
        memory.write_u64(free[place.index(free.len())], word | 8);
        match walk(memory) {
            Ok(heap) => prop_assert!(!heap.findings.is_empty(), "{:?}", heap.totals),
            Err(error) => prop_assert!(matches!(error, Error::Mimalloc(_)), "{error}"),
        }
    }
}
