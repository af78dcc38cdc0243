use crate::Cause;
use crate::ownership::object_graph::SingletonClasses;

/// The root of objects to which only memory of C extensions refers. The GC follows it only if the extension marks them.
pub const MEMORY_OF_EXTENSIONS: &str = "(memory of C extensions)";

/// The name of the owner of memory that thread-local variables hold.
pub const THREAD_LOCALS: &str = "(thread-local variables)";

/// A holder of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// The objects of the class with this index that do not wrap a structure.
    Class(usize),
    /// The objects of the class with this index that wrap a structure of an extension's, or of Ruby's own
    /// (T_DATA).
    Data(usize),
    /// The variables of the module with this index.
    Variables(usize),
    /// Thread-local variables.
    Locals,
    /// The stacks and registers of threads and fibers.
    Stacks,
    /// The JIT compiler's tables.
    Jit,
    /// Ruby's object space, which had its heap pages from malloc up to 2.7.
    HeapPages,
    /// VM stacks that Ruby has from malloc: that of the main thread.
    VmStacks,
    /// No known owner.
    Nobody,
}

/// The memory that one owner holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerAccount {
    /// The name of a class or library; in parentheses if the owner has no name of its own, such as
    /// `(imemo_iseq)` for bytecode.
    pub name: String,
    /// The kind of owner.
    pub kind: OwnerKind,
    /// The cause of the memory that it holds.
    pub cause: Cause,
    /// The number of its objects, garbage and new ones included; 0 for owners other than classes.
    pub objects: u64,
    /// The bytes of their slots.
    pub slot_bytes: u64,
    /// The number of blocks that it holds.
    pub chunks: u64,
    /// The bytes of the blocks that are reachable from this owner only, resident or not, headers included.
    pub exclusive_bytes: u64,
    /// The bytes of the blocks that are also reachable from others, but not in fewer steps. They are counted for
    /// one owner only.
    pub shared_bytes: u64,
    /// The resident bytes of all its blocks, and of its objects' memory on the transient heap.
    pub resident_bytes: u64,
    /// True if the type of its objects has a function that reports their size to Ruby; `None` for owners other than
    /// objects, and for objects whose size Ruby knows by itself. Without such a function Ruby counts the slot only;
    /// with one it may still count too little.
    pub has_memsize: Option<bool>,
    /// The roots that retain its objects, the one that retains most bytes first; empty for owners other than
    /// objects and bytecode, and for classes that hold little.
    pub retainers: Vec<Retainer>,
    /// The singleton classes of its objects.
    pub singleton_classes: SingletonClasses,
    /// The bytes of the slots and blocks that would be freed if all its objects went away, headers included; `None` if that
    /// was not asked for, for owners other than classes, and for classes that hold little.
    pub retained_bytes: Option<u64>,
}

/// A root that retains objects of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retainer {
    /// The path from the root to one of the objects: `Cache::STORE → Hash → Array → PG::Result`. `None` if no path
    /// leads to them: they are garbage until the GC runs again.
    pub path: Option<String>,
    /// The number of objects that the root retains.
    pub objects: u64,
    /// The bytes of their slots, and of the blocks that these lead to.
    pub bytes: u64,
    /// A path from another root, if others retain most of these objects, too: they stay until all roots let them go. Known of the root that
    /// retains most bytes of an owner.
    pub other_path: Option<String>,
    /// The class of the object through which both paths lead, if most objects have one in common: it need only be emptied.
    pub shared: Option<String>,
}

/// The kind of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerKind {
    /// The objects of a class.
    Class,
    /// Objects of the interpreter that are hidden from programs.
    Internal,
    /// The variables of a library, or of the executable.
    Library,
    /// Thread-local variables, or stacks.
    Thread,
    /// No known owner.
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
    /// The properties that distinguish it from all other accounts.
    pub(crate) fn key(&self) -> (OwnerKind, &str, Cause) {
        (self.kind, &self.name, self.cause)
    }

    /// The bytes of all blocks that it holds.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.exclusive_bytes + self.shared_bytes
    }

    /// Its part of RSS, and the memory of its objects' singleton classes.
    #[must_use]
    pub fn bytes_with_singleton_classes(&self) -> u64 {
        self.weight_bytes().saturating_add(self.singleton_classes.bytes)
    }

    /// Its part of RSS: its slots and the resident bytes of its blocks.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.slot_bytes + self.resident_bytes
    }
}
