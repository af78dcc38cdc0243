//! Joins what the kernel, malloc and Ruby say of one process: claims every resident byte for one
//! [`Cause`], and gives the [`Verdict`].
//!
//! [`Readings::read`] is the only part that touches the target, while it stands; [`Ledger::draw_up`],
//! [`Verdict::of`] and [`advise`] are pure functions of what was read.

mod advice;
mod atlas;
mod books;
mod cause;
mod ledger;
mod malloc_spans;
mod owners;
mod places;
mod readings;
mod ruby_spans;
mod size;
mod span;
mod stacks;
mod verdict;

pub use advice::{Advice, advise};
pub use atlas::{Area, AreaKind, Atlas, Columns, Misfit, PageUse, Piece, Use};
pub use cause::{Cause, Causes};
pub use ledger::{ArenaAccount, Ledger, MallocAccount, RubyAccount};
pub use owners::{Keeper, OwnerAccount, OwnerKind};
pub use readings::Readings;
pub use size::{Count, Size, percent};
pub use verdict::{Confidence, Verdict};
