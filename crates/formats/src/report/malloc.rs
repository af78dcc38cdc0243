use ledger::{ArenaAccount, Cause, MallocAccount};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pins::{MallocTuning, PinRow, SizeClass};

/// The totals of malloc.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Malloc {
    pub system_bytes: u64,
    pub in_use_chunks: u64,
    pub in_use_bytes: u64,
    pub free_chunks: u64,
    pub free_bytes: u64,
    pub fastbin_chunks: u64,
    pub fastbin_bytes: u64,
    pub tcache_chunks: u64,
    pub tcache_bytes: u64,
    pub mmapped_chunks: u64,
    pub mmapped_bytes: u64,
    pub trim_yield_bytes: u64,
    /// The part that leaves RSS at once, but is freed only when the kernel splits the huge pages around it.
    pub trim_deferred_bytes: u64,
    /// The call that makes the allocator return free pages, if it has one.
    pub trim_call: Option<String>,
    /// The allocator with its version, such as `jemalloc 5.3.0`.
    pub walker: String,
    pub tuning: Option<MallocTuning>,
    pub pinned_by: Vec<PinRow>,
    pub size_classes: Vec<SizeClass>,
}

impl From<&MallocAccount> for Malloc {
    fn from(account: &MallocAccount) -> Self {
        let totals = &account.totals;
        Self {
            system_bytes: totals.system_bytes,
            in_use_chunks: totals.in_use_chunks,
            in_use_bytes: totals.in_use_bytes,
            free_chunks: totals.free_chunks,
            free_bytes: totals.free_bytes,
            fastbin_chunks: totals.fastbin_chunks,
            fastbin_bytes: totals.fastbin_bytes,
            tcache_chunks: totals.tcache_chunks,
            tcache_bytes: totals.tcache_bytes,
            mmapped_chunks: totals.mmapped_chunks,
            mmapped_bytes: totals.mmapped_bytes,
            trim_yield_bytes: account.trim_yield_bytes,
            trim_deferred_bytes: account.trim_deferred_bytes,
            trim_call: account.trim_call.map(str::to_owned),
            walker: account.walker.clone(),
            tuning: account.tuning.map(MallocTuning::from),
            pinned_by: PinRow::rows(&account.pins),
            size_classes: account.size_classes.iter().map(SizeClass::from).collect(),
        }
    }
}

/// An arena: its resident bytes by use, and its bytes that are not resident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Arena {
    pub address: String,
    pub main: bool,
    /// False if the arena could not be read.
    pub walked: bool,
    pub heaps: u32,
    /// `None` if the allocator does not count them.
    pub threads: Option<u32>,
    pub system_bytes: u64,
    pub in_use_bytes: u64,
    pub unreturned_bytes: u64,
    pub muzzy_bytes: u64,
    pub fragmented_bytes: u64,
    pub cached_bytes: u64,
    pub top_bytes: u64,
    pub overhead_bytes: u64,
    pub returned_bytes: u64,
}

impl From<&ArenaAccount> for Arena {
    fn from(arena: &ArenaAccount) -> Self {
        let known = [
            Cause::MallocUnreturned,
            Cause::MallocMuzzy,
            Cause::MallocFragmented,
            Cause::MallocCached,
            Cause::MallocTop,
            Cause::MallocOverhead,
        ];
        let [unreturned, muzzy, fragmented, cached, top, overhead] =
            known.map(|cause| arena.causes[cause]);
        Self {
            address: arena.address.to_string(),
            main: arena.is_main,
            walked: arena.walked,
            heaps: arena.heaps,
            threads: arena.threads,
            system_bytes: arena.system_bytes,
            // All other bytes are in use, by Ruby or by other code.
            in_use_bytes: arena.causes.total()
                - (unreturned + muzzy + fragmented + cached + top + overhead),
            unreturned_bytes: unreturned,
            muzzy_bytes: muzzy,
            fragmented_bytes: fragmented,
            cached_bytes: cached,
            top_bytes: top,
            overhead_bytes: overhead,
            returned_bytes: arena.returned_bytes,
        }
    }
}
