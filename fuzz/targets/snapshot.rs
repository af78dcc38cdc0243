//! Damaged snapshots: reading one ends, takes bounded memory, and what was accepted can be drawn and compared.

#![no_main]

use std::io::Write;
use std::sync::OnceLock;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use formats::Snapshot;
use libfuzzer_sys::fuzz_target;
use rbloat_fuzz::{Leaves, patches};
use render::TextOptions;
use serde_json::Value;

const HEADER: usize = 12;

/// The names of sections, and their content, unpacked.
type Sections = Vec<([u8; 8], Vec<u8>)>;

/// A valid file in parts.
struct Valid {
    header: Vec<u8>,
    sections: Sections,
    /// The first two sections, the report and the areas, as JSON.
    documents: [Leaves; 2],
}

fn valid() -> &'static Valid {
    static VALID: OnceLock<Valid> = OnceLock::new();
    VALID.get_or_init(|| {
        let valid = rbloat_fuzz::snapshot().to_bytes();
        let (header, mut rest) = valid[..valid.len() - 4].split_at(HEADER);
        let mut sections = Vec::new();
        while let Some((name, after)) = rest.split_first_chunk::<8>() {
            let (length, after) = after.split_first_chunk::<8>().expect("a length");
            let (packed, after) = after.split_at(u64::from_le_bytes(*length) as usize);
            let mut content = Vec::new();
            std::io::copy(&mut ZlibDecoder::new(packed), &mut content).expect("a valid section");
            sections.push((*name, content));
            rest = after;
        }
        let documents = [0, 1].map(|index: usize| Leaves::of(&sections[index].1));
        Valid { header: header.to_vec(), sections, documents }
    })
}

fn pack(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(content).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// Makes the causes of a report add up to RSS again: otherwise a damaged size reaches no renderer.
fn balance(report: &mut Value) {
    let rss = report.pointer("/process/rss_bytes").and_then(Value::as_u64).unwrap_or(0);
    let Some([first, others @ ..]) =
        report.get_mut("causes").and_then(Value::as_array_mut).map(Vec::as_mut_slice)
    else {
        return;
    };
    let others =
        others.iter().filter_map(|row| row.get("bytes")?.as_u64()).try_fold(0, u64::checked_add);
    if let Some(bytes) = first.get_mut("bytes") {
        *bytes = rss.saturating_sub(others.unwrap_or(0)).into();
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[choice, output], input)) = input.split_first_chunk() else { return };
    let Valid { header, sections, documents } = valid();
    let (mut bytes, mut sections) = (header.clone(), sections.clone());
    // The sections as bytes, the file as bytes, or values of a document.
    let target = usize::from(choice % 16);
    if let Some((_, section)) = sections.get_mut(target) {
        patches(input).for_each(|patch| patch.apply(section));
    } else if target > 7 {
        let index = target % 2;
        let mut document = documents[index].damaged(input);
        if choice & 0x80 != 0 {
            balance(&mut document);
        }
        sections[index].1 = document.to_string().into_bytes();
    }
    for (name, content) in &sections {
        let packed = pack(content);
        bytes.extend(name);
        bytes.extend((packed.len() as u64).to_le_bytes());
        bytes.extend(packed);
    }
    if target == 7 {
        patches(input).for_each(|patch| patch.apply(&mut bytes));
    }
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    let Ok(snapshot) = Snapshot::from_bytes(&bytes) else { return };
    // Drawing takes far longer than reading, so most inputs are drawn in one way.
    match output % 16 {
        0 => assert_eq!(Snapshot::from_bytes(&snapshot.to_bytes()).ok(), Some(snapshot)),
        1 => drop(render::map_html(&snapshot, render::PageColours::Use)),
        2 => drop(render::map_png(&snapshot, render::PageColours::Use)),
        3..8 => {
            let valid = rbloat_fuzz::snapshot().clone();
            let (one, other) = (("one".to_owned(), valid), ("other".to_owned(), snapshot));
            drop(render::diff(&diagnosis::growth(&[one, other]), 100));
        }
        _ => {
            let report = snapshot.report.brief(1 + usize::from(output / 16));
            let options = TextOptions { width: 100, arenas: true, code: true, waste: true };
            drop(render::report(&report, options));
            drop(render::fix(&report, None, 100));
        }
    }
});
