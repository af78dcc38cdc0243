//! Who keeps the objects that hold memory: the shortest way to each from something that has a
//! name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use allocator::glibc::Malloc;
use capture::Address;
use ruby::{NamedRoot, ObjectSpace, Slot, SlotType};

use crate::Cause;
use crate::owners::bits::Bits;
use crate::owners::pointers::{Pointers, Root};
use crate::owners::roster::{Owner, Roster};
use crate::owners::trace::Trace;
use crate::places::{Place, Places};

/// The parent of objects that nothing reaches.
const NOWHERE: u32 = u32::MAX;
/// The parent of objects that a root names itself: `ROOT` and the root's index.
const ROOT: u32 = 1 << 31;
/// Names that are told for each owner.
const MAX_RETAINERS: usize = 3;
/// Steps of a path that are shown; those in its middle are left out.
const MOST_STEPS: usize = 8;

/// What keeps objects of an owner alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retainer {
    /// The way to one of them, from what has a name: `Cache::STORE → Hash → Array → PG::Result`.
    /// `None` where nothing leads to them: garbage, until the GC runs again.
    pub path: Option<String>,
    /// How many objects of the owner are kept by that name.
    pub objects: u64,
    /// The bytes of their slots, and of the chunks that these name themselves.
    pub bytes: u64,
}

/// What a root keeps, while it is added up.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    objects: u64,
    bytes: u64,
    /// The object that has most, and how much.
    largest: u32,
    most: u64,
}

impl Kept {
    fn add(&mut self, slot: u32, objects: u64, bytes: u64) {
        self.objects += objects;
        self.bytes += bytes;
        if bytes > self.most {
            (self.largest, self.most) = (slot, bytes);
        }
    }
}

/// The ways to all objects.
pub(crate) struct Retainers<'a> {
    malloc: &'a Malloc,
    space: &'a ObjectSpace,
    trace: &'a Trace,
    places: &'a Places<'a>,
    roots: Vec<String>,
    /// For each slot that by which it was reached first.
    parents: Vec<u32>,
    /// For each slot the root that its way begins with.
    root_of: Vec<u32>,
}

impl<'a> Retainers<'a> {
    /// Finds the shortest way to each object: from `named_roots` first, then from variables of
    /// libraries, then from stacks.
    pub(crate) fn find(
        malloc: &'a Malloc,
        places: &'a Places<'a>,
        pointers: &'a Pointers,
        roster: &'a Roster<'a>,
        trace: &'a Trace,
        named_roots: &[NamedRoot],
    ) -> Self {
        let space = roster.space;
        let retainers = Self {
            malloc,
            space,
            trace,
            places,
            roots: Vec::new(),
            parents: vec![NOWHERE; space.slots.len()],
            root_of: vec![NOWHERE; space.slots.len()],
        };
        let entered = Bits::new(malloc.chunks.len());
        let looked_into = entered.clone();
        let queue = VecDeque::new();
        let weak = Vec::new();
        let mut search = Search { roster, pointers, retainers, entered, looked_into, queue, weak };
        for named_root in named_roots {
            let root = search.root(named_root.name.clone());
            search.visit(named_root.value, ROOT | root, root);
        }
        search.run();
        // What a thread has in its variables and on Ruby's stack.
        let threads = search.root("(threads)".to_owned());
        for (slot, it) in (0..).zip(&space.slots) {
            let class = space.classes.get(it.class as usize);
            if class.is_some_and(|class| class.name.as_deref() == Some("Thread")) {
                search.visit(slot, ROOT | threads, threads);
            }
        }
        search.run();
        for (index, root) in pointers.roots.iter().enumerate() {
            let name = match root {
                Root::Variables(module) => {
                    format!("(variables of {})", roster.modules[*module].name)
                }
                Root::Locals => "(thread-local variables)".to_owned(),
                Root::Stacks => "(stacks)".to_owned(),
            };
            let root = search.root(name);
            search.enter(pointers.root(index), Depth::All, None, ROOT | root, root);
            search.run();
        }
        search.visit_weak();
        search.enter_deeply();
        search.visit_weak();
        search.retainers
    }

    /// Who keeps objects: for each of `groups` groups the [`MAX_RETAINERS`] names that keep most of
    /// what its objects have. `group_of` tells the group of an object.
    pub(crate) fn of_groups(
        &self,
        groups: usize,
        group_of: impl Fn(Slot) -> Option<usize>,
    ) -> Vec<Vec<Retainer>> {
        let mut kept: Vec<BTreeMap<u32, Kept>> = vec![BTreeMap::new(); groups];
        self.space.sized_slots().enumerate().for_each(|(index, (slot, bytes))| {
            if let Some(kept) = group_of(slot).and_then(|group| kept.get_mut(group)) {
                kept.entry(self.root_of[index]).or_default().add(index as u32, 1, bytes);
            }
        });
        for (index, address) in self.space.references.iter() {
            let slot = self.space.slots[index as usize];
            if let Some(kept) = group_of(slot).and_then(|group| kept.get_mut(group))
                && let Some(bytes) = self.bytes_of(slot, address)
            {
                kept.entry(self.root_of[index as usize]).or_default().add(index, 0, bytes);
            }
        }
        kept.into_iter().map(|kept| self.most_of(kept)).collect()
    }

    /// The bytes of the chunk at `address`, if the object in `slot` holds it.
    fn bytes_of(&self, slot: Slot, address: Address) -> Option<u64> {
        match self.places.at(address) {
            Place::Chunk { index, is_start: true } => {
                let owner = self.trace.owner_of(index as usize);
                let is_its = self.trace.is_of_slot(owner, slot);
                is_its.then(|| self.malloc.chunks[index as usize].bytes())
            }
            _ => None,
        }
    }

    fn most_of(&self, kept: BTreeMap<u32, Kept>) -> Vec<Retainer> {
        let mut kept: Vec<_> = kept.into_iter().collect();
        kept.sort_by_key(|&(root, kept)| (Reverse(kept.bytes), root));
        let retainer = |(root, kept): (u32, Kept)| Retainer {
            path: (root != NOWHERE).then(|| self.path(kept.largest)),
            objects: kept.objects,
            bytes: kept.bytes,
        };
        kept.into_iter().take(MAX_RETAINERS).map(retainer).collect()
    }

    /// The way to an object, in words of Ruby.
    fn path(&self, slot: u32) -> String {
        let mut names: Vec<(&str, usize)> = Vec::new();
        let mut at = slot;
        // No way is longer than there are slots.
        for _ in 0..self.parents.len() {
            let name = self.class_name(at);
            // What programs do not see says nothing to their authors.
            if !name.starts_with('(') || at == slot {
                match names.last_mut() {
                    Some((last, count)) if *last == name => *count += 1,
                    _ => names.push((name, 1)),
                }
            }
            match self.parents[at as usize] {
                NOWHERE => break,
                root if root & ROOT != 0 => {
                    let name = self.roots.get((root & !ROOT) as usize);
                    names.extend(name.map(|name| (name.as_str(), 1)));
                    break;
                }
                parent => at = parent,
            }
        }
        names.reverse();
        if names.len() > MOST_STEPS {
            names.splice(MOST_STEPS / 2..names.len() - MOST_STEPS / 2 + 1, [("…", 1)]);
        }
        let step = |(name, count): &(&str, usize)| match count {
            1 => (*name).to_owned(),
            _ => format!("{name} × {count}"),
        };
        names.iter().map(step).collect::<Vec<_>>().join(" → ")
    }

    fn class_name(&self, slot: u32) -> &str {
        let class = self.space.slots.get(slot as usize).map(|slot| slot.class as usize);
        let class = class.and_then(|class| self.space.classes.get(class));
        class.map_or("(unknown)", |class| class.name.as_deref().unwrap_or("(anonymous class)"))
    }
}

/// How far chunks are followed from an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    First,
    All,
}

/// A breadth-first search over objects, and the chunks that they hold.
struct Search<'a> {
    roster: &'a Roster<'a>,
    pointers: &'a Pointers,
    retainers: Retainers<'a>,
    /// Nodes whose slots were visited, and all that lies behind them.
    entered: Bits,
    /// Nodes whose slots were visited, but no more.
    looked_into: Bits,
    queue: VecDeque<u32>,
    weak: Vec<Weak>,
}

/// What a weak word names, with the parent and the root that it would have.
struct Weak {
    /// A slot, or a chunk of the owner's.
    to: u32,
    chunk_of: Option<Owner>,
    parent: u32,
    root: u32,
}

impl Search<'_> {
    fn root(&mut self, name: String) -> u32 {
        self.retainers.roots.push(name);
        self.retainers.roots.len() as u32 - 1
    }

    fn visit(&mut self, slot: u32, parent: u32, root: u32) {
        let space = self.retainers.space;
        let Some(known) = self.retainers.parents.get_mut(slot as usize) else { return };
        if *known == NOWHERE && space.slots[slot as usize].is_live() {
            *known = parent;
            self.retainers.root_of[slot as usize] = root;
            self.queue.push_back(slot);
        }
    }

    fn run(&mut self) {
        let space = self.retainers.space;
        while let Some(slot) = self.queue.pop_front() {
            let root = self.retainers.root_of[slot as usize];
            for &to in space.links.of(slot) {
                self.visit(to, slot, root);
            }
            // What an extension has in its chunks are numbers and text mostly, or was never written
            // to; the first of them is a structure, and may name the objects that it marks.
            let depth = if self.is_native(slot) { Depth::First } else { Depth::All };
            let root = self.retainers.root_of[slot as usize];
            self.enter_chunks_of(slot, depth, slot, root);
        }
    }

    fn is_native(&self, slot: u32) -> bool {
        let slot = self.retainers.space.slots[slot as usize];
        let cause = || self.roster.cause_of_data(slot.class as usize);
        slot.kind == SlotType::DATA && cause() == Cause::NativeHeld
    }

    /// Visits what only weak words name.
    fn visit_weak(&mut self) {
        while !self.weak.is_empty() {
            for Weak { to, chunk_of, parent, root } in std::mem::take(&mut self.weak) {
                match chunk_of {
                    None => self.visit(to, parent, root),
                    owner => self.enter(to, Depth::All, owner, parent, root),
                }
                self.run();
            }
        }
    }

    /// Once more from all objects of extensions, for what nothing else leads to: their chunks may
    /// name objects anywhere. Which of them does is not told, since the word may be an old one.
    fn enter_deeply(&mut self) {
        let root = self.root("(memory of C extensions)".to_owned());
        for slot in 0..self.retainers.space.slots.len() as u32 {
            if self.retainers.parents[slot as usize] != NOWHERE && self.is_native(slot) {
                self.enter_chunks_of(slot, Depth::All, ROOT | root, root);
            }
        }
        self.run();
    }

    fn enter_chunks_of(&mut self, slot: u32, depth: Depth, parent: u32, root: u32) {
        let space = self.retainers.space;
        // Programs of regular expressions, and numbers: their memory names no objects.
        if matches!(space.slots[slot as usize].kind, SlotType::REGEXP | SlotType::MATCH) {
            return;
        }
        for &address in space.references.of(slot) {
            if let Place::Chunk { index, is_start: true } = self.retainers.places.at(address) {
                // What lies nearer to others is theirs: else a way would lead through tables of the
                // interpreter from any object to any other.
                let owner = self.retainers.trace.owner_of(index as usize);
                if self.retainers.trace.is_of_slot(owner, space.slots[slot as usize]) {
                    self.enter(index, depth, Some(owner), parent, root);
                }
            }
        }
    }

    /// Visits all objects that a node names, and those that the owner's chunks behind it name.
    fn enter(&mut self, node: u32, depth: Depth, owner: Option<Owner>, parent: u32, root: u32) {
        let mut nodes = vec![(node, depth)];
        while let Some((node, depth)) = nodes.pop() {
            let is_chunk = (node as usize) < self.retainers.malloc.chunks.len();
            let is_known = match depth {
                Depth::First => self.entered.contains(node) || !self.looked_into.insert(node),
                Depth::All => is_chunk && !self.entered.insert(node),
            };
            if is_known {
                continue;
            }
            let (edges, slots) = self.pointers.of(node);
            for slot in slots {
                if slot.is_weak() {
                    self.weak.push(Weak { to: slot.to(), chunk_of: None, parent, root });
                } else {
                    self.visit(slot.to(), parent, root);
                }
            }
            if depth == Depth::First {
                continue;
            }
            for edge in edges {
                let to = edge.to();
                if to as usize >= self.retainers.malloc.chunks.len() {
                    continue;
                }
                let its = self.retainers.trace.owner_of(to as usize);
                match owner {
                    None if !edge.is_weak() => nodes.push((to, Depth::All)),
                    Some(owner) if its == owner && (!edge.is_weak() || self.is_core(owner)) => {
                        nodes.push((to, Depth::All));
                    }
                    Some(owner) if its == owner && !self.entered.contains(to) => {
                        self.weak.push(Weak { to, chunk_of: Some(owner), parent, root });
                    }
                    // A thread is what its fiber is, and such: they name their objects themselves.
                    Some(owner) if self.is_core(owner) && self.is_named_within(its) => {
                        nodes.push((to, Depth::First));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether chunks of this owner begin with what names the object that they belong to.
    fn is_named_within(&self, owner: Owner) -> bool {
        let is_internal = |class: usize| self.retainers.space.classes[class].is_internal();
        self.is_core(owner) || matches!(owner, Owner::Class(class) if is_internal(class))
    }

    /// Whether these are objects of Ruby's own in C, but not the interpreter as such.
    fn is_core(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Data(class) if self.roster.cause_of_data(class) == Cause::RubyMalloc)
    }
}
