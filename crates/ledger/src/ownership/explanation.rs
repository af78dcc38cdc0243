//! The reason why an object, a chunk, or the objects of a class exist: their references, and the memory that they
//! retain.

use std::cmp::Reverse;
use std::collections::HashMap;

use image::ProcessState;
use linux::Address;

use crate::Facts;
use crate::ledger::owners_of;
use crate::ownership::address_index::Referent;
use crate::ownership::bits::Bits;
use crate::ownership::object_graph::{EVERYTHING, Node, ObjectGraph, Paths, Reach};
use crate::ownership::owner::{OwnerAccount, Retainer};
use crate::ownership::retained::RetainedSizes;
use crate::ownership::retainers::{MAX_COMPARED_STEPS, Retainers};
use crate::pages::pages_of;
use crate::root_uses::{self, RootUses};

/// The number of paths, referrers and dominators that are listed.
const MAX_LISTED: usize = 10;
/// The number of referrers of one object whose paths are compared.
const MAX_COMPARED: usize = 1000;

/// The subject of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The object in the slot at this address, or the chunk that it lies in.
    Address(Address),
    /// All objects of the class with this name.
    Class(String),
}

/// The reason why a subject exists, and the memory that it retains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The class of an object, or the owner of a chunk.
    pub name: String,
    /// The address of a single object or chunk.
    pub address: Option<Address>,
    /// The number of objects; 0 for a chunk.
    pub objects: u64,
    /// The bytes of their slots and of the chunks that they own, headers included: the resident ones, as far as these are known.
    pub bytes: u64,
    /// The number of objects that would be freed if the subject went away, its own included.
    pub retained_objects: Option<u64>,
    /// The bytes that would be freed if the subject went away, headers included.
    pub retained_bytes: u64,
    /// The shortest paths: for one object, by different referrers; for several, from the roots that retain most.
    pub paths: Vec<Retainer>,
    /// The objects and roots that refer to the subject, by name, most frequent first.
    pub referrers: Vec<Referrer>,
    /// The objects and roots without which a single subject would be freed, the nearest first.
    pub dominators: Vec<Referrer>,
    /// The code that uses the roots of these paths, and variables on them.
    pub root_uses: Vec<RootUses>,
}

/// Objects of one class, or a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referrer {
    /// The name of the class or root.
    pub name: String,
    /// The number of objects; 1 for a root.
    pub count: u64,
    /// The address of one of the objects; `None` for a root.
    pub address: Option<Address>,
    /// The bytes that it retains, if it is one object or root.
    pub retained_bytes: Option<u64>,
}

/// The reason why there is no explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoExplanation {
    /// malloc's or Ruby's side could not be read, or owners were not searched for.
    NoGraph,
    /// There is no object or chunk in use at the address.
    NothingThere,
    /// There is no live object of the class.
    NoObjects,
}

impl Explanation {
    /// Explains a subject from facts that were read with owners.
    ///
    /// # Errors
    /// See [`NoExplanation`].
    pub fn find(
        state: &ProcessState,
        facts: &Facts,
        subject: &Subject,
    ) -> Result<Self, NoExplanation> {
        let owners = owners_of(facts);
        let graph = owners.object_graph().ok_or(NoExplanation::NoGraph)?;
        let paths = Paths::find(&graph, Reach::All);
        let sizes = RetainedSizes::find(&graph, &paths, std::iter::empty());
        let explainer = Explainer { graph: &graph, paths: &paths, sizes: &sizes };
        let found = match subject {
            Subject::Address(address) => match facts.referent(*address) {
                Referent::Slot(slot) if graph.space.slots[slot as usize].is_live() => {
                    explainer.of_node(graph.slot(slot))
                }
                Referent::Block { number, .. } => explainer.of_node(graph.memory(number)),
                _ => return Err(NoExplanation::NothingThere),
            },
            Subject::Class(name) => {
                let found = explainer.of_class(name).ok_or(NoExplanation::NoObjects)?;
                // The same figure as in a report: each block belongs to one owner.
                let accounts = owners.accounts(pages_of(state));
                let account = accounts.iter().find(|it| it.objects > 0 && it.name == *name);
                let bytes = account.map_or(found.bytes, OwnerAccount::weight_bytes);
                Self { bytes, ..found }
            }
        };
        let root_uses = root_uses::on_paths(facts, found.paths.iter(), std::iter::empty());
        Ok(Self { root_uses, ..found })
    }
}

struct Explainer<'a> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a Paths,
    sizes: &'a RetainedSizes<'a>,
}

impl Explainer<'_> {
    fn of_node(&self, number: u32) -> Explanation {
        let Self { graph, sizes, .. } = self;
        let (name, address, objects, bytes) = match graph.node(number) {
            Node::Slot(slot) => {
                let is_it = |it: u32| it == slot;
                (
                    graph.object_name(slot).to_owned(),
                    graph.space.slot_address(slot as usize),
                    1,
                    self.bytes(is_it).1,
                )
            }
            Node::Memory(node) => {
                let owner = graph.table.new_account(graph.trace.owner_of(node as usize)).name;
                let block = graph.heap.block(node as usize);
                let start = block.map(|block| graph.heap.header.usable(block).start);
                (owner, start, 0, graph.block_bytes(node))
            }
            _ => (graph.root_name(number).to_owned(), None, 0, 0),
        };
        let (retained_bytes, retained_objects) = sizes.of(number);
        let chain = sizes.dominators_of(number).filter(|&above| self.is_named(above));
        Explanation {
            name,
            address,
            objects,
            bytes,
            retained_objects: Some(retained_objects.into()),
            retained_bytes,
            paths: self.paths_to(number),
            referrers: self.referrers(|it| it == number),
            dominators: chain.map(|above| self.referrer(above, 1)).take(MAX_LISTED).collect(),
            root_uses: Vec::new(),
        }
    }

    fn of_class(&self, name: &str) -> Option<Explanation> {
        let Self { graph, sizes, paths } = self;
        let is_of_class: Vec<bool> = {
            let classes = graph.space.classes.iter();
            classes.map(|class| class.name.as_deref() == Some(name)).collect()
        };
        let is_it = |slot: u32| {
            graph.space.slots.get(slot as usize).is_some_and(|it| {
                it.is_live() && is_of_class.get(it.class() as usize).is_some_and(|is_it| *is_it)
            })
        };
        let (objects, bytes) = self.bytes(is_it);
        if objects == 0 {
            return None;
        }
        let of_groups = sizes.of_groups(|slot| is_it(slot).then_some(0));
        let group = |slot: ruby::Slot| {
            is_of_class.get(slot.class() as usize).is_some_and(|is_it| *is_it).then_some(0)
        };
        let retainers = Retainers::new(graph, paths).of_groups(1, MAX_LISTED, group);
        Some(Explanation {
            name: name.to_owned(),
            address: None,
            objects,
            bytes,
            retained_objects: None,
            retained_bytes: of_groups.first().copied().unwrap_or_default(),
            paths: retainers.into_iter().next().unwrap_or_default(),
            referrers: self.referrers(|number| match graph.node(number) {
                Node::Slot(slot) => is_it(slot),
                _ => false,
            }),
            dominators: Vec::new(),
            root_uses: Vec::new(),
        })
    }

    /// The number and the bytes of the live objects in these slots, with the blocks that they own.
    fn bytes(&self, is_it: impl Fn(u32) -> bool) -> (u64, u64) {
        let space = self.graph.space;
        let slots =
            (0..).zip(space.sized_slots()).filter(|&(slot, (it, _))| it.is_live() && is_it(slot));
        let (objects, bytes) =
            slots.fold((0, 0), |(objects, sum), (_, (_, bytes))| (objects + 1, sum + bytes));
        let blocks = self.graph.bytes_beyond_slots(self.paths, is_it);
        // Objects may claim the same huge block.
        (objects, blocks.map(|(_, bytes)| bytes).fold(bytes, u64::saturating_add))
    }

    /// The shortest path to a node by each of its referrers, shortest first.
    fn paths_to(&self, number: u32) -> Vec<Retainer> {
        let retainers = Retainers::new(self.graph, self.paths);
        let Some(shortest) = self.paths.parent(number) else { return Vec::new() };
        let mut before = vec![shortest];
        before.extend(
            self.referring(|it| it == number)
                .map(|(from, _)| from)
                .filter(|&it| it != shortest)
                .take(MAX_COMPARED),
        );
        let mut found: Vec<(usize, String)> = Vec::new();
        let mut compared = 0;
        for from in before {
            // A path that comes back to the node itself is no way to it.
            let (steps, leads_through) = self.length(from, number);
            compared += steps;
            if compared > MAX_COMPARED_STEPS && !found.is_empty() {
                break;
            }
            let path = retainers.path_by(from, number);
            if !leads_through && !found.iter().any(|(_, known)| *known == path) {
                found.push((steps, path));
            }
        }
        found.sort();
        let retainer = |(_, path)| Retainer {
            path: Some(path),
            objects: 1,
            bytes: self.sizes.of(number).0,
            other_path: None,
            shared: None,
        };
        found.into_iter().take(MAX_LISTED).map(retainer).collect()
    }

    /// The number of nodes on the path to `number`, and true if `through` is one of them.
    fn length(&self, number: u32, through: u32) -> (usize, bool) {
        let path = std::iter::successors(Some(number), |&at| self.paths.parent(at));
        path.fold((0, false), |(steps, leads_through), at| {
            (steps + 1, leads_through || at == through)
        })
    }

    /// The references to the nodes in a set from other nodes: from and to.
    fn referring(&self, is_in: impl Fn(u32) -> bool) -> impl Iterator<Item = (u32, u32)> {
        let digraph = self.sizes.digraph();
        let nodes = 0..digraph.len() as u32;
        nodes
            .flat_map(|from| digraph.of(from).iter().map(move |&to| (from, to)))
            .filter(move |&(from, to)| is_in(to) && !is_in(from))
    }

    fn referrers(&self, is_in: impl Fn(u32) -> bool) -> Vec<Referrer> {
        let mut counts: HashMap<&str, (u64, u32)> = HashMap::new();
        // An object may have several references to the others.
        let mut counted = Bits::new(self.graph.len());
        for (from, to) in self.referring(&is_in) {
            // A block belongs to the object before it, or to a root.
            let Some(from) = std::iter::successors(Some(from), |&at| self.paths.parent(at))
                .find(|&at| self.is_named(at))
            else {
                continue;
            };
            if from == to || is_in(from) || !counted.insert(from) {
                continue;
            }
            counts.entry(self.name(from)).or_insert((0, from)).0 += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(name, (count, _))| (Reverse(count), name));
        counts
            .into_iter()
            .take(MAX_LISTED)
            .map(|(_, (count, from))| self.referrer(from, count))
            .collect()
    }

    fn referrer(&self, number: u32, count: u64) -> Referrer {
        let slot = match self.graph.node(number) {
            Node::Slot(slot) => Some(slot),
            _ => None,
        };
        Referrer {
            name: self.name(number).to_owned(),
            count,
            address: slot.and_then(|slot| self.graph.space.slot_address(slot as usize)),
            retained_bytes: (count == 1).then(|| self.sizes.of(number).0),
        }
    }

    fn name(&self, number: u32) -> &str {
        match self.graph.node(number) {
            Node::Slot(slot) => self.graph.object_name(slot),
            _ => self.graph.root_name(number),
        }
    }

    /// Returns true for objects and roots, and false for blocks and areas.
    fn is_named(&self, number: u32) -> bool {
        match self.graph.node(number) {
            // The stack of a thread belongs to it.
            Node::Memory(node) => {
                self.graph.root_at(node).is_some() && self.paths.parent(number) == Some(EVERYTHING)
            }
            Node::Everything => false,
            _ => true,
        }
    }
}
