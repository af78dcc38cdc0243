use serde_json::{Value, json};

use super::{Stacks, UNKNOWN, Weight};

impl Stacks {
    /// The stacks in speedscope's file format.
    #[must_use]
    pub fn speedscope(&self) -> String {
        let unknown = self.frames.len();
        let frame = |frame: &formats::WhoFrame| json!({ "name": frame.method, "file": frame.path, "line": frame.line });
        let mut frames: Vec<Value> = self.frames.iter().map(frame).collect();
        frames.push(json!({ "name": UNKNOWN }));
        let mut samples: Vec<Value> = self.rows.iter().map(|row| json!(row.frames)).collect();
        let mut weights: Vec<u64> = self.rows.iter().map(|row| row.weight).collect();
        if self.unknown > 0 {
            samples.push(json!([unknown]));
            weights.push(self.unknown);
        }
        let end: u64 = weights.iter().sum();
        let (name, unit) = match self.weight {
            Weight::GrownBytes => ("growth of RSS", "bytes"),
            Weight::KeptObjects => ("objects that stay", "none"),
        };
        let document = json!({
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "rbloat",
            "name": self.summary,
            "shared": { "frames": frames },
            "profiles": [{
                "type": "sampled", "name": name, "unit": unit,
                "startValue": 0, "endValue": end, "samples": samples, "weights": weights,
            }],
        });
        document.to_string() + "\n"
    }
}
