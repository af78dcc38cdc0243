//! musl's heap: mallocng, since musl 1.2.1.
//!
//! Memory is divided into *groups* of up to 32 slots of one size. A group has a mapping of its own, or lies in a slot of a
//! larger group. Its *meta*, in pages of metas, has two masks: slots that are available, and slots that were freed. All other
//! slots are in use. There are no arenas, no thread caches, and no call that returns free memory.
//!
//! No layout is trusted: the allocator's context in the data of a stripped library is found by its secret, which every page of
//! metas repeats; each group has to point back to its meta, and the context counts the slots of each class itself.

mod error;
mod layout;
mod walk;

pub(crate) use error::Error;
pub(crate) use walk::walk;
