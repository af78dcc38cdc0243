use std::collections::HashMap;
use std::ops::Range;

use allocator::glibc::Malloc;
use capture::elf::Module;
use capture::{Address, PageRun, Pages, intersection, length};
use ruby::{NamedRoot, ObjectSpace, Slot, SlotType};

use crate::Cause;
use crate::owners::pointers::Pointers;
use crate::owners::retainers::{Retainer, Retainers};
use crate::owners::roster::{ANONYMOUS, Owner, Roster};
use crate::owners::trace::Trace;
use crate::places::Places;

/// Classes whose retainers are told.
const MOST_KEPT: usize = 20;

/// What one owner holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerAccount {
    /// Its name: a class's, a library's; in parentheses what has no name of its own, such as
    /// `(imemo_iseq)` for bytecode.
    pub name: String,
    /// What it is.
    pub kind: OwnerKind,
    /// The cause under which what it holds stands.
    pub cause: Cause,
    /// How many objects it is, garbage and new ones included; 0 for what is no class.
    pub objects: u64,
    /// The bytes of their slots.
    pub slot_bytes: u64,
    /// How many chunks it holds.
    pub chunks: u64,
    /// The bytes of the chunks that nobody else reaches, resident or not, headers included.
    pub exclusive_bytes: u64,
    /// The bytes of the chunks that others reach too, but none of them in fewer steps: they stand
    /// with one owner only.
    pub shared_bytes: u64,
    /// The resident bytes of all its chunks; `None` where the states of pages are not known.
    pub resident_bytes: Option<u64>,
    /// Whether the type of its objects has a function that tells Ruby their size; `None` for what
    /// Ruby itself knows the size of, and what is no object. Without one Ruby counts the slot only;
    /// with one it may still count less than there is.
    pub has_memsize: Option<bool>,
    /// Who keeps its objects alive, the one that keeps most of them first; empty for what is no
    /// class, and for classes that hold little.
    pub retainers: Vec<Retainer>,
}

/// What an owner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerKind {
    /// The objects of a class.
    Class,
    /// Objects of the interpreter that programs do not see.
    Internal,
    /// The variables of a library, or of the executable.
    Library,
    /// Thread-local variables, or stacks.
    Thread,
    /// Nobody.
    None,
}

impl OwnerKind {
    /// Its name, part of the stable interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Class => "class",
            Self::Internal => "internal",
            Self::Library => "library",
            Self::Thread => "thread",
            Self::None => "none",
        }
    }
}

impl OwnerAccount {
    /// What tells it from all others.
    fn key(&self) -> (OwnerKind, &str, Cause) {
        (self.kind, &self.name, self.cause)
    }

    /// The bytes of all chunks that stand with it.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.exclusive_bytes + self.shared_bytes
    }

    /// What it takes of RSS: its slots and the resident bytes of its chunks; all of them where page
    /// states are not known.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.slot_bytes + self.resident_bytes.unwrap_or(self.held_bytes())
    }
}

/// Where the account of each owner stands.
pub(crate) struct AccountIndex {
    classes: Vec<Option<u32>>,
    data: Vec<Option<u32>>,
    variables: Vec<Option<u32>>,
    /// Of thread-local variables, stacks, heap pages, nobody, and the JIT compiler.
    others: [Option<u32>; 5],
}

impl AccountIndex {
    /// The index of the account of `owner`; `None` where it has none.
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

/// Who holds each chunk, with the means to name them.
pub(crate) struct Owners<'a> {
    malloc: &'a Malloc,
    places: Places<'a>,
    roster: Roster<'a>,
    trace: Trace,
    pointers: Option<&'a Pointers>,
    named_roots: &'a [NamedRoot],
}

impl<'a> Owners<'a> {
    /// Finds who holds each chunk: by following `pointers`; without them, what slots name only.
    pub(crate) fn find(
        malloc: &'a Malloc,
        space: &'a ObjectSpace,
        modules: &'a [Module],
        pointers: Option<&'a Pointers>,
        named_roots: &'a [NamedRoot],
    ) -> Self {
        let roster = Roster { space, modules, is_traced: pointers.is_some() };
        let areas = pointers.map_or(&[][..], |pointers| &pointers.areas);
        let places = Places::new(malloc, space, areas);
        let trace = match pointers {
            Some(pointers) => Trace::new(malloc, &places, pointers, &roster),
            None => Trace::of_slots(malloc, &places, &roster),
        };
        Self { malloc, places, roster, trace, pointers, named_roots }
    }

    /// The cause of a chunk in use, by its index.
    pub(crate) fn cause(&self, chunk: usize) -> Cause {
        self.roster.cause_of(self.trace.owner_of(chunk))
    }

    /// Who holds a chunk in use, by its index.
    pub(crate) fn owner_of(&self, chunk: usize) -> Owner {
        self.trace.owner_of(chunk)
    }

    /// Where in `accounts`, which are these owners', each of them stands.
    pub(crate) fn index(&self, accounts: &[OwnerAccount]) -> AccountIndex {
        let by_name: HashMap<_, _> = accounts
            .iter()
            .enumerate()
            .map(|(index, account)| (account.key(), index as u32))
            .collect();
        let of = |owner| by_name.get(&self.roster.new_account(owner).key()).copied();
        let classes = 0..self.roster.space.classes.len();
        AccountIndex {
            classes: classes.clone().map(|class| of(Owner::Class(class))).collect(),
            data: classes.map(|class| of(Owner::Data(class))).collect(),
            variables: (0..self.roster.modules.len()).map(|it| of(Owner::Variables(it))).collect(),
            others: [Owner::Locals, Owner::Stacks, Owner::HeapPages, Owner::Nobody, Owner::Jit]
                .map(of),
        }
    }

    /// What each owner holds, those that take most of RSS first. All chunks in use stand with
    /// exactly one of them.
    pub(crate) fn accounts(&self, pages: Option<&Pages>) -> Vec<OwnerAccount> {
        let mut residents = pages.map(|pages| Residents { runs: pages.iter().as_slice() });
        let mut accounts = Accounts::default();
        self.add_objects(&mut accounts);
        for (index, chunk) in self.malloc.chunks.iter().enumerate() {
            if chunk.state().is_in_use() {
                let account = accounts.of(&self.roster, self.trace.owner_of(index));
                account.chunks += 1;
                if let Some(residents) = &mut residents {
                    let bytes = residents.within(&(chunk.address..chunk.end()));
                    *account.resident_bytes.get_or_insert(0) += bytes;
                }
                if self.trace.is_shared(index) {
                    account.shared_bytes += chunk.bytes();
                } else {
                    account.exclusive_bytes += chunk.bytes();
                }
            }
        }
        if pages.is_some() {
            for account in &mut accounts.all {
                account.resident_bytes.get_or_insert(0);
            }
        }
        let mut accounts = accounts.sorted();
        self.add_retainers(&mut accounts);
        accounts
    }

    /// Finds who keeps the objects of the classes that hold most.
    fn add_retainers(&self, accounts: &mut [OwnerAccount]) {
        let Some(pointers) = self.pointers else { return };
        let classes = accounts.iter_mut().filter(|account| account.kind == OwnerKind::Class);
        let mut kept: Vec<_> = classes.take(MOST_KEPT).collect();
        // Classes of one name stand in one account.
        let group_of_name: HashMap<&str, usize> = kept
            .iter()
            .enumerate()
            .map(|(group, account)| (account.name.as_str(), group))
            .collect();
        let groups: Vec<Option<usize>> = self
            .roster
            .space
            .classes
            .iter()
            .map(|class| {
                let name = class.name.as_deref().unwrap_or(ANONYMOUS);
                group_of_name.get(name).copied()
            })
            .collect();
        let Self { malloc, places, roster, trace, named_roots, .. } = self;
        let retainers = Retainers::find(malloc, places, pointers, roster, trace, named_roots);
        let count = kept.len();
        let group_of = |slot: Slot| groups.get(slot.class as usize).copied().flatten();
        for (account, retainers) in kept.iter_mut().zip(retainers.of_groups(count, group_of)) {
            account.retainers = retainers;
        }
    }

    fn add_objects(&self, accounts: &mut Accounts) {
        let classes = self.roster.space.classes.len();
        let mut counts = vec![(0_u64, 0_u64); 2 * classes];
        self.roster.space.sized_slots().for_each(|(slot, slot_bytes)| {
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
                let account = accounts.of(&self.roster, owner);
                account.objects += objects;
                account.slot_bytes += bytes;
            }
        }
    }
}

/// Runs of pages that are asked for in ascending order.
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
    /// Owners of the same name have one account: anonymous classes, or those of a constant that was
    /// assigned anew.
    by_name: HashMap<(OwnerKind, String, Cause), usize>,
}

impl Accounts {
    fn of(&mut self, roster: &Roster<'_>, owner: Owner) -> &mut OwnerAccount {
        let index = *self.by_owner.entry(owner).or_insert_with(|| {
            let new = roster.new_account(owner);
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

    /// Those that take most of RSS first; equals by kind, name and cause.
    fn sorted(mut self) -> Vec<OwnerAccount> {
        self.all.sort_by(|a, b| {
            let by_name = || (a.kind, &a.name, a.cause).cmp(&(b.kind, &b.name, b.cause));
            b.weight_bytes().cmp(&a.weight_bytes()).then_with(by_name)
        });
        self.all
    }
}
