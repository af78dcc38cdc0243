//! A recorder: what is read when, so that it costs less than 1 % of a processor.

mod journal;
mod roll;
mod run;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use capture::{Member, Rollup, Tree};
use record::{Causes, End, Line, Pace, Sample, Series, duration, top_causes};

use crate::arguments::{CaptureArguments, RecordArguments};
use crate::failure::Failure;
use crate::orphans::Orphans;
use crate::signals::{Event, Signals, pass_on};

pub(crate) use journal::Journal;
use roll::Program;
pub(crate) use roll::Roll;
pub(crate) use run::{RunRecorder, unix_ms};
pub(crate) use view::View;

/// What each kind of reading may take of a processor; together less than 1 %. Samples are what the kernel counts
/// all the while; exact ones are those for which it walks the page tables.
const SHARE_OF_SAMPLES: f64 = 0.0025;
const SHARE_OF_EXACT_SAMPLES: f64 = 0.004;
const SHARE_OF_CAUSES: f64 = 0.003;

/// A Ruby that has just been started has nothing in its heap yet.
const FIRST_CAUSES_OF_A_NEW_PROGRAM: Duration = Duration::from_secs(2);

pub(crate) struct Recorder<'a> {
    pid: i32,
    /// Of a program that was started here.
    orphans: Option<&'a Orphans>,
    capture: CaptureArguments,
    duration: Option<Duration>,
    started: Instant,
    journal: Journal,
    view: View,
    tree: Tree,
    samples: Pace,
    exact_samples: Pace,
    /// `None` where no causes are wanted.
    causes: Option<Pace>,
    roll: Roll,
    /// Those that are to be captured in this round, and what it has taken so far.
    round: VecDeque<Program>,
    round_cost: Duration,
    /// The last causes of each process that lives.
    last_causes: BTreeMap<i32, Causes>,
    counts: Counts,
    /// What the stable point is found by.
    series: Series,
}

#[derive(Default)]
struct Counts {
    samples: u64,
    exact_samples: u64,
    captures: u64,
}

/// Why a recording ended.
enum Why {
    TargetEnded(Option<ExitStatus>),
    Interrupted,
    Duration,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(
        arguments: &RecordArguments,
        pid: i32,
        orphans: Option<&'a Orphans>,
        journal: Journal,
        view: View,
    ) -> Self {
        let first_causes = match arguments.recorded.pid {
            Some(_) => Duration::ZERO,
            None => FIRST_CAUSES_OF_A_NEW_PROGRAM,
        };
        let causes = (!arguments.causes_every.is_zero())
            .then(|| Pace::new(arguments.causes_every, SHARE_OF_CAUSES).from(first_causes));
        Self {
            pid,
            orphans,
            capture: arguments.capture,
            duration: arguments.duration,
            started: Instant::now(),
            journal,
            view,
            tree: Tree::new(pid),
            samples: Pace::new(arguments.every, SHARE_OF_SAMPLES),
            exact_samples: Pace::new(arguments.every, SHARE_OF_EXACT_SAMPLES),
            causes,
            roll: Roll::default(),
            round: VecDeque::new(),
            round_cost: Duration::ZERO,
            last_causes: BTreeMap::new(),
            counts: Counts::default(),
            series: Series::default(),
        }
    }

    /// Records until the target ends, someone wants us to end, or the time is over.
    pub(crate) fn run(
        &mut self,
        mut child: Option<&mut Child>,
        signals: &Signals,
    ) -> Result<End, Failure> {
        let why = loop {
            if let Some(child) = &mut child
                && let Some(status) = child.try_wait().map_err(Failure::Signals)?
            {
                break Why::TargetEnded(Some(status));
            }
            if self.duration.is_some_and(|duration| self.now() >= duration) {
                break Why::Duration;
            }
            if self.samples.is_due(self.now()) {
                if !self.take_sample()? {
                    break Why::TargetEnded(None);
                }
                self.take_causes()?;
            }
            let until = self.samples.due().min(self.duration.unwrap_or(Duration::MAX));
            let event = signals.next(until.saturating_sub(self.now()))?;
            match (&mut child, event) {
                (Some(child), event) => pass_on(event, child),
                (None, Event::Signal { .. }) => break Why::Interrupted,
                (None, _) => {}
            }
        };
        self.end(&why)
    }

    /// Says what came of it.
    pub(crate) fn conclude(&mut self, end: &End) {
        let share = end.recorder_cpu_ms * 100.0 / (end.t_ms.max(1) as f64);
        self.view.say(&format!(
            "{}: {} after {}; {} samples, {} of them exact, {} capture{}, {share:.2} % of a processor",
            self.pid,
            end.why,
            duration(Duration::from_millis(end.t_ms)),
            end.samples,
            end.exact_samples,
            end.captures,
            if end.captures == 1 { "" } else { "s" },
        ));
        self.view.say(&self.series.render_stable_point());
    }

    /// The time since the recording began.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn t_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }

    /// Writes down what the kernel counts; false where the target has ended.
    fn take_sample(&mut self) -> Result<bool, Failure> {
        let (now, cpu) = (self.now(), capture::own_cpu_time());
        // Before the tree: a process that ends leaves its group first.
        let group = capture::group_memory(self.pid);
        let orphans = self.orphans.map_or_else(Vec::new, |orphans| orphans.look(&[self.pid]));
        orphans.into_iter().for_each(|orphan| self.tree.adopt(orphan));
        let members = self.tree.look();
        let has_ended = !members.iter().any(|member| member.pid == self.pid);
        self.note_who_came_and_went(&members)?;
        if has_ended {
            return Ok(false);
        }
        let counted = capture::own_cpu_time();
        let is_exact = self.exact_samples.is_due(now);
        let members: Vec<(Member, Option<Rollup>)> = members
            .into_iter()
            .map(|member| {
                let rollup = if is_exact { capture::rollup(member.pid).ok() } else { None };
                (member, rollup)
            })
            .collect();
        let walked = capture::own_cpu_time();
        let recorder_cpu_ms = milliseconds(capture::own_cpu_time());
        let sample = Sample::new(self.t_ms(), &members, group, recorder_cpu_ms);
        self.counts.samples += 1;
        self.counts.exact_samples += u64::from(sample.exact);
        let causes = top_causes(self.last_causes.values());
        self.view.show(&sample, &causes);
        self.series.add(&sample);
        self.journal.write(&Line::Sample(sample))?;
        if is_exact {
            self.exact_samples.done(now, walked - counted);
        }
        let cost = capture::own_cpu_time() - cpu;
        self.samples.done(now, cost.saturating_sub(walked - counted));
        Ok(true)
    }

    fn note_who_came_and_went(&mut self, members: &[Member]) -> Result<(), Failure> {
        for line in self.roll.call(self.t_ms(), members) {
            if let Line::Gone(gone) = &line {
                self.last_causes.remove(&gone.pid);
            }
            self.journal.write(&line)?;
        }
        Ok(())
    }

    /// Begins a round of captures where one is due, or goes on with it: one Ruby after each sample, so that
    /// samples wait for one at most.
    fn take_causes(&mut self) -> Result<(), Failure> {
        let now = self.now();
        let Some(pace) = &mut self.causes else { return Ok(()) };
        let cpu = capture::own_cpu_time();
        if self.round.is_empty() {
            if !pace.is_due(now) {
                return Ok(());
            }
            self.round = self.roll.programs().collect();
            self.round_cost = Duration::ZERO;
        }
        while let Some(program) = self.round.pop_front() {
            if self.roll.is_ruby(program) {
                self.capture(program)?;
                break;
            }
        }
        self.round_cost += capture::own_cpu_time() - cpu;
        let (round_cost, is_over) = (self.round_cost, self.round.is_empty());
        if let Some(pace) = &mut self.causes
            && is_over
        {
            pace.done(now, round_cost);
        }
        Ok(())
    }

    fn capture(&mut self, (pid, ..): Program) -> Result<(), Failure> {
        let report = crate::source::report_quietly(pid, self.capture);
        let t_ms = self.t_ms();
        let line = match report {
            Ok(report) => {
                self.counts.captures += 1;
                let causes = Causes::new(t_ms, report, milliseconds(capture::own_cpu_time()));
                self.last_causes.insert(pid, causes.clone());
                Line::Causes(causes)
            }
            Err(failure) => Line::Failure(record::Failure { t_ms, pid, what: failure.to_string() }),
        };
        self.journal.write(&line)
    }

    fn end(&mut self, why: &Why) -> Result<End, Failure> {
        let (why, status) = match why {
            Why::TargetEnded(status) => ("the target ended", *status),
            Why::Interrupted => ("interrupted", None),
            Why::Duration => ("the time was over", None),
        };
        let end = End {
            t_ms: self.t_ms(),
            why: why.into(),
            exit_status: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            samples: self.counts.samples,
            exact_samples: self.counts.exact_samples,
            captures: self.counts.captures,
            recorder_cpu_ms: milliseconds(capture::own_cpu_time()),
        };
        self.journal.write(&Line::End(end.clone()))?;
        Ok(end)
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
