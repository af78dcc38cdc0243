//! The heap as data: each object with its references and fields, each block, and each heap page.

use std::collections::HashMap;
use std::fmt;

use image::ProcessState;
use linux::Address;
use ruby::{
    AllocationSite, AllocationSites, ClassKind, Detail, Details, Fact, ImemoType, ObjectSpace,
    Shapes, Slot, SlotState, SlotType,
};

use crate::Facts;
use crate::ledger::owners_of;
use crate::ownership::{
    NoExplanation, Node, ObjectGraph, ObjectReferences, Paths, Reach, RetainedSizes,
};
use crate::pages::{Residents, pages_of};

/// The heap of a process, as a dump has it.
pub struct Dump<'a> {
    state: &'a ProcessState,
    details: &'a Details,
    sites: &'a AllocationSites,
    shapes: &'a Shapes,
    graph: &'a ObjectGraph<'a>,
    paths: &'a Paths,
    sizes: Option<&'a RetainedSizes<'a>>,
}

/// An object.
#[derive(Debug, Clone, Copy)]
pub struct DumpedObject<'a> {
    /// The address of its slot.
    pub address: Address,
    /// Its type.
    pub kind: SlotType,
    /// The type of an internal object.
    pub imemo: Option<ImemoType>,
    /// The bytes of its slot.
    pub slot_bytes: u64,
    /// Its class, which may be a singleton class; `None` for internal objects.
    pub class: Option<Address>,
    /// The superclass of a class, or the Proc for missing keys of a hash.
    pub related: Option<Address>,
    /// The class that the objects of a singleton class name.
    pub real_class: Option<&'a str>,
    /// The name of the structure that the object wraps.
    pub data_type: Option<&'a str>,
    /// Its fields.
    pub detail: &'a Detail,
    /// True if the last mark found it.
    pub is_marked: bool,
    /// The bytes of its slot and of its memory, as Ruby counts them if that is known.
    pub memsize: u64,
    /// The objects that it refers to.
    pub references: DumpedReferences<'a>,
    /// The blocks that it refers to.
    pub blocks: &'a [Address],
    /// The line that allocated it, if the process traced that.
    pub site: Option<AllocationSite<'a>>,
    /// The name of its class, or of its kind.
    pub owner: &'a str,
    /// The root that retains it; `None` for garbage.
    pub root: Option<&'a str>,
    /// The object before it on the shortest path from the root; `None` if that refers to it directly.
    pub parent: Option<Address>,
    /// The resident bytes of its slot and of its blocks.
    pub resident_bytes: u64,
    /// The memory that would be freed with it, if that is wanted.
    pub retained: Option<RetainedByObject<'a>>,
}

/// The objects to which one refers. Their addresses are made one after the other, since a large array has millions.
#[derive(Clone, Copy)]
pub struct DumpedReferences<'a> {
    space: &'a ObjectSpace,
    slots: &'a [u32],
}

impl fmt::Debug for DumpedReferences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.addresses()).finish()
    }
}

impl<'a> DumpedReferences<'a> {
    /// Their number.
    #[must_use]
    pub fn len(self) -> usize {
        self.slots.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.slots.is_empty()
    }

    /// Their addresses.
    pub fn addresses(self) -> impl Iterator<Item = Address> + 'a {
        self.slots.iter().filter_map(move |&slot| self.space.slot_address(slot as usize))
    }
}

/// The memory that an object retains.
#[derive(Debug, Clone, Copy)]
pub struct RetainedByObject<'a> {
    /// The bytes, with its own.
    pub bytes: u64,
    /// The number of objects, with itself.
    pub objects: u64,
    /// The object without which it would be freed; `None` if there is none.
    pub dominator: Option<Address>,
    /// The root without which it would be freed, if no object comes before.
    pub dominating_root: Option<&'a str>,
}

/// A block of malloc.
#[derive(Debug, Clone, Copy)]
pub struct DumpedBlock<'a> {
    /// The address that malloc has returned.
    pub address: Address,
    /// Its bytes, header included.
    pub bytes: u64,
    /// The resident part.
    pub resident_bytes: u64,
    /// `in_use`, `free`, or a kind of free block.
    pub state: &'static str,
    /// The arena; `None` for a mapping of its own.
    pub arena: Option<u32>,
    /// The name of its owner; `None` unless it is in use.
    pub owner: Option<&'a str>,
    /// The cause of its memory; `None` unless it is in use.
    pub cause: Option<&'static str>,
    /// True if other owners reach it, too.
    pub is_shared: bool,
}

/// A heap page of Ruby's.
#[derive(Debug, Clone, Copy)]
pub struct DumpedPage {
    /// Its address.
    pub address: Address,
    /// All of its bytes.
    pub bytes: u64,
    /// The resident part.
    pub resident_bytes: u64,
    /// The size of each slot; 0 if it has none.
    pub slot_bytes: u64,
    /// The number of slots.
    pub slots: u64,
    /// The number of those with an object.
    pub live: u64,
    /// The number of those whose object the last mark did not find.
    pub unmarked: u64,
}

impl Facts {
    /// Calls `read` with the heap as data, with retained sizes if they are wanted.
    ///
    /// # Errors
    /// If the references, or the fields of objects, were not read.
    pub fn dump<T>(
        &self,
        state: &ProcessState,
        retained_sizes: bool,
        read: impl FnOnce(&Dump<'_>) -> T,
    ) -> Result<T, NoExplanation> {
        let owners = owners_of(self);
        let (details, sites, shapes) = self.details.as_ref().ok_or(NoExplanation::NoGraph)?;
        let graph = owners.object_graph().ok_or(NoExplanation::NoGraph)?;
        let reach = if retained_sizes { Reach::All } else { Reach::Inner };
        let paths = Paths::find(&graph, reach);
        let retained =
            retained_sizes.then(|| RetainedSizes::find(&graph, &paths, std::iter::empty()));
        let (graph, paths, sizes) = (&graph, &paths, retained.as_ref());
        Ok(read(&Dump { state, details, sites, shapes, graph, paths, sizes }))
    }
}

impl Dump<'_> {
    /// The version of Ruby.
    #[must_use]
    pub fn ruby_version(&self) -> &str {
        &self.graph.space.interpreter.version
    }

    /// Returns true if Ruby has shapes (from 3.2 on). Since then slots have several sizes.
    #[must_use]
    pub fn has_shapes(&self) -> bool {
        self.graph.space.has_shapes()
    }

    /// The name that this version of Ruby has for shapes of too many variables.
    #[must_use]
    pub fn name_of_complex_shapes(&self) -> &'static str {
        self.graph.space.interpreter.name_of_complex_shapes()
    }

    /// Returns true if the fields of objects have their ages.
    #[must_use]
    pub fn has_ages(&self) -> bool {
        self.details.has_ages()
    }

    /// The state of the process when it was read.
    #[must_use]
    pub fn state(&self) -> &ProcessState {
        self.state
    }

    /// The number of slots that could not be read because they are swapped out.
    #[must_use]
    pub fn unread_slots(&self) -> u64 {
        let slots = self.graph.space.slots.iter();
        slots.filter(|it| it.state() == SlotState::Unread).count() as u64
    }

    /// Calls `each` with the name of each kind of roots and the objects that these refer to.
    pub fn roots<E>(
        &self,
        mut each: impl FnMut(&str, &[Address]) -> Result<(), E>,
    ) -> Result<(), E> {
        let roots = ObjectReferences::new(self.graph, self.paths).of_roots();
        for (name, slots) in roots {
            let addresses: Vec<Address> = slots.iter().filter_map(|it| self.address(*it)).collect();
            each(name, &addresses)?;
        }
        Ok(())
    }

    /// The shapes (from 3.2 on).
    #[must_use]
    pub fn shapes(&self) -> &Shapes {
        self.shapes
    }

    /// Calls `each` with each live object, in the order of their slots.
    pub fn objects<E>(
        &self,
        mut each: impl FnMut(&DumpedObject<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let space = self.graph.space;
        let (resident, absent) = self.bytes_of_blocks();
        let real_classes = self.real_classes();
        let mut finder = ObjectReferences::new(self.graph, self.paths);
        let (mut slots, mut blocks) = (Vec::new(), Vec::new());
        for (slot, detail) in self.details.iter() {
            let (Some(its), Some(address)) = (space.slots.get(slot as usize), self.address(slot))
            else {
                continue;
            };
            let class = self.class(*its, &detail);
            finder.of_object(slot, detail.is(Fact::Shared), &mut slots);
            slots.retain(|it| self.address(*it).is_some_and(|it| Some(it) != class));
            blocks.clear();
            blocks.extend(self.graph.memory_of(slot).map(|block| block.start));
            let slot_bytes = space.slot_bytes(slot);
            let number = self.graph.slot(slot);
            let root = self.paths.root(number);
            let resident_blocks = resident.of(slot);
            let blocks_bytes = resident_blocks + absent.get(&slot).copied().unwrap_or_default();
            let outside = self.outside(slot, *its, &detail, blocks_bytes);
            each(&DumpedObject {
                address,
                kind: its.kind(),
                imemo: self.imemo(*its),
                slot_bytes,
                class,
                related: detail.related.and_then(|it| self.address(it)),
                real_class: real_classes.get(&slot).and_then(|&class| self.class_name(class)),
                data_type: space.data_type_of(slot).and_then(|it| it.name.as_deref()),
                is_marked: its.state() == SlotState::Marked,
                memsize: slot_bytes.saturating_add(outside),
                detail: &detail,
                references: DumpedReferences { space, slots: &slots },
                blocks: &blocks,
                site: self.sites.of(slot),
                owner: self.graph.object_name(slot),
                root: root.map(|root| self.graph.root_name(root)),
                parent: self.parent(number),
                resident_bytes: slot_bytes + resident_blocks,
                retained: self.sizes.map(|sizes| self.retained(sizes, number)),
            })?;
        }
        Ok(())
    }

    /// Calls `each` with each block of malloc.
    pub fn blocks<E>(
        &self,
        mut each: impl FnMut(&DumpedBlock<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (heap, trace) = (self.graph.heap, self.graph.trace);
        let name = |code| self.graph.table.new_account(trace.owner(code)).name;
        let names: Vec<String> = (0..trace.code_count() as u32).map(name).collect();
        let mut residents = Residents::new(pages_of(self.state));
        for extent in &heap.extents {
            for (number, block) in heap.blocks_of(extent) {
                let state = block.state();
                let is_in_use = state.is_in_use();
                let owner = names.get(trace.code_of(number) as usize).map(String::as_str);
                each(&DumpedBlock {
                    address: heap.header.pointer(block),
                    bytes: block.bytes(),
                    resident_bytes: residents.within(&(block.address..block.end())),
                    state: state.name(),
                    arena: extent.arena,
                    owner: owner.filter(|_| is_in_use),
                    cause: is_in_use.then(|| trace.cause_of(number).name()),
                    is_shared: is_in_use && trace.is_shared(number),
                })?;
            }
        }
        Ok(())
    }

    /// Calls `each` with each heap page.
    pub fn pages<E>(&self, mut each: impl FnMut(&DumpedPage) -> Result<(), E>) -> Result<(), E> {
        let space = self.graph.space;
        let mut residents = Residents::new(pages_of(self.state));
        for page in &space.pages {
            let slots = space.slots.get(page.slots.clone()).unwrap_or_default();
            let count = |state| slots.iter().filter(|it| it.state() == state).count() as u64;
            let unmarked = count(SlotState::Unmarked);
            each(&DumpedPage {
                address: page.range.start,
                bytes: linux::length(&page.range),
                resident_bytes: residents.within(&page.range),
                slot_bytes: page.slot_bytes.into(),
                slots: slots.len() as u64,
                live: unmarked + count(SlotState::Marked),
                unmarked,
            })?;
        }
        Ok(())
    }

    fn address(&self, slot: u32) -> Option<Address> {
        self.graph.space.slot_address(slot as usize)
    }

    fn class(&self, slot: Slot, detail: &Detail) -> Option<Address> {
        match detail.is(Fact::NamedClass) {
            true => self.graph.space.classes.get(slot.class() as usize)?.address(),
            false => self.address(detail.class?),
        }
    }

    fn imemo(&self, slot: Slot) -> Option<ImemoType> {
        match self.graph.space.classes.get(slot.class() as usize)?.kind {
            ClassKind::Imemo(imemo) => Some(imemo),
            _ => None,
        }
    }

    fn class_name(&self, class: u32) -> Option<&str> {
        self.graph.space.classes.get(class as usize)?.name.as_deref()
    }

    /// The class that the objects of each singleton class name.
    fn real_classes(&self) -> HashMap<u32, u32> {
        let slots = &self.graph.space.slots;
        let of = |(slot, detail): (u32, Detail)| {
            let class = slots.get(slot as usize).filter(|it| {
                // Some objects of the class Object have the name of their type.
                !matches!(it.kind(), SlotType::ICLASS | SlotType::DATA | SlotType::IMEMO)
            })?;
            let its = slots.get(detail.class? as usize)?;
            (its.kind() == SlotType::CLASS).then_some((detail.class?, class.class()))
        };
        self.details.iter().filter_map(of).collect()
    }

    /// The bytes of an object's memory outside its slot: as Ruby counts them if that is known, else those of its `blocks`.
    fn outside(&self, slot: u32, its: Slot, detail: &Detail, blocks: u64) -> u64 {
        const METHOD_BYTES: u64 = 8;
        if let Some(bytes) = detail.outside {
            return bytes;
        }
        match (its.kind(), self.imemo(its)) {
            (SlotType::DATA, _) => match self.graph.space.data_type_of(slot) {
                Some(data_type) if !data_type.has_memsize => 0,
                _ => blocks,
            },
            // A pointer to its definition.
            (SlotType::IMEMO, Some(ImemoType::Ment)) => METHOD_BYTES,
            (
                SlotType::IMEMO,
                Some(
                    ImemoType::Iseq
                    | ImemoType::Tmpbuf
                    | ImemoType::Ast
                    | ImemoType::Cdhash
                    | ImemoType::Subclasses,
                ),
            ) => blocks,
            // Their tables are those of a module.
            (SlotType::IMEMO | SlotType::ICLASS, _) => 0,
            _ => blocks,
        }
    }

    /// The object before a node on its path.
    fn parent(&self, number: u32) -> Option<Address> {
        let above = std::iter::successors(self.paths.parent(number), |&at| self.paths.parent(at));
        self.first_object(above)
    }

    fn first_object(&self, mut nodes: impl Iterator<Item = u32>) -> Option<Address> {
        nodes.find_map(|at| match self.graph.node(at) {
            Node::Slot(slot) => self.address(slot),
            _ => None,
        })
    }

    fn retained(&self, sizes: &RetainedSizes<'_>, number: u32) -> RetainedByObject<'_> {
        let (bytes, objects) = sizes.of(number);
        let dominator = self.first_object(sizes.dominators_of(number));
        // A linked list has many dominators, so they are all visited only if none is an object.
        let last = || sizes.dominators_of(number).last();
        let root = if dominator.is_none() { last() } else { None };
        RetainedByObject {
            bytes,
            objects: objects.into(),
            dominator,
            dominating_root: root.map(|root| self.graph.root_name(root)),
        }
    }

    /// The resident bytes of the blocks of each object, and the bytes of large blocks that are not resident.
    fn bytes_of_blocks(&self) -> (BytesOfBlocks, HashMap<u32, u64>) {
        let (graph, heap) = (self.graph, self.graph.heap);
        let (mut bytes, mut absent) = (BytesOfBlocks::default(), HashMap::new());
        bytes.small.resize(graph.space.slots.len(), 0);
        graph.space.transient.iter().for_each(|&(slot, its)| bytes.add(slot, its.into()));
        for (slot, block) in graph.own_blocks(self.paths, |_| true) {
            let resident = graph.block_bytes(block);
            bytes.add(slot, resident);
            let all = heap.block(block as usize).map_or(0, |it| it.bytes());
            if all > resident {
                *absent.entry(slot).or_default() += all - resident;
            }
        }
        (bytes, absent)
    }
}

/// The bytes of each slot, in two bytes if they fit, since there are millions of slots.
#[derive(Default)]
struct BytesOfBlocks {
    /// In units of the smallest alignment of blocks.
    small: Vec<u16>,
    large: HashMap<u32, u64>,
}

impl BytesOfBlocks {
    const UNIT: u64 = 8;

    fn add(&mut self, slot: u32, bytes: u64) {
        let sum = self.of(slot).saturating_add(bytes);
        let Some(small) = self.small.get_mut(slot as usize) else { return };
        match u16::try_from(sum / Self::UNIT) {
            Ok(units) if units < u16::MAX && sum.is_multiple_of(Self::UNIT) => *small = units,
            _ => {
                *small = u16::MAX;
                self.large.insert(slot, sum);
            }
        }
    }

    fn of(&self, slot: u32) -> u64 {
        match self.small.get(slot as usize) {
            Some(&u16::MAX) => self.large.get(&slot).copied().unwrap_or_default(),
            Some(&units) => u64::from(units) * Self::UNIT,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_blocks_add_up_whatever_their_size() {
        let mut bytes = BytesOfBlocks { small: vec![0; 3], ..BytesOfBlocks::default() };
        for (slot, its) in [(0, 16), (0, 24), (1, 3), (1, 5), (2, 1 << 40), (2, 8), (9, 8)] {
            bytes.add(slot, its);
        }
        assert_eq!([0, 1, 2, 9].map(|slot| bytes.of(slot)), [40, 8, (1 << 40) + 8, 0]);
    }
}
