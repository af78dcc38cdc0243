//! What a process that runs tells about objects that it has just allocated: which slots are next, how old objects are, and
//! how many collections there were.
//!
//! All places are derived, from a capture and from what the process does afterwards. Nothing is written to the process.
//!
//! | module | |
//! |---|---|
//! | `free_lists` | the lists from which a Ractor's threads allocate |
//! | `ages` | the number of collections that an object has survived |
//! | `collections` | the number of collections |
//! | `tick` | the copy that the kernel makes of all these at a tick of a clock, and the new objects in it |

mod ages;
mod collections;
mod cursors;
mod free_lists;
mod tick;

pub(crate) use ages::Notes;
pub use ages::{Ages, OLD_AGE, ObjectAge, PageAges};
pub use collections::{CollectionCounts, Collections, CollectionsSearch};
pub use free_lists::{FreeListSearch, FreeLists};
pub use tick::{Sighting, Tick, TickProgram, credit_callers};
