//! Memory of which objects do not need a quarter or more: tables of hashes, arrays and strings that were larger once, and the bytes of
//! strings of which only slices are in use.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use allocator::BlockState;
use linux::{Address, Pages};
use ruby::{Room, SlotType, Unit};

use crate::ownership::object_graph::{ObjectGraph, Paths};
use crate::ownership::retainers::Retainers;

use super::accounts::{sums_of_room, sums_of_slices};
use super::rooms::{Rooms, Sliced};

/// The least memory of an object that counts, in bytes.
const MIN_BYTES: u64 = 256;
/// The least memory of sliced arrays whose elements count, in bytes: to find them takes long.
const MIN_ARRAYS_BYTES: u64 = 64 << 10;
/// A step names the fewest roots whose objects have more than this part of the bytes that it saves.
const MOST: (u64, u64) = (9, 10);
/// An object counts if it uses less than one part in this many of its memory, resident or not ...
const PARTS: u64 = 2;
/// ... or if it does not need one part in this many of it.
const UNNEEDED_PARTS: u64 = 4;
/// The last step of a path to an array that is hidden from programs, or to one behind it.
const HIDDEN_ARRAY: &str = " → (T_ARRAY)";
/// The end of the names of queues.
const QUEUE: &str = "Queue";
const HIDDEN_ARRAYS: &str = " → (T_ARRAY) × 2";

/// Memory of which objects do not need a large part.
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
    /// The resident bytes of the memory, without those that a copy needs.
    pub unneeded_bytes: u64,
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
        self.unneeded_bytes.saturating_add(part as u64)
    }
}

/// A kind of objects with memory that they do not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpareKind {
    /// Hashes: what they use is counted in entries.
    Hashes,
    /// Sets that are written in C (from Ruby 4.0 on), in the same way.
    Sets,
    /// Strings of which other strings are slices.
    Strings,
    /// Arrays with a large buffer.
    Arrays,
    /// Hidden arrays of which other arrays are slices.
    SlicedArrays,
    /// Strings with a large buffer.
    Buffers,
    /// Queues: rings, or the hidden arrays from which they take elements.
    Queues,
}

/// An object with large memory.
#[derive(Debug, Clone)]
struct Large {
    slot: u32,
    users: u64,
    used: u64,
    room: u64,
    /// The resident bytes that a copy does not need.
    unneeded: u64,
}

impl Large {
    /// An object with this room, if that is large and the object does not need much of it.
    fn of_room(slot: u32, room: &Room, unneeded: u64) -> Option<(SpareKind, Self)> {
        let (kind, unit) = match room.unit {
            Unit::Entry => (SpareKind::Hashes, 1),
            Unit::Member => (SpareKind::Sets, 1),
            Unit::Byte => (SpareKind::Buffers, 1),
            Unit::Element => (SpareKind::Arrays, 8),
            Unit::Queued => (SpareKind::Queues, 8),
            Unit::Variable | Unit::Named | Unit::Buffered | Unit::Slot | Unit::Shape => {
                return None;
            }
        };
        let is_much =
            room.used < room.capacity / PARTS || unneeded >= room.bytes() / UNNEEDED_PARTS;
        let is_large = room.bytes() >= MIN_BYTES && is_much;
        let (used, room) = (room.used * unit, room.capacity * unit);
        is_large.then_some((kind, Self { slot, users: 1, used, room, unneeded }))
    }

    /// An object of which others are slices, if they do not need much of it.
    fn of_slices(slot: u32, sliced: &Sliced, unneeded: u64) -> Option<Self> {
        let Sliced { slices: users, used_bytes: used, bytes: room, .. } = *sliced;
        let is_much = used < room / PARTS || unneeded >= room / UNNEEDED_PARTS;
        let is_large = room >= MIN_BYTES && is_much;
        is_large.then_some(Self { slot, users, used, room, unneeded })
    }
}

/// Sums up the objects that the program can reach, of the roots that have most. `whole` are strings that are also used as a whole.
pub(super) fn accounts(
    rooms: &Rooms,
    pages: &Pages,
    (graph, paths): &(ObjectGraph<'_>, Paths),
    whole: &HashSet<u32>,
) -> Vec<SpareAccount> {
    let root = |large: &Large| paths.root(graph.slot(large.slot));
    let is_of_program = |large: &Large| root(large).is_some_and(|it| !graph.is_of_extensions(it));
    // Programs cannot change the buffers of C extensions.
    let is_retained = |large: &Large| graph.is_visible(large.slot) && is_of_program(large);
    let own = rooms.own.iter().filter_map(|(slot, room)| {
        let unneeded = sums_of_room(graph, pages, *slot, room).saved_bytes;
        Large::of_room(*slot, room, unneeded)
    });
    let own: Vec<_> = own.filter(|(_, large)| is_retained(large)).collect();
    let with_room = |wanted: SpareKind| {
        let objects = own.iter().filter(move |(kind, _)| *kind == wanted);
        objects.map(|(_, large)| large.clone()).collect::<Vec<_>>()
    };
    let sliced = |wanted: SlotType, are_of_programs: bool| {
        let is_wanted = |(slot, sliced): &&(u32, Sliced)| {
            graph.kind(*slot) == Some(wanted)
                && sliced.are_of_programs == are_of_programs
                && !whole.contains(slot)
        };
        let sliced = rooms.sliced.iter().filter(is_wanted).filter_map(|(slot, sliced)| {
            let unneeded = sums_of_slices(graph, pages, *slot, sliced).saved_bytes;
            Large::of_slices(*slot, sliced, unneeded)
        });
        sliced.filter(is_of_program).collect::<Vec<_>>()
    };
    let unneeded = |large: &Large| large.unneeded;
    let kinds = [
        (SpareKind::Hashes, with_room(SpareKind::Hashes)),
        (SpareKind::Sets, with_room(SpareKind::Sets)),
        (SpareKind::Strings, sliced(SlotType::STRING, true)),
        (SpareKind::Arrays, with_room(SpareKind::Arrays)),
        (SpareKind::SlicedArrays, sliced(SlotType::ARRAY, true)),
        (SpareKind::Buffers, with_room(SpareKind::Buffers)),
        (
            SpareKind::Queues,
            [with_room(SpareKind::Queues), sliced(SlotType::ARRAY, false)].concat(),
        ),
    ];
    let accounts = kinds.into_iter().filter_map(|(kind, objects)| {
        let objects = of_most(objects, root, unneeded);
        let is_mapped = |range: Range<Address>| {
            let block = graph.heap.block_of(range.start).and_then(|it| graph.heap.block(it));
            block.is_some_and(|block| block.state() == BlockState::Mmapped)
        };
        let mapped = objects.iter().filter(|large| graph.memory_of(large.slot).all(is_mapped));
        let largest = objects.iter().max_by_key(|large| (unneeded(large), Reverse(large.slot)))?;
        let sum = |of: fn(&Large) -> u64| objects.iter().map(of).fold(0, u64::saturating_add);
        let nodes = |large: &Large| {
            let starts = graph.memory_of(large.slot).map(|range| range.start);
            let blocks = starts.filter_map(|start| graph.heap.block_of(start));
            let blocks = blocks.map(|block| graph.memory(block as u32));
            blocks.chain([graph.slot(large.slot)]).collect::<Vec<_>>()
        };
        let sum_of = |objects: &mut dyn Iterator<Item = &Large>| {
            objects.map(unneeded).fold(0, u64::saturating_add)
        };
        let is_much = || sum_of(&mut objects.iter()) >= MIN_ARRAYS_BYTES;
        let sliced: HashSet<u32> = match kind {
            SpareKind::SlicedArrays if is_much() => objects.iter().flat_map(nodes).collect(),
            _ => HashSet::new(),
        };
        let path = Retainers::new(graph, paths).path_to(largest.slot);
        let path = known_to_programs(&path).to_owned();
        // The interpreter has other hidden arrays, too.
        if kind == SpareKind::Queues && !path.ends_with(QUEUE) {
            return None;
        }
        Some(SpareAccount {
            kind,
            objects: objects.len() as u64,
            users: sum(|large| large.users),
            used: sum(|large| large.used),
            room: sum(|large| large.room),
            unneeded_bytes: sum_of(&mut objects.iter()),
            mapped_bytes: sum_of(&mut { mapped }),
            elements_bytes: graph.bytes_behind(paths, &sliced),
            path,
        })
    });
    accounts.collect()
}

/// The objects of the fewest roots that have most of the bytes.
fn of_most(
    mut objects: Vec<Large>,
    root: impl Fn(&Large) -> Option<u32>,
    bytes: impl Fn(&Large) -> u64,
) -> Vec<Large> {
    let mut of_roots: HashMap<_, u64> = HashMap::new();
    for large in &objects {
        let sum = of_roots.entry(root(large)).or_default();
        *sum = sum.saturating_add(bytes(large));
    }
    let mut of_roots: Vec<_> = of_roots.into_iter().collect();
    of_roots.sort_unstable_by_key(|(root, bytes)| (Reverse(*bytes), *root));
    let all = of_roots.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    let mut sum = 0_u64;
    let most = of_roots.into_iter().take_while(|(_, bytes)| {
        let is_missing = sum <= all / MOST.1 * MOST.0;
        sum = sum.saturating_add(*bytes);
        is_missing
    });
    let most: HashSet<_> = most.map(|(root, _)| root).collect();
    objects.retain(|large| most.contains(&root(large)));
    objects
}

/// The path to the array that shares its elements with a hidden one, or to the object that uses this: programs do not know it.
pub(super) fn known_to_programs(path: &str) -> &str {
    [HIDDEN_ARRAYS, HIDDEN_ARRAY]
        .iter()
        .find_map(|hidden| path.strip_suffix(hidden))
        .unwrap_or(path)
}
