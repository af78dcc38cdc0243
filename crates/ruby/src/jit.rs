//! Code that a JIT compiler made (YJIT from 3.1 on, ZJIT from 4.0 on).

use std::ops::Range;

use target::{Address, Backing, Image, Mapping};

use crate::interpreter::Interpreter;

/// A call reaches so far: the compilers reserve their memory within it of the interpreter's text
/// (`rb_yjit_reserve_addr_space` in yjit.c, `alloc_exec_mem` in yjit_asm.c of 3.1).
const REACH: u64 = 1 << 31;
/// Compilers reserve a whole number of MiB.
const UNIT: u64 = 1 << 20;

/// The memory that JIT compilers have for their code; none where it cannot be told for certain.
///
/// From 3.2 on only the beginning of what is reserved can be used, and the rest is protected. While
/// a compiler writes, its memory is writable instead of executable and looks like malloc's: then it
/// is not found.
pub(crate) fn find_code(image: &Image<'_>, interpreter: &Interpreter) -> Vec<Range<Address>> {
    let mappings: Vec<&Mapping> = image.outline.mappings.iter().collect();
    let mut code = Vec::new();
    for (index, mapping) in mappings.iter().enumerate() {
        if !is_code(mapping) || !is_in_reach(&mapping.range, &interpreter.range) {
            continue;
        }
        let reserved = match mappings.get(index + 1) {
            Some(next) if is_rest(next) && next.range.start == mapping.range.end => next.range.end,
            _ if interpreter.is_at_least(3, 2) => continue,
            _ => mapping.range.end,
        };
        let bytes = reserved - mapping.range.start;
        if bytes >= UNIT && bytes.is_multiple_of(UNIT) {
            code.push(mapping.range.clone());
        }
    }
    code
}

fn is_code(mapping: &Mapping) -> bool {
    mapping.readable
        && mapping.executable
        && !mapping.writable
        && !mapping.shared
        && mapping.backing == Backing::Anonymous
}

fn is_rest(mapping: &Mapping) -> bool {
    let locked = !mapping.readable && !mapping.writable && !mapping.executable;
    locked && !mapping.shared && mapping.backing == Backing::Anonymous
}

fn is_in_reach(code: &Range<Address>, interpreter: &Range<Address>) -> bool {
    code.end - interpreter.start < REACH && interpreter.end - code.start < REACH
}

#[cfg(test)]
mod tests {
    use super::*;
    use target::{Mappings, Memory, Outline, Source};

    struct Nothing;
    impl Memory for Nothing {
        fn read(&self, _: Address, _: &mut [u8]) -> usize {
            0
        }
    }
    impl Source for Nothing {}

    const LIBRUBY: u64 = 0x7f00_0000_0000;

    fn found(version: &str, parts: &[(u64, u64, bool)]) -> usize {
        let mappings = parts.iter().map(|&(start, bytes, executable)| Mapping {
            readable: executable,
            writable: false,
            executable,
            ..Mapping::anonymous(Address(start)..Address(start + bytes))
        });
        let outline = Outline { mappings: Mappings::new(mappings.collect()), ..Outline::default() };
        let image = Image::new(outline, Nothing);
        let interpreter =
            Interpreter::for_tests(version, Address(LIBRUBY)..Address(LIBRUBY + 0x40_0000));
        find_code(&image, &interpreter).len()
    }

    #[test]
    fn a_reservation_of_whole_mib_in_reach_is_code() {
        let near = LIBRUBY + 0x100_0000;
        assert_eq!(
            found("3.4.5", &[(near, 0x5000, true), (near + 0x5000, (64 << 20) - 0x5000, false)]),
            1
        );
        assert_eq!(found("3.4.5", &[(near, 0x5000, true), (near + 0x5000, 64 << 20, false)]), 0);
        assert_eq!(
            found("3.4.5", &[(near, 0x5000, true), (near + 0x6000, (64 << 20) - 0x5000, false)]),
            0
        );
        let far = LIBRUBY + (3 << 30);
        assert_eq!(
            found("3.4.5", &[(far, 0x5000, true), (far + 0x5000, (64 << 20) - 0x5000, false)]),
            0
        );
    }

    #[test]
    fn up_to_3_1_all_of_a_reservation_is_code() {
        let near = LIBRUBY - (512 << 20);
        assert_eq!(found("3.1.2", &[(near, 256 << 20, true)]), 1);
        assert_eq!(found("3.4.5", &[(near, 256 << 20, true)]), 0);
        assert_eq!(found("3.1.2", &[(near, 0x3000, true)]), 0);
    }
}
