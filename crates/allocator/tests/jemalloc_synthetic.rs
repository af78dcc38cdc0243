//! Walks synthetic jemalloc heaps, intact and damaged. Their writer shares no layout with the walker.

use std::ops::Range;
use std::sync::LazyLock;

use allocator::{Block, BlockState, Error, ExtentState, Finding, HeapMap};
use image::elf;
use linux::Address;
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{
    JemallocHeap, JemallocPart, JemallocRelease, JemallocTruth, PagesUse, RegionUse,
    SyntheticMemory,
};

const THREADS: usize = 5;

fn walk(memory: SyntheticMemory) -> Result<HeapMap, Error> {
    let image = memory.image();
    let modules = elf::modules(&image);
    let found = allocator::find_allocator(&image, &modules, None);
    allocator::walk(&image, &found, &[])
}

/// An extent in a form that walks and truths can be converted to.
#[derive(Debug, PartialEq)]
struct Row {
    range: Range<Address>,
    arena: u32,
    state: ExtentState,
    region_bytes: Option<u64>,
    blocks: Vec<Block>,
}

fn walked(heap: &HeapMap) -> Vec<Row> {
    let row = |extent: &allocator::Extent| Row {
        range: extent.range.clone(),
        arena: extent.arena.unwrap(),
        state: extent.state,
        region_bytes: extent.region_bytes,
        blocks: heap.blocks_of(extent).map(|(_, block)| block).collect(),
    };
    heap.extents.iter().map(row).collect()
}

fn expected(truth: &JemallocTruth) -> Vec<Row> {
    let state = |usage| match usage {
        PagesUse::Active => ExtentState::Active,
        PagesUse::Dirty => ExtentState::Dirty,
        PagesUse::Muzzy => ExtentState::Muzzy,
        PagesUse::Retained => ExtentState::Retained,
        PagesUse::Base => ExtentState::Metadata,
    };
    let block_state = |usage| match usage {
        RegionUse::InUse => BlockState::InUse,
        RegionUse::Free => BlockState::Free,
        RegionUse::Cached => BlockState::Tcache,
        RegionUse::Own => BlockState::Overhead,
    };
    let row = |extent: &testkit::SyntheticExtent| {
        let block = |it: &testkit::SyntheticRegion| {
            Block::new(Address(it.address), it.bytes, block_state(it.usage))
        };
        let Range { start, end } = extent.range;
        let mut blocks: Vec<_> = extent.regions.iter().map(block).collect();
        if extent.usage == PagesUse::Base {
            blocks.push(Block::new(Address(start), end - start, BlockState::Overhead));
        }
        Row {
            range: Address(start)..Address(end),
            arena: extent.arena,
            state: state(extent.usage),
            region_bytes: extent.region_bytes,
            blocks,
        }
    };
    truth.extents.iter().map(row).collect()
}

fn assert_true(heap: &HeapMap, truth: &JemallocTruth) {
    assert!(heap.findings.is_empty(), "{:#?}", heap.findings);
    let (walked, expected) = (walked(heap), expected(truth));
    for (walked, expected) in walked.iter().zip(&expected) {
        assert_eq!(walked, expected);
    }
    assert_eq!(walked.len(), expected.len());
    assert_eq!(heap.arenas.len(), truth.arenas.len());
    for (index, (arena, truth)) in heap.arenas.iter().zip(&truth.arenas).enumerate() {
        assert!(arena.walked && !arena.locked);
        assert_eq!(arena.address, Address(truth.address));
        assert_eq!(arena.system_bytes, truth.mapped);
        assert_eq!(arena.threads, Some(truth.threads));
        assert_eq!(arena.is_main, index == 0);
    }
}

/// A build of jemalloc: its release, and the bits of its addresses.
type Build = (JemallocRelease, u32);

fn builds() -> impl Iterator<Item = Build> {
    JemallocRelease::ALL.into_iter().flat_map(|release| [(release, 48), (release, 57)])
}

fn any_build() -> impl Strategy<Value = Build> {
    proptest::sample::select(builds().collect::<Vec<_>>())
}

#[derive(Debug, Clone)]
enum Step {
    Malloc(usize, u64),
    Free(usize, Index),
    Flush(usize),
    Decay(usize, PagesUse, PagesUse),
}

fn any_step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![6 => 1..512_u64, 3 => 1..14_337_u64, 2 => 1..200_000_u64, 1 => 1..3_000_000_u64];
    let decays = vec![
        (PagesUse::Dirty, PagesUse::Muzzy),
        (PagesUse::Dirty, PagesUse::Retained),
        (PagesUse::Muzzy, PagesUse::Retained),
    ];
    let decays = proptest::sample::select(decays);
    prop_oneof![
        40 => (0..THREADS, bytes).prop_map(|(thread, bytes)| Step::Malloc(thread, bytes)),
        30 => (0..THREADS, any::<Index>()).prop_map(|(thread, index)| Step::Free(thread, index)),
        1 => (0..THREADS).prop_map(Step::Flush),
        2 => (0..THREADS, decays).prop_map(|(thread, (from, to))| Step::Decay(thread, from, to)),
    ]
}

fn make((release, lg_vaddr): Build, steps: &[Step]) -> JemallocHeap {
    let mut heap = JemallocHeap::new(release, lg_vaddr, THREADS);
    let mut live = Vec::new();
    for step in steps {
        match step {
            Step::Malloc(thread, bytes) => live.push(heap.malloc(*thread, *bytes)),
            Step::Free(thread, index) if !live.is_empty() => {
                heap.free(*thread, live.swap_remove(index.index(live.len())));
            }
            Step::Free(..) => {}
            Step::Flush(thread) => heap.flush(*thread),
            Step::Decay(thread, from, to) => heap.decay(*thread, *from, *to),
        }
    }
    heap
}

/// A heap with extents of all kinds in each arena.
fn sample(build: Build) -> JemallocHeap {
    let (release, lg_vaddr) = build;
    let mut heap = JemallocHeap::new(release, lg_vaddr, THREADS);
    let sizes = [8, 24, 100, 320, 520, 2000, 5000, 14_000, 20_000, 33_000, 150_000];
    let mut live = Vec::new();
    for index in 0..400 {
        live.push(heap.malloc(index % THREADS, sizes[index * 7 % sizes.len()] + index as u64 % 13));
    }
    for (index, pointer) in live.iter().enumerate().filter(|(index, _)| index % 3 == 0) {
        heap.free(index % THREADS, *pointer);
        if index == 150 {
            heap.decay(0, PagesUse::Dirty, PagesUse::Muzzy);
            heap.decay(1, PagesUse::Dirty, PagesUse::Retained);
        }
    }
    heap
}

#[test]
fn a_heap_of_each_build() {
    for build in builds() {
        let mut memory = SyntheticMemory::default();
        let truth = sample(build).write(&mut memory);
        let kinds = |usage| truth.extents.iter().filter(|it| it.usage == usage).count();
        assert!(
            [PagesUse::Dirty, PagesUse::Muzzy, PagesUse::Retained]
                .map(kinds)
                .iter()
                .all(|it| *it > 0)
        );
        assert_true(&walk(memory).unwrap(), &truth);
    }
}

/// The descriptors of both generations have their ranges at the same place. So each element of a heap of equal slabs
/// seemed to fit both.
#[test]
fn a_heap_of_equal_slabs_has_the_layout_of_its_own_generation() {
    for build in builds() {
        for bytes in [16, 32, 48, 64, 128, 256] {
            let mut heap = JemallocHeap::new(build.0, build.1, 1);
            for _ in 0..(1 << 18) / bytes {
                heap.malloc(0, bytes);
            }
            let mut memory = SyntheticMemory::default();
            let truth = heap.write(&mut memory);
            let walked = walk(memory).unwrap_or_else(|error| panic!("{build:?}, {bytes}: {error}"));
            assert_true(&walked, &truth);
        }
    }
}

/// Memory that looks like arena 0, in a process with one arena, but counts nothing.
#[test]
fn of_several_possible_arenas_the_one_that_counts_its_extents_is_accepted() {
    const DECOY: u64 = 0x6666_0000_0000;
    const BYTES: u64 = 128 << 10;
    for build in builds() {
        let mut heap = JemallocHeap::new(build.0, build.1, 1);
        for bytes in (8..5000).step_by(8) {
            heap.malloc(0, bytes);
        }
        let mut memory = SyntheticMemory::default();
        let truth = heap.write(&mut memory);
        let [arena] = &truth.arenas[..] else { panic!("{:?}", truth.arenas) };
        memory.map(DECOY, 2 * BYTES);
        let words: Vec<_> = truth.words.iter().map(|at| (*at, memory.word(*at))).collect();
        for (at, word) in &words {
            let is_of_arena = (arena.address..arena.address + BYTES).contains(at);
            if is_of_arena && memory.image().state.mappings.find(Address(*word)).is_some() {
                memory.write_u64(DECOY + (at - arena.address), DECOY + BYTES);
            }
        }
        // The first word that leads to the arena is in the array of arenas, because variables are written first.
        let mut cells = words.iter().filter(|(_, word)| *word == arena.address);
        let (cell, _) = cells.next().unwrap();
        memory.write_u64(cell - 512, DECOY);
        assert_true(&walk(memory).unwrap(), &truth);
    }
}

/// An arena whose count differs by a page is not accepted: its extents have no blocks, and a finding names it.
#[test]
fn a_count_that_differs_by_a_page() {
    for build in builds() {
        for (count, arena) in [(0, 0), (1, 0), (2, 0), (3, 0), (0, 2), (3, 1)] {
            let mut memory = SyntheticMemory::default();
            let truth = sample(build).write(&mut memory);
            let at = truth.arenas[arena].counts[count];
            memory.write_u64(at, memory.word(at) + 1);
            let heap = walk(memory).unwrap();
            let names_it = |it: &Finding| matches!(it, Finding::ArenaUnread { arena: at, .. } if *at == heap.arenas[arena].address);
            assert!(heap.findings.iter().any(names_it), "{build:?} {count}: {:?}", heap.findings);
            assert!(!heap.arenas[arena].walked);
            for (mut walked, mut expected) in walked(&heap).into_iter().zip(expected(&truth)) {
                if expected.arena == arena as u32 && expected.state != ExtentState::Metadata {
                    expected.blocks.clear();
                }
                // The caches of its threads are not read, although they contain regions of other arenas, too.
                for block in walked.blocks.iter_mut().chain(&mut expected.blocks) {
                    if matches!(block.state(), BlockState::Tcache | BlockState::Overhead) {
                        *block = block.in_state(BlockState::InUse);
                    }
                }
                assert_eq!(walked, expected);
            }
        }
    }
}

/// A layout that is wrong by a word gives no blocks, or at least a finding.
#[test]
fn a_shifted_layout_is_not_accepted() {
    for build in builds() {
        for part in
            [JemallocPart::Counts, JemallocPart::Bitmap, JemallocPart::Pages, JemallocPart::Base]
        {
            let mut heap = sample(build);
            heap.shift(part, 8);
            let mut memory = SyntheticMemory::default();
            heap.write(&mut memory);
            let walked = walk(memory);
            let is_noticed = walked.as_ref().map_or(true, |heap| !heap.findings.is_empty());
            assert!(is_noticed, "{build:?} {part:?}");
            if part == JemallocPart::Counts {
                assert!(walked.is_ok_and(|heap| heap.arenas.iter().all(|it| !it.walked)));
            }
        }
    }
}

/// Behind the right place, a base seemed to have no blocks, and to count none.
#[test]
fn a_base_outside_its_own_blocks_is_noticed() {
    for (memory, truth) in SAMPLES.iter() {
        let bases: Vec<u64> =
            truth.words.iter().copied().filter(|&at| memory.word(at) & 0xfff == 0xc0).collect();
        assert!(!bases.is_empty());
        for at in bases {
            let mut memory = memory.clone();
            memory.write_u64(at, memory.word(at) ^ 0x10);
            if let Ok(heap) = walk(memory)
                && heap.findings.is_empty()
            {
                let rows: Vec<_> = walked(&heap).into_iter().map(decidable).collect();
                let expected: Vec<_> = expected(truth).into_iter().map(decidable).collect();
                assert_eq!(rows, expected, "{at:#x}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(testkit::cases(20)) })]

    #[test]
    fn random_steps_are_walked_exactly(build in any_build(), steps in prop::collection::vec(any_step(), 0..300)) {
        let mut memory = SyntheticMemory::default();
        let truth = make(build, &steps).write(&mut memory);
        assert_true(&walk(memory).unwrap(), &truth);
    }
}

/// The heaps that are damaged, one for each build.
static SAMPLES: LazyLock<Vec<(SyntheticMemory, JemallocTruth)>> = LazyLock::new(|| {
    let write = |build| {
        let mut memory = SyntheticMemory::default();
        let truth = sample(build).write(&mut memory);
        (memory, truth)
    };
    builds().map(write).collect()
});

/// A row without the facts that no reader can know after damage: which regions are in thread caches, since a slab
/// counts them as in use, and where in its first page a large allocation begins.
fn decidable(mut row: Row) -> Row {
    for block in &mut row.blocks {
        let is_allocated = block.state() != BlockState::Free;
        let state = if is_allocated { BlockState::InUse } else { BlockState::Free };
        let is_large = row.state == ExtentState::Active && row.region_bytes.is_none();
        assert!(!is_large || block.address.is_aligned(64));
        let address = if is_large { block.address.align_down(4096) } else { block.address };
        *block = Block::new(address, block.bytes(), state);
    }
    row
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(testkit::cases(30)) })]

    /// A damaged word gives findings or the same extents and blocks, and never a panic.
    #[test]
    fn damage_is_noticed(
        sample in any::<Index>(),
        word in any::<Index>(),
        other in any::<Index>(),
        (bit, kind) in (0..64, 0..5),
    ) {
        let (memory, truth) = &SAMPLES[sample.index(SAMPLES.len())];
        let words: Vec<u64> = truth.words.iter().copied().collect();
        let at = words[word.index(words.len())];
        let before = memory.word(at);
        let after = match kind {
            0 => 0,
            1 => before ^ (1_u64 << bit),
            2 => before.wrapping_add(8),
            3 => before.wrapping_sub(4096),
            _ => memory.word(words[other.index(words.len())]),
        };
        let mut memory = memory.clone();
        memory.write_u64(at, after);
        if let Ok(heap) = walk(memory)
            && heap.findings.is_empty()
        {
            let rows: Vec<_> = walked(&heap).into_iter().map(decidable).collect();
            let expected: Vec<_> = expected(truth).into_iter().map(decidable).collect();
            for (row, expected) in rows.iter().zip(&expected) {
                prop_assert_eq!(row, expected, "{:#x}: {:#x} -> {:#x}", at, before, after);
            }
            prop_assert_eq!(rows.len(), expected.len());
        }
    }
}
