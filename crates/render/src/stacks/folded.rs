use std::fmt::Write;

use formats::WhoFrame;

use super::{Stacks, UNKNOWN};

impl Stacks {
    /// The stacks in the form that flame graph tools read: frames from the outermost on, separated by semicolons, and weights.
    #[must_use]
    pub fn folded(&self) -> String {
        let mut text = String::new();
        for (frames, weight) in self.stacks() {
            let names: Vec<String> =
                frames.into_iter().map(|frame| name(frame).replace([';', '\n'], ",")).collect();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{} {weight}", names.join(";"));
        }
        if self.unknown > 0 {
            let _ = writeln!(text, "{UNKNOWN} {}", self.unknown);
        }
        text
    }
}

/// A frame as one name: the method, and the end of its path.
pub(crate) fn name(frame: &WhoFrame) -> String {
    let file = |path: &String| path.rsplit('/').next().unwrap_or(path).to_owned();
    match (&frame.path, frame.line) {
        (Some(path), Some(line)) => format!("{} ({}:{line})", frame.method, file(path)),
        (Some(path), None) => format!("{} ({})", frame.method, file(path)),
        (None, _) => frame.method.clone(),
    }
}
