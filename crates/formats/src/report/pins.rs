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
#[expect(missing_docs, reason = "see Report")]
pub struct MallocTuning {
    pub arena_max: Option<u64>,
    pub dirty_decay_ms: Option<i64>,
    pub muzzy_decay_ms: Option<i64>,
    pub background_thread: Option<bool>,
}

/// The free resident memory that the blocks of one owner keep from being returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct PinRow {
    pub owner: String,
    pub kind: String,
    pub blocks: u64,
    pub bytes: u64,
}

/// The slabs of one size class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct SizeClass {
    pub region_bytes: u64,
    pub slabs: u64,
    pub regions: u64,
    pub in_use: u64,
    pub cached: u64,
    pub free_bytes: u64,
    pub pinned_by: Vec<PinRow>,
    pub arenas: Vec<ArenaSlabs>,
}

/// The slabs of one size class in one arena.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct ArenaSlabs {
    pub arena: u32,
    pub slabs: u64,
    pub regions: u64,
    pub in_use: u64,
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
