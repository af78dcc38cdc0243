//! Damaged recordings: reading one ends, and what was accepted can be drawn.

#![no_main]

use std::sync::OnceLock;

use formats::Recording;
use libfuzzer_sys::fuzz_target;
use rbloat_fuzz::{Leaves, patches};

const VALID: &str = include_str!("recording.jsonl");

fuzz_target!(|input: &[u8]| {
    let Some((&[choice, output], input)) = input.split_first_chunk() else { return };
    let mut bytes = VALID.as_bytes().to_vec();
    if choice & 1 == 0 {
        patches(input).for_each(|patch| patch.apply(&mut bytes));
    } else {
        bytes = damaged_values(input);
    }
    if let Ok(recording) = Recording::read(&bytes[..]) {
        let mut plot = render::Plot::default();
        plot.add("recording", &recording);
        match output % 16 {
            0 => drop(plot.render_html()),
            1 => drop(plot.render_png()),
            2..6 => drop(plot.render_svg()),
            _ => drop(plot.render_text(100)),
        }
    }
});

/// Replaces values of the line that the first byte selects.
fn damaged_values(input: &[u8]) -> Vec<u8> {
    static LINES: OnceLock<Vec<Leaves>> = OnceLock::new();
    let lines =
        LINES.get_or_init(|| VALID.lines().map(|line| Leaves::of(line.as_bytes())).collect());
    let Some((&first, input)) = input.split_first() else { return Vec::new() };
    let changed = usize::from(first) % lines.len();
    let mut bytes = Vec::new();
    for (index, (leaves, text)) in lines.iter().zip(VALID.lines()).enumerate() {
        if index == changed {
            bytes.extend(leaves.damaged(input).to_string().into_bytes());
        } else {
            bytes.extend(text.as_bytes());
        }
        bytes.push(b'\n');
    }
    bytes
}
