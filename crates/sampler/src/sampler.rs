use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use capture::live::page_faults::{Fault, FaultRecord, PageFaults, real_time_priority};
use capture::{Address, Error, PAGE_SIZE, proc};
use ruby::Frame;

use crate::kind::Kind;
use crate::polling::{self, Polled, Polling};
use crate::process::Process;
use crate::profile::{Growth, MachineCode, Method, ProcessGrowth, Profile};
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
/// The pages that a fork shares are looked for after this multiple of the time that it takes.
const LOOKS_FOR_SHARED_PAGES: u32 = 200;
/// The time between two divisions of growth among samples.
const DIVISION_INTERVAL: Duration = Duration::from_millis(20);
/// The samples of a second beyond which the period is doubled, and under which it is halved.
const MAX_SAMPLES_PER_SECOND: u64 = 64;
const MIN_SAMPLES_PER_SECOND: u64 = 8;

/// Samples the page faults of a process, and of the processes that it starts.
pub struct Sampler {
    pid: i32,
    source: Source,
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
    /// The growth of programs that a process ran before, as far as it was not attributed to samples.
    rest_bytes: u64,
    touched: TouchedPages,
    /// The time at which shared pages were looked for, and the time that it took.
    shared: (Instant, Duration),
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
                Err(Error::Faults { .. }) => polling(),
                Err(error) => return Err(error),
            }
        };
        let now = Instant::now();
        let mut sampler = Self {
            pid,
            source,
            has_huge_pages,
            second: (now, 0),
            started: now,
            processes: HashMap::new(),
            order: Vec::new(),
            ended: Vec::new(),
            shared: (now, Duration::ZERO),
            pending: HashMap::new(),
            divided: now,
            rest_bytes: 0,
            touched: TouchedPages::default(),
            book: Book::default(),
        };
        for &pid in [pid].iter().chain(others) {
            sampler.process(pid, None).share();
        }
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
    }

    /// Waits up to `time` for samples, and attributes growth to them.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub fn step(&mut self, time: Duration) -> Result<(), Error> {
        // The sooner a stack is read after the fault, the surer is it the stack of the fault.
        let priority = real_time_priority();
        match &mut self.source {
            Source::Events(faults) => {
                let failed = |source| Error::Faults { pid: self.pid, source };
                let records = faults.wait(time).map_err(failed)?;
                self.take_records(records);
            }
            Source::Polling { .. } => {
                std::thread::sleep(time.min(polling::INTERVAL));
                self.poll();
            }
        }
        drop(priority);
        if self.divided.elapsed() >= DIVISION_INTERVAL {
            self.divide();
        }
        Ok(())
    }

    /// Takes the records of the kernel.
    fn take_records(&mut self, records: Vec<FaultRecord>) {
        let mut faults = Vec::new();
        for record in records {
            match record {
                FaultRecord::Fault(fault) => faults.push(fault),
                FaultRecord::Forked { pid, parent } => {
                    self.fork(pid, parent);
                }
                FaultRecord::ThreadEnded { pid, tid } => {
                    if let Some(process) = self.processes.get_mut(&pid) {
                        process.forget_thread(tid);
                    }
                }
                FaultRecord::Executed { pid } => {
                    // Their stacks are gone.
                    faults.retain(|fault| fault.pid != pid);
                    self.execute(pid);
                }
                FaultRecord::Lost(samples) => self.book.profile.lost += samples,
            }
        }
        self.read_stacks(&faults);
        self.adapt(faults.len() as u64);
    }

    /// A process was forked. Its id may have been that of an earlier one, whose pages are gone.
    fn fork(&mut self, pid: i32, parent: i32) {
        if self.processes.get(&pid).is_some_and(|earlier| !earlier.is_alive()) {
            self.divide_of(pid);
            self.touched.forget(pid);
            if let Some(earlier) = self.processes.remove(&pid) {
                self.rest_bytes += earlier.unattributed_bytes();
                self.ended.push(earlier.growth());
            }
            self.order.retain(|&it| it != pid);
        }
        self.process(pid, Some(parent));
        // Programs that fork all the time must not cost much.
        let (looked, took) = self.shared;
        if looked.elapsed() < took * LOOKS_FOR_SHARED_PAGES {
            return;
        }
        let now = Instant::now();
        let shared = self.processes.get_mut(&parent).map(Process::share);
        if let (Some(shared), Some(process)) = (shared, self.processes.get_mut(&pid)) {
            process.inherit(shared);
        }
        self.shared = (Instant::now(), now.elapsed());
    }

    /// The process runs another program. RSS is the new program's already, so the old one's growth is that seen so far.
    fn execute(&mut self, pid: i32) {
        self.divide_of(pid);
        if let Some(process) = self.processes.get_mut(&pid) {
            let (growth, rest) = process.execute();
            self.ended.push(growth);
            self.rest_bytes += rest;
            self.touched.forget(pid);
        }
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
                let faults = pages;
                Sample { stack, thread, address, instruction, faults, pages, is_prompt }
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
            let is_new = parent.is_some();
            let parent = parent.and_then(|parent| self.processes.get(&parent));
            let program = parent.and_then(|parent| parent.program.clone());
            let program =
                program.or_else(|| self.processes.values().find_map(|it| it.program.clone()));
            let mut process = Process::new(pid, program);
            if is_new {
                process.earlier_faults = 0;
            }
            self.processes.insert(pid, process);
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
        let Source::Events(PageFaults { period, .. }) = self.source else { return };
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
            let (faults, pages) = (period, if process.is_copy(address) { 0 } else { period });
            let sample = Sample { stack, thread, address, instruction, faults, pages, is_prompt };
            self.pending.entry(fault.pid).or_default().push(sample);
        }
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
        process.map_all(samples.iter().map(|sample| sample.address));
        let growth = process.take_growth(samples.iter().map(|sample| sample.pages).sum());
        let place = |sample: &Sample| {
            (process.kind(sample.address), process.machine_code(sample.instruction))
        };
        self.book.divide(growth, &samples, place);
        if matches!(self.source, Source::Events(_)) {
            for sample in samples {
                let Sample { address, stack, faults, pages, .. } = sample;
                // A copied page has the contents of other code.
                let page = (pages > 0).then_some(address.0 / PAGE_SIZE);
                self.touched.add(pid, page, stack, faults.max(pages));
            }
        }
    }

    /// Changes the period once in a second, by the number of samples.
    fn adapt(&mut self, samples: u64) {
        self.second.1 += samples;
        if self.second.0.elapsed() < Duration::from_secs(1) {
            return;
        }
        let Source::Events(PageFaults { period, .. }) = self.source else { return };
        let next = next_period(period, self.second.1, periods(self.has_huge_pages));
        self.second = (Instant::now(), 0);
        if next != period {
            let others: Vec<i32> =
                self.order.iter().copied().filter(|&it| it != self.pid).collect();
            // If the process has ended meanwhile, the samples so far remain.
            if let Ok(faults) = PageFaults::open(self.pid, &others, next) {
                self.source = Source::Events(faults);
            }
        }
    }

    /// Takes the records that no one has waited for yet, and divides growth among all samples.
    fn take_rest(&mut self) {
        let records = match &mut self.source {
            Source::Events(faults) => faults.wait(Duration::ZERO).unwrap_or_default(),
            Source::Polling { .. } => Vec::new(),
        };
        self.take_records(records);
        self.divide();
    }

    /// Ends the observation. The profile has the sampled pages that are still there.
    #[must_use]
    pub fn end(mut self) -> Profile {
        self.take_rest();
        let mut touched = Vec::new();
        for &pid in &self.order {
            let Some(process) = self.processes.get(&pid) else { continue };
            self.touched.keep(pid, |pages| process.has_pages(pages));
            touched.push(self.touched.take(pid, process.started_ticks, process.faults()));
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
        let mut rest = std::mem::take(&mut self.rest_bytes);
        for pid in &self.order {
            let Some(process) = self.processes.get_mut(pid) else { continue };
            process.read_rss();
            rest += process.unattributed_bytes();
            self.ended.push(process.growth());
            process.begin_again();
        }
        self.processes.retain(|_, process| process.is_alive());
        self.order.retain(|pid| self.processes.contains_key(pid));
        // All of these have numbers of the book's stacks.
        let mut profile = std::mem::take(&mut self.book).profile;
        self.touched = TouchedPages::default();
        self.pending.clear();
        if let Source::Polling { stacks, .. } = &mut self.source {
            stacks.clear();
        }
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
        profile.method = self.method();
        profile.unsampled_bytes = left;
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

    /// The row of the growth of samples like this one.
    fn row(&mut self, sample: &Sample, (kind, code): (Kind, MachineCode)) -> &mut Growth {
        let Sample { stack, thread, .. } = *sample;
        let code = number(&mut self.machine_code, &mut self.profile.machine_code, &code);
        let rows = &mut self.profile.growth;
        let row = *self.growth.entry((stack, thread, kind, code)).or_insert_with(|| {
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
        });
        &mut rows[row]
    }

    /// Divides growth among samples by their pages. `place` returns the kind of memory and the machine code of a sample.
    fn divide(
        &mut self,
        bytes: u64,
        samples: &[Sample],
        place: impl Fn(&Sample) -> (Kind, MachineCode),
    ) {
        let mut left = bytes;
        let mut pages_left: u64 = samples.iter().map(|sample| sample.pages).sum();
        for sample in samples {
            let part =
                (u128::from(left) * u128::from(sample.pages)).checked_div(u128::from(pages_left));
            let part = part.unwrap_or(0) as u64;
            left -= part;
            pages_left -= sample.pages;
            let row = self.row(sample, place(sample));
            row.bytes += part;
            row.prompt_bytes += if sample.is_prompt { part } else { 0 };
            let copied = if sample.pages == 0 { sample.faults } else { 0 };
            row.copied_bytes += copied.saturating_mul(PAGE_SIZE);
            row.faulted_bytes += (copied + sample.pages).saturating_mul(PAGE_SIZE);
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
            sampler.take_records(vec![FaultRecord::Forked { pid, parent: own }])
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
