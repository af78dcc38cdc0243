//! Work that is run to be measured: a command, and all that it starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use compare::{Environment, Sample};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use target::{Member, Tree};

use crate::failure::Failure;
use crate::recorder::RunRecorder;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(50);
/// So long it has to be idle before its work is done.
const IDLE: Duration = Duration::from_secs(1);
/// What it may compute in that time, and still be idle.
const IDLE_CPU: Duration = Duration::from_millis(40);
/// How long it may take to end when it is asked to.
const ENDING: Duration = Duration::from_secs(10);
/// Bytes of its output that an error shows at most, from the end.
const LAST_WORDS: u64 = 400;

/// A command that runs.
pub(crate) struct Work {
    child: Child,
    /// What it prints.
    output: File,
    tree: Tree,
    started: Instant,
    /// Of each process that was seen, what it has used up; also of those that have ended.
    used: BTreeMap<(i32, u64), Used>,
    members: Vec<Member>,
    /// When it was looked at, and what all of it had computed by then, as far back as is needed.
    computed: Vec<(Instant, Duration)>,
    pub(crate) samples: Vec<Sample>,
    recorder: Option<RunRecorder>,
    ended: Option<ExitStatus>,
}

/// What processes have used up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
}

/// Why watching came to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// It does nothing any more, since that instant.
    Idle(Instant),
    /// The time is over.
    Over,
    /// It ended.
    Ended,
    /// The user does not want to wait.
    Interrupted,
}

impl Work {
    /// Starts it in a changed environment. What it prints goes to a file that nobody sees.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub(crate) fn start(command: &[OsString], environment: &Environment) -> Result<Self, Failure> {
        let (program, arguments) = command.split_first().expect("clap requires a command");
        let failed = |source| Failure::NotStarted { program: program.into(), source };
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
        let tree = Tree::new(child.id().cast_signed());
        Ok(Self {
            child,
            output,
            tree,
            started,
            used: BTreeMap::new(),
            members: Vec::new(),
            computed: Vec::new(),
            samples: Vec::new(),
            recorder: None,
            ended: None,
        })
    }

    /// From now on writes down what it takes, as a recording in the file at `path`.
    pub(crate) fn record(&mut self, path: &Path, words: Vec<String>, label: &str) {
        let pid = self.child.id().cast_signed();
        match RunRecorder::begin(path, pid, words, label, EVERY) {
            Ok(recorder) => self.recorder = Some(recorder),
            Err(failure) => say(Err(failure)),
        }
    }

    /// Ends the recording.
    fn end_recording(&mut self) {
        let why = if self.ended.is_some() { "the target ended" } else { "the time was over" };
        let at = self.started.elapsed();
        let ended = self.recorder.take().map_or(Ok(()), |recorder| recorder.end(at, why));
        say(ended);
    }

    /// Watches it until it is idle, ends, `most` has passed, or the user interrupts.
    pub(crate) fn watch(
        &mut self,
        most: Duration,
        waits_for_idle: bool,
        stop: &AtomicBool,
    ) -> Until {
        let until = Instant::now().checked_add(most);
        self.computed.clear();
        loop {
            let idle_since = self.look();
            // The terminal's ^C ends the command too: it did not end by itself.
            if stop.load(Ordering::Relaxed) {
                return Until::Interrupted;
            }
            if self.ended.is_some() {
                return Until::Ended;
            }
            if let Some(since) = idle_since.filter(|_| waits_for_idle) {
                return Until::Idle(since);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Until::Over;
            }
            std::thread::sleep(EVERY);
        }
    }

    /// Takes a sample, and tells since when it has been idle, if long enough.
    fn look(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.members = self.tree.look();
        // A command that has ended is a zombie until we ask; what it left behind may go on.
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        for member in &self.members {
            let used = Used {
                user: member.user_time,
                system: member.system_time,
                minor_faults: member.minor_faults,
                major_faults: member.major_faults,
            };
            self.used.insert((member.pid, member.started_ticks), used);
        }
        let rss_bytes: u64 = self.members.iter().map(|member| member.rss_bytes).sum();
        // What is about to end has no memory any more: that is not what it had at the end of its work.
        if rss_bytes > 0 {
            let at = now - self.started;
            self.samples.push(Sample { ms: at.as_secs_f64() * 1e3, rss_bytes });
            let recorded =
                self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.add(at, &self.members));
            if recorded.is_err() {
                self.recorder = None;
            }
            say(recorded);
        }
        // Who waits for a processor, or for a disk, has work to do, however little of it gets done.
        if self.members.iter().any(|member| matches!(member.state, 'R' | 'D')) {
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
    pub(crate) fn used(&self) -> Used {
        self.used.values().fold(Used::default(), |sum, used| Used {
            user: sum.user + used.user,
            system: sum.system + used.system,
            minor_faults: sum.minor_faults + used.minor_faults,
            major_faults: sum.major_faults + used.major_faults,
        })
    }

    /// How long after its start `instant` was.
    pub(crate) fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.started)
    }

    /// Its resident bytes now, all processes together, counted by the page tables; of one that has ended, what it
    /// had when it was seen last.
    pub(crate) fn rss_bytes(&self) -> u64 {
        if self.ended.is_some() {
            return self.samples.last().map_or(0, |sample| sample.rss_bytes);
        }
        let exact = |member: &Member| target::rss_bytes(member.pid).unwrap_or(member.rss_bytes);
        self.members.iter().map(exact).sum()
    }

    /// The ids of its processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.members.iter().map(|member| member.pid)
    }

    /// Whether it ended by itself, and not well; with the last that it said.
    pub(crate) fn complaint(&mut self) -> Option<String> {
        let status = self.ended.filter(|status| !status.success())?;
        let length = self.output.metadata().map_or(0, |metadata| metadata.len());
        let mut words = Vec::new();
        let start = SeekFrom::Start(length.saturating_sub(LAST_WORDS));
        if self.output.seek(start).is_ok() {
            let _ = (&self.output).take(LAST_WORDS).read_to_end(&mut words);
        }
        // Colours and whatever else moves a terminal's cursor are no words.
        let words = String::from_utf8_lossy(&words);
        let words = words.replace(|it: char| it.is_control() && it != '\n', " ");
        let last: Vec<&str> = words.lines().rev().take(3).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
        Some(if last.is_empty() { status.to_string() } else { format!("{status}: {last}") })
    }
}

impl Drop for Work {
    /// Asks it to end, and kills what does not.
    fn drop(&mut self) {
        self.end_recording();
        drop(self.child.stdin.take());
        let deadline = Instant::now() + ENDING;
        let mut is_asked = false;
        loop {
            let _ = self.child.try_wait();
            let left: Vec<i32> = self.tree.look().iter().map(|member| member.pid).collect();
            if left.is_empty() {
                break;
            }
            let is_late = Instant::now() >= deadline;
            if !is_asked || is_late {
                is_asked = true;
                for pid in left {
                    let signal = if is_late { Signal::SIGKILL } else { Signal::SIGTERM };
                    // It may have ended meanwhile.
                    let _ = kill(Pid::from_raw(pid), signal);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.wait();
    }
}

/// Tells that a run is not recorded any more. It is measured all the same: hours may have passed.
fn say(recorded: Result<(), Failure>) {
    if let Err(failure) = recorded {
        anstream::eprintln!("rbloat: {failure}");
    }
}
