//! The blocks that keep free memory resident: an allocator returns whole slabs or whole pages, so one block in use
//! keeps all free memory around it.

use std::collections::BTreeMap;
use std::ops::Range;

use allocator::{BlockState, Extent, ExtentState, HeapMap};
use image::ProcessState;
use linux::{Address, PageRun, intersection, length};

use crate::ownership::{AccountIndex, OwnerAccount, OwnerKind, Owners};
use crate::pages::pages_of;

/// The name of the owner of cached blocks.
const CACHES: &str = "(thread caches)";

/// The free resident bytes that the blocks of one owner keep from being returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The owner's name.
    pub owner: String,
    /// Its kind.
    pub kind: OwnerKind,
    /// Its blocks that share a slab or a page with free memory.
    pub blocks: u64,
    /// Its part of that memory: all blocks that keep the same memory have equal parts, so the parts add up.
    pub bytes: u64,
}

/// The slabs of one size class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeClassAccount {
    /// The size of a region.
    pub region_bytes: u64,
    /// Counts over all arenas.
    pub slabs: SlabCounts,
    /// The free resident bytes in these slabs.
    pub free_bytes: u64,
    /// The owners of the regions that keep these bytes resident, largest part first.
    pub pins: Vec<Pin>,
    /// Counts by the index of the arena.
    pub arenas: BTreeMap<u32, SlabCounts>,
}

/// Slabs and their regions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlabCounts {
    /// The number of slabs.
    pub slabs: u64,
    /// Their regions.
    pub regions: u64,
    /// The regions that the program uses.
    pub in_use: u64,
    /// The regions that are free but in a thread cache.
    pub cached: u64,
}

impl SlabCounts {
    fn add(&mut self, other: Self) {
        self.slabs += other.slabs;
        self.regions += other.regions;
        self.in_use += other.in_use;
        self.cached += other.cached;
    }
}

/// All pins of a heap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pins {
    /// By owner, largest part first.
    pub(crate) owners: Vec<Pin>,
    /// By size class, smallest regions first; empty if the allocator has no slabs.
    pub(crate) size_classes: Vec<SizeClassAccount>,
}

/// Blocks and bytes by the index of the owner's account; `None` for thread caches.
type Sums = BTreeMap<Option<u32>, (u64, u64)>;

/// Finds the pins of a heap. `accounts` are the accounts of `owners`. Without owners, only size classes are counted.
pub(crate) fn find(
    heap: &HeapMap,
    state: &ProcessState,
    owners: &Owners<'_>,
    accounts: &[OwnerAccount],
) -> Pins {
    let has_slabs = heap.extents.iter().any(|extent| extent.region_bytes.is_some());
    if accounts.is_empty() && !has_slabs {
        return Pins::default();
    }
    let mut finder = Finder {
        index: owners.index(accounts),
        resident: Resident { runs: pages_of(state).iter().as_slice() },
        page_size: state.machine.page_size,
        members: Vec::new(),
        counted: None,
        free_bytes: 0,
        sums: Sums::new(),
    };
    let mut classes = BTreeMap::<u64, (SizeClassAccount, Sums)>::new();
    for extent in heap.extents.iter().filter(|extent| extent.state == ExtentState::Active) {
        match extent.region_bytes {
            Some(region_bytes) => {
                let (class, sums) = classes.entry(region_bytes).or_default();
                let (counts, free_bytes) = finder.slab(heap, extent, sums);
                class.slabs.add(counts);
                class.free_bytes += free_bytes;
                class.arenas.entry(extent.arena.unwrap_or_default()).or_default().add(counts);
            }
            None => finder.pages(heap, extent),
        }
    }
    let is_known = !accounts.is_empty();
    let rows = |sums: Sums| if is_known { pins(sums, accounts) } else { Vec::new() };
    let mut all = finder.sums;
    let size_classes = classes.into_iter().map(|(region_bytes, (class, sums))| {
        for (owner, (blocks, bytes)) in &sums {
            let sum = all.entry(*owner).or_default();
            *sum = (sum.0 + blocks, sum.1 + bytes);
        }
        SizeClassAccount { region_bytes, pins: rows(sums), ..class }
    });
    let size_classes = size_classes.collect();
    Pins { owners: rows(all), size_classes }
}

fn pins(sums: Sums, accounts: &[OwnerAccount]) -> Vec<Pin> {
    let mut pins: Vec<Pin> = sums
        .into_iter()
        .filter(|(_, (_, bytes))| *bytes > 0)
        .map(|(owner, (blocks, bytes))| {
            let account = owner.and_then(|owner| accounts.get(owner as usize));
            let (owner, kind) = match account {
                Some(account) => (account.name.clone(), account.kind),
                None => (CACHES.to_owned(), OwnerKind::None),
            };
            Pin { owner, kind, blocks, bytes }
        })
        .collect();
    pins.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.owner.cmp(&b.owner)));
    pins
}

struct Finder<'a> {
    index: AccountIndex<'a>,
    resident: Resident<'a>,
    /// Bytes of a page.
    page_size: u64,
    /// The numbers and owners of the blocks that keep the current slab or page.
    members: Vec<(usize, Option<u32>)>,
    /// The block that was counted last: the next page may have its end.
    counted: Option<usize>,
    /// The free resident bytes of the current slab or page.
    free_bytes: u64,
    /// Of pages.
    sums: Sums,
}

impl Finder<'_> {
    /// Counts a slab, and gives its free bytes to the owners of its regions. Returns the counts and the free bytes.
    fn slab(&mut self, heap: &HeapMap, slab: &Extent, sums: &mut Sums) -> (SlabCounts, u64) {
        let mut counts = SlabCounts { slabs: 1, ..SlabCounts::default() };
        for (number, block) in heap.blocks_of(slab) {
            counts.regions += 1;
            match block.state() {
                // Regions that were never made are one block, which nothing keeps.
                BlockState::Top => {
                    let region_bytes = slab.region_bytes.unwrap_or(1).max(1);
                    counts.regions += (block.bytes() / region_bytes).saturating_sub(1);
                }
                BlockState::Free => {
                    self.free_bytes += self.resident.bytes(&(block.address..block.end()));
                }
                BlockState::Tcache => {
                    counts.cached += 1;
                    self.members.push((number, None));
                }
                _ => {
                    counts.in_use += 1;
                    self.members.push((number, self.owner_of(number)));
                }
            }
        }
        let free_bytes = self.free_bytes;
        self.settle(Some(sums));
        (counts, free_bytes)
    }

    /// Gives the free bytes of an extent's pages to the owners of the blocks on the same pages.
    fn pages(&mut self, heap: &HeapMap, extent: &Extent) {
        let mut page = Address(0);
        let mut trimmable = heap.trimmable.partition_point(|range| range.end <= extent.range.start);
        for (number, block) in heap.blocks_of(extent) {
            let range = heap.header.footprint(block);
            let owner = match block.state() {
                BlockState::Free | BlockState::Top => {
                    while heap.trimmable.get(trimmable).is_some_and(|it| it.end <= range.start) {
                        trimmable += 1;
                    }
                    let returned = heap.trimmable.get(trimmable);
                    for part in without(&range, returned) {
                        self.add_free(&mut page, &part);
                    }
                    continue;
                }
                BlockState::Overhead => continue,
                BlockState::Tcache | BlockState::Fastbin => None,
                BlockState::InUse | BlockState::Mmapped => self.owner_of(number),
            };
            // Only its first and its last page can have room for free memory.
            let (first, last) = (range.start.align_down(self.page_size), self.last_page(&range));
            self.turn(&mut page, first);
            self.members.push((number, owner));
            if last > first {
                self.turn(&mut page, last);
                self.members.push((number, owner));
            }
        }
        self.settle(None);
    }

    fn add_free(&mut self, page: &mut Address, range: &Range<Address>) {
        let mut at = range.start;
        while at < range.end {
            self.turn(page, at.align_down(self.page_size));
            let end = page.offset(self.page_size).min(range.end);
            self.free_bytes += self.resident.bytes(&(at..end));
            at = end;
        }
    }

    /// Moves on to page `to`.
    fn turn(&mut self, page: &mut Address, to: Address) {
        if *page != to {
            self.settle(None);
            *page = to;
        }
    }

    fn last_page(&self, range: &Range<Address>) -> Address {
        range.end.before(1).align_down(self.page_size)
    }

    fn owner_of(&self, block: usize) -> Option<u32> {
        self.index.of_block(block)
    }

    /// Divides the free bytes among the blocks around them, and starts again.
    fn settle(&mut self, sums: Option<&mut Sums>) {
        let members = self.members.len() as u64;
        if self.free_bytes > 0 && members > 0 {
            let sums = sums.unwrap_or(&mut self.sums);
            let (part, rest) = (self.free_bytes / members, self.free_bytes % members);
            for (place, (number, owner)) in (0..).zip(&self.members) {
                let (blocks, bytes) = sums.entry(*owner).or_default();
                *blocks += u64::from(self.counted.replace(*number) != Some(*number));
                *bytes += part + u64::from(place < rest);
            }
        }
        self.members.clear();
        self.free_bytes = 0;
    }
}

/// The parts of `range` outside `cut`.
fn without(range: &Range<Address>, cut: Option<&Range<Address>>) -> [Range<Address>; 2] {
    match cut.map(|cut| intersection(range, cut)).filter(|cut| length(cut) > 0) {
        Some(cut) => [range.start..cut.start, cut.end..range.end],
        None => [range.clone(), range.end..range.end],
    }
}

/// Counts the resident bytes of ranges that ascend.
struct Resident<'a> {
    runs: &'a [PageRun],
}

impl Resident<'_> {
    fn bytes(&mut self, range: &Range<Address>) -> u64 {
        while let Some((first, rest)) = self.runs.split_first() {
            if first.range.end > range.start {
                break;
            }
            self.runs = rest;
        }
        let runs = self.runs.iter().take_while(|run| run.range.start < range.end);
        let runs = runs.filter(|run| run.state.is_resident());
        runs.map(|run| length(&intersection(&run.range, range))).sum()
    }
}
