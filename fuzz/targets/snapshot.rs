//! Damaged snapshots: reading one ends, takes bounded memory, and what was accepted can be drawn and compared.

#![no_main]

use std::io::Write;
use std::sync::OnceLock;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use formats::Snapshot;
use libfuzzer_sys::fuzz_target;
use rbloat_fuzz::patches;
use render::TextOptions;

const HEADER: usize = 12;

/// The names of sections, and their content, unpacked.
type Sections = Vec<([u8; 8], Vec<u8>)>;

/// The header and the sections of a valid file.
fn sections() -> (Vec<u8>, Sections) {
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
    (header.to_vec(), sections)
}

fn pack(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(content).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, input)) = input.split_first() else { return };
    static VALID: OnceLock<(Vec<u8>, Sections)> = OnceLock::new();
    let (mut bytes, mut sections) = VALID.get_or_init(sections).clone();
    let is_packed = choice & 0x80 != 0;
    let target = usize::from(choice) % sections.len();
    if !is_packed {
        patches(input).for_each(|patch| patch.apply(&mut sections[target].1));
    }
    for (name, content) in &sections {
        let packed = pack(content);
        bytes.extend(name);
        bytes.extend((packed.len() as u64).to_le_bytes());
        bytes.extend(packed);
    }
    if is_packed {
        patches(input).for_each(|patch| patch.apply(&mut bytes));
    }
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    let Ok(snapshot) = Snapshot::from_bytes(&bytes) else { return };
    let valid = rbloat_fuzz::snapshot().clone();
    let (one, other) = (("one".to_owned(), valid), ("other".to_owned(), snapshot.clone()));
    let _ = render::diff(&diagnosis::growth(&[one, other]), 100);
    let _ = render::map_html(&snapshot);
    let report = snapshot.report.clone().brief(1);
    let _ = render::report(&report, TextOptions { width: 100, arenas: true, code: true });
    let _ = render::fix(&report, None, 100);
    assert_eq!(Snapshot::from_bytes(&snapshot.to_bytes()).ok(), Some(snapshot));
});
