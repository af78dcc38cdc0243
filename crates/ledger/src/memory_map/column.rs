//! A sequence of numbers, with seven bits in each byte, the lowest first (LEB128).

/// Adds a number.
pub(crate) fn push(column: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        column.push(number as u8 | 0x80);
        number >>= 7;
    }
    column.push(number as u8);
}

/// Takes the first number; `None` at the end, and if there is no valid number (of at most ten bytes).
pub(crate) fn take(column: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = column.split_first()?;
        *column = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(numbers in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut column = Vec::new();
            numbers.iter().for_each(|&number| push(&mut column, number));
            let mut rest = column.as_slice();
            for number in numbers {
                prop_assert_eq!(take(&mut rest), Some(number));
            }
            prop_assert_eq!(take(&mut rest), None);
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut rest = bytes.as_slice();
            while take(&mut rest).is_some() {}
            prop_assert!(rest.is_empty() || rest.len() < bytes.len());
        }
    }
}
