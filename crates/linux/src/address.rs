use std::fmt;
use std::ops::{Range, Sub};

/// An address in the target, never one of ours.
///
/// Arithmetic wraps or saturates, as each method documents, and never panics: the operands come from foreign memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address `bytes` further on, wrapping at the end of the address space.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Returns the address `bytes` before this one, wrapping at zero.
    #[must_use]
    pub const fn before(self, bytes: u64) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }

    /// Returns the nearest multiple of `to` (a power of two) at or below this address.
    #[must_use]
    pub const fn align_down(self, to: u64) -> Self {
        Self(self.0 & !(to - 1))
    }

    /// Returns the nearest multiple of `to` (a power of two) at or above this address, saturating.
    #[must_use]
    pub const fn align_up(self, to: u64) -> Self {
        Self(self.0.saturating_add(to - 1) & !(to - 1))
    }

    /// Returns true if this address is a multiple of `to`, a power of two.
    #[must_use]
    pub const fn is_aligned(self, to: u64) -> bool {
        self.0 & (to - 1) == 0
    }
}

/// The number of bytes from the right address up to the left one; 0 if the left one is lower.
impl Sub for Address {
    type Output = u64;

    fn sub(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the length of `range` in bytes; 0 if it is empty or inverted.
#[must_use]
pub fn length(range: &Range<Address>) -> u64 {
    range.end - range.start
}

/// Returns the part that `a` and `b` share; an empty range (start == end) if they share none.
#[must_use]
pub fn intersection(a: &Range<Address>, b: &Range<Address>) -> Range<Address> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// Returns the range that contains `at`. `ranges` are disjoint and in ascending order.
#[must_use]
pub fn range_at(ranges: &[Range<Address>], at: Address) -> Option<&Range<Address>> {
    let after = ranges.partition_point(|range| range.end <= at);
    ranges.get(after).filter(|range| range.start <= at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_on_hostile_values_never_panics() {
        let top = Address(u64::MAX);
        assert_eq!(top.offset(1), Address(0));
        assert_eq!(Address(0).before(1), top);
        assert_eq!(top.align_up(4096), Address(!4095));
        assert_eq!(Address(1) - Address(2), 0);
        assert_eq!(length(&(Address(5)..Address(3))), 0);
    }

    #[test]
    fn a_range_is_found_as_by_looking_at_all() {
        let ranges: Vec<_> =
            [(2, 4), (4, 5), (8, 8), (9, 12)].map(|(a, b)| Address(a)..Address(b)).into();
        for at in (0..14).map(Address) {
            assert_eq!(range_at(&ranges, at), ranges.iter().find(|it| it.contains(&at)), "{at}");
        }
    }

    #[test]
    fn ranges_apart_share_nothing() {
        let a = Address(0)..Address(10);
        let b = Address(20)..Address(30);
        assert_eq!(length(&intersection(&a, &b)), 0);
        assert_eq!(length(&intersection(&a, &(Address(5)..Address(30)))), 5);
    }
}
