//! Damaged memory of a process: every walk ends, nothing panics, and the rows still add up to RSS.

#![no_main]

use capture::{Address, Image, length};
use ledger::{Extent, Facts, Ledger};
use libfuzzer_sys::fuzz_target;
use rbloat_fuzz::{patches, process};

fuzz_target!(|input: &[u8]| {
    let Some((&choice, input)) = input.split_first() else { return };
    let (state, mut memory) = process(choice);
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
});
