//! Damaged recordings: reading one ends, and what was accepted can be drawn.

#![no_main]

use formats::Recording;
use libfuzzer_sys::fuzz_target;
use rbloat_fuzz::patches;

const VALID: &str = include_str!("recording.jsonl");

fuzz_target!(|input: &[u8]| {
    let mut bytes = VALID.as_bytes().to_vec();
    patches(input).for_each(|patch| patch.apply(&mut bytes));
    if let Ok(recording) = Recording::from_bytes(&bytes) {
        let mut plot = render::Plot::new(true);
        plot.add("recording", &recording);
        let _ = plot.render_text();
        let _ = plot.render_svg();
    }
});
