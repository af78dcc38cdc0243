//! What a picture of all pages shows: sections of areas, and a colour for each page.

use std::collections::BTreeMap;

use capture::PAGE_SIZE;
use formats::Snapshot;
use ledger::{Area, AreaKind, PageUse, Size};

/// Areas that are drawn as one.
pub(crate) struct Section<'a> {
    pub(crate) title: String,
    pub(crate) areas: Vec<&'a Area>,
}

/// What is said of a page by its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shade {
    /// So many of its bytes are in use.
    InUse(u16),
    /// Free, but resident.
    Kept,
    /// Not resident: returned, or never touched.
    Returned,
    Swapped,
}

/// What is drawn together: each arena, then areas by kind, in the order in which they are shown.
pub(crate) fn sections(snapshot: &Snapshot) -> Vec<Section<'_>> {
    let mut sections = BTreeMap::<(u8, u32), Vec<&Area>>::new();
    for area in &snapshot.memory_map.areas {
        let arena = if let AreaKind::Arena(arena) = area.kind { arena } else { 0 };
        sections.entry((rank(area.kind), arena)).or_default().push(area);
    }
    sections
        .into_values()
        .map(|areas| Section { title: title(snapshot, areas[0].kind), areas })
        .collect()
}

fn title(snapshot: &Snapshot, kind: AreaKind) -> String {
    match kind {
        AreaKind::Arena(index) => {
            let arena = snapshot.report.arenas.iter().flatten().nth(index as usize);
            arena.map_or_else(String::new, |arena| {
                let name = if arena.main {
                    "Main arena".into()
                } else {
                    format!("Arena {}", arena.address)
                };
                format!(
                    "{name}: {} in use, {} free and kept, {} not resident",
                    Size(arena.in_use_bytes + arena.overhead_bytes),
                    Size(
                        arena.unreturned_bytes
                            + arena.fragmented_bytes
                            + arena.cached_bytes
                            + arena.top_bytes
                    ),
                    Size(arena.returned_bytes),
                )
            })
        }
        AreaKind::Mmapped => "Chunks with a mapping of their own".into(),
        AreaKind::HeapPages => "Ruby's heap pages".into(),
        AreaKind::ThreadStack => "Stacks of threads".into(),
        AreaKind::FiberStack => "Stacks of fibers".into(),
        AreaKind::Jit => "JIT code".into(),
        AreaKind::TransientHeap => "Transient heap".into(),
        AreaKind::Anonymous => "Other memory".into(),
        AreaKind::File => "Files".into(),
    }
}

/// A shade for each page of an area, in order.
pub(crate) fn shades(snapshot: &Snapshot, area: &Area) -> Vec<Shade> {
    let mut busy: Vec<u16> = Vec::new();
    let mut at = 0;
    for piece in snapshot.memory_map.blocks(area) {
        let end = at + piece.bytes;
        busy.resize(end.div_ceil(PAGE_SIZE) as usize, 0);
        if piece.used.is_busy() {
            for page in at / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
                let bytes = end.min((page + 1) * PAGE_SIZE) - at.max(page * PAGE_SIZE);
                busy[page as usize] += bytes as u16;
            }
        }
        at = end;
    }
    let mut shades = Vec::new();
    for (range, used) in snapshot.memory_map.pages(area) {
        for _ in 0..capture::length(&range) / PAGE_SIZE {
            shades.push(match used {
                PageUse::Returned => Shade::Returned,
                PageUse::Swapped => Shade::Swapped,
                // What has no pieces is in use as a whole.
                _ => match busy.get(shades.len()).copied().unwrap_or(PAGE_SIZE as u16) {
                    0 => Shade::Kept,
                    bytes => Shade::InUse(bytes),
                },
            });
        }
    }
    shades
}

fn rank(kind: AreaKind) -> u8 {
    match kind {
        AreaKind::Arena(_) => 0,
        AreaKind::Mmapped => 1,
        AreaKind::HeapPages => 2,
        AreaKind::ThreadStack => 3,
        AreaKind::FiberStack => 4,
        AreaKind::Jit => 5,
        AreaKind::TransientHeap => 6,
        AreaKind::Anonymous => 7,
        AreaKind::File => 8,
    }
}
