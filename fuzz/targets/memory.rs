//! Damaged memory of a process: every walk ends, nothing panics, and the rows still add up to RSS.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rbloat_fuzz::{examine_damaged, process};

fuzz_target!(|input: &[u8]| {
    let Some((&choice, input)) = input.split_first() else { return };
    let (state, memory) = process(choice);
    examine_damaged(state, memory, input);
});
