//! A program that is run to be measured, with all of its descendants.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use diagnosis::Environment;
use formats::{EndReason, RunPoint};
use linux::proc::Member;
use linux::unblock_signals;

use crate::Error;
use crate::orphans::Orphans;
use crate::program_tree::{ProgramTree, Termination};
use crate::recorder::{Journal, RunRecorder};
use crate::signals::Signals;

/// The time between two samples.
const EVERY: Duration = Duration::from_millis(50);
/// The idle time after which the program's work is done.
const IDLE: Duration = Duration::from_secs(1);
/// The CPU time that an idle program may use in that time.
const IDLE_CPU: Duration = Duration::from_millis(40);
/// The times between SIGTERM and SIGKILL for the program and for a load, which has nothing to lose.
const TERMINATION_TIME: Duration = Duration::from_secs(10);
const LOAD_TERMINATION_TIME: Duration = Duration::from_secs(2);
/// The time between two checks of processes that are being terminated.
const SOON: Duration = Duration::from_millis(20);
/// The part of the program's output that an error shows, in bytes from the end.
const MAX_QUOTED_BYTES: u64 = 400;
/// The part of a load's output that is parsed, in bytes from the end.
const MAX_LOAD_OUTPUT_BYTES: u64 = 1 << 20;

/// A running program, and the load on it.
pub struct MeasuredProgram<'a> {
    command: ProgramTree,
    load: Option<ProgramTree>,
    orphans: &'a Orphans,
    /// True if the program serves a load. It may then be a daemon that outlives the command.
    is_server: bool,
    /// The program's output.
    output: File,
    started: Instant,
    /// The usage of each process, including processes that have ended.
    usage: BTreeMap<(i32, u64), ResourceUsage>,
    /// The total CPU time at the latest looks, as far back as the search for idle time needs.
    computed: Vec<(Instant, Duration)>,
    /// RSS of all processes together over time.
    pub samples: Vec<RunPoint>,
    recorder: Option<RunRecorder>,
    /// Receives errors of the recorder, which do not end the run: it may have taken hours.
    on_error: fn(Error),
}

/// CPU time and page faults of processes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResourceUsage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
}

/// The reason why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// The program is idle since that instant.
    Idle(Instant),
    /// The time has passed.
    Over,
    /// The program ended.
    Ended,
    /// The user interrupted it.
    Interrupted,
}

/// The outcome of a load.
pub enum LoadOutcome {
    /// The load succeeded after this time, with this output.
    Done(Duration, String),
    /// The load failed, for this reason.
    Failed(String),
    /// The user interrupted it.
    Interrupted,
}

impl<'a> MeasuredProgram<'a> {
    /// Starts a program in a changed environment. Its output goes to a temporary file.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(
        command: &[OsString],
        environment: &Environment,
        orphans: &'a Orphans,
        is_server: bool,
        on_error: fn(Error),
    ) -> Result<Self, Error> {
        let (program, arguments) = command.split_first().expect("clap requires a command");
        let failed = |source| Error::NotStarted { program: program.into(), source };
        let output = tempfile::tempfile().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(output.try_clone().map_err(failed)?);
        command.stderr(output.try_clone().map_err(failed)?);
        for name in &environment.unset {
            command.env_remove(name);
        }
        command.envs(environment.set.iter().map(|(name, value)| (name, value)));
        let started = Instant::now();
        let child = unblock_signals(&mut command).spawn().map_err(failed)?;
        Ok(Self {
            command: ProgramTree::new(child),
            load: None,
            orphans,
            is_server,
            output,
            started,
            usage: BTreeMap::new(),
            computed: Vec::new(),
            samples: Vec::new(),
            recorder: None,
            on_error,
        })
    }

    /// Records the program from now on.
    pub fn record(&mut self, journal: Journal, words: Vec<String>, label: &str) {
        let pid = self.command.child.id().cast_signed();
        match RunRecorder::begin(journal, pid, words, label, EVERY) {
            Ok(recorder) => self.recorder = Some(recorder),
            Err(error) => (self.on_error)(error),
        }
    }

    /// Ends the recording.
    fn end_recording(&mut self) {
        let why = if self.has_ended() { EndReason::TargetEnded } else { EndReason::TimeOver };
        let at = self.started.elapsed();
        let ended = self.recorder.take().map_or(Ok(()), |recorder| recorder.end(at, why));
        if let Err(error) = ended {
            (self.on_error)(error);
        }
    }

    /// Watches the program until it is idle (if `waits_for_idle`), it ends, `max_time` has passed, or the user interrupts.
    pub fn watch(
        &mut self,
        max_time: Duration,
        waits_for_idle: bool,
        signals: &Signals,
    ) -> Result<WatchEnd, Error> {
        let until = Instant::now().checked_add(max_time);
        self.computed.clear();
        loop {
            let idle_since = self.look();
            // Checked first: ^C in a terminal ends the program too, and it did not end by itself then.
            if signals.ask_to_end(Duration::ZERO)? {
                return Ok(WatchEnd::Interrupted);
            }
            if self.has_ended() {
                return Ok(WatchEnd::Ended);
            }
            if let Some(since) = idle_since.filter(|_| waits_for_idle) {
                return Ok(WatchEnd::Idle(since));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(WatchEnd::Over);
            }
            if signals.ask_to_end(EVERY)? {
                return Ok(WatchEnd::Interrupted);
            }
        }
    }

    /// Runs a load, which is a shell command line, and watches the program meanwhile.
    pub fn put_load(&mut self, line: &str, signals: &Signals) -> Result<LoadOutcome, Error> {
        let lost = |error| {
            Ok(LoadOutcome::Failed(format!(
                "cannot capture the output of the load command: {error}"
            )))
        };
        let (mut output, printed) =
            match tempfile::tempfile().and_then(|it| Ok((it.try_clone()?, it))) {
                Ok(files) => files,
                Err(error) => return lost(error),
            };
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null()).stdout(printed);
        // Its own process group identifies its orphans. A terminal's ^C does not reach that group, so rbloat ends it.
        match unblock_signals(command.process_group(0)).spawn() {
            Ok(child) => self.load = Some(ProgramTree::new(child)),
            Err(error) => {
                let why = format!("cannot start the load command: {error}");
                return Ok(LoadOutcome::Failed(why));
            }
        }
        let started = Instant::now();
        let status = loop {
            self.look();
            if let Some(status) = self.load.as_ref().and_then(|load| load.status) {
                break status;
            }
            if signals.ask_to_end(EVERY)? {
                self.end_load();
                return Ok(LoadOutcome::Interrupted);
            }
        };
        let took = started.elapsed();
        self.end_load();
        match read_end(&mut output, MAX_LOAD_OUTPUT_BYTES) {
            Err(error) => lost(error),
            Ok(_) if !status.success() => {
                Ok(LoadOutcome::Failed(format!("the load command failed: {status}")))
            }
            Ok(printed) => Ok(LoadOutcome::Done(took, printed)),
        }
    }

    /// Ends the load with all of its descendants.
    fn end_load(&mut self) {
        let mut termination = Termination::within(LOAD_TERMINATION_TIME);
        loop {
            self.look_at_processes();
            let Some(load) = self.load.as_mut().filter(|load| load.lives()) else { break };
            termination.ask(&load.members);
            std::thread::sleep(SOON);
        }
        if let Some(mut load) = self.load.take() {
            let _ = load.child.wait();
        }
    }

    /// Looks at all processes. An orphan that does not descend from the load belongs to the program.
    fn look_at_processes(&mut self) {
        self.command.look();
        self.load.iter_mut().for_each(ProgramTree::look);
        let programs = self.load.iter().chain([&self.command]);
        let waited_for: Vec<i32> = programs.filter_map(ProgramTree::waited_for).collect();
        for orphan in self.orphans.look(&waited_for) {
            match &mut self.load {
                Some(load) if load.has(orphan) => load.adopt(orphan),
                _ => self.command.adopt(orphan),
            }
        }
    }

    /// Returns true if the command has ended and, if it is a server, none of its descendants lives.
    fn has_ended(&self) -> bool {
        self.command.status.is_some() && !(self.is_server && self.command.lives())
    }

    /// Takes a sample. Returns the beginning of the program's idle time if that is long enough.
    fn look(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.look_at_processes();
        let members = &self.command.members;
        for member in members {
            let used = ResourceUsage {
                user: member.user_time,
                system: member.system_time,
                minor_faults: member.minor_faults,
                major_faults: member.major_faults,
            };
            self.usage.insert((member.pid, member.started_ticks), used);
        }
        let rss_bytes: u64 = members.iter().map(|member| member.rss_bytes).sum();
        // A process that is exiting has no memory any more. That is not its memory at the end of the work.
        if rss_bytes > 0 {
            let at = now - self.started;
            self.samples.push(RunPoint { ms: at.as_secs_f64() * 1e3, rss_bytes });
            let recorded =
                self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.add(at, members));
            if recorded.is_err() {
                self.recorder = None;
            }
            if let Err(error) = recorded {
                (self.on_error)(error);
            }
        }
        // A process that waits for a processor or a disk is not idle, however little CPU time it gets.
        if members.iter().any(|member| matches!(member.state, 'R' | 'D')) {
            self.computed.clear();
        }
        let used = self.usage();
        self.computed.push((now, used.user + used.system));
        while self.computed.len() > 1 && now - self.computed[1].0 >= IDLE {
            self.computed.remove(0);
        }
        let (since, before) = *self.computed.first()?;
        (now - since >= IDLE && used.user + used.system - before <= IDLE_CPU).then_some(since)
    }

    /// Returns the usage of all processes together so far.
    pub fn usage(&self) -> ResourceUsage {
        self.usage.values().fold(ResourceUsage::default(), |sum, used| ResourceUsage {
            user: sum.user + used.user,
            system: sum.system + used.system,
            minor_faults: sum.minor_faults + used.minor_faults,
            major_faults: sum.major_faults + used.major_faults,
        })
    }

    /// Returns the time from the program's start to `instant`.
    pub fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.started)
    }

    /// Returns the exact RSS of all processes together, or the last sample if the program has ended.
    pub fn rss_bytes(&self) -> u64 {
        if self.has_ended() {
            return self.samples.last().map_or(0, |sample| sample.rss_bytes);
        }
        let exact =
            |member: &Member| linux::proc::rss_bytes(member.pid).unwrap_or(member.rss_bytes);
        self.command.members.iter().map(exact).sum()
    }

    /// The ids of the program's processes.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.command.members.iter().map(|member| member.pid)
    }

    /// Returns the exit status and the end of the output, if the program failed.
    pub fn failure(&mut self) -> Option<String> {
        let status = self.command.status.filter(|status| !status.success())?;
        let words = read_end(&mut self.output, MAX_QUOTED_BYTES).unwrap_or_default();
        // Without escape sequences.
        let words = words.replace(|it: char| it.is_control() && it != '\n', " ");
        let last: Vec<&str> = words.lines().rev().take(3).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
        Some(if last.is_empty() { status.to_string() } else { format!("{status}: {last}") })
    }
}

impl Drop for MeasuredProgram<'_> {
    /// Terminates the load and the program.
    fn drop(&mut self) {
        self.end_recording();
        self.end_load();
        drop(self.command.child.stdin.take());
        let mut termination = Termination::within(TERMINATION_TIME);
        loop {
            self.look_at_processes();
            if !self.command.lives() {
                break;
            }
            termination.ask(&self.command.members);
            std::thread::sleep(SOON);
        }
        let _ = self.command.child.wait();
    }
}

/// Returns the end of a file, at most `max_bytes`.
fn read_end(file: &mut File, max_bytes: u64) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max_bytes)))?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
