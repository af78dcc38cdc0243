//! The object space as plain data: slots, classes, heap pages, and references between them.

pub(crate) mod allocation_sites;
pub(crate) mod backtrace;
pub(crate) mod class;
pub(crate) mod closures;
pub(crate) mod code_paths;
pub(crate) mod content;
pub(crate) mod data_type;
pub(crate) mod depth;
pub(crate) mod details;
pub(crate) mod heap_page;
pub(crate) mod imemo;
pub(crate) mod links;
pub(crate) mod named_root;
pub(crate) mod packed_addresses;
pub(crate) mod ractor;
pub(crate) mod references;
pub(crate) mod shapes;
pub(crate) mod slot;
pub(crate) mod slot_index;
pub(crate) mod vm_stack;
