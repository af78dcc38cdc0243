//! `rbloat top`, on a terminal.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use testkit::Target;

use crate::rbloat;

/// `rbloat top` on a terminal of its own.
pub(crate) struct Top {
    script: Child,
    keyboard: ChildStdin,
    output: ChildStdout,
    bytes: Vec<u8>,
    size: (usize, usize),
    folder: tempfile::TempDir,
}

impl Top {
    /// Starts it with `words` on a terminal of these columns and lines.
    pub(crate) fn start(words: &str, size: (usize, usize)) -> Self {
        Self::run(size, &format!("sh -c 'echo $$ >PID; exec RBLOAT top --max-pause 10s {words}'"))
    }

    /// Runs a shell command on the terminal. `RBLOAT` stands for the program, and `PID`, `BEFORE` and `AFTER` for files.
    fn run(size: (usize, usize), line: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut line = format!("stty cols {} rows {} -echo; {line}", size.0, size.1);
        for name in ["PID", "BEFORE", "AFTER"] {
            line = line.replace(name, &path(name));
        }
        let line = line.replace("RBLOAT", env!("CARGO_BIN_EXE_rbloat"));
        // script(1) gives the command a terminal of its own.
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", "1");
        command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().unwrap();
        let (keyboard, output) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        Self { script, keyboard, output, bytes: Vec::new(), size, folder }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits until the screen satisfies `is_it`, and returns it.
    #[track_caller]
    pub(crate) fn wait(&mut self, is_it: impl Fn(&str) -> bool) -> String {
        loop {
            let screen = self.screen();
            if is_it(&screen) {
                return screen;
            }
            assert!(self.read(), "{screen}\n{}", String::from_utf8_lossy(&self.bytes));
        }
    }

    fn read(&mut self) -> bool {
        let mut part = [0; 4096];
        let read = self.output.read(&mut part).unwrap();
        self.bytes.extend(&part[..read]);
        read > 0
    }

    /// The text on the screen.
    fn screen(&self) -> String {
        let (columns, lines) = self.size;
        let mut grid = vec![vec![' '; columns]; lines];
        let text = String::from_utf8_lossy(&self.bytes);
        let (mut x, mut y) = (0, 0);
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '\x1b' => {
                    let sequence: String =
                        chars.by_ref().skip(1).take_while_inclusive(char::is_ascii_alphabetic);
                    if sequence.ends_with('J') {
                        grid = vec![vec![' '; columns]; lines];
                    } else if let Some(place) = sequence.strip_suffix('H') {
                        let (line, column) = place.split_once(';').unwrap();
                        (x, y) = (
                            column.parse::<usize>().unwrap() - 1,
                            line.parse::<usize>().unwrap() - 1,
                        );
                    }
                }
                '\r' | '\n' => {}
                char => {
                    if let Some(cell) = grid.get_mut(y).and_then(|line| line.get_mut(x)) {
                        *cell = char;
                    }
                    x += 1;
                }
            }
        }
        let lines: Vec<String> = grid
            .into_iter()
            .map(|line| line.into_iter().collect::<String>().trim_end().to_owned())
            .collect();
        lines.join("\n")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The process id of rbloat.
    pub(crate) fn pid(&self) -> i32 {
        loop {
            if let Ok(pid) = fs::read_to_string(self.file("PID")).unwrap_or_default().trim().parse()
            {
                return pid;
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the end. Returns the exit status, and everything that was written.
    pub(crate) fn end(mut self) -> (i32, String) {
        while self.read() {}
        let status = self.script.wait().unwrap().code().unwrap();
        (status, String::from_utf8_lossy(&self.bytes).into_owned())
    }
}

/// Takes characters up to the first one for which a condition holds, with it.
trait TakeWhileInclusive: Iterator<Item = char> + Sized {
    fn take_while_inclusive(self, is_last: impl Fn(&char) -> bool) -> String {
        let mut taken = String::new();
        for char in self {
            taken.push(char);
            if is_last(&char) {
                break;
            }
        }
        taken
    }
}

impl<I: Iterator<Item = char>> TakeWhileInclusive for I {}

/// Waits for the causes of all processes with this word in their command lines, opens the report on the first one, and quits.
pub(crate) fn examine(word: &str) {
    let mut top = Top::start(word, (100, 40));
    top.wait(|screen| screen.contains("causes, ") && !screen.contains("..."));
    top.press("\r");
    top.wait(|screen| screen.contains("Report on process") && screen.contains(" CAUSE "));
    top.press("qq");
    assert_eq!(top.end().0, 0);
}

/// A word for the command line of a test's processes that no other process has.
pub(crate) fn word(name: &str) -> String {
    format!("{name}_{}", std::process::id())
}

/// The figures of the kernel, in MiB as they are shown.
fn rollup(pid: i32) -> [String; 2] {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    ["Rss:", "Pss:"].map(|key| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        let kilobytes: f64 = line.split_whitespace().next().unwrap().parse().unwrap();
        format!("{:.1}", kilobytes / 1024.0)
    })
}

#[test]
fn a_family_is_a_tree_with_the_figures_of_the_kernel() {
    let word = word("family");
    let mut command = testkit::ruby();
    let source = "$kept = 'x' * (30 << 20)
         reader, writer = IO.pipe
         grown, ready = IO.pipe
         children = Array.new(2) { |at| fork { $own = 'y' * ((at + 1) << 22); $stdin.close; writer.close; ready.write('.'); reader.read } }
         grown.read(2)
         puts \"ready {\\\"children\\\": #{children}}\"; $stdout.flush; $stdin.read";
    let target = Target::start(command.args(["--disable-gems", "-e", source, &word]));
    let children = target.truth["children"].as_array().unwrap();
    let pids: Vec<i32> = std::iter::once(target.pid())
        .chain(children.iter().map(|pid| pid.as_i64().unwrap() as i32))
        .collect();
    let mut top = Top::start(&word, (100, 24));
    let row = |screen: &str, pid: i32| {
        let has = |line: &&str| line.split_whitespace().any(|it| it == pid.to_string());
        screen.lines().skip(2).take(5).find(has).map(str::to_owned)
    };
    // Until all of them were read at an instant when nothing changed.
    let screen = top.wait(|screen| {
        pids.iter().all(|&pid| {
            let Some(row) = row(screen, pid) else { return false };
            let after: Vec<&str> =
                row.split_whitespace().skip_while(|it| *it != pid.to_string()).skip(1).collect();
            after.len() > 2 && after[..2] == rollup(pid)
        })
    });
    assert!(screen.starts_with("3 Ruby processes  ·  PSS "), "{screen}");
    let branches: Vec<char> =
        pids.iter().map(|&pid| row(&screen, pid).unwrap().chars().nth(2).unwrap()).collect();
    // The second child is larger.
    assert_eq!(branches, [' ', '└', '├'], "{screen}");
    // Each of them is captured, the selected one first.
    top.wait(|screen| screen.contains("causes, ") && !screen.contains("..."));
    top.press("\r");
    let report = top.wait(|screen| screen.contains(" CAUSE "));
    assert!(report.contains(&format!("pid {} ", target.pid())), "{report}");
    top.press("\x1b[6~\x1b[6~");
    top.wait(|screen| screen.contains("RETAINED BY"));
    top.press("\x1b");
    top.wait(|screen| screen.contains("LIMIT %"));
    top.press("q");
    let (status, shown) = top.end();
    assert_eq!(status, 0);
    assert!(shown.contains("\x1b[?1049h") && shown.ends_with("\x1b[?1049l"), "{shown}");
    // Without colours.
    assert!(!shown.contains("\x1b[1m") && !shown.contains("\x1b[0;"), "{shown}");
    assert!(target.finish());
}

#[test]
fn a_trim_asks_first_and_frees_what_it_predicted() {
    let word = word("burst");
    let source = "Thread.new { Array.new(40_000) { 'x' * 2000 }; nil }.join; GC.start
                  puts 'ready {}'; $stdout.flush; $stdin.read";
    let target = Target::start(testkit::ruby().args(["--disable-gems", "-e", source, &word]));
    let mut top = Top::start(&word, (80, 24));
    top.wait(|screen| screen.contains("LIMIT %"));
    let before = target.rss_bytes();
    top.press("t");
    let screen = top.wait(|screen| screen.contains("Return this memory now?"));
    let (_, rest) = screen.split_once("(-").unwrap();
    let digits: String = rest.split_once(" KiB").unwrap().0.replace([',', '\n'], "");
    let predicted = digits.parse::<u64>().unwrap() << 10;
    assert!(predicted > 50 << 20, "{screen}");
    // A thread of Ruby's own may touch a page meanwhile.
    assert!(target.rss_bytes().abs_diff(before) < 1 << 20);
    top.press("y");
    top.wait(|screen| screen.contains("threads kept running"));
    let freed = before - target.rss_bytes();
    assert!(freed.abs_diff(predicted) <= predicted / 100 + (64 << 10), "{freed}, {predicted}");
    // It is asked for once.
    top.press("y");
    top.press("n");
    top.wait(|screen| screen.contains("LIMIT %"));
    top.press("s");
    let screen = top.wait(|screen| screen.contains("next: rbloat report rbloat-"));
    assert!(screen.contains(&format!("rbloat-{}-", target.pid())), "{screen}");
    let snapshots = fs::read_dir(top.folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().ends_with(".rbloat"));
    assert_eq!(snapshots.count(), 1);
    top.press("\x03");
    assert_eq!(top.end().0, 0);
    assert!(target.finish());
}

#[test]
fn a_process_that_cannot_be_read_shows_why() {
    let word = word("traced");
    let target = Target::start(testkit::ruby().args([
        "--disable-gems",
        "-e",
        "puts 'ready {}'; $stdout.flush; $stdin.read",
        &word,
    ]));
    // A process can have one tracer only.
    let mut tracer = Command::new("strace");
    tracer.args(["-f", "-o", "/dev/null", "-p", &target.pid().to_string()]);
    let Ok(mut tracer) = tracer.stderr(Stdio::null()).spawn() else {
        return testkit::skip("strace is missing");
    };
    while target.status("TracerPid:") == "0" {
        std::thread::yield_now();
    }
    let mut top = Top::start(&word, (80, 24));
    let screen = top.wait(|screen| screen.contains("not read: "));
    assert!(screen.contains("traced"), "{screen}");
    top.press("q");
    assert_eq!(top.end().0, 0);
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    assert!(target.finish());
}

/// Starts `rbloat top` on a terminal whose modes are written to files before and after it.
fn between_modes(word: &str) -> Top {
    let line = format!(
        "stty -g >BEFORE; sh -c 'echo $$ >PID; exec RBLOAT top {word}'; echo status $?; stty -g >AFTER"
    );
    let mut top = Top::run((80, 24), &line);
    top.wait(|screen| screen.contains(" q quit"));
    top
}

#[track_caller]
fn assert_restored(top: Top, status: i32) {
    let (before, after) = (top.file("BEFORE"), top.file("AFTER"));
    // `end` removes the folder.
    let mut top = top;
    while top.read() {}
    let modes = [before, after].map(|path| fs::read_to_string(path).unwrap());
    let shown = top.end().1;
    assert_eq!(modes[0], modes[1]);
    let (_, after) = shown.rsplit_once("\x1b[?1049l").unwrap();
    assert!(after.contains(&format!("status {status}")), "{after}");
    assert!(shown.contains("\x1b[?25h"), "the cursor is hidden");
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    for (signal, status) in [("TERM", 143), ("HUP", 129), ("INT", 130)] {
        let top = between_modes(&word("nothing"));
        let killed =
            Command::new("kill").args([&format!("-{signal}"), &top.pid().to_string()]).status();
        assert!(killed.unwrap().success());
        assert_restored(top, status);
    }
    for keys in ["q", "\x03"] {
        let mut top = between_modes(&word("nothing"));
        top.press(keys);
        assert_restored(top, 0);
    }
}

#[test]
fn a_stop_restores_the_terminal_until_it_continues() {
    // With job control, as in an interactive shell.
    let line = format!(
        "stty -g >BEFORE; set -m; RBLOAT top {}; stty -g >AFTER; echo stopped; read go; fg; echo over",
        word("nothing")
    );
    let mut top = Top::run((80, 24), &line);
    top.wait(|screen| screen.contains(" q quit"));
    top.press("\x1a");
    while !String::from_utf8_lossy(&top.bytes).contains("stopped\r\n") {
        assert!(top.read());
    }
    let modes = ["BEFORE", "AFTER"].map(|name| fs::read_to_string(top.file(name)).unwrap());
    assert_eq!(modes[0], modes[1]);
    let shown = top.bytes.len();
    top.press("\n");
    while !String::from_utf8_lossy(&top.bytes[shown..]).contains("\x1b[2J") {
        assert!(top.read());
    }
    top.wait(|screen| screen.contains(" q quit"));
    top.press("q");
    let (_, shown) = top.end();
    assert!(shown.rsplit_once("\x1b[?1049l").unwrap().1.contains("over"), "{shown}");
}

#[test]
fn a_size_that_changes_is_followed() {
    let mut top = Top::start(&word("nothing"), (80, 24));
    let screen = top.wait(|screen| screen.contains(" q quit"));
    assert!(screen.lines().nth(23).unwrap().contains("q quit"));
    let terminal = fs::read_link(format!("/proc/{}/fd/0", top.pid())).unwrap();
    top.size = (40, 10);
    let mut resize = Command::new("stty");
    resize.args(["-F", terminal.to_str().unwrap(), "cols", "40", "rows", "10"]);
    assert!(resize.status().unwrap().success());
    let screen =
        top.wait(|screen| screen.lines().nth(9).is_some_and(|line| line.contains("q quit")));
    assert!(screen.contains("Enter report  ? help"), "{screen}");
    top.press("q");
    assert_eq!(top.end().0, 0);
}

#[test]
fn without_a_screen_it_is_said_what_to_use_instead() {
    let (status, line) =
        crate::complaint(&rbloat().arg("top").stdin(Stdio::null()).output().unwrap());
    assert_eq!(status, 2);
    assert!(line.contains("standard output is not a terminal"), "{line}");
    assert!(
        line.contains("`rbloat` lists the Ruby processes once")
            && line.contains("`rbloat record PID`"),
        "{line}"
    );
    let top = Top::run((80, 24), "TERM=dumb RBLOAT top");
    let (status, shown) = top.end();
    assert_eq!(status, 2);
    assert!(shown.contains("TERM is dumb") && !shown.contains('\x1b'), "{shown}");
}

/// Captures of many processes in one place cost little.
#[test]
fn keys_work_while_a_process_is_read() {
    let word = word("large");
    let source =
        "$kept = Array.new(1_000_000) { 'x' * 50 }; puts 'ready {}'; $stdout.flush; $stdin.read";
    let target = Target::start(testkit::ruby().args(["--disable-gems", "-e", source, &word]));
    let mut top = Top::start(&word, (80, 24));
    top.wait(|screen| screen.contains("LIMIT %"));
    top.press("\r");
    top.wait(|screen| screen.contains("reading it ..."));
    top.press("\x1b");
    top.wait(|screen| screen.contains("LIMIT %"));
    top.press("?");
    top.wait(|screen| screen.contains("KEYS"));
    top.press("qq");
    assert_eq!(top.end().0, 0);
    assert_eq!(target.status("TracerPid:"), "0");
    assert!(target.finish());
}
