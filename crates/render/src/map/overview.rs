//! The content of a picture of all pages: sections of areas, and the state of each page.

use std::collections::BTreeMap;

use formats::{SharedPages, Snapshot};
use ledger::{Area, AreaKind, MemoryMap, PageUse, Sharing, Size};
use linux::length;

use crate::draw::Colour;

/// The most arenas with a section of their own. Further ones share one.
const MAX_ARENAS: usize = 32;

/// Areas that are drawn together.
pub(crate) struct Section<'a> {
    pub(crate) title: String,
    pub(crate) areas: Vec<&'a Area>,
}

/// The state of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shade {
    /// The number of its bytes that are in use, at least one.
    InUse(u64),
    /// Free, but resident.
    Kept,
    /// Not resident: returned, or never touched.
    Returned,
    Swapped,
    /// A core lacks it.
    Lost,
}

/// The legend of the map by use.
pub(crate) const LEGEND: [(&str, Colour); 6] = [
    ("in use", Colour::InUse),
    ("partly in use: pins the free rest", Colour::InUseLittle),
    ("free: you can have it back", Colour::Kept),
    ("returned, or never touched", Colour::Returned),
    ("in swap", Colour::Swapped),
    ("lost: not in the core", Colour::Lost),
];

/// The colours of pages by who shares them.
pub(crate) const SHARING: [(Sharing, Colour); 4] = [
    (Sharing::All, Colour::Stacks),
    (Sharing::Some, Colour::Libraries),
    (Sharing::Copied, Colour::InUse),
    (Sharing::Private, Colour::Untraced),
];

/// The legend of the map by sharing.
pub(crate) fn legend_of_sharing(shared: &SharedPages) -> Vec<(String, Colour)> {
    let all = shared.processes;
    let estimate = if shared.is_estimated { " (estimate)" } else { "" };
    let text = |sharing| match sharing {
        Sharing::All => format!("shared by all {all} processes{estimate}"),
        Sharing::Some => format!("shared by some{estimate}"),
        Sharing::Copied => "private: a copy since the fork".to_owned(),
        Sharing::Private => "private: new memory".to_owned(),
    };
    let mut legend: Vec<_> =
        SHARING.iter().map(|&(sharing, colour)| (text(sharing), colour)).collect();
    // As in the other legends.
    legend.extend(LEGEND[3..].iter().map(|&(text, colour)| (text.to_owned(), colour)));
    legend
}

/// The legend of the map by code, beside the code.
pub(crate) const LEGEND_OF_CODE: [(&str, Colour); 5] = [
    ("other code", Colour::Ink),
    ("resident, unknown code", Colour::Kept),
    ("returned, or never touched", Colour::Returned),
    ("in swap", Colour::Swapped),
    ("lost: not in the core", Colour::Lost),
];

/// The kinds of areas in the order in which they are shown, and their titles. An arena has a title of its own.
pub(crate) const TITLES: [(AreaKind, &str); 10] = [
    (AreaKind::Arena(0), ""),
    (AreaKind::Mmapped, "Chunks with their own mapping"),
    (AreaKind::HeapPages, "Ruby heap pages"),
    (AreaKind::ThreadStack, "Thread stacks"),
    (AreaKind::FiberStack, "Fiber stacks"),
    (AreaKind::Jit, "JIT code"),
    (AreaKind::TransientHeap, "Transient heap"),
    (AreaKind::Anonymous, "Other memory"),
    (AreaKind::File, "Files"),
    (AreaKind::Shmem, "Files in memory, shared memory"),
];

impl Section<'_> {
    /// Returns the number of its pages.
    pub(crate) fn pages(&self, page_size: u64) -> u64 {
        self.areas.iter().map(|area| length(&area.range) / page_size).sum()
    }
}

/// Returns the sections of a snapshot: arenas, the largest one first, then areas by kind.
pub(crate) fn sections(snapshot: &Snapshot) -> Vec<Section<'_>> {
    let own = large_arenas(&snapshot.memory_map);
    let mut sections = BTreeMap::<(usize, usize), Vec<&Area>>::new();
    for area in &snapshot.memory_map.areas {
        let arena = match area.kind {
            AreaKind::Arena(index) => own.iter().position(|it| *it == index).unwrap_or(own.len()),
            _ => 0,
        };
        sections.entry((rank(area.kind), arena)).or_default().push(area);
    }
    sections
        .into_iter()
        .map(|((rank, arena), areas)| {
            let title = match areas[0].kind {
                AreaKind::Arena(index) => match own.get(arena) {
                    Some(_) => arena_title(snapshot, index),
                    None => "Smaller arenas".to_owned(),
                },
                _ => TITLES[rank].1.to_owned(),
            };
            Section { title, areas }
        })
        .collect()
}

/// Returns the indices of the largest arenas, the largest one first.
fn large_arenas(map: &MemoryMap) -> Vec<u32> {
    let mut bytes = BTreeMap::<u32, u64>::new();
    for area in &map.areas {
        if let AreaKind::Arena(index) = area.kind {
            *bytes.entry(index).or_default() += length(&area.range);
        }
    }
    let mut arenas: Vec<(u32, u64)> = bytes.into_iter().collect();
    arenas.sort_by_key(|&(index, bytes)| (std::cmp::Reverse(bytes), index));
    arenas.into_iter().take(MAX_ARENAS).map(|(index, _)| index).collect()
}

fn rank(kind: AreaKind) -> usize {
    let rank = TITLES.iter().position(|(other, _)| other.name() == kind.name());
    rank.expect("each kind has a title, as a test checks")
}

fn arena_title(snapshot: &Snapshot, index: u32) -> String {
    let arena = snapshot.report.arenas.iter().flatten().nth(index as usize);
    arena.map_or_else(String::new, |arena| {
        let name =
            if arena.main { "Main arena".into() } else { format!("Arena {}", arena.address) };
        let free =
            [arena.unreturned_bytes, arena.fragmented_bytes, arena.cached_bytes, arena.top_bytes];
        format!(
            "{name}: {} in use, {} free but resident, {} not resident",
            Size(arena.in_use_bytes.saturating_add(arena.overhead_bytes)),
            Size(free.into_iter().fold(0, u64::saturating_add)),
            Size(arena.returned_bytes),
        )
    })
}

/// Calls back with runs of equal pages that cover an area, in order: the number of pages, and their shade.
pub(crate) fn each_run(map: &MemoryMap, area: &Area, mut draw: impl FnMut(u64, Shade)) {
    let page_size = map.page_size;
    let mut busy_runs = busy_runs(map, area);
    let (mut left, mut busy) = (0, page_size);
    for (range, state) in map.pages(area) {
        let mut pages = length(&range) / page_size;
        while pages > 0 {
            if left == 0 {
                // An area without blocks is in use as a whole.
                (left, busy) = busy_runs.next().unwrap_or((u64::MAX, page_size));
            }
            let run = pages.min(left);
            draw(
                run,
                match state {
                    PageUse::Returned => Shade::Returned,
                    PageUse::Swapped => Shade::Swapped,
                    PageUse::Lost => Shade::Lost,
                    PageUse::Resident | PageUse::Unreturned if busy == 0 => Shade::Kept,
                    PageUse::Resident | PageUse::Unreturned => Shade::InUse(busy),
                },
            );
            pages -= run;
            left -= run;
        }
    }
}

/// Returns runs of pages with equally many bytes in use: the number of pages, and the bytes of each.
fn busy_runs(map: &MemoryMap, area: &Area) -> impl Iterator<Item = (u64, u64)> {
    // Of the page at the end of the blocks so far: its bytes that they cover, and those in use.
    let page_size = map.page_size;
    let (mut covered, mut busy) = (0, 0);
    let runs = map.blocks(area).flat_map(move |block| {
        let in_use = u64::from(block.used.is_busy());
        let room = page_size - covered;
        let Some(beyond) = block.bytes.checked_sub(room) else {
            covered += block.bytes;
            busy += in_use * block.bytes;
            return [(0, 0); 2];
        };
        let first = (1, busy + in_use * room);
        covered = beyond % page_size;
        busy = in_use * covered;
        [first, (beyond / page_size, in_use * page_size)]
    });
    runs.filter(|run| run.0 > 0)
}

#[cfg(test)]
mod tests {
    use ledger::Columns;
    use linux::Address;

    use super::*;

    #[test]
    fn each_kind_of_area_has_a_title() {
        for (place, (kind, _)) in TITLES.into_iter().enumerate() {
            assert_eq!(rank(kind), place);
            assert!(AreaKind::by_name(kind.name(), (place == 0).then_some(0)).is_some());
        }
    }

    #[test]
    fn a_page_has_the_bytes_in_use_of_all_its_blocks() {
        // In use: 4000 bytes, then 96 and 8192 and 8 free, then 4088 and 4096 in use.
        let columns = Columns {
            sizes: vec![0xf4, 3, 12, 0x80, 8, 1, 0xff, 3, 0x80, 4],
            uses: vec![2, 3, 3, 3, 2, 2],
            owners: vec![0, 0, 0],
            pages: vec![4 << 3 | 1, 1 << 3],
        };
        let area = Area {
            range: Address(0x1000)..Address(0x6000),
            kind: AreaKind::Arena(0),
            name: String::new(),
            blocks: 6,
            sizes: 0..columns.sizes.len(),
            uses: 0..6,
            owners: 0..3,
            pages: 0..2,
        };
        let map = MemoryMap { areas: vec![area], columns, ..MemoryMap::default() };
        assert_eq!(map.check(0), Ok(()));
        let mut runs = Vec::new();
        each_run(&map, &map.areas[0], |pages, shade| runs.push((pages, shade)));
        let expected = [
            (1, Shade::InUse(4000)),
            (1, Shade::Kept),
            (1, Shade::Kept),
            (1, Shade::InUse(4088)),
            (1, Shade::Returned),
        ];
        assert_eq!(runs, expected);
    }
}
