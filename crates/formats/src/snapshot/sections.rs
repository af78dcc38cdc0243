//! The sections of a snapshot: the report and the list of areas as JSON, and the memory map's columns. Each is compressed
//! by zlib, which browsers can decompress.

use std::io::{Read, Write};
use std::ops::Range;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use ledger::{Area, AreaKind, Columns, MapRoot, MapRoots, MemoryMap};
use linux::arch::Cpu;
use linux::{Address, Machine, length};
use serde::{Deserialize, Serialize};

use crate::snapshot::Snapshot;
use crate::snapshot::container::{Packed, Section};
use crate::snapshot::error::{SnapshotError, SnapshotKind};
use crate::{Family, Report, page_size, untrusted};

/// The maximum decompressed size of all sections of a file, unless the file is large.
const MAX_BYTES: u64 = 512 << 20;
/// The maximum decompressed size of all sections of a large file, as a multiple of the compressed one. Those of real
/// processes have about 20 times the size.
const MAX_RATIO: u64 = 64;
/// The maximum size of a section with JSON. The largest report known has 30 MB.
const MAX_JSON_BYTES: u64 = 128 << 20;

/// The name of the section of roots, which snapshots of earlier releases lack.
pub(crate) const ROOTS: &str = "roots";
/// The name of the only section of the snapshot of a family.
const FAMILY: &str = "family";

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
    /// Left out for pages of 4 KiB, as in snapshots of earlier releases.
    #[serde(default = "page_size::smallest", skip_serializing_if = "page_size::is_smallest")]
    page_bytes: u64,
    areas: Vec<ListedArea>,
    /// The roots in the section of roots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    roots: Vec<ListedRoot>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ListedRoot {
    name: String,
    bytes: u64,
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
            (ROOTS, &self.memory_map.roots.of_objects),
        ]
        .map(|(name, bytes)| Section { name, packed: pack(bytes) })
        .into()
    }

    /// Parses a snapshot from its sections. Unknown sections are skipped.
    pub(crate) fn from_sections(sections: &[Packed<'_>]) -> Result<Self, SnapshotError> {
        if is_of_family(sections) {
            return Err(SnapshotError::OtherKind(SnapshotKind::Family));
        }
        let packed: u64 = sections.iter().map(|section| section.bytes.len() as u64).sum();
        let max_bytes = MAX_BYTES.max(packed.saturating_mul(MAX_RATIO));
        let mut room = max_bytes;
        let mut part = |name: &'static str, max_bytes: u64| {
            let found = sections.iter().find(|section| section.name == name.as_bytes());
            let unpacked = found.ok_or("it is missing").and_then(|section| {
                let unpacked = unpack(section.bytes, room.min(max_bytes));
                unpacked.ok_or("it is damaged, or too large")
            });
            let unpacked = unpacked.map_err(|what| invalid(name, what))?;
            room -= unpacked.len() as u64;
            Ok::<_, SnapshotError>(unpacked)
        };
        let report = part("report", MAX_JSON_BYTES)?;
        let areas = part("areas", MAX_JSON_BYTES)?;
        let columns = Columns {
            sizes: part("sizes", max_bytes)?,
            uses: part("uses", max_bytes)?,
            owners: part("owners", max_bytes)?,
            pages: part("pages", max_bytes)?,
        };
        let has_roots = sections.iter().any(|section| section.name == ROOTS.as_bytes());
        let of_objects = if has_roots { part(ROOTS, max_bytes)? } else { Vec::new() };
        let report: Report = untrusted::parse(&report).map_err(|what| invalid("report", what))?;
        report.check().map_err(|what| invalid("report", what))?;
        let areas: ListedAreas =
            untrusted::parse_addresses(&areas).map_err(|what| invalid("areas", what))?;
        let arenas = report.arenas.as_ref().map_or(0, Vec::len);
        let memory_map = areas
            .into_memory_map(columns, of_objects, arenas)
            .ok_or_else(|| invalid("areas", "an area has an invalid number or kind"))?;
        memory_map.check(report.owners.as_ref().map_or(0, Vec::len))?;
        let (report_bytes, map_bytes) = (report.process.rss_bytes, memory_map.resident_bytes());
        if report_bytes != map_bytes {
            return Err(SnapshotError::DifferentSizes { report_bytes, map_bytes });
        }
        Ok(Self { report, memory_map })
    }
}

fn is_of_family(sections: &[Packed<'_>]) -> bool {
    sections.iter().any(|section| section.name == FAMILY.as_bytes())
}

/// Returns the account of a family as a section.
pub(crate) fn of_family(family: &Family) -> Section {
    let json = serde_json::to_vec(family).expect("an account has string keys and finite numbers");
    Section { name: FAMILY, packed: pack(&json) }
}

/// Parses the account of a family.
pub(crate) fn family(sections: &[Packed<'_>]) -> Result<Family, SnapshotError> {
    let Some(section) = sections.iter().find(|section| section.name == FAMILY.as_bytes()) else {
        return Err(SnapshotError::OtherKind(SnapshotKind::Process));
    };
    let unpacked = unpack(section.bytes, MAX_JSON_BYTES);
    let unpacked = unpacked.ok_or_else(|| invalid(FAMILY, "it is damaged, or too large"))?;
    let family: Family = untrusted::parse(&unpacked).map_err(|what| invalid(FAMILY, what))?;
    family.check().map_err(|what| invalid(FAMILY, what))?;
    Ok(family)
}

fn invalid(name: &'static str, what: impl Into<String>) -> SnapshotError {
    SnapshotError::InvalidSection { name, what: what.into() }
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
            pages: length(&area.range) / memory_map.page_size,
            pieces: area.blocks,
            columns: [&area.sizes, &area.uses, &area.owners, &area.pages]
                .map(|part| part.len() as u64),
        };
        let listed_root =
            |root: &MapRoot| ListedRoot { name: root.name.clone(), bytes: root.bytes };
        Self {
            page_bytes: memory_map.page_size,
            areas: memory_map.areas.iter().map(listed).collect(),
            roots: memory_map.roots.roots.iter().map(listed_root).collect(),
        }
    }
}

impl ListedAreas {
    /// Parses the memory map of a process with this number of arenas; `None` if a number or name is invalid. The memory
    /// map itself checks that its areas are consistent.
    fn into_memory_map(
        self,
        columns: Columns,
        of_objects: Vec<u8>,
        arenas: usize,
    ) -> Option<MemoryMap> {
        let page_size = Machine::new(Cpu::OWN, self.page_bytes)?.page_size;
        let mut ends = [0_usize; 4];
        let mut areas = Vec::new();
        for listed in self.areas {
            if listed.arena.is_some_and(|arena| arena as usize >= arenas) {
                return None;
            }
            let bytes = listed.pages.checked_mul(page_size)?;
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
                name: listed.name,
                blocks: listed.pieces,
                sizes,
                uses,
                owners,
                pages,
            });
        }
        let root = |ListedRoot { name, bytes }| MapRoot { name, bytes };
        let roots = MapRoots { roots: self.roots.into_iter().map(root).collect(), of_objects };
        Some(MemoryMap { page_size, areas, columns, roots })
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
