//! The whole screen of a terminal.
//!
//! While a [`Screen`] exists, the terminal is in raw mode and shows its other screen. It is restored when that value is
//! dropped, before the message of a panic, and before rbloat is stopped by ^Z.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::terminal::Terminal;
use ratatui_core::text::{Line, Span};
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

use crate::error::Error;

/// The other screen, without a cursor; a line that is too long is cut off.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?7h\x1b[?1049l";

/// The terminal to restore, and its modes.
static TO_RESTORE: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The screen of a terminal.
pub(crate) struct Screen {
    keyboard: File,
    output: File,
    terminal: Terminal<Output>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If standard input or output is no terminal, or one that can only print lines.
    pub(crate) fn take(has_colours: bool) -> Result<Self, Error> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|it| it.is_empty() || it == "dumb");
        let (keyboard, output) = (stdin()?, stdout()?);
        let why = match (isatty(&keyboard), isatty(&output), is_dumb) {
            (true, true, false) => return Ok(Self::of(keyboard, output, has_colours)?),
            (_, false, _) => "standard output is not a terminal",
            (false, ..) => "standard input is not a terminal",
            _ => "this terminal can only print lines (TERM is dumb or not set)",
        };
        Err(Error::NoScreen(why))
    }

    /// Takes the terminal that `keyboard` and `output` are open on.
    fn of(keyboard: File, output: File, has_colours: bool) -> io::Result<Self> {
        let backend = Output { file: output.try_clone()?, has_colours, pending: Vec::new() };
        let mut screen = Self { keyboard, output, terminal: Terminal::new(backend)? };
        screen.enter()?;
        Ok(screen)
    }

    fn enter(&mut self) -> io::Result<()> {
        let modes = tcgetattr(&self.keyboard)?;
        let mut raw = modes.clone();
        raw.make_raw();
        *to_restore() = Some((self.output.try_clone()?, modes));
        tcsetattr(&self.keyboard, OptionalActions::Flush, &raw)?;
        self.output.write_all(ENTER)?;
        self.terminal.clear()
    }

    /// Restores the terminal, calls `meanwhile`, and takes the terminal again. `meanwhile` gets a function that returns true if
    /// rbloat may take it.
    pub(crate) fn leave_for(
        &mut self,
        meanwhile: impl FnOnce(&dyn Fn() -> bool),
    ) -> io::Result<()> {
        restore();
        let is_in_foreground =
            || tcgetpgrp(&self.keyboard).is_ok_and(|group| group == rustix::process::getpgrp());
        meanwhile(&is_in_foreground);
        self.enter()
    }

    /// Draws everything again, since another program may have written to the terminal.
    pub(crate) fn redraw(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Draws these lines, as many as fit. `draw` gets the columns and lines of the terminal, and returns lines with rbloat's
    /// styles.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(Size) -> Vec<String>) -> io::Result<()> {
        draw_lines(&mut self.terminal, draw)
    }

    /// Reads what was typed. `None` if the terminal is gone.
    pub(crate) fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        match self.keyboard.read(&mut bytes) {
            Ok(0) => None,
            Ok(read) => {
                bytes.truncate(read);
                Some(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Some(Vec::new()),
            Err(_) => None,
        }
    }
}

impl AsFd for Screen {
    /// A descriptor that can be read when something was typed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.keyboard.as_fd()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Returns true while a screen is drawn, which other output would spoil.
#[must_use]
pub fn is_taken() -> bool {
    to_restore().is_some()
}

fn to_restore() -> std::sync::MutexGuard<'static, Option<(File, Termios)>> {
    TO_RESTORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restores the terminal if it is taken. Errors are ignored: then the terminal is gone.
pub fn restore() {
    if let Some((mut terminal, modes)) = to_restore().take() {
        let _ = terminal.write_all(LEAVE);
        let _ = tcsetattr(&terminal, OptionalActions::Now, &modes);
    }
}

fn stdin() -> io::Result<File> {
    owned(rustix::stdio::stdin())
}

fn stdout() -> io::Result<File> {
    owned(rustix::stdio::stdout())
}

fn owned(descriptor: BorrowedFd<'_>) -> io::Result<File> {
    let owned: OwnedFd = descriptor.try_clone_to_owned()?;
    Ok(owned.into())
}

/// Draws these lines on any terminal.
pub(crate) fn draw_lines<B: Backend>(
    terminal: &mut Terminal<B>,
    draw: impl FnOnce(Size) -> Vec<String>,
) -> Result<(), B::Error> {
    terminal.draw(|frame| {
        let area = frame.area();
        let lines = draw(area.as_size());
        for (y, line) in (area.top()..area.bottom()).zip(&lines) {
            frame.buffer_mut().set_line(0, y, &styled(line), area.width);
        }
    })?;
    Ok(())
}

/// Returns a line of text with rbloat's styles. All else in it is escaped.
fn styled(text: &str) -> Line<'static> {
    let text = render::plain(text);
    let mut spans = Vec::new();
    let mut style = Style::new();
    for (index, part) in text.split("\x1b[").enumerate() {
        let text = match part.split_once('m') {
            // Before each other part there is a style: nothing else passes the filter.
            Some((parameters, text)) if index > 0 => {
                style = parameters.split(';').fold(style, with);
                text
            }
            _ => part,
        };
        spans.push(Span::styled(text.to_owned(), style));
    }
    Line::from(spans)
}

/// Returns a style with a parameter of an escape sequence.
fn with(style: Style, parameter: &str) -> Style {
    match parameter {
        "1" => style.add_modifier(Modifier::BOLD),
        "2" => style.add_modifier(Modifier::DIM),
        "4" => style.add_modifier(Modifier::UNDERLINED),
        "31" => style.fg(Color::Red),
        "32" => style.fg(Color::Green),
        "33" => style.fg(Color::Yellow),
        _ => Style::new(),
    }
}

/// A terminal to draw on. What is drawn is written at once, when it is complete.
struct Output {
    file: File,
    has_colours: bool,
    pending: Vec<u8>,
}

impl Output {
    fn select(&mut self, cell: &Cell) {
        self.pending.extend(b"\x1b[0");
        for (modifier, parameter) in
            [(Modifier::BOLD, b";1"), (Modifier::DIM, b";2"), (Modifier::UNDERLINED, b";4")]
        {
            if cell.modifier.contains(modifier) {
                self.pending.extend(parameter);
            }
        }
        self.pending.extend(match cell.fg {
            Color::Red => b";31".as_slice(),
            Color::Green => b";32",
            Color::Yellow => b";33",
            _ => b"",
        });
        self.pending.push(b'm');
    }
}

impl Backend for Output {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, cells: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut cursor = None;
        let mut style = None;
        for (x, y, cell) in cells {
            if cursor != Some((x, y)) {
                write!(self.pending, "\x1b[{};{}H", y + 1, x + 1)?;
            }
            let wanted = (cell.fg, cell.modifier);
            if self.has_colours && style != Some(wanted) {
                self.select(cell);
                style = Some(wanted);
            }
            // The last barrier, should a symbol not have passed the filter for text.
            let symbol = cell.symbol();
            let symbol = if symbol.chars().any(linux::is_control) { "?" } else { symbol };
            self.pending.extend(symbol.as_bytes());
            // A terminal may draw other characters two columns wide.
            cursor = symbol.is_ascii().then_some((x + 1, y));
        }
        if self.has_colours && style.is_some() {
            self.pending.extend(b"\x1b[0m");
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, _: P) -> io::Result<()> {
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.pending.extend(b"\x1b[0m\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        /// The size of a terminal that does not know it, such as a serial line.
        const USUAL: Size = Size::new(80, 24);
        let size = tcgetwinsize(&self.file)?;
        let is_known = size.ws_col > 0 && size.ws_row > 0;
        Ok(if is_known { Size::new(size.ws_col, size.ws_row) } else { USUAL })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.pending);
        self.pending.clear();
        written
    }
}

/// A key, as a terminal sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// ^C
    Interrupt,
    /// ^Z
    Stop,
    /// ^L
    Redraw,
}

/// Takes the keys out of the bytes that were typed. What may be the beginning of a longer sequence remains, unless no more of
/// it comes.
pub(crate) fn take_keys(typed: &mut Vec<u8>, is_all: bool) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut taken = 0;
    while let Some((length, key)) = next_key(&typed[taken..], is_all) {
        keys.extend(key);
        taken += length;
    }
    typed.drain(..taken);
    keys
}

/// Returns the length of the first key and the key; no key for one without a meaning here. `None` if it is incomplete.
fn next_key(typed: &[u8], is_all: bool) -> Option<(usize, Option<Key>)> {
    let key = match *typed.first()? {
        b'\r' | b'\n' => Key::Enter,
        0x7f | 0x08 => Key::Backspace,
        0x03 => Key::Interrupt,
        0x1a => Key::Stop,
        0x0c => Key::Redraw,
        0x1b => return sequence(typed).or_else(|| is_all.then_some((1, Some(Key::Escape)))),
        0..0x20 => return Some((1, None)),
        first => {
            let length = match first {
                0xc0..0xe0 => 2,
                0xe0..0xf0 => 3,
                0xf0.. => 4,
                _ => 1,
            };
            let Some(bytes) = typed.get(..length) else { return is_all.then_some((1, None)) };
            let char = str::from_utf8(bytes).ok().and_then(|text| text.chars().next());
            return Some(char.map_or((1, None), |char| (length, Some(Key::Char(char)))));
        }
    };
    Some((1, Some(key)))
}

/// Returns the length of an escape sequence and its key: `ESC [ parameters letter`, or `ESC O letter`. A second escape ends the
/// first one.
fn sequence(typed: &[u8]) -> Option<(usize, Option<Key>)> {
    let (parameters, last) = match typed.get(1)? {
        b'[' => {
            let length = typed[2..].iter().position(|it| (0x40..0x7f).contains(it))?;
            (&typed[2..2 + length], 2 + length)
        }
        b'O' => (&[][..], 2),
        0x1b => return Some((1, Some(Key::Escape))),
        // Alt and a key.
        _ => return Some((2, None)),
    };
    let key = match (*typed.get(last)?, parameters) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        (b'M', _) => Some(Key::Enter),
        _ => None,
    };
    Some((last + 1, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(typed: &[u8]) -> Vec<Key> {
        let mut typed = typed.to_vec();
        let keys = take_keys(&mut typed, true);
        assert!(typed.is_empty(), "{typed:?}");
        keys
    }

    #[test]
    fn keys_are_what_a_terminal_sends_for_them() {
        assert_eq!(
            keys(b"q\r\x7f\x03"),
            [Key::Char('q'), Key::Enter, Key::Backspace, Key::Interrupt]
        );
        assert_eq!(
            keys(b"\x1b[A\x1bOB\x1b[5~\x1b[6~"),
            [Key::Up, Key::Down, Key::PageUp, Key::PageDown]
        );
        assert_eq!(keys("ä漢".as_bytes()), [Key::Char('ä'), Key::Char('漢')]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1b\x1b[A"), [Key::Escape, Key::Up]);
        // Others, and bytes that are no text.
        assert_eq!(keys(b"\x1b[1;5C\x1bx\x01\xff\xc3q"), [Key::Char('q')]);
    }

    /// Over a slow connection a sequence arrives in parts.
    #[test]
    fn a_part_of_a_sequence_waits_for_the_rest() {
        let mut typed = b"a\x1b".to_vec();
        assert_eq!(take_keys(&mut typed, false), [Key::Char('a')]);
        typed.extend(b"[");
        assert!(take_keys(&mut typed, false).is_empty());
        typed.extend(b"B\xc3");
        assert_eq!(take_keys(&mut typed, false), [Key::Down]);
        typed.extend(b"\xa4");
        assert_eq!(take_keys(&mut typed, false), [Key::Char('ä')]);
    }

    #[test]
    fn styles_become_those_of_cells_and_all_else_is_escaped() {
        let line = styled("a\x1b[1m\x1b[31mb\x1b[0mc\x1b]0;x\x07\x1b[2J");
        let spans: Vec<_> = line.spans.iter().map(|it| (it.content.as_ref(), it.style)).collect();
        let bold = Style::new().add_modifier(Modifier::BOLD);
        assert_eq!(spans[0], ("a", Style::new()));
        assert_eq!(spans[1], ("", bold));
        assert_eq!(spans[2], ("b", bold.fg(Color::Red)));
        assert_eq!(spans[3], ("c\\u{1b}]0;x\\u{7}\\u{1b}[2J", Style::new()));
    }

    #[test]
    fn a_panic_of_any_thread_restores_the_terminal_first() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let (mut master, slave) = (File::from(pty.master), File::from(pty.slave));
        let modes = || format!("{:?}", tcgetattr(&slave).unwrap());
        let before = modes();
        examine::set_panic_hook(|_, _| restore());
        let screen = Screen::of(slave.try_clone().unwrap(), slave.try_clone().unwrap(), true);
        assert_ne!(modes(), before);
        // One of a single process is that process's failure, whatever thread it is of.
        let panics = || -> Result<(), Error> { panic!("on purpose") };
        let panics_on_a_thread = || linux::both(|| (), panics).1;
        for examine in [&panics as &dyn Fn() -> Result<(), Error>, &panics_on_a_thread] {
            let failure = examine::isolated(42, examine).unwrap_err().to_string();
            assert!(
                failure.contains("process 42") && failure.contains("on purpose ("),
                "{failure}"
            );
        }
        assert_ne!(modes(), before);
        assert!(std::thread::spawn(|| panic!("on purpose")).join().is_err());
        assert_eq!(modes(), before);
        drop(screen);
        drop(slave);
        // The kernel passes on what was written in its own time. The end is the error EIO.
        let mut written = Vec::new();
        master.read_to_end(&mut written).unwrap_err();
        assert!(written.starts_with(ENTER) && written.ends_with(LEAVE), "{written:?}");
        let restored = written.windows(LEAVE.len()).filter(|part| *part == LEAVE);
        assert_eq!(restored.count(), 1);
    }
}
