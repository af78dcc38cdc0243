//! Joins what the kernel, malloc and Ruby say of one process: claims every resident byte for one
//! [`Cause`], and gives the [`Verdict`].
//!
//! [`Facts::read`] is the only part that touches the target, while it stands; [`Ledger::draw_up`],
//! [`Verdict::of`] and [`advise`] are pure functions of what was read.

mod books;
mod cause;
mod facts;
mod ledger;
mod malloc_spans;
mod memory_map;
mod owners;
mod places;
mod ruby_spans;
mod size;
mod span;
mod stacks;

pub use cause::{Cause, Causes};
pub use facts::Facts;
pub use ledger::{ArenaAccount, Ledger, MallocAccount, RubyAccount};
pub use memory_map::{Area, AreaKind, Block, Columns, MemoryMap, Misfit, PageUse, Use};
pub use owners::{OwnerAccount, OwnerKind, Retainer};
pub use size::{Count, Size, percent};
