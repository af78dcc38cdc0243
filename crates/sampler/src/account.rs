//! The account of growth: who has grown, by which code, and which pages were touched.

use std::collections::HashMap;

use linux::arch::page_size;

use crate::book::{Access, Book, Sample};
use crate::budget::Budget;
use crate::process::Process;
use crate::profile::{ProcessGrowth, Profile, Touched};
use crate::touched::TouchedPages;

/// The growth since the beginning, or since the last [`Account::take`].
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) book: Book,
    /// Samples by process, whose growth is not known yet.
    pending: HashMap<i32, Vec<Sample>>,
    pub(crate) touched: TouchedPages,
    /// Processes that have ended, or run another program now.
    ended: Vec<ProcessGrowth>,
    /// Processes that have ended and whose pages were sampled.
    gone: Vec<Gone>,
    /// The growth of processes whose account has ended, as far as it was not attributed to samples.
    unsampled_bytes: u64,
}

/// A process that has ended.
struct Gone {
    pid: i32,
    started_ticks: Option<u64>,
    faults: u64,
}

impl Account {
    pub(crate) fn add(&mut self, pid: i32, samples: impl IntoIterator<Item = Sample>) {
        self.pending.entry(pid).or_default().extend(samples);
    }

    /// The processes with samples whose growth is not known yet.
    pub(crate) fn pending(&self) -> Vec<i32> {
        self.pending.keys().copied().collect()
    }

    /// The growth of the processes whose account has ended.
    pub(crate) fn ended_bytes(&self) -> u64 {
        self.ended.iter().map(ProcessGrowth::bytes).sum()
    }

    /// RSS of the process has fallen: forgets pages that it has returned.
    pub(crate) fn keep_pages(&mut self, process: &mut Process) {
        self.touched.keep(process.pid, |pages| process.has_pages(pages));
    }

    /// Divides the growth of a process that was seen so far among its samples.
    pub(crate) fn divide(&mut self, process: &mut Process, budget: &mut Budget) {
        let Some(mut samples) = self.pending.remove(&process.pid) else { return };
        // Not when the stacks are read: that must be soon.
        for sample in samples.iter_mut().filter(|sample| sample.pages > 0) {
            sample.pages *= sample.access.map_or(1, |access| process.pages_added(access.address));
        }
        let accesses: Vec<Access> = samples.iter().filter_map(|sample| sample.access).collect();
        process.map_all(&accesses, budget);
        let growth = process.take_growth(samples.iter().map(|sample| sample.pages).sum());
        let rows = self.book.divide(growth, &samples, |access| process.place(access));
        for (row, bytes) in rows {
            *process.rows.entry(row).or_default() += bytes;
        }
        for Sample { access, stack, faults, pages, .. } in samples {
            let Some(Access { address, .. }) = access else { continue };
            // A copied page has the contents of other code.
            let page = (pages > 0).then_some(address.0 / page_size());
            self.touched.add(process.pid, page, stack, faults.max(pages));
        }
    }

    /// Ends the account of a process. Growth without samples belongs to threads that are in the middle of a period, or were when
    /// they ended: at most `period` faults for each. So much is divided as that of the process's samples. Anything more is unknown.
    pub(crate) fn settle(&mut self, process: &Process, period: u64) {
        let rest = process.unattributed_bytes();
        let pages = match rest {
            0 => 0,
            _ => period.saturating_mul(process.pages_per_fault * process.threads()),
        };
        let divided = self.book.extend(&process.rows, rest.min(pages.saturating_mul(page_size())));
        self.unsampled_bytes += rest - divided;
        self.ended.push(process.growth());
    }

    /// The process has ended, after its growth was settled.
    pub(crate) fn keep_ended(&mut self, process: &Process) {
        if self.touched.has(process.pid) {
            let Process { pid, started_ticks, .. } = *process;
            self.gone.push(Gone { pid, started_ticks, faults: process.faults() });
        }
    }

    /// The process has new memory. Its id may have been an earlier one's.
    pub(crate) fn forget_pages(&mut self, pid: i32) {
        self.touched.forget(pid);
        self.gone.retain(|gone| gone.pid != pid);
    }

    /// Takes the sampled pages that are still there, of these processes and of those that have ended.
    pub(crate) fn take_touched<'a>(
        &mut self,
        processes: impl Iterator<Item = &'a mut Process>,
    ) -> Vec<Touched> {
        let mut touched = Vec::new();
        for process in processes {
            self.keep_pages(process);
            let Process { pid, started_ticks, .. } = *process;
            touched.push(self.touched.take(pid, started_ticks, process.faults()));
        }
        for Gone { pid, started_ticks, faults } in std::mem::take(&mut self.gone) {
            touched.push(self.touched.take(pid, started_ticks, faults));
        }
        touched.retain(|it| !it.pages.is_empty());
        touched
    }

    /// Returns the growth of all processes that were settled, and begins anew.
    pub(crate) fn take(&mut self) -> Profile {
        // Everything that is forgotten here has numbers of the book's stacks.
        let Self { book, ended, unsampled_bytes, .. } = std::mem::take(self);
        let mut profile = book.profile;
        profile.unsampled_bytes = unsampled_bytes;
        profile.processes = ended;
        // A forked copy that was made to read the process may be gone before it is seen.
        profile.processes.retain(|process| process.peak_bytes > 0);
        profile
    }
}
