//! The whole account of a synthetic process: a heap of malloc and a heap of Ruby in one memory.

use std::collections::{BTreeMap, BTreeSet};

use image::{Image, Origin};
use ledger::{Analyses, Cause, Facts, Finding, Ledger, MemoryMap, PageUse, ReadDepth, Use};
use linux::arch::Cpu;
use linux::{Address, Machine, Sysroot, WantedVariables};
use proptest::prelude::*;
use testkit::{
    CoreWriter, GlibcRelease, JemallocHeap, JemallocRelease, MallocHeap, PagesUse, RegionUse,
    RubyHeap, RubyRelease, SyntheticCore, SyntheticMemory,
};

/// An action on the heap: allocate bytes in a thread, or free one of the chunks.
#[derive(Debug, Clone)]
enum Step {
    Malloc { thread: usize, bytes: u64 },
    Free { thread: usize, which: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let malloc =
        (0..3_usize, 1_u64..9000).prop_map(|(thread, bytes)| Step::Malloc { thread, bytes });
    let free =
        (0..3_usize, any::<usize>()).prop_map(|(thread, which)| Step::Free { thread, which });
    prop::collection::vec(prop_oneof![3 => malloc, 2 => free], 0..200)
}

/// A machine with pages of any size.
fn machine() -> impl Strategy<Value = Machine> {
    let sizes = [4, 16, 64].map(|kibibytes| Machine::new(Cpu::OWN, kibibytes << 10));
    prop::sample::select(sizes.to_vec()).prop_map(|it| it.expect("kernels have it"))
}

/// Runs the steps. Returns the heap and the pointers that are still allocated.
fn run(machine: Machine, release: GlibcRelease, steps: &[Step]) -> (MallocHeap, Vec<u64>) {
    let mut heap = MallocHeap::on(machine, release, 3);
    let mut pointers = Vec::new();
    for step in steps {
        match *step {
            Step::Malloc { thread, bytes } => pointers.push(heap.malloc(thread, bytes)),
            Step::Free { thread, which } if !pointers.is_empty() => {
                let pointer = pointers.swap_remove(which % pointers.len());
                heap.free(thread, pointer);
            }
            Step::Free { .. } => {}
        }
    }
    (heap, pointers)
}

/// A process with `heap`, and a Ruby whose strings hold the memory at `pointers`.
fn process(heap: &MallocHeap, pointers: &[u64]) -> (Image<'static>, SyntheticMemory) {
    let mut memory = SyntheticMemory::default();
    let truth = heap.write(&mut memory);
    // Heap pages of 16 KiB are no pages of a machine with larger ones.
    let is_large = memory.machine.page_size > 16 << 10;
    let mut ruby = RubyHeap::new(if is_large { RubyRelease::V3_3 } else { RubyRelease::V3_1 });
    for &pointer in pointers {
        ruby.string_at(pointer, 99);
    }
    ruby.write(&mut memory);
    let mut state = memory.state();
    state.threads = truth.threads;
    state.process.pid = state.threads[0].tid;
    (Image::new(state, memory.clone()), memory)
}

fn draw_up(image: &Image<'_>) -> Ledger {
    let (ledger, memory_map) = Ledger::draw_up_with(
        Analyses { memory_map: true, ..Analyses::default() },
        &image.state,
        &Facts::read(image, ReadDepth::Owners),
    );
    assert_same(&ledger, &memory_map);
    ledger
}

/// Dumps everything, if there is enough for a dump. What objects refer to are objects of the dump.
fn dump(image: &Image<'_>) -> usize {
    let facts = Facts::read(image, ReadDepth::Values);
    let dumped = facts.dump(&image.state, true, |dump| {
        let (mut objects, mut references) = (BTreeSet::new(), BTreeSet::new());
        let mut add = |them: &[Address]| {
            references.extend(them.iter().copied());
            Ok::<_, ()>(())
        };
        let roots = dump.roots(|_, them| add(them));
        let all = dump.objects(|object| {
            objects.insert(object.address);
            add(&object.references.addresses().collect::<Vec<_>>())
        });
        let blocks = dump.blocks(|_| Ok(()));
        let pages = dump.pages(|_| Ok(()));
        assert!(roots.and(all).and(blocks).and(pages).is_ok());
        assert!(references.is_subset(&objects), "{references:?} {objects:?}");
        objects.len()
    });
    dumped.unwrap_or_default()
}

/// Asserts that the memory map is consistent and agrees with the ledger's sums.
fn assert_same(ledger: &Ledger, memory_map: &MemoryMap) {
    assert_eq!(memory_map.check(ledger.owners.len()), Ok(()));
    assert_eq!(memory_map.resident_bytes(), ledger.rss_bytes);
    let pages = memory_map.areas.iter().flat_map(|area| memory_map.pages(area));
    let unreturned = pages.filter(|(_, used)| *used == PageUse::Unreturned);
    let unreturned: u64 = unreturned.map(|(range, _)| linux::length(&range)).sum();
    assert_eq!(unreturned, ledger.causes[Cause::MallocUnreturned]);

    let mut owned = vec![(0, 0, 0); ledger.owners.len()];
    let mut uses = BTreeMap::new();
    for area in &memory_map.areas {
        for block in memory_map.blocks(area) {
            let (count, bytes) = uses.entry(block.used as u8).or_insert((0, 0));
            *count += 1;
            *bytes += block.bytes;
            if let Some(owner) = block.owner {
                let (held, objects, slots) = &mut owned[owner as usize];
                if block.used == Use::InUse {
                    *held += block.bytes;
                } else {
                    *objects += 1;
                    *slots += block.bytes;
                }
            }
        }
    }
    // If owners were not traced, the memory map has none.
    for (owned, account) in owned.iter().zip(&ledger.owners).filter(|_| ledger.is_traced) {
        let account = (account.held_bytes(), account.objects, account.slot_bytes);
        assert_eq!(*owned, account, "bytes held, objects, bytes of slots");
    }
    let of = |used: Use| uses.get(&(used as u8)).copied().unwrap_or((0, 0));
    if let Some(malloc) = &ledger.malloc {
        let totals = &malloc.totals;
        assert_eq!(of(Use::Fastbin), (totals.fastbin_chunks, totals.fastbin_bytes));
        assert_eq!(of(Use::Tcache), (totals.tcache_chunks, totals.tcache_bytes));
        assert_eq!(of(Use::Free).1 + of(Use::Top).1, totals.free_bytes);
    }
    if let Some(ruby) = &ledger.ruby {
        assert_eq!(of(Use::OldSlot).0 + of(Use::YoungSlot).0, ruby.slots_live);
        assert_eq!(of(Use::YoungSlot).0, ruby.slots_unmarked);
        assert_eq!(of(Use::FreeSlot), (ruby.slots_free, ruby.slot_bytes_free));
    }
}

const RELEASES: [GlibcRelease; 3] = [GlibcRelease::V2_31, GlibcRelease::V2_36, GlibcRelease::V2_43];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(testkit::cases(20)))]

    #[test]
    fn the_books_balance_and_name_what_strings_hold(
        machine in machine(), release in prop::sample::select(&RELEASES[..]), steps in steps()
    ) {
        let (heap, pointers) = run(machine, release, &steps);
        let (image, _) = process(&heap, &pointers);
        let ledger = draw_up(&image);
        let pages = image.state.pages.as_ref().unwrap();
        let resident = pages.resident_bytes(&(Address(0)..Address(u64::MAX)));
        prop_assert_eq!(ledger.causes.total(), resident);
        prop_assert_eq!(ledger.rss_bytes, resident);

        let malloc = ledger.malloc.as_ref().unwrap();
        prop_assert_eq!(malloc.trim_yield_bytes, ledger.causes[Cause::MallocUnreturned]);
        let strings = ledger.classes().find(|class| class.name == "String");
        // Each string holds one chunk, and no chunk is held twice.
        let held: u64 = strings.map_or(0, |class| class.held_bytes());
        let least: u64 = pointers.len() as u64 * 32;
        prop_assert!(held >= least, "{held} bytes in {} chunks", pointers.len());
        prop_assert!(held <= malloc.totals.in_use_bytes + malloc.totals.mmapped_bytes);
    }

    #[test]
    fn the_books_balance_under_jemalloc(
        release in prop::sample::select(&JemallocRelease::ALL[..]),
        lg_vaddr in prop::sample::select(&[48, 57][..]),
        steps in steps(),
    ) {
        let mut heap = JemallocHeap::new(release, lg_vaddr, 3);
        let mut pointers = Vec::new();
        for step in steps {
            match step {
                Step::Malloc { thread, bytes } => pointers.push(heap.malloc(thread, bytes)),
                Step::Free { thread, which } if !pointers.is_empty() => {
                    heap.free(thread, pointers.swap_remove(which % pointers.len()));
                }
                Step::Free { .. } => {}
            }
        }
        heap.flush(0);
        let mut memory = SyntheticMemory::default();
        let truth = heap.write(&mut memory);
        for extent in truth.extents.iter().filter(|it| it.usage == PagesUse::Dirty) {
            memory.write_u64(extent.range.start, 1);
        }
        let mut ruby = RubyHeap::new(RubyRelease::V3_1);
        for &pointer in &pointers {
            ruby.string_at(pointer, 7);
        }
        ruby.write(&mut memory);
        let image = memory.image();
        let ledger = draw_up(&image);
        let pages = image.state.pages.as_ref().unwrap();
        let resident = pages.resident_bytes(&(Address(0)..Address(u64::MAX)));
        prop_assert_eq!(ledger.causes.total(), resident);

        let dirty = truth.extents.iter().filter(|it| it.usage == PagesUse::Dirty);
        let dirty = dirty.map(|it| pages.resident_bytes(&(Address(it.range.start)..Address(it.range.end))));
        prop_assert_eq!(ledger.causes[Cause::MallocUnreturned], dirty.sum::<u64>());
        let totals = &ledger.malloc.as_ref().unwrap().totals;
        let of = |usage| {
            let regions = truth.extents.iter().flat_map(|it| &it.regions);
            regions.filter(|it| it.usage == usage).map(|it| it.bytes).sum::<u64>()
        };
        prop_assert_eq!(totals.in_use_bytes, of(RegionUse::InUse));
        prop_assert_eq!(totals.tcache_bytes, of(RegionUse::Cached));
    }

    #[test]
    fn damaged_memory_neither_panics_nor_unbalances_the_books(
        machine in machine(), steps in steps(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..40)
    ) {
        let (heap, pointers) = run(machine, GlibcRelease::V2_36, &steps);
        let (image, mut memory) = process(&heap, &pointers);
        let runs: Vec<_> = image.state.pages.as_ref().unwrap().iter().cloned().collect();
        for (place, word) in damage {
            let run = place.get(&runs);
            let words = linux::length(&run.range) / 8;
            memory.write_u64(run.range.start.0 + word % words * 8, word.rotate_left(17));
        }
        let state = image::ProcessState { pages: image.state.pages.clone(), ..image.state };
        let damaged = Image::new(state, memory);
        let pages = damaged.state.pages.as_ref().unwrap();
        let resident = pages.resident_bytes(&(Address(0)..Address(u64::MAX)));
        prop_assert_eq!(draw_up(&damaged).causes.total(), resident);
        dump(&damaged);
    }
}

/// The map used to count the pages that such a core lacks as resident, while the ledger did not.
#[test]
fn the_map_of_a_core_that_is_cut_short_balances() {
    let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
    let pointers: Vec<u64> = (0..100).map(|_| heap.malloc(0, 4000)).collect();
    let (image, memory) = process(&heap, &pointers);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("core");
    SyntheticCore::new(CoreWriter::Kernel, &memory, &image.state.threads).write(&path);
    let bytes = std::fs::read(&path).unwrap();
    let sysroot = Sysroot::open(Some(&folder.path().join("empty")));
    for eighths in 1..8 {
        std::fs::write(&path, &bytes[..bytes.len() * eighths / 8]).unwrap();
        let core = image::open_core(&path, &sysroot, WantedVariables::default()).unwrap().image;
        assert!(draw_up(&core).rss_bytes < draw_up(&image).rss_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(testkit::cases(8)))]

    #[test]
    fn a_core_tells_what_the_process_did(
        machine in machine(), steps in steps(), is_kernels in any::<bool>(), damage in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>()), 0..20)
    ) {
        let (heap, pointers) = run(machine, GlibcRelease::V2_36, &steps);
        let (image, memory) = process(&heap, &pointers);
        let alive = draw_up(&image);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("core");
        let writer = if is_kernels { CoreWriter::Kernel } else { CoreWriter::Debugger };
        SyntheticCore::new(writer, &memory, &image.state.threads).write(&path);
        // The core contains all of its libraries. None of this machine's libraries may be used instead.
        let sysroot = Sysroot::open(Some(&folder.path().join("empty")));
        let core = image::open_core(&path, &sysroot, WantedVariables::default()).unwrap().image;
        let dumped = draw_up(&core);
        prop_assert_eq!(&dumped.ruby, &alive.ruby);
        let totals = |ledger: &Ledger| ledger.malloc.as_ref().map(|malloc| malloc.totals);
        prop_assert_eq!(totals(&dumped), totals(&alive));
        let owners = |ledger: &Ledger| -> Vec<_> {
            let mut owners: Vec<_> = ledger
                .owners
                .iter()
                .map(|it| (it.name.clone(), it.chunks, it.exclusive_bytes, it.shared_bytes))
                .collect();
            owners.sort();
            owners
        };
        prop_assert_eq!(owners(&dumped), owners(&alive));
        if is_kernels {
            for (cause, bytes) in alive.causes.iter() {
                let is_of_files =
                    matches!(cause, Cause::FilePrivate | Cause::FileShared | Cause::FileShmem);
                prop_assert!(is_of_files || dumped.causes[cause] == bytes, "{cause}: {bytes}");
            }
        }
        prop_assert_eq!(dumped.causes.total(), dumped.rss_bytes);
        let bounds = core.state.rss_bounds.as_ref().unwrap();
        prop_assert!(bounds.contains(&dumped.rss_bytes), "{bounds:?}: {}", dumped.rss_bytes);

        let mut bytes = std::fs::read(&path).unwrap();
        for (place, byte) in damage {
            *place.get_mut(&mut bytes) = byte;
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(core) = image::open_core(&path, &sysroot, WantedVariables::default()) {
            let damaged = draw_up(&core.image);
            prop_assert_eq!(damaged.causes.total(), damaged.rss_bytes);
        }
    }
}

#[test]
fn without_a_ruby_and_without_a_malloc_all_is_unknown_and_said_so() {
    let mut memory = SyntheticMemory::default();
    memory.map(0x10_0000, 0x10000);
    memory.write(0x10_1000, &[1; 0x3000]);
    let ledger = draw_up(&memory.image());
    assert_eq!(ledger.causes[Cause::Unknown], 0x3000);
    assert_eq!(ledger.rss_bytes, 0x3000);
    assert!(ledger.malloc.is_none() && ledger.ruby.is_none());
    assert_eq!(ledger.findings[..2], [Finding::MallocNotFound, Finding::RubyNotFound]);
}

/// On Linux 6.7 and later, and for cores, the sums used not to be compared.
#[test]
fn rows_that_add_up_to_another_rss_than_counted_are_a_finding() {
    let mut memory = SyntheticMemory::default();
    memory.map(0x10_0000, 0x10000);
    memory.write(0x10_1000, &[1; 0x3000]);
    for (bounds, origin, differs) in [
        (0x3000..=0x3000, Origin::Process, false),
        (0..=0x8000, Origin::Core, false),
        (0x4000..=0x4000, Origin::Process, true),
        (0x4000..=0x5000, Origin::Process, true),
        (0x1000..=0x2000, Origin::Core, true),
    ] {
        let (min_bytes, max_bytes) = (*bounds.start(), *bounds.end());
        let is_kernels = origin == Origin::Process;
        let finding = Finding::CountDiffers { bytes: 0x3000, min_bytes, max_bytes, is_kernels };
        let mut image = memory.image();
        (image.state.rss_bounds, image.state.origin) = (Some(bounds), origin);
        let ledger = draw_up(&image);
        let mut found = ledger.findings.iter();
        let found = found
            .find(|it| matches!(it, Finding::CountDiffers { .. } | Finding::RowsDiffer { .. }));
        assert_eq!(found, differs.then_some(&finding));
    }
}
