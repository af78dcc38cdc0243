use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::{Duration, Instant};

use capture::live::kernel_program::FaultCopies;
use capture::live::page_faults::{
    Fault, FaultRecord, PageFaults, is_forbidden, real_time_priority,
};
use capture::proc::own_thread_cpu_time;
use capture::{Address, Error, PAGE_SIZE, proc};
use ruby::{ContextPath, Frame};

use crate::budget::Budget;
use crate::kind::Kind;
use crate::polling::{Polled, Polling};
use crate::process::{Process, StackReading};
use crate::profile::{Growth, MachineCode, Method, ProcessGrowth, Profile, UnknownStack};
use crate::program::Program;
use crate::touched::TouchedPages;

/// The faults of a thread between two samples, at first.
const FIRST_PERIOD: u64 = 16;
/// The first and the longest period of a process with transparent huge pages, of which each fault adds one.
const PERIODS_OF_HUGE_PAGES: RangeInclusive<u64> = 1..=16;
/// The longest period: 1 MiB of growth.
const MAX_PERIOD: u64 = 256;
/// A stack that was read so soon after the fault is taken for the stack of the fault.
const PROMPT: Duration = Duration::from_millis(1);
/// The number of threads beyond which the stacks of idle ones are not read when polling.
const MAX_POLLED_STACKS: usize = 32;
/// The time between two divisions of growth among samples.
const DIVISION_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two counts of old objects, at first, and the counts of a process that are kept.
const OLD_OBJECTS_INTERVAL: Duration = Duration::from_millis(500);
const MAX_OLD_OBJECTS: usize = 512;
/// The samples of a second beyond which the period is doubled, and under which it is halved.
const MAX_SAMPLES_PER_SECOND: u64 = 64;
const MIN_SAMPLES_PER_SECOND: u64 = 8;

/// Samples the page faults of a process, and of the processes that it starts.
pub struct Sampler {
    pid: i32,
    source: Source,
    /// The way to the stacks that the kernel copies at page faults; `None` if it does not.
    copied: Option<ContextPath>,
    /// That of a program that was learned.
    to_copy: Option<ContextPath>,
    /// True if the process has transparent huge pages.
    has_huge_pages: bool,
    /// The begin of a second, and its samples.
    second: (Instant, u64),
    started: Instant,
    processes: HashMap<i32, Process>,
    /// The ids of all processes, in the order in which they were first seen.
    order: Vec<i32>,
    /// Processes that have ended, or run another program now.
    ended: Vec<ProcessGrowth>,
    /// Processes that may have ended.
    ending: Vec<i32>,
    /// Processes that have begun to run another program.
    executed: Vec<i32>,
    /// Processes that have ended and whose pages were sampled.
    gone: Vec<Gone>,
    /// The growth of processes whose account has ended, as far as it was not attributed to samples.
    unsampled_bytes: u64,
    /// The longest period since the beginning or the last call of [`Self::take`].
    longest_period: u64,
    touched: TouchedPages,
    budget: Budget,
    /// The time of the next count of old objects, and the time between two.
    old_objects_due: (Instant, Duration),
    /// Samples by process, and the time at which growth was last divided among samples.
    pending: HashMap<i32, Vec<Sample>>,
    divided: Instant,
    book: Book,
}

/// The way in which page faults are noticed.
enum Source {
    Events(PageFaults),
    Polling {
        polling: Polling,
        /// The stack of each thread at the last look; `None` if it waited, or was unreadable.
        stacks: HashMap<(i32, i32), Option<u32>>,
    },
}

/// A process that has ended.
struct Gone {
    pid: i32,
    started_ticks: Option<u64>,
    faults: u64,
}

/// The stacks of faults, in the order of their records.
type Readings = Vec<Option<Rc<StackReading>>>;

/// The numbers of everything that occurs in samples, and their growth.
#[derive(Default)]
struct Book {
    profile: Profile,
    frames: HashMap<Frame, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    threads: HashMap<String, u32>,
    machine_code: HashMap<MachineCode, u32>,
    growth: HashMap<(Option<u32>, u32, Kind, u32), usize>,
}

/// A sample whose growth is not known yet.
struct Sample {
    stack: Option<u32>,
    thread: u32,
    address: Address,
    instruction: Address,
    /// The page faults that it stands for.
    faults: u64,
    /// The pages that these have added; 0 if they copied shared pages.
    pages: u64,
    is_prompt: bool,
}

impl Sampler {
    /// Begins to sample the process `pid` and `others`, which it has started before. Without the right to do so, or if `poll`
    /// is true, the faults of threads are counted instead.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn begin(pid: i32, others: &[i32], poll: bool) -> Result<Self, Error> {
        let polling = || Source::Polling { polling: Polling::new(pid), stacks: HashMap::new() };
        let has_huge_pages = proc::has_huge_pages(pid);
        let first_period = *periods(has_huge_pages).start();
        let source = if poll {
            polling()
        } else {
            match PageFaults::open(pid, others, first_period) {
                Ok(faults) => Source::Events(faults),
                Err(Error::Faults { source, .. }) if is_forbidden(&source) => polling(),
                Err(error) => return Err(error),
            }
        };
        let now = Instant::now();
        let mut sampler = Self {
            pid,
            source,
            copied: None,
            to_copy: None,
            has_huge_pages,
            second: (now, 0),
            started: now,
            processes: HashMap::new(),
            order: Vec::new(),
            ended: Vec::new(),
            ending: Vec::new(),
            executed: Vec::new(),
            gone: Vec::new(),
            pending: HashMap::new(),
            divided: now,
            unsampled_bytes: 0,
            longest_period: first_period,
            budget: Budget::new(),
            old_objects_due: (now, OLD_OBJECTS_INTERVAL),
            touched: TouchedPages::default(),
            book: Book::default(),
        };
        for &pid in [pid].iter().chain(others) {
            sampler.process(pid, None);
            if let Some(process) = sampler.processes.get_mut(&pid) {
                process.share(&mut sampler.budget);
            }
        }
        sampler.budget = Budget::new();
        Ok(sampler)
    }

    fn method(&self) -> Method {
        match &self.source {
            Source::Events(faults) if faults.sees_system_calls => Method::PageFaults,
            Source::Events(_) => Method::UserPageFaults,
            Source::Polling { .. } => Method::Polling,
        }
    }

    /// The processes of which no program is known.
    #[must_use]
    pub fn unknown_processes(&self) -> Vec<i32> {
        let is_unknown =
            |pid: &&i32| self.processes.get(pid).is_some_and(|it| it.program.is_none());
        self.order.iter().filter(is_unknown).copied().collect()
    }

    /// Uses what was derived of the capture of a process, for all processes that run the same program.
    pub fn learn(&mut self, program: &Program) {
        for process in self.processes.values_mut().filter(|process| process.program.is_none()) {
            process.learn(program.clone());
        }
        self.to_copy = Some(program.stacks.context_path());
    }

    /// Lets the kernel copy the stacks of a program that was learned. If it refuses, they are read.
    fn copy_stacks(&mut self) -> Result<(), Error> {
        let Some(path) = self.to_copy.take().filter(|path| self.copied.as_ref() != Some(path))
        else {
            return Ok(());
        };
        let Source::Events(faults) = &mut self.source else { return Ok(()) };
        let Ok(copies) = FaultCopies::load(|code| path.write(code)) else { return Ok(()) };
        let others: Vec<i32> = self.order.iter().copied().filter(|&it| it != self.pid).collect();
        let rest = faults.copy_at_faults(self.pid, &others, copies)?;
        self.take_in(rest);
        self.copied = Some(path);
        Ok(())
    }

    /// The processes that have begun to run another program since the last call.
    pub fn take_executed(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.executed)
    }

    /// Waits up to `time` for samples, and attributes growth to them.
    ///
    /// # Errors
    /// If the kernel refuses to wait, or to sample any longer.
    pub fn step(&mut self, time: Duration) -> Result<(), Error> {
        self.copy_stacks()?;
        match &mut self.source {
            Source::Events(faults) => {
                // The sooner a stack is read after the fault, the surer is it the stack of the fault.
                let priority = real_time_priority();
                let failed = |source| Error::Faults { pid: self.pid, source };
                let records = faults.wait(time).map_err(failed)?;
                let readings = self.read_stacks(&records);
                drop(priority);
                let samples = self.take_records(records, readings);
                self.adapt(samples)?;
            }
            Source::Polling { polling, .. } => {
                std::thread::sleep(polling.interval);
                self.poll();
            }
        }
        if self.divided.elapsed() >= DIVISION_INTERVAL {
            self.divide();
        }
        Ok(())
    }

    /// The stacks of threads that have faulted: those of the fault, or else those that are read now, each once.
    fn read_stacks(&mut self, records: &[FaultRecord]) -> Readings {
        let (mut readings, mut read) = (Readings::new(), HashMap::new());
        for record in records {
            readings.push(match record {
                FaultRecord::Fault(fault) => self.stack_of(fault, &mut read),
                FaultRecord::Forked { pid, parent } => {
                    self.process(*pid, Some(*parent));
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
        let Source::Events(faults) = &mut self.source else { return None };
        let copy = faults.copy(fault);
        let Fault { pid, tid, .. } = *fault;
        self.process(pid, None);
        let process = self.processes.get_mut(&pid)?;
        let budget = &mut self.budget;
        if let (Some(path), Some(copy)) = (&self.copied, copy)
            && let Some(stack) = process.stack_of_fault(path, &copy, budget)
        {
            return Some(Rc::new(stack));
        }
        let read = read.entry((pid, tid));
        Some(read.or_insert_with(|| Rc::new(process.read_stack(tid, budget))).clone())
    }

    /// Takes the records of the kernel, in the order of their time. Returns the number of samples.
    fn take_records(&mut self, records: Vec<FaultRecord>, readings: Readings) -> u64 {
        let mut samples = 0;
        for (record, reading) in records.into_iter().zip(readings) {
            match record {
                FaultRecord::Fault(fault) => {
                    samples += 1;
                    self.sample(fault, reading.as_deref());
                }
                FaultRecord::Forked { pid, parent } => self.fork(pid, parent),
                FaultRecord::ThreadEnded { pid, tid } => {
                    if let Some(process) = self.processes.get_mut(&pid) {
                        process.forget_thread(tid);
                    }
                    if pid == tid {
                        self.ending.push(pid);
                    }
                }
                FaultRecord::Executed { pid } => self.execute(pid),
                FaultRecord::Lost(samples) => self.book.profile.lost += samples,
            }
        }
        samples
    }

    /// Adds a sample.
    fn sample(&mut self, fault: Fault, reading: Option<&StackReading>) {
        let Source::Events(PageFaults { period, .. }) = self.source else { return };
        let Fault { pid, tid, address, instruction, .. } = fault;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let frames = reading.map_or(Err(UnknownStack::NotDerived), |reading| {
            reading.frames.as_deref().map_err(|&reason| reason)
        });
        let stack = process.program.as_ref().zip(frames.ok());
        let stack = stack.and_then(|(program, frames)| self.book.stack(program, frames));
        let profile = &mut self.book.profile;
        profile.samples += 1;
        profile.torn += u64::from(reading.is_some_and(|reading| reading.is_torn));
        profile.copied += u64::from(reading.is_some_and(|reading| reading.is_of_fault));
        if stack.is_none() {
            profile.unknown_stacks.add(frames.err().unwrap_or(UnknownStack::Unreadable));
        }
        let thread = self.book.thread(&process.name(tid));
        let is_prompt = reading.is_some_and(|reading| {
            let is_soon = reading.time.saturating_sub(fault.time) <= PROMPT;
            stack.is_some() && (reading.is_of_fault || reading.is_running && is_soon)
        });
        let (faults, pages) = (period, if process.is_copy(address) { 0 } else { period });
        let sample = Sample { stack, thread, address, instruction, faults, pages, is_prompt };
        self.pending.entry(pid).or_default().push(sample);
    }

    /// A process was forked. Its id may have been that of an earlier one, whose pages are gone.
    fn fork(&mut self, pid: i32, parent: i32) {
        if self.processes.get(&pid).is_some_and(|earlier| !earlier.is_alive()) {
            self.finish(pid);
        }
        if !self.processes.contains_key(&pid) {
            self.touched.forget(pid);
            self.gone.retain(|gone| gone.pid != pid);
        }
        self.process(pid, Some(parent)).earlier_faults = 0;
        // Programs that fork all the time must not cost much.
        if !self.budget.has_room() {
            return;
        }
        let shared = self.processes.get_mut(&parent).map(|it| it.share(&mut self.budget));
        if let (Some(shared), Some(process)) = (shared, self.processes.get_mut(&pid)) {
            process.inherit(shared);
        }
    }

    /// The process runs another program. RSS is the new program's already, so the old one's growth is that seen so far.
    fn execute(&mut self, pid: i32) {
        self.executed.push(pid);
        if self.processes.contains_key(&pid) {
            self.divide_of(pid);
            self.settle(pid);
            self.processes.insert(pid, Process::new(pid, None));
            self.touched.forget(pid);
        }
    }

    /// Ends the account of a process that has ended, and closes everything that is open for it.
    fn finish(&mut self, pid: i32) {
        self.divide_of(pid);
        self.settle(pid);
        self.order.retain(|&it| it != pid);
        if let Some(process) = self.processes.remove(&pid)
            && self.touched.has(pid)
        {
            let (started_ticks, faults) = (process.started_ticks, process.faults());
            self.gone.push(Gone { pid, started_ticks, faults });
        }
    }

    /// Finishes processes that have ended.
    fn finish_ended(&mut self) {
        for pid in std::mem::take(&mut self.ending) {
            match proc::lives(pid) {
                Ok(false) => self.finish(pid),
                // Its first thread has ended, and others have not.
                Ok(true) if proc::thread_state(pid, pid) == Some('Z') => self.ending.push(pid),
                Ok(true) => {}
                Err(_) => self.ending.push(pid),
            }
        }
    }

    /// Ends the account of a process. Growth without samples belongs to threads that are in the middle of a period, or were when
    /// they ended: at most a period for each. So much is divided as that of the process's samples. Anything more is unknown.
    fn settle(&mut self, pid: i32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let rest = process.unattributed_bytes();
        let pages = match self.source {
            Source::Events(_) if rest > 0 => {
                self.longest_period * process.pages_per_fault * process.threads()
            }
            _ => 0,
        };
        let divided = self.book.extend(&process.rows, rest.min(pages.saturating_mul(PAGE_SIZE)));
        self.unsampled_bytes += rest - divided;
        self.ended.push(process.growth());
    }

    /// Counts the faults of all threads. Half of the growth of a thread is the code's that it ran at the last look.
    fn poll(&mut self) {
        let begin = own_thread_cpu_time();
        let Source::Polling { polling, stacks } = &mut self.source else { return };
        let threads = polling.look();
        let before = std::mem::take(stacks);
        let mut after = HashMap::new();
        let are_few = threads.len() <= MAX_POLLED_STACKS;
        let pids: HashSet<i32> = threads.iter().map(|it| it.pid).collect();
        for Polled { pid, tid, faults } in threads {
            if faults == 0 && !are_few {
                continue;
            }
            self.process(pid, None);
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            let reading = process.read_stack(tid, &mut self.budget);
            let stack = process.program.as_ref().zip(reading.frames.as_deref().ok());
            let stack = stack.and_then(|(program, frames)| self.book.stack(program, frames));
            after.insert((pid, tid), stack);
            if faults == 0 {
                continue;
            }
            let thread = self.book.thread(&process.name(tid));
            let profile = &mut self.book.profile;
            profile.samples += 1;
            profile.torn += u64::from(reading.is_torn);
            if stack.is_none() {
                let reason = reading.frames.as_ref().err().copied();
                profile.unknown_stacks.add(reason.unwrap_or(UnknownStack::Unreadable));
            }
            let sample = |stack, pages| {
                let (address, instruction, is_prompt) = (Address(0), Address(0), false);
                let faults = pages;
                Sample { stack, thread, address, instruction, faults, pages, is_prompt }
            };
            let earlier = before.get(&(pid, tid)).copied().flatten();
            let first = match earlier {
                // While a thread waits, it touches nothing.
                Some(_) if reading.frames == Err(UnknownStack::Late) => faults,
                Some(_) => faults / 2,
                None => 0,
            };
            let pending = self.pending.entry(pid).or_default();
            pending.extend(earlier.map(|earlier| sample(Some(earlier), first)));
            pending.push(sample(stack, faults - first));
        }
        self.ending = self.order.iter().copied().filter(|pid| !pids.contains(pid)).collect();
        if let Source::Polling { polling, stacks } = &mut self.source {
            *stacks = after;
            polling.adapt(own_thread_cpu_time().saturating_sub(begin));
        }
    }

    /// The process `pid`; a new one runs the program of its parent.
    fn process(&mut self, pid: i32, parent: Option<i32>) -> &mut Process {
        if !self.processes.contains_key(&pid) {
            let program_of = |parent| self.processes.get(&parent).and_then(|it| it.program.clone());
            let process = match parent.and_then(program_of) {
                Some(program) => Process::forked(pid, program),
                None => {
                    Process::new(pid, self.processes.values().find_map(|it| it.program.clone()))
                }
            };
            self.processes.insert(pid, process);
            self.order.push(pid);
            // Its records may have come after it had ended.
            self.ending.push(pid);
        }
        self.processes.get_mut(&pid).expect("it was inserted")
    }

    /// Divides the growth of processes among the samples since the last time.
    fn divide(&mut self) {
        self.divided = Instant::now();
        for pid in self.pending.keys().copied().collect::<Vec<_>>() {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            if process.read_rss() {
                process.look_at_shared_pages();
                self.touched.keep(pid, |pages| process.has_pages(pages));
            }
            self.divide_of(pid);
        }
        self.finish_ended();
        self.count_old_objects();
    }

    /// Counts old objects at intervals, which double when there are many counts.
    fn count_old_objects(&mut self) {
        let (due, interval) = &mut self.old_objects_due;
        if Instant::now() < *due {
            return;
        }
        *due = Instant::now() + *interval;
        let is_full = |process: &Process| process.old_objects.len() >= MAX_OLD_OBJECTS;
        let is_full = self.processes.values().any(is_full);
        if is_full {
            *interval *= 2;
        }
        for process in self.processes.values_mut() {
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

    /// Divides the growth of a process that was seen so far among its samples.
    fn divide_of(&mut self, pid: i32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(mut samples) = self.pending.remove(&pid) else { return };
        // Not when the stacks are read: that must be soon.
        for sample in samples.iter_mut().filter(|sample| sample.pages > 0) {
            let added = process.pages_added(sample.address);
            self.has_huge_pages |= added > 1;
            sample.pages *= added;
        }
        process.map_all(samples.iter().map(|sample| sample.address), &mut self.budget);
        let growth = process.take_growth(samples.iter().map(|sample| sample.pages).sum());
        let place = |sample: &Sample| {
            (process.kind(sample.address), process.machine_code(sample.instruction))
        };
        let rows = self.book.divide(growth, &samples, place);
        for (row, bytes) in rows {
            *process.rows.entry(row).or_default() += bytes;
        }
        if matches!(self.source, Source::Events(_)) {
            for sample in samples {
                let Sample { address, stack, faults, pages, .. } = sample;
                // A copied page has the contents of other code.
                let page = (pages > 0).then_some(address.0 / PAGE_SIZE);
                self.touched.add(pid, page, stack, faults.max(pages));
            }
        }
    }

    /// Changes the period once in a second, by the number of samples; at once if so many arrived together that we are behind.
    fn adapt(&mut self, samples: u64) -> Result<(), Error> {
        self.second.1 += samples;
        let is_behind = samples >= MAX_SAMPLES_PER_SECOND;
        if !is_behind && self.second.0.elapsed() < Duration::from_secs(1) {
            return Ok(());
        }
        let Source::Events(faults) = &mut self.source else { return Ok(()) };
        let next = next_period(faults.period, self.second.1, periods(self.has_huge_pages));
        self.second = (Instant::now(), 0);
        if next == faults.period {
            return Ok(());
        }
        let others: Vec<i32> = self.order.iter().copied().filter(|&it| it != self.pid).collect();
        let rest = faults.change_period(self.pid, &others, next)?;
        self.longest_period = self.longest_period.max(next);
        self.take_in(rest);
        Ok(())
    }

    fn take_in(&mut self, records: Vec<FaultRecord>) {
        let readings = self.read_stacks(&records);
        self.take_records(records, readings);
    }

    /// Takes the records that no one has waited for yet, and divides growth among all samples.
    fn take_rest(&mut self) {
        if let Source::Events(faults) = &mut self.source {
            let records = faults.wait(Duration::ZERO).unwrap_or_default();
            self.take_in(records);
        }
        self.divide();
    }

    /// Ends the observation. The profile has the sampled pages that are still there.
    #[must_use]
    pub fn end(mut self) -> Profile {
        self.take_rest();
        let mut touched = Vec::new();
        for &pid in &self.order {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            self.touched.keep(pid, |pages| process.has_pages(pages));
            touched.push(self.touched.take(pid, process.started_ticks, process.faults()));
        }
        for Gone { pid, started_ticks, faults } in std::mem::take(&mut self.gone) {
            touched.push(self.touched.take(pid, started_ticks, faults));
        }
        touched.retain(|it| !it.pages.is_empty());
        Profile { touched, ..self.take() }
    }

    /// The growth since the beginning or the last call of [`Self::take`].
    #[must_use]
    pub fn growth_bytes(&self) -> u64 {
        let ended = self.ended.iter().map(ProcessGrowth::bytes);
        ended.chain(self.processes.values().map(|process| process.growth().bytes())).sum()
    }

    /// Returns the growth since the beginning or the last call, without sampled pages. From now on growth is counted anew.
    #[must_use]
    pub fn take(&mut self) -> Profile {
        self.take_rest();
        let old_objects = |&pid: &i32| Some((pid, self.processes.get(&pid)?.old_objects.clone()));
        let old_objects = self.order.iter().filter_map(old_objects).collect();
        self.old_objects_due = (Instant::now(), OLD_OBJECTS_INTERVAL);
        for pid in self.order.clone() {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.read_rss();
            }
            self.settle(pid);
            if let Some(process) = self.processes.get_mut(&pid) {
                process.begin_again();
            }
        }
        // All of these have numbers of the book's stacks.
        let mut profile = std::mem::take(&mut self.book).profile;
        self.touched = TouchedPages::default();
        self.gone.clear();
        self.pending.clear();
        match &mut self.source {
            Source::Events(faults) => self.longest_period = faults.period,
            Source::Polling { polling, stacks } => {
                stacks.clear();
                profile.interval = Some(polling.interval);
            }
        }
        profile.method = self.method();
        profile.old_objects = old_objects;
        profile.unsampled_bytes = std::mem::take(&mut self.unsampled_bytes);
        profile.processes = std::mem::take(&mut self.ended);
        // A forked copy that was made to read the process may be gone before it is seen.
        profile.processes.retain(|process| process.peak_bytes > 0);
        profile.elapsed = self.started.elapsed();
        self.started = Instant::now();
        profile
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

impl Book {
    /// The number of a stack.
    fn stack(&mut self, program: &Program, frames: &[u32]) -> Option<u32> {
        let mut own = Vec::with_capacity(frames.len());
        for &frame in frames {
            let frame = program.stacks.frame(frame)?;
            own.push(number(&mut self.frames, &mut self.profile.frames, frame));
        }
        (!own.is_empty()).then(|| number(&mut self.stacks, &mut self.profile.stacks, &own))
    }

    /// The number of the threads with this name.
    fn thread(&mut self, name: &String) -> u32 {
        number(&mut self.threads, &mut self.profile.threads, name)
    }

    /// The index of the row of the growth of samples like this one.
    fn row(&mut self, sample: &Sample, (kind, code): (Kind, MachineCode)) -> usize {
        let Sample { stack, thread, .. } = *sample;
        let code = number(&mut self.machine_code, &mut self.profile.machine_code, &code);
        let rows = &mut self.profile.growth;
        *self.growth.entry((stack, thread, kind, code)).or_insert_with(|| {
            let (bytes, prompt_bytes, faulted_bytes, copied_bytes) = (0, 0, 0, 0);
            let machine_code = code;
            rows.push(Growth {
                stack,
                thread,
                kind,
                machine_code,
                bytes,
                prompt_bytes,
                faulted_bytes,
                copied_bytes,
            });
            rows.len() - 1
        })
    }

    /// Divides growth among samples by their pages. `place` returns the kind of memory and the machine code of a sample. Returns
    /// the row of each sample, and the bytes that it got.
    fn divide(
        &mut self,
        bytes: u64,
        samples: &[Sample],
        place: impl Fn(&Sample) -> (Kind, MachineCode),
    ) -> Vec<(usize, u64)> {
        let mut left = bytes;
        let mut pages_left: u64 = samples.iter().map(|sample| sample.pages).sum();
        let mut parts = Vec::with_capacity(samples.len());
        for sample in samples {
            let part =
                (u128::from(left) * u128::from(sample.pages)).checked_div(u128::from(pages_left));
            let part = part.unwrap_or(0) as u64;
            left -= part;
            pages_left -= sample.pages;
            let row = self.row(sample, place(sample));
            parts.push((row, part));
            let row = &mut self.profile.growth[row];
            row.bytes += part;
            row.prompt_bytes += if sample.is_prompt { part } else { 0 };
            let copied = if sample.pages == 0 { sample.faults } else { 0 };
            row.copied_bytes += copied.saturating_mul(PAGE_SIZE);
            row.faulted_bytes += (copied + sample.pages).saturating_mul(PAGE_SIZE);
        }
        parts
    }

    /// Divides growth without samples among rows by their bytes. Returns the bytes that were divided.
    fn extend(&mut self, rows: &HashMap<usize, u64>, bytes: u64) -> u64 {
        let known: u64 = rows.values().sum();
        let mut divided = 0;
        for (&row, &own) in rows {
            let part = (u128::from(own) * u128::from(bytes)).checked_div(u128::from(known));
            let part = part.unwrap_or(0) as u64;
            self.profile.growth[row].bytes += part;
            divided += part;
        }
        divided
    }
}

/// The number of `value` in `all`, where it is added if it is new.
fn number<T: Clone + Eq + std::hash::Hash>(
    known: &mut HashMap<T, u32>,
    all: &mut Vec<T>,
    value: &T,
) -> u32 {
    if let Some(&number) = known.get(value) {
        return number;
    }
    let number = all.len() as u32;
    all.push(value.clone());
    known.insert(value.clone(), number);
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(stack: Option<u32>, pages: u64, is_prompt: bool) -> Sample {
        let (address, instruction) = (Address(0), Address(0));
        Sample { stack, thread: 0, address, instruction, faults: 16, pages, is_prompt }
    }

    #[test]
    fn the_pages_of_an_ended_process_are_forgotten_when_its_id_is_used_again() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, own) = (child.id().cast_signed(), std::process::id().cast_signed());
        let mut sampler = Sampler::begin(own, &[pid], true).unwrap();
        let fork = |sampler: &mut Sampler| {
            sampler.take_records(vec![FaultRecord::Forked { pid, parent: own }], vec![None])
        };
        sampler.touched.add(pid, Some(100), None, 16);
        // The process that is known already.
        fork(&mut sampler);
        assert_eq!(sampler.touched.take(pid, None, 16).pages.len(), 1);
        sampler.touched.add(pid, Some(100), None, 16);
        // It began at another time, so it is another process.
        sampler.process(pid, None).started_ticks = Some(1);
        fork(&mut sampler);
        assert_eq!(sampler.touched.take(pid, None, 16).pages, []);
        assert!(sampler.process(pid, None).is_alive());
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
        assert_ne!(sampler.method(), Method::Polling, "the tests run as root");
        sampler.process(own, None).peak_bytes += 1 << 30;
        let (time, at) = (Duration::ZERO, Address(0));
        let fault = Fault { pid: own, tid: own, time, address: at, instruction: at };
        let records = [FaultRecord::Fault(fault), FaultRecord::Executed { pid: own }];
        sampler.take_records([records, records].concat(), vec![None; 4]);
        // Each program has a row, the last one later.
        assert_eq!(sampler.ended.len(), 2);
        assert!(sampler.ended[0].bytes() >= 1 << 30 && sampler.ended[1].bytes() < 1 << 29);
        assert_eq!(sampler.book.profile.samples, 2);
        assert!(!sampler.pending.contains_key(&own));
    }

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

    #[test]
    fn growth_is_divided_by_pages_and_no_byte_is_lost() {
        let place = |_: &Sample| (Kind::Arena, MachineCode::Kernel);
        let mut book = Book::default();
        let samples =
            [sample(Some(0), 16, true), sample(Some(1), 32, false), sample(Some(0), 16, true)];
        book.divide(1001, &samples, place);
        let rows: Vec<_> = book.profile.growth.iter().map(|it| (it.stack, it.bytes)).collect();
        assert_eq!(rows, [(Some(0), 501), (Some(1), 500)]);
        // Without growth the pages are faulted in all the same.
        book.divide(0, &[sample(None, 8, true)], place);
        let faulted: Vec<u64> = book.profile.growth.iter().map(|it| it.faulted_bytes).collect();
        assert_eq!(faulted, [32 * PAGE_SIZE, 32 * PAGE_SIZE, 8 * PAGE_SIZE]);
        // A copy of a shared page is no growth.
        book.divide(4096, &[sample(Some(2), 0, true), sample(Some(0), 16, true)], place);
        let rows: Vec<_> =
            book.profile.growth.iter().map(|it| (it.stack, it.bytes, it.copied_bytes)).collect();
        let copied = 16 * PAGE_SIZE;
        let expected =
            [(Some(0), 501 + 4096, 0), (Some(1), 500, 0), (None, 0, 0), (Some(2), 0, copied)];
        assert_eq!(rows, expected);
        let prompt: Vec<u64> = book.profile.growth.iter().map(|it| it.prompt_bytes).collect();
        assert_eq!(prompt, [501 + 4096, 0, 0, 0]);
    }

    #[test]
    fn growth_without_samples_is_unknown_beyond_a_period_for_each_thread() {
        let own = std::process::id().cast_signed();
        let mut sampler = Sampler::begin(own, &[], false).unwrap();
        assert_ne!(sampler.method(), Method::Polling, "the tests run as root");
        let place = |_: &Sample| (Kind::Arena, MachineCode::Kernel);
        let rows = sampler.book.divide(1 << 20, &[sample(Some(0), 256, true)], place);
        let threads = {
            let process = sampler.process(own, None);
            process.rows = rows.into_iter().collect();
            process.start_bytes = 0;
            process.peak_bytes = 1 << 30;
            process.take_growth(256);
            process.threads()
        };
        sampler.settle(own);
        let growth = sampler.book.profile.growth[0];
        let bound = threads * sampler.longest_period * PAGE_SIZE;
        assert!(growth.bytes > 1 << 20 && growth.bytes <= (1 << 20) + bound, "{growth:?}");
        // What is not known to be prompt does not count as prompt.
        assert_eq!(growth.prompt_bytes, 1 << 20);
        assert!(sampler.unsampled_bytes >= (1 << 29) - bound);
    }

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
