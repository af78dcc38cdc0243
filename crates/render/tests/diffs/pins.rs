//! Blocks that pin free memory, and size classes.

use diagnosis::growth;
use formats::{PinRow, SizeClass, Snapshot};

use crate::{MIB, grow, look};

/// A size class, with regions of 1 KiB.
fn size_class(slabs: u64, in_use: u64, free_bytes: u64) -> SizeClass {
    SizeClass {
        region_bytes: 1024,
        slabs,
        regions: slabs * 4,
        in_use,
        cached: 0,
        free_bytes,
        pinned_by: Vec::new(),
        arenas: Vec::new(),
    }
}

fn pin(owner: &str, kind: &str, blocks: u64, bytes: u64) -> PinRow {
    PinRow { owner: owner.into(), kind: kind.into(), blocks, bytes }
}

/// Two reports on a process whose free memory on pages in use grew by `grown` bytes.
fn with_pins(grown: u64) -> [(String, Snapshot); 2] {
    [0, grown].map(|grown| {
        look(1 + grown.min(1), |report| {
            grow(report, "malloc.fragmented", grown);
            let malloc = report.malloc.as_mut().unwrap();
            let others = format!("({} others)", 3 + grown / MIB);
            malloc.pinned_by = vec![
                pin("String", "class", 100 + grown / 4096, MIB + grown),
                pin(&others, "others", 7, 4096),
            ];
            malloc.size_classes = vec![size_class(10 + grown / 4096, 30, 5000 + grown)];
        })
    })
}

#[test]
fn pins_and_size_classes_are_compared() {
    let diff = growth(&with_pins(40 * MIB));
    let pins = diff.pins.as_ref().unwrap();
    // The others keep as much memory as before, but their number and therefore their name differ.
    assert_eq!(pins.len(), 1, "{pins:?}");
    assert_eq!((pins[0].owner.as_str(), pins[0].kind.as_str()), ("String", "class"));
    assert_eq!(pins[0].bytes.at, [MIB, 41 * MIB]);
    assert_eq!((pins[0].bytes.change, pins[0].blocks.change), (40 << 20, 40 << 8));
    let classes = diff.size_classes.as_ref().unwrap();
    assert_eq!((classes.len(), classes[0].region_bytes), (1, 1024));
    assert_eq!(classes[0].slabs.at, [10, 10 + (40 << 8)]);
    assert_eq!(classes[0].in_use.at, [30, 30]);
    assert_eq!(classes[0].free_bytes.change, 40 << 20);

    let text = render::diff(&diff, 100);
    assert!(text.contains("KEEPS FREE MEMORY") && text.contains("SLABS OF"), "{text}");
    let little = render::diff(&growth(&with_pins(4 * MIB)), 100);
    assert!(!little.contains("KEEPS FREE MEMORY") && !little.contains("SLABS OF"), "{little}");
}

#[test]
fn the_text_of_a_diff_of_pins() {
    let text = render::diff(&growth(&with_pins(40 * MIB)), 100);
    insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
}

#[test]
fn nothing_is_said_of_pins_that_a_snapshot_does_not_have() {
    let mut looks = with_pins(40 * MIB);
    looks[0].1.report.owners = None;
    let diff = growth(&looks);
    assert!(diff.pins.is_none() && diff.size_classes.is_some());
}

/// "Memory in use by 0 B" stood above "memory in use -91.9 MiB".
#[test]
fn memory_in_use_that_fell_is_said_to_have_fallen() {
    let looks = [0, 1].map(|hour| {
        look(1 + hour, |report| {
            grow(report, "malloc.fragmented", hour * 90 * MIB);
            grow(report, "ruby.malloc", (1 - hour) * 40 * MIB);
        })
    });
    let diff = growth(&looks);
    assert_eq!(diff.verdict.kind, formats::DiffKind::Retention);
    let summary = render::words::diff_verdict(&diff).summary;
    assert!(summary.ends_with("; memory in use fell by 40.0 MiB."), "{summary}");
}
