//! The names of a constant such as `Billing::Rates::TABLE`, in bytecode.
//!
//! `segments` of `iseq_inline_constant_cache` (vm_core.h, from 3.2 on) are their IDs, and 0 behind them. An ID (id.h, symbol.h) is a
//! number above those of operators, with its scope and whether its symbol is never freed in four bits.

use crate::word::word;

/// The bytes of a path that are read: of more names than a program writes.
pub const MAX_CONSTANT_PATH_BYTES: usize = 8 * 8;

/// `ID_CONST`, and the bit `ID_STATIC_SYM`, which an ID may have.
const CONSTANT: u64 = 0xa;
const STATIC: u64 = 1;
const SCOPE: u64 = 0xf;
/// The IDs of operators, one of which (`idNULL`) begins a path such as `::Rates`, are below.
const FIRST_NAME: u64 = 0xa00;

/// Returns the size of the path that begins with these bytes, with the 0 at its end; `None` if they cannot begin one.
#[must_use]
pub fn constant_path_bytes(bytes: &[u8]) -> Option<usize> {
    let words = || (0..bytes.len() / 8).map(|index| word(bytes, index * 8));
    let names = words().position(|id| id == 0)?;
    let is_name =
        |id: u64| id >= FIRST_NAME && u32::try_from(id).is_ok() && id & SCOPE & !STATIC == CONSTANT;
    let is_operator = |id: u64| id < FIRST_NAME;
    let first = words().next().filter(|_| names > 0)?;
    let begins = is_name(first) || names > 1 && is_operator(first);
    (begins && words().take(names).skip(1).all(is_name)).then_some((names + 1) * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_constants_end_with_zero() {
        let of = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            constant_path_bytes(&bytes)
        };
        assert_eq!(of(&[0x101b, 0, 0x7f00_0000_1000]), Some(16));
        assert_eq!(of(&[0x101b, 0x220a, 0, 0x101b]), Some(24));
        assert_eq!(of(&[0x91, 0x101b, 0]), Some(24));
        // Without an end, with a local variable's ID, a count, only an operator, or nothing.
        for words in
            [&[0x101b, 0x220b][..], &[0x1011, 0], &[0x1b, 0], &[0x91, 0], &[0, 0x101b], &[]]
        {
            assert_eq!(of(words), None, "{words:x?}");
        }
        assert_eq!(of(&[1 << 40 | 0x101b, 0]), None);
    }
}
