//! Blocks of native memory that stay from one snapshot to the next.

use std::ops::Range;

use diagnosis::growth;
use formats::{Confidence, DiffKind, Doubt, Snapshot, Subject};
use ledger::{Area, AreaKind, Cause, Columns, MapRoots, MemoryMap};
use linux::Address;
use render::words::diff_verdict;

use crate::{MIB, grow, look, sessions};

const PAGE: u64 = 4096;
const IN_USE: u8 = 2;
const FREE: u8 = 3;
const RESIDENT: u64 = 1;
const START: u64 = 0x2000_0000;

/// Blocks of one size in some of the places that lie side by side from an address on.
struct Blocks {
    at: u64,
    bytes: u64,
    places: Range<u64>,
}

fn blocks(at: u64, bytes: u64, places: Range<u64>) -> Blocks {
    Blocks { at: START + at * MIB, bytes, places }
}

fn number(column: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        column.push(number as u8 | 0x80);
        number >>= 7;
    }
    column.push(number as u8);
}

/// A snapshot in which these blocks, ascending by address, are the memory of a library, or have another cause.
fn look_at_blocks(hour: u64, cause: Cause, all: &[Blocks]) -> (String, Snapshot) {
    let count = |it: &Blocks| it.places.end - it.places.start;
    let bytes: u64 = all.iter().map(|it| count(it) * it.bytes).sum();
    let mut index = 0;
    let (name, mut snapshot) = look(hour, |report| {
        grow(report, cause.name(), bytes);
        let owners = report.owners.as_mut().unwrap();
        index = owners.len() as u64;
        let mut owner = owners[0].clone();
        owner.owner = "libimage.so.6".into();
        owner.kind = "library".into();
        owner.cause = Some(cause);
        (owner.exclusive_bytes, owner.shared_bytes) = (bytes, 0);
        owner.resident_bytes = Some(bytes);
        owner.kept_by = vec![];
        owners.push(owner);
    });
    let mut columns = Columns::default();
    let (mut at, mut pieces) = (START, 0);
    let mut push = |end: u64, used: u8| {
        if end > at {
            number(&mut columns.sizes, (end - at) / 8);
            columns.uses.push(used);
            if used == IN_USE {
                number(&mut columns.owners, index + 1);
            }
            (at, pieces) = (end, pieces + 1);
        }
    };
    for Blocks { at, bytes, places } in all {
        for place in places.clone() {
            push(at + place * bytes, FREE);
            push(at + (place + 1) * bytes, IN_USE);
        }
    }
    let end = START + 1024 * MIB;
    push(end, FREE);
    number(&mut columns.pages, (end - START) / PAGE * 8 + RESIDENT);
    let area = Area {
        range: Address(START)..Address(end),
        kind: AreaKind::Anonymous,
        name: String::new(),
        blocks: pieces,
        sizes: 0..columns.sizes.len(),
        uses: 0..columns.uses.len(),
        owners: 0..columns.owners.len(),
        pages: 0..columns.pages.len(),
    };
    snapshot.memory_map = MemoryMap {
        areas: vec![area],
        columns,
        roots: MapRoots::default(),
        ..MemoryMap::default()
    };
    (name, snapshot)
}

fn looks<const N: usize>(cause: Cause, of: impl Fn(u64) -> [Blocks; N]) -> Vec<(String, Snapshot)> {
    (1..5).map(|hour| look_at_blocks(hour, cause, &of(hour))).collect()
}

/// The verdict named one of two leaks, and the other was only in a table.
#[test]
fn a_native_leak_is_told_beside_another_leak() {
    let of = |hour: u64| [blocks(0, 2016, 0..hour * 4_000)];
    let mut diff = growth(&looks(Cause::NativeUnreachable, of));
    assert_eq!(diff.verdict.kind, DiffKind::NativeLeak);
    let sentence = "besides, native memory that nothing points to grew by about 15.4 MiB (+8,000 blocks that stay)";
    let is_told =
        |diff: &formats::Diff| diff_verdict(diff).evidence.iter().any(|it| it == sentence);
    assert!(!is_told(&diff));
    diff.verdict.kind = DiffKind::ManagedLeak;
    diff.verdict.subject = Subject::Objects;
    diff.verdict.bytes = 20 * MIB as i64;
    assert!(is_told(&diff), "{:?}", diff_verdict(&diff).evidence);
    // It is little beside this.
    diff.verdict.bytes = 100 * MIB as i64;
    assert!(!is_told(&diff));
}

/// Sessions and their handles are one leak.
#[test]
fn native_memory_behind_the_same_root_is_no_other_leak() {
    let of = |hour: u64| [blocks(0, 2016, 0..hour * 4_000)];
    let mut row = growth(&looks(Cause::NativeUnreachable, of)).kept_native.unwrap().remove(0);
    (row.owner, row.cause) = ("Handle".into(), Cause::NativeHeld);
    let looks: Vec<_> = (1..5)
        .map(|hour| look(hour, |report| sessions(report, hour * 4_000, Some("Cache::STORE"))))
        .collect();
    let mut diff = growth(&looks);
    assert_eq!(diff.verdict.kind, DiffKind::ManagedLeak);
    let mut handles = diff.classes.iter().find(|it| it.name == "Session").unwrap().clone();
    handles.name = "Handle".into();
    diff.kept_native = Some(vec![row]);
    let told = |path: &str| {
        let mut diff = diff.clone();
        let kept_by = Some(path.to_owned());
        diff.classes.push(formats::ClassChange { kept_by, ..handles.clone() });
        let sentence = "besides, native memory of Handle grew by about 15.4 MiB";
        diff_verdict(&diff).evidence.iter().any(|it| it.starts_with(sentence))
    };
    assert!(told("Pool::HANDLES → Array → Handle"));
    assert!(!told("Cache::STORE → Hash → Session → Handle"));
}

/// "Native leak … High confidence", of blocks that are all replaced each second.
#[test]
fn blocks_that_come_and_go_are_no_leak() {
    // A part of the blocks is at new addresses each time.
    let of = |hour: u64| {
        let (few, others) = match hour % 2 {
            0 => (0..4_000 + hour * 1_000, 0..0),
            _ => (0..3_000, 0..1_000 + hour * 1_000),
        };
        [blocks(0, 2016, few), blocks(40, 2016, others)]
    };
    let looks = looks(Cause::NativeGlobal, of);
    let diff = growth(&looks);
    let verdict = &diff.verdict;
    let found = (verdict.kind, verdict.doubt, verdict.confidence);
    let expected = (DiffKind::Growth, Some(Doubt::Turnover), Confidence::Medium);
    assert_eq!(found, expected, "{:?}", diff.kept_native);
    let row = &diff.kept_native.as_ref().unwrap()[0];
    assert_eq!((row.bytes.change, row.grown_bytes), (0, 0), "{row:?}");
    assert_eq!(
        diff_verdict(&diff).summary,
        "Growth: native memory of libimage.so.6 (native.global) grew by 5.8 MiB (1.9 MiB/h), but blocks come and go: of 7,000 blocks \
         that were new in a snapshot before the last, 7,000 are gone by now."
    );
}

/// "Nothing grew … High confidence", because buffers of the same library became fewer.
#[test]
fn fewer_buffers_do_not_hide_blocks_that_stay() {
    let of = |hour: u64| {
        let buffers = blocks(0, 2016, (hour * 700)..14_000 - hour * 1_300);
        [buffers, blocks(512, 3008, 0..hour * 1_000)]
    };
    let diff = growth(&looks(Cause::NativeGlobal, of));
    let verdict = &diff.verdict;
    assert!(diff.rss_bytes.change < 0, "{:?}", diff.rss_bytes);
    let found = (verdict.kind, verdict.subject, verdict.confidence, verdict.owner.as_deref());
    let expected =
        (DiffKind::NativeLeak, Subject::Native, Confidence::Medium, Some("libimage.so.6"));
    assert_eq!(found, expected, "{:?}", diff.kept_native);
    let row = &diff.kept_native.as_ref().unwrap()[0];
    assert_eq!(row.blocks.at, [1_000, 2_000, 3_000]);
    assert_eq!((row.newcomers, row.kept, row.bytes.change), (1_000, 1_000, 2_000 * 3008));
    let words = diff_verdict(&diff);
    let summary =
        "Native leak: native memory that libimage.so.6 keeps (native.global) grows by 2.9 MiB/h.";
    assert_eq!(words.summary, summary);
    let same = "would look the same";
    assert!(words.evidence.iter().any(|it| it.ends_with(same)), "{words:?}");
    let text = anstream::adapter::strip_str(&render::diff(&diff, 120)).to_string();
    assert!(text.contains("BLOCKS KEPT BY"), "{text}");
    // What became full is no leak.
    let full = |hour: u64| {
        let [buffers, _] = of(hour);
        [buffers, blocks(512, 3008, 0..hour.min(3) * 1_000)]
    };
    let verdict = growth(&looks(Cause::NativeGlobal, full)).verdict;
    assert_eq!((verdict.kind, verdict.doubt), (DiffKind::Growth, Some(Doubt::Uneven)));
}

/// Nothing can free memory that nothing points to, but a library may free other blocks, and allocate them again where they were.
#[test]
fn only_lost_blocks_are_sure_to_leak() {
    for (cause, confidence) in
        [(Cause::NativeUnreachable, Confidence::High), (Cause::NativeGlobal, Confidence::Medium)]
    {
        let diff = growth(&looks(cause, |hour| [blocks(0, 2016, 0..hour * 1_000)]));
        let verdict = &diff.verdict;
        assert_eq!((verdict.kind, verdict.confidence), (DiffKind::NativeLeak, confidence));
        let evidence = diff_verdict(&diff).evidence.join("\n");
        let doubt = evidence.contains("would look the same");
        assert_eq!(doubt, confidence == Confidence::Medium, "{evidence}");
    }
}

/// A buffer has another size each time, and often another address.
#[test]
fn a_large_block_that_grows_does_not_come_and_go() {
    let of = |hour: u64| {
        let at = [0, 200, 400, 600][hour as usize - 1];
        [blocks(at, (4 + hour * 4) * MIB, 0..1)]
    };
    let verdict = growth(&looks(Cause::NativeGlobal, of)).verdict;
    let found = (verdict.kind, verdict.confidence);
    assert_eq!(found, (DiffKind::NativeLeak, Confidence::Medium), "{verdict:?}");
}

/// Of many sizes, a few have blocks that stay by chance.
#[test]
fn sizes_with_few_blocks_are_judged_together() {
    let of = |hour: u64| -> [Blocks; 400] {
        std::array::from_fn(|index| {
            let index = index as u64;
            // Of every fourth size, the blocks stay.
            let first = if index.is_multiple_of(4) { 0 } else { hour * 10 };
            blocks(index * 2, 8_000 + index * 16, first..first + 2 * hour)
        })
    };
    let diff = growth(&looks(Cause::NativeGlobal, of));
    let verdict = &diff.verdict;
    assert_eq!((verdict.kind, verdict.doubt), (DiffKind::Growth, Some(Doubt::Turnover)));
    assert_eq!(diff.kept_native.as_ref().unwrap()[0].bytes.change, 0);
}

/// Blocks of the same size that the library frees do not show that those come and go by which it grew.
#[test]
fn a_few_lost_blocks_leave_it_open_whether_blocks_stay() {
    let of = |hour: u64| {
        let others = blocks(40, 2016, hour * 200..(hour + 1) * 200);
        // Those of another size become fewer.
        let fewer = blocks(80, 1008, hour * 900..hour * 500 + 9_000);
        [blocks(0, 2016, 0..hour * 1_000), others, fewer]
    };
    let diff = growth(&looks(Cause::NativeGlobal, of));
    let verdict = &diff.verdict;
    let found = (verdict.kind, verdict.doubt, verdict.confidence);
    let expected = (DiffKind::Growth, Some(Doubt::Unproven), Confidence::Low);
    assert_eq!(found, expected, "{:?}", diff.kept_native);
    let gone = "of 2,400 blocks that were new in a snapshot before the last, 400 are gone by now";
    let evidence = diff_verdict(&diff).evidence;
    assert!(evidence.iter().any(|it| it == gone), "{evidence:?}");
}

/// "Nothing grew … High confidence", of a leak among blocks of the same size that become fewer.
#[test]
fn blocks_that_may_stay_lower_the_confidence_that_nothing_grew() {
    let of = |hour: u64, leaked: u64| {
        let fewer = blocks(40, 2016, hour * 1_100..hour * 100 + 9_000);
        [blocks(0, 2016, 0..hour * leaked), fewer]
    };
    for (leaked, confidence) in [(1_000, Confidence::Medium), (0, Confidence::High)] {
        let diff = growth(&looks(Cause::NativeGlobal, |hour| of(hour, leaked)));
        let verdict = &diff.verdict;
        let found = (verdict.kind, verdict.confidence);
        let kinds = [DiffKind::Stable, DiffKind::Shrank];
        assert!(kinds.contains(&found.0), "{verdict:?}");
        assert_eq!(found.1, confidence, "{verdict:?} {:?}", diff.kept_native);
        let evidence = diff_verdict(&diff).evidence;
        let doubt = evidence.iter().any(|it| it.contains("these may stay"));
        assert_eq!(doubt, confidence == Confidence::Medium, "{evidence:?}");
    }
}
