use ledger::{Cause, Dominator, OwnerAccount, Retainer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A type's way to tell Ruby's GC about its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Memsize {
    /// Their type has a function that returns a size, which may be less than they hold.
    Function,
    /// It has none, so the GC may count only their slots.
    None,
}

/// An owner of malloc'ed memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// Its name.
    pub owner: String,
    /// `"class"`: a class. `"internal"`: a type of internal object. `"library"`: the variables of a library or of the executable.
    /// `"thread"`: thread-local variables or stacks. `"none"`: nothing points to the memory; the name is `"(nobody)"`.
    /// `"others"`: the sum of the other owners.
    pub kind: String,
    /// The cause of the memory that it holds. `null` for the sum of the others.
    #[serde(with = "crate::names::cause_or_none")]
    #[schemars(schema_with = "crate::names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    /// The number of its objects, including garbage.
    pub objects: u64,
    /// The bytes of their slots.
    pub slot_bytes: u64,
    /// The number of chunks that it holds.
    pub chunks: u64,
    /// Bytes of chunks that are reachable from this owner only. Headers are included; the chunks may be resident or not.
    pub exclusive_bytes: u64,
    /// Bytes of chunks that other owners also reach. Each chunk counts under the owner that reaches it in the fewest steps.
    pub shared_bytes: u64,
    /// The resident part of these bytes, and the objects' memory on the transient heap. `null` if the states of pages are
    /// unknown.
    pub resident_bytes: Option<u64>,
    /// The way in which typed data objects, such as those of C extensions, report their memory to Ruby. `null`: the owner's
    /// objects have no such type.
    pub memsize: Option<Memsize>,
    /// The bytes that would be freed if all objects of the class went away: their slots and chunks, and all objects and chunks
    /// that only they retain. `null` without `--retained`, and for owners without `kept_by`.
    pub retained_bytes: Option<u64>,
    /// The number of its objects that have a singleton class. 0 in older documents.
    #[serde(default)]
    pub singleton_objects: u64,
    /// The bytes of the slots and chunks that are reached through these classes: methods, blocks, tables. Resident or not,
    /// headers included. They are part of other owners' bytes, such as those of Class, too. 0 in older documents.
    #[serde(default)]
    pub singleton_bytes: u64,
    /// For the 20 classes that hold most memory, for bytecode, for hidden objects whose cause is `ruby.malloc`, such as
    /// `(T_STRING)`, and for kinds of the interpreter's objects with 8 MiB or more: up to eight roots, such as constants and
    /// variables, that retain the objects, and always the garbage. Those that retain most bytes come first. Empty for other
    /// owners.
    pub kept_by: Vec<KeptBy>,
}

impl Owner {
    /// The resident bytes of the blocks that it holds. Early snapshots have the allocated ones only.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let allocated = self.exclusive_bytes.saturating_add(self.shared_bytes);
        self.resident_bytes.unwrap_or(allocated)
    }

    /// These, and the slots of its objects.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.held_bytes().saturating_add(self.slot_bytes)
    }

    /// These, and the memory of its objects' singleton classes.
    pub(super) fn bytes_with_singletons(&self) -> u64 {
        self.bytes().saturating_add(self.singleton_bytes)
    }

    /// Sums up owners in one row.
    pub(super) fn sum(owners: &[Self]) -> Self {
        // A snapshot may have sizes that no process has.
        let sum = |of: fn(&Self) -> u64| owners.iter().map(of).fold(0, u64::saturating_add);
        Self {
            owner: format!("({} others)", owners.len()),
            kind: "others".into(),
            cause: None,
            objects: sum(|owner| owner.objects),
            slot_bytes: sum(|owner| owner.slot_bytes),
            chunks: sum(|owner| owner.chunks),
            exclusive_bytes: sum(|owner| owner.exclusive_bytes),
            shared_bytes: sum(|owner| owner.shared_bytes),
            resident_bytes: owners
                .iter()
                .try_fold(0, |sum: u64, owner| Some(sum.saturating_add(owner.resident_bytes?))),
            memsize: None,
            retained_bytes: None,
            singleton_objects: sum(|owner| owner.singleton_objects),
            singleton_bytes: sum(|owner| owner.singleton_bytes),
            kept_by: vec![],
        }
    }
}

impl From<&OwnerAccount> for Owner {
    fn from(account: &OwnerAccount) -> Self {
        Self {
            owner: account.name.clone(),
            kind: account.kind.name().into(),
            cause: Some(account.cause),
            objects: account.objects,
            slot_bytes: account.slot_bytes,
            chunks: account.chunks,
            exclusive_bytes: account.exclusive_bytes,
            shared_bytes: account.shared_bytes,
            resident_bytes: Some(account.resident_bytes),
            memsize: account
                .has_memsize
                .map(|has| if has { Memsize::Function } else { Memsize::None }),
            retained_bytes: account.retained_bytes,
            singleton_objects: account.singleton_classes.objects,
            singleton_bytes: account.singleton_classes.bytes,
            kept_by: account.retainers.iter().map(KeptBy::from).collect(),
        }
    }
}

/// A path that retains objects of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptBy {
    /// The shortest path from the root to one of the objects: `"Cache::STORE → Hash → Array → PG::Result"` (docs/json.md#paths).
    /// `null`: nothing retains the objects, so they are garbage until the GC runs.
    pub path: Option<String>,
    /// The number of objects that the root retains. Stale words in memory may seem to retain a few.
    pub objects: u64,
    /// The bytes of these objects: their slots, and the resident bytes of the chunks that these lead to.
    pub bytes: u64,
    /// A path from another root, if others retain most of these objects, too: they stay until all of these roots let them go.
    /// Known of the first root only. Words on stacks, and what the first root refers to itself, do not count.
    #[serde(default)]
    pub other_path: Option<String>,
    /// The class of the one object through which both paths lead, if most objects have one in common: it need only be emptied.
    #[serde(default)]
    pub shared: Option<String>,
}

impl From<&Retainer> for KeptBy {
    fn from(retainer: &Retainer) -> Self {
        Self {
            path: retainer.path.clone(),
            objects: retainer.objects,
            bytes: retainer.bytes,
            other_path: retainer.other_path.clone(),
            shared: retainer.shared.clone(),
        }
    }
}

/// A constant, thread or object, or several like it, and the memory that would be freed if they went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DominatorRow {
    /// `"constant"`, `"variable"` (global, or of a class), `"thread"` (with its stack and local variables), `"objects"` (of a
    /// class), `"internal"` (objects of the interpreter), `"library"` (its variables), `"memory"` (of an owner, retained by
    /// several others together), `"other"` (finalizers, stacks without a thread).
    pub kind: String,
    /// The name of the constant, variable, class, owner or library. A thread that the program named: `Thread "worker"`.
    pub name: String,
    /// The current method of a thread, with its file and line: `Billing::Export#run (/srv/app/billing/export.rb:42)`. `null` for
    /// others, and if it could not be read.
    pub method: Option<String>,
    /// The address of the object, if it is one. Otherwise `null`.
    pub address: Option<String>,
    /// The number of these objects. Objects of one class with the same dominator are one row.
    pub count: u64,
    /// The number of objects that would be freed with them.
    pub objects: u64,
    /// The bytes of their slots and the resident bytes of their chunks, headers included.
    pub retained_bytes: u64,
    /// The resident part of these bytes that is room which the objects do not use (docs/waste.md). Slices of other objects do not
    /// count. 0 in older documents.
    #[serde(default)]
    pub unused_bytes: u64,
    /// The shortest path to the largest of these objects, if no single constant, thread or object retains them. `null` for
    /// others.
    pub path: Option<String>,
    /// Dominators of parts of this memory, with the same fields: three or five at each place, four levels deep.
    pub parts: Vec<DominatorRow>,
}

impl From<&Dominator> for DominatorRow {
    fn from(dominator: &Dominator) -> Self {
        Self {
            kind: dominator.kind.name().into(),
            name: dominator.name.clone(),
            method: dominator.method.clone(),
            address: dominator.address.map(|address| address.to_string()),
            count: dominator.count,
            objects: dominator.objects,
            retained_bytes: dominator.retained_bytes,
            unused_bytes: dominator.unused_bytes,
            path: dominator.path.clone(),
            parts: dominator.parts.iter().map(Self::from).collect(),
        }
    }
}
