//! The sums of memory that nobody uses, by class and by the root that retains the objects.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use ahash::RandomState;
use linux::{Pages, each};
use ruby::{Room, SlotType, Unit};

use crate::ownership::object_graph::{ObjectGraph, Paths, class_name};
use crate::ownership::retainers::{MAX_COMPARED_STEPS, Retained, Retainers};

use super::contents::{Contents, FewKind};
use super::rooms::{Rooms, Sliced};
use super::spare::known_to_programs;
use super::subject::{PORTIONS, portion};

/// The maximum number of groups of each list, the largest ones.
pub const MAX_WASTE_GROUPS: usize = 50;

/// The steps of all paths of a list that are compared to find typical ones.
const MAX_STEPS: usize = 1 << 17;

/// The maximum number of texts.
const MAX_TEXTS: usize = 20;

/// Memory of objects that the program can reach, and that they do not use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WasteAccounts {
    /// All such objects, by kind.
    pub sums: Vec<(WasteKind, WasteSums)>,
    /// The largest groups of them, by kind, class and root.
    pub groups: Vec<WasteAccount>,
    /// The bytes that malloc added to what strings, arrays, queues and variables of objects requested, garbage included.
    pub rounded_bytes: u64,
    /// The bytes that sizes of slots added to what their strings, arrays, structs and objects need, garbage included; 0 up to Ruby 3.1.
    pub slack_bytes: u64,
    /// Objects with the same contents as others; `None` unless that is wanted.
    pub contents: Option<ContentsAccounts>,
}

/// Objects with the same contents as others, and objects with next to none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContentsAccounts {
    /// All objects that others equal, by class and root, the largest groups.
    pub copies: Vec<CopiesAccount>,
    /// The number of all of them.
    pub copy_objects: u64,
    /// Their resident bytes.
    pub copy_bytes: u64,
    /// The texts whose copies have most memory.
    pub texts: Vec<TextAccount>,
    /// Objects with next to nothing in them, by class and root, the largest groups.
    pub few: Vec<FewAccount>,
    /// The number of strings whose text was not read, and so not compared.
    pub left_out: u64,
}

/// A kind of memory that objects do not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WasteKind {
    /// The room of strings behind their text.
    Strings,
    /// The bytes of strings that none of their slices has.
    SlicedStrings,
    /// The room of arrays behind their elements.
    Arrays,
    /// The elements of arrays that none of their slices has.
    SlicedArrays,
    /// The room for entries in tables of hashes, and their bins.
    Hashes,
    /// The room of buffers that IOs read into or write from.
    IoBuffers,
    /// The room for elements in tables of Sets that are written in C.
    Sets,
    /// The room for further variables of objects.
    Variables,
    /// Slots that are larger than their strings, arrays and variables need (from Ruby 3.2 on).
    Slots,
}

/// The memory of objects that do not use all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WasteSums {
    /// The number of objects.
    pub objects: u64,
    /// The bytes that they have, resident or not.
    pub bytes: u64,
    /// The bytes of these that are in use.
    pub used_bytes: u64,
    /// The resident bytes of these that are not.
    pub unused_bytes: u64,
    /// The resident bytes that would be saved if each object had only the memory that it needs.
    pub saved_bytes: u64,
}

/// The objects of a class that a root retains, and that do not use all of their memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasteAccount {
    /// The kind of memory.
    pub kind: WasteKind,
    /// The name of the class.
    pub class: String,
    /// The path that retains most of it.
    pub path: String,
    /// The sums.
    pub sums: WasteSums,
}

/// The objects of a class that a root retains, and that have the same contents as others: one of each contents does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiesAccount {
    /// The name of the class.
    pub class: String,
    /// The path that retains most of them.
    pub path: String,
    /// The number of objects.
    pub objects: u64,
    /// The number of different contents.
    pub contents: u64,
    /// The resident bytes of the objects.
    pub bytes: u64,
    /// The part of these bytes that is room which the objects do not need.
    pub room_bytes: u64,
}

/// The strings with one text. One of them does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextAccount {
    /// The length of the text in bytes.
    pub length: u64,
    /// The beginning of the text; `None` unless it is wanted.
    pub text: Option<String>,
    /// The number of strings.
    pub objects: u64,
    /// Their resident bytes.
    pub bytes: u64,
    /// The path that retains the largest one.
    pub path: String,
}

/// The objects of a class that a root retains, and that have next to nothing in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FewAccount {
    /// The name of the class.
    pub class: String,
    /// The kind of emptiness.
    pub kind: FewKind,
    /// The path that retains most of them.
    pub path: String,
    /// The number of objects.
    pub objects: u64,
    /// Their resident bytes.
    pub bytes: u64,
}

impl WasteSums {
    fn add(&mut self, more: &Self) {
        self.objects += more.objects;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.used_bytes = self.used_bytes.saturating_add(more.used_bytes);
        self.unused_bytes = self.unused_bytes.saturating_add(more.unused_bytes);
        self.saved_bytes = self.saved_bytes.saturating_add(more.saved_bytes);
    }
}

impl WasteKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Strings,
        Self::SlicedStrings,
        Self::Arrays,
        Self::SlicedArrays,
        Self::Hashes,
        Self::IoBuffers,
        Self::Sets,
        Self::Variables,
        Self::Slots,
    ];

    /// Its name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Strings => "strings",
            Self::SlicedStrings => "sliced_strings",
            Self::Arrays => "arrays",
            Self::SlicedArrays => "sliced_arrays",
            Self::Hashes => "hashes",
            Self::IoBuffers => "io_buffers",
            Self::Sets => "sets",
            Self::Variables => "variables",
            Self::Slots => "slots",
        }
    }

    fn of(unit: Unit) -> Self {
        match unit {
            Unit::Byte => Self::Strings,
            Unit::Element | Unit::Queued => Self::Arrays,
            Unit::Entry => Self::Hashes,
            Unit::Buffered => Self::IoBuffers,
            Unit::Member => Self::Sets,
            Unit::Variable | Unit::Named => Self::Variables,
            Unit::Slot | Unit::Shape => Self::Slots,
        }
    }
}

/// Objects in groups, by a key, their class and their root.
struct Groups<'a, K, S> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a Paths,
    groups: Vec<Group<K, S>>,
    places: HashMap<Key<K>, usize, RandomState>,
    /// The place of the last one: neighbours mostly are in the same group.
    last: usize,
}

/// The key, the class and the root of a group.
type Key<K> = (K, u32, u32);

/// The sums of a group, its first object, and some of its objects.
struct Group<K, S> {
    key: Key<K>,
    sums: S,
    first: u32,
    picks: Retained,
}

impl<'a, K: Copy + Ord + std::hash::Hash, S: Default> Groups<'a, K, S> {
    fn new((graph, paths): &'a (ObjectGraph<'a>, Paths)) -> Self {
        Self { graph, paths, groups: Vec::new(), places: HashMap::default(), last: 0 }
    }

    /// The group of an object of so many bytes; `None` if nothing retains it.
    fn of(&mut self, key: K, slot: u32, bytes: u64) -> Option<&mut S> {
        let root = self.paths.root(self.graph.slot(slot))?;
        let class = self.graph.class_of(slot)?;
        Some(self.add(slot, bytes, (key, class, root)))
    }

    /// Adds an object with its bytes to the group with this key, and returns the sums of the group.
    fn add(&mut self, slot: u32, bytes: u64, key: Key<K>) -> &mut S {
        if self.groups.get(self.last).is_none_or(|last| last.key != key) {
            self.last = *self.places.entry(key).or_insert_with(|| {
                let (sums, picks) = (S::default(), Retained::new());
                self.groups.push(Group { key, sums, first: slot, picks });
                self.groups.len() - 1
            });
        }
        let group = &mut self.groups[self.last];
        group.picks.add(slot, 1, bytes);
        &mut group.sums
    }

    /// The largest groups, with the names of their classes and their paths.
    fn largest<T>(
        self,
        bytes: impl Fn(&S) -> u64,
        account: impl Fn(K, String, String, S) -> T,
    ) -> Vec<T> {
        let retainers = Retainers::new(self.graph, self.paths);
        let mut groups = self.groups;
        groups.sort_unstable_by_key(|group| (Reverse(bytes(&group.sums)), group.key));
        groups.truncate(MAX_WASTE_GROUPS);
        let mut steps = MAX_COMPARED_STEPS - MAX_STEPS;
        let account = |group: Group<K, S>| {
            let path = retainers.path_to_most(&group.picks, &mut steps);
            let class = class_name(self.graph.space, group.first).to_owned();
            account(group.key.0, class, known_to_programs(&path).to_owned(), group.sums)
        };
        groups.into_iter().map(account).collect()
    }
}

/// The sums of an object with this room.
pub(super) fn sums_of_room(
    graph: &ObjectGraph<'_>,
    pages: &Pages,
    slot: u32,
    room: &Room,
) -> WasteSums {
    let bytes = [room.bytes(), room.used_bytes(), room.least_bytes()];
    let resident = match room.unit {
        Unit::Slot | Unit::Shape | Unit::Buffered | Unit::Queued => {
            pages.resident_bytes(&(room.start..room.start.offset(bytes[0])))
        }
        _ => resident_bytes(graph, pages, slot),
    };
    sums(resident, bytes)
}

/// The sums of an object of which others are slices.
pub(super) fn sums_of_slices(
    graph: &ObjectGraph<'_>,
    pages: &Pages,
    slot: u32,
    sliced: &Sliced,
) -> WasteSums {
    let bytes = [sliced.bytes, sliced.used_bytes, sliced.used_bytes];
    sums(resident_bytes(graph, pages, slot), bytes)
}

fn resident_bytes(graph: &ObjectGraph<'_>, pages: &Pages, slot: u32) -> u64 {
    let ranges = graph.memory_of(slot);
    ranges.map(|range| pages.resident_bytes(&range)).fold(0, u64::saturating_add)
}

/// The sums of an object with so many bytes, used bytes, and bytes that a copy needs.
fn sums(resident: u64, [bytes, used_bytes, least_bytes]: [u64; 3]) -> WasteSums {
    // What is in use is resident, and what malloc rounded up is not the object's.
    let resident = resident.min(bytes);
    WasteSums {
        objects: 1,
        bytes,
        used_bytes,
        unused_bytes: resident.saturating_sub(used_bytes),
        saved_bytes: resident.saturating_sub(least_bytes),
    }
}

/// Sums up the unused memory. Objects that nothing retains are garbage, and do not count. `whole` are strings that are used as a
/// whole, though others are slices of them.
pub(super) fn accounts(
    rooms: &Rooms,
    contents: Option<&Contents>,
    pages: &Pages,
    paths: &(ObjectGraph<'_>, Paths),
    whole: &HashSet<u32>,
) -> WasteAccounts {
    let graph = &paths.0;
    let own = rooms.own.iter().map(|(slot, room)| {
        (WasteKind::of(room.unit), *slot, sums_of_room(graph, pages, *slot, room))
    });
    let sliced = rooms.sliced.iter().filter(|(slot, _)| !whole.contains(slot));
    let sliced = sliced.map(|(slot, sliced)| {
        let is_string = graph.kind(*slot) == Some(SlotType::STRING);
        let kind = if is_string { WasteKind::SlicedStrings } else { WasteKind::SlicedArrays };
        (kind, *slot, sums_of_slices(graph, pages, *slot, sliced))
    });
    let mut groups: Groups<'_, WasteKind, WasteSums> = Groups::new(paths);
    for (kind, slot, sums) in own.chain(sliced).filter(|(.., sums)| sums.unused_bytes > 0) {
        if let Some(group) = groups.of(kind, slot, sums.unused_bytes) {
            group.add(&sums);
        }
    }
    let mut by_kind: HashMap<WasteKind, WasteSums> = HashMap::new();
    for group in &groups.groups {
        by_kind.entry(group.key.0).or_default().add(&group.sums);
    }
    let mut sums: Vec<_> = by_kind.into_iter().collect();
    sums.sort_unstable_by_key(|(kind, sums)| (Reverse(sums.unused_bytes), *kind));
    WasteAccounts {
        sums,
        groups: groups.largest(
            |sums| sums.unused_bytes,
            |kind, class, path, sums| WasteAccount { kind, class, path, sums },
        ),
        rounded_bytes: rooms.rounded_bytes,
        slack_bytes: rooms.slack_bytes,
        contents: contents.map(|contents| {
            let mut own = rooms.own.as_slice();
            contents_accounts(contents, paths, |slot| saved_by(&mut own, graph, pages, slot))
        }),
    }
}

/// The resident bytes that are saved if the object in a slot has only the memory that it needs. Rooms before the slot are taken out.
fn saved_by(own: &mut &[(u32, Room)], graph: &ObjectGraph<'_>, pages: &Pages, slot: u32) -> u64 {
    while let Some((_, rest)) = own.split_first().filter(|((its, _), _)| *its < slot) {
        *own = rest;
    }
    let its = own.iter().take_while(|(its, _)| *its == slot);
    let saved = its.map(|(_, room)| sums_of_room(graph, pages, slot, room).saved_bytes);
    saved.fold(0, u64::saturating_add)
}

/// The number of objects and of contents, and the bytes.
#[derive(Default)]
struct Sum {
    objects: u64,
    contents: u64,
    bytes: u64,
    room_bytes: u64,
}

/// An object with the same contents as others that something retains.
struct RetainedCopy {
    /// The number of the contents.
    number: u32,
    slot: u32,
    root: u32,
    bytes: u64,
}

/// All such objects, in the order of the slots.
fn retained(
    copies: &[(u32, u32)],
    (graph, paths): &(ObjectGraph<'_>, Paths),
) -> Vec<Vec<RetainedCopy>> {
    each(PORTIONS, |part| {
        let mut sizes = graph.space.slot_sizes();
        let copy = |number: u32| {
            let (number, slot) = copies[number as usize];
            let root = paths.root(graph.slot(slot))?;
            Some(RetainedCopy { number, slot, root, bytes: graph.bytes_of(slot, &mut sizes) })
        };
        portion(copies.len(), part).filter_map(copy).collect()
    })
}

/// The objects with one contents.
#[derive(Clone, Default)]
struct Equal {
    objects: u64,
    bytes: u64,
    /// The bytes and the slot of the largest one, which stays.
    largest: (u64, u32),
    /// The last root that retained one of the others.
    root: Option<u32>,
}

/// `room` returns the bytes of an object that it does not need. It is called in the order of the slots.
fn contents_accounts(
    contents: &Contents,
    paths: &(ObjectGraph<'_>, Paths),
    mut room: impl FnMut(u32) -> u64,
) -> ContentsAccounts {
    let (graph, all) = paths;
    let mut groups: Groups<'_, (), Sum> = Groups::new(paths);
    let (mut copy_objects, mut copy_bytes) = (0, 0_u64);
    let retained = retained(&contents.copies, paths);
    let mut equal = vec![Equal::default(); contents.contents];
    for &RetainedCopy { number, slot, bytes, .. } in retained.iter().flatten() {
        let its = &mut equal[number as usize];
        its.objects += 1;
        its.bytes = its.bytes.saturating_add(bytes);
        its.largest = its.largest.max((bytes, slot));
    }
    let texts = contents.texts.iter().filter_map(|text| {
        let Equal { objects, bytes, largest: (most, stays), .. } = equal[text.number as usize];
        (objects > 1).then(|| (bytes.saturating_sub(most), objects - 1, stays, text))
    });
    let mut texts: Vec<_> = texts.collect();
    let mut roots = HashSet::with_hasher(RandomState::new());
    for &RetainedCopy { number, slot, root, bytes } in retained.iter().flatten() {
        let its = &mut equal[number as usize];
        let Some(class) = graph.class_of(slot).filter(|_| its.largest.1 != slot) else { continue };
        (copy_objects, copy_bytes) = (copy_objects + 1, copy_bytes.saturating_add(bytes));
        let sum = groups.add(slot, bytes, ((), class, root));
        sum.objects += 1;
        sum.bytes = sum.bytes.saturating_add(bytes);
        sum.room_bytes = sum.room_bytes.saturating_add(room(slot));
        // Neighbours mostly have one root.
        let is_new = its.root.replace(root) != Some(root) && roots.insert((number, root));
        sum.contents += u64::from(is_new);
    }
    texts.sort_unstable_by_key(|(bytes, _, slot, _)| (Reverse(*bytes), *slot));
    texts.truncate(MAX_TEXTS);
    let retainers = Retainers::new(graph, all);
    let texts = texts.into_iter().map(|(bytes, objects, slot, text)| TextAccount {
        length: text.length,
        text: text.text.clone(),
        objects,
        bytes,
        path: retainers.path_to(slot),
    });
    let texts = texts.collect();
    let mut few: Groups<'_, FewKind, Sum> = Groups::new(paths);
    let mut sizes = graph.space.slot_sizes();
    for &(slot, kind) in &contents.few {
        let bytes = graph.bytes_of(slot, &mut sizes);
        if let Some(sum) = few.of(kind, slot, bytes) {
            sum.objects += 1;
            sum.bytes = sum.bytes.saturating_add(bytes);
        }
    }
    ContentsAccounts {
        copies: groups.largest(
            |sum| sum.bytes,
            |(), class, path, Sum { objects, contents, bytes, room_bytes }| CopiesAccount {
                class,
                path,
                objects,
                contents,
                bytes,
                room_bytes,
            },
        ),
        copy_objects,
        copy_bytes,
        texts,
        few: few.largest(
            |sum| sum.bytes,
            |kind, class, path, Sum { objects, bytes, .. }| FewAccount {
                class,
                kind,
                path,
                objects,
                bytes,
            },
        ),
        left_out: contents.left_out,
    }
}
