//! The sections of a snapshot: the report and the list of areas as JSON, and the memory map's columns. Each is compressed
//! by zlib, which browsers can decompress.

use std::io::{Read, Write};
use std::ops::Range;

use capture::{Address, PAGE_SIZE, is_control, length};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use ledger::{Area, AreaKind, Columns, MemoryMap};
use serde::{Deserialize, Serialize};

use crate::snapshot::container::Packed;
use crate::snapshot::{Snapshot, SnapshotError};

/// The maximum decompressed size of all sections of a file. A memory map has about four bytes per block, so this is enough
/// for several hundred GiB of process memory.
const MAX_BYTES: u64 = 2 << 30;

/// A part of a snapshot.
#[derive(Debug, Clone)]
pub struct Section {
    /// The name.
    pub name: &'static str,
    /// The content, compressed by zlib.
    pub packed: Vec<u8>,
}

/// An entry in the list of areas.
#[derive(Debug, Serialize, Deserialize)]
struct ListedArea {
    kind: String,
    /// The index of its arena in the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    arena: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    /// A number, so that browsers need not parse it. Addresses have 47 bits.
    start: u64,
    pages: u64,
    pieces: u64,
    /// Bytes of each column: sizes, uses, owners, pages.
    columns: [u64; 4],
}

#[derive(Debug, Serialize, Deserialize)]
struct ListedAreas {
    knows_pages: bool,
    areas: Vec<ListedArea>,
}

impl Snapshot {
    /// Returns the sections of the file.
    #[must_use]
    pub fn sections(&self) -> Vec<Section> {
        let Columns { sizes, uses, owners, pages } = &self.memory_map.columns;
        let json = |value: serde_json::Result<Vec<u8>>| {
            value.expect("reports and areas have string keys and finite numbers")
        };
        let report = json(serde_json::to_vec(&self.report));
        let areas = json(serde_json::to_vec(&ListedAreas::from(&self.memory_map)));
        [
            ("report", &report),
            ("areas", &areas),
            ("sizes", sizes),
            ("uses", uses),
            ("owners", owners),
            ("pages", pages),
        ]
        .map(|(name, bytes)| Section { name, packed: pack(bytes) })
        .into()
    }

    /// Parses a snapshot from its sections. Unknown sections are skipped.
    pub(crate) fn from_sections(sections: &[Packed<'_>]) -> Result<Self, SnapshotError> {
        let mut room = MAX_BYTES;
        let mut part = |name: &'static str| {
            let found = sections.iter().find(|section| section.name == name.as_bytes());
            let unpacked = found.and_then(|section| unpack(section.bytes, room));
            let unpacked = unpacked.ok_or(SnapshotError::InvalidSection(name))?;
            room -= unpacked.len() as u64;
            Ok::<_, SnapshotError>(unpacked)
        };
        let report = part("report")?;
        let areas = part("areas")?;
        let columns = Columns {
            sizes: part("sizes")?,
            uses: part("uses")?,
            owners: part("owners")?,
            pages: part("pages")?,
        };
        let mut report: serde_json::Value =
            serde_json::from_slice(&report).map_err(|_| SnapshotError::InvalidSection("report"))?;
        if !is_plausible(&report) {
            return Err(SnapshotError::InvalidSection("report"));
        }
        clean(&mut report);
        let report: crate::Report =
            serde_json::from_value(report).map_err(|_| SnapshotError::InvalidSection("report"))?;
        let areas: ListedAreas =
            serde_json::from_slice(&areas).map_err(|_| SnapshotError::InvalidSection("areas"))?;
        let arenas = report.arenas.as_ref().map_or(0, Vec::len);
        let memory_map =
            areas.into_memory_map(columns, arenas).ok_or(SnapshotError::InvalidSection("areas"))?;
        memory_map.check(report.owners.as_ref().map_or(0, Vec::len))?;
        Ok(Self { report, memory_map })
    }
}

impl From<&MemoryMap> for ListedAreas {
    fn from(memory_map: &MemoryMap) -> Self {
        let listed = |area: &Area| ListedArea {
            kind: area.kind.name().into(),
            arena: match area.kind {
                AreaKind::Arena(arena) => Some(arena),
                _ => None,
            },
            name: area.name.clone(),
            start: area.range.start.0,
            pages: length(&area.range) / PAGE_SIZE,
            pieces: area.blocks,
            columns: [&area.sizes, &area.uses, &area.owners, &area.pages]
                .map(|part| part.len() as u64),
        };
        Self {
            knows_pages: memory_map.knows_pages,
            areas: memory_map.areas.iter().map(listed).collect(),
        }
    }
}

impl ListedAreas {
    /// Parses the memory map of a process with this number of arenas; `None` if a number or name is invalid. The memory
    /// map itself checks that its areas are consistent.
    fn into_memory_map(self, columns: Columns, arenas: usize) -> Option<MemoryMap> {
        let mut ends = [0_usize; 4];
        let mut areas = Vec::new();
        for listed in self.areas {
            if listed.arena.is_some_and(|arena| arena as usize >= arenas) {
                return None;
            }
            let bytes = listed.pages.checked_mul(PAGE_SIZE)?;
            let mut parts: [Range<usize>; 4] = Default::default();
            for ((part, end), length) in parts.iter_mut().zip(&mut ends).zip(listed.columns) {
                let start = *end;
                *end = start.checked_add(length.try_into().ok()?)?;
                *part = start..*end;
            }
            let [sizes, uses, owners, pages] = parts;
            areas.push(Area {
                range: Address(listed.start)..Address(listed.start.checked_add(bytes)?),
                kind: AreaKind::by_name(&listed.kind, listed.arena)?,
                name: listed.name.replace(is_control, " "),
                blocks: listed.pieces,
                sizes,
                uses,
                owners,
                pages,
            });
        }
        Some(MemoryMap { areas, columns, knows_pages: self.knows_pages })
    }
}

/// Replaces control characters: texts are printed on terminals, and a file may have anything.
fn clean(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if text.contains(is_control) => {
            *text = text.replace(is_control, " ");
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(clean),
        serde_json::Value::Object(values) => values.values_mut().for_each(clean),
        _ => {}
    }
}

/// Returns true if all numbers are small enough that sums of them fit into 64 bits.
fn is_plausible(value: &serde_json::Value) -> bool {
    const MAX: f64 = 9_007_199_254_740_992.0;
    match value {
        serde_json::Value::Number(number) => number.as_f64().is_some_and(|it| it.abs() <= MAX),
        serde_json::Value::Array(values) => values.iter().all(is_plausible),
        serde_json::Value::Object(values) => values.values().all(is_plausible),
        _ => true,
    }
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    packed.expect("memory takes all that is written to it")
}

/// Decompresses a section; `None` if it is damaged or has more than `max_bytes`.
fn unpack(packed: &[u8], max_bytes: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let taken = ZlibDecoder::new(packed).take(max_bytes.checked_add(1)?).read_to_end(&mut bytes);
    taken.ok().filter(|&taken| taken as u64 <= max_bytes)?;
    Some(bytes)
}
