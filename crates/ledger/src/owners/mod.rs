//! Who holds malloc'ed memory: the words of everything that may hold a pointer are read while the
//! target stands ([`pointers`]), and followed afterwards ([`trace`]). What comes out is a cause
//! for each chunk in use, an account for each owner ([`accounts`]), and who keeps its objects
//! alive ([`retainers`]).

mod accounts;
mod bits;
mod edges;
mod jit;
mod pointers;
mod reader;
mod regions;
mod retainers;
mod roster;
mod trace;

pub(crate) use accounts::{AccountIndex, Owners};
pub use accounts::{OwnerAccount, OwnerKind};
pub(crate) use pointers::Pointers;
pub use retainers::Retainer;
pub(crate) use roster::Owner;
