//! Large memory of which objects use a small part: tables of hashes, arrays and strings that were large once, and the bytes of
//! strings of which only slices are in use.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use allocator::{BlockState, HeapMap};
use image::{Image, SparseRows};
use linux::{Address, Pages};
use ruby::{ObjectSpace, Slice, SlotType, table_of_hash};

use crate::ownership::bits::Bits;
use crate::ownership::edges::Edge;
use crate::ownership::object_graph::{Node, ObjectGraph, Paths};
use crate::ownership::retainers::Retainers;

/// The least memory of an object that is examined, in bytes: a page, so that not every small object is read once more.
const MIN_BYTES: u64 = 4 << 10;
/// An object uses little of its memory if it is less than one part in this many.
const PARTS: u64 = 8;
/// The last step of a path to an array that is hidden from programs.
const HIDDEN_ARRAY: &str = " → (T_ARRAY)";

/// Memory of which objects use a small part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpareAccount {
    /// The kind of objects.
    pub kind: SpareKind,
    /// The number of objects that have the memory.
    pub objects: u64,
    /// The number of objects that use it: the objects themselves, or slices.
    pub users: u64,
    /// The entries of hashes, or the bytes, that are in use.
    pub used: u64,
    /// The entries of hashes, or the bytes, that there is room for.
    pub room: u64,
    /// The resident bytes of the memory.
    pub resident_bytes: u64,
    /// The part of them in mappings of their own, which malloc returns to the kernel as soon as they are freed.
    pub mapped_bytes: u64,
    /// The bytes of objects that nothing else retains: elements of arrays of which only slices are in use.
    pub elements_bytes: u64,
    /// The path that retains the object with most of it.
    pub path: String,
}

impl SpareAccount {
    /// The resident bytes that are saved if only what is in use stays. The elements in use are about as large as the others.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        let unused = self.room.saturating_sub(self.used);
        let part =
            u128::from(self.elements_bytes) * u128::from(unused) / u128::from(self.room.max(1));
        self.resident_bytes.saturating_add(part as u64)
    }
}

/// A kind of objects with memory that they do not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpareKind {
    /// Hashes: what they use is counted in entries.
    Hashes,
    /// Strings of which other strings are slices.
    Strings,
    /// Arrays with a large buffer.
    Arrays,
    /// Hidden arrays of which other arrays are slices.
    SlicedArrays,
    /// Strings with a large buffer.
    Buffers,
}

/// An object with large memory.
#[derive(Debug, Clone)]
struct Large {
    slot: u32,
    memory: Vec<Range<Address>>,
    users: u64,
    used: u64,
    room: u64,
}

/// The large objects that use a small part of their memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare {
    hashes: Vec<Large>,
    strings: Vec<Large>,
    arrays: Vec<Large>,
    sliced_arrays: Vec<Large>,
    buffers: Vec<Large>,
}

impl Spare {
    /// Finds the objects. `of_slots` are the blocks that they refer to.
    pub(crate) fn read(
        image: &Image<'_>,
        heap: &HeapMap,
        space: &ObjectSpace,
        of_slots: &SparseRows<Edge>,
    ) -> Self {
        let (mut hashes, mut strings) = (Vec::new(), HashMap::new());
        let (mut buffers, mut arrays, mut shared_arrays) = (Vec::new(), Vec::new(), HashMap::new());
        let referred_to = referred_to_by_its_kind(space);
        for (slot, edges) in of_slots.iter() {
            let kind = space.slots.get(slot as usize).map(|slot| slot.kind());
            if !matches!(kind, Some(SlotType::HASH | SlotType::STRING | SlotType::ARRAY)) {
                continue;
            }
            let certain = edges.iter().filter(|edge| !edge.is_uncertain());
            let blocks = certain.filter_map(|edge| heap.block(edge.to() as usize));
            let memory = blocks.map(|block| heap.header.usable(block));
            if memory.clone().map(|range| linux::length(&range)).max() < Some(MIN_BYTES) {
                continue;
            }
            let large = Large { slot, memory: memory.collect(), users: 1, used: 0, room: 0 };
            if kind == Some(SlotType::HASH) {
                hashes.extend(sparse_hash(image, space, large));
            } else if large.memory.len() != 1 {
            } else if kind == Some(SlotType::STRING) {
                match with_room(image, space, &large) {
                    Some(buffer) => buffers.push(buffer),
                    None if referred_to.contains(slot) => {
                        strings.insert(slot, Large { users: 0, ..large });
                    }
                    None => {}
                }
            } else if space.is_hidden_array(slot) {
                if referred_to.contains(slot) {
                    shared_arrays.insert(slot, Large { users: 0, ..large });
                }
            } else {
                arrays.extend(with_room(image, space, &large));
            }
        }
        let sliced_arrays = sliced(image, space, SlotType::ARRAY, shared_arrays);
        let strings = sliced(image, space, SlotType::STRING, strings);
        Self { hashes, strings, arrays, sliced_arrays, buffers }
    }

    /// Sums up the objects that the program can reach, without strings that are also used as a whole.
    pub(crate) fn accounts(
        &self,
        pages: &Pages,
        (graph, paths): &(ObjectGraph<'_>, Paths),
    ) -> Vec<SpareAccount> {
        let is_retained = |large: &&Large| {
            let root = paths.root(graph.slot(large.slot));
            root.is_some_and(|root| !graph.is_of_extensions(root))
        };
        let retained = |objects: &'_ [Large]| -> Vec<Large> {
            objects.iter().filter(is_retained).cloned().collect()
        };
        let mut strings = retained(&self.strings);
        if !strings.is_empty() {
            let mut slots = Bits::new(graph.len());
            strings.iter().for_each(|large| _ = slots.insert(graph.slot(large.slot)));
            let is_string = |number: u32| match graph.node(number) {
                Node::Slot(slot) => graph.space.slots[slot as usize].kind() == SlotType::STRING,
                _ => false,
            };
            let whole = graph.referrers(paths, &slots, |from, _| !is_string(from));
            strings.retain(|large| !whole.contains_key(&graph.slot(large.slot)));
        }
        let kinds = [
            (SpareKind::Hashes, retained(&self.hashes)),
            (SpareKind::Strings, strings),
            (SpareKind::Arrays, retained(&self.arrays)),
            (SpareKind::SlicedArrays, retained(&self.sliced_arrays)),
            (SpareKind::Buffers, retained(&self.buffers)),
        ];
        let accounts = kinds.into_iter().filter_map(|(kind, objects)| {
            let resident = |large: &Large| {
                large.memory.iter().map(|range| pages.resident_bytes(range)).sum::<u64>()
            };
            let is_mapped = |range: &&Range<Address>| {
                let block = graph.heap.block_of(range.start).and_then(|it| graph.heap.block(it));
                block.is_some_and(|block| block.state() == BlockState::Mmapped)
            };
            let mapped = objects.iter().flat_map(|large| large.memory.iter().filter(is_mapped));
            let largest =
                objects.iter().max_by_key(|large| (resident(large), Reverse(large.slot)))?;
            let sum = |of: fn(&Large) -> u64| objects.iter().map(of).fold(0, u64::saturating_add);
            let path = Retainers::new(graph, paths).path_to(largest.slot);
            // Programs know the array that shares its elements with a hidden one.
            let path = path.strip_suffix(HIDDEN_ARRAY).unwrap_or(&path);
            let nodes = |large: &Large| {
                let starts = large.memory.iter().map(|range| range.start);
                let blocks = starts.filter_map(|start| graph.heap.block_of(start));
                let blocks = blocks.map(|block| graph.memory(block as u32));
                blocks.chain([graph.slot(large.slot)]).collect::<Vec<_>>()
            };
            let sliced: HashSet<u32> = match kind {
                SpareKind::SlicedArrays => objects.iter().flat_map(nodes).collect(),
                _ => HashSet::new(),
            };
            Some(SpareAccount {
                kind,
                objects: objects.len() as u64,
                users: sum(|large| large.users),
                used: sum(|large| large.used),
                room: sum(|large| large.room),
                resident_bytes: objects.iter().map(resident).sum(),
                mapped_bytes: mapped.map(|range| pages.resident_bytes(range)).sum(),
                elements_bytes: graph.bytes_behind(paths, &sliced),
                path: path.to_owned(),
            })
        });
        accounts.collect()
    }
}

/// The strings to which strings refer, and the arrays to which arrays do: only these may have slices.
fn referred_to_by_its_kind(space: &ObjectSpace) -> Bits {
    let kind_of = |slot: u32| space.slots.get(slot as usize).map(|it| it.kind());
    let mut found = Bits::new(space.slots.len());
    for slot in space.links.slots() {
        let kind = kind_of(slot);
        if matches!(kind, Some(SlotType::STRING | SlotType::ARRAY)) {
            let owners = space.links.of(slot).iter().filter(|owner| kind_of(**owner) == kind);
            owners.for_each(|&owner| _ = found.insert(owner));
        }
    }
    found
}

/// Returns the hash if its table has few entries for its size. The table must be the one whose memory the hash refers to.
fn sparse_hash(image: &Image<'_>, space: &ObjectSpace, large: Large) -> Option<Large> {
    let at = space.slot_address(large.slot as usize)?;
    let after = space.pages.partition_point(|page| page.slots.end <= large.slot as usize);
    let slot_bytes = space.pages.get(after)?.slot_bytes;
    let table = table_of_hash(image, space.interpreter.table_layout(), at, slot_bytes)?;
    let is_its = large.memory.iter().any(|memory| memory.start == table.entries);
    let is_sparse = is_its && table.count < table.capacity / PARTS;
    is_sparse.then_some(Large { used: table.count, room: table.capacity, ..large })
}

/// Returns the string or array if its contents are few for the memory, which it shares with no other object.
fn with_room(image: &Image<'_>, space: &ObjectSpace, large: &Large) -> Option<Large> {
    let contents = Slice::of(image, space.slot_address(large.slot as usize)?)?;
    let memory = &large.memory[0];
    let room = linux::length(memory);
    let is_own = contents.start == memory.start && space.slot_at(contents.owner).is_none();
    let has_room = is_own && contents.bytes < room / PARTS;
    has_room.then(|| Large { used: contents.bytes, room, ..large.clone() })
}

/// Returns the objects of this kind of which slices use a small part, by slot.
fn sliced(
    image: &Image<'_>,
    space: &ObjectSpace,
    kind: SlotType,
    mut objects: HashMap<u32, Large>,
) -> Vec<Large> {
    if !objects.is_empty() {
        add_slices(image, space, kind, &mut objects);
    }
    let is_sliced = |large: &Large| large.users > 0 && large.used < large.room / PARTS;
    let mut sliced: Vec<_> = objects.into_values().filter(is_sliced).collect();
    sliced.sort_by_key(|large| large.slot);
    sliced
}

/// Counts the slices of each object.
fn add_slices(
    image: &Image<'_>,
    space: &ObjectSpace,
    kind: SlotType,
    objects: &mut HashMap<u32, Large>,
) {
    for slot in space.links.slots() {
        if space.slots.get(slot as usize).is_none_or(|it| it.kind() != kind) {
            continue;
        }
        for owner in space.links.of(slot) {
            let Some(large) = objects.get_mut(owner) else { continue };
            let at = space.slot_address(slot as usize);
            let Some(slice) = at.and_then(|at| Slice::of(image, at)) else { continue };
            let memory = &large.memory[0];
            let is_within = memory.contains(&slice.start)
                && slice.bytes <= memory.end - slice.start
                && space.slot_address(*owner as usize) == Some(slice.owner);
            large.users += 1;
            // All of it is in use, as far as is known.
            large.used = large.used.saturating_add(if is_within { slice.bytes } else { u64::MAX });
        }
    }
    objects.values_mut().for_each(|large| large.room = linux::length(&large.memory[0]));
}
