//! Standard output.

use std::io::{self, Write};

/// The width of output that does not go to a terminal, in columns.
const WIDTH: usize = 120;

/// Returns the width of the terminal in columns.
pub(crate) fn width() -> usize {
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0.into())
}

/// Writes text to standard output, without its colours if it is no terminal or NO_COLOR is set.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
