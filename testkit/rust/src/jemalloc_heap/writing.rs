//! Writes a heap as jemalloc would.

use std::collections::BTreeMap;

use super::release::{NBINS, NSIZES, size_of_class, slab_bytes};
use super::{
    Arena, CACHE_SLOTS, Cache, Content, Extent, JemallocHeap, JemallocPart, JemallocRelease,
    JemallocTruth, PAGE, PagesUse, RegionUse, SyntheticArena, SyntheticExtent, SyntheticRegion,
};
use crate::elf_module::CODE_BYTES;
use crate::{ElfModule, SyntheticMemory};

const MODULE: u64 = 0x7f60_0000_0000;
/// The address of the module's variables, and the addresses of jemalloc's among them.
const VARIABLES: u64 = MODULE + CODE_BYTES;
const POINTERS: u64 = VARIABLES + 0x40;
const BIN_INFOS: u64 = VARIABLES + 0x820;
const ARENAS: u64 = VARIABLES + 0x2040;
const TREE: u64 = VARIABLES + 0x1_0018;
const VARIABLE_BYTES: u64 = 0x22_0000;
const MAX_ARENAS: u64 = 4095;

/// The threads' own variables, where their caches are.
const THREADS: u64 = 0x7ea0_0000_0000;
const THREAD_STEP: u64 = 0x4000;

/// Memory that remembers which words were written for jemalloc.
struct Writer<'m> {
    memory: &'m mut SyntheticMemory,
    truth: JemallocTruth,
}

impl Writer<'_> {
    fn word(&mut self, at: u64, word: u64) {
        self.memory.write_u64(at, word);
        self.truth.words.insert(at);
    }

    fn half(&mut self, at: u64, half: u32) {
        self.memory.write(at, &half.to_le_bytes());
        self.truth.words.insert(at & !7);
    }
}

/// The element of the tree's leaf for a page.
#[derive(Clone, Copy, Default)]
struct Element {
    structure: u64,
    class: u64,
    is_slab: bool,
    is_head: bool,
    state: u64,
}

impl JemallocHeap {
    /// Writes the heap and the library that it belongs to, mappings included.
    pub fn write(&self, memory: &mut SyntheticMemory) -> JemallocTruth {
        let mut heap = self.clone();
        let tree = heap.grow_tree();
        heap.write_module(memory);
        let mut writer = Writer { memory, truth: JemallocTruth::default() };
        heap.map(writer.memory);
        for (at, word) in tree {
            writer.word(at, word);
        }
        heap.write_variables(&mut writer);
        for (index, arena) in heap.arenas.iter().enumerate() {
            for (&at, extent) in &arena.extents {
                heap.write_extent(&mut writer, arena, at, extent);
                heap.note_extent(&mut writer.truth, index, at, extent);
            }
            heap.write_base(&mut writer, index);
            heap.write_arena(&mut writer, index);
        }
        for (index, cache) in heap.threads.iter().enumerate() {
            heap.write_cache(&mut writer, index, cache);
        }
        writer.truth.extents.sort_by_key(|extent| extent.range.start);
        writer.truth
    }

    fn map(&self, memory: &mut SyntheticMemory) {
        for arena in &self.arenas {
            for mapping in &arena.mappings {
                memory.map(mapping.start, mapping.end - mapping.start);
            }
            for (block, _) in &arena.base.blocks {
                memory.map(block.start, block.end - block.start);
            }
        }
        memory.map(THREADS, THREAD_STEP * self.threads.len() as u64);
    }

    fn write_module(&self, memory: &mut SyntheticMemory) {
        let path = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
        let mut module = ElfModule::new(path, MODULE, VARIABLE_BYTES);
        for (name, at) in [("malloc", 0x3800), ("mallctl", 0x3840), ("mallctlnametomib", 0x3880)] {
            module.symbol(name, MODULE + at);
        }
        module.text(self.release.version());
        module.thread_local(self.release.thread_bytes());
        module.write(memory);
    }

    fn shift_of(&self, part: JemallocPart) -> u64 {
        self.shifted.filter(|(own, _)| *own == part).map_or(0, |(_, bytes)| bytes)
    }

    /// The root of the tree: `rtree_s` begins with its lock, since 5.3 with its base.
    fn root(&self) -> u64 {
        TREE + if self.release == JemallocRelease::V5_2_1 { 112 } else { 120 }
    }

    /// The words of the tree, whose nodes and leaves it takes from the base of arena 0.
    fn grow_tree(&mut self) -> Vec<(u64, u64)> {
        let (levels, element_bytes): (&[u32], u64) =
            if self.lg_vaddr == 48 { (&[18, 18], 8) } else { (&[15, 15, 15], 16) };
        let mut nodes: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut words = Vec::new();
        for (page, element) in self.elements() {
            let mut node = self.root();
            let mut shift = self.lg_vaddr - 12;
            for (level, bits) in levels.iter().enumerate() {
                shift -= bits;
                let index = page >> shift & ((1 << bits) - 1);
                if level + 1 == levels.len() {
                    let encoded = self.encode(element);
                    words.extend(
                        (0..)
                            .zip(encoded)
                            .map(|(it, word)| (node + index * element_bytes + 8 * it, word)),
                    );
                    break;
                }
                let child_bits = levels[level + 1];
                let is_leaf = level + 2 == levels.len();
                let child = match nodes.get(&(level, page >> shift)) {
                    Some(child) => *child,
                    None => {
                        let bytes = if is_leaf { element_bytes } else { 8 } << child_bits;
                        let child = self.take_base(0, bytes, 64);
                        nodes.insert((level, page >> shift), child);
                        words.push((node + index * 8, child));
                        child
                    }
                };
                node = child;
            }
        }
        words
    }

    /// The elements of the tree's leaves by number of page: the first and the last page of each extent, and all pages
    /// of a slab. Some pages between others were the boundary of an extent once.
    fn elements(&self) -> BTreeMap<u64, Element> {
        let mut elements = BTreeMap::new();
        for (&at, extent) in self.arenas.iter().flat_map(|arena| &arena.extents) {
            let (first, last) = (at / PAGE, (at + extent.bytes) / PAGE - 1);
            let is_slab = matches!(extent.content, Content::Slab { .. });
            let element = Element {
                structure: extent.structure,
                class: class_of(extent),
                is_slab,
                is_head: extent.is_head,
                state: state_of(extent),
            };
            for page in first..=last {
                if is_slab || page == first || page == last {
                    elements.insert(page, element);
                } else if page % 3 == 0 {
                    elements.insert(page, Element { class: NSIZES as u64, ..Element::default() });
                }
            }
        }
        elements
    }

    /// The words of an element: one if a pointer leaves room for the rest, else two.
    fn encode(&self, element: Element) -> Vec<u64> {
        let Element { structure, class, is_slab, is_head, state } = element;
        let (slab, head) = (u64::from(is_slab), u64::from(is_head));
        match (self.release, self.lg_vaddr) {
            (JemallocRelease::V5_2_1, 48) => vec![class << 48 | structure | slab],
            (JemallocRelease::V5_2_1, _) => vec![structure, slab << 32 | class],
            (_, 48) => vec![class << 48 | structure | state << 2 | head << 1 | slab],
            _ => vec![structure, class << 5 | state << 2 | head << 1 | slab],
        }
    }

    fn write_variables(&self, writer: &mut Writer<'_>) {
        for (index, class) in (0..).zip(0..NBINS) {
            let at = BIN_INFOS + 40 * index;
            let (bytes, slab) = (size_of_class(class), slab_bytes(class));
            let regions = slab / bytes;
            writer.word(at, bytes);
            writer.word(at + 8, slab);
            writer.word(at + 16, 1 << 32 | regions);
            writer.word(at + 24, regions);
            writer.word(at + 32, regions.div_ceil(64));
        }
        for arena in &self.arenas {
            assert!(arena.number < MAX_ARENAS);
            writer.word(ARENAS + 8 * arena.number, arena.address);
        }
        if self.release != JemallocRelease::V5_2_1 {
            writer.word(TREE, self.arenas[0].base.address);
        }
        // Other variables: pointers to structures, into the heap, and numbers.
        for (index, extent) in (0..).zip(self.arenas[0].extents.values().take(20)) {
            let word = if index % 3 == 0 { extent.bytes } else { extent.structure };
            writer.memory.write_u64(POINTERS + 8 * index, word);
        }
        for (index, at) in (20..).zip(self.arenas[0].extents.keys().take(20)) {
            writer.memory.write_u64(POINTERS + 8 * index, *at);
        }
    }

    fn write_extent(&self, writer: &mut Writer<'_>, arena: &Arena, at: u64, extent: &Extent) {
        let bits = self.release.bits();
        let structure = extent.structure;
        let mut address = at;
        let mut free = 0;
        let mut first = arena.number
            | 1 << 13
            | state_of(extent) << bits.state
            | class_of(extent) << bits.class;
        first |= u64::from(extent.is_head) << bits.is_head;
        match &extent.content {
            Content::Slab { class, allocated } => {
                first |= 1 << 12;
                free = allocated.iter().filter(|it| !**it).count() as u64;
                let mut words = [0; 8];
                for (region, _) in allocated.iter().enumerate().filter(|(_, it)| !**it) {
                    words[region / 64] |= 1 << (region % 64);
                }
                let counted = allocated.len().div_ceil(64);
                let bitmap = structure + 64 + self.shift_of(JemallocPart::Bitmap);
                for (index, word) in (0..).zip(words) {
                    // Words behind the last region keep the values of another class.
                    let is_counted = index < counted as u64;
                    let word = if is_counted { word } else { 0x5a5a << index };
                    writer.memory.write_u64(bitmap + 8 * index, word);
                    if is_counted {
                        writer.truth.words.insert(bitmap + 8 * index);
                    }
                }
                self.write_contents(writer, at, size_of_class(*class), allocated.len());
            }
            Content::Large { pointer, bytes, .. } => {
                address = *pointer;
                self.write_contents(writer, *pointer, *bytes, 1);
            }
            Content::Free(_) => {}
        }
        first |= free << bits.free;
        let pages = structure + 8 + self.shift_of(JemallocPart::Pages);
        writer.word(structure, first);
        writer.word(pages, address);
        // The low bits are a serial number.
        writer.word(pages + 8, extent.bytes | (at / PAGE % 7));
    }

    /// Writes typical contents of a program's memory: pointers into the heap, sizes, zeros.
    fn write_contents(&self, writer: &mut Writer<'_>, at: u64, bytes: u64, count: usize) {
        for region in 0..(count as u64).min(40) {
            let start = at + region * bytes;
            let word = match region % 4 {
                0 => start,
                1 => self.arenas[0].address,
                2 => 0x1002,
                _ => start.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            };
            writer.memory.write_u64(start, word);
        }
    }

    fn write_base(&self, writer: &mut Writer<'_>, index: usize) {
        let Arena { number, base, .. } = &self.arenas[index];
        let members = self.release.members();
        writer.word(base.address, *number);
        // The newest block comes first.
        let mut next = 0;
        for (block, used) in &base.blocks {
            let bytes = block.end - block.start;
            writer.word(block.start, bytes);
            writer.word(block.start + 8, next);
            writer.word(block.start + 24, *used);
            writer.word(block.start + 32, block.end - used);
            next = block.start;
            writer.truth.extents.push(SyntheticExtent {
                range: block.clone(),
                arena: index as u32,
                usage: PagesUse::Base,
                region_bytes: None,
                regions: Vec::new(),
            });
        }
        writer.word(base.address + members.blocks, next);
        let used: u64 = base.blocks.iter().map(|(block, used)| used - block.start).sum();
        let counts = [used, used.next_multiple_of(PAGE), base_bytes(&self.arenas[index])];
        for (offset, count) in members.base_counts.into_iter().zip(counts) {
            writer.word(base.address + offset, count);
        }
    }

    fn write_arena(&self, writer: &mut Writer<'_>, index: usize) {
        let arena = &self.arenas[index];
        let at = arena.address;
        let members = self.release.members();
        let states = [PagesUse::Active, PagesUse::Dirty, PagesUse::Muzzy, PagesUse::Retained];
        let pages = states.map(|state| {
            let extents = arena.extents.values().filter(|extent| usage_of(extent) == state);
            extents.map(|extent| extent.bytes).sum::<u64>() / PAGE
        });
        let threads = (0..self.threads.len()).filter(|it| it % self.arenas.len() == index);
        writer.half(at, threads.clone().count() as u32);
        let counts = members.counts.map(|offset| at + offset + self.shift_of(JemallocPart::Counts));
        for (count, pages) in counts.into_iter().zip(pages) {
            writer.word(count, pages);
        }
        let own = if index == 0 { super::STACK_BYTES * self.threads.len() as u64 } else { 0 };
        writer.word(at + members.internal, own);
        for (offset, milliseconds) in members.decay.into_iter().zip([10_000, 0]) {
            writer.word(at + offset, milliseconds);
        }
        let in_extents = pages[..3].iter().sum::<u64>() * PAGE;
        if self.release == JemallocRelease::V5_2_1 {
            writer.word(at + members.mapped, in_extents);
        } else {
            let statistics = at + 0x80;
            writer.word(at + members.mapped, statistics);
            writer.word(statistics + 56, in_extents);
        }
        if let Some(number) = members.number {
            writer.half(at + number, arena.number as u32);
        }
        writer.word(at + members.base + self.shift_of(JemallocPart::Base), arena.base.address);

        let ring: Vec<u64> = threads.clone().map(descriptor).collect();
        for (position, &own) in ring.iter().enumerate() {
            let next = ring[(position + 1) % ring.len()];
            writer.word(own, next);
            writer.word(next + 8, own);
        }
        let head = at + members.descriptors;
        writer.word(head, ring.first().copied().unwrap_or_default());
        writer.truth.arenas.push(SyntheticArena {
            address: at,
            number: arena.number,
            mapped: in_extents + base_bytes(arena),
            threads: ring.len() as u32,
            counts,
        });
    }

    fn write_cache(&self, writer: &mut Writer<'_>, index: usize, cache: &Cache) {
        const BIN: u64 = 24;
        let is_old = self.release == JemallocRelease::V5_2_1;
        let at = descriptor(index);
        let (small, large) = (at + 0x100, at + 0x800);
        writer.word(at + 16, small);
        if is_old {
            writer.word(at + 24, large);
        }
        for class in 0..self.release.cache_bins() {
            let bin = match class.checked_sub(NBINS) {
                Some(rest) if is_old => large + BIN * rest as u64,
                _ => small + BIN * class as u64,
            };
            if size_of_class(class) > super::MAX_CACHED {
                continue;
            }
            let pointers = cache.bins.get(&class).map_or(&[][..], |pointers| pointers);
            let full = cache.stacks + 8 + (CACHE_SLOTS * class * 8) as u64;
            let empty = full + CACHE_SLOTS as u64 * 8;
            let count = pointers.len() as u64;
            for (step, &pointer) in (1..).zip(pointers) {
                writer.word(empty - 8 * step, pointer);
            }
            writer.memory.write_u64(bin + 8, 1000 + count);
            if is_old {
                writer.word(bin, count << 32);
                writer.word(bin + 16, empty);
                continue;
            }
            writer.word(bin, empty - 8 * count);
            let low = |address: u64| address & 0xffff;
            let slots =
                if self.release == JemallocRelease::V5_3_1 { CACHE_SLOTS as u64 } else { 0 };
            writer.word(bin + 16, slots << 48 | low(empty) << 32 | low(full) << 16 | low(empty));
        }
    }

    fn note_extent(&self, truth: &mut JemallocTruth, index: usize, at: u64, extent: &Extent) {
        let usage = |pointer: u64| {
            if self.own.contains(&pointer) {
                RegionUse::Own
            } else if self.is_cached(pointer) {
                RegionUse::Cached
            } else {
                RegionUse::InUse
            }
        };
        let mut region_bytes = None;
        let regions = match &extent.content {
            Content::Slab { class, allocated } => {
                let bytes = size_of_class(*class);
                region_bytes = Some(bytes);
                let region = |(region, is_allocated): (u64, &bool)| {
                    let address = at + region * bytes;
                    let usage = if *is_allocated { usage(address) } else { RegionUse::Free };
                    SyntheticRegion { address, bytes, usage }
                };
                (0..).zip(allocated).map(region).collect()
            }
            Content::Large { pointer, bytes, .. } => {
                vec![SyntheticRegion { address: *pointer, bytes: *bytes, usage: usage(*pointer) }]
            }
            Content::Free(_) => {
                vec![SyntheticRegion { address: at, bytes: extent.bytes, usage: RegionUse::Free }]
            }
        };
        truth.extents.push(SyntheticExtent {
            range: at..at + extent.bytes,
            arena: index as u32,
            usage: usage_of(extent),
            region_bytes,
            regions,
        });
    }
}

/// The descriptor of a thread's cache.
fn descriptor(thread: usize) -> u64 {
    THREADS + THREAD_STEP * thread as u64 + 0x40
}

fn usage_of(extent: &Extent) -> PagesUse {
    match extent.content {
        Content::Slab { .. } | Content::Large { .. } => PagesUse::Active,
        Content::Free(usage) => usage,
    }
}

/// jemalloc's number for the state of an extent.
fn state_of(extent: &Extent) -> u64 {
    match usage_of(extent) {
        PagesUse::Dirty => 1,
        PagesUse::Muzzy => 2,
        PagesUse::Retained => 3,
        PagesUse::Active | PagesUse::Base => 0,
    }
}

fn class_of(extent: &Extent) -> u64 {
    match extent.content {
        Content::Slab { class, .. } | Content::Large { class, .. } => class as u64,
        Content::Free(_) => NSIZES as u64,
    }
}

fn base_bytes(arena: &Arena) -> u64 {
    arena.base.blocks.iter().map(|(block, _)| block.end - block.start).sum()
}
