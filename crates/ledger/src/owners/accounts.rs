use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use glibc::{ChunkState, Malloc};
use ruby::{Class, DataType, Holder, ObjectSpace, Slot, SlotType};
use target::elf::Module;

use crate::Cause;
use crate::owners::keepers::{Keeper, Keepers};
use crate::owners::pointers::Pointers;
use crate::owners::trace::{Owner, Trace};

/// Classes whose keepers are told.
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
    /// Whether the type of its objects has a function that tells Ruby their size; `None` for what
    /// Ruby itself knows the size of, and what is no object. Without one Ruby counts the slot only;
    /// with one it may still count less than there is.
    pub has_memsize: Option<bool>,
    /// Who keeps its objects alive, the one that keeps most of them first; empty for what is no
    /// class, and for classes that hold little.
    pub keepers: Vec<Keeper>,
}

/// What an owner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The bytes of all chunks that stand with it.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.exclusive_bytes + self.shared_bytes
    }
}

/// Who holds each chunk, with the means to name them.
pub(crate) struct Owners<'a> {
    malloc: &'a Malloc,
    space: &'a ObjectSpace,
    modules: &'a [Module],
    trace: Trace,
    pointers: Option<&'a Pointers>,
    holders: &'a [Holder],
}

impl<'a> Owners<'a> {
    /// Finds who holds each chunk: by following `pointers`; without them, what slots name only.
    pub(crate) fn find(
        malloc: &'a Malloc,
        space: &'a ObjectSpace,
        modules: &'a [Module],
        pointers: Option<&'a Pointers>,
        holders: &'a [Holder],
    ) -> Self {
        let trace = match pointers {
            Some(pointers) => Trace::new(malloc, space, pointers),
            None => Trace::of_slots(malloc, space),
        };
        Self { malloc, space, modules, trace, pointers, holders }
    }

    /// The cause of a chunk in use, by its index.
    pub(crate) fn cause(&self, chunk: usize) -> Cause {
        self.cause_of(self.trace.owner_of(chunk))
    }

    fn cause_of(&self, owner: Owner) -> Cause {
        match owner {
            Owner::Class(class) if self.is_of_vm(class) => Cause::RubyVm,
            Owner::Class(_) => Cause::RubyMalloc,
            Owner::Data(class) => self.cause_of_data(class),
            Owner::HeapPages => Cause::RubyVm,
            Owner::Variables(module) if self.is_interpreter(module) => Cause::RubyVm,
            Owner::Variables(_) | Owner::Locals | Owner::Stacks => Cause::NativeGlobal,
            Owner::Nobody if self.pointers.is_some() => Cause::NativeUnreachable,
            Owner::Nobody => Cause::MallocInUse,
        }
    }

    /// Whether the objects of a class are parts of the interpreter: classes, methods, bytecode.
    fn is_of_vm(&self, class: usize) -> bool {
        let name = self.space.classes[class].name.as_deref().unwrap_or_default();
        // Instance variables, where objects have them elsewhere (4.0).
        let is_internal = name.starts_with("(imemo_") && name != "(imemo_fields)";
        is_internal
            || matches!(name, "Class" | "Module" | "(T_ICLASS)" | "(T_CLASS)" | "(T_MODULE)")
    }

    fn cause_of_data(&self, class: usize) -> Cause {
        let class = &self.space.classes[class];
        let name = class.name.as_deref().unwrap_or_default();
        let is_core =
            self.data_type(class).is_some_and(|it| self.space.interpreter.contains(&it.address));
        match is_core {
            _ if class.address.is_none() => Cause::RubyVm,
            true if name == "RubyVM" || name.starts_with("RubyVM::") => Cause::RubyVm,
            true => Cause::RubyMalloc,
            false => Cause::NativeHeld,
        }
    }

    /// What the objects of a class wrap.
    fn data_type(&self, class: &Class) -> Option<&DataType> {
        self.space.data_types.get(class.data_type? as usize)
    }

    fn is_interpreter(&self, module: usize) -> bool {
        self.modules[module].range.start == self.space.interpreter.start
    }

    /// What each owner holds, those with the most bytes first. All chunks in use stand with
    /// exactly one of them.
    pub(crate) fn accounts(&self) -> Vec<OwnerAccount> {
        let mut accounts = Accounts::default();
        self.add_objects(&mut accounts);
        for (index, chunk) in self.malloc.chunks.iter().enumerate() {
            if matches!(chunk.state(), ChunkState::InUse | ChunkState::Mmapped) {
                let account = accounts.of(self, self.trace.owner_of(index));
                account.chunks += 1;
                if self.trace.is_shared(index) {
                    account.shared_bytes += chunk.bytes();
                } else {
                    account.exclusive_bytes += chunk.bytes();
                }
            }
        }
        let mut accounts = accounts.sorted();
        self.add_keepers(&mut accounts);
        accounts
    }

    /// Finds who keeps the objects of the classes that hold most.
    fn add_keepers(&self, accounts: &mut [OwnerAccount]) {
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
            .space
            .classes
            .iter()
            .map(|class| group_of_name.get(class.name.as_deref()?).copied())
            .collect();
        let cause_of_data = |class| self.cause_of_data(class);
        let keepers = Keepers::find(
            self.malloc,
            self.space,
            self.modules,
            pointers,
            &self.trace,
            self.holders,
            &cause_of_data,
        );
        let group_of = |slot: Slot| groups.get(slot.class as usize).copied().flatten();
        for (account, keepers) in kept.iter_mut().zip(keepers.of_groups(groups.len(), group_of)) {
            account.keepers = keepers;
        }
    }

    fn add_objects(&self, accounts: &mut Accounts) {
        let classes = self.space.classes.len();
        let mut counts = vec![(0_u64, 0_u64); 2 * classes];
        for page in &self.space.pages {
            for slot in self.space.slots.get(page.slots.clone()).into_iter().flatten() {
                let class = slot.class as usize;
                if class < classes {
                    let data = if slot.kind == SlotType::DATA { classes } else { 0 };
                    let (objects, bytes) = &mut counts[class + data];
                    *objects += 1;
                    *bytes += u64::from(page.slot_bytes);
                }
            }
        }
        for (index, (objects, bytes)) in counts.into_iter().enumerate() {
            if objects > 0 {
                let class = index % classes;
                let owner = if index < classes { Owner::Class(class) } else { Owner::Data(class) };
                let account = accounts.of(self, owner);
                account.objects += objects;
                account.slot_bytes += bytes;
            }
        }
    }

    fn new_account(&self, owner: Owner) -> OwnerAccount {
        let (name, kind) = match owner {
            Owner::Class(class) | Owner::Data(class) => match &self.space.classes[class].name {
                Some(name) if name.starts_with('(') => (name.as_str(), OwnerKind::Internal),
                Some(name) => (name.as_str(), OwnerKind::Class),
                None => ("(anonymous class)", OwnerKind::Class),
            },
            Owner::Variables(module) => (self.modules[module].name.as_str(), OwnerKind::Library),
            Owner::Locals => ("(thread-local variables)", OwnerKind::Thread),
            Owner::Stacks => ("(stacks)", OwnerKind::Thread),
            Owner::HeapPages => ("(heap pages)", OwnerKind::Internal),
            Owner::Nobody => ("(nobody)", OwnerKind::None),
        };
        OwnerAccount {
            name: name.to_owned(),
            kind,
            cause: self.cause_of(owner),
            objects: 0,
            slot_bytes: 0,
            chunks: 0,
            exclusive_bytes: 0,
            shared_bytes: 0,
            keepers: Vec::new(),
            has_memsize: match owner {
                Owner::Data(class) => {
                    self.data_type(&self.space.classes[class]).map(|it| it.has_memsize)
                }
                _ => None,
            },
        }
    }
}

/// Accounts while they are added up.
#[derive(Default)]
struct Accounts {
    /// By owner, in the order in which they were met.
    all: Vec<(Owner, OwnerAccount)>,
    by_owner: HashMap<Owner, usize>,
}

impl Accounts {
    fn of(&mut self, owners: &Owners<'_>, owner: Owner) -> &mut OwnerAccount {
        let index = *self.by_owner.entry(owner).or_insert_with(|| {
            self.all.push((owner, owners.new_account(owner)));
            self.all.len() - 1
        });
        &mut self.all[index].1
    }

    /// Owners of the same name together: anonymous classes, or those of a constant that was
    /// assigned anew.
    fn sorted(self) -> Vec<OwnerAccount> {
        let mut by_name: BTreeMap<(OwnerKind, String, Cause), OwnerAccount> = BTreeMap::new();
        for (_, account) in self.all {
            let key = (account.kind, account.name.clone(), account.cause);
            match by_name.entry(key) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(account);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    let sum = entry.get_mut();
                    sum.objects += account.objects;
                    sum.slot_bytes += account.slot_bytes;
                    sum.chunks += account.chunks;
                    sum.exclusive_bytes += account.exclusive_bytes;
                    sum.shared_bytes += account.shared_bytes;
                    sum.has_memsize = sum.has_memsize.min(account.has_memsize);
                }
            }
        }
        let mut accounts: Vec<_> = by_name.into_values().collect();
        accounts.sort_by_key(|account| Reverse(account.slot_bytes + account.held_bytes()));
        accounts
    }
}
