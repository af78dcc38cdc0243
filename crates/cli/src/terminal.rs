//! Standard output and standard error. Beside this module only clap (help and version), indicatif (the line of progress) and
//! the crate `top` write to them. clippy checks the rest.
//!
//! Text may contain names that a process, a file or a file name chose. So each text passes [`plain`] on its way out.

#![expect(clippy::disallowed_methods, reason = "this is the module that writes")]

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::ColorChoice;
use render::plain;

/// The width of output that does not go to a terminal, in columns.
const WIDTH: usize = 120;

/// True if no progress is shown.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Sets when colours are used, and whether progress is shown.
pub(crate) fn set(color: clap::ColorChoice, is_quiet: bool) {
    match color {
        clap::ColorChoice::Auto => ColorChoice::Auto,
        clap::ColorChoice::Always => ColorChoice::Always,
        clap::ColorChoice::Never => ColorChoice::Never,
    }
    .write_global();
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Returns the width of the terminal in columns.
pub(crate) fn width() -> usize {
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0.into())
}

/// Returns true if standard output is a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdout().is_terminal()
}

/// Returns true if standard output is shown in colours.
pub(crate) fn has_colours() -> bool {
    anstream::AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Returns true if the user asked for no progress.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Returns true if progress is shown: standard error is a terminal, and the user did not ask for silence.
pub(crate) fn shows_progress() -> bool {
    io::stderr().is_terminal() && !is_quiet()
}

/// Writes text to standard output, without its colours if it is no terminal or NO_COLOR is set. It is no error if nobody reads it.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let text = plain(text);
    // anstream looks at each character. JSON of megabytes has no styles.
    match text.contains('\u{1b}') {
        true => write_to(anstream::stdout().lock(), &text),
        false => write_to(io::stdout().lock(), &text),
    }
}

fn write_to(mut out: impl Write, text: &str) -> io::Result<()> {
    unless_unread(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Drops the error that the reader has closed the pipe (`rbloat report 4242 | head -3`): the exit status is about the process.
fn unless_unread(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes text on a file that was written: to standard error if the file itself went to standard output.
pub(crate) fn print_beside(is_taken: bool, text: &str) -> io::Result<()> {
    match is_taken {
        true => print_error(text),
        false => print(text)?,
    }
    Ok(())
}

/// Writes sentences to standard output, wrapped on a terminal.
pub(crate) fn print_sentences(text: &str) -> io::Result<()> {
    print(&wrapped(text))
}

/// Returns sentences in lines that fit on the terminal, if there is one.
pub(crate) fn wrapped(text: &str) -> Cow<'_, str> {
    if !is_interactive() {
        return text.into();
    }
    let lines = text.lines().flat_map(|line| match line {
        "" => vec![String::new()],
        _ => render::wrapped(line, width()),
    });
    lines.map(|line| line + "\n").collect::<String>().into()
}

/// Writes a script or a page that clap generated to standard output.
pub(crate) fn print_generated(bytes: &[u8]) -> io::Result<()> {
    unless_unread(io::stdout().write_all(bytes))
}

/// Writes text to standard error, unless a screen is drawn. Errors are ignored: there is no other place to report them.
pub(crate) fn print_error(text: &str) {
    if top::is_taken() {
        return;
    }
    let _ = anstream::stderr().write_all(plain(text).as_bytes());
}

/// Writes a message to standard error. It takes one line, so no file name in it can look like another message.
pub(crate) fn complain(message: impl Display) {
    let message = message.to_string().replace('\n', "\\n");
    print_error(&format!("rbloat: {message}\n"));
}

/// Prints the next useful command, in one line. Only people on a terminal read it, unless they asked for silence.
pub(crate) fn suggest(command: &[&str]) -> io::Result<()> {
    if !is_interactive() || is_quiet() {
        return Ok(());
    }
    let words: Vec<_> = command.iter().map(|word| render::quoted(word)).collect();
    print(&format!("\nNext: {}\n", words.join(" ")))
}

/// Returns text for a file, without styles.
pub(crate) fn without_colours(text: &str) -> String {
    anstream::adapter::strip_str(&plain(text)).to_string()
}

/// Erases the last `lines` lines on standard output.
pub(crate) fn erase(lines: usize) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    write!(out, "\x1b[{lines}A\x1b[J")?;
    out.flush()
}
