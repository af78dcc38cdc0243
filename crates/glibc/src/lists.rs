//! Lists that glibc links one way: those of fastbins and of threads' caches.

use target::{Address, Memory, Unreadable};

use crate::layout::HEADER;
use crate::stretch::Broken;

/// How the link to the next element is stored.
#[derive(Debug, Clone, Copy)]
enum Linking {
    /// Since 2.32: XORed with the number of the page that it is on ("safe-linking").
    Protected,
    /// Up to 2.31.
    Plain,
}

impl Linking {
    /// The address that the link at `at` leads to.
    fn read(self, memory: &dyn Memory, at: Address) -> Result<Address, Unreadable> {
        let stored = memory.read_u64(at)?;
        Ok(Address(match self {
            Self::Protected => stored ^ (at.0 >> 12),
            Self::Plain => stored,
        }))
    }
}

/// Follows a list from its head, which is never protected, to its end, and returns its elements.
///
/// A link is `offset` bytes into its element. `is_member` is asked for each element whether it can
/// be in this list at all. How the list is linked is not derived from a version: only one way
/// leads from member to member to an end.
pub(crate) fn walk(
    memory: &dyn Memory,
    head: Address,
    offset: u64,
    is_member: impl Fn(Address) -> bool,
) -> Result<Vec<Address>, Broken> {
    let walk = |linking| walk_linked(memory, linking, head, offset, &is_member);
    walk(Linking::Protected).or_else(|broken| walk(Linking::Plain).map_err(|_| broken))
}

fn walk_linked(
    memory: &dyn Memory,
    linking: Linking,
    head: Address,
    offset: u64,
    is_member: impl Fn(Address) -> bool,
) -> Result<Vec<Address>, Broken> {
    let mut members = Vec::new();
    // A circle comes back to a member that is remembered; those are ever further apart, so one
    // will lie on the circle and be as far from the next as the circle is long.
    let (mut remembered, mut next_remembered) = (Address(0), 1);
    let mut at = head;
    while at != Address(0) {
        if !at.is_aligned(HEADER) || !is_member(at) {
            return Err(Broken::new(at, "a list of cached chunks names what is no such chunk"));
        }
        if at == remembered {
            return Err(Broken::new(at, "a list of cached chunks runs in a circle"));
        }
        members.push(at);
        if members.len() == next_remembered {
            remembered = at;
            next_remembered *= 2;
        }
        at = linking.read(memory, at.offset(offset))?;
    }
    Ok(members)
}
