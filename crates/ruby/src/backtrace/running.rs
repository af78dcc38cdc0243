//! The stacks of processes that run.
//!
//! Everything is derived from a capture: then the structures of all threads are known beyond doubt. Later, the context of a
//! native thread is found by its descriptor (`struct pthread`), and its stack is copied while the thread runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use image::{Image, Memory};
use linux::bpf::Assembler;
use linux::{Address, Thread};

use crate::backtrace::at_fault;
use crate::backtrace::code::{CodeReader, Place, parameters};
use crate::backtrace::stacks::{ControlFrame, Holder, StackCopy, StackLayout};
use crate::layout::class_names::ObjectReader;
use crate::model::backtrace::Frame;
use crate::model::code_paths::CodePaths;
use crate::object_space::ObjectSpace;
use crate::word::words;

/// The bytes below a descriptor that are searched: thread-local variables.
const LOCALS_BYTES: u64 = 4 << 10;
/// The bytes of a descriptor that are searched, with the first keys of `pthread_setspecific`.
const DESCRIPTOR_BYTES: u64 = 0x900;
/// The time for which a frame is recognized by its words. Other code can take its place, and then its frames have the same words
/// only if the same memory has its instructions, too.
const RECOGNIZED_FOR: Duration = Duration::from_secs(1);

/// Reads the stacks of threads of one process while it runs.
#[derive(Debug, Clone)]
pub struct RunningStacks {
    /// The variable of the class Object and its value.
    anchor: (Address, Address),
    layout: StackLayout,
    context_place: ContextPlace,
    code: CodeReader,
    frames: Vec<Frame>,
    known: HashMap<Place, u32>,
    /// The numbers of the frames that were copied since this time, by their words.
    recent: (Instant, HashMap<Vec<u64>, Option<u32>>),
}

/// The frames of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunningStack {
    /// The numbers of its frames, innermost first; see [`RunningStacks::frame`].
    pub frames: Vec<u32>,
    /// True if it changed while it was read: then its innermost frames are missing.
    pub is_torn: bool,
}

/// The reason why a thread has no stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoStack {
    /// The thread runs no Ruby, or does not run it yet.
    NoRuby,
    /// The thread has no VM stack any more: its code has ended.
    Ended,
    /// A part could not be read, or changed too much while it was read.
    Unreadable,
}

/// The offsets that lead from a thread's descriptor to its context, each from the pointer before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextPath(Vec<i64>);

impl ContextPath {
    /// Writes a program that copies a stack at a page fault.
    pub fn write(&self, code: &mut Assembler) {
        self.follow(code);
        at_fault::write(code);
    }

    /// Writes the part of a program that finds the context.
    pub(crate) fn follow(&self, code: &mut Assembler) {
        for &offset in &self.0 {
            code.follow(i32::try_from(offset).expect("it is near the descriptor"));
        }
    }
}

/// The copy of a stack that the kernel made.
pub struct CopiedStack(StackCopy);

impl CopiedStack {
    /// The values that were copied, and their addresses.
    pub(crate) fn values(&self) -> impl Iterator<Item = (Address, u64)> + '_ {
        self.0.values()
    }

    /// Returns true if the code of the frame with this number is not known. `image` is of the same process.
    #[must_use]
    pub fn hides(&self, image: &Image<'_>, frame: usize) -> bool {
        self.0.all_frames(image).nth(frame).is_some_and(|it| it.is_none())
    }

    /// The frame that has the value at `at`. `image` is of the same process.
    pub(crate) fn holder(&self, image: &Image<'_>, at: Address) -> Option<Holder> {
        self.0.holder(at, |iseq| parameters(image, iseq))
    }
}

/// The place that has the context of the thread that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ContextPlace {
    /// True for `ruby_current_ec` (from 3.0 on). Up to 2.7 there is a pointer to the thread (`native_thread_key`).
    is_context: bool,
    /// Its offset from the thread's descriptor.
    at: i64,
}

impl RunningStacks {
    /// Derives what is needed to read stacks; `None` if a part could not be derived.
    ///
    /// `image` is the one that `space` and `paths` were read from, of the same instant.
    #[must_use]
    pub fn derive(image: &Image<'_>, space: &ObjectSpace, paths: &CodePaths) -> Option<Self> {
        let anchor = space.interpreter.anchor(image)?;
        let context_place = ContextPlace::derive(image, space)?;
        let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
        let code = CodeReader::derive(reader, space, paths)?;
        let layout = space.stack_layout?;
        Some(Self {
            anchor,
            layout,
            context_place,
            code,
            frames: Vec::new(),
            known: HashMap::new(),
            recent: (Instant::now(), HashMap::new()),
        })
    }

    /// Returns true if the process of this image runs the same program at the same addresses, as forked processes do.
    #[must_use]
    pub fn is_of(&self, image: &Image<'_>) -> bool {
        image.read_address(self.anchor.0) == Ok(self.anchor.1)
    }

    /// Reads the stack of the thread with this descriptor.
    ///
    /// # Errors
    /// If it has none, or it could not be read.
    pub fn read(
        &mut self,
        image: &Image<'_>,
        descriptor: Address,
    ) -> Result<RunningStack, NoStack> {
        let context = self.context_place.context(image, descriptor, self.layout)?;
        let Some(copy) = self.layout.copy(image, context) else {
            let has_ended = image.read_address(context) == Ok(Address(0));
            return Err(if has_ended { NoStack::Ended } else { NoStack::Unreadable });
        };
        self.stack(image, &copy, |stacks, frame| stacks.frame_of(image, &copy, frame))
    }

    /// The place of the contexts of threads, which programs for page faults follow.
    #[must_use]
    pub fn context_path(&self) -> ContextPath {
        let context = self.layout.context_at as i64;
        ContextPath(match self.context_place {
            ContextPlace { is_context: true, at } => vec![at],
            ContextPlace { is_context: false, at } => vec![at, context],
        })
    }

    /// Reads the stack that a program of [`ContextPath::write`] copied.
    ///
    /// # Errors
    /// If it is none.
    pub fn read_copy(&mut self, image: &Image<'_>, copy: &[u8]) -> Result<RunningStack, NoStack> {
        let copy = self.layout.copied(image, copy).ok_or(NoStack::Unreadable)?;
        self.forget_old();
        self.stack(image, &copy, |stacks, frame| stacks.recent_frame_of(image, &copy, frame))
    }

    /// The stack in a part of a record; `None` if it is none.
    #[must_use]
    pub fn copied(&self, image: &Image<'_>, copy: &[u8]) -> Option<CopiedStack> {
        self.layout.copied(image, copy).map(CopiedStack)
    }

    /// The numbers of all frames of a copy, innermost first; `None` for those without a name.
    pub fn frames_of(
        &mut self,
        image: &Image<'_>,
        CopiedStack(copy): &CopiedStack,
    ) -> Vec<Option<u32>> {
        self.forget_old();
        let frames = copy.all_frames(image);
        frames.map(|frame| self.recent_frame_of(image, copy, &frame?)).collect()
    }

    fn forget_old(&mut self) {
        if self.recent.0.elapsed() > RECOGNIZED_FOR {
            self.recent = (Instant::now(), HashMap::new());
        }
    }

    /// The number of a frame of this copy, which may have been recognized a short time ago.
    fn recent_frame_of(
        &mut self,
        image: &Image<'_>,
        copy: &StackCopy,
        frame: &ControlFrame,
    ) -> Option<u32> {
        let identity = copy.identity(frame);
        if let Some(&known) = self.recent.1.get(&identity) {
            return known;
        }
        let number = self.frame_of(image, copy, frame);
        self.recent.1.insert(identity, number);
        number
    }

    /// The stack whose frames have the numbers that `number` returns.
    fn stack(
        &mut self,
        image: &Image<'_>,
        copy: &StackCopy,
        number: impl Fn(&mut Self, &ControlFrame) -> Option<u32>,
    ) -> Result<RunningStack, NoStack> {
        let mut stack = RunningStack { frames: Vec::new(), is_torn: copy.is_torn };
        let mut runs_code = copy.is_torn;
        for frame in copy.frames(image) {
            runs_code |= frame.runs_code();
            stack.frames.extend(number(self, &frame));
        }
        match (stack.frames.is_empty(), runs_code) {
            (false, _) => Ok(stack),
            (true, true) => Err(NoStack::Unreadable),
            (true, false) => Err(NoStack::NoRuby),
        }
    }

    /// The frame with this number.
    #[must_use]
    pub fn frame(&self, number: u32) -> Option<&Frame> {
        self.frames.get(number as usize)
    }

    /// The number of a frame of this copy, as the process's memory describes it now.
    fn frame_of(
        &mut self,
        image: &Image<'_>,
        copy: &StackCopy,
        frame: &ControlFrame,
    ) -> Option<u32> {
        let reader = ObjectReader::running(image);
        let place = self.code.place(reader, frame, |at| copy.environment(image, at))?;
        self.number(reader, place)
    }

    fn number(&mut self, reader: ObjectReader<'_>, place: Place) -> Option<u32> {
        if let Some(&known) = self.known.get(&place) {
            return Some(known);
        }
        let frame = self.code.frame(reader, place)?;
        let number = u32::try_from(self.frames.len()).ok()?;
        self.frames.push(frame);
        self.known.insert(place, number);
        Some(number)
    }
}

impl ContextPlace {
    /// The place that leads to the contexts of most threads, and to nothing else in any thread. Other words lead to
    /// contexts in some threads, and some native threads run no Ruby: there it is zero.
    fn derive(image: &Image<'_>, space: &ObjectSpace) -> Option<Self> {
        let contexts: HashSet<u64> = space.vm_stacks.iter().map(|it| it.context.0).collect();
        let threads: HashSet<u64> = space.vm_stacks.iter().map(|it| it.structure.0).collect();
        let known = [(false, &threads), (true, &contexts)];
        let mut votes: BTreeMap<Self, HashSet<u64>> = BTreeMap::new();
        for thread in &image.state.threads {
            let (start, bytes) = surroundings(image, thread.descriptor_base());
            for (word, at) in words(&bytes).zip((start..).step_by(8)) {
                for (is_context, _) in known.iter().filter(|(_, known)| known.contains(&word)) {
                    let place = Self { is_context: *is_context, at };
                    votes.entry(place).or_default().insert(word);
                }
            }
        }
        let most = votes.values().map(HashSet::len).max()?;
        let leads_elsewhere = |place: &Self| {
            let known = known[usize::from(place.is_context)].1;
            let word = |it: &Thread| place.word(image, it.descriptor_base()).ok();
            let words = image.state.threads.iter().filter_map(word);
            words.into_iter().any(|word| !known.contains(&word.0))
        };
        let best = votes.into_iter().filter(|(_, found)| found.len() == most).map(|it| it.0);
        best.rev().find(|place| !leads_elsewhere(place))
    }

    /// The word at this place of the thread with this descriptor, unless it is zero.
    fn word(self, image: &Image<'_>, descriptor: Address) -> Result<Address, NoStack> {
        let at = Address(descriptor.0.wrapping_add_signed(self.at));
        match image.read_address(at) {
            Ok(Address(0)) => Err(NoStack::NoRuby),
            found => found.map_err(|_| NoStack::Unreadable),
        }
    }

    /// The context that the thread with this descriptor runs.
    fn context(
        self,
        image: &Image<'_>,
        descriptor: Address,
        layout: StackLayout,
    ) -> Result<Address, NoStack> {
        let found = self.word(image, descriptor)?;
        if self.is_context {
            return Ok(found);
        }
        let at = found.offset(layout.context_at as u64);
        image.read_address(at).map_err(|_| NoStack::Unreadable)
    }
}

/// The bytes around a descriptor, and the offset of the first one.
fn surroundings(image: &Image<'_>, descriptor: Address) -> (i64, Vec<u8>) {
    let mapped =
        image.state.mappings.find(descriptor).map_or(descriptor, |mapping| mapping.range.start);
    let start = descriptor.before(LOCALS_BYTES.min(descriptor - mapped));
    let mut bytes = vec![0; (descriptor.offset(DESCRIPTOR_BYTES) - start) as usize];
    let read = image.read(start, &mut bytes);
    bytes.truncate(read);
    ((start.0.wrapping_sub(descriptor.0)).cast_signed(), bytes)
}
