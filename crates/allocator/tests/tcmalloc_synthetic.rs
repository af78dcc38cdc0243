//! Walks synthetic heaps of tcmalloc. Their writer shares no layout with the walker, and puts the library's variables in any place.

use std::collections::BTreeMap;
use std::ops::Range;

use allocator::{BlockState, Error, ExtentState, HeapMap};
use image::elf;
use linux::{Address, length};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{ElfModule, SyntheticMemory};

const MODULE: u64 = 0x7f60_0000_0000;
const VARIABLES: u64 = 0x28_0000;
const STRUCTURES: u64 = 0x6a00_0000_0000;
const HEAP: u64 = 0x5600_0000_0000;
/// A second piece of memory, for which the map has another leaf.
const FAR: u64 = 0x7200_0000_0000;
const CACHES: usize = 3;
const ENTRY: usize = 2;

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Object {
    Busy,
    Central,
    Moving,
    Cached(usize),
}

#[derive(Debug, Clone)]
enum Span {
    Objects {
        class: usize,
        objects: Vec<Object>,
    },
    Large(u64),
    Normal(u64),
    Returned(u64),
    /// Memory of another library between two pieces.
    Hole(u64),
}

/// The places that the library's variables have, and the size of pages.
#[derive(Debug, Clone)]
struct Release {
    shift: u32,
    padding: Vec<u64>,
    smallest: u64,
    link: u64,
    is_shifted: bool,
}

fn any_object() -> impl Strategy<Value = Object> {
    prop_oneof![
        4 => Just(Object::Busy),
        2 => Just(Object::Central),
        2 => Just(Object::Moving),
        2 => (0..CACHES).prop_map(Object::Cached),
    ]
}

fn any_span() -> impl Strategy<Value = Span> {
    let objects = prop::collection::vec(any_object(), 1..40);
    prop_oneof![
        6 => (1..24_usize, objects).prop_map(|(class, objects)| Span::Objects { class, objects }),
        1 => (1..40_u64).prop_map(Span::Large),
        1 => (1..200_u64).prop_map(Span::Normal),
        1 => (1..200_u64).prop_map(Span::Returned),
        1 => (1..9_u64).prop_map(Span::Hole),
    ]
}

fn any_spans() -> impl Strategy<Value = Vec<Span>> {
    prop::collection::vec(any_span(), 4..30).prop_map(|mut spans| {
        let objects = vec![Object::Busy, Object::Central, Object::Cached(0)];
        spans.push(Span::Objects { class: 3, objects });
        spans.push(Span::Normal(3));
        spans
    })
}

fn any_release() -> impl Strategy<Value = Release> {
    let padding = prop::collection::vec(0..40_u64, 5);
    let smallest = prop::sample::select(vec![8_u64, 16]);
    (12..19_u32, padding, smallest, 0..20_u64, any::<bool>()).prop_map(
        |(shift, padding, smallest, link, is_shifted)| Release {
            shift,
            padding,
            smallest,
            link: 4096 + 8 + link * 8,
            is_shifted,
        },
    )
}

impl Release {
    fn bytes(&self, class: usize) -> u64 {
        match class as u64 {
            class @ 0..=12 => class * self.smallest,
            class => 2048 * (class - 12),
        }
    }

    fn pages(&self, class: usize) -> u64 {
        (self.bytes(class) * 3).div_ceil(1 << self.shift)
    }
}

/// What a walk must find, and the places of words that it must not find otherwise.
#[derive(Debug, Default)]
struct Truth {
    blocks: BTreeMap<u64, (u64, BlockState)>,
    free: BTreeMap<u64, (u64, ExtentState)>,
    decisive: Vec<u64>,
    /// Where lists of moving objects are, or were.
    entries: Vec<u64>,
}

/// Writes lists of one class: each head is at an address.
fn write_chain(memory: &mut SyntheticMemory, head: u64, objects: &[u64], decisive: &mut Vec<u64>) {
    let mut at = head;
    for object in objects {
        memory.write_u64(at, *object);
        decisive.push(at);
        at = *object;
    }
    memory.write_u64(at, 0);
    decisive.push(at);
}

fn write(release: &Release, spans: &[Span]) -> (SyntheticMemory, Truth) {
    let (mut memory, mut truth) = (SyntheticMemory::default(), Truth::default());
    let page = 1_u64 << release.shift;
    let leaf_bits = (48 - release.shift).div_ceil(2);
    let leaf_bytes = 8_u64 << leaf_bits;
    memory.map(STRUCTURES, 8 << 20);
    memory.map(HEAP, 64 << 20);
    memory.map(FAR, 64 << 20);
    let mut module = ElfModule::new("/usr/lib/libtcmalloc_minimal.so.4", MODULE, VARIABLES);
    module.symbol("malloc", MODULE + 0x3800);
    module.symbol("tc_malloc", MODULE + 0x3840);
    module.variables(None, &[1, 2, STRUCTURES + 64, 3]);
    let mut place = module.variables(None, &[0]) + 8;
    let mut room = |bytes: u64, padding: u64| {
        let at = place + padding * 8;
        place = at + bytes;
        assert!(place < MODULE + VARIABLES);
        at
    };
    // The table of sizes may begin in the middle of a word.
    let sizes = room(600, release.padding[0]) + if release.is_shifted { 4 } else { 0 };
    for class in 0..24 {
        memory.write(sizes + class as u64 * 4, &(release.bytes(class) as u32).to_le_bytes());
    }
    let central = room(24 * 1216, release.padding[1]);
    let root = room(8 << (48 - release.shift - leaf_bits), release.padding[2]);
    let statistics = room(64, release.padding[3]);
    let first_cache = room(16, release.padding[4]);
    module.write(&mut memory);

    let leaf_of = |at: u64| STRUCTURES + 0x8_0000 + if at < FAR { 0 } else { leaf_bytes };
    let map = |memory: &mut SyntheticMemory, at: u64, structure: u64| {
        let number = at >> release.shift;
        memory.write_u64(root + (number >> leaf_bits) * 8, leaf_of(at));
        memory.write_u64(leaf_of(at) + (number & ((1 << leaf_bits) - 1)) * 8, structure);
    };
    let cache = |number: usize| STRUCTURES + 0x2_0000 + number as u64 * 0x2000;
    let (mut moving, mut cached) =
        (BTreeMap::<usize, Vec<u64>>::new(), BTreeMap::<(usize, usize), Vec<u64>>::new());
    let mut of_class = BTreeMap::<usize, Vec<(u64, u64)>>::new();
    let (mut system, mut normal, mut returned) = (0, 0, 0);
    let mut at = HEAP + page;
    for (number, span) in spans.iter().enumerate() {
        if number == spans.len() / 2 {
            at = FAR;
        }
        let structure = STRUCTURES + 64 + number as u64 * 48;
        let pages = match span {
            Span::Objects { class, .. } => release.pages(*class),
            Span::Large(pages)
            | Span::Normal(pages)
            | Span::Returned(pages)
            | Span::Hole(pages) => {
                // Large ones would need much memory.
                (*pages).min(8)
            }
        };
        let bytes = pages * page;
        let start = at;
        at += bytes;
        if matches!(span, Span::Hole(_)) {
            continue;
        }
        system += bytes;
        memory.write_u64(structure, start >> release.shift);
        memory.write_u64(structure + 8, pages);
        truth.decisive.extend([structure, structure + 8]);
        map(&mut memory, start, structure);
        map(&mut memory, start + bytes - page, structure);
        let bits = match span {
            Span::Objects { class, objects } => {
                for index in 0..pages {
                    map(&mut memory, start + index * page, structure);
                }
                let object = release.bytes(*class);
                let count = (bytes / object) as usize;
                let mut own = Vec::new();
                let all = objects.iter().cycle().take(count).enumerate();
                for (index, kind) in all {
                    let at = start + index as u64 * object;
                    let state = match kind {
                        Object::Busy => BlockState::InUse,
                        Object::Central => {
                            own.push(at);
                            BlockState::Free
                        }
                        Object::Moving => {
                            moving.entry(*class).or_default().push(at);
                            BlockState::Tcache
                        }
                        Object::Cached(cache) => {
                            cached.entry((*cache, *class)).or_default().push(at);
                            BlockState::Tcache
                        }
                    };
                    // What an object in use has may look like anything.
                    memory.write_u64(at, 0x5a5a_5a5a_5a5a_5a5a);
                    truth.blocks.insert(at, (object, state));
                }
                own.reverse();
                write_chain(&mut memory, structure + 32, &own, &mut truth.decisive);
                of_class.entry(*class).or_default().push((structure, own.len() as u64));
                truth.decisive.push(structure + 40);
                (count - own.len()) as u64 | (*class as u64) << 16
            }
            Span::Normal(_) => {
                normal += bytes;
                truth.free.insert(start, (bytes, ExtentState::Dirty));
                1 << 24
            }
            Span::Returned(_) => {
                returned += bytes;
                truth.free.insert(start, (bytes, ExtentState::Retained));
                2 << 24
            }
            _ => {
                truth.blocks.insert(start, (bytes, BlockState::InUse));
                0
            }
        };
        memory.write_u64(structure + 40, bits);
    }
    for class in 1..24 {
        let at = central + class as u64 * 1216;
        memory.write_u64(at + 8, class as u64);
        let spans = of_class.remove(&class).unwrap_or_default();
        for (head, is_empty) in [(at + 16, true), (at + 64, false)] {
            let mut ring = vec![head];
            let own = spans.iter().filter(|(_, free)| (*free == 0) == is_empty);
            ring.extend(own.map(|(structure, _)| *structure));
            for (index, it) in ring.iter().enumerate() {
                let next = ring[(index + 1) % ring.len()];
                memory.write_u64(it + 16, next);
                memory.write_u64(next + 24, *it);
            }
        }
        memory.write_u64(at + 112, spans.len() as u64);
        memory.write_u64(at + 120, spans.iter().map(|(_, free)| free).sum());
        let mut objects = moving.remove(&class).unwrap_or_default();
        // What is left of whole lists is in use.
        for left in objects.drain(objects.len() / ENTRY * ENTRY..) {
            if let Some((_, state)) = truth.blocks.get_mut(&left) {
                *state = BlockState::InUse;
            }
        }
        // There is room for 64 lists.
        for left in objects.drain((64 * ENTRY).min(objects.len())..) {
            if let Some((_, state)) = truth.blocks.get_mut(&left) {
                *state = BlockState::InUse;
            }
        }
        for (index, list) in objects.chunks(ENTRY).enumerate() {
            let entry = at + 128 + index as u64 * 16;
            let mut links = Vec::new();
            write_chain(&mut memory, entry, list, &mut links);
            // Which objects a list has is known from the list only.
            truth.decisive.extend(links.into_iter().skip(1));
            memory.write_u64(entry + 8, list[ENTRY - 1]);
        }
        truth.entries.extend([at + 128, at + 1144]);
        let used = (objects.len() / ENTRY) as u64;
        memory.write_u64(at + 1152, used | 64 << 32);
        memory.write_u64(at + 1160, 64);
        if !spans.is_empty() {
            truth.decisive.extend([at + 112, at + 120]);
        }
    }
    for number in 0..CACHES {
        for class in 1..24 {
            let list = cache(number) + class as u64 * 32;
            let objects = cached.remove(&(number, class)).unwrap_or_default();
            write_chain(&mut memory, list, &objects, &mut truth.decisive);
            memory.write_u64(list + 8, objects.len() as u64 | 7 << 32);
            memory.write_u64(list + 16, 9);
            memory.write_u64(list + 24, release.bytes(class));
        }
        let link = cache(number) + release.link;
        memory.write_u64(link, if number + 1 < CACHES { cache(number + 1) } else { 0 });
        memory.write_u64(link + 8, if number > 0 { cache(number - 1) } else { 0 });
    }
    memory.write_u64(first_cache, cache(0));
    memory.write_u64(first_cache + 8, cache(1));
    for (index, word) in [system, normal, returned, system - returned].into_iter().enumerate() {
        memory.write_u64(statistics + index as u64 * 8, word);
        truth.decisive.push(statistics + index as u64 * 8);
    }
    (memory, truth)
}

fn walk(memory: &SyntheticMemory) -> Result<HeapMap, Error> {
    let image = memory.image();
    let modules = elf::modules(&image);
    let found = allocator::find_allocator(&image, &modules, None);
    allocator::walk(&image, &found, &[])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_heap_of_any_build(release in any_release(), spans in any_spans()) {
        let (memory, truth) = write(&release, &spans);
        let heap = walk(&memory).unwrap();
        prop_assert_eq!(&heap.walker, "tcmalloc");
        prop_assert_eq!(&heap.findings, &[]);
        let (mut blocks, mut free) = (BTreeMap::new(), BTreeMap::new());
        for extent in &heap.extents {
            match extent.state {
                ExtentState::Active => blocks.extend(
                    heap.blocks_of(extent).map(|(_, it)| (it.address.0, (it.bytes(), it.state()))),
                ),
                ExtentState::Metadata => {}
                state => {
                    free.insert(extent.range.start.0, (length(&extent.range), state));
                }
            }
        }
        prop_assert_eq!(blocks, truth.blocks);
        prop_assert_eq!(&free, &truth.free);
        for entry in &truth.entries {
            let has = |range: &Range<Address>| range.contains(&Address(*entry));
            prop_assert_eq!(heap.bookkeeping.iter().filter(|it| has(it)).count(), 1);
        }
        let kept = free.iter().filter(|(_, (_, state))| *state == ExtentState::Dirty);
        let kept: Vec<_> = kept.map(|(start, (bytes, _))| (*start, start + bytes)).collect();
        let trimmable = heap.trimmable.iter().map(|it| (it.start.0, it.end.0));
        prop_assert_eq!(trimmable.collect::<Vec<_>>(), kept);
    }

    /// Without a thread that may change something, a heap that contradicts itself is an error.
    #[test]
    fn a_damaged_heap_is_never_a_wrong_report(
        release in any_release(), spans in any_spans(), place in any::<Index>(), bit in 0..20_u32,
    ) {
        let (mut memory, truth) = write(&release, &spans);
        let at = truth.decisive[place.index(truth.decisive.len())];
        let word = memory.word(at) ^ 1 << bit;
        memory.write_u64(at, word);
        match walk(&memory) {
            Ok(heap) => prop_assert!(false, "{at:#x} {word:#x} {:?}", heap.totals),
            Err(error) => prop_assert!(matches!(error, Error::Tcmalloc(_)), "{error}"),
        }
    }
}
