//! Samples by events: the records of the kernel, joined with the stacks of their threads.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use linux::Error;
use linux::page_faults::{Fault, FaultRecord};

use super::{Sampler, Source};
use crate::book::{Access, Sample};
use crate::process::StackReading;

/// A stack that was read so soon after the fault is taken for the stack of the fault.
const PROMPT: Duration = Duration::from_millis(1);

/// The stacks of faults, in the order of their records.
type Readings = Vec<Option<Rc<StackReading>>>;

impl Sampler {
    /// Waits up to `time` for records, and makes samples of them.
    pub(super) fn step_by_events(&mut self, time: Duration) -> Result<(), Error> {
        let Source::Events(events) = &mut self.source else { return Ok(()) };
        let rest = events.copy_stacks(self.processes.ids())?;
        self.take_in(rest);
        let Source::Events(events) = &mut self.source else { return Ok(()) };
        let priority = events.priority();
        let records = events.wait(time)?;
        let readings = self.read_stacks(&records);
        drop(priority);
        let samples = self.take_records(records, readings);
        let Source::Events(events) = &mut self.source else { return Ok(()) };
        let rest = events.adapt(samples, self.processes.ids())?;
        self.take_in(rest);
        Ok(())
    }

    /// Makes samples of the records that no one has waited for yet.
    pub(super) fn take_unread(&mut self) {
        if let Source::Events(events) = &mut self.source {
            let records = events.wait(Duration::ZERO).unwrap_or_default();
            self.take_in(records);
        }
    }

    fn take_in(&mut self, records: Vec<FaultRecord>) {
        let readings = self.read_stacks(&records);
        self.take_records(records, readings);
    }

    /// The stacks of threads that have faulted: those of the fault, or else those that are read now, each once.
    fn read_stacks(&mut self, records: &[FaultRecord]) -> Readings {
        let (mut readings, mut read) = (Readings::new(), HashMap::new());
        for record in records {
            readings.push(match record {
                FaultRecord::Fault(fault) => self.stack_of(fault, &mut read),
                FaultRecord::Forked { pid, parent } => {
                    self.processes.find_or_add(*pid, Some(*parent));
                    None
                }
                _ => None,
            });
        }
        // The process runs another program than the one by which its stacks were read.
        let executed = |record: &FaultRecord| match *record {
            FaultRecord::Executed { pid } => Some(pid),
            _ => None,
        };
        for executed in records.iter().filter_map(executed) {
            let is_its = |record| matches!(record, &FaultRecord::Fault(it) if it.pid == executed);
            let its = readings.iter_mut().zip(records).filter(|it| is_its(it.1));
            its.for_each(|(reading, _)| *reading = None);
        }
        readings
    }

    fn stack_of(
        &mut self,
        fault: &Fault,
        read: &mut HashMap<(i32, i32), Rc<StackReading>>,
    ) -> Option<Rc<StackReading>> {
        let Source::Events(events) = &mut self.source else { return None };
        let Fault { pid, tid, .. } = *fault;
        let process = self.processes.find_or_add(pid, None);
        if let Some((path, copy)) = events.copy(fault)
            && let Some(stack) = process.stack_of_fault(path, &copy, &mut self.budget)
        {
            return Some(Rc::new(stack));
        }
        let read = read.entry((pid, tid));
        Some(read.or_insert_with(|| Rc::new(process.read_stack(tid, &mut self.budget))).clone())
    }

    /// Takes the records of the kernel, in the order of their time. Returns the number of samples.
    pub(super) fn take_records(&mut self, records: Vec<FaultRecord>, readings: Readings) -> u64 {
        let mut samples = 0;
        for (record, reading) in records.into_iter().zip(readings) {
            match record {
                FaultRecord::Fault(fault) => {
                    samples += 1;
                    self.sample(fault, reading.as_deref());
                }
                FaultRecord::Forked { pid, parent } => self.fork(pid, parent),
                FaultRecord::ThreadEnded { pid, tid } => {
                    if let Some(process) = self.processes.get_mut(pid) {
                        process.forget_thread(tid);
                    }
                    if pid == tid {
                        self.processes.suspect(pid);
                    }
                }
                FaultRecord::Executed { pid } => self.execute(pid),
                FaultRecord::Lost(samples) => self.account.book.profile.lost += samples,
            }
        }
        samples
    }

    /// Adds a sample.
    fn sample(&mut self, fault: Fault, reading: Option<&StackReading>) {
        let Fault { pid, tid, address, instruction, period: faults, .. } = fault;
        let Some(process) = self.processes.get_mut(pid) else { return };
        let book = &mut self.account.book;
        let stack = reading.and_then(|reading| book.stack(process, reading));
        book.count(reading, stack);
        let thread = book.thread(&process.name(tid));
        let is_prompt = reading.is_some_and(|reading| {
            let is_soon = reading.time.saturating_sub(fault.time) <= PROMPT;
            stack.is_some() && (reading.is_of_fault || reading.is_running && is_soon)
        });
        let pages = if process.is_copy(address) { 0 } else { faults };
        let access = Some(Access { address, instruction });
        self.account.add(pid, [Sample { stack, thread, access, faults, pages, is_prompt }]);
    }

    /// A process was forked. Its id may have been that of an earlier one, whose pages are gone.
    fn fork(&mut self, pid: i32, parent: i32) {
        if self.processes.get_mut(pid).is_some_and(|earlier| !earlier.is_alive()) {
            self.finish(pid);
        }
        if !self.processes.has(pid) {
            self.account.forget_pages(pid);
        }
        self.processes.find_or_add(pid, Some(parent)).earlier_faults = 0;
        // Programs that fork all the time must not cost much.
        if !self.budget.has_room() {
            return;
        }
        let shared = self.processes.get_mut(parent).map(|it| it.share(&mut self.budget));
        if let (Some(shared), Some(process)) = (shared, self.processes.get_mut(pid)) {
            process.inherit(shared);
        }
    }

    /// The process runs another program. RSS is the new program's already, so the old one's growth is that seen so far.
    fn execute(&mut self, pid: i32) {
        self.executed.push(pid);
        if self.processes.has(pid) {
            self.settle(pid);
            self.processes.replace(pid);
            self.account.forget_pages(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use linux::Address;

    use super::*;

    #[test]
    fn the_pages_of_an_ended_process_are_forgotten_when_its_id_is_used_again() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, own) = (child.id().cast_signed(), std::process::id().cast_signed());
        let mut sampler = Sampler::begin(own, &[pid], true).unwrap();
        let fork = |sampler: &mut Sampler| {
            sampler.take_records(vec![FaultRecord::Forked { pid, parent: own }], vec![None])
        };
        sampler.account.touched.add(pid, Some(100), None, 16);
        // The process that is known already.
        fork(&mut sampler);
        assert_eq!(sampler.account.touched.take(pid, None, 16).pages.len(), 1);
        sampler.account.touched.add(pid, Some(100), None, 16);
        // It began at another time, so it is another process.
        sampler.processes.get_mut(pid).unwrap().started_ticks = Some(1);
        fork(&mut sampler);
        assert_eq!(sampler.account.touched.take(pid, None, 16).pages, []);
        assert!(sampler.processes.get_mut(pid).unwrap().is_alive());
        let rows = sampler.take().processes;
        assert_eq!(rows.iter().filter(|process| process.pid == pid).count(), 2);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Faults of the old program were those of the new one if both were in the same batch.
    #[test]
    fn faults_before_an_exec_are_those_of_the_old_program() {
        let own = std::process::id().cast_signed();
        let mut sampler = Sampler::begin(own, &[], false).unwrap();
        assert!(matches!(sampler.source, Source::Events(_)), "the tests run as root");
        sampler.processes.get_mut(own).unwrap().peak_bytes += 1 << 30;
        let (time, at) = (Duration::ZERO, Address(0));
        let fault = Fault { pid: own, tid: own, time, address: at, instruction: at, period: 1 };
        let records = [FaultRecord::Fault(fault), FaultRecord::Executed { pid: own }];
        sampler.take_records([records, records].concat(), vec![None; 4]);
        assert!(sampler.account.pending().is_empty());
        // Each program has a row, the last one later.
        let profile = sampler.account.take();
        assert_eq!(profile.processes.len(), 2);
        assert!(profile.processes[0].bytes() >= 1 << 30 && profile.processes[1].bytes() < 1 << 29);
        assert_eq!(profile.samples, 2);
    }

    /// Records that were left when the period changed stood for twice as many faults, so half of the copied memory was too much.
    #[test]
    fn a_fault_counts_by_the_period_of_its_time() {
        let own = std::process::id().cast_signed();
        let mut sampler = Sampler::begin(own, &[], false).unwrap();
        let (time, at) = (Duration::ZERO, Address(0));
        let fault =
            |period| Fault { pid: own, tid: own, time, address: at, instruction: at, period };
        let records = [fault(7), fault(14)].map(FaultRecord::Fault);
        sampler.take_records(records.to_vec(), vec![None; 2]);
        sampler.divide();
        let growth = sampler.account.take().growth;
        let faulted: u64 = growth.iter().map(|row| row.faulted_bytes).sum();
        assert_eq!(faulted, 21 * linux::arch::page_size());
    }
}
