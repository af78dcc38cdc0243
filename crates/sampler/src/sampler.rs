use std::collections::HashMap;
use std::time::{Duration, Instant};

use capture::live::page_faults::{Fault, FaultRecord, PageFaults};
use capture::{Address, Error, PAGE_SIZE, proc};
use ruby::Frame;

use crate::kind::Kind;
use crate::polling::{self, Polled, Polling};
use crate::process::Process;
use crate::profile::{Growth, ProcessGrowth, Profile};
use crate::program::Program;

/// The faults of a thread between two samples, at first.
const FIRST_PERIOD: u64 = 16;
/// The first period of a process with transparent huge pages, which are faulted in as a whole.
const PERIOD_OF_HUGE_PAGES: u64 = 1;
/// The longest period: 1 MiB of growth.
const MAX_PERIOD: u64 = 256;
/// A stack that was read so soon after the fault is taken for the stack of the fault.
const PROMPT: Duration = Duration::from_millis(1);
/// The number of threads beyond which the stacks of idle ones are not read when polling.
const MAX_POLLED_STACKS: usize = 32;
/// The time between two divisions of growth among samples.
const DIVISION_INTERVAL: Duration = Duration::from_millis(20);
/// The samples of a second beyond which the period is doubled, and under which it is halved.
const MAX_SAMPLES_PER_SECOND: u64 = 64;
const MIN_SAMPLES_PER_SECOND: u64 = 8;

/// Samples the page faults of a process, and of the processes that it starts.
pub struct Sampler {
    pid: i32,
    source: Source,
    first_period: u64,
    /// The begin of a second, and its samples.
    second: (Instant, u64),
    started: Instant,
    processes: HashMap<i32, Process>,
    /// The ids of all processes, in the order in which they were first seen.
    order: Vec<i32>,
    /// Processes that have ended, or run another program now.
    ended: Vec<ProcessGrowth>,
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
        /// The stack of each thread at the last look.
        stacks: HashMap<(i32, i32), Option<u32>>,
    },
}

/// The way in which page faults are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// By events of the kernel.
    Events,
    /// By events of the kernel, without those inside of system calls.
    UserEvents,
    /// By counting the faults of all threads every 20 ms.
    Polling,
}

/// The numbers of everything that occurs in samples, and their growth.
#[derive(Default)]
struct Book {
    profile: Profile,
    frames: HashMap<Frame, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    threads: HashMap<String, u32>,
    libraries: HashMap<String, u32>,
    growth: HashMap<(Option<u32>, u32, Kind, u32), usize>,
}

/// A sample whose growth is not known yet.
struct Sample {
    stack: Option<u32>,
    thread: u32,
    address: Address,
    instruction: Address,
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
        let first_period = if has_huge_pages { PERIOD_OF_HUGE_PAGES } else { FIRST_PERIOD };
        let source = match PageFaults::open(pid, others, first_period) {
            _ if poll => polling(),
            Ok(faults) => Source::Events(faults),
            Err(Error::Faults { .. }) => polling(),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let mut sampler = Self {
            pid,
            source,
            first_period,
            second: (now, 0),
            started: now,
            processes: HashMap::new(),
            order: Vec::new(),
            ended: Vec::new(),
            pending: HashMap::new(),
            divided: now,
            book: Book::default(),
        };
        for &pid in [pid].iter().chain(others) {
            sampler.process(pid, None);
        }
        Ok(sampler)
    }

    /// The way in which page faults are noticed.
    #[must_use]
    pub fn method(&self) -> Method {
        match &self.source {
            Source::Events(faults) if faults.sees_system_calls => Method::Events,
            Source::Events(_) => Method::UserEvents,
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
    }

    /// Waits up to `time` for samples, and attributes growth to them.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub fn step(&mut self, time: Duration) -> Result<(), Error> {
        match &mut self.source {
            Source::Events(faults) => {
                let failed = |source| Error::Faults { pid: self.pid, source };
                let records = faults.wait(time).map_err(failed)?;
                self.take(records);
            }
            Source::Polling { .. } => {
                std::thread::sleep(time.min(polling::INTERVAL));
                self.poll();
            }
        }
        if self.divided.elapsed() >= DIVISION_INTERVAL {
            self.divide();
        }
        Ok(())
    }

    /// Takes the records of the kernel.
    fn take(&mut self, records: Vec<FaultRecord>) {
        let mut faults = Vec::new();
        for record in records {
            match record {
                FaultRecord::Fault(fault) => faults.push(fault),
                FaultRecord::Forked { pid, parent } => {
                    self.process(pid, Some(parent));
                }
                FaultRecord::ThreadEnded { pid, tid } => {
                    if let Some(process) = self.processes.get_mut(&pid) {
                        process.forget_thread(tid);
                    }
                }
                FaultRecord::Executed { pid } => {
                    self.divide();
                    if let Some(process) = self.processes.get_mut(&pid) {
                        self.ended.push(growth_of(process));
                        process.execute();
                    }
                }
                FaultRecord::Lost(samples) => self.book.profile.lost += samples,
            }
        }
        self.read_stacks(&faults);
        self.adapt(faults.len() as u64);
    }

    /// Counts the faults of all threads. Half of the growth of a thread is the code's that it ran at the last look.
    fn poll(&mut self) {
        let Source::Polling { polling, stacks } = &mut self.source else { return };
        let threads = polling.look();
        let before = std::mem::take(stacks);
        let mut after = HashMap::new();
        let are_few = threads.len() <= MAX_POLLED_STACKS;
        for Polled { pid, tid, faults } in threads {
            if faults == 0 && !are_few {
                continue;
            }
            let reading = self.process(pid, None).read_stack(tid);
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            let stack = process.program.as_ref().zip(reading.frames.as_deref());
            let stack = stack.and_then(|(program, frames)| self.book.stack(program, frames));
            after.insert((pid, tid), stack);
            if faults == 0 {
                continue;
            }
            let thread = self.book.thread(&process.name(tid));
            let profile = &mut self.book.profile;
            profile.samples += 1;
            profile.torn += u64::from(reading.is_torn);
            profile.unreadable += u64::from(stack.is_none());
            let sample = |stack, pages| {
                let (address, instruction, is_prompt) = (Address(0), Address(0), false);
                Sample { stack, thread, address, instruction, pages, is_prompt }
            };
            let earlier = before.get(&(pid, tid)).copied().flatten();
            let half = if earlier.is_some() { faults / 2 } else { 0 };
            let pending = self.pending.entry(pid).or_default();
            pending.extend(earlier.map(|earlier| sample(Some(earlier), half)));
            pending.push(sample(stack, faults - half));
        }
        if let Source::Polling { stacks, .. } = &mut self.source {
            *stacks = after;
        }
    }

    /// The process `pid`; a new one runs the program of its parent.
    fn process(&mut self, pid: i32, parent: Option<i32>) -> &mut Process {
        if !self.processes.contains_key(&pid) {
            let parent = parent.and_then(|parent| self.processes.get(&parent));
            let program = parent.and_then(|parent| parent.program.clone());
            let program =
                program.or_else(|| self.processes.values().find_map(|it| it.program.clone()));
            self.processes.insert(pid, Process::new(pid, program));
            self.order.push(pid);
        }
        self.processes.get_mut(&pid).expect("it was inserted")
    }

    /// Reads the stacks of threads that have faulted, each once.
    fn read_stacks(&mut self, faults: &[Fault]) {
        let mut readings = HashMap::new();
        for &Fault { pid, tid, .. } in faults {
            let read = || self.process(pid, None).read_stack(tid);
            readings.entry((pid, tid)).or_insert_with(read);
        }
        let Source::Events(PageFaults { period: pages, .. }) = self.source else { return };
        let mut numbers: HashMap<(i32, i32), Option<u32>> = HashMap::new();
        for fault in faults {
            let Some(process) = self.processes.get_mut(&fault.pid) else { continue };
            let Some(reading) = readings.get(&(fault.pid, fault.tid)) else { continue };
            let stack = *numbers.entry((fault.pid, fault.tid)).or_insert_with(|| {
                let program = process.program.as_ref()?;
                self.book.profile.torn += u64::from(reading.is_torn);
                self.book.stack(program, reading.frames.as_deref()?)
            });
            self.book.profile.samples += 1;
            self.book.profile.unreadable += u64::from(stack.is_none());
            let thread = self.book.thread(&process.name(fault.tid));
            let is_prompt = reading.time.saturating_sub(fault.time) <= PROMPT;
            let Fault { address, instruction, .. } = *fault;
            let sample = Sample { stack, thread, address, instruction, pages, is_prompt };
            self.pending.entry(fault.pid).or_default().push(sample);
        }
    }

    /// Divides the growth of processes among the samples since the last time.
    fn divide(&mut self) {
        self.divided = Instant::now();
        for (pid, samples) in std::mem::take(&mut self.pending) {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            process.map_all(samples.iter().map(|sample| sample.address));
            let pages = samples.iter().map(|sample| sample.pages).sum();
            let growth = process.take_growth(pages);
            self.book.divide(process, growth, &samples, pages);
        }
    }

    /// Changes the period if there are so many samples that reading stacks would cost too much, or so few that more would
    /// cost nothing.
    fn adapt(&mut self, samples: u64) {
        self.second.1 += samples;
        if self.second.0.elapsed() < Duration::from_secs(1) {
            return;
        }
        let Source::Events(PageFaults { period, .. }) = self.source else { return };
        let samples = self.second.1;
        self.second = (Instant::now(), 0);
        let next = match samples {
            MAX_SAMPLES_PER_SECOND.. => (period * 2).min(MAX_PERIOD),
            ..MIN_SAMPLES_PER_SECOND => (period / 2).max(self.first_period),
            _ => period,
        };
        if next != period {
            let others: Vec<i32> =
                self.order.iter().copied().filter(|&it| it != self.pid).collect();
            // If the process has ended meanwhile, the samples so far remain.
            if let Ok(faults) = PageFaults::open(self.pid, &others, next) {
                self.source = Source::Events(faults);
            }
        }
    }

    /// Ends the observation.
    #[must_use]
    pub fn end(mut self) -> Profile {
        self.divide();
        let mut rest = 0;
        for pid in &self.order {
            let Some(process) = self.processes.get_mut(pid) else { continue };
            rest += process.rest();
            self.ended.push(growth_of(process));
        }
        let mut profile = self.book.profile;
        // Growth between samples is divided as that of the samples.
        let known: u64 = profile.growth.iter().map(|growth| growth.bytes).sum();
        let mut left = rest;
        for growth in profile.growth.iter_mut().filter(|_| known > 0) {
            let part =
                |bytes: u64| (u128::from(bytes) * u128::from(rest) / u128::from(known)) as u64;
            let (bytes, prompt) = (part(growth.bytes), part(growth.prompt_bytes));
            growth.bytes += bytes;
            growth.prompt_bytes += prompt;
            left -= bytes;
        }
        profile.unsampled_bytes = left;
        profile.processes = self.ended;
        profile.elapsed = self.started.elapsed();
        profile
    }
}

fn growth_of(process: &Process) -> ProcessGrowth {
    let Process { pid, start_bytes, peak_bytes, .. } = *process;
    ProcessGrowth { pid, start_bytes, peak_bytes }
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

    /// The row of the growth of samples like this one.
    fn row(&mut self, process: &Process, sample: &Sample) -> usize {
        let Sample { stack, thread, .. } = *sample;
        let kind = process.kind(sample.address);
        let library = process.library(sample.instruction);
        let library = number(&mut self.libraries, &mut self.profile.libraries, &library);
        let rows = &mut self.profile.growth;
        *self.growth.entry((stack, thread, kind, library)).or_insert_with(|| {
            let (bytes, prompt_bytes, faulted_bytes) = (0, 0, 0);
            rows.push(Growth { stack, thread, kind, library, bytes, prompt_bytes, faulted_bytes });
            rows.len() - 1
        })
    }

    /// Divides growth among samples by their pages.
    fn divide(&mut self, process: &Process, bytes: u64, samples: &[Sample], pages: u64) {
        let (mut left, mut pages_left) = (bytes, pages);
        for sample in samples {
            let part =
                (u128::from(left) * u128::from(sample.pages)).checked_div(u128::from(pages_left));
            let part = part.unwrap_or(0) as u64;
            left -= part;
            pages_left -= sample.pages;
            let row = self.row(process, sample);
            let row = &mut self.profile.growth[row];
            row.bytes += part;
            row.prompt_bytes += if sample.is_prompt { part } else { 0 };
            row.faulted_bytes += sample.pages.saturating_mul(PAGE_SIZE);
        }
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
