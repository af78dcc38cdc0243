#![doc = include_str!("../README.md")]
//!
//! | module | |
//! |---|---|
//! | `interpreter` | the interpreter's module, version and variables |
//! | `release` | the facts that depend on its version |
//! | `model` | plain data: slots, classes, heap pages, references |
//! | `layout` | layouts of CRuby's structures: how they are derived and checked |
//! | `read` | one pass over all slots with the derived layouts |
//! | `areas` | memory that Ruby maps for itself: fiber stacks, JIT code, the transient heap |
//! | `object_space` | the result, with the facts that later readers need |
//! | `body` | what objects have outside their slots, what they use of it, what they contain, and what a dump has of them |
//! | `roots` | constants, variables of classes, global variables |
//! | `code_paths` | the files that bytecode was compiled from |
//! | `collector` | the state of the garbage collector |
//! | `allocation` | new objects, their ages, and collections of processes that run |
//! | `allocation_sites` | the lines that allocated objects, if the process traces that |
//! | `heap_pages` | heap pages of processes that run |
//! | `ractors` | the Ractors, and which object space each has |
//! | `backtrace` | the VM stacks of threads, and the methods that they run, with their files and lines |

mod address_classifier;
mod allocation;
mod allocation_sites;
mod areas;
mod backtrace;
mod body;
mod code_paths;
mod collector;
mod error;
mod finding;
mod heap_pages;
mod interpreter;
mod layout;
mod model;
mod object_space;
mod old_objects;
mod process;
mod ractors;
mod read;
mod release;
mod roots;
mod shapes;
#[cfg(test)]
mod tests;
mod word;

pub use allocation::{
    Ages, CollectionCounts, Collections, CollectionsSearch, FreeListSearch, FreeLists, OLD_AGE,
    ObjectAge, PageAges, Sighting, Tick, TickProgram, credit_callers,
};
pub use allocation_sites::{allocation_sites, traced_objects};
pub use areas::mn_stacks::MnStack;
pub use backtrace::{
    ContextPath, CopiedStack, NoStack, RootUses, RunningStack, RunningStacks, backtraces, closures,
    map_backtraces, object_in_variables, uses_of_roots,
};
pub use body::details::details;
pub use body::{Body, BodyReader, Contents, Slice, TextHome};
pub use code_paths::{code_paths, memory_of_bytecode};
pub use collector::Collector;
pub use error::{Check, Error, Failure};
pub use finding::Finding;
pub use heap_pages::HeapPages;
pub use interpreter::{Interpreter, find, find_in};
pub use layout::catch_table::{CATCH_TABLE_HEAD_BYTES, catch_table_bytes, iseqs_of_catch_table};
pub use layout::class_structures::{ClassStructure, Part, Referents, SUBCLASS_ENTRY_BYTES};
pub use layout::constant_path::{MAX_CONSTANT_PATH_BYTES, constant_path_bytes};
pub use layout::interpreter_lists::{
    EndProc, EventHook, GcRecords, MessageList, RactorQueue, RegisteredAddress, RegisteredAddresses,
};
pub use layout::object_head::ObjectHead;
pub use layout::object_layouts::MAX_SPECIAL;
pub use layout::regexp::{REGEXP_BYTES, pointers_of_regexp};
pub use layout::room::{Room, Unit};
pub use layout::st_table::{DELETED_HASH, StTable, TableLayout};
pub use model::allocation_sites::{AllocationSite, AllocationSites};
pub use model::backtrace::{Backtrace, Frame};
pub use model::class::{Class, ClassKind};
pub use model::closures::{Closure, Closures};
pub use model::code_paths::{CodePaths, IseqSource};
pub use model::content::{Content, Form};
pub use model::data_type::{DataObjects, DataType};
pub use model::depth::Depth;
pub use model::details::{Detail, Details, Fact};
pub use model::heap_page::HeapPage;
pub use model::imemo::ImemoType;
pub use model::links::Links;
pub use model::named_root::{NamedRoot, RootKind};
pub use model::ractor::Ractor;
pub use model::references::References;
pub use model::shapes::{ListedShape, Shapes};
pub use model::slot::{Slot, SlotState, SlotType};
pub use model::vm_stack::VmStack;
pub use object_space::{ObjectSpace, SlotSizes};
pub use old_objects::OldObjects;
pub use process::WAKEUP_SIGNAL;
pub use read::references::address_of_integer;
pub use read::{read, read_with};
pub use roots::{ID_TABLE_BYTES, entries_of_id_table, memory_of_classes, named_roots};
pub use shapes::shapes;
