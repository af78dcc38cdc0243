use ledger::{ArenaAccount, Cause, MallocAccount};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pins::{MallocTuning, PinRow, SizeClass};

/// The totals of malloc.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Malloc {
    /// Memory that the arenas obtained from the kernel.
    pub system_bytes: u64,
    /// The chunks that the program uses.
    pub in_use_chunks: u64,
    /// Their bytes.
    pub in_use_bytes: u64,
    /// The free chunks in bins, and the free memory at the top of each arena.
    pub free_chunks: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// The free chunks in fastbins.
    pub fastbin_chunks: u64,
    /// Their bytes.
    pub fastbin_bytes: u64,
    /// The free chunks in tcaches. malloc_info counts these as in use.
    pub tcache_chunks: u64,
    /// Their bytes.
    pub tcache_bytes: u64,
    /// The chunks that have a mapping of their own.
    pub mmapped_chunks: u64,
    /// Their bytes.
    pub mmapped_bytes: u64,
    /// The amount by which a trim (`malloc_trim(0)`, or jemalloc's `arena.4096.purge`) would lower RSS now.
    pub trim_yield_bytes: u64,
    /// The part of `trim_yield_bytes` that is in transparent huge pages with other memory in use. RSS falls at once, but the
    /// kernel frees this part only when it splits the huge pages, which it does when memory is short.
    pub trim_deferred_bytes: u64,
    /// The call that makes the allocator return free pages, such as `"malloc_trim(0)"`. `null` if it has none.
    pub trim_call: Option<String>,
    /// The allocator with its version: `"glibc 2.36"`, `"jemalloc 5.3.0"`.
    pub walker: String,
    /// The settings in effect. `null` if they were not found.
    pub tuning: Option<MallocTuning>,
    /// The owners whose blocks keep free memory resident, since the allocator returns only whole pages or slabs. Empty without
    /// owners. The last row sums up the small ones.
    pub pinned_by: Vec<PinRow>,
    /// jemalloc's slabs, by the size of their regions. Empty for glibc.
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
pub struct Arena {
    /// Its address.
    pub address: String,
    /// True for the main arena.
    pub main: bool,
    /// False if the arena could not be read. Its memory is in `unknown`, and the exit status is 6.
    pub walked: bool,
    /// The number of its heaps (jemalloc: of its active extents).
    pub heaps: u32,
    /// jemalloc: the number of threads that allocate from it. `null` for glibc.
    pub threads: Option<u32>,
    /// Memory that the arena obtained from the kernel.
    pub system_bytes: u64,
    /// Its resident bytes in use. This and the next six add up to its resident memory.
    pub in_use_bytes: u64,
    /// Its resident bytes with the cause `malloc.unreturned`.
    pub unreturned_bytes: u64,
    /// Those with the cause `malloc.muzzy`.
    pub muzzy_bytes: u64,
    /// Those with the cause `malloc.fragmented`.
    pub fragmented_bytes: u64,
    /// Those with the cause `malloc.cached`.
    pub cached_bytes: u64,
    /// Those with the cause `malloc.top`.
    pub top_bytes: u64,
    /// Those with the cause `malloc.overhead`.
    pub overhead_bytes: u64,
    /// Its bytes that are not resident: returned to the kernel, never touched, or in swap.
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
