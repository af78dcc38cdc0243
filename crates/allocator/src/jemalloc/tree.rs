//! The radix tree that leads from pages to the extents that they belong to.
//!
//! Its root lies in the module's data, where no symbol leads to it. It is found by its contents: a leaf has pointers to
//! descriptors, whose addresses determine the memory that the leaf describes, and thereby the index of the root's
//! child.

use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};

use image::elf::Module;
use image::{Image, Unreadable};
use linux::{Address, arch};

use crate::ExtentState;
use crate::jemalloc::descriptor::Descriptor;
use crate::jemalloc::layout::{Generation, NO_CLASS, TreeLayout};
use crate::module_data::ModuleData;
use crate::structures::{Structures, written_parts};

/// The elements of a leaf that are examined to recognise it.
const MAX_VOTES: u64 = 200;
/// The elements of a leaf that may contradict their descriptors: a thread may be changing them.
const MAX_CONTRADICTIONS: u64 = 3;
/// The leaves below a node that are examined to recognise it.
const MAX_LEAVES: usize = 64;

/// The tree of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    pub(crate) layout: TreeLayout,
    root: Address,
}

/// An element of a leaf: the descriptor of the extent that a page belongs to, and some of its fields.
#[derive(Debug, Clone, Copy)]
struct Element {
    descriptor: Address,
    class: u64,
    is_slab: bool,
    /// `None` up to 5.2.
    state: Option<u64>,
}

impl Element {
    /// Returns true if the element of an extent's first page agrees with its descriptor. Returns `None` if the extent
    /// changes hands, because the two may then differ.
    fn agrees(&self, descriptor: &Descriptor) -> Option<bool> {
        let state = match descriptor.state {
            // An extent that is cached or changes hands has no class; its old one may remain here.
            Some(ExtentState::Active) if u64::from(descriptor.class) >= NO_CLASS => return None,
            Some(ExtentState::Active) => 0,
            Some(ExtentState::Dirty) => 1,
            Some(ExtentState::Muzzy) => 2,
            Some(ExtentState::Retained) => 3,
            _ => return None,
        };
        let is_of_class =
            || self.class == u64::from(descriptor.class) && self.is_slab == descriptor.is_slab;
        Some(self.state.is_none_or(|it| it == state) && (state != 0 || is_of_class()))
    }
}

/// All extents of a tree.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    /// Ascending and disjoint.
    pub(crate) descriptors: Vec<Descriptor>,
    /// The elements that lead to no extent that begins there, or contradict its descriptor.
    pub(crate) contradictions: u64,
}

/// The reason why the extents are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Damage {
    Unreadable(Unreadable),
    /// Two leaves overlap, so the structure is not a tree.
    Overlap(Address),
}

impl From<Unreadable> for Damage {
    fn from(error: Unreadable) -> Self {
        Self::Unreadable(error)
    }
}

impl Tree {
    /// Finds the tree whose root lies in the data of `module`: the root that most elements of leaves vote for.
    pub(crate) fn find(
        structures: &mut Structures<'_>,
        module: &Module,
        data: &ModuleData,
    ) -> Option<Self> {
        let cells: Vec<(Address, Address)> = data
            .positions(1)
            .map(|(cell, words)| (cell, Address(words[0])))
            .filter(|(_, to)| to.0 != 0 && structures.is_structure(*to, 64))
            .collect();
        let mut best: Option<(u64, Self)> = None;
        for layout in TreeLayout::all() {
            let mut votes = HashMap::<Address, u64>::new();
            let mut recognised = HashMap::new();
            for &(cell, child) in &cells {
                let child = recognised
                    .entry(child)
                    .or_insert_with(|| recognise_child(structures, layout, child));
                let &mut Some((key, count)) = child else { continue };
                *votes.entry(cell.before(8 * key)).or_default() += count;
            }
            for (root, count) in votes {
                let range = root..root.offset(layout.node_bytes(0));
                let is_in_data = module.writable.iter().any(|it| {
                    it.start <= range.start && range.start < range.end && range.end <= it.end
                });
                if is_in_data && best.as_ref().is_none_or(|(most, _)| count > *most) {
                    best = Some((count, Self { layout, root }));
                }
            }
        }
        best.map(|(_, tree)| tree)
    }

    /// Reads all extents. Each leaf is visited once, so the work is bounded by the size of the memory.
    pub(crate) fn extents(&self, structures: &mut Structures<'_>) -> Result<Extents, Damage> {
        let mut leaves = BTreeMap::new();
        self.collect_leaves(structures, 0, self.root, Address(0), &mut leaves)?;
        let mut places: Vec<_> = leaves.values().copied().collect();
        places.sort_unstable();
        let is_apart = |pair: &[Address]| pair[1] - pair[0] >= self.layout.leaf_bytes();
        if let Some(pair) = places.windows(2).find(|pair| !is_apart(pair)) {
            return Err(Damage::Overlap(pair[1]));
        }
        let (page_bytes, descriptor) = (self.layout.pages.bytes(), self.layout.descriptor());
        let mut extents = Extents::default();
        let mut next = Address(0);
        for (start, leaf) in leaves {
            let mut failure = None;
            for_each_element(structures.image, self.layout, leaf, |index, element| {
                let page = start.offset(index * page_bytes);
                // The inner pages of slabs have elements, too.
                if page < next {
                    return ControlFlow::Continue(());
                }
                match Descriptor::read(structures, descriptor, element.descriptor) {
                    Ok(Some(descriptor)) if descriptor.range.start == page => {
                        let is_contradiction = element.agrees(&descriptor) == Some(false);
                        extents.contradictions += u64::from(is_contradiction);
                        next = descriptor.range.end;
                        extents.descriptors.push(descriptor);
                    }
                    Ok(_) => extents.contradictions += 1,
                    Err(unreadable) => {
                        failure = Some(unreadable);
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })?;
            if let Some(unreadable) = failure {
                return Err(unreadable.into());
            }
        }
        Ok(extents)
    }

    /// Adds the leaves below `node`, which describes the memory from `start` on.
    fn collect_leaves(
        &self,
        structures: &Structures<'_>,
        level: usize,
        node: Address,
        start: Address,
        leaves: &mut BTreeMap<Address, Address>,
    ) -> Result<(), Damage> {
        let mut children = Vec::new();
        for_each_child(structures.image, self.layout, level, node, |index, child| {
            // A child that is not mapped is left out.
            if structures.is_structure(child, 64) {
                children.push((index, child));
            }
            ControlFlow::Continue(())
        })?;
        for (index, child) in children {
            let start = start.offset(index * self.layout.child_span(level));
            if level + 2 < self.layout.levels.len() {
                self.collect_leaves(structures, level + 1, child, start, leaves)?;
            } else {
                leaves.insert(start, child);
            }
        }
        Ok(())
    }
}

/// Visits the children of a node that are not null, ascending by index.
fn for_each_child(
    image: &Image<'_>,
    layout: TreeLayout,
    level: usize,
    node: Address,
    mut visit: impl FnMut(u64, Address) -> ControlFlow<()>,
) -> Result<(), Unreadable> {
    let range = node..node.offset(layout.node_bytes(level));
    written_parts(image, &range, |at, bytes| {
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        for (index, word) in ((at - node) / 8..).zip(words) {
            if word != 0 {
                visit(index, Address(word))?;
            }
        }
        ControlFlow::Continue(())
    })
}

/// Visits the elements of a leaf that lead to a descriptor.
fn for_each_element(
    image: &Image<'_>,
    layout: TreeLayout,
    leaf: Address,
    mut visit: impl FnMut(u64, Element) -> ControlFlow<()>,
) -> Result<(), Unreadable> {
    let range = leaf..leaf.offset(layout.leaf_bytes());
    written_parts(image, &range, |at, bytes| {
        let elements = bytes.chunks_exact(layout.element as usize);
        for (index, bytes) in ((at - leaf) / layout.element..).zip(elements) {
            let Some(element) = Element::decode(layout, bytes) else { continue };
            visit(index, element)?;
        }
        ControlFlow::Continue(())
    })
}

impl Element {
    /// `rtree_leaf_elm_bits_read` and its relatives in rtree.h; `None` if the element is clear.
    fn decode(layout: TreeLayout, bytes: &[u8]) -> Option<Self> {
        let word = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let is_new = layout.generation == Generation::Edata;
        if layout.element == 8 {
            let pointer = word & ((1 << TreeLayout::POINTER_BITS) - 1);
            let flags = if is_new { 0x7f } else { 1 };
            let descriptor = Address(pointer & !flags);
            return (descriptor.0 != 0).then_some(Self {
                descriptor,
                class: word >> TreeLayout::POINTER_BITS,
                is_slab: word & 1 == 1,
                state: is_new.then_some(word >> 2 & 7),
            });
        }
        let more = bytes.last_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        (word != 0).then_some(if is_new {
            // slab | is_head << 1 | state << 2 | szind << 5, in 32 bits.
            Self {
                descriptor: Address(word),
                class: more as u32 as u64 >> 5,
                is_slab: more & 1 == 1,
                state: Some(more >> 2 & 7),
            }
        } else {
            // A word of 32 bits for the class, and a byte for the slab.
            Self {
                descriptor: Address(word),
                class: more as u32 as u64,
                is_slab: more >> 32 & 0xff == 1,
                state: None,
            }
        })
    }
}

/// The index in the root of the child at `child`, and the number of elements that vote for it; `None` if there is no
/// child at this address.
fn recognise_child(
    structures: &mut Structures<'_>,
    layout: TreeLayout,
    child: Address,
) -> Option<(u64, u64)> {
    let (leaf_span, root_span) = (layout.leaf_span(), layout.child_span(0));
    if layout.levels.len() == 2 {
        let (start, votes) = recognise_leaf(structures, layout, child)?;
        return Some((start.0 / root_span, votes));
    }
    let node = child..child.offset(layout.node_bytes(1));
    if !structures.lies_in_memory(&node) {
        return None;
    }
    let mut leaves = Vec::new();
    let mut is_none = false;
    for_each_child(structures.image, layout, 1, child, |index, leaf| {
        is_none = !structures.is_structure(leaf, 64);
        leaves.push((index, leaf));
        let is_enough = leaves.len() >= MAX_LEAVES;
        if is_none || is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .ok()?;
    if is_none {
        return None;
    }
    let mut votes = BTreeMap::<u64, u64>::new();
    for (index, leaf) in leaves {
        let Some((start, count)) = recognise_leaf(structures, layout, leaf) else { continue };
        if start.0 % root_span / leaf_span == index {
            *votes.entry(start.0 / root_span).or_default() += count;
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count)
}

/// The beginning of the memory that the leaf at `leaf` describes, and the number of elements that vote for it; `None`
/// if there is no leaf at this address.
fn recognise_leaf(
    structures: &mut Structures<'_>,
    layout: TreeLayout,
    leaf: Address,
) -> Option<(Address, u64)> {
    let range = leaf..leaf.offset(layout.leaf_bytes());
    if !structures.lies_in_memory(&range) {
        return None;
    }
    let descriptor = layout.descriptor();
    let mut elements = Vec::new();
    let mut is_none = false;
    for_each_element(structures.image, layout, leaf, |index, element| {
        is_none = !structures.is_structure(element.descriptor, descriptor.alignment);
        elements.push((index, element));
        let is_enough = elements.len() as u64 >= MAX_VOTES;
        if is_none || is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .ok()?;
    if is_none {
        return None;
    }
    let (span, mut votes, mut contradictions) = (layout.leaf_span(), BTreeMap::new(), 0);
    for (index, element) in elements {
        let read = Descriptor::read(structures, descriptor, element.descriptor).ok()?;
        match read.and_then(|descriptor| vote(layout, index, element, &descriptor)) {
            Some(Vote::For(at)) => *votes.entry(at.0 / span).or_insert(0) += 1,
            Some(Vote::Abstention) => {}
            None => contradictions += 1,
        }
        if contradictions > MAX_CONTRADICTIONS {
            return None;
        }
    }
    let (key, count) = votes.into_iter().max_by_key(|(_, count)| *count)?;
    let start = Address(key * span);
    (count > contradictions && start.0 < arch::USER_SPACE_END).then_some((start, count))
}

/// The vote of a leaf's element on the memory that the leaf describes.
enum Vote {
    /// This address lies in the memory.
    For(Address),
    /// The element gives no address.
    Abstention,
}

/// The vote of the element at `index`; `None` if it contradicts its descriptor.
fn vote(layout: TreeLayout, index: u64, element: Element, descriptor: &Descriptor) -> Option<Vote> {
    let (span, page) = (layout.leaf_span(), layout.pages.bytes());
    let page_of = |at: Address| at.0 % span / page;
    let Range { start, end } = descriptor.range.clone();
    // Only the first element is kept up to date. Descriptors of another generation have their ranges at the same place, so
    // only the other fields distinguish them.
    if page_of(start) == index {
        return match element.agrees(descriptor) {
            Some(true) => Some(Vote::For(start)),
            Some(false) => None,
            None => Some(Vote::Abstention),
        };
    }
    // An extent may begin in one leaf and end in another.
    let last = end.before(page);
    let inner = Address(start.0 / span * span).offset(index * page);
    let is_inner = descriptor.is_slab && descriptor.range.contains(&inner);
    let places = [(last, page_of(last) == index), (inner, is_inner)];
    places.into_iter().find(|it| it.1).map(|it| Vote::For(it.0))
}
