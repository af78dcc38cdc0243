//! Inputs for the fuzz targets.
//!
//! A fuzzer rarely finds its way through checksums, compression and linked structures. Its input is therefore damage to
//! something valid: a list of patches.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use capture::{Address, Image, ProcessState, length};
use formats::{Capture, CaptureMethod, Snapshot};
use ledger::{Extent, Facts, Ledger};
use testkit::{
    GlibcRelease, JemallocHeap, JemallocRelease, MallocHeap, PagesUse, RubyHeap, RubyRelease,
    SyntheticMemory,
};

/// Bytes to write over something valid.
#[derive(Debug)]
pub struct Patch<'a> {
    place: u32,
    /// The new bytes, 1 to 8.
    pub bytes: &'a [u8],
}

impl Patch<'_> {
    /// The place to write to in something of `length` bytes; `None` if it has none.
    #[must_use]
    pub fn place(&self, length: usize) -> Option<usize> {
        (self.place as usize).checked_rem(length)
    }

    /// Writes the patch over `bytes`.
    pub fn apply(&self, bytes: &mut [u8]) {
        if let Some(place) = self.place(bytes.len()) {
            for (old, new) in bytes[place..].iter_mut().zip(self.bytes) {
                *old = *new;
            }
        }
    }
}

/// Parses a fuzzer's input: for each patch four bytes for the place, one for the length, and the new bytes.
pub fn patches(mut input: &[u8]) -> impl Iterator<Item = Patch<'_>> {
    std::iter::from_fn(move || {
        let (place, rest) = input.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first()?;
        let (bytes, rest) = rest.split_at_checked(usize::from(length % 8) + 1)?;
        input = rest;
        Some(Patch { place: u32::from_le_bytes(*place), bytes })
    })
}

/// A process with 3 threads, a glibc heap, and a Ruby whose strings and objects hold chunks of it.
///
/// `choice` selects the releases of glibc and Ruby.
#[must_use]
pub fn process(choice: u8) -> (ProcessState, SyntheticMemory) {
    let libc = [GlibcRelease::V2_31, GlibcRelease::V2_36, GlibcRelease::V2_43];
    let mut heap = MallocHeap::new(libc[usize::from(choice) % libc.len()], 3);
    let sizes = [24, 40, 100, 520, 1032, 5000, 70_000];
    let chunks: Vec<u64> =
        (0..60).map(|it| heap.malloc(it % 3, sizes[it % sizes.len()] + it as u64)).collect();
    heap.map_chunk(400_000);
    for (index, chunk) in chunks.iter().enumerate().filter(|(index, _)| index % 3 == 1) {
        heap.free(index % 3, *chunk);
    }
    let mut memory = SyntheticMemory::default();
    let truth = heap.write(&mut memory);
    write_ruby(&mut memory, choice, &chunks);
    let mut state = memory.state();
    state.threads = truth.threads;
    state.process.pid = state.threads[0].tid;
    (state, memory)
}

/// The same under jemalloc. `choice` selects the releases of jemalloc and Ruby, and the bits of addresses.
#[must_use]
pub fn jemalloc_process(choice: u8) -> (ProcessState, SyntheticMemory) {
    let releases = JemallocRelease::ALL;
    let lg_vaddr = if choice & 8 == 0 { 48 } else { 57 };
    let mut heap =
        JemallocHeap::new(releases[usize::from(choice & 7) % releases.len()], lg_vaddr, 3);
    let sizes = [8, 40, 100, 520, 1032, 5000, 20_000, 70_000];
    let chunks: Vec<u64> =
        (0..80).map(|it| heap.malloc(it % 3, sizes[it % sizes.len()] + it as u64)).collect();
    for (index, chunk) in chunks.iter().enumerate().filter(|(index, _)| index % 3 == 1) {
        heap.free(index % 3, *chunk);
        if index == 40 {
            heap.flush(1);
            heap.decay(0, PagesUse::Dirty, PagesUse::Muzzy);
        }
    }
    let mut memory = SyntheticMemory::default();
    heap.write(&mut memory);
    write_ruby(&mut memory, choice, &chunks);
    (memory.state(), memory)
}

/// Writes a Ruby with strings and objects that hold every third chunk.
fn write_ruby(memory: &mut SyntheticMemory, choice: u8, chunks: &[u64]) {
    let rubies = [RubyRelease::V3_1, RubyRelease::V3_4];
    let mut ruby = RubyHeap::new(rubies[usize::from(choice / 16) % rubies.len()]);
    for chunk in chunks.iter().step_by(3) {
        ruby.string_at(*chunk, 20);
    }
    ruby.write(memory);
}

/// Damages the memory of a process by the patches in `input`, and draws up its ledger: the rows must still add up to RSS.
pub fn examine_damaged(state: ProcessState, mut memory: SyntheticMemory, input: &[u8]) {
    let runs: Vec<_> = state.pages.iter().flat_map(|pages| pages.iter().cloned()).collect();
    let total: u64 = runs.iter().map(|run| length(&run.range)).sum();
    for patch in patches(input) {
        let Some(mut place) = patch.place(total as usize / 8).map(|word| word as u64 * 8) else {
            return;
        };
        for run in &runs {
            if place < length(&run.range) {
                let mut word = [0; 8];
                word[..patch.bytes.len()].copy_from_slice(patch.bytes);
                memory.write_u64(run.range.start.0 + place, u64::from_le_bytes(word));
                break;
            }
            place -= length(&run.range);
        }
    }
    let image = Image::new(state, memory);
    let extent = Extent { retained_sizes: true, memory_map: true };
    let (ledger, map) = Ledger::draw_up_to(extent, &image.state, &Facts::read(&image, true));
    let pages = image.state.pages.as_ref().expect("a synthetic process has pages");
    let resident = pages.resident_bytes(&(Address(0)..Address(u64::MAX)));
    assert_eq!(ledger.causes.total(), resident);
    assert_eq!(map.check(ledger.owners.len()), Ok(()));
}

/// The snapshot of a process with glibc's heap.
#[must_use]
pub fn snapshot() -> &'static Snapshot {
    static SNAPSHOT: OnceLock<Snapshot> = OnceLock::new();
    SNAPSHOT.get_or_init(draw_up_snapshot)
}

fn draw_up_snapshot() -> Snapshot {
    let (state, memory) = process(1);
    let image = Image::new(state, memory);
    let extent = Extent { retained_sizes: true, memory_map: true };
    let (ledger, memory_map) = Ledger::draw_up_to(extent, &image.state, &Facts::read(&image, true));
    let none = Duration::ZERO;
    let written = SystemTime::UNIX_EPOCH;
    let capture = Capture::new(CaptureMethod::Core, String::new(), written, none, none, None);
    Snapshot { report: diagnosis::report(&ledger, capture), memory_map }
}
