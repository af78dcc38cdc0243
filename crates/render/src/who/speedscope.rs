use formats::Who;
use serde_json::{Value, json};

use crate::who::who_summary;

/// The stacks in speedscope's file format.
#[must_use]
pub fn speedscope(who: &Who) -> String {
    let unknown = who.frames.len();
    let frame = |frame: &formats::WhoFrame| json!({ "name": frame.method, "file": frame.path, "line": frame.line });
    let mut frames: Vec<Value> = who.frames.iter().map(frame).collect();
    frames.push(json!({ "name": "(unknown)" }));
    let grown = || who.stacks.iter().filter(|stack| stack.bytes > 0);
    let mut samples: Vec<Value> = grown().map(|stack| json!(stack.frames)).collect();
    let mut weights: Vec<u64> = grown().map(|stack| stack.bytes).collect();
    if who.unknown_bytes > 0 {
        samples.push(json!([unknown]));
        weights.push(who.unknown_bytes);
    }
    let end: u64 = weights.iter().sum();
    let document = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "rbloat",
        "name": who_summary(who),
        "shared": { "frames": frames },
        "profiles": [{
            "type": "sampled", "name": "growth of RSS", "unit": "bytes",
            "startValue": 0, "endValue": end, "samples": samples, "weights": weights,
        }],
    });
    document.to_string() + "\n"
}
