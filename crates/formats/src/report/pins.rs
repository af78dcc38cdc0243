use ledger::{Pin, SizeClassAccount, SlabCounts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most owners that are listed as pins.
const MAX_PINS: usize = 20;
/// The most owners that are listed for one size class.
const MAX_CLASS_PINS: usize = 5;
/// The largest value of a setting. It is longer than any process lives, and keeps sums of numbers small.
const MAX_SETTING: u64 = 1 << 40;

/// How the allocator is tuned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MallocTuning {
    /// The maximum number of arenas. `null` if it depends on the number of processors, and for jemalloc.
    pub arena_max: Option<u64>,
    /// jemalloc: the time after which free pages are released; -1 for never. `null` for glibc.
    pub dirty_decay_ms: Option<i64>,
    /// The same for muzzy pages. `null` for glibc.
    pub muzzy_decay_ms: Option<i64>,
    /// jemalloc: true if threads of its own do that. `null` for glibc.
    pub background_thread: Option<bool>,
}

/// The free resident memory that the blocks of one owner keep from being returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinRow {
    /// The owner, as in `owners[]`. `(thread caches)` are free blocks that threads keep.
    pub owner: String,
    /// Its kind, as in `owners[]`.
    pub kind: String,
    /// Its blocks beside free memory.
    pub blocks: u64,
    /// Its part of that memory. Blocks that keep the same memory have equal parts.
    pub bytes: u64,
}

/// The slabs of one size class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SizeClass {
    /// The size of a region.
    pub region_bytes: u64,
    /// The number of slabs.
    pub slabs: u64,
    /// The number of all regions.
    pub regions: u64,
    /// The number of those in use.
    pub in_use: u64,
    /// The number of those in thread caches.
    pub cached: u64,
    /// The free resident bytes in these slabs.
    pub free_bytes: u64,
    /// The owners that keep them.
    pub pinned_by: Vec<PinRow>,
    /// The same numbers for each arena.
    pub arenas: Vec<ArenaSlabs>,
}

/// The slabs of one size class in one arena.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArenaSlabs {
    /// An index into `arenas[]`.
    pub arena: u32,
    /// The number of slabs.
    pub slabs: u64,
    /// The number of all regions.
    pub regions: u64,
    /// The number of those in use.
    pub in_use: u64,
    /// The number of those in thread caches.
    pub cached: u64,
}

/// Returns a time, which a damaged process may have set to anything.
fn limited(milliseconds: i64) -> i64 {
    milliseconds.clamp(-1, MAX_SETTING.cast_signed())
}

impl From<ledger::Tuning> for MallocTuning {
    fn from(tuning: ledger::Tuning) -> Self {
        Self {
            arena_max: tuning.arena_max.map(|most| most.min(MAX_SETTING)),
            dirty_decay_ms: tuning.decay.map(|decay| limited(decay.dirty_ms)),
            muzzy_decay_ms: tuning.decay.map(|decay| limited(decay.muzzy_ms)),
            background_thread: tuning.decay.map(|decay| decay.in_background),
        }
    }
}

impl PinRow {
    /// The largest pins, and one row for the others, so that the rows still add up.
    pub(super) fn rows(pins: &[Pin]) -> Vec<Self> {
        Self::largest(pins, MAX_PINS)
    }

    fn largest(pins: &[Pin], max: usize) -> Vec<Self> {
        let (shown, others) = pins.split_at(pins.len().min(max));
        let mut rows: Vec<Self> = shown.iter().map(Self::from).collect();
        if !others.is_empty() {
            rows.push(Self {
                owner: format!("({} others)", others.len()),
                kind: "others".to_owned(),
                blocks: others.iter().map(|pin| pin.blocks).sum(),
                bytes: others.iter().map(|pin| pin.bytes).sum(),
            });
        }
        rows
    }
}

impl From<&Pin> for PinRow {
    fn from(pin: &Pin) -> Self {
        Self {
            owner: pin.owner.clone(),
            kind: pin.kind.name().to_owned(),
            blocks: pin.blocks,
            bytes: pin.bytes,
        }
    }
}

impl From<&SizeClassAccount> for SizeClass {
    fn from(class: &SizeClassAccount) -> Self {
        let SlabCounts { slabs, regions, in_use, cached } = class.slabs;
        Self {
            region_bytes: class.region_bytes,
            slabs,
            regions,
            in_use,
            cached,
            free_bytes: class.free_bytes,
            pinned_by: PinRow::largest(&class.pins, MAX_CLASS_PINS),
            arenas: class
                .arenas
                .iter()
                .map(|(&arena, &SlabCounts { slabs, regions, in_use, cached })| ArenaSlabs {
                    arena,
                    slabs,
                    regions,
                    in_use,
                    cached,
                })
                .collect(),
        }
    }
}
