//! The recorder. It paces its readings so that they cost less than 1 % of a processor.

mod journal;
mod known_processes;
mod look;
mod peaks;
mod run;
mod sample;

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use diagnosis::{LatestFigures, MemorySeries, top_causes};
use formats::{
    CauseSample, EndReason, GrowthFrames, Kept, KeptSoFar, Line, ReadFailure, RecordingEnd, Report,
    Sample, Who, milliseconds,
};
use linux::proc::{Member, Rollup, Tree};

use crate::Error;
use crate::orphans::Orphans;
use crate::pace::{Pace, SHARE_OF_CAUSES, SHARE_OF_EXACT_SAMPLES, SHARE_OF_SAMPLES};
use crate::signals::{Event, Signals, exit_status, pass_on};

pub use journal::Journal;
use known_processes::{KnownProcesses, ProgramId};
pub use look::look;
use peaks::Peaks;
pub(crate) use run::RunRecorder;
pub use run::unix_ms;

/// The part of [`SHARE_OF_CAUSES`] for captures of peaks, if they are wanted. The first reading of a kind is not limited.
const SHARE_OF_PEAKS: f64 = 0.001;
/// The least time between two captures of peaks.
const PEAKS_EVERY: Duration = Duration::from_secs(30);
/// The bytes of lines with growth in a second, on average.
const GROWTH_BYTES_PER_SECOND: f64 = 512.0;
/// The share of searches for causes whose interval the user chose.
const SHARE_OF_REQUESTED_CAUSES: f64 = 0.05;

/// The contents of a recording and the times between its parts.
#[derive(Debug, Clone, Copy)]
pub struct RecorderOptions {
    /// The time between two samples.
    pub every: Duration,
    /// The time between two captures of causes; `None` for no captures.
    pub causes_every: Option<Duration>,
    /// True if the user asked for this interval, which may then cost more.
    pub causes_are_requested: bool,
    /// The time of the first capture, since the beginning of the recording.
    pub first_causes: Duration,
    /// True if the memory of processes is captured with its owners when RSS reaches a new peak.
    pub peaks: bool,
    /// The length of the recording; `None` if only its target or a signal ends it.
    pub duration: Option<Duration>,
}

/// The other side of a recorder: it captures Ruby processes, and shows samples.
pub trait Watcher {
    /// Returns true if the process `pid` runs Ruby; `None` if it cannot be read.
    fn is_ruby(&mut self, pid: i32) -> Option<bool>;

    /// Reads the Ruby process with this id and start time, with the owners of its memory if `owners` is true. An error is written
    /// to the recording.
    ///
    /// # Errors
    /// If it cannot be read, with the reason.
    fn capture(&mut self, process: (i32, u64), owners: bool) -> Result<Report, String>;

    /// Returns the growth by code since the last growth that was returned, if there is enough of it, and the end of that time.
    /// If the recording ends now, it is called until nothing is left.
    ///
    /// # Errors
    /// If growth cannot be observed any more, with the reason.
    fn growth(&mut self, is_end: bool) -> Option<Result<(Who, Instant), String>>;

    /// Returns a new result of `--kept`, if there is one. If the recording ends now, it is called until nothing is left.
    ///
    /// # Errors
    /// If there is no result, with the reason.
    fn kept(&mut self, is_end: bool) -> Option<Result<Kept, String>>;

    /// Shows a sample, and the latest figures that not every sample has.
    fn show(&mut self, sample: &Sample, latest: &LatestFigures);
}

/// The searches for causes of a recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Searches {
    /// Their number.
    pub made: u64,
    /// Their number if each had been made in time.
    pub planned: u64,
    /// The greatest share of a processor for them, if it delayed one.
    pub limited_to: Option<f64>,
}

/// A recording in progress of one process and its descendants.
pub struct Recorder<'a> {
    pid: i32,
    /// The orphans of a program that was started here.
    orphans: Option<&'a Orphans>,
    duration: Option<Duration>,
    started: Instant,
    journal: Journal,
    watcher: &'a mut dyn Watcher,
    tree: Tree,
    samples: Pace,
    exact_samples: Pace,
    causes: Option<Pace>,
    share_of_causes: f64,
    /// The schedule of captures of peaks; `None` for no captures.
    peak_captures: Option<Pace>,
    peaks: Peaks,
    /// The time from which on the next line with growth may be written.
    growth_due: Duration,
    growth_frames: GrowthFrames,
    /// True if the recording says that the memory limit is unknown.
    is_blind: bool,
    /// The time at which it was last checked whether a search for causes is due.
    checked: Duration,
    /// PSS of the latest exact sample, and its time.
    last_pss: Option<(u64, u64)>,
    known: KnownProcesses,
    /// The processes that this round of captures has yet to read, and the CPU time of the round so far.
    round: VecDeque<ProgramId>,
    round_cost: Duration,
    /// The latest causes of each living process.
    last_causes: BTreeMap<i32, CauseSample>,
    counts: Counts,
    series: MemorySeries,
}

#[derive(Default)]
struct Counts {
    samples: u64,
    exact_samples: u64,
    captures: u64,
}

impl<'a> Recorder<'a> {
    /// A recorder of process `pid` that writes to `journal`.
    pub fn new(
        options: RecorderOptions,
        pid: i32,
        orphans: Option<&'a Orphans>,
        journal: Journal,
        watcher: &'a mut dyn Watcher,
    ) -> Self {
        let share_of_causes = match options.causes_are_requested {
            true => SHARE_OF_REQUESTED_CAUSES,
            false if options.peaks => SHARE_OF_CAUSES - SHARE_OF_PEAKS,
            false => SHARE_OF_CAUSES,
        };
        let peak_captures = options.peaks.then(|| Pace::new(PEAKS_EVERY, SHARE_OF_PEAKS));
        let causes = options
            .causes_every
            .map(|every| Pace::new(every, share_of_causes).from(options.first_causes));
        Self {
            pid,
            orphans,
            duration: options.duration,
            started: Instant::now(),
            journal,
            watcher,
            tree: Tree::new(pid),
            samples: Pace::new(options.every, SHARE_OF_SAMPLES),
            exact_samples: Pace::new(options.every, SHARE_OF_EXACT_SAMPLES),
            causes,
            share_of_causes,
            peak_captures,
            peaks: Peaks::default(),
            growth_due: Duration::ZERO,
            growth_frames: GrowthFrames::default(),
            is_blind: false,
            checked: Duration::ZERO,
            last_pss: None,
            known: KnownProcesses::default(),
            round: VecDeque::new(),
            round_cost: Duration::ZERO,
            last_causes: BTreeMap::new(),
            counts: Counts::default(),
            series: MemorySeries::default(),
        }
    }

    /// Returns the memory recorded so far.
    #[must_use]
    pub fn series(&self) -> &MemorySeries {
        &self.series
    }

    /// Returns the searches for causes so far; `None` if none were to be made.
    #[must_use]
    pub fn searches(&self) -> Option<Searches> {
        let pace = self.causes.as_ref()?;
        Some(Searches {
            made: pace.runs(),
            planned: pace.planned(self.checked),
            limited_to: pace.is_limited().then_some(self.share_of_causes),
        })
    }

    /// Records until the target ends, a signal arrives, or the time has passed.
    pub fn run(
        &mut self,
        mut child: Option<&mut Child>,
        signals: &Signals,
    ) -> Result<RecordingEnd, Error> {
        let (why, status) = loop {
            if let Some(child) = &mut child
                && let Some(status) = exit_status(child)?
            {
                break (EndReason::TargetEnded, Some(status));
            }
            if self.duration.is_some_and(|duration| self.now() >= duration) {
                break (EndReason::TimeOver, None);
            }
            if self.samples.is_due(self.now()) {
                if self.take_sample()? {
                    self.take_causes()?;
                    self.take_peak()?;
                    if self.now() >= self.growth_due
                        && let Some(growth) = self.watcher.growth(false)
                    {
                        self.write_growth(growth)?;
                    }
                    if let Some(kept) = self.watcher.kept(false) {
                        self.write_kept(kept)?;
                    }
                } else if child.is_none() {
                    break (EndReason::TargetEnded, None);
                }
                // The end of a child is reported by its exit status, which a sample may precede.
            }
            let until = self.samples.due().min(self.duration.unwrap_or(Duration::MAX));
            let event = signals.next(until.saturating_sub(self.now()))?;
            match (&mut child, event) {
                (Some(child), event) => pass_on(event, child),
                (None, Event::Signal { .. }) => break (EndReason::Interrupted, None),
                (None, _) => {}
            }
        };
        self.end(why, status)
    }

    /// The time since the recording began.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn t_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }

    /// Takes a sample. Returns false if the target has ended.
    fn take_sample(&mut self) -> Result<bool, Error> {
        let (now, cpu) = (self.now(), linux::proc::own_cpu_time());
        // Before the tree, since a process that ends leaves its group first.
        let group = match linux::proc::group_memory(self.pid) {
            Ok(group) => group,
            Err(error) => {
                self.write_unknown_limit(error)?;
                None
            }
        };
        let orphans = self.orphans.map_or_else(Vec::new, |orphans| orphans.look(&[self.pid]));
        orphans.into_iter().for_each(|orphan| self.tree.adopt(orphan));
        let members = self.tree.look();
        let has_ended = !members.iter().any(|member| member.pid == self.pid);
        self.write_starts_and_ends(&members)?;
        let counted = linux::proc::own_cpu_time();
        if has_ended {
            self.samples.done(now, counted - cpu);
            return Ok(false);
        }
        let is_exact = self.exact_samples.is_due(now);
        let members: Vec<(Member, Option<Rollup>)> = members
            .into_iter()
            .map(|member| {
                let rollup = if is_exact { linux::proc::rollup(member.pid).ok() } else { None };
                (member, rollup)
            })
            .collect();
        let recorder_cpu_ms = milliseconds(linux::proc::own_cpu_time());
        let sample = sample::sample(self.t_ms(), &members, group, recorder_cpu_ms);
        let walked = linux::proc::own_cpu_time();
        self.counts.samples += 1;
        self.counts.exact_samples += u64::from(sample.exact);
        if let Some(pss_bytes) = sample.pss_bytes {
            self.last_pss = Some((pss_bytes, sample.t_ms));
        }
        let latest = LatestFigures {
            causes: top_causes(self.last_causes.values()),
            causes_t_ms: self.last_causes.values().map(|causes| causes.t_ms).min(),
            pss: self.last_pss,
        };
        self.watcher.show(&sample, &latest);
        self.series.add(&sample);
        self.peaks.update(&sample);
        self.journal.write(&Line::Sample(sample))?;
        if is_exact {
            self.exact_samples.done(now, walked - counted);
        }
        let cost = linux::proc::own_cpu_time() - cpu;
        self.samples.done(now, cost.saturating_sub(walked - counted));
        Ok(true)
    }

    /// Writes once that the recording has no limit because none was found.
    fn write_unknown_limit(&mut self, error: linux::Error) -> Result<(), Error> {
        if error.is_end() || std::mem::replace(&mut self.is_blind, true) {
            return Ok(());
        }
        let (t_ms, pid, what) = (self.t_ms(), self.pid, error.to_string());
        self.journal.write(&Line::Failure(ReadFailure { t_ms, pid, what }))
    }

    fn write_starts_and_ends(&mut self, members: &[Member]) -> Result<(), Error> {
        for line in self.known.update(self.t_ms(), members) {
            if let Line::Gone(gone) = &line {
                self.last_causes.remove(&gone.pid);
            }
            self.journal.write(&line)?;
        }
        Ok(())
    }

    /// Begins a round of captures if one is due, or continues it. It captures one Ruby process after each sample, so that
    /// the next sample waits for one capture at most.
    fn take_causes(&mut self) -> Result<(), Error> {
        let now = self.now();
        let Some(pace) = &mut self.causes else { return Ok(()) };
        self.checked = now;
        let cpu = linux::proc::own_cpu_time();
        if self.round.is_empty() {
            if !pace.is_due(now) {
                return Ok(());
            }
            self.round = self.known.programs().collect();
            self.round_cost = Duration::ZERO;
        }
        while let Some(program) = self.round.pop_front() {
            if self.known.is_ruby(program, self.watcher) {
                self.capture(program, false)?;
                break;
            }
        }
        self.round_cost += linux::proc::own_cpu_time() - cpu;
        let (round_cost, is_over) = (self.round_cost, self.round.is_empty());
        if let Some(pace) = &mut self.causes
            && is_over
        {
            pace.done(now, round_cost);
        }
        Ok(())
    }

    /// Captures a process whose RSS has a new peak, so that the peak can be explained after it has passed.
    fn take_peak(&mut self) -> Result<(), Error> {
        let now = self.now();
        let Some(id) = self.peaks.unexplained() else { return Ok(()) };
        let Some(pace) = &self.peak_captures else { return Ok(()) };
        if !pace.is_due(now) && !self.peaks.is_spike(id) {
            return Ok(());
        }
        let cpu = linux::proc::own_cpu_time();
        self.peaks.explain(id);
        let program = self.known.programs().find(|program| (program.0, program.1) == id);
        let Some(program) = program.filter(|&program| self.known.is_ruby(program, self.watcher))
        else {
            return Ok(());
        };
        self.capture(program, true)?;
        if let Some(pace) = &mut self.peak_captures {
            pace.done(now, linux::proc::own_cpu_time() - cpu);
        }
        Ok(())
    }

    /// Writes the growth by code. Its lines are written so seldom that their bytes are limited.
    fn write_growth(&mut self, growth: Result<(Who, Instant), String>) -> Result<(), Error> {
        let line = match growth {
            Ok((who, end)) => {
                let t_ms = end.saturating_duration_since(self.started).as_millis() as u64;
                let cpu_ms = milliseconds(linux::proc::own_cpu_time());
                Line::Growth(self.growth_frames.sample(t_ms, who, cpu_ms))
            }
            Err(what) => Line::Failure(ReadFailure { t_ms: self.t_ms(), pid: self.pid, what }),
        };
        let seconds = line.to_json().len() as f64 / GROWTH_BYTES_PER_SECOND;
        self.growth_due = self.now() + Duration::from_secs_f64(seconds);
        self.journal.write(&line)
    }

    fn write_kept(&mut self, kept: Result<Kept, String>) -> Result<(), Error> {
        let (t_ms, pid) = (self.t_ms(), self.pid);
        self.journal.write(&match kept {
            Ok(kept) => Line::Kept(KeptSoFar::new(t_ms, kept)),
            Err(what) => Line::Failure(ReadFailure { t_ms, pid, what }),
        })
    }

    fn capture(&mut self, (pid, started_ticks, _): ProgramId, owners: bool) -> Result<(), Error> {
        let report = self.watcher.capture((pid, started_ticks), owners);
        let t_ms = self.t_ms();
        let line = match report {
            Ok(report) => {
                self.counts.captures += 1;
                let cpu_ms = milliseconds(linux::proc::own_cpu_time());
                let causes = CauseSample::new(t_ms, report, cpu_ms);
                self.last_causes.insert(pid, causes.clone());
                Line::Causes(causes)
            }
            Err(what) => Line::Failure(ReadFailure { t_ms, pid, what }),
        };
        self.journal.write(&line)
    }

    fn end(&mut self, why: EndReason, status: Option<ExitStatus>) -> Result<RecordingEnd, Error> {
        while let Some(growth) = self.watcher.growth(true) {
            self.write_growth(growth)?;
        }
        while let Some(kept) = self.watcher.kept(true) {
            self.write_kept(kept)?;
        }
        let end = RecordingEnd {
            t_ms: self.t_ms(),
            why,
            exit_status: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            samples: self.counts.samples,
            exact_samples: self.counts.exact_samples,
            captures: self.counts.captures,
            searches: self.searches().map(|it| it.made),
            searches_planned: self.searches().map(|it| it.planned),
            recorder_cpu_ms: milliseconds(linux::proc::own_cpu_time()),
        };
        self.journal.write(&Line::End(end.clone()))?;
        Ok(end)
    }
}
