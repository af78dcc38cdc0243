//! The singly linked lists of fastbins and thread caches.

use image::{Memory, Unreadable};
use linux::Address;

use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::layout::HEADER;

/// The encoding of the link to the next element.
#[derive(Debug, Clone, Copy)]
enum Linking {
    /// Since 2.32: XORed with the number of its own page ("safe-linking").
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
/// A link is `offset` bytes into its element. `is_member` returns true if an element can be in this list. The
/// encoding is not derived from a version: only one of them leads from member to member to an end.
pub(crate) fn walk(
    memory: &dyn Memory,
    head: Address,
    offset: u64,
    is_member: impl Fn(Address) -> bool,
) -> Result<Vec<Address>, Inconsistency> {
    let follow = |linking| follow(memory, linking, head, offset, &is_member);
    let (protected, problem) = follow(Linking::Protected);
    let Some(problem) = problem else { return Ok(protected) };
    let (plain, plain_inconsistency) = follow(Linking::Plain);
    match plain_inconsistency {
        None => Ok(plain),
        // The encoding that leads further is the right one, so its problem is reported.
        Some(plain_inconsistency) if plain.len() > protected.len() => Err(plain_inconsistency),
        Some(_) => Err(problem),
    }
}

/// Follows a list as far as it leads. Returns its members, and the problem if it does not end properly.
fn follow(
    memory: &dyn Memory,
    linking: Linking,
    head: Address,
    offset: u64,
    is_member: impl Fn(Address) -> bool,
) -> (Vec<Address>, Option<Inconsistency>) {
    let mut members = Vec::new();
    // A circle comes back to a remembered member: the distance between them doubles, so that at last one lies
    // on the circle with a whole round before the next (Brent's algorithm).
    let (mut remembered, mut next_remembered) = (Address(0), 1);
    let mut at = head;
    while at != Address(0) {
        if !at.is_aligned(HEADER) || !is_member(at) {
            let what = "a list of cached chunks contains an address that is no such chunk";
            return (members, Some(Inconsistency::new(at, what)));
        }
        if at == remembered {
            let what = "a list of cached chunks runs in a circle";
            return (members, Some(Inconsistency::new(at, what)));
        }
        members.push(at);
        if members.len() == next_remembered {
            remembered = at;
            next_remembered *= 2;
        }
        match linking.read(memory, at.offset(offset)) {
            Ok(next) => at = next,
            Err(error) => return (members, Some(error.into())),
        }
    }
    (members, None)
}

#[cfg(test)]
mod tests {
    use testkit::SyntheticMemory;

    use super::*;

    const ELEMENTS: [u64; 4] = [0x5000_1230, 0x5000_0010, 0x5009_0450, 0x5000_1010];

    /// A list of all elements whose links are 16 bytes into each; the last link leads to `end`.
    fn list(end: u64, protect: bool) -> SyntheticMemory {
        let mut memory = SyntheticMemory::default();
        for (index, element) in ELEMENTS.iter().enumerate() {
            let (at, next) = (element + 16, ELEMENTS.get(index + 1).copied().unwrap_or(end));
            memory.write_u64(at, if protect { next ^ (at >> 12) } else { next });
        }
        memory
    }

    fn walk_list(memory: &SyntheticMemory) -> Result<Vec<Address>, Inconsistency> {
        walk(memory, Address(ELEMENTS[0]), 16, |at| ELEMENTS.contains(&at.0))
    }

    #[test]
    fn links_of_both_kinds_are_followed() {
        for protect in [false, true] {
            let walked = walk_list(&list(0, protect)).unwrap();
            assert_eq!(walked, ELEMENTS.map(Address));
        }
        assert_eq!(walk(&list(0, true), Address(0), 16, |_| true), Ok(Vec::new()));
    }

    #[test]
    fn lists_that_do_not_end_are_inconsistent() {
        for protect in [false, true] {
            for end in ELEMENTS {
                let problem = walk_list(&list(end, protect)).unwrap_err();
                assert!(ELEMENTS.contains(&problem.at.0));
            }
            let stray = walk_list(&list(0x7777_7770, protect)).unwrap_err();
            assert_eq!(
                stray.message,
                "a list of cached chunks contains an address that is no such chunk"
            );
        }
    }
}
