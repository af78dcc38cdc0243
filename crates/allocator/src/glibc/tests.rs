//! Walks of synthetic heaps: of every release, scripted and random, damaged, and with layouts that are wrong on
//! purpose.

use std::ops::Range;

use image::{Image, elf};
use linux::arch::Cpu;
use linux::{Address, Machine, Mapping, Mappings, PageRun, PageState, Pages, length};
use proptest::prelude::*;
use testkit::{ChunkUse, GlibcRelease, MallocHeap, MallocTruth, SyntheticChunk, SyntheticMemory};

use crate::find::glibc_module;
use crate::glibc::layout::Layouts;
use crate::glibc::walk::walk_with;
use crate::{Allocator, BlockState, Error, Finding, HeapMap, Totals, find_allocator, libc};

fn walk(image: &Image<'_>) -> Result<HeapMap, Error> {
    let modules = elf::modules(image);
    let glibc = glibc_module(&modules).ok_or(Error::NoAllocator)?;
    Ok(super::walk(image, glibc, &[])?)
}

/// A damaged core may have a mapping of any size. The search for arenas outside of the list took hours.
#[test]
fn a_mapping_that_no_process_has_room_for_takes_no_longer() {
    let heap =
        run(Machine::default(), GlibcRelease::V2_36, &[Step::HeapMap { thread: 1, bytes: 500 }]);
    let mut memory = SyntheticMemory::default();
    heap.write(&mut memory);
    let mut image = memory.image();
    let expected = walk(&image).unwrap();
    let huge = Mapping::anonymous(Address(1 << 47)..Address(1 << 62));
    let mappings = image.state.mappings.iter().cloned().chain([huge]);
    image.state.mappings = Mappings::new(mappings.collect());
    let walked = walk(&image).unwrap();
    assert_eq!((walked.totals, walked.findings), (expected.totals, expected.findings));
}

/// An action of a program.
#[derive(Debug, Clone)]
enum Step {
    HeapMap { thread: usize, bytes: u64 },
    Memalign { bits: u32, bytes: u64 },
    Free { thread: usize, which: usize },
    Stranger { bytes: u64 },
    FillHeap { thread: usize },
    BlockBreak,
}

const THREADS: usize = 3;
/// Beyond the synthetic program break.
const BREAK_LIMIT: u64 = 0x7000_0000_0000;

fn run(machine: Machine, release: GlibcRelease, steps: &[Step]) -> MallocHeap {
    let mut heap = MallocHeap::on(machine, release, THREADS);
    let mut pointers = Vec::new();
    for step in steps {
        match *step {
            Step::HeapMap { thread, bytes } => pointers.push(heap.malloc(thread, bytes)),
            Step::Memalign { bits, bytes } => pointers.push(heap.memalign(1 << bits, bytes)),
            Step::Free { thread, which } if !pointers.is_empty() => {
                heap.free(thread, pointers.swap_remove(which % pointers.len()));
            }
            Step::Free { .. } => {}
            Step::Stranger { bytes } => heap.sbrk_by_stranger(bytes),
            Step::FillHeap { thread } => heap.fill_heap(thread),
            Step::BlockBreak => heap.block_break(),
        }
    }
    heap
}

fn step() -> impl Strategy<Value = Step> {
    let thread = 0..THREADS;
    let bytes = prop_oneof![
        8 => 0_u64..200,
        4 => 200_u64..2000,
        2 => 2000_u64..40_000,
        1 => 100_000_u64..300_000,
    ];
    prop_oneof![
        30 => (thread.clone(), bytes).prop_map(|(thread, bytes)| Step::HeapMap { thread, bytes }),
        25 => (thread.clone(), 0..1000_usize).prop_map(|(thread, which)| Step::Free { thread, which }),
        2 => (5..21_u32, 0..9000_u64).prop_map(|(bits, bytes)| Step::Memalign { bits, bytes }),
        1 => (1..30_000_u64).prop_map(|bytes| Step::Stranger { bytes }),
        1 => thread.prop_map(|thread| Step::FillHeap { thread }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let block = prop_oneof![3 => Just(None), 1 => (0..100_usize).prop_map(Some)];
    (prop::collection::vec(step(), 0..300), block).prop_map(|(mut steps, block)| {
        if let Some(at) = block {
            steps.insert(at.min(steps.len()), Step::BlockBreak);
        }
        steps
    })
}

/// Machines with pages of each size.
fn machines() -> [Machine; 3] {
    [4, 16, 64].map(|kibibytes| Machine::new(Cpu::OWN, kibibytes << 10).expect("kernels have it"))
}

fn machine() -> impl Strategy<Value = Machine> {
    prop::sample::select(machines().to_vec())
}

fn release() -> impl Strategy<Value = GlibcRelease> {
    prop::sample::select(GlibcRelease::ALL.to_vec())
}

/// A heap with chunks of every kind.
fn rich(release: GlibcRelease) -> MallocHeap {
    rich_on(Machine::default(), release)
}

fn rich_on(machine: Machine, release: GlibcRelease) -> MallocHeap {
    let mut heap = MallocHeap::on(machine, release, THREADS);
    for thread in 0..THREADS {
        let sizes =
            || (0..400).map(|index| 16 + index * 7919 % 300).chain((0..60).map(|i| 1000 * i));
        let pointers: Vec<u64> = sizes().map(|bytes| heap.malloc(thread, bytes)).collect();
        for pointer in pointers.iter().step_by(2) {
            heap.free(thread, *pointer);
        }
        heap.fill_heap(thread);
        heap.sbrk_by_stranger(5000 + thread as u64);
        for _ in 0..2 {
            let pointer = heap.malloc(thread, 60_000);
            heap.malloc(thread, 24);
            heap.free(thread, pointer);
        }
        heap.malloc(thread, 1 << 20);
        heap.memalign(1 << (5 * (thread + 1)), 200_000);
    }
    heap
}

fn state_of(usage: ChunkUse) -> BlockState {
    match usage {
        ChunkUse::InUse => BlockState::InUse,
        ChunkUse::Free => BlockState::Free,
        ChunkUse::Fastbin => BlockState::Fastbin,
        ChunkUse::Cached => BlockState::Tcache,
        ChunkUse::Top => BlockState::Top,
        ChunkUse::Fencepost => BlockState::Overhead,
        ChunkUse::Mmapped => BlockState::Mmapped,
    }
}

/// The sums of `truth`, computed without the reader's help.
fn totals_of(truth: &MallocTruth) -> Totals {
    let sum = |usages: &[ChunkUse]| {
        let chunks = truth.chunks.iter().filter(|chunk| usages.contains(&chunk.usage));
        chunks.fold((0, 0), |(count, bytes), chunk| (count + 1, bytes + chunk.bytes))
    };
    let (in_use_chunks, in_use_bytes) = sum(&[ChunkUse::InUse]);
    let (free_chunks, free_bytes) = sum(&[ChunkUse::Free, ChunkUse::Top]);
    let (fastbin_chunks, fastbin_bytes) = sum(&[ChunkUse::Fastbin]);
    let (tcache_chunks, tcache_bytes) = sum(&[ChunkUse::Cached]);
    let mmapped = truth.chunks.iter().filter(|chunk| chunk.usage == ChunkUse::Mmapped);
    let bytes_of = |chunk: &SyntheticChunk| {
        let region = truth.regions.iter().find(|region| region.contains(&chunk.address));
        region.map_or(0, |region| region.end - region.start)
    };
    Totals {
        system_bytes: truth.system_bytes.iter().sum(),
        in_use_chunks,
        in_use_bytes,
        free_chunks,
        free_bytes,
        fastbin_chunks,
        fastbin_bytes,
        tcache_chunks,
        tcache_bytes,
        mmapped_chunks: mmapped.clone().count() as u64,
        mmapped_bytes: mmapped.map(bytes_of).sum(),
    }
}

fn assert_equals(malloc: &HeapMap, truth: &MallocTruth) {
    assert_eq!(malloc.findings, findings_of(truth));
    let chunks: Vec<_> =
        malloc.blocks.iter().map(|chunk| (chunk.address.0, chunk.bytes(), chunk.state())).collect();
    let expected: Vec<_> = truth
        .chunks
        .iter()
        .map(|chunk| (chunk.address, chunk.bytes, state_of(chunk.usage)))
        .collect();
    let differing = chunks.iter().zip(&expected).find(|(walked, told)| walked != told);
    assert_eq!(differing, None);
    assert_eq!(chunks.len(), expected.len());
    let regions: Vec<_> =
        malloc.extents.iter().map(|extent| extent.range.start.0..extent.range.end.0).collect();
    assert_eq!(regions, truth.regions);
    let system_bytes: Vec<_> = malloc.arenas.iter().map(|arena| arena.system_bytes).collect();
    assert_eq!(system_bytes, truth.system_bytes);
    let trimmable: Vec<_> =
        malloc.trimmable.iter().map(|range| range.start.0..range.end.0).collect();
    assert_eq!(trimmable, truth.trimmable);
    assert_eq!(malloc.totals, totals_of(truth));
}

/// The findings on an undamaged heap: memory between the segments that brk extended is foreign.
fn findings_of(truth: &MallocTruth) -> Vec<Finding> {
    let breaks: Vec<_> = truth.regions.iter().filter(|it| it.start < BREAK_LIMIT).collect();
    let gaps = breaks.windows(2).map(|pair| Address(pair[0].end)..Address(pair[1].start));
    let gaps: Vec<Range<Address>> = gaps.filter(|gap| length(gap) > 0).collect();
    let bytes: u64 = gaps.iter().map(length).sum();
    gaps.first().map(|gap| Finding::ForeignMemory { at: gap.start, bytes }).into_iter().collect()
}

/// The findings that an undamaged heap would not have. Its own findings must be there.
fn problems(malloc: &HeapMap, truth: &MallocTruth) -> Vec<Finding> {
    let expected = findings_of(truth);
    assert!(expected.iter().all(|finding| malloc.findings.contains(finding)));
    malloc.findings.iter().filter(|finding| !expected.contains(finding)).cloned().collect()
}

/// Returns true if a walk reports a problem, or its sums are right.
///
/// A wrong size that joins two chunks in use cannot be noticed.
fn is_honest(walked: &Result<HeapMap, Error>, truth: &MallocTruth) -> bool {
    let Ok(malloc) = walked else { return true };
    let counted = Totals { in_use_chunks: 0, ..malloc.totals };
    malloc.findings != findings_of(truth)
        || counted == Totals { in_use_chunks: 0, ..totals_of(truth) }
}

#[test]
fn every_release_is_walked() {
    for (release, machine) in
        GlibcRelease::ALL.into_iter().flat_map(|it| machines().map(|on| (it, on)))
    {
        let (image, truth) = rich_on(machine, release).image();
        assert_equals(&walk(&image).unwrap(), &truth);
        let states = |usage| truth.chunks.iter().filter(|chunk| chunk.usage == usage).count();
        // Segments of larger pages take longer to fill.
        let has_small_pages = machine == Machine::default();
        assert!(states(ChunkUse::Cached) > 100);
        assert!(states(ChunkUse::Fencepost) > 4 || !has_small_pages);
        assert_eq!(states(ChunkUse::Fastbin) > 0, release < GlibcRelease::V2_43);
        assert!(!truth.trimmable.is_empty() || !has_small_pages);
    }
}

#[test]
fn the_library_says_its_version() {
    for release in GlibcRelease::ALL {
        let (image, _) = MallocHeap::new(release, 1).image();
        let modules = elf::modules(&image);
        assert_eq!(libc(&image, &modules).to_string(), format!("glibc {}", release.version()));
        let version = Some(release.version().to_owned());
        let found = find_allocator(&image, &modules, None);
        assert_eq!(found.allocator, Allocator::Glibc { version });
    }
}

#[test]
fn without_a_library_there_is_nothing_to_walk() {
    let image = SyntheticMemory::default().image();
    let found = find_allocator(&image, &[], None);
    assert_eq!(crate::walk(&image, &found, &[]).unwrap_err(), Error::NoAllocator);
}

#[test]
fn without_registers_the_rest_still_stands() {
    let (mut image, truth) = rich(GlibcRelease::V2_36).image();
    image.state.threads.clear();
    let malloc = walk(&image).unwrap();
    assert_eq!(problems(&malloc, &truth).len(), 1, "{:?}", malloc.findings);
    let (walked, told) = (malloc.totals, totals_of(&truth));
    assert_eq!(walked.in_use_chunks, told.in_use_chunks + told.tcache_chunks);
    assert_eq!(walked.free_bytes, told.free_bytes);
}

/// A heap with mmapped chunks below the usual threshold.
fn mapped(release: GlibcRelease) -> MallocHeap {
    let mut heap = rich(release);
    for bytes in [8_000, 50_000, 50_000, 400_000] {
        heap.map_chunk(bytes);
    }
    heap
}

#[test]
fn what_only_looks_like_an_mmapped_chunk_is_left_out_where_the_counts_prove_it() {
    for release in [GlibcRelease::V2_31, GlibcRelease::V2_36, GlibcRelease::V2_42] {
        for look_alikes in [&[300_000_u64][..], &[20_000, 20_000], &[15_000, 70_000, 600_000]] {
            let mut heap = mapped(release);
            look_alikes.iter().for_each(|&bytes| heap.map_look_alike(bytes));
            let (image, truth) = heap.image();
            assert_equals(&walk(&image).unwrap(), &truth);
        }
    }
}

#[test]
fn what_may_be_an_mmapped_chunk_is_not_dropped_without_proof() {
    for release in GlibcRelease::ALL {
        let mut heap = mapped(release);
        let truth = heap.image().1;
        heap.map_look_alike(50_000);
        let malloc = walk(&heap.image().0).unwrap();
        assert_eq!(malloc.totals.mmapped_chunks, totals_of(&truth).mmapped_chunks + 1);
        let problems = problems(&malloc, &truth);
        let [finding] = &problems[..] else { panic!("{:?}", malloc.findings) };
        let &Finding::MmappedMiscounted {
            counted_chunks,
            counted_bytes,
            found_chunks,
            found_bytes,
        } = finding
        else {
            panic!("{finding:?}")
        };
        assert_eq!((found_chunks - counted_chunks, found_bytes - counted_bytes), (1, 53_248));
    }
}

/// From glibc 2.43 on, the count of bytes is too high after a resize, so it does not show which candidate is a chunk.
#[test]
fn under_a_count_that_drifts_the_smallest_chunk_is_not_the_one_to_drop() {
    let mut heap = mapped(GlibcRelease::V2_43);
    heap.map_look_alike(100_000);
    heap.resize_mapped_chunks(3);
    let (image, truth) = heap.image();
    let problems = problems(&walk(&image).unwrap(), &truth);
    assert!(matches!(problems[..], [Finding::MmappedMiscounted { .. }]), "{problems:?}");
}

#[test]
fn a_drift_that_could_hide_a_chunk_is_told() {
    for (resizes, findings) in [(0, 0), (255, 0), (256, 1), (9_999, 1)] {
        let mut heap = mapped(GlibcRelease::V2_43);
        heap.resize_mapped_chunks(resizes);
        let (image, truth) = heap.image();
        let mut malloc = walk(&image).unwrap();
        let problems = problems(&malloc, &truth);
        assert_eq!(problems.len(), findings, "{problems:?}");
        let is_drift = |it: &Finding| matches!(it, Finding::MmappedDrift { bytes, .. } if *bytes == 16 * resizes);
        assert!(problems.iter().all(is_drift), "{problems:?}");
        malloc.findings.retain(|finding| !problems.contains(finding));
        assert_equals(&malloc, &truth);
    }
}

#[test]
fn a_layout_of_caches_must_fit_every_thread_that_has_one() {
    for release in GlibcRelease::ALL {
        let mut heap = MallocHeap::new(release, 8);
        for thread in 0..8 {
            let pointers: Vec<u64> = (0..5).map(|_| heap.malloc(thread, 100)).collect();
            pointers.into_iter().for_each(|pointer| heap.free(thread, pointer));
        }
        let elsewhere = heap.malloc(0, 100);
        let (image, truth) = heap.image();
        assert_equals(&walk(&image).unwrap(), &truth);
        heap.mislead_thread(5, elsewhere);
        let malloc = walk(&heap.image().0).unwrap();
        assert_eq!(malloc.totals.tcache_chunks, 0);
        assert_eq!(malloc.findings, [Finding::CachesMisfit { fitting: 7, threads: 8 }]);
    }
}

/// A thread may be stopped between allocating its cache and clearing it.
#[test]
fn a_thread_that_is_starting_does_not_reject_the_layout_of_caches() {
    let mut heap = MallocHeap::new(GlibcRelease::V2_36, 8);
    let pointers: Vec<u64> = (0..5).map(|_| heap.malloc(0, 100)).collect();
    pointers.into_iter().for_each(|pointer| heap.free(0, pointer));
    let mut memory = SyntheticMemory::default();
    let truth = heap.write(&mut memory);
    memory.write(heap.cache_of(3), &[0x41; 0x280]);
    let mut state = memory.state();
    state.threads.clone_from(&truth.threads);
    let malloc = walk(&Image::new(state, memory)).unwrap();
    assert_eq!(malloc.totals.tcache_chunks, 5);
    let [Finding::CacheInvalid { tid, .. }] = &malloc.findings[..] else {
        panic!("{:?}", malloc.findings)
    };
    assert_eq!(*tid, truth.threads[3].tid);
}

/// On glibc 2.43 a thread's stack has guard pages within a readable mapping; one may lie right
/// behind a segment that the main arena obtained by mmap.
#[test]
fn a_segment_may_end_where_nothing_can_be_read() {
    let mut heap = MallocHeap::new(GlibcRelease::V2_43, 1);
    heap.block_break();
    heap.malloc(0, 50_000);
    heap.malloc(0, 50_000);
    let mut memory = SyntheticMemory::default();
    let truth = heap.write(&mut memory);
    let ends: Vec<u64> = truth.regions.iter().map(|region| region.end).collect();
    ends.iter().for_each(|end| memory.map(*end, 4096));
    let mut state = memory.state();
    state.threads.clone_from(&truth.threads);
    let guards = ends.iter().map(|end| PageRun {
        range: Address(*end)..Address(*end + 4096),
        state: PageState::Guard,
        huge: false,
    });
    let resident = state.pages.iter().flat_map(|pages| pages.iter().cloned());
    state.pages = Some(Pages::new(resident.chain(guards).collect()));
    assert_equals(&walk(&Image::new(state, memory)).unwrap(), &truth);
}

/// The rest of an old top becomes fenceposts, and a free chunk if there is room for one.
#[test]
fn old_tops_of_any_size_are_ended() {
    for release in GlibcRelease::ALL {
        for thread in [0, 1] {
            for left in (32..200).step_by(16) {
                let mut heap = MallocHeap::new(release, 2);
                let (_, truth) = heap.image();
                let mut tops = truth.chunks.iter().filter(|chunk| chunk.usage == ChunkUse::Top);
                let top = tops.nth(thread).expect("each arena has a top").bytes;
                heap.malloc(thread, top - left - 8);
                heap.sbrk_by_stranger(100);
                heap.fill_heap(thread);
                heap.malloc(thread, 5000);
                let (image, truth) = heap.image();
                let fences = |chunk: &&SyntheticChunk| chunk.usage == ChunkUse::Fencepost;
                assert!(truth.chunks.iter().filter(fences).count() >= 2, "{left}");
                assert_equals(&walk(&image).unwrap(), &truth);
            }
        }
    }
}

/// The damaged chunk used to pass for a part of the foreign memory, and 64 bytes were missing without a finding.
#[test]
fn a_damaged_chunk_behind_foreign_memory_changes_the_findings() {
    for release in GlibcRelease::ALL {
        let mut heap = MallocHeap::new(release, 1);
        heap.malloc(0, 5000);
        heap.sbrk_by_stranger(26_867);
        // Larger than the rest of the top, so a new segment begins with this chunk.
        let chunk = heap.malloc(0, 20_000) - 16;
        let behind = heap.malloc(0, 20_000) - 16;
        let mut memory = SyntheticMemory::default();
        let truth = heap.write(&mut memory);
        assert!(truth.regions.iter().any(|region| region.start == chunk));
        let walk_image = |memory: &SyntheticMemory| {
            let mut state = memory.state();
            state.threads.clone_from(&truth.threads);
            walk(&Image::new(state, memory.clone()))
        };
        assert_equals(&walk_image(&memory).unwrap(), &truth);
        memory.write(chunk + 8, &[0xe6]);
        let walked = walk_image(&memory);
        let malloc = walked.as_ref().unwrap();
        assert!(malloc.extents.iter().any(|extent| extent.range.start.0 == behind));
        let foreign = 26_867 + 13 + (behind - chunk);
        let is_foreign =
            |it: &Finding| matches!(it, Finding::ForeignMemory { bytes, .. } if *bytes == foreign);
        assert!(is_foreign(&malloc.findings[0]), "{:?}", malloc.findings);
        assert!(is_honest(&walked, &truth));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(testkit::cases(60)))]

    #[test]
    fn any_program_is_walked(machine in machine(), release in release(), steps in steps()) {
        let (image, truth) = run(machine, release, &steps).image();
        assert_equals(&walk(&image).unwrap(), &truth);
    }

    #[test]
    fn no_damage_goes_unnoticed(
        machine in machine(),
        release in release(),
        steps in steps(),
        damages in prop::collection::vec((any::<u32>(), any::<u8>()), 1..8),
    ) {
        let mut memory = SyntheticMemory::default();
        let truth = run(machine, release, &steps).write(&mut memory);
        let image = damaged(&mut memory, &truth, &damages);
        let walked = walk(&image);
        let totals = walked.as_ref().map(|malloc| malloc.totals);
        prop_assert!(is_honest(&walked, &truth), "{:?} not {:?}", totals, totals_of(&truth));
    }
}

/// Moves every member of every layout by a few bytes, one at a time.
fn mutations() -> Vec<(String, Layouts)> {
    let mut mutations = Vec::new();
    macro_rules! mutate {
        ($table:ident: $($member:ident),+ $(,)?) => {
            for index in 0..Layouts::default().$table.len() {
                for shift in [-16, -8, -4, 4, 8, 16] {
                    $({
                        let mut layouts = Layouts::default();
                        let mut layout = layouts.$table[index];
                        layout.$member.shift(shift);
                        layouts.$table[index] = layout;
                        let name =
                            format!("{} {index} {} {shift:+}", stringify!($table), stringify!($member));
                        mutations.push((name, layouts));
                    })+
                }
            }
        };
    }
    mutate!(states: mutex, flags, fastbins, top, bins, next, system_mem, bytes);
    mutate!(heaps: arena, previous, size, bytes);
    mutate!(parameters:
        top_pad, mmap_threshold, arena_test, arena_max, thp_pagesize, n_mmaps,
        n_mmaps_max, max_n_mmaps, no_dyn_threshold, mmapped_mem, max_mmapped_mem, sbrk_base,
        tcache_bins, tcache_max_bytes, tcache_count, bytes, mmapped_tail);
    mutate!(caches: bins, small_bins, heads, counts_room, chunk_bytes);
    mutations
}

trait Member {
    fn shift(&mut self, by: i64);
}

impl Member for u64 {
    fn shift(&mut self, by: i64) {
        *self = self.saturating_add_signed(by);
    }
}

impl Member for Option<u64> {
    fn shift(&mut self, by: i64) {
        if let Some(offset) = self {
            offset.shift(by);
        }
    }
}

impl Member for bool {
    fn shift(&mut self, _: i64) {
        *self = !*self;
    }
}

#[test]
fn a_wrong_layout_is_no_other_result() {
    let step = if testkit::is_nightly("three of four changes of a layout") { 1 } else { 4 };
    let mut told = 0;
    for (number, release) in GlibcRelease::ALL.into_iter().enumerate() {
        let (image, truth) = rich(release).image();
        let modules = elf::modules(&image);
        let glibc = glibc_module(&modules).unwrap();
        for (name, layouts) in mutations().into_iter().skip(number % step).step_by(step) {
            let walked = walk_with(&image, glibc, &layouts, &[]);
            let walked = walked.map_err(Error::from);
            assert!(is_honest(&walked, &truth), "{name} for {release:?}: {walked:?}");
            let findings = findings_of(&truth);
            told += usize::from(walked.map_or(true, |malloc| malloc.findings != findings));
        }
    }
    assert!(told > 300 / step, "only {told} were noticed");
}

/// Overwrites bytes that were written before, at any address.
fn damaged(
    memory: &mut SyntheticMemory,
    truth: &MallocTruth,
    damages: &[(u32, u8)],
) -> Image<'static> {
    let state = memory.state();
    let pages: Vec<u64> = state
        .pages
        .iter()
        .flat_map(|pages| pages.iter())
        .flat_map(|run| (run.range.start.0..run.range.end.0).step_by(4096))
        .collect();
    for &(place, byte) in damages {
        let page = pages[place as usize / 4096 % pages.len()];
        memory.write(page + u64::from(place % 4096), &[byte]);
    }
    let mut state = memory.state();
    state.threads.clone_from(&truth.threads);
    Image::new(state, memory.clone())
}
