use std::collections::HashMap;
use std::ops::Range;

use allocator::HeapMap;
use capture::elf::Module;
use capture::{Address, PageRun, Pages, intersection, length};
use ruby::{CodePaths, Frame, NamedRoot, ObjectSpace, Slot, SlotType};

use crate::Cause;
use crate::ownership::address_index::AddressIndex;
use crate::ownership::graph::PointerGraph;
use crate::ownership::object_graph::{ObjectGraph, Paths};
use crate::ownership::owner::{Owner, OwnerAccount, OwnerKind};
use crate::ownership::parts::Parts;
use crate::ownership::retained::{Dominator, MAX_GROUPS, RetainedSizes};
use crate::ownership::retainers::Retainers;
use crate::ownership::table::{ANONYMOUS, OwnerTable};
use crate::ownership::trace::Trace;

/// The number of classes whose retainers are found.
const MAX_RETAINED_CLASSES: usize = 20;
/// The number of retainers that are listed for each of them.
const MAX_RETAINERS: usize = 3;
const _: () = assert!(MAX_RETAINED_CLASSES <= MAX_GROUPS);

/// The index of each owner's account.
pub(crate) struct AccountIndex {
    classes: Vec<Option<u32>>,
    data: Vec<Option<u32>>,
    variables: Vec<Option<u32>>,
    /// The accounts of thread-local variables, stacks, heap pages, [`Owner::Nobody`], and the JIT compiler.
    others: [Option<u32>; 5],
}

impl AccountIndex {
    /// The index of the account of `owner`; `None` if it has none.
    pub(crate) fn of(&self, owner: Owner) -> Option<u32> {
        let of = |accounts: &[Option<u32>], index: usize| accounts.get(index).copied().flatten();
        match owner {
            Owner::Class(class) => of(&self.classes, class),
            Owner::Data(class) => of(&self.data, class),
            Owner::Variables(module) => of(&self.variables, module),
            Owner::Locals => self.others[0],
            Owner::Stacks => self.others[1],
            Owner::HeapPages => self.others[2],
            Owner::Nobody => self.others[3],
            Owner::Jit => self.others[4],
        }
    }
}

/// The owner of each block in use.
pub(crate) struct Owners<'a> {
    heap: &'a HeapMap,
    pub(crate) addresses: AddressIndex<'a>,
    table: OwnerTable<'a>,
    trace: Trace,
    graph: Option<&'a PointerGraph>,
    named_roots: &'a [NamedRoot],
    current_frames: &'a HashMap<u32, Frame>,
}

impl<'a> Owners<'a> {
    /// Finds the owner of each block by following `graph`; without it, only of the blocks that slots refer to.
    pub(crate) fn find(
        heap: &'a HeapMap,
        space: &'a ObjectSpace,
        modules: &'a [Module],
        graph: Option<&'a PointerGraph>,
        named_roots: &'a [NamedRoot],
        current_frames: &'a HashMap<u32, Frame>,
    ) -> Self {
        let table = OwnerTable { space, modules, is_traced: graph.is_some() };
        let areas = graph.map_or(&[][..], |graph| &graph.areas);
        let addresses = AddressIndex::new(heap, space, areas);
        let trace = match graph {
            Some(graph) => Trace::new(heap, &addresses, graph, &table),
            None => Trace::of_slots(heap, &addresses, &table),
        };
        Self { heap, addresses, table, trace, graph, named_roots, current_frames }
    }

    /// The cause of a block in use, by its number.
    pub(crate) fn cause(&self, block: usize) -> Cause {
        self.table.cause_of(self.trace.owner_of(block))
    }

    /// The parts of the interpreter's memory; `None` if owners were not traced. `paths` is `None` if the files of
    /// bytecode are unknown.
    pub(crate) fn parts<'p>(&'p self, paths: Option<&'p CodePaths>) -> Option<Parts<'p>> {
        let Self { heap, addresses, table, trace, graph, .. } = self;
        graph.map(|graph| Parts::find(heap, addresses, graph, table, trace, paths))
    }

    /// The owner of a block in use, by its number.
    pub(crate) fn owner_of(&self, block: usize) -> Owner {
        self.trace.owner_of(block)
    }

    /// The positions of these owners in `accounts`.
    pub(crate) fn index(&self, accounts: &[OwnerAccount]) -> AccountIndex {
        let by_name: HashMap<_, _> = accounts
            .iter()
            .enumerate()
            .map(|(index, account)| (account.key(), index as u32))
            .collect();
        let of = |owner| by_name.get(&self.table.new_account(owner).key()).copied();
        let classes = 0..self.table.space.classes.len();
        AccountIndex {
            classes: classes.clone().map(|class| of(Owner::Class(class))).collect(),
            data: classes.map(|class| of(Owner::Data(class))).collect(),
            variables: (0..self.table.modules.len()).map(|it| of(Owner::Variables(it))).collect(),
            others: [Owner::Locals, Owner::Stacks, Owner::HeapPages, Owner::Nobody, Owner::Jit]
                .map(of),
        }
    }

    /// The accounts of all owners, by their part of RSS, largest first. Each block in use counts for exactly one.
    ///
    /// With `retained_sizes`, the accounts of classes have retained sizes, and the dominator tree is returned too.
    pub(crate) fn accounts(
        &self,
        pages: &Pages,
        retained_sizes: bool,
    ) -> (Vec<OwnerAccount>, Option<Vec<Dominator>>) {
        let mut residents = Residents { runs: pages.iter().as_slice() };
        let mut accounts = Accounts::default();
        self.add_objects(&mut accounts);
        let in_use = self.heap.all_blocks().filter(|(_, block)| block.state().is_in_use());
        for (number, block) in in_use {
            let account = accounts.of(&self.table, self.trace.owner_of(number));
            account.chunks += 1;
            account.resident_bytes += residents.within(&(block.address..block.end()));
            if self.trace.is_shared(number) {
                account.shared_bytes += block.bytes();
            } else {
                account.exclusive_bytes += block.bytes();
            }
        }
        let mut accounts = accounts.sorted();
        let dominators = self.add_retainers(&mut accounts, retained_sizes);
        (accounts, dominators)
    }

    /// Finds the roots that retain the objects of the classes that hold most.
    fn add_retainers(
        &self,
        accounts: &mut [OwnerAccount],
        retained_sizes: bool,
    ) -> Option<Vec<Dominator>> {
        let graph = self.object_graph()?;
        let classes = accounts.iter_mut().filter(|account| account.kind == OwnerKind::Class);
        let mut kept: Vec<_> = classes.take(MAX_RETAINED_CLASSES).collect();
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
                let name = class.name.as_deref().unwrap_or(ANONYMOUS);
                group_of_name.get(name).copied()
            })
            .collect();
        let paths = Paths::find(&graph);
        let retainers = Retainers::new(&graph, &paths);
        let count = kept.len();
        let group_of = |slot: Slot| groups.get(slot.class as usize).copied().flatten();
        for (account, retainers) in
            kept.iter_mut().zip(retainers.of_groups(count, MAX_RETAINERS, group_of))
        {
            account.retainers = retainers;
        }
        if !retained_sizes {
            return None;
        }
        let sizes = RetainedSizes::find(&graph, &paths);
        let of_groups = sizes.of_groups(|slot| group_of(*graph.space.slots.get(slot as usize)?));
        for (account, bytes) in kept.iter_mut().zip(of_groups) {
            account.retained_bytes = Some(bytes);
        }
        Some(sizes.tree())
    }

    /// The references between roots, objects and blocks; `None` if pointers were not read.
    pub(crate) fn object_graph(&self) -> Option<ObjectGraph<'_>> {
        let Self { heap, addresses, table, trace, named_roots, current_frames, .. } = self;
        let graph = self.graph?;
        Some(ObjectGraph::new(heap, addresses, graph, table, trace, named_roots, current_frames))
    }

    fn add_objects(&self, accounts: &mut Accounts) {
        let classes = self.table.space.classes.len();
        let mut counts = vec![(0_u64, 0_u64); 2 * classes];
        self.table.space.sized_slots().for_each(|(slot, slot_bytes)| {
            let class = slot.class as usize;
            if class < classes {
                let data = if slot.kind == SlotType::DATA { classes } else { 0 };
                let (objects, bytes) = &mut counts[class + data];
                *objects += 1;
                *bytes += slot_bytes;
            }
        });
        for (index, (objects, bytes)) in counts.into_iter().enumerate() {
            if objects > 0 {
                let class = index % classes;
                let owner = if index < classes { Owner::Class(class) } else { Owner::Data(class) };
                let account = accounts.of(&self.table, owner);
                account.objects += objects;
                account.slot_bytes += bytes;
            }
        }
    }
}

/// Runs of pages that are looked up in ascending order.
struct Residents<'a> {
    runs: &'a [PageRun],
}

impl Residents<'_> {
    /// The resident bytes of `range`.
    fn within(&mut self, range: &Range<Address>) -> u64 {
        while let Some((first, rest)) = self.runs.split_first() {
            if first.range.end > range.start {
                break;
            }
            self.runs = rest;
        }
        let touching = self.runs.iter().take_while(|run| run.range.start < range.end);
        let resident = touching.filter(|run| run.state.is_resident());
        resident.map(|run| length(&intersection(&run.range, range))).sum()
    }
}

/// Accounts while they are added up.
#[derive(Default)]
struct Accounts {
    all: Vec<OwnerAccount>,
    by_owner: HashMap<Owner, usize>,
    /// Owners with the same name share an account: anonymous classes, or old and new classes of a reassigned
    /// constant.
    by_name: HashMap<(OwnerKind, String, Cause), usize>,
}

impl Accounts {
    fn of(&mut self, table: &OwnerTable<'_>, owner: Owner) -> &mut OwnerAccount {
        let index = *self.by_owner.entry(owner).or_insert_with(|| {
            let new = table.new_account(owner);
            let name = (new.kind, new.name.clone(), new.cause);
            let index = *self.by_name.entry(name).or_insert(self.all.len());
            match self.all.get_mut(index) {
                Some(known) => known.has_memsize = known.has_memsize.min(new.has_memsize),
                None => self.all.push(new),
            }
            index
        });
        &mut self.all[index]
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
