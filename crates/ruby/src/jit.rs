//! Code that a JIT compiler made (YJIT from 3.1 on, ZJIT from 4.0 on).

use std::ops::Range;

use capture::{Address, Image, Mapping, Memory, PAGE_SIZE};

use crate::interpreter::Interpreter;

/// A call reaches so far: the compilers reserve their memory within it of the interpreter's text
/// (`alloc_exec_mem` in yjit_asm.c of 3.1, `rb_yjit_reserve_addr_space` in yjit.c, from 4.0 on
/// `rb_jit_reserve_addr_space` in jit.c).
const REACH: u64 = 1 << 31;
/// Compilers reserve a whole number of MiB.
const UNIT: u64 = 1 << 20;
/// More mappings than a compiler cuts its memory into: it writes to some pages at a time.
const MOST_PIECES: usize = 1024;
/// What fills memory that has no code yet: an instruction that x86-64 does not have, eight times
/// (`write_byte` in yjit/src/virtualmem.rs and zjit/src/virtualmem.rs).
const FILL: u64 = 0x1e1e_1e1e_1e1e_1e1e;
/// YJIT cuts its memory into pages of 16 KiB, in two halves: so many of the system's are four of them.
const LAST_PAGES: u64 = 16;

/// What a mapping can be of a compiler's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Code that runs.
    Executable,
    /// Pages that the compiler is writing to: executable again when it is done.
    Writable,
    /// The rest of what is reserved, or code that was freed.
    Protected,
}

/// A mapping that can be a part of a compiler's memory.
#[derive(Debug, Clone)]
struct Piece {
    range: Range<Address>,
    part: Part,
}

/// The memory that a JIT compiler has for its code, without the rest of what it reserves; none where
/// it cannot be told for certain.
///
/// A reservation is a whole number of MiB in reach of the interpreter. From 3.2 on its beginning is
/// in use and the rest protected; up to 3.1 all of it is in use. It is told from other memory by
/// being executable or, where all of it is in use or just being written to, by what fills it.
pub(crate) fn find_code(image: &Image<'_>, interpreter: &Interpreter) -> Vec<Range<Address>> {
    let pieces: Vec<Piece> = image.state.mappings.iter().filter_map(Piece::of).collect();
    let runs = || pieces.chunk_by(|one, next| one.range.end == next.range.start);
    // Writable memory before code is the code's only where code alone does not fit.
    [Part::Executable, Part::Writable]
        .into_iter()
        .map(|part| {
            let code = runs().flat_map(|run| {
                let firsts = (0..run.len()).filter(|&at| run[at].part == part);
                firsts.filter_map(|first| code_from(image, interpreter, &run[first..]))
            });
            code.collect::<Vec<_>>()
        })
        .find(|code| !code.is_empty())
        .map(|mut code| {
            code.dedup_by(|next, last| next.start < last.end);
            code
        })
        .unwrap_or_default()
}

/// The code of a reservation that begins with the first of these adjoining pieces, if one does.
fn code_from(
    image: &Image<'_>,
    interpreter: &Interpreter,
    pieces: &[Piece],
) -> Option<Range<Address>> {
    let is = |at: usize, part| pieces.get(at).is_some_and(|piece| piece.part == part);
    let has_code = is(0, Part::Executable) || is(0, Part::Writable) && is(1, Part::Executable);
    let is_new = is(0, Part::Writable) && is(1, Part::Protected);
    let most = match (has_code, is_new) {
        (true, _) => MOST_PIECES,
        (_, true) => 2,
        _ => return None,
    };
    let start = pieces[0].range.start;
    let mut used = start;
    let mut found = pieces.iter().take(most).filter_map(|piece| {
        if piece.part != Part::Protected {
            used = piece.range.end;
        }
        let reserved = start..piece.range.end;
        let bytes = capture::length(&reserved);
        let fits = bytes >= UNIT
            && bytes.is_multiple_of(UNIT)
            && is_in_reach(&reserved, &interpreter.range);
        let has_rest = used < reserved.end || !interpreter.is_at_least(3, 2);
        let proved = || has_code && has_rest || is_filled(image, &(start..used));
        (fits && proved()).then_some((start..used, piece.part))
    });
    let (mut code, _) = found.next()?;
    if !interpreter.is_at_least(3, 2) {
        // A page that is being written to may cut it where a MiB ends: it goes on to where code does.
        let more = found.filter(|(_, part)| *part == Part::Executable);
        code = more.last().map_or(code, |(code, _)| code);
    }
    Some(code)
}

/// Whether one of the last pages ends with what fills memory without code. A piece of code that does
/// not fit any more leaves some of it.
fn is_filled(image: &Image<'_>, used: &Range<Address>) -> bool {
    let ends = (0..LAST_PAGES).map(|page| used.end.before(page * PAGE_SIZE));
    ends.take_while(|&end| end > used.start).any(|end| image.read_u64(end.before(8)) == Ok(FILL))
}

impl Piece {
    fn of(mapping: &Mapping) -> Option<Self> {
        if !mapping.is_private_anonymous() {
            return None;
        }
        let part = match (mapping.readable, mapping.writable, mapping.executable) {
            (true, false, true) => Part::Executable,
            (true, true, false) => Part::Writable,
            (false, false, false) => Part::Protected,
            _ => return None,
        };
        Some(Self { range: mapping.range.clone(), part })
    }
}

fn is_in_reach(code: &Range<Address>, interpreter: &Range<Address>) -> bool {
    code.end - interpreter.start < REACH && interpreter.end - code.start < REACH
}

#[cfg(test)]
mod tests {
    use super::Part::{Executable, Protected, Writable};
    use super::*;
    use capture::{Mappings, ProcessState};
    use testkit::SyntheticMemory;

    const LIBRUBY: u64 = 0x7f00_0000_0000;
    const NEAR: u64 = LIBRUBY + 0x100_0000;
    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;

    fn mapping((start, bytes, part): (u64, u64, Part)) -> Mapping {
        Mapping {
            readable: part != Protected,
            writable: part == Writable,
            executable: part == Executable,
            ..Mapping::anonymous(Address(start)..Address(start + bytes))
        }
    }

    /// Where code is found among these mappings, and its bytes, if the words that end at `filled` are what fills
    /// memory without code.
    fn found_at(version: &str, filled: u64, parts: &[(u64, u64, Part)]) -> Vec<(u64, u64)> {
        let mappings = parts.iter().map(|&part| mapping(part)).collect();
        let state = ProcessState { mappings: Mappings::new(mappings), ..ProcessState::default() };
        let mut memory = SyntheticMemory::default();
        if filled != 0 {
            memory.write_u64(filled - 8, FILL);
        }
        let image = Image::new(state, memory);
        let interpreter =
            Interpreter::for_tests(version, Address(LIBRUBY)..Address(LIBRUBY + 0x40_0000));
        let code = find_code(&image, &interpreter);
        code.iter().map(|it| (it.start.0, capture::length(it))).collect()
    }

    /// The same where each of the mappings adjoins the one before it.
    fn found(version: &str, start: u64, parts: &[(u64, Part)]) -> Vec<(u64, u64)> {
        found_at(version, 0, &adjoining(start, parts))
    }

    fn adjoining(start: u64, parts: &[(u64, Part)]) -> Vec<(u64, u64, Part)> {
        let place = |at: &mut u64, &(bytes, part): &(u64, Part)| {
            *at += bytes;
            Some((*at - bytes, bytes, part))
        };
        parts.iter().scan(start, place).collect()
    }

    #[test]
    fn a_reservation_of_whole_mib_in_reach_is_code() {
        let reserved = [(5 * PAGE, Executable), (64 * MIB - 5 * PAGE, Protected)];
        assert_eq!(found("3.4.5", NEAR, &reserved), [(NEAR, 5 * PAGE)]);
        assert_eq!(found("3.4.5", LIBRUBY + (3 << 30), &reserved), [], "out of reach");
        assert_eq!(found("3.4.5", NEAR, &[(5 * PAGE, Executable), (64 * MIB, Protected)]), []);
        let apart =
            [(NEAR, 5 * PAGE, Executable), (NEAR + 6 * PAGE, 64 * MIB - 5 * PAGE, Protected)];
        assert_eq!(found_at("3.4.5", 0, &apart), []);
    }

    #[test]
    fn up_to_3_1_all_of_a_reservation_is_code() {
        let near = LIBRUBY - 512 * MIB;
        assert_eq!(found("3.1.2", near, &[(256 * MIB, Executable)]), [(near, 256 * MIB)]);
        assert_eq!(found("3.4.5", near, &[(256 * MIB, Executable)]), []);
        assert_eq!(found("3.1.2", near, &[(3 * PAGE, Executable)]), []);
    }

    #[test]
    fn code_that_is_being_written_to_is_code() {
        let all = [(NEAR, 9 * PAGE)];
        let rest = (48 * MIB - 9 * PAGE, Protected);
        for parts in [
            vec![(PAGE, Writable), (8 * PAGE, Executable), rest],
            vec![(3 * PAGE, Executable), (PAGE, Writable), (5 * PAGE, Executable), rest],
            vec![(8 * PAGE, Executable), (PAGE, Writable), rest],
            vec![(2 * PAGE, Writable), (4 * PAGE, Executable), (3 * PAGE, Writable), rest],
        ] {
            assert_eq!(found("3.2.0", NEAR, &parts), all, "{parts:?}");
        }
        let in_3_1 = [(8 * PAGE, Executable), (PAGE, Writable), (MIB - 9 * PAGE, Executable)];
        assert_eq!(found("3.1.2", NEAR, &in_3_1), [(NEAR, MIB)]);
    }

    /// All of a reservation is in use up to 3.1: one of 4 MiB was taken for two, or cut short.
    #[test]
    fn code_that_is_written_to_where_a_mib_ends_is_one() {
        for before in [MIB - PAGE, MIB, 2 * MIB - PAGE, 3 * MIB, 4 * MIB - PAGE] {
            let rest = 4 * MIB - PAGE - before;
            let mut parts = vec![(before, Executable), (PAGE, Writable), (rest, Executable)];
            parts.retain(|(bytes, _)| *bytes > 0);
            assert_eq!(found("3.1.2", NEAR, &parts), [(NEAR, 4 * MIB)], "{parts:?}");
        }
    }

    #[test]
    fn code_of_which_all_is_being_written_to_is_known_by_what_fills_its_end() {
        let parts = adjoining(NEAR, &[(4 * PAGE, Writable), (64 * MIB - 4 * PAGE, Protected)]);
        assert_eq!(found_at("3.4.5", NEAR + 4 * PAGE, &parts), [(NEAR, 4 * PAGE)]);
        // A heap of malloc's looks the same.
        assert_eq!(found_at("3.4.5", 0, &parts), []);
    }

    #[test]
    fn a_reservation_without_a_rest_is_known_by_what_fills_its_pages() {
        let parts = [(NEAR, MIB, Executable)];
        assert_eq!(found_at("3.4.5", NEAR + MIB, &parts), [(NEAR, MIB)]);
        assert_eq!(found_at("4.0.5", NEAR + MIB - 3 * PAGE, &parts), [(NEAR, MIB)]);
        assert_eq!(found_at("3.4.5", 0, &parts), [], "it may be another library's");
    }

    #[test]
    fn code_that_was_freed_is_a_hole_in_what_is_in_use() {
        let parts = [
            (8 * PAGE, Executable),
            (4 * PAGE, Protected),
            (8 * PAGE, Executable),
            (48 * MIB - 20 * PAGE, Protected),
        ];
        assert_eq!(found("3.3.8", NEAR, &parts), [(NEAR, 20 * PAGE)]);
    }

    #[test]
    fn memory_that_adjoins_code_is_none() {
        let before = [
            (MIB, Protected),
            (MIB, Writable),
            (2 * MIB, Writable),
            (5 * PAGE, Executable),
            (48 * MIB - 5 * PAGE, Protected),
            (MIB, Writable),
            (48 * MIB, Protected),
        ];
        let start = NEAR + 4 * MIB;
        assert_eq!(found("3.3.8", NEAR, &before), [(start, 5 * PAGE)]);
    }
}
