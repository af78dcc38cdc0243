//! Work that is run to be measured: a command, and all that it starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use capture::proc::Member;
use diagnosis::Environment;
use formats::{EndReason, RunPoint};

use crate::Error;
use crate::orphans::Orphans;
use crate::program::{Ending, Family};
use crate::recorder::RunRecorder;
use crate::signals::Signals;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(50);
/// So long it has to be idle before its work is done.
const IDLE: Duration = Duration::from_secs(1);
/// What it may compute in that time, and still be idle.
const IDLE_CPU: Duration = Duration::from_millis(40);
/// How long it may take to end when it is asked to, and how long a load may: that has nothing to lose.
const ENDING: Duration = Duration::from_secs(10);
const LOAD_ENDING: Duration = Duration::from_secs(2);
/// Between two looks at what is to end.
const SOON: Duration = Duration::from_millis(20);
/// Bytes of its output that an error shows at most, from the end.
const LAST_WORDS: u64 = 400;
/// Bytes of a load's output that are read at most, from the end.
const LOAD_WORDS: u64 = 1 << 20;

/// A command that runs, and the load on it.
pub struct Work<'a> {
    command: Family,
    load: Option<Family>,
    orphans: &'a Orphans,
    /// Whether it is there to serve a load: then it may be a daemon that outlives the command.
    is_server: bool,
    /// What it prints.
    output: File,
    started: Instant,
    /// Of each process that was seen, what it has used up; also of those that have ended.
    used: BTreeMap<(i32, u64), Used>,
    /// When it was looked at, and what all of it had computed by then, as far back as is needed.
    computed: Vec<(Instant, Duration)>,
    /// RSS of all its processes over time.
    pub samples: Vec<RunPoint>,
    recorder: Option<RunRecorder>,
    /// Receives errors of the recorder. The run is measured all the same: it may have taken hours.
    on_error: fn(Error),
}

/// What processes have used up.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
}

/// Why watching came to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// It does nothing any more, since that instant.
    Idle(Instant),
    /// The time is over.
    Over,
    /// It ended.
    Ended,
    /// The user does not want to wait.
    Interrupted,
}

/// What came of a load.
pub enum Loaded {
    /// It ended well after this time, and printed this.
    Done(Duration, String),
    /// It came to nothing, for this reason.
    Failed(String),
    /// The user does not want to wait.
    Interrupted,
}

impl<'a> Work<'a> {
    /// Starts it in a changed environment. What it prints goes to a file that nobody sees.
    ///
    /// # Errors
    /// Where it cannot be started.
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
        let child = command.spawn().map_err(failed)?;
        Ok(Self {
            command: Family::new(child),
            load: None,
            orphans,
            is_server,
            output,
            started,
            used: BTreeMap::new(),
            computed: Vec::new(),
            samples: Vec::new(),
            recorder: None,
            on_error,
        })
    }

    /// From now on writes down what it takes, as a recording in the file at `path`.
    pub fn record(&mut self, path: &Path, words: Vec<String>, label: &str) {
        let pid = self.command.child.id().cast_signed();
        match RunRecorder::begin(path, pid, words, label, EVERY) {
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

    /// Watches it until it is idle, ends, `most` has passed, or the user interrupts.
    pub fn watch(
        &mut self,
        most: Duration,
        waits_for_idle: bool,
        signals: &Signals,
    ) -> Result<Until, Error> {
        let until = Instant::now().checked_add(most);
        self.computed.clear();
        loop {
            let idle_since = self.look();
            // The terminal's ^C ends the command too: it did not end by itself.
            if signals.ask_to_end(Duration::ZERO)? {
                return Ok(Until::Interrupted);
            }
            if self.has_ended() {
                return Ok(Until::Ended);
            }
            if let Some(since) = idle_since.filter(|_| waits_for_idle) {
                return Ok(Until::Idle(since));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Until::Over);
            }
            if signals.ask_to_end(EVERY)? {
                return Ok(Until::Interrupted);
            }
        }
    }

    /// Runs a load, a line of shell, to its end, and watches the work meanwhile.
    pub fn put_load(&mut self, line: &str, signals: &Signals) -> Result<Loaded, Error> {
        let lost = |error| Ok(Loaded::Failed(format!("the load command was lost: {error}")));
        let (mut output, printed) =
            match tempfile::tempfile().and_then(|it| Ok((it.try_clone()?, it))) {
                Ok(files) => files,
                Err(error) => return lost(error),
            };
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null()).stdout(printed);
        // By its group we know whom it starts and leaves. So ^C of a terminal does not reach it: we end it then.
        match command.process_group(0).spawn() {
            Ok(child) => self.load = Some(Family::new(child)),
            Err(error) => {
                let why = format!("the load command cannot be started: {error}");
                return Ok(Loaded::Failed(why));
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
                return Ok(Loaded::Interrupted);
            }
        };
        let took = started.elapsed();
        self.end_load();
        match read_end(&mut output, LOAD_WORDS) {
            Err(error) => lost(error),
            Ok(_) if !status.success() => {
                Ok(Loaded::Failed(format!("the load command failed: {status}")))
            }
            Ok(printed) => Ok(Loaded::Done(took, printed)),
        }
    }

    /// Ends the load, and whatever it has started.
    fn end_load(&mut self) {
        let mut ending = Ending::within(LOAD_ENDING);
        loop {
            self.look_at_processes();
            let Some(load) = self.load.as_mut().filter(|load| load.lives()) else { break };
            ending.ask(&load.members);
            std::thread::sleep(SOON);
        }
        if let Some(mut load) = self.load.take() {
            let _ = load.child.wait();
        }
    }

    /// Looks at all processes. Orphans are the load's where they come of it; all others are the work's.
    fn look_at_processes(&mut self) {
        self.command.look();
        self.load.iter_mut().for_each(Family::look);
        let families = self.load.iter().chain([&self.command]);
        let waited_for: Vec<i32> = families.filter_map(Family::waited_for).collect();
        for orphan in self.orphans.look(&waited_for) {
            match &mut self.load {
                Some(load) if load.has(orphan) => load.adopt(orphan),
                _ => self.command.adopt(orphan),
            }
        }
    }

    /// Whether the work is over: the command has ended and, of a server, nothing of it lives.
    fn has_ended(&self) -> bool {
        self.command.status.is_some() && !(self.is_server && self.command.lives())
    }

    /// Takes a sample, and tells since when it has been idle, if long enough.
    fn look(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.look_at_processes();
        let members = &self.command.members;
        for member in members {
            let used = Used {
                user: member.user_time,
                system: member.system_time,
                minor_faults: member.minor_faults,
                major_faults: member.major_faults,
            };
            self.used.insert((member.pid, member.started_ticks), used);
        }
        let rss_bytes: u64 = members.iter().map(|member| member.rss_bytes).sum();
        // What is about to end has no memory any more: that is not what it had at the end of its work.
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
        // Who waits for a processor, or for a disk, has work to do, however little of it gets done.
        if members.iter().any(|member| matches!(member.state, 'R' | 'D')) {
            self.computed.clear();
        }
        let used = self.used();
        self.computed.push((now, used.user + used.system));
        while self.computed.len() > 1 && now - self.computed[1].0 >= IDLE {
            self.computed.remove(0);
        }
        let (since, before) = *self.computed.first()?;
        (now - since >= IDLE && used.user + used.system - before <= IDLE_CPU).then_some(since)
    }

    /// What all of its processes have used up by now.
    pub fn used(&self) -> Used {
        self.used.values().fold(Used::default(), |sum, used| Used {
            user: sum.user + used.user,
            system: sum.system + used.system,
            minor_faults: sum.minor_faults + used.minor_faults,
            major_faults: sum.major_faults + used.major_faults,
        })
    }

    /// How long after its start `instant` was.
    pub fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.started)
    }

    /// Its resident bytes now, all processes together, counted by the page tables; of one that has ended, what it
    /// had when it was seen last.
    pub fn rss_bytes(&self) -> u64 {
        if self.has_ended() {
            return self.samples.last().map_or(0, |sample| sample.rss_bytes);
        }
        let exact =
            |member: &Member| capture::proc::rss_bytes(member.pid).unwrap_or(member.rss_bytes);
        self.command.members.iter().map(exact).sum()
    }

    /// The ids of its processes.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.command.members.iter().map(|member| member.pid)
    }

    /// Whether it ended by itself, and not well; with the last that it said.
    pub fn complaint(&mut self) -> Option<String> {
        let status = self.command.status.filter(|status| !status.success())?;
        let words = read_end(&mut self.output, LAST_WORDS).unwrap_or_default();
        // Colours and whatever else moves a terminal's cursor are no words.
        let words = words.replace(|it: char| it.is_control() && it != '\n', " ");
        let last: Vec<&str> = words.lines().rev().take(3).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
        Some(if last.is_empty() { status.to_string() } else { format!("{status}: {last}") })
    }
}

impl Drop for Work<'_> {
    /// Asks all of it to end, and kills what does not.
    fn drop(&mut self) {
        self.end_recording();
        self.end_load();
        drop(self.command.child.stdin.take());
        let mut ending = Ending::within(ENDING);
        loop {
            self.look_at_processes();
            if !self.command.lives() {
                break;
            }
            ending.ask(&self.command.members);
            std::thread::sleep(SOON);
        }
        let _ = self.command.child.wait();
    }
}

/// The last of a file, so many bytes of it at most.
fn read_end(file: &mut File, most: u64) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
