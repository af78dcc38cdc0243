//! The owners of malloc'ed memory. The words of all memory that may hold a pointer are read during the capture
//! ([`graph`]) and followed afterwards ([`trace`]). The results are a cause for each block in use, an account for
//! each owner ([`accounts`]), and the paths that retain its objects ([`retainers`]).

mod accounts;
mod address_index;
mod areas;
mod bits;
mod block_files;
mod dominators;
mod edges;
mod explanation;
mod finalizers;
mod graph;
mod hash_tables;
mod jit;
mod names;
mod object_graph;
mod owner;
mod parts;
mod reader;
mod retained;
mod retainers;
mod root_memory;
mod search;
mod slot_edges;
mod slot_roots;
mod structures;
mod table;
mod threads;
mod trace;
mod waste;
mod weak;

pub(crate) use accounts::{AccountIndex, Owners};
pub(crate) use address_index::{AddressIndex, Referent};
pub(crate) use bits::Bits;
pub(crate) use edges::Edge;
pub use explanation::{Explanation, NoExplanation, Referrer, Subject};
pub(crate) use graph::{FiberStack, PointerGraph};
pub use names::CODE;
pub(crate) use names::ObjectCode;
pub use object_graph::SingletonClasses;
pub(crate) use object_graph::{Node, ObjectGraph, ObjectReferences, Paths, Reach, class_name};
pub use owner::{MEMORY_OF_EXTENSIONS, OwnerAccount, OwnerKind, Retainer, THREAD_LOCALS};
pub(crate) use parts::Parts;
pub(crate) use retained::RetainedSizes;
pub use retained::{Dominator, DominatorKind};
pub use retainers::{ARROW, CONTAINERS};
pub(crate) use slot_edges::slot_edges;
pub(crate) use slot_roots::SlotRoots;
pub use table::ANONYMOUS_CLASS;
pub(crate) use threads::current_frames;
pub(crate) use trace::Trace;
pub use waste::{
    ContentsAccounts, CopiesAccount, FewAccount, FewKind, MAX_WASTE_GROUPS, SpareAccount,
    SpareKind, TextAccount, WasteAccount, WasteAccounts, WasteKind, WasteSums,
};
