//! Words in bytes that were read from the target.

/// The word at an offset into `bytes`; 0 if it lies beyond their end.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

/// The words of `bytes`, from the first on.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}
