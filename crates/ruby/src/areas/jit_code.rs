//! The code of a JIT compiler (YJIT from 3.1 on, ZJIT from 4.0 on).

use std::ops::Range;

use image::{Image, Memory};
use linux::{Address, MIN_PAGE_SIZE, Mapping};

use crate::interpreter::Interpreter;

/// Compilers reserve a whole number of MiB.
const UNIT: u64 = 1 << 20;
/// More mappings than a compiler splits its memory into: it writes to a few pages at a time.
const MAX_SEGMENTS: usize = 1024;
/// `HEAP_MAX_SIZE` of malloc/arena.c in glibc, and the alignment of its heaps: a writable beginning, and a protected rest.
const GLIBC_HEAP: u64 = 64 << 20;
/// The filling of memory that has no code yet: an opcode that x86-64 does not define, eight times
/// (`write_byte` in yjit/src/virtualmem.rs and zjit/src/virtualmem.rs).
const FILL: u64 = 0x1e1e_1e1e_1e1e_1e1e;
/// The last units of [`MIN_PAGE_SIZE`] of the code that are searched for the filling. YJIT divides its memory into pages
/// of 16 KiB, each in two halves; this is four of them.
const LAST_PAGES: u64 = 16;

/// The use of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Code that runs.
    Executable,
    /// Pages that the compiler is writing to; they become executable again afterwards.
    Writable,
    /// The rest of the reservation, or code that was freed.
    Protected,
}

/// A mapping that may be a part of a compiler's memory.
#[derive(Debug, Clone)]
struct Segment {
    range: Range<Address>,
    usage: Use,
}

/// The memory that a JIT compiler has for its code, without the rest of its reservation; none if it
/// is not recognized.
///
/// A reservation is a whole number of MiB in reach of the interpreter. From 3.2 on its beginning is
/// in use and the rest protected, by which it differs from other executable memory, such as the closures of libffi.
/// If all of it is in use or being written to, as it is up to 3.1, the filling identifies it.
pub(crate) fn find(image: &Image<'_>, interpreter: &Interpreter) -> Vec<Range<Address>> {
    let segments: Vec<Segment> = image.state.mappings.iter().filter_map(Segment::of).collect();
    let runs = || segments.chunk_by(|one, next| one.range.end == next.range.start);
    // Writable memory before code belongs to it only if the code alone does not fit.
    [Use::Executable, Use::Writable]
        .into_iter()
        .map(|usage| {
            let code = runs().flat_map(|run| {
                let firsts = (0..run.len()).filter(|&at| run[at].usage == usage);
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

/// The code of a reservation that begins with the first of these adjoining segments, if one does.
fn code_from(
    image: &Image<'_>,
    interpreter: &Interpreter,
    segments: &[Segment],
) -> Option<Range<Address>> {
    let is = |at: usize, usage| segments.get(at).is_some_and(|segment| segment.usage == usage);
    let has_code = is(0, Use::Executable) || is(0, Use::Writable) && is(1, Use::Executable);
    let is_new = is(0, Use::Writable) && is(1, Use::Protected);
    let most = match (has_code, is_new) {
        (true, _) => MAX_SEGMENTS,
        (_, true) => 2,
        _ => return None,
    };
    let start = segments[0].range.start;
    let mut used = start;
    let mut found = segments.iter().take(most).filter_map(|segment| {
        if segment.usage != Use::Protected {
            used = segment.range.end;
        }
        let reserved = start..segment.range.end;
        let bytes = linux::length(&reserved);
        let fits = bytes >= UNIT
            && bytes.is_multiple_of(UNIT)
            && is_in_reach(&reserved, &interpreter.range, image.state.machine.cpu.jit_reach());
        let has_rest = used < reserved.end;
        let is_reserved = has_code
            && has_rest
            && interpreter.reserves_code()
            && !ends_with_glibc_heap(segments, reserved.end);
        let proved = || is_reserved || is_filled(image, &(start..used));
        (fits && proved()).then_some((start..used, segment.usage))
    });
    let (mut code, _) = found.next()?;
    if !interpreter.reserves_code() {
        // A page that is being written to may split it where a MiB ends: it extends to the last code.
        let more = found.filter(|(_, usage)| *usage == Use::Executable);
        code = more.last().map_or(code, |(code, _)| code);
    }
    Some(code)
}

/// Returns true if the rest of a reservation that ends at `end` is that of a heap of glibc's, which happens to adjoin other executable
/// memory, such as closures of libffi.
fn ends_with_glibc_heap(segments: &[Segment], end: Address) -> bool {
    let start = end.0.saturating_sub(GLIBC_HEAP);
    // It may adjoin a heap that is full: then both are one mapping.
    let begins_in = |it: &Segment| it.usage == Use::Writable && it.range.contains(&Address(start));
    end.is_aligned(GLIBC_HEAP) && segments.iter().skip(1).take(MAX_SEGMENTS).any(begins_in)
}

/// Returns true if one of the last pages ends with the filling, which remains where the next block of
/// code did not fit.
fn is_filled(image: &Image<'_>, used: &Range<Address>) -> bool {
    let ends = (0..LAST_PAGES).map(|page| used.end.before(page * MIN_PAGE_SIZE));
    ends.take_while(|&end| end > used.start).any(|end| image.read_u64(end.before(8)) == Ok(FILL))
}

impl Segment {
    fn of(mapping: &Mapping) -> Option<Self> {
        if !mapping.is_private_anonymous() {
            return None;
        }
        let usage = match (mapping.readable, mapping.writable, mapping.executable) {
            (true, false, true) => Use::Executable,
            (true, true, false) => Use::Writable,
            (false, false, false) => Use::Protected,
            _ => return None,
        };
        Some(Self { range: mapping.range.clone(), usage })
    }
}

fn is_in_reach(code: &Range<Address>, interpreter: &Range<Address>, reach: u64) -> bool {
    code.end - interpreter.start < reach && interpreter.end - code.start < reach
}

#[cfg(test)]
mod tests {
    use super::Use::{Executable, Protected, Writable};
    use super::*;
    use image::ProcessState;
    use linux::Mappings;
    use testkit::SyntheticMemory;

    const LIBRUBY: u64 = 0x7f00_0000_0000;
    const NEAR: u64 = LIBRUBY + 0x100_0000;
    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;

    fn mapping((start, bytes, part): (u64, u64, Use)) -> Mapping {
        Mapping {
            readable: part != Protected,
            writable: part == Writable,
            executable: part == Executable,
            ..Mapping::anonymous(Address(start)..Address(start + bytes))
        }
    }

    /// The code that is found among these mappings, as addresses and bytes, if the word that ends at
    /// `filled` is the filling.
    fn found_at(version: &str, filled: u64, parts: &[(u64, u64, Use)]) -> Vec<(u64, u64)> {
        let mappings = parts.iter().map(|&part| mapping(part)).collect();
        let state = ProcessState { mappings: Mappings::new(mappings), ..ProcessState::default() };
        let mut memory = SyntheticMemory::default();
        if filled != 0 {
            memory.write_u64(filled - 8, FILL);
        }
        let image = Image::new(state, memory);
        let interpreter =
            Interpreter::for_tests(version, Address(LIBRUBY)..Address(LIBRUBY + 0x40_0000));
        let code = find(&image, &interpreter);
        code.iter().map(|it| (it.start.0, linux::length(it))).collect()
    }

    /// The same if each of the mappings adjoins the one before it.
    fn found(version: &str, start: u64, parts: &[(u64, Use)]) -> Vec<(u64, u64)> {
        found_at(version, 0, &adjoining(start, parts))
    }

    fn adjoining(start: u64, parts: &[(u64, Use)]) -> Vec<(u64, u64, Use)> {
        let place = |at: &mut u64, &(bytes, part): &(u64, Use)| {
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
        let all = [(near, 256 * MIB, Executable)];
        assert_eq!(found_at("3.1.2", near + 256 * MIB, &all), [(near, 256 * MIB)]);
        assert_eq!(found("3.4.5", near, &[(256 * MIB, Executable)]), []);
        assert_eq!(found("3.1.2", near, &[(3 * PAGE, Executable)]), []);
    }

    /// Closures of libffi were code of a JIT compiler, if a whole number of MiB of them adjoined.
    #[test]
    fn executable_memory_of_others_is_no_code() {
        let closures = [(68 * PAGE, Executable), (4 * PAGE, Writable)].repeat(64);
        // A heap of glibc's behind them looks like the rest of a reservation.
        let heap_start = LIBRUBY + GLIBC_HEAP;
        let heap = [(33 * PAGE, Writable), (GLIBC_HEAP - 33 * PAGE, Protected)];
        let with_heap = [&[(8 * MIB, Executable)], &heap[..]].concat();
        let with_two = [
            (8 * MIB, Executable),
            (GLIBC_HEAP + 33 * PAGE, Writable),
            (GLIBC_HEAP - 33 * PAGE, Protected),
        ];
        for version in ["3.1.2", "3.4.5"] {
            assert_eq!(found(version, NEAR, &closures), [], "{version}");
            assert_eq!(found(version, heap_start - 8 * MIB, &with_heap), [], "{version}");
            assert_eq!(found(version, heap_start - 8 * MIB, &with_two), [], "{version}");
        }
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
        let in_3_1 = adjoining(
            NEAR,
            &[(8 * PAGE, Executable), (PAGE, Writable), (MIB - 9 * PAGE, Executable)],
        );
        assert_eq!(found_at("3.1.2", NEAR + MIB, &in_3_1), [(NEAR, MIB)]);
    }

    /// All of a reservation is in use up to 3.1: one of 4 MiB was taken for two, or cut short.
    #[test]
    fn code_that_is_written_to_where_a_mib_ends_is_one() {
        for before in [MIB - PAGE, MIB, 2 * MIB - PAGE, 3 * MIB, 4 * MIB - PAGE] {
            let rest = 4 * MIB - PAGE - before;
            let mut parts = vec![(before, Executable), (PAGE, Writable), (rest, Executable)];
            parts.retain(|(bytes, _)| *bytes > 0);
            let parts = adjoining(NEAR, &parts);
            assert_eq!(found_at("3.1.2", NEAR + 4 * MIB, &parts), [(NEAR, 4 * MIB)], "{parts:?}");
        }
    }

    #[test]
    fn code_of_which_all_is_being_written_to_is_known_by_what_fills_its_end() {
        let parts = adjoining(NEAR, &[(4 * PAGE, Writable), (64 * MIB - 4 * PAGE, Protected)]);
        assert_eq!(found_at("3.4.5", NEAR + 4 * PAGE, &parts), [(NEAR, 4 * PAGE)]);
        // One of malloc's heaps looks the same.
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
