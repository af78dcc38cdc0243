//! Page faults by events of the kernel: how many of them are sampled, and the program that copies stacks at these.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use linux::bpf::StackCopies;
use linux::page_faults::{Fault, FaultRecord, PageFaults, real_time_priority};
use linux::{Error, proc};
use ruby::ContextPath;

use crate::profile::Method;

/// The faults of a thread between two samples, at first.
const FIRST_PERIOD: u64 = 16;
/// The first and the longest period of a process with transparent huge pages, of which each fault adds one.
const PERIODS_OF_HUGE_PAGES: RangeInclusive<u64> = 1..=16;
/// The longest period: 1 MiB of growth.
const MAX_PERIOD: u64 = 256;
/// The samples of a second beyond which the period is doubled, and under which it is halved.
const MAX_SAMPLES_PER_SECOND: u64 = 64;
const MIN_SAMPLES_PER_SECOND: u64 = 8;

/// The events of a process and of those that it starts.
pub(crate) struct Events {
    pid: i32,
    faults: PageFaults,
    /// The way to the stacks that the kernel copies; `None` if it copies none.
    copied: Option<ContextPath>,
    /// The way to the stacks of a program that was learned.
    to_copy: Option<ContextPath>,
    /// True if a process has transparent huge pages.
    has_huge_pages: bool,
    /// The begin of a second, and its samples.
    second: (Instant, u64),
    /// The longest period since the last call of [`Self::begin_again`].
    pub(crate) longest_period: u64,
}

impl Events {
    pub(crate) fn open(pid: i32, others: &[i32]) -> Result<Self, Error> {
        let has_huge_pages = proc::has_huge_pages(pid);
        let period = *periods(has_huge_pages).start();
        Ok(Self {
            pid,
            faults: PageFaults::open(pid, others, period)?,
            copied: None,
            to_copy: None,
            has_huge_pages,
            second: (Instant::now(), 0),
            longest_period: period,
        })
    }

    pub(crate) fn method(&self) -> Method {
        if self.faults.sees_system_calls { Method::PageFaults } else { Method::UserPageFaults }
    }

    pub(crate) fn begin_again(&mut self) {
        self.longest_period = self.faults.period;
    }

    /// Waits up to `time` for records.
    pub(crate) fn wait(&mut self, time: Duration) -> Result<Vec<FaultRecord>, Error> {
        self.faults.wait(time).map_err(|source| Error::Faults { pid: self.pid, source })
    }

    /// Gives our thread real-time priority if stacks are read after their fault: the sooner one is read, the surer is it the stack
    /// of the fault.
    pub(crate) fn priority(&self) -> Option<impl Drop + use<>> {
        self.copied.is_none().then(real_time_priority)
    }

    /// Copies stacks by this way from the next call of [`Self::copy_stacks`] on.
    pub(crate) fn learn(&mut self, path: ContextPath) {
        self.to_copy = Some(path);
    }

    /// Lets the kernel copy the stacks of a program that was learned. If it refuses, they are read. Returns records that no
    /// one has waited for.
    pub(crate) fn copy_stacks(&mut self, processes: &[i32]) -> Result<Vec<FaultRecord>, Error> {
        let Some(path) = self.to_copy.take().filter(|path| self.copied.as_ref() != Some(path))
        else {
            return Ok(Vec::new());
        };
        let Ok(copies) = StackCopies::load(|code| path.write(code)) else { return Ok(Vec::new()) };
        let rest = self.faults.copy_at_faults(self.pid, processes, copies)?;
        self.copied = Some(path);
        Ok(rest)
    }

    /// The stack that the kernel copied at this fault, once, and the way to it.
    pub(crate) fn copy(&mut self, fault: &Fault) -> Option<(&ContextPath, Vec<u8>)> {
        let copy = self.faults.copy(fault)?;
        Some((self.copied.as_ref()?, copy))
    }

    /// From now on, each fault may add a huge page.
    pub(crate) fn expect_huge_pages(&mut self) {
        self.has_huge_pages = true;
    }

    /// Changes the period once in a second, by the number of samples; at once if so many arrived together that we are behind.
    /// Returns records that no one has waited for.
    pub(crate) fn adapt(
        &mut self,
        samples: u64,
        processes: &[i32],
    ) -> Result<Vec<FaultRecord>, Error> {
        self.second.1 += samples;
        let is_behind = samples >= MAX_SAMPLES_PER_SECOND;
        if !is_behind && self.second.0.elapsed() < Duration::from_secs(1) {
            return Ok(Vec::new());
        }
        let period = self.faults.period;
        let next = next_period(period, self.second.1, periods(self.has_huge_pages));
        self.second = (Instant::now(), 0);
        if next == period {
            return Ok(Vec::new());
        }
        let rest = self.faults.change_period(self.pid, processes, next)?;
        self.longest_period = self.longest_period.max(next);
        Ok(rest)
    }
}

fn periods(has_huge_pages: bool) -> RangeInclusive<u64> {
    if has_huge_pages { PERIODS_OF_HUGE_PAGES } else { FIRST_PERIOD..=MAX_PERIOD }
}

/// The period for the next second: longer if there are so many samples that reading stacks would cost too much, and
/// shorter if more would cost nothing.
fn next_period(period: u64, samples: u64, periods: RangeInclusive<u64>) -> u64 {
    let next = match samples {
        MAX_SAMPLES_PER_SECOND.. => period * 2,
        ..MIN_SAMPLES_PER_SECOND => period / 2,
        _ => period,
    };
    next.clamp(*periods.start(), *periods.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_follows_the_number_of_samples_within_its_limits() {
        let periods =
            [(16, 64, 32), (256, 5000, 256), (64, 63, 64), (64, 8, 64), (64, 7, 32), (16, 0, 16)];
        for (period, samples, next) in periods {
            assert_eq!(next_period(period, samples, super::periods(false)), next, "{period}");
        }
        // A process that has got huge pages meanwhile.
        for (period, samples, next) in [(1, 0, 1), (16, 5000, 16), (256, 64, 16), (256, 20, 16)] {
            assert_eq!(next_period(period, samples, super::periods(true)), next, "{period}");
        }
    }
}
