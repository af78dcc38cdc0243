//! Compiled regular expressions.
//!
//! `struct re_pattern_buffer` in include/ruby/onigmo.h, the same from 2.7 to 4.1 up to `dmax`. Ruby does not clear it, and
//! fills some of it only for some ways to search: the end of the text that is searched for (`exact_end`), the table of
//! characters (`map`), and two distances (`dmin`, `dmax`).

use std::ops::Range;

use crate::word::word;

/// The bytes used of the program, and those allocated for it (`used` and `alloc`).
const PROGRAM_BYTES: usize = 8;
/// The way to search (`optimize`), after the flag of case folding.
const SEARCH: usize = 96;
/// `ONIG_OPTIMIZE_EXACT_BM_NOT_REV_IC` in regint.h.
const MAX_SEARCH: u64 = 7;
/// The words up to `exact`, and the two that point to tables of numbers (`int_map`; reserved since 4.1).
pub(crate) const POINTERS: [Range<u64>; 2] = [0..144, 408..424];

/// The bytes of a compiled regular expression (`regex_t`) that [`pointers_of_regexp`] looks at.
pub const REGEXP_BYTES: usize = 104;

/// Returns the offsets in a compiled regular expression between which there may be pointers; the other words are
/// characters, numbers, or left over from the memory's earlier owner. `None` if these bytes cannot be a regular
/// expression. `bytes` are its first [`REGEXP_BYTES`].
#[must_use]
pub fn pointers_of_regexp(bytes: &[u8]) -> Option<[Range<u64>; 2]> {
    let halves = |offset| {
        let word = word(bytes, offset);
        (word & u64::from(u32::MAX), word >> 32)
    };
    let (used, allocated) = halves(PROGRAM_BYTES);
    let (_, search) = halves(SEARCH);
    (used <= allocated && search <= MAX_SEARCH).then_some(POINTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regexp_is_recognised_by_its_program_and_its_way_to_search() {
        let bytes = |used: u32, allocated: u32, search: u32| {
            let mut bytes = [0; REGEXP_BYTES];
            bytes[8..12].copy_from_slice(&used.to_le_bytes());
            bytes[12..16].copy_from_slice(&allocated.to_le_bytes());
            bytes[100..104].copy_from_slice(&search.to_le_bytes());
            pointers_of_regexp(&bytes).is_some()
        };
        assert_eq!([bytes(7, 8, 0), bytes(8, 8, 7)], [true; 2]);
        assert_eq!([bytes(9, 8, 0), bytes(8, 8, 8), bytes(8, 8, u32::MAX)], [false; 3]);
    }
}
