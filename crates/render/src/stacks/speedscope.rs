use serde_json::{Value, json};

use super::{Stacks, UNKNOWN, Weight};

impl Stacks {
    /// Returns `document`, a JSON object, with the stacks in speedscope's file format among its members. So one file is for speedscope,
    /// which ignores other members, and for the readers of the document.
    #[must_use]
    pub fn speedscope(&self, document: &str) -> String {
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
        let stacks = json!({
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "rbloat",
            "name": self.summary,
            "shared": { "frames": frames },
            "profiles": [{
                "type": "sampled", "name": name, "unit": unit,
                "startValue": 0, "endValue": end, "samples": samples, "weights": weights,
            }],
        });
        let members = document.trim_end().strip_suffix('}').unwrap_or(document).trim_end();
        let stacks = stacks.to_string();
        format!("{members},\n{}\n", stacks.strip_prefix('{').unwrap_or(&stacks))
    }
}
