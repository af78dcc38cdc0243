//! Files of snapshots: they are read back as written, and all others are rejected.

use formats::{FORMAT, READ_FORMATS, Report, Snapshot, SnapshotError};
use ledger::{Area, AreaKind, Columns, MapRoot, MapRoots, MemoryMap, PageUse};
use linux::Address;
use proptest::prelude::*;

/// A number in the encoding of columns, written for the test: seven bits a byte, the lowest first.
fn number(column: &mut Vec<u8>, number: u64) {
    let digits: Vec<u8> = (0..10).map(|digit| (number >> (7 * digit) & 0x7f) as u8).collect();
    let last = digits.iter().rposition(|&digit| digit > 0).unwrap_or(0);
    column.extend(digits[..last].iter().map(|digit| digit | 0x80));
    column.push(digits[last]);
}

/// An area of one page and another one: a chunk in use, a free one, and two objects of an owner. A third one has the other
/// resident pages.
fn snapshot() -> Snapshot {
    snapshot_with_pages_of(4096)
}

fn snapshot_with_pages_of(page_size: u64) -> Snapshot {
    let mut report: Report = serde_json::from_str(include_str!("burst.json")).unwrap();
    let rest = report.process.rss_bytes % page_size;
    report.process.rss_bytes -= rest;
    report.causes.iter_mut().max_by_key(|row| row.bytes).unwrap().bytes -= rest;
    let mut columns = Columns::default();
    for size in [page_size - 96, 96, 40, 40, page_size - 80] {
        number(&mut columns.sizes, size / 8);
    }
    columns.uses = vec![2, 3, 7, 8, 10];
    columns.owners = vec![1, 2, 0];
    columns.pages = vec![1 << 3 | 1, 1 << 3];
    let others = report.process.rss_bytes / page_size - 1;
    number(&mut columns.pages, others << 3 | 1);
    let runs = columns.pages.len();
    let area = |start: u64, length: u64, kind, parts: [std::ops::Range<usize>; 4], blocks| {
        let [sizes, uses, owners, pages] = parts;
        let range = Address(start)..Address(start + length * page_size);
        Area { range, kind, name: String::new(), blocks, sizes, uses, owners, pages }
    };
    let areas = vec![
        area(0x10_0000, 1, AreaKind::Arena(0), [0..3, 0..2, 0..1, 0..1], 2),
        area(0x20_0000, 1, AreaKind::HeapPages, [3..7, 2..5, 1..3, 1..2], 3),
        area(0x30_0000, others, AreaKind::Anonymous, [7..7, 5..5, 3..3, 2..runs], 0),
    ];
    let roots = vec![MapRoot { name: "Cache::STORE".into(), bytes: 40 }];
    let roots = MapRoots { roots, of_objects: vec![2, 1] };
    Snapshot { report, memory_map: MemoryMap { page_size, areas, columns, roots } }
}

/// Snapshots of machines with pages of 4 KiB do not state the size, as those of earlier releases.
#[test]
fn pages_of_each_size_come_back() {
    for page_size in [4096, 16_384, 65_536] {
        let snapshot = snapshot_with_pages_of(page_size);
        let owners = snapshot.report.owners.as_ref().unwrap().len();
        assert_eq!(snapshot.memory_map.check(owners), Ok(()), "{page_size}");
        let read = Snapshot::from_bytes(&snapshot.to_bytes()).unwrap();
        assert_eq!(read, snapshot);
        assert_eq!(read.memory_map.page_size, page_size);
    }
    let impossible = Snapshot::from_bytes(&snapshot_with_pages_of(8192).to_bytes());
    assert!(matches!(impossible, Err(SnapshotError::InvalidSection { .. })), "{impossible:?}");
}

#[test]
fn what_is_written_comes_back() {
    let snapshot = snapshot();
    assert_eq!(snapshot.memory_map.check(snapshot.report.owners.as_ref().unwrap().len()), Ok(()));
    let bytes = snapshot.to_bytes();
    assert!(Snapshot::begins(&bytes));
    assert_eq!(Snapshot::from_bytes(&bytes).unwrap(), snapshot);
    assert_eq!(Snapshot::from_bytes(&bytes).unwrap().to_bytes(), bytes);
}

/// The bytes with a correct checksum, as an attacker would write it.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len().saturating_sub(4);
    bytes.truncate(end);
    let checksum = crc32fast::hash(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// The fuzzer found a duration whose last digit changed.
#[test]
fn a_duration_is_read_exactly_as_it_was_written() {
    let mut snapshot = snapshot();
    snapshot.report.capture.elapsed_ms = 1.353_328_373_629_409_1e-306;
    assert_eq!(Snapshot::from_bytes(&snapshot.to_bytes()).unwrap(), snapshot);
}

#[test]
fn each_way_of_being_no_snapshot_is_told_from_the_others() {
    let whole = snapshot().to_bytes();
    let error = |bytes: &[u8]| Snapshot::from_bytes(bytes).unwrap_err();
    assert!(matches!(error(b""), SnapshotError::Empty));
    assert!(matches!(error(b"\x7fELF and more"), SnapshotError::Foreign));
    assert!(matches!(error(&whole[..whole.len() - 1]), SnapshotError::Damaged));
    for version in [READ_FORMATS.start() - 1, FORMAT + 1] {
        let mut other = whole.clone();
        other[8] = version as u8;
        assert!(matches!(error(&other), SnapshotError::OtherVersion(it) if it == version));
    }
    let without_sections = sealed(whole[..16].to_vec());
    assert!(matches!(
        error(&without_sections),
        SnapshotError::InvalidSection { name: "report", .. }
    ));
}

#[test]
fn areas_that_do_not_fit_together_are_refused() {
    type Change = fn(&mut Snapshot);
    let changes: [(&str, Change); 11] = [
        ("an owner that is none", |it| it.memory_map.columns.owners[0] = 99),
        ("a use that is none", |it| it.memory_map.columns.uses[0] = 77),
        ("blocks that do not reach the end", |it| it.memory_map.columns.sizes[2] -= 1),
        ("pages that do not reach the end", |it| it.memory_map.columns.pages[0] = 1),
        ("areas that overlap", |it| {
            it.memory_map.areas[1].range = it.memory_map.areas[0].range.clone()
        }),
        ("an arena that is none", |it| it.memory_map.areas[0].kind = AreaKind::Arena(1000)),
        ("bytes that no area has", |it| it.memory_map.columns.pages.push(4)),
        ("a root that is none", |it| it.memory_map.roots.of_objects[0] = 3),
        ("objects without a number", |it| it.memory_map.roots.of_objects.truncate(1)),
        ("roots of no objects", |it| it.memory_map.roots.of_objects.clear()),
        ("a number that does not end", |it| it.memory_map.columns.pages[1] = 0xff),
    ];
    for (what, change) in changes {
        let mut snapshot = snapshot();
        change(&mut snapshot);
        let error = Snapshot::from_bytes(&snapshot.to_bytes());
        assert!(
            matches!(
                error,
                Err(SnapshotError::InconsistentMap(_)
                    | SnapshotError::InvalidSection { name: "areas", .. })
            ),
            "{what}: {error:?}"
        );
    }
}

/// A section that unpacks to far more than its stated size takes no more memory than is allowed: here, 3 GB of zeros.
#[test]
fn a_file_that_unpacks_to_gigabytes_is_refused() {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let zeros = vec![0_u8; 1 << 20];
    for _ in 0..3 << 10 {
        encoder.write_all(&zeros).unwrap();
    }
    let packed = encoder.finish().unwrap();
    let mut bytes = snapshot().to_bytes()[..12].to_vec();
    bytes.extend(b"report\0\0");
    bytes.extend((packed.len() as u64).to_le_bytes());
    bytes.extend(packed);
    bytes.extend([0; 4]);
    assert!(matches!(
        Snapshot::from_bytes(&sealed(bytes)),
        Err(SnapshotError::InvalidSection { name: "report", .. })
    ));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Snapshot::from_bytes(&bytes);
        let mut begun = b"\x8brbloat\n\x03\0\0\0".to_vec();
        begun.extend(bytes);
        let _ = Snapshot::from_bytes(&sealed(begun));
    }

    #[test]
    fn a_file_that_was_altered_is_refused(
        at in any::<prop::sample::Index>(), to in any::<u8>(), end in any::<prop::sample::Index>()
    ) {
        let whole = snapshot().to_bytes();
        let mut bytes = whole.clone();
        let at = at.index(bytes.len());
        bytes[at] = to;
        prop_assert_eq!(Snapshot::from_bytes(&bytes).is_ok(), bytes == whole);
        prop_assert!(Snapshot::from_bytes(&whole[..end.index(whole.len())]).is_err());
    }

    /// Columns of any bytes, in a file with a correct checksum. If the columns are accepted, they can be drawn.
    #[test]
    fn columns_of_any_bytes_are_refused_or_can_be_drawn(
        changes in prop::collection::vec((0..5_usize, any::<prop::sample::Index>(), any::<u8>()), 1..6),
        blocks in 0_u64..6, pages in 0_u64..4
    ) {
        let mut snapshot = snapshot();
        snapshot.memory_map.areas[0].blocks = blocks;
        let end = snapshot.memory_map.areas[0].range.start.offset(pages * 4096);
        snapshot.memory_map.areas[0].range.end = end;
        let Columns { sizes, uses, owners, pages } = &mut snapshot.memory_map.columns;
        let columns = [sizes, uses, owners, pages, &mut snapshot.memory_map.roots.of_objects];
        for (column, at, byte) in changes {
            let index = at.index(columns[column].len());
            columns[column][index] = byte;
        }
        if let Ok(read) = Snapshot::from_bytes(&snapshot.to_bytes()) {
            prop_assert!(render::map_html(&read, render::PageColours::Use).ends_with("</html>"));
            prop_assert!(!render::map_png(&read, render::PageColours::Use).is_empty());
        }
    }
}

/// A class with a line break and an escape sequence in its name forged a line of `rbloat report --fix`.
#[test]
fn no_text_of_a_snapshot_controls_the_terminal() {
    let mut snapshot = snapshot();
    snapshot.report.process.command = "ruby\n\u{1b}[2J".into();
    snapshot.report.owners.as_mut().unwrap()[0].owner = "x\n    \u{1b}[1;32mcurl".into();
    let read = Snapshot::from_bytes(&snapshot.to_bytes()).unwrap().report;
    assert_eq!(read.process.command, "ruby  [2J");
    assert_eq!(read.owners.unwrap()[0].owner, "x      [1;32mcurl");
}

/// A share far above 100 % made a bar that no memory had room for.
#[test]
fn a_report_whose_numbers_do_not_fit_together_is_refused() {
    type Change = fn(&mut Report);
    let changes: [(Change, &str); 9] = [
        (
            |it| it.causes[0].bytes += 1,
            "its causes add up to 288444417 bytes, but RSS is 288444416 bytes",
        ),
        (|it| it.process.rss_bytes = 1, "its causes add up to 288444416 bytes, but RSS is 1 bytes"),
        (|it| it.causes[0].bytes = 1 << 60, "the numbers are too large"),
        (|it| it.causes.push(it.causes[5].clone()), "it lists the cause ruby.jit twice"),
        (|it| it.verdict.bytes = 1 << 40, "the verdict has 1099511627776 bytes"),
        (|it| it.owners.as_mut().unwrap()[0].resident_bytes = Some(1 << 40), "an owner has"),
        (|it| it.malloc.as_mut().unwrap().trim_yield_bytes = 1 << 40, "the yield of a trim has"),
        (
            |it| it.arenas.as_mut().unwrap()[0].address = "0x12 and more".into(),
            "the address of an arena",
        ),
        (|it| it.process.command = "a".repeat(2 << 20), "a string is too long"),
    ];
    for (change, expected) in changes {
        let mut snapshot = snapshot();
        change(&mut snapshot.report);
        let error = Snapshot::from_bytes(&snapshot.to_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("its section \"report\" is invalid: "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_map_with_other_resident_bytes_than_the_report_is_refused() {
    let mut snapshot = snapshot();
    snapshot.memory_map.columns.pages[0] = 1 << 3;
    let error = Snapshot::from_bytes(&snapshot.to_bytes()).unwrap_err().to_string();
    assert_eq!(error, "its report has 288444416 resident bytes, but its map has 288440320");
}

#[test]
fn a_lost_page_is_not_resident() {
    let mut map = snapshot().memory_map;
    let before = map.resident_bytes();
    map.columns.pages[0] = 1 << 3 | 4;
    assert_eq!(map.check(100), Ok(()));
    assert_eq!(map.pages(&map.areas[0]).next().unwrap().1, PageUse::Lost);
    assert_eq!(map.resident_bytes(), before - 4096);
    // No page has the other states.
    map.columns.pages[0] = 1 << 3 | 5;
    assert!(map.check(100).is_err());
}
