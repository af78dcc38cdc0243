use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use image::Image;
use linux::arch::{is_of_kernel, page_size};
use linux::{Address, Backing, Mapping, proc};
use linux::{MappingQuery, Pagemap, page_faults};
use ruby::{ContextPath, NoStack, RunningStack};

use crate::book::Access;
use crate::budget::Budget;
use crate::kind::Kind;
use crate::profile::{MachineCode, ProcessGrowth, UnknownStack};
use crate::program::Program;
use crate::shared::SharedPages;

/// The time for which the name of a thread is kept.
const NAME_LASTS: Duration = Duration::from_secs(1);

/// If RSS falls by this fraction, its sampled pages are looked at again, after this time at the earliest.
const FALL: u64 = 32;
const FALL_INTERVAL: Duration = Duration::from_secs(1);

/// One process that is watched.
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) program: Option<Program>,
    image: Option<Image<'static>>,
    /// Opened when the first mapping is looked up.
    query: Option<MappingQuery>,
    /// The descriptors of threads.
    threads: HashMap<i32, Address>,
    names: HashMap<i32, (Instant, String)>,
    /// RSS when it was first seen, and its peak.
    pub(crate) start_bytes: u64,
    pub(crate) peak_bytes: u64,
    /// The part of the peak that was attributed to samples.
    attributed_bytes: u64,
    /// That part by rows of the profile.
    pub(crate) rows: HashMap<usize, u64>,
    /// Its numbers of old objects, at intervals of equal length.
    pub(crate) old_objects: Vec<u64>,
    /// The number of its threads that have ended.
    pub(crate) ended_threads: u64,
    /// The most pages that one of its page faults has added.
    pub(crate) pages_per_fault: u64,
    /// Its page faults before the observation.
    pub(crate) earlier_faults: u64,
    /// The time at which it began, in clock ticks since boot.
    pub(crate) started_ticks: Option<u64>,
    pagemap: Option<Pagemap>,
    /// The pages that it shares since a fork.
    shared: SharedPages,
    /// The time at which its sampled pages were looked at last, and the highest RSS since.
    high: (Option<Instant>, u64),
}

/// The result of reading a stack.
pub(crate) struct StackReading {
    /// The frames as numbers of the process's own program.
    pub(crate) frames: Result<Vec<u32>, UnknownStack>,
    pub(crate) is_torn: bool,
    /// True if the kernel copied it at the fault.
    pub(crate) is_of_fault: bool,
    /// True if the thread was still on a processor, or waited for one.
    pub(crate) is_running: bool,
    /// The time at which it was read.
    pub(crate) time: Duration,
}

impl StackReading {
    pub(crate) fn frames(&self) -> Result<&[u32], UnknownStack> {
        self.frames.as_deref().map_err(|&reason| reason)
    }
}

impl Process {
    /// A process that is seen for the first time.
    pub(crate) fn new(pid: i32, program: Option<Program>) -> Self {
        let rss = proc::resident_bytes(pid).unwrap_or(0);
        let mut process = Self {
            pid,
            program: None,
            image: None,
            query: None,
            threads: HashMap::new(),
            names: HashMap::new(),
            start_bytes: rss,
            peak_bytes: rss,
            attributed_bytes: rss,
            rows: HashMap::new(),
            old_objects: Vec::new(),
            ended_threads: 0,
            pages_per_fault: 1,
            earlier_faults: proc::all_minor_faults(pid).unwrap_or(0),
            started_ticks: proc::start_time(pid).ok(),
            pagemap: None,
            shared: SharedPages::default(),
            high: (None, rss),
        };
        if let Some(program) = program {
            process.learn(program);
        }
        process
    }

    /// A process that was just forked, by one with this program. Its mappings are read when they are needed.
    pub(crate) fn forked(pid: i32, program: Program) -> Self {
        let mut process = Self::new(pid, None);
        process.threads.clone_from(&program.threads);
        process.program = Some(program);
        process
    }

    /// Uses what was derived of a program, if the process runs it.
    pub(crate) fn learn(&mut self, program: Program) {
        self.image = image::look(self.pid).ok();
        let is_its = self.image.as_ref().is_some_and(|image| program.stacks.is_of(image));
        if is_its {
            self.threads = program.threads.clone();
            self.program = Some(program);
        }
    }

    pub(crate) fn growth(&self) -> ProcessGrowth {
        let Self { pid, start_bytes, peak_bytes, .. } = *self;
        ProcessGrowth { pid, start_bytes, peak_bytes }
    }

    pub(crate) fn forget_thread(&mut self, tid: i32) {
        self.ended_threads += 1;
        self.threads.remove(&tid);
        self.names.remove(&tid);
    }

    /// Reads the Ruby stack of a thread.
    pub(crate) fn read_stack(&mut self, tid: i32, budget: &mut Budget) -> StackReading {
        let mut stack = self.try_stack(tid);
        // A new thread's stack may be in a new mapping.
        if stack.is_err() && self.program.is_some() && budget.has_room() {
            self.look_again(budget);
            stack = self.try_stack(tid);
        }
        let time = page_faults::now();
        let state = proc::thread_state(self.pid, tid);
        let is_torn = stack.as_ref().is_ok_and(|stack| stack.is_torn);
        let frames = match stack {
            Ok(stack) if !is_torn && self.only_waits(&stack) => Err(UnknownStack::Late),
            Ok(stack) => Ok(stack.frames),
            Err(_) if matches!(state, None | Some('Z' | 'X')) => Err(UnknownStack::Ended),
            Err(reason) => Err(reason),
        };
        let is_running = state == Some('R');
        StackReading { frames, is_torn, is_of_fault: false, is_running, time }
    }

    /// The stack that the kernel copied at a page fault; `None` if that is none of this program's.
    pub(crate) fn stack_of_fault(
        &mut self,
        path: &ContextPath,
        copy: &[u8],
        budget: &mut Budget,
    ) -> Option<StackReading> {
        if self.image.is_none() && budget.has_room() {
            self.look_again(budget);
        }
        let (image, program) = (self.image.as_ref()?, self.program.as_mut()?);
        if program.stacks.context_path() != *path {
            return None;
        }
        let frames = Ok(program.stacks.read_copy(image, copy).ok()?.frames);
        let time = page_faults::now();
        Some(StackReading { frames, is_torn: false, is_of_fault: true, is_running: true, time })
    }

    /// Returns true if the thread does nothing but wait there.
    fn only_waits(&self, stack: &RunningStack) -> bool {
        let innermost = stack.frames.first().zip(self.program.as_ref());
        let innermost = innermost.and_then(|(&frame, program)| program.stacks.frame(frame));
        innermost.is_some_and(ruby::Frame::only_waits)
    }

    fn try_stack(&mut self, tid: i32) -> Result<RunningStack, UnknownStack> {
        let descriptor = self.descriptor(tid).ok_or(UnknownStack::NotFound);
        let program = self.program.as_mut().ok_or(UnknownStack::NotDerived)?;
        let image = self.image.as_ref().ok_or(UnknownStack::Unreadable)?;
        program.stacks.read(image, descriptor?).map_err(|reason| match reason {
            NoStack::NoRuby => UnknownStack::NoRuby,
            NoStack::Ended => UnknownStack::Ended,
            NoStack::Unreadable => UnknownStack::Unreadable,
        })
    }

    fn descriptor(&mut self, tid: i32) -> Option<Address> {
        let (image, program) = (self.image.as_ref()?, self.program.as_mut()?);
        let known = self.threads.get(&tid).copied();
        let Some(list) = &mut program.list else { return known };
        if known.is_some_and(|known| list.is(image, known, tid)) {
            return known;
        }
        let known: Vec<Address> = self.threads.values().copied().collect();
        // Descriptors of ended threads lead to the lists, too, as long as their memory lasts.
        self.threads.extend(list.threads(image, &known).into_iter().filter(|it| it.0 > 0));
        self.threads.get(&tid).copied().filter(|&found| list.is(image, found, tid))
    }

    /// Reads the mappings again.
    fn look_again(&mut self, budget: &mut Budget) {
        budget.spend(|| match (&mut self.image, proc::mappings(self.pid, false)) {
            (Some(image), Ok(mappings)) => image.state.mappings = mappings,
            (image, _) => *image = image::look(self.pid).ok(),
        });
    }

    /// Looks up the mappings of these accesses, which may be new. Before Linux 6.11, all mappings are read again if one is unknown.
    pub(crate) fn map_all(&mut self, accesses: &[Access], budget: &mut Budget) {
        let is_answered = accesses.iter().all(|&access| self.map(access).is_some());
        let is_unknown =
            |it: &Access| self.mapping(it.address).is_none() || self.is_code_unknown(*it);
        if !is_answered && accesses.iter().any(is_unknown) && budget.has_room() {
            self.look_again(budget);
        }
    }

    /// Looks up the mappings of an access; `None` if the kernel does not answer.
    fn map(&mut self, access: Access) -> Option<()> {
        if self.query.is_none() {
            self.query = Some(MappingQuery::open(self.pid).ok()?);
        }
        let code = self.is_code_unknown(access).then_some(access.instruction);
        for at in [access.address].into_iter().chain(code) {
            let mapping = self.query.as_ref()?.at(at).ok()?;
            let mappings = &mut self.image.as_mut()?.state.mappings;
            mapping.into_iter().for_each(|mapping| mappings.replace(mapping));
        }
        Some(())
    }

    fn mapping(&self, at: Address) -> Option<&Mapping> {
        self.image.as_ref()?.state.mappings.find(at)
    }

    fn is_code_unknown(&self, Access { instruction, .. }: Access) -> bool {
        !is_of_kernel(instruction) && self.mapping(instruction).is_none()
    }

    /// Its page states; opened when they are needed first.
    fn pagemap(&mut self) -> Option<&Pagemap> {
        if self.pagemap.is_none() {
            self.pagemap = Pagemap::open(self.pid).ok();
        }
        self.pagemap.as_ref()
    }

    /// The purpose of the memory that was touched a short time ago, and the code that did it.
    pub(crate) fn place(&self, Access { address, instruction }: Access) -> (Kind, MachineCode) {
        let pages = self.program.as_ref().and_then(|program| program.heap_pages);
        let kind =
            self.image.as_ref().map_or(Kind::Unknown, |image| Kind::of(image, pages, address));
        (kind, self.machine_code(instruction))
    }

    /// The name of a thread; empty if it has ended.
    pub(crate) fn name(&mut self, tid: i32) -> String {
        match self.names.get(&tid) {
            Some((read, name)) if read.elapsed() < NAME_LASTS => name.clone(),
            _ => {
                let name = proc::thread_name(self.pid, tid).unwrap_or_default();
                self.names.insert(tid, (Instant::now(), name.clone()));
                name
            }
        }
    }

    /// The code that has the instruction at `at`.
    fn machine_code(&self, at: Address) -> MachineCode {
        if is_of_kernel(at) {
            return MachineCode::Kernel;
        }
        match self.mapping(at).map(|mapping| &mapping.backing) {
            Some(Backing::File(path)) => {
                let name = path.file_name().unwrap_or(path.as_os_str());
                MachineCode::Library(linux::one_line(&Path::new(name).to_string_lossy()))
            }
            Some(_) => MachineCode::Generated,
            None => MachineCode::Unknown,
        }
    }

    /// Reads RSS. After an exec it is that of the new program. Returns true if it has fallen so much that the sampled pages
    /// must be looked at.
    pub(crate) fn read_rss(&mut self) -> bool {
        let rss = proc::resident_bytes(self.pid).unwrap_or(0);
        self.peak_bytes = self.peak_bytes.max(rss);
        let (looked, high) = self.high;
        let is_due = looked.is_none_or(|looked| looked.elapsed() >= FALL_INTERVAL);
        let must_look = is_due && rss < high - high / FALL;
        self.high = if must_look { (Some(Instant::now()), rss) } else { (looked, high.max(rss)) };
        must_look
    }

    /// Returns which of these pages, in ascending order, were not returned to the kernel.
    pub(crate) fn has_pages(&mut self, pages: &[u64]) -> Vec<bool> {
        match self.pagemap() {
            Some(pagemap) => pagemap.are_present(pages),
            None => vec![true; pages.len()],
        }
    }

    /// The process has just forked. Returns the pages that the new process shares with it. None if the new process uses the
    /// same memory, as after vfork(2).
    pub(crate) fn share(&mut self, budget: &mut Budget) -> SharedPages {
        self.look_again(budget);
        self.pagemap();
        let (Some(pagemap), Some(image)) = (&self.pagemap, &self.image) else {
            return SharedPages::default();
        };
        budget.spend(|| {
            let runs = pagemap.anonymous_pages(&image.state.mappings);
            let shared = SharedPages::new(pagemap.shared_pages(&runs));
            // The new process may have copied some already. Those are not shared any more, but it did copy them.
            let inherited = if shared.is_empty() { Vec::new() } else { runs };
            self.shared = shared;
            SharedPages::new(inherited)
        })
    }

    /// The process was forked, and shares these pages.
    pub(crate) fn inherit(&mut self, shared: SharedPages) {
        self.shared = shared;
    }

    /// RSS has fallen: forgets the shared pages that were returned.
    pub(crate) fn look_at_shared_pages(&mut self) {
        if let (Some(pagemap), Some(image), false) =
            (&self.pagemap, &self.image, self.shared.is_empty())
        {
            self.shared.keep(&pagemap.anonymous_pages(&image.state.mappings));
        }
    }

    /// Returns true if a fault at `at` copied a shared page.
    pub(crate) fn is_copy(&self, at: Address) -> bool {
        self.shared.has(at.0 / page_size())
    }

    /// The pages that a fault at `at` has added.
    pub(crate) fn pages_added(&mut self, at: Address) -> u64 {
        let pages = self.pagemap().map_or(1, |pagemap| pagemap.pages_of_fault(at));
        self.pages_per_fault = self.pages_per_fault.max(pages);
        pages
    }

    /// The number of its threads, those that have ended included.
    pub(crate) fn threads(&self) -> u64 {
        self.ended_threads + proc::threads(self.pid).map_or(0, |threads| threads.len() as u64)
    }

    /// Returns false if the process has ended. Its id may be another process's by now.
    pub(crate) fn is_alive(&self) -> bool {
        proc::start_time(self.pid).ok() == self.started_ticks
    }

    /// Its page faults during the observation; 0 if it has ended.
    pub(crate) fn faults(&self) -> u64 {
        proc::all_minor_faults(self.pid).unwrap_or(0).saturating_sub(self.earlier_faults)
    }

    /// The growth to attribute to samples that stand for `pages`: not more than they touched. The rest belongs to threads
    /// that are in the middle of a period.
    pub(crate) fn take_growth(&mut self, pages: u64) -> u64 {
        let bytes =
            (self.peak_bytes - self.attributed_bytes).min(pages.saturating_mul(page_size()));
        self.attributed_bytes += bytes;
        bytes
    }

    /// The growth seen so far that was not attributed to samples.
    pub(crate) fn unattributed_bytes(&self) -> u64 {
        self.peak_bytes - self.attributed_bytes
    }

    /// Adds the number of old objects now.
    pub(crate) fn count_old_objects(&mut self) {
        let place = self.program.as_ref().and_then(|program| program.old_objects);
        let number = place.zip(self.image.as_ref()).and_then(|(place, image)| place.read(image));
        self.old_objects.extend(number);
    }

    /// Counts growth from now on.
    pub(crate) fn begin_again(&mut self) {
        let rss = proc::resident_bytes(self.pid).unwrap_or(0);
        (self.start_bytes, self.peak_bytes, self.attributed_bytes) = (rss, rss, rss);
        self.earlier_faults = proc::all_minor_faults(self.pid).unwrap_or(0);
        self.rows.clear();
        self.old_objects.clear();
        self.ended_threads = 0;
    }
}
