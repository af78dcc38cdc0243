//! Words of what was read of the target.

/// The word at an offset into `bytes`; 0 where it has none.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}
