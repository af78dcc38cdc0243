use std::time::{Duration, Instant};

use linux::Error;
use linux::page_faults::is_forbidden;

use crate::account::Account;
use crate::budget::Budget;
use crate::events::Events;
use crate::polling::Polling;
use crate::processes::Processes;
use crate::profile::{Method, Profile};
use crate::program::Program;

mod polls;
mod records;

/// The time between two divisions of growth among samples.
const DIVISION_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two counts of old objects, at first, and the counts of a process that are kept.
const OLD_OBJECTS_INTERVAL: Duration = Duration::from_millis(500);
const MAX_OLD_OBJECTS: usize = 512;

/// Samples the page faults of a process, and of the processes that it starts.
pub struct Sampler {
    source: Source,
    processes: Processes,
    /// Processes that have begun to run another program.
    executed: Vec<i32>,
    account: Account,
    budget: Budget,
    started: Instant,
    /// The time at which growth was last divided among samples.
    divided: Instant,
    /// The time of the next count of old objects, and the time between two.
    old_objects_due: (Instant, Duration),
}

/// The way in which page faults are noticed.
enum Source {
    Events(Events),
    Polling(Polling),
}

impl Sampler {
    /// Begins to sample the process `pid` and `others`, which it has started before. Without the right to do so, or if `poll`
    /// is true, the faults of threads are counted instead.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn begin(pid: i32, others: &[i32], poll: bool) -> Result<Self, Error> {
        let source = if poll {
            Source::Polling(Polling::new(pid))
        } else {
            match Events::open(pid, others) {
                Ok(events) => Source::Events(events),
                Err(Error::Faults { source, .. }) if is_forbidden(&source) => {
                    Source::Polling(Polling::new(pid))
                }
                Err(error) => return Err(error),
            }
        };
        let now = Instant::now();
        let mut sampler = Self {
            source,
            processes: Processes::default(),
            executed: Vec::new(),
            account: Account::default(),
            budget: Budget::new(),
            started: now,
            divided: now,
            old_objects_due: (now, OLD_OBJECTS_INTERVAL),
        };
        for &pid in [pid].iter().chain(others) {
            let process = sampler.processes.find_or_add(pid, None);
            process.share(&mut sampler.budget);
        }
        sampler.budget = Budget::new();
        Ok(sampler)
    }

    fn method(&self) -> Method {
        match &self.source {
            Source::Events(events) => events.method(),
            Source::Polling(_) => Method::Polling,
        }
    }

    /// The processes of which no program is known.
    #[must_use]
    pub fn unknown_processes(&self) -> Vec<i32> {
        let unknown = self.processes.iter().filter(|process| process.program.is_none());
        unknown.map(|process| process.pid).collect()
    }

    /// Uses what was derived of the capture of a process, for all processes that run the same program.
    pub fn learn(&mut self, program: &Program) {
        for process in self.processes.iter_mut().filter(|process| process.program.is_none()) {
            process.learn(program.clone());
        }
        if let Source::Events(events) = &mut self.source {
            events.learn(program.stacks.context_path());
        }
    }

    /// The processes that have begun to run another program since the last call.
    pub fn take_executed(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.executed)
    }

    /// Waits up to `time` for samples, and attributes growth to them. With samples whose growth is not known yet, it waits only
    /// until that is due to be read: a process may end at any moment.
    ///
    /// # Errors
    /// If the kernel refuses to wait, or to sample any longer.
    pub fn step(&mut self, mut time: Duration) -> Result<(), Error> {
        if !self.account.pending().is_empty() {
            time = time.min(DIVISION_INTERVAL.saturating_sub(self.divided.elapsed()));
        }
        match &self.source {
            Source::Events(_) => self.step_by_events(time)?,
            Source::Polling(_) => self.step_by_polling(),
        }
        if self.divided.elapsed() >= DIVISION_INTERVAL {
            self.divide();
        }
        Ok(())
    }

    /// Divides the growth of processes among the samples since the last time.
    fn divide(&mut self) {
        self.divided = Instant::now();
        for pid in self.account.pending() {
            let Some(process) = self.processes.get_mut(pid) else { continue };
            if process.read_rss() {
                process.look_at_shared_pages();
                self.account.keep_pages(process);
            }
            self.account.divide(process, &mut self.budget);
            if let Source::Events(events) = &mut self.source
                && process.pages_per_fault > 1
            {
                events.expect_huge_pages();
            }
        }
        for pid in self.processes.take_ended() {
            self.finish(pid);
        }
        self.count_old_objects();
    }

    /// Counts old objects at intervals, which double when there are many counts.
    fn count_old_objects(&mut self) {
        let (due, interval) = &mut self.old_objects_due;
        if Instant::now() < *due {
            return;
        }
        *due = Instant::now() + *interval;
        let is_full = self.processes.iter().any(|it| it.old_objects.len() >= MAX_OLD_OBJECTS);
        if is_full {
            *interval *= 2;
        }
        for process in self.processes.iter_mut() {
            process.count_old_objects();
            if is_full {
                let mut is_kept = false;
                process.old_objects.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
            }
        }
    }

    /// Ends the account of a process.
    fn settle(&mut self, pid: i32) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        self.account.divide(process, &mut self.budget);
        let period = match &self.source {
            Source::Events(events) => events.longest_period,
            Source::Polling(_) => 0,
        };
        self.account.settle(process, period);
    }

    /// Ends the account of a process that has ended, and closes everything that is open for it.
    fn finish(&mut self, pid: i32) {
        self.settle(pid);
        if let Some(process) = self.processes.remove(pid) {
            self.account.keep_ended(&process);
        }
    }

    /// Takes the records that no one has waited for yet, and divides growth among all samples.
    fn take_rest(&mut self) {
        self.take_unread();
        self.divide();
    }

    /// Ends the observation. The profile has the sampled pages that are still there.
    #[must_use]
    pub fn end(mut self) -> Profile {
        self.take_rest();
        let touched = self.account.take_touched(self.processes.iter_mut());
        Profile { touched, ..self.take() }
    }

    /// The growth since the beginning or the last call of [`Self::take`].
    #[must_use]
    pub fn growth_bytes(&self) -> u64 {
        let growth = self.processes.iter().map(|process| process.growth().bytes());
        self.account.ended_bytes() + growth.sum::<u64>()
    }

    /// Returns the growth since the beginning or the last call, without sampled pages. From now on growth is counted anew.
    #[must_use]
    pub fn take(&mut self) -> Profile {
        self.take_rest();
        let old_objects = self.processes.iter().map(|it| (it.pid, it.old_objects.clone()));
        let old_objects = old_objects.collect();
        self.old_objects_due = (Instant::now(), OLD_OBJECTS_INTERVAL);
        for pid in self.processes.ids().to_vec() {
            if let Some(process) = self.processes.get_mut(pid) {
                process.read_rss();
            }
            self.settle(pid);
            if let Some(process) = self.processes.get_mut(pid) {
                process.begin_again();
            }
        }
        let elapsed = self.started.elapsed();
        self.started = Instant::now();
        let interval = match &mut self.source {
            Source::Events(events) => {
                events.begin_again();
                None
            }
            Source::Polling(polling) => {
                polling.begin_again();
                Some(polling.interval)
            }
        };
        Profile { method: self.method(), old_objects, interval, elapsed, ..self.account.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::tests::sample;
    use crate::kind::Kind;
    use crate::profile::MachineCode;
    use linux::arch::page_size;

    /// The period was changed, and forks were looked at, with real-time priority.
    #[test]
    fn the_priority_is_an_ordinary_one_after_stacks_were_read() {
        let priority = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields = stat.rsplit_once(") ").unwrap().1;
            fields.split(' ').nth(15).unwrap().to_owned()
        };
        let before = priority();
        let mut sampler = Sampler::begin(std::process::id().cast_signed(), &[], false).unwrap();
        sampler.step(Duration::from_millis(1)).unwrap();
        assert_eq!(priority(), before);
    }

    /// RSS was read up to half a second after the last sample. Growth of a program that ran another one before that was lost.
    #[test]
    fn growth_is_read_soon_after_the_last_sample() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut sampler = Sampler::begin(pid, &[], false).unwrap();
        sampler.account.add(pid, [sample(Some(0), 1, true)]);
        let begin = Instant::now();
        while !sampler.account.pending().is_empty() {
            sampler.step(Duration::from_secs(300)).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(200), "it waited for another sample");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn growth_without_samples_is_unknown_beyond_a_period_for_each_thread() {
        // Not this process: other tests start and end threads in it.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut sampler = Sampler::begin(pid, &[], false).unwrap();
        let Source::Events(events) = &sampler.source else { panic!("the tests run as root") };
        let period = events.longest_period;
        let place = |_| (Kind::Arena, MachineCode::Kernel);
        let book = &mut sampler.account.book;
        let rows = book.divide(1 << 20, &[sample(Some(0), 256, true)], place);
        let process = sampler.processes.get_mut(pid).unwrap();
        process.rows = rows.into_iter().collect();
        process.start_bytes = 0;
        process.peak_bytes = 1 << 30;
        process.take_growth(256);
        let threads = process.threads();
        sampler.settle(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        let profile = sampler.account.take();
        let growth = profile.growth[0];
        let bound = threads * period * page_size();
        assert!(growth.bytes > 1 << 20 && growth.bytes <= (1 << 20) + bound, "{growth:?}");
        // What is not known to be prompt does not count as prompt.
        assert_eq!(growth.prompt_bytes, 1 << 20);
        assert!(profile.unsampled_bytes >= (1 << 29) - bound);
    }
}
