//! Memory that Ruby maps for itself, beside its heap pages and malloc.

pub(crate) mod fiber_stacks;
pub(crate) mod jit_code;
pub(crate) mod mark_stack;
pub(crate) mod mn_stacks;
pub(crate) mod page_pool;
pub(crate) mod transient_heap;
