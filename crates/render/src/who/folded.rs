use std::fmt::Write;

use formats::{Who, WhoFrame};

/// The stacks in the form that flame graph tools read: frames from the outermost on, separated by semicolons, and bytes.
#[must_use]
pub fn folded(who: &Who) -> String {
    let mut text = String::new();
    for stack in who.stacks.iter().filter(|stack| stack.bytes > 0) {
        let frames = stack.frames.iter().filter_map(|&it| who.frames.get(it as usize));
        let names: Vec<String> =
            frames.map(|frame| name(frame).replace([';', '\n'], ",")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} {}", names.join(";"), stack.bytes);
    }
    if who.unknown_bytes > 0 {
        let _ = writeln!(text, "(unknown) {}", who.unknown_bytes);
    }
    text
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
