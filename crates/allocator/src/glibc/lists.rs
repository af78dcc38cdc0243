//! Lists that glibc links one way: those of fastbins and of threads' caches.

use capture::{Address, Memory, Unreadable};

use crate::glibc::layout::HEADER;
use crate::glibc::stretch::Broken;

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
    let follow = |linking| follow(memory, linking, head, offset, &is_member);
    let (protected, broken) = follow(Linking::Protected);
    let Some(broken) = broken else { return Ok(protected) };
    let (plain, plainly_broken) = follow(Linking::Plain);
    match plainly_broken {
        None => Ok(plain),
        // The way that leads further is the right one, and its complaint the one to hear.
        Some(plainly_broken) if plain.len() > protected.len() => Err(plainly_broken),
        Some(_) => Err(broken),
    }
}

/// Follows a list as far as it leads, and says why it leads no further where that is no end.
fn follow(
    memory: &dyn Memory,
    linking: Linking,
    head: Address,
    offset: u64,
    is_member: impl Fn(Address) -> bool,
) -> (Vec<Address>, Option<Broken>) {
    let mut members = Vec::new();
    // A circle comes back to a member that is remembered; those are ever further apart, so one
    // will lie on the circle and be as far from the next as the circle is long.
    let (mut remembered, mut next_remembered) = (Address(0), 1);
    let mut at = head;
    while at != Address(0) {
        if !at.is_aligned(HEADER) || !is_member(at) {
            let what = "a list of cached chunks names what is no such chunk";
            return (members, Some(Broken::new(at, what)));
        }
        if at == remembered {
            let what = "a list of cached chunks runs in a circle";
            return (members, Some(Broken::new(at, what)));
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

    /// A list of all elements whose links are 16 bytes into each; the last one leads to `end`.
    fn list(end: u64, protect: bool) -> SyntheticMemory {
        let mut memory = SyntheticMemory::default();
        for (index, element) in ELEMENTS.iter().enumerate() {
            let (at, next) = (element + 16, ELEMENTS.get(index + 1).copied().unwrap_or(end));
            memory.write_u64(at, if protect { next ^ (at >> 12) } else { next });
        }
        memory
    }

    fn walk_list(memory: &SyntheticMemory) -> Result<Vec<Address>, Broken> {
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
    fn lists_that_do_not_end_are_broken() {
        for protect in [false, true] {
            for end in ELEMENTS {
                let broken = walk_list(&list(end, protect)).unwrap_err();
                assert!(ELEMENTS.contains(&broken.at.0));
            }
            let stray = walk_list(&list(0x7777_7770, protect)).unwrap_err();
            assert_eq!(stray.what, "a list of cached chunks names what is no such chunk");
        }
    }
}
