use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// Returns when all threads of the process sleep at one instant. A target that is ready may still take its last steps.
///
/// # Panics
/// If there is no such process.
pub fn wait_until_asleep(pid: i32) {
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    wait_until_settled(|| tasks().map(|task| switches_of_sleeper(&task.ok()?.path())).collect());
}

/// Returns when the threads of which `switches` has the numbers of switches sleep, and did so at the look before.
fn wait_until_settled(switches: impl Fn() -> Option<Vec<String>>) {
    // A thread that is about to wait may sleep for a moment before, for example for a page.
    let mut before = None;
    loop {
        let now = switches();
        if now.is_some() && now == before {
            return;
        }
        before = now;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The number of times that the thread with this folder of /proc stopped running; `None` if it does not sleep.
fn switches_of_sleeper(thread: &Path) -> Option<String> {
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    field("State:")?.trim_start().starts_with('S').then_some(())?;
    Some(field("voluntary_ctxt_switches:")?.to_owned())
}

const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// A real process to examine. It is killed when this value is dropped, also by a panic.
///
/// The protocol is described in `scenarios/README.md`: when the target has reached its state it prints a line `ready `
/// and a JSON object, its truth, and waits until its standard input ends.
#[derive(Debug)]
pub struct Target {
    child: Child,
    /// The process to examine, if the child only started it.
    descendant: Option<i32>,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The facts that the target reports about itself in its first `ready` line.
    pub truth: Value,
}

impl Target {
    /// Starts `command` and waits until it is ready.
    ///
    /// # Panics
    /// If it cannot be started or ends before it is ready.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                Ok(child) => break child,
                // A program that a test has just copied: a process that another test started meanwhile has it open for a moment.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now()
                }
                Err(error) => panic!("{command:?}: {error}"),
            }
        };
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut target = Self { child, descendant: None, input, output, truth: Value::Null };
        target.truth = target.next_truth();
        target
    }

    /// Starts a Ruby program from `scenarios/`, with arguments.
    #[must_use]
    pub fn scenario(name: &str, arguments: &[&str]) -> Self {
        Self::start(crate::scenario(name).args(arguments))
    }

    /// Starts the Ruby program `source`.
    #[must_use]
    pub fn ruby(source: &str) -> Self {
        Self::start(crate::ruby().args(["-e", source]))
    }

    /// Starts the Ruby program `source` without RubyGems: that takes a tenth of the time, and captures take half.
    #[must_use]
    pub fn bare_ruby(source: &str) -> Self {
        Self::start(crate::ruby().args(["--disable-gems", "-e", source]))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.descendant.unwrap_or_else(|| self.child.id().cast_signed())
    }

    /// Makes `descendant`, a descendant of the started process, the process to examine.
    #[must_use]
    pub fn at(mut self, descendant: i32) -> Self {
        self.descendant = Some(descendant);
        self
    }

    /// The JSON object of its next `ready` line. Other lines are skipped.
    ///
    /// # Panics
    /// If the target ends before it prints one.
    pub fn next_truth(&mut self) -> Value {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).expect("its output can be read");
            assert!(read > 0, "the target ended before it was ready: {:?}", self.child.wait());
            if let Some(truth) = line.strip_prefix("ready ") {
                return serde_json::from_str(truth)
                    .unwrap_or_else(|error| panic!("{error}: {line}"));
            }
        }
    }

    /// A number of its truth.
    ///
    /// # Panics
    /// If the truth has no such number.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        let value = self.truth[name].as_u64();
        value.unwrap_or_else(|| panic!("no number {name} in {}", self.truth))
    }

    /// Stops it with SIGSTOP and returns when it is stopped.
    pub fn stop(&self) {
        self.signal(SIGSTOP);
        self.wait_until_stopped();
    }

    /// Stops it with SIGSTOP when its main thread sleeps: having said that it is ready, it may still be inside malloc.
    pub fn stop_asleep(&self) {
        let folder = PathBuf::from(format!("/proc/{}", self.pid()));
        wait_until_settled(|| Some(vec![switches_of_sleeper(&folder)?]));
        self.stop();
    }

    /// Returns when it is stopped by SIGSTOP, from outside or by itself.
    pub fn wait_until_stopped(&self) {
        while !self.status("State:").starts_with('T') {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Continues it after [`Target::stop`].
    pub fn go_on(&self) {
        self.signal(SIGCONT);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // The shell's own kill: it knows real-time signals by their numbers.
        let kill = format!("kill -{signal} {}", self.pid());
        let sent = Command::new("sh").args(["-c", &kill]).status().expect("there is a shell");
        assert!(sent.success(), "{kill}");
    }

    /// Sends it a signal that ends it, and waits until it has ended.
    pub fn end_by(&mut self, signal: i32) {
        self.signal(signal);
        let _ = self.child.wait();
    }

    /// The rest of the line of its /proc/PID/status that begins with `key`.
    #[must_use]
    pub fn status(&self, key: &str) -> String {
        let path = format!("/proc/{}/status", self.pid());
        let text = std::fs::read_to_string(path).expect("the target lives");
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    }

    /// Its resident bytes, by /proc/PID/smaps_rollup.
    #[must_use]
    pub fn rss_bytes(&self) -> u64 {
        self.smaps_rollup("Rss:")
    }

    /// Its resident anonymous bytes, by /proc/PID/smaps_rollup.
    #[must_use]
    pub fn anonymous_bytes(&self) -> u64 {
        self.smaps_rollup("Anonymous:")
    }

    /// Its bytes in swap, by /proc/PID/smaps_rollup.
    #[must_use]
    pub fn swap_bytes(&self) -> u64 {
        self.smaps_rollup("Swap:")
    }

    fn smaps_rollup(&self, key: &str) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.pid());
        let text = std::fs::read_to_string(path).expect("the target lives");
        let line =
            text.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel counts it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") * 1024
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    /// If it no longer reads its input.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input ends with finish() only");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the target reads its input");
    }

    /// Ends its standard input and waits for it. Returns true if it exits with 0.
    pub fn finish(mut self) -> bool {
        drop(self.input.take());
        self.child.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a C program or library of `testkit/rust/c/` with the `cc` of the targets' system and returns the path of the result, which
/// lies within `folder`.
///
/// # Panics
/// If the compiler fails.
pub fn compile(name: &str, folder: &Path, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name).with_extension("c");
    let folder = folder_of_system(folder, crate::root().as_deref());
    std::fs::create_dir_all(&folder).expect("it can be created");
    // Another test may start the program while this one compiles it.
    let written = tempfile::tempdir_in(&folder).expect("it can be created");
    let output = written.path().join(name);
    let done = crate::command("cc")
        .args(["-O1", "-g", "-Wall", "-o"])
        .args([output.as_os_str(), source.as_os_str()])
        .args(flags)
        .status()
        .expect("cc is installed");
    assert!(done.success(), "cc {}", source.display());
    let compiled = folder.join(name);
    std::fs::rename(output, &compiled).expect("both lie in one folder");
    compiled
}

/// The folder within `folder` for programs of the system in `root`, or of this machine: a program runs in its own system only.
fn folder_of_system(folder: &Path, root: Option<&Path>) -> PathBuf {
    folder.join(root.and_then(Path::file_name).unwrap_or("machine".as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests of two systems at once replaced each other's program, which then lacked its glibc.
    #[test]
    fn programs_of_two_systems_do_not_replace_each_other() {
        let folders = [None, Some("/roots/bullseye"), Some("/roots/sid")]
            .map(|root| folder_of_system(Path::new("target/tmp"), root.map(Path::new)));
        let [machine, bullseye, sid] = folders;
        assert!(machine != bullseye && bullseye != sid && sid != machine);
    }
}
