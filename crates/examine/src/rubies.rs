//! The Ruby processes on this machine, and the kernel's figures about them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use linux::proc::{self, ControlGroup, GroupMemory, Member, Rollup};
use supervise::Pace;

use crate::error::Error;
use crate::process::{Id, nearest_ancestor, ruby};

/// A program that has just begun may not have loaded Ruby yet, so it is looked at again after this time.
const LOADED: Duration = Duration::from_secs(3);
/// The shares of a processor for searches, fast counts and exact figures. With those for limits and captures, the agent takes 1 %.
const SHARES: [f64; 3] = [0.0015, 0.0015, 0.003];
/// The time over which growth is measured.
const GROWTH: f64 = 60.0;

/// A Ruby process, and the kernel's figures about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Its id and start time.
    pub id: Id,
    /// The Ruby process that started it, or started its parent.
    pub parent: Option<i32>,
    /// Its command line.
    pub command: String,
    /// By the kernel's fast count, without the error that it had at the last exact reading.
    pub rss_bytes: u64,
    /// The latest exact figures.
    pub exact: Option<Rollup>,
    /// Its control group.
    pub group_path: Option<String>,
    /// The memory of this group.
    pub group: Option<GroupMemory>,
    /// True if the group could not be found, so that there may be a limit.
    pub is_limit_unknown: bool,
    /// Its growth over the last minute, in bytes.
    pub growth_per_minute: Option<f64>,
}

/// The times between two readings, if they cost little.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    /// Between two searches for processes.
    pub search: Duration,
    /// Between two readings of the kernel's fast counts.
    pub sample: Duration,
    /// Between two readings of exact figures.
    pub exact: Duration,
}

/// The processes of this machine.
pub struct Rubies {
    started: Instant,
    /// The control group to which they belong; `None` for all of this machine.
    group: Option<ControlGroup>,
    /// By id, start time, and program.
    known: BTreeMap<(i32, u64, u64), Known>,
    refused: usize,
    complain: Box<dyn Fn(i32, Error) + Send>,
    /// True if there was a complaint about an unknown limit. Where one process has it, most have.
    is_blind: bool,
    paces: [Pace; READINGS.len()],
}

/// The readings, in the order of [`Rubies::paces`].
const READINGS: [fn(&mut Rubies, Duration); 3] =
    [Rubies::search, Rubies::sample, Rubies::sample_exactly];

/// A process.
struct Known {
    seen: Duration,
    /// True if it was looked at after it had time to load Ruby.
    is_settled: bool,
    is_refused: bool,
    ruby: Option<Ruby>,
}

/// A Ruby process.
#[derive(Default)]
struct Ruby {
    command: String,
    parent: Option<i32>,
    /// RSS by the kernel's fast count over the last minute: seconds and bytes.
    rss: VecDeque<(f64, f64)>,
    fast_bytes: u64,
    /// The latest exact figures, and the fast count at that time.
    exact: Option<(Rollup, u64)>,
    group_path: Option<String>,
    group: Option<GroupMemory>,
    is_limit_unknown: bool,
}

impl Rubies {
    /// Reads at these intervals: the processes of a group, or all. `complain` gets each process that cannot be
    /// examined, unless that is a lack of rights.
    #[must_use]
    pub fn new(
        every: Intervals,
        group: Option<ControlGroup>,
        complain: impl Fn(i32, Error) + Send + 'static,
    ) -> Self {
        Self {
            complain: Box::new(complain),
            started: Instant::now(),
            group,
            known: BTreeMap::new(),
            refused: 0,
            is_blind: false,
            paces: [
                Pace::new(every.search, SHARES[0]),
                Pace::new(every.sample, SHARES[1]),
                Pace::new(every.exact, SHARES[2]),
            ],
        }
    }

    /// Reads what is due. Returns the time until the next reading.
    pub fn read(&mut self) -> Duration {
        for (at, read) in READINGS.into_iter().enumerate() {
            let now = self.started.elapsed();
            if self.paces[at].is_due(now) {
                let before = proc::own_thread_cpu_time();
                read(self, now);
                let cost = proc::own_thread_cpu_time().saturating_sub(before);
                self.paces[at].done(now, cost);
            }
        }
        let next = self.paces.iter().map(Pace::due).min().unwrap_or_default();
        next.saturating_sub(self.started.elapsed())
    }

    /// The number of readings so far.
    pub fn readings(&self) -> u64 {
        self.paces.iter().map(Pace::runs).sum()
    }

    /// The number of processes that could not be examined.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// The Ruby processes.
    pub fn listed(&mut self) -> Vec<Listed> {
        let rubies = self.known.iter_mut().filter_map(|((pid, started, _), known)| {
            let ruby = known.ruby.as_mut()?;
            Some(ruby.listed((*pid, *started)))
        });
        rubies.collect()
    }

    /// Searches for processes that began or ended.
    fn search(&mut self, now: Duration) {
        let pids = match &self.group {
            Some(group) => group.processes(),
            None => proc::processes().unwrap_or_default(),
        };
        let members: BTreeMap<i32, Member> =
            pids.into_iter().filter_map(|pid| Some((pid, proc::member(pid)?))).collect();
        let mut before = std::mem::take(&mut self.known);
        // The forked copies of captures do not count.
        for member in members.values().filter(|member| !member.is_copy) {
            let key = (member.pid, member.started_ticks, member.program);
            let mut known = before.remove(&key).unwrap_or(Known {
                seen: now,
                is_settled: false,
                is_refused: false,
                ruby: None,
            });
            let has_loaded = now >= known.seen + LOADED;
            if known.ruby.is_none() && !known.is_settled && (known.seen == now || has_loaded) {
                known.look(member, &self.complain);
                known.is_settled = has_loaded;
            }
            self.known.insert(key, known);
        }
        self.refused = self.known.values().filter(|known| known.is_refused).count();
        let rubies: BTreeSet<i32> =
            self.known.iter().filter(|(_, it)| it.ruby.is_some()).map(|(key, _)| key.0).collect();
        for ((pid, ..), known) in &mut self.known {
            if let Some(ruby) = &mut known.ruby {
                let parent = |pid| members.get(&pid).map(|member| member.parent);
                ruby.parent = nearest_ancestor(*pid, &rubies, parent);
            }
        }
    }

    /// Reads the kernel's counters.
    fn sample(&mut self, now: Duration) {
        let seconds = now.as_secs_f64();
        self.known.retain(|(pid, started, _), known| {
            let Some(ruby) = &mut known.ruby else { return true };
            let Some(member) = proc::member_since(*pid, *started) else { return false };
            ruby.fast_bytes = member.rss_bytes;
            ruby.rss.push_back((seconds, member.rss_bytes as f64));
            while ruby.rss.front().is_some_and(|(time, _)| *time < seconds - GROWTH) {
                ruby.rss.pop_front();
            }
            true
        });
    }

    /// Reads the figures for which the kernel walks the page tables, and the control groups.
    fn sample_exactly(&mut self, _: Duration) {
        for ((pid, started, _), known) in &mut self.known {
            let Some(ruby) = &mut known.ruby else { continue };
            if proc::start_time(*pid).ok() != Some(*started) {
                continue;
            }
            if let (Ok(rollup), Some(member)) = (proc::rollup(*pid), proc::member(*pid)) {
                ruby.fast_bytes = member.rss_bytes;
                ruby.exact = Some((rollup, member.rss_bytes));
            }
            // Servers write their state into it.
            if let Ok(command) = proc::command_line(*pid) {
                ruby.command = command;
            }
            (ruby.group, ruby.is_limit_unknown) = match proc::group_memory(*pid) {
                Ok(group) => (group, false),
                Err(error) => {
                    let is_news = !error.is_end();
                    if is_news && !std::mem::replace(&mut self.is_blind, true) {
                        (self.complain)(*pid, error.into());
                    }
                    (None, is_news)
                }
            };
        }
    }
}

impl Known {
    /// Finds out whether a process is a Ruby process.
    fn look(&mut self, member: &Member, complain: &dyn Fn(i32, Error)) {
        self.is_refused = false;
        match ruby(member.pid) {
            Ok(Some(target)) => {
                let process = &target.image().state.process;
                let (command, group_path) =
                    (process.command.clone(), process.control_group.clone());
                let fast_bytes = member.rss_bytes;
                self.ruby = Some(Ruby { command, group_path, fast_bytes, ..Ruby::default() });
            }
            Err(error) if error.is_not_permitted() => self.is_refused = true,
            Err(error) if !error.is_without_memory() => {
                self.is_refused = true;
                complain(member.pid, error);
            }
            _ => {}
        }
    }
}

impl Ruby {
    fn listed(&mut self, id: Id) -> Listed {
        let rss_bytes = match self.exact {
            Some((rollup, fast_bytes)) => {
                (self.fast_bytes + rollup.rss_bytes).saturating_sub(fast_bytes)
            }
            None => self.fast_bytes,
        };
        Listed {
            id,
            parent: self.parent,
            command: self.command.clone(),
            rss_bytes,
            exact: self.exact.map(|(rollup, _)| rollup),
            group_path: self.group_path.clone(),
            group: self.group,
            is_limit_unknown: self.is_limit_unknown,
            growth_per_minute: diagnosis::growth_per_minute(self.rss.make_contiguous()),
        }
    }
}
