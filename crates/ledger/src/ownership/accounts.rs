use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use allocator::HeapMap;
use image::elf::Module;
use linux::{Address, Pages, length};
use ruby::{Class, ClassKind, ImemoType, NamedRoot, ObjectSpace, Slot};

use crate::Cause;
use crate::ownership::bits::Bits;
use crate::ownership::edges::Edge;
use crate::ownership::graph::PointerGraph;
use crate::ownership::names::ObjectCode;
use crate::ownership::object_graph::{
    ObjectGraph, Paths, Reach, SingletonClasses, singleton_classes,
};
use crate::ownership::owner::{Owner, OwnerAccount, OwnerKind};
use crate::ownership::parts::Parts;
use crate::ownership::retained::{Dominator, MAX_GROUPS, RetainedSizes};
use crate::ownership::retainers::Retainers;
use crate::ownership::table::{ANONYMOUS_CLASS, OwnerTable};
use crate::ownership::trace::Trace;
use crate::ownership::waste::{SpareAccount, WasteAccounts};
use crate::pages::Residents;

/// The maximum number of classes whose retainers are found. Kinds of hidden objects do not count.
const MAX_RETAINED_CLASSES: usize = 20;
/// The bytes of a kind of the interpreter's objects from which its retainers are found, such as syntax trees that a program keeps.
const MIN_HIDDEN_BYTES: u64 = 8 << 20;
/// A class of C extensions holds much if it holds more than one part in this many of the memory in use.
const MUCH_NATIVE: u64 = 64;
/// The number of retainers that are listed for each of them.
const MAX_RETAINERS: usize = 8;
const _: () = assert!(MAX_RETAINED_CLASSES <= MAX_GROUPS);

/// What has a pointer.
#[derive(Clone, Copy)]
enum Pointing {
    Slot(u32),
    /// A node of the pointer graph.
    Memory(u32),
}

/// The index of each owner's account.
pub(crate) struct AccountIndex<'a> {
    trace: &'a Trace,
    /// By the code of the owner.
    accounts: Vec<Option<u32>>,
}

impl AccountIndex<'_> {
    /// The index of the account of the owner of the block with this number; `None` if it has none.
    pub(crate) fn of_block(&self, block: usize) -> Option<u32> {
        self.of_code(self.trace.code_of(block))
    }

    /// The index of the account of the objects like the one in this slot; `None` if it has none.
    pub(crate) fn of_slot(&self, slot: Slot) -> Option<u32> {
        self.of_code(self.trace.code_of_slot(slot)?)
    }

    fn of_code(&self, code: u32) -> Option<u32> {
        self.accounts.get(code as usize).copied().flatten()
    }
}

/// The owner of each block in use.
pub(crate) struct Owners<'a> {
    heap: &'a HeapMap,
    table: OwnerTable<'a>,
    trace: &'a Trace,
    graph: Option<&'a PointerGraph>,
    named_roots: &'a [NamedRoot],
    code: &'a ObjectCode,
}

impl<'a> Owners<'a> {
    /// The owners in `trace`, which followed `graph` if there is one.
    pub(crate) fn new(
        heap: &'a HeapMap,
        space: &'a ObjectSpace,
        modules: &'a [Module],
        graph: Option<&'a PointerGraph>,
        trace: &'a Trace,
        named_roots: &'a [NamedRoot],
        code: &'a ObjectCode,
    ) -> Self {
        let table = OwnerTable { space, modules, is_traced: graph.is_some() };
        Self { heap, table, trace, graph, named_roots, code }
    }

    /// The cause of a block in use, by its number.
    pub(crate) fn cause(&self, block: usize) -> Cause {
        self.trace.cause_of(block)
    }

    /// The parts of the interpreter's memory; `None` if owners were not traced.
    pub(crate) fn parts(&self) -> Option<Parts<'_>> {
        let Self { heap, table, trace, graph, code, .. } = self;
        graph.map(|graph| Parts::find(heap, graph, table, trace, code.paths.as_ref()))
    }

    /// The positions of these owners in `accounts`.
    pub(crate) fn index(&self, accounts: &[OwnerAccount]) -> AccountIndex<'_> {
        let by_name: HashMap<_, _> = accounts
            .iter()
            .enumerate()
            .map(|(index, account)| (account.key(), index as u32))
            .collect();
        let of = |code| {
            let account = self.table.new_account(self.trace.owner(code));
            by_name.get(&account.key()).copied()
        };
        let accounts = (0..self.trace.code_count() as u32).map(of).collect();
        AccountIndex { trace: self.trace, accounts }
    }

    /// The accounts of all owners, by their part of RSS, largest first, without retainers. Each block in use counts for
    /// exactly one.
    pub(crate) fn accounts(&self, pages: &Pages) -> Vec<OwnerAccount> {
        self.sums(pages).sorted()
    }

    /// The references between roots, objects and blocks, and the shortest paths; `None` if pointers were not read.
    pub(crate) fn paths(&self, reach: Reach) -> Option<(ObjectGraph<'_>, Paths)> {
        let graph = self.object_graph()?;
        let paths = Paths::find(&graph, reach);
        Some((graph, paths))
    }

    /// The objects of C extensions that nothing lasting retains; `None` without any, and if no class of extensions holds much.
    pub(crate) fn temporary_objects(&self) -> Option<Bits> {
        self.graph?;
        let in_use = self.heap.all_blocks().filter(|(_, block)| block.state().is_in_use());
        let (mut bytes, mut of_codes) = (0_u64, vec![0_u64; self.trace.code_count()]);
        for (number, block) in in_use {
            bytes = bytes.saturating_add(block.bytes());
            let sum = &mut of_codes[self.trace.code_of(number) as usize];
            *sum = sum.saturating_add(block.bytes());
        }
        let space = self.table.space;
        let slots = || {
            space
                .data_objects
                .iter()
                .filter_map(|(slot, _)| Some((slot, *space.slots.get(slot as usize)?)))
        };
        let is_native =
            |slot: Slot| self.table.cause_of_data(slot.class() as usize) == Cause::NativeHeld;
        let holds_much = |slot: Slot| {
            let code = self.trace.code_of_slot(slot);
            is_native(slot)
                && code.is_some_and(|code| of_codes[code as usize] > bytes / MUCH_NATIVE)
        };
        slots().find(|(_, slot)| holds_much(*slot))?;
        let (graph, paths) = self.paths(Reach::Inner)?;
        let mut temporary = None;
        let native = slots().filter(|(_, it)| is_native(*it)).map(|(slot, _)| slot);
        for slot in native.filter(|&slot| !graph.is_lasting(&paths, graph.slot(slot))) {
            temporary.get_or_insert_with(|| Bits::new(space.slots.len())).insert(slot);
        }
        temporary
    }

    /// Adds the roots that retain the objects of the classes that hold most. With `retained_sizes`, adds retained sizes,
    /// and returns the dominator tree; `paths` must lead to all nodes then.
    pub(crate) fn add_retainers(
        &self,
        accounts: &mut [OwnerAccount],
        (graph, paths): &(ObjectGraph<'_>, Paths),
        retained_sizes: bool,
        pages: &Pages,
    ) -> Option<Vec<Dominator>> {
        let iseqs = iseqs_name(self.table.space);
        // Objects that Ruby hides from programs have memory of programs, too: an Array's that its slices share.
        // Kinds with little memory of the interpreter's, such as method entries, belong to classes.
        let is_large = |account: &OwnerAccount| {
            account.kind == OwnerKind::Internal && account.weight_bytes() >= MIN_HIDDEN_BYTES
        };
        let has_retainers = |account: &&mut OwnerAccount| {
            account.kind == OwnerKind::Class
                || account.cause == Cause::RubyMalloc && account.objects > 0
                || account.cause == Cause::RubyVm && is_large(account)
                || Some(account.name.as_str()) == iseqs
        };
        let classes = accounts.iter_mut().filter(has_retainers);
        let mut kept: Vec<_> = classes.collect();
        let mut singletons: HashMap<&str, SingletonClasses> = HashMap::new();
        for (class, its) in singleton_classes(graph, paths) {
            let name = self.table.space.classes[class as usize].name.as_deref();
            let sum = singletons.entry(name.unwrap_or(ANONYMOUS_CLASS)).or_default();
            sum.objects += its.objects;
            sum.bytes = sum.bytes.saturating_add(its.bytes);
        }
        for account in &mut kept {
            account.singleton_classes =
                singletons.get(account.name.as_str()).copied().unwrap_or_default();
        }
        // A stable sort: nearly all classes are in their order already.
        kept.sort_by_key(|account| Reverse(account.bytes_with_singleton_classes()));
        // Kinds of hidden objects take no place of a class.
        let mut classes = 0;
        kept.retain(|account| {
            classes += usize::from(account.kind == OwnerKind::Class);
            account.kind != OwnerKind::Class || classes <= MAX_RETAINED_CLASSES
        });
        kept.truncate(MAX_GROUPS);
        // Classes of one name share an account.
        let group_of_name: HashMap<&str, usize> = kept
            .iter()
            .enumerate()
            .map(|(group, account)| (account.name.as_str(), group))
            .collect();
        let groups: Vec<Option<usize>> = self
            .table
            .space
            .classes
            .iter()
            .map(|class| {
                let name = class.name.as_deref().unwrap_or(ANONYMOUS_CLASS);
                group_of_name.get(name).copied()
            })
            .collect();
        let retainers = Retainers::new(graph, paths);
        let count = kept.len();
        let group_of = |slot: Slot| groups.get(slot.class() as usize).copied().flatten();
        for (account, retainers) in
            kept.iter_mut().zip(retainers.of_groups(count, MAX_RETAINERS, group_of))
        {
            account.retainers = retainers;
        }
        if !retained_sizes {
            return None;
        }
        let unused = self.graph.iter().flat_map(|it| it.waste.unused(graph, pages));
        let sizes = RetainedSizes::find(graph, paths, unused);
        let of_groups = sizes.of_groups(|slot| group_of(*graph.space.slots.get(slot as usize)?));
        for (account, bytes) in kept.iter_mut().zip(of_groups) {
            account.retained_bytes = Some(bytes);
        }
        Some(sizes.tree())
    }

    /// A function that returns the name of the class whose objects have most pointers to the largest part of a mapping that is neither
    /// malloc's nor Ruby's; `None` if they have less than half. One mapping may have the memory of thousands of objects, and an old word
    /// of another owner may be the first that leads to it. Garbage does not count: it may be objects that were used to write there.
    pub(crate) fn owners_of_mappings(
        &self,
        paths: Option<&(ObjectGraph<'_>, Paths)>,
    ) -> impl Fn(&Range<Address>) -> Option<String> {
        let areas = self.graph.map_or(&[][..], |graph| &graph.areas);
        let is_reached = |node: Pointing| {
            paths.is_none_or(|(objects, paths)| {
                paths.is_reached(match node {
                    Pointing::Slot(slot) => objects.slot(slot),
                    Pointing::Memory(node) => objects.memory(node),
                })
            })
        };
        let pointers = self.graph.map(|graph| self.pointers_to_areas(graph, is_reached));
        let pointers = pointers.unwrap_or_default();
        move |mapping| {
            let is_within =
                |area: &Range<Address>| mapping.start <= area.start && area.end <= mapping.end;
            let areas = areas.iter().enumerate().filter(|(_, area)| is_within(area));
            let (index, _) = areas.max_by_key(|(_, area)| length(area))?;
            let by_code = pointers.get(&(index as u32))?;
            let all: u64 = by_code.values().sum();
            let (&code, &most) = by_code.iter().max_by_key(|&(code, count)| (count, code))?;
            match self.trace.owner(code) {
                // Only the structures of extensions have pointers to mappings. In other objects they are old words.
                owner @ Owner::Data(class) if 2 * most >= all && self.table.is_visible(class) => {
                    Some(self.table.new_account(owner).name)
                }
                _ => None,
            }
        }
    }

    /// The number of some nodes and slots with a pointer to each area, by its index and the code of their owner.
    fn pointers_to_areas(
        &self,
        graph: &PointerGraph,
        counts: impl Fn(Pointing) -> bool,
    ) -> HashMap<u32, BTreeMap<u32, u64>> {
        let first = self.heap.block_count() as u32;
        let areas = first..first + graph.areas.len() as u32;
        let mut pointers = HashMap::<u32, BTreeMap<u32, u64>>::new();
        let mut count = |edges: &[Edge], code: u32, from: Pointing| {
            let to_areas = edges.iter().filter(|edge| areas.contains(&edge.to()));
            for edge in to_areas.filter(|_| counts(from)) {
                *pointers.entry(edge.to() - first).or_default().entry(code).or_default() += 1;
            }
        };
        for node in (0..graph.len() as u32).filter(|node| !areas.contains(node)) {
            count(graph.edges(node), self.trace.code_of(node as usize), Pointing::Memory(node));
        }
        for (number, edges) in graph.of_slots.iter() {
            let slot = self.table.space.slots.get(number as usize);
            if let Some(code) = slot.and_then(|slot| self.trace.code_of_slot(*slot)) {
                count(edges, code, Pointing::Slot(number));
            }
        }
        pointers
    }

    /// The memory of which objects use a small part, and all that they do not use.
    pub(crate) fn waste(
        &self,
        pages: &Pages,
        paths: &(ObjectGraph<'_>, Paths),
    ) -> (Vec<SpareAccount>, WasteAccounts) {
        self.graph.map(|graph| graph.waste.accounts(pages, paths)).unwrap_or_default()
    }

    /// The references between roots, objects and blocks; `None` if pointers were not read.
    pub(crate) fn object_graph(&self) -> Option<ObjectGraph<'_>> {
        let Self { heap, table, trace, named_roots, code, .. } = self;
        let graph = self.graph?;
        Some(ObjectGraph::new(heap, graph, table, trace, named_roots, code))
    }

    /// The accounts of all owners, unsorted and without retainers.
    fn sums(&self, pages: &Pages) -> Accounts {
        let space = self.table.space;
        let mut sums = vec![Sum::default(); self.trace.code_count()];
        space.sized_slots().for_each(|(slot, slot_bytes)| {
            if let Some(code) = self.trace.code_of_slot(slot) {
                let sum = &mut sums[code as usize];
                sum.objects += 1;
                sum.slot_bytes += slot_bytes;
            }
        });
        for &(slot, bytes) in &space.transient {
            let code = space.slots.get(slot as usize).and_then(|it| self.trace.code_of_slot(*it));
            if let Some(code) = code {
                let sum = &mut sums[code as usize];
                sum.resident_bytes += u64::from(bytes);
            }
        }
        let mut residents = Residents::new(pages);
        let in_use = self.heap.all_blocks().filter(|(_, block)| block.state().is_in_use());
        for (number, block) in in_use {
            let sum = &mut sums[self.trace.code_of(number) as usize];
            sum.chunks += 1;
            sum.resident_bytes += residents.within(&(block.address..block.end()));
            if self.trace.is_shared(number) {
                sum.shared_bytes += block.bytes();
            } else {
                sum.exclusive_bytes += block.bytes();
            }
        }
        let mut accounts = Accounts::default();
        for (code, sum) in (0..).zip(sums).filter(|(_, sum)| sum.objects + sum.chunks > 0) {
            accounts.add(self.table.new_account(self.trace.owner(code)), sum);
        }
        accounts
    }
}

/// The memory of one owner.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    objects: u64,
    slot_bytes: u64,
    chunks: u64,
    exclusive_bytes: u64,
    shared_bytes: u64,
    resident_bytes: u64,
}

/// Accounts while they are added up.
#[derive(Default)]
struct Accounts {
    all: Vec<OwnerAccount>,
    /// Owners with the same name share an account: anonymous classes, or old and new classes of a reassigned
    /// constant.
    by_name: HashMap<(OwnerKind, String, Cause), usize>,
}

impl Accounts {
    fn add(&mut self, new: OwnerAccount, sum: Sum) {
        let name = (new.kind, new.name.clone(), new.cause);
        let index = *self.by_name.entry(name).or_insert(self.all.len());
        match self.all.get_mut(index) {
            Some(known) => known.has_memsize = known.has_memsize.min(new.has_memsize),
            None => self.all.push(new),
        }
        let account = &mut self.all[index];
        account.objects += sum.objects;
        account.slot_bytes += sum.slot_bytes;
        account.chunks += sum.chunks;
        account.exclusive_bytes += sum.exclusive_bytes;
        account.shared_bytes += sum.shared_bytes;
        account.resident_bytes += sum.resident_bytes;
    }

    /// The accounts by their part of RSS, largest first; then by kind, name and cause.
    fn sorted(mut self) -> Vec<OwnerAccount> {
        self.all.sort_by(|a, b| {
            let by_name = || (a.kind, &a.name, a.cause).cmp(&(b.kind, &b.name, b.cause));
            b.weight_bytes().cmp(&a.weight_bytes()).then_with(by_name)
        });
        self.all
    }
}

/// The name of the kind of objects that bytecode is. A root that retains bytecode is the code that defined it.
fn iseqs_name(space: &ObjectSpace) -> Option<&str> {
    let is_iseqs = |class: &&Class| class.kind == ClassKind::Imemo(ImemoType::Iseq);
    space.classes.iter().find(is_iseqs)?.name.as_deref()
}
