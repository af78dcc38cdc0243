//! Retained sizes: the memory that would be freed if a constant, a thread, an object, or all objects of a class went away.

use std::collections::{HashMap, VecDeque};

use allocator::Block;
use linux::Address;
use ruby::RootKind;

use crate::ownership::bits::Bits;
use crate::ownership::dominators::{Digraph, Dominators};
use crate::ownership::graph::hosts_heap_page;
use crate::ownership::names::ObjectName;
use crate::ownership::object_graph::{Node, ObjectGraph, Paths};
use crate::ownership::owner::Owner;
use crate::ownership::retainers::Retainers;
use crate::ownership::root_memory::Root;

/// The number of levels of the tree, and of dominators that are listed at each place.
const MAX_DEPTH: usize = 4;
const MAX_LISTED: [usize; MAX_DEPTH] = [40, 5, 3, 3];
/// A dominator is listed if it retains at least this fraction of the memory that its own dominator retains.
const MIN_FRACTION: u64 = 20;

/// The next object of a linked list retains at least this fraction of the memory that the one before retains: 9 of 10.
const LIST_FRACTION: (u64, u64) = (9, 10);

/// A constant, thread or object, or several like it, and the memory that would be freed if they went away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dominator {
    /// The kind.
    pub kind: DominatorKind,
    /// The name of a constant, a variable, a class or a library.
    pub name: String,
    /// The current method of a thread, with its file and line, if they are known.
    pub method: Option<String>,
    /// The address of the object, if it is one, and not several.
    pub address: Option<Address>,
    /// The number of these objects.
    pub count: u64,
    /// The number of objects that would be freed, with these.
    pub objects: u64,
    /// The bytes of the slots, and the resident bytes of the blocks and of the stacks of fibers, that would be freed, headers included.
    pub retained_bytes: u64,
    /// The part of them that is room which these objects do not use.
    pub unused_bytes: u64,
    /// The shortest path to one of the objects; `None` unless they are objects that several others retain together.
    pub path: Option<String>,
    /// The dominators of parts of this memory that retain most of it.
    pub parts: Vec<Dominator>,
}

/// The kind of a dominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DominatorKind {
    /// A constant.
    Constant,
    /// A global variable, or a variable of a class.
    Variable,
    /// A thread, with its stack and its local variables.
    Thread,
    /// Objects of a class.
    Objects,
    /// The interpreter's internal objects of a kind.
    Internal,
    /// The variables of a library.
    Library,
    /// The stacks of threads, thread-local variables, finalizers, or memory of extensions with objects behind it.
    Other,
    /// Memory that several of the others retain together, by its owner.
    Memory,
}

impl DominatorKind {
    /// Its name, part of the stable interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Variable => "variable",
            Self::Thread => "thread",
            Self::Objects => "objects",
            Self::Internal => "internal",
            Self::Library => "library",
            Self::Other => "other",
            Self::Memory => "memory",
        }
    }
}

/// The retained sizes of a process.
pub(crate) struct RetainedSizes<'a> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a Paths,
    digraph: Digraph,
    dominators: Dominators,
    /// For each node the bytes and objects that it retains, its own included.
    retained: Vec<(u64, u32)>,
    /// For each node the bytes of room that objects do not use, among those that it retains.
    unused: Vec<u64>,
}

impl<'a> RetainedSizes<'a> {
    /// Finds the dominator of each object and block. `unused` are slots of objects with the bytes of room that they do not use.
    pub(crate) fn find(
        graph: &'a ObjectGraph<'a>,
        paths: &'a Paths,
        unused: impl Iterator<Item = (u32, u64)>,
    ) -> Self {
        let digraph = graph.digraph(paths);
        let dominators = Dominators::find(&digraph);
        let mut retained = own_sizes(graph);
        let mut room = vec![0; graph.len()];
        unused.for_each(|(slot, bytes)| room[graph.slot(slot) as usize] = bytes);
        for &node in dominators.order.iter().rev() {
            if let Some(dominator) = dominators.of(node) {
                let (bytes, objects) = retained[node as usize];
                let sums = &mut retained[dominator as usize];
                *sums = (sums.0 + bytes, sums.1 + objects);
                room[dominator as usize] += room[node as usize];
            }
        }
        Self { graph, paths, digraph, dominators, retained, unused: room }
    }

    /// The bytes and objects that the node with this number retains.
    pub(crate) fn of(&self, number: u32) -> (u64, u32) {
        match self.dominators.reaches(number) {
            true => self.retained[number as usize],
            false => (0, 0),
        }
    }

    /// The references between the nodes.
    pub(crate) fn digraph(&self) -> &Digraph {
        &self.digraph
    }

    /// The dominators of a node, the nearest first, without the root of the graph.
    pub(crate) fn dominators_of(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        let above = |&node: &u32| self.dominators.of(node).filter(|&dominator| dominator != 0);
        std::iter::successors(above(&number), above)
    }

    /// The bytes that would be freed if all objects of a group went away, for each of up to [`MAX_GROUPS`] groups.
    /// `group_of` returns the group of the object in a slot.
    ///
    /// A dominator tree has the dominators of single nodes only. So this marks which nodes can be reached without the
    /// objects of each group; one bit for each group, since a search for each would take as many times as long.
    pub(crate) fn of_groups(&self, group_of: impl Fn(u32) -> Option<usize>) -> Vec<u64> {
        let own = |number: u32| match self.graph.node(number) {
            Node::Slot(slot) => {
                group_of(slot).filter(|&group| group < MAX_GROUPS).map_or(0, |group| 1 << group)
            }
            _ => 0,
        };
        let mut without = vec![0_u32; self.digraph.len()];
        let mut queue = VecDeque::from([0]);
        let mut is_queued = Bits::new(self.digraph.len());
        without.first_mut().into_iter().for_each(|root| *root = u32::MAX);
        while let Some(number) = queue.pop_front() {
            is_queued.remove(number);
            let from = without[number as usize];
            for &to in self.digraph.of(number) {
                let reached = without[to as usize];
                let new = from & !own(to) | reached;
                if new != reached {
                    without[to as usize] = new;
                    if is_queued.insert(to) {
                        queue.push_back(to);
                    }
                }
            }
        }
        let mut sums = vec![0; MAX_GROUPS];
        let own = own_sizes(self.graph);
        for &number in &self.dominators.order {
            let mut retaining = !without[number as usize];
            while retaining != 0 {
                sums[retaining.trailing_zeros() as usize] += own[number as usize].0;
                retaining &= retaining - 1;
            }
        }
        sums
    }

    /// The part of the dominator tree that is listed. Dominators that retain most come first.
    pub(crate) fn tree(&self) -> Vec<Dominator> {
        let mut tree = Tree { sizes: self, groups: Vec::new(), places: HashMap::new() };
        let mut group_of_node = vec![NO_GROUP; self.digraph.len()];
        let visible = self.visible_dominators();
        for depth in 0..MAX_DEPTH {
            tree.add_level(depth, &visible, &mut group_of_node);
        }
        tree.finish()
    }

    /// For each node the nearest dominator that is listed by itself: 0 for the root. Blocks and internal objects belong
    /// to the object above them, if it exists.
    fn visible_dominators(&self) -> Vec<u32> {
        let mut visible = vec![0; self.digraph.len()];
        for &number in &self.dominators.order {
            if let Some(above) = self.dominators.of(number) {
                let is_part = !self.is_listed(above)
                    && (visible[above as usize] != 0 || self.is_collection(above));
                visible[number as usize] = if is_part { visible[above as usize] } else { above };
            }
        }
        visible
    }

    /// Returns true for roots with a name and objects that programs see. The value of a constant is not listed, since its
    /// name is, nor is the next object of a linked list.
    fn is_listed(&self, number: u32) -> bool {
        match self.graph.node(number) {
            Node::Named(_) => true,
            Node::Slot(slot) => {
                let is_no_block = |above: &u32| match self.graph.node(*above) {
                    Node::Memory(node) => self.graph.root_at(node).is_some(),
                    _ => true,
                };
                let chain = std::iter::successors(self.dominators.of(number), |&above| {
                    self.dominators.of(above)
                });
                let above = chain.into_iter().find(is_no_block);
                match above.map(|above| (above, self.graph.node(above))) {
                    Some((_, Node::Named(_))) => false,
                    Some((above, Node::Slot(before))) => {
                        let is_next = self.graph.class_of(before) == self.graph.class_of(slot)
                            && self.of(number).0 / LIST_FRACTION.0
                                >= self.of(above).0 / LIST_FRACTION.1;
                        !is_next && self.graph.is_visible(slot)
                    }
                    _ => self.graph.is_visible(slot),
                }
            }
            _ => false,
        }
    }

    /// Returns true for the roots that only collect others.
    fn is_collection(&self, number: u32) -> bool {
        matches!(self.graph.node(number), Node::Everything | Node::Threads)
    }
}

/// The number of groups whose retained sizes are found at once.
pub(crate) const MAX_GROUPS: usize = u32::BITS as usize;

const NO_GROUP: u32 = u32::MAX;

/// The properties that nodes of one row have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// A row of its own.
    Node(u32),
    /// Objects of a class.
    Class(u32),
    /// Memory of an owner.
    Memory(Owner),
}

struct Group {
    above: u32,
    depth: usize,
    key: Key,
    count: u64,
    bytes: u64,
    unused_bytes: u64,
    objects: u64,
    largest: u32,
    is_listed: bool,
}

struct Tree<'a> {
    sizes: &'a RetainedSizes<'a>,
    groups: Vec<Group>,
    places: HashMap<(u32, Key), u32>,
}

impl Tree<'_> {
    /// Sums up the nodes below the groups of the level before, and lists the largest.
    fn add_level(&mut self, depth: usize, visible: &[u32], group_of_node: &mut [u32]) {
        let first = self.groups.len();
        let sizes = self.sizes;
        self.places.clear();
        let order = sizes.dominators.order.get(1..).unwrap_or_default();
        for &number in order.iter().filter(|&&number| !sizes.is_collection(number)) {
            let above = visible[number as usize];
            let group = if above == 0 { NO_GROUP } else { group_of_node[above as usize] };
            let is_here = match depth {
                0 => above == 0,
                _ => self
                    .groups
                    .get(group as usize)
                    .is_some_and(|group| group.depth + 1 == depth && group.is_listed),
            };
            if !is_here || depth > 0 && !sizes.is_listed(number) {
                continue;
            }
            let (bytes, objects) = sizes.of(number);
            let key = self.key(number);
            let place = *self.places.entry((group, key)).or_insert_with(|| {
                self.groups.push(Group {
                    above: group,
                    depth,
                    key,
                    count: 0,
                    bytes: 0,
                    unused_bytes: 0,
                    objects: 0,
                    largest: number,
                    is_listed: false,
                });
                self.groups.len() as u32 - 1
            });
            group_of_node[number as usize] = place;
            let sums = &mut self.groups[place as usize];
            sums.count += 1;
            sums.bytes += bytes;
            sums.unused_bytes += sizes.unused[number as usize];
            sums.objects += u64::from(objects);
            if bytes > sizes.of(sums.largest).0 {
                sums.largest = number;
            }
        }
        self.list_largest(first, depth);
    }

    /// Lists the largest of the groups from `first` on, for each group above them.
    fn list_largest(&mut self, first: usize, depth: usize) {
        let mut order: Vec<usize> = (first..self.groups.len()).collect();
        order.sort_by_key(|&group| {
            (std::cmp::Reverse(self.groups[group].bytes), self.groups[group].largest)
        });
        let mut listed: HashMap<u32, usize> = HashMap::new();
        for group in order {
            let Group { above, bytes, .. } = self.groups[group];
            let least =
                self.groups.get(above as usize).map_or(1, |above| above.bytes / MIN_FRACTION);
            let count = listed.entry(above).or_default();
            if *count < MAX_LISTED[depth] && bytes >= least.max(1) {
                *count += 1;
                self.groups[group].is_listed = true;
            }
        }
    }

    fn key(&self, number: u32) -> Key {
        let graph = self.sizes.graph;
        match graph.node(number) {
            Node::Slot(slot) if !graph.is_thread(slot) => {
                match graph.space.slots.get(slot as usize) {
                    Some(it) => Key::Class(it.class()),
                    None => Key::Node(number),
                }
            }
            Node::Memory(node) if graph.root_at(node).is_none() => {
                Key::Memory(graph.trace.owner_of(node as usize))
            }
            _ => Key::Node(number),
        }
    }

    fn finish(self) -> Vec<Dominator> {
        // Deeper groups come later.
        let mut rows: Vec<Option<Dominator>> =
            self.groups.iter().map(|group| self.row(group)).collect();
        let mut tops = Vec::new();
        for index in (0..rows.len()).rev() {
            let Some(mut row) = rows[index].take() else { continue };
            row.parts.sort_by_key(|part| std::cmp::Reverse(part.retained_bytes));
            match rows.get_mut(self.groups[index].above as usize) {
                Some(Some(above)) => above.parts.push(row),
                Some(None) => {}
                None => tops.push(row),
            }
        }
        tops.sort_by(|a, b| (b.retained_bytes, &a.name).cmp(&(a.retained_bytes, &b.name)));
        tops
    }

    fn row(&self, group: &Group) -> Option<Dominator> {
        if !group.is_listed {
            return None;
        }
        let graph = self.sizes.graph;
        let node = graph.node(group.largest);
        let (kind, name) = match (node, group.key) {
            (_, Key::Memory(owner)) => (DominatorKind::Memory, graph.table.new_account(owner).name),
            (Node::Slot(slot), _) => {
                let kind = match graph.is_thread(slot) {
                    true => DominatorKind::Thread,
                    false if graph.is_visible(slot) => DominatorKind::Objects,
                    false => DominatorKind::Internal,
                };
                let thread = graph.thread_name(slot).map(ObjectName::thread);
                // Several objects have only their class in common.
                let name = match group.count {
                    1 => graph.object_name(slot),
                    _ => graph.parts_of_name(slot)[0],
                };
                (kind, thread.unwrap_or_else(|| name.to_owned()))
            }
            (Node::Named(root), _) => {
                let kind = match graph.named_roots.get(root as usize)?.kind {
                    RootKind::Constant => DominatorKind::Constant,
                    RootKind::Table => DominatorKind::Other,
                    _ => DominatorKind::Variable,
                };
                (kind, graph.root_name(group.largest).to_owned())
            }
            (Node::Memory(root), _) => {
                let kind = match graph.root_at(root) {
                    Some(Root::Variables(_)) => DominatorKind::Library,
                    _ => DominatorKind::Other,
                };
                (kind, graph.root_name(group.largest).to_owned())
            }
            _ => (DominatorKind::Other, graph.root_name(group.largest).to_owned()),
        };
        let slot = match node {
            Node::Slot(slot) => Some(slot),
            _ => None,
        };
        let has_path = group.depth == 0 && kind == DominatorKind::Objects;
        Some(Dominator {
            kind,
            name,
            method: slot.and_then(|slot| Some(graph.thread_name(slot)?.method()?.to_owned())),
            address: slot
                .filter(|_| group.count == 1)
                .and_then(|slot| graph.space.slot_address(slot as usize)),
            count: group.count,
            objects: group.objects,
            retained_bytes: group.bytes,
            unused_bytes: group.unused_bytes,
            path: slot
                .filter(|_| has_path)
                .map(|slot| Retainers::new(graph, self.sizes.paths).path_to(slot)),
            parts: Vec::new(),
        })
    }
}

/// The bytes of each node itself, and 1 for each object.
fn own_sizes(graph: &ObjectGraph<'_>) -> Vec<(u64, u32)> {
    let mut sizes = vec![(0, 0); graph.len()];
    for (slot, (_, bytes)) in (0..).zip(graph.space.sized_slots()) {
        if let Some(size) = sizes.get_mut(graph.slot(slot) as usize) {
            *size = (bytes, 1);
        }
    }
    for &(slot, bytes) in &graph.space.transient {
        if let Some(size) = sizes.get_mut(graph.slot(slot) as usize) {
            size.0 += u64::from(bytes);
        }
    }
    for stack in graph.pointers.fiber_stacks() {
        if let Some(size) = sizes.get_mut(graph.slot(stack.fiber) as usize) {
            size.0 = size.0.saturating_add(stack.resident_bytes);
        }
    }
    let is_counted =
        |block: Block| block.state().is_in_use() && !hosts_heap_page(graph.space, block);
    for (number, _) in graph.heap.all_blocks().filter(|(_, block)| is_counted(*block)) {
        sizes[graph.memory(number as u32) as usize].0 = graph.block_bytes(number as u32);
    }
    sizes
}
