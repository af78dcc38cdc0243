//! The control frames of threads.
//!
//! A thread (`rb_thread_t`) points to the execution context of the fiber that it runs (`rb_execution_context_t` in
//! vm_core.h). The context begins with the VM stack, its size in words, and the innermost control frame, and it points
//! back to the thread. Frames (`rb_control_frame_t`) lie behind each other up to the end of the stack. From 2.7 to 4.1
//! a frame begins with the program counter, the stack pointer, the iseq, `self`, and the environment. The rest differs,
//! and so does the place of the context in a thread: both are derived.

use std::collections::BTreeMap;
use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::layout::class_names::ObjectReader;
use crate::model::slot::SlotType;
use crate::model::vm_stack::VmStack;
use crate::word::{word, words};

/// The first bytes of a thread, among which the pointer to its context is searched for.
const THREAD_BYTES: usize = 256;
/// The first words of a context: the VM stack, its size in words, and the innermost frame.
pub(crate) const HEAD_BYTES: usize = 24;
/// The first bytes of a context, among which the pointer to its thread is searched for.
const CONTEXT_BYTES: usize = 128;
/// The threads from which layouts are derived.
const MAX_SAMPLES: usize = 64;
/// More words than a VM stack has.
pub(crate) const MAX_STACK_WORDS: u64 = 1 << 32;
/// The sizes of a frame that are tried, in words.
const FRAME_WORDS: std::ops::RangeInclusive<usize> = 6..=10;
/// The frames of each thread from which their size is derived.
const MAX_SAMPLE_FRAMES: usize = 256;
/// The frames of a thread that are read, if there are few threads ...
const MAX_FRAMES: usize = 4096;
/// ... and the frames of all threads.
const MAX_FRAMES_IN_ALL: usize = 1 << 17;

/// The values of a thread that are copied: twice as many as the largest stack of Ruby's default settings has.
const MAX_VALUE_BYTES: u64 = 2 << 20;
/// The words by which a frame is recognized, at most: more blocks within each other than a method has.
const MAX_IDENTITY_WORDS: usize = 256;
/// How often a stack that changes is read.
const MAX_TRIES: usize = 3;

/// The kinds of frames (`VM_FRAME_MAGIC_...` in vm_core.h).
const KINDS: [u64; 9] = [
    0x1111_0001,
    BLOCK,
    0x3333_0001,
    0x4444_0001,
    C_FUNCTION,
    0x6666_0001,
    0x7777_0001,
    0x7888_0001,
    DUMMY,
];
const BLOCK: u64 = 0x2222_0001;
const C_FUNCTION: u64 = 0x5555_0001;
const DUMMY: u64 = 0x7999_0001;
const KIND_MASK: u64 = 0x7fff_0001;
/// The place of a frame's `jit_return`, and the mark that functions in C have there from compiled code (from 4.1 on).
const RETURN: usize = 48;
const C_FRAME: u64 = 1;
/// `VM_FRAME_FLAG_BMETHOD`.
const DEFINED_BY_BLOCK: u64 = 0x40;
/// The words of an environment up to its flags, before which are the block or the environment around it,
/// and the method (`VM_ENV_DATA_INDEX_...`).
const ENVIRONMENT_BYTES: u64 = 16;

/// A control frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ControlFrame {
    pub(crate) pc: Address,
    /// 0 for functions in C.
    pub(crate) iseq: Address,
    pub(crate) environment: Environment,
}

/// The words before the end of an environment, and its flags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment {
    /// The method, a class reference, or special variables with one of these.
    pub(crate) method: Address,
    outer: u64,
    flags: u64,
}

/// The VM stack of one thread.
#[derive(Debug, Clone)]
struct Stack {
    context: Address,
    all: Range<Address>,
    innermost: Address,
    /// The words of its context that point to the thread, one bit for each.
    thread_places: u32,
}

/// The layout of threads and their frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackLayout {
    pub(crate) context_at: usize,
    /// The offset of the pointer to the thread in its context.
    pub(crate) thread_at: usize,
    frame_bytes: usize,
    max_frames: usize,
    /// ZJIT keeps a part of frames elsewhere.
    may_be_compiled: bool,
}

impl Environment {
    /// `VM_ENV_FLAG_LOCAL`: it is a method's, not a block's.
    const LOCAL: u64 = 2;

    pub(crate) fn read(image: &Image<'_>, at: Address) -> Option<Self> {
        let mut bytes = [0; ENVIRONMENT_BYTES as usize + 8];
        if at.0 < ENVIRONMENT_BYTES || !at.is_aligned(8) {
            return None;
        }
        image.read_exact(at.before(ENVIRONMENT_BYTES), &mut bytes).ok()?;
        Some(Self::of(&bytes))
    }

    fn of(bytes: &[u8]) -> Self {
        let flags = word(bytes, 16);
        Self { method: Address(word(bytes, 0)), outer: word(bytes, 8), flags }
    }

    /// The environment around it; `None` if it is a method's.
    pub(crate) fn outer(self) -> Option<Address> {
        (self.flags & Self::LOCAL == 0).then_some(Address(self.outer & !3))
    }

    fn kind(self) -> u64 {
        self.flags & KIND_MASK
    }
}

impl ControlFrame {
    pub(crate) fn is_c_function(&self) -> bool {
        self.iseq.0 == 0 && self.environment.kind() == C_FUNCTION
    }

    /// Returns false for frames without code, such as the outermost one.
    pub(crate) fn runs_code(&self) -> bool {
        self.is_c_function() || (self.pc.0 != 0 && self.environment.kind() != DUMMY)
    }

    fn read(
        reader: ObjectReader<'_>,
        frame: &[u8],
        stack: &Range<Address>,
        is_compiled: bool,
    ) -> Option<Self> {
        let read = Self::of(frame, stack, |at| Environment::read(reader.image, at))?;
        let compiled = if is_compiled { read.compiled(reader.image, frame) } else { None };
        let read = compiled.unwrap_or(read);
        let is_code = read.iseq.0 == 0 || reader.type_at(read.iseq) == Some(SlotType::IMEMO);
        is_code.then_some(read)
    }

    /// The frame as ZJIT has it (from 4.1 on). Its seventh word (`jit_return`) refers to the native stack, where the word before leads to
    /// the program counter and the iseq (`zjit_jit_frame` in zjit.h); those of the frame itself are old. Functions in C have a mark there.
    /// YJIT has the address of code there, before which is no such word.
    fn compiled(self, image: &Image<'_>, frame: &[u8]) -> Option<Self> {
        let place = word(frame.get(RETURN..RETURN + 8)?, 0);
        if place == C_FRAME && self.environment.kind() == C_FUNCTION {
            return Some(Self { pc: Address(0), iseq: Address(0), ..self });
        }
        let pointer = |at: u64| (at != 0 && at.is_multiple_of(8)).then_some(Address(at));
        let entry = image.read_address(Address(pointer(place)?.0.checked_sub(8)?)).ok()?;
        let mut bytes = [0; 16];
        image.read_exact(pointer(entry.0)?, &mut bytes).ok()?;
        Some(Self { pc: pointer(word(&bytes, 0))?, iseq: pointer(word(&bytes, 8))?, ..self })
    }

    /// The frame with these bytes, if it can be one. Its iseq may be any address.
    fn of(
        bytes: &[u8],
        stack: &Range<Address>,
        environment_at: impl Fn(Address) -> Option<Environment>,
    ) -> Option<Self> {
        let [pc, top, iseq, _, environment] = [0, 8, 16, 24, 32].map(|at| Address(word(bytes, at)));
        let is_on_stack = top.0 == 0 || (stack.start..=stack.end).contains(&top);
        let environment = environment_at(environment)?;
        let fits = is_on_stack && KINDS.contains(&environment.kind());
        fits.then_some(Self { pc, iseq, environment })
    }
}

impl Stack {
    /// The stack of the context at `at`, if it belongs to this thread.
    fn of(image: &Image<'_>, at: Address, thread: Address) -> Option<Self> {
        let mut bytes = [0; CONTEXT_BYTES];
        if at.0 == 0 || !at.is_aligned(8) {
            return None;
        }
        image.read_exact(at, &mut bytes).ok()?;
        let [start, size, innermost] = [0, 8, 16].map(|at| word(&bytes, at));
        if start == 0 || (start | innermost) & 7 != 0 || !(1..MAX_STACK_WORDS).contains(&size) {
            return None;
        }
        let all = Address(start)..Address(start.checked_add(size * 8)?);
        let innermost = Address(innermost);
        let places = words(&bytes).enumerate().skip(HEAD_BYTES / 8);
        let thread_places =
            places.fold(0, |places, (at, word)| places | u32::from(word == thread.0) << at);
        let fits = thread_places != 0 && all.contains(&innermost);
        fits.then_some(Self { context: at, all, innermost, thread_places })
    }

    /// The part between its values and its frames. The innermost frame has the end of the values, as the garbage collector
    /// uses it (`rb_execution_context_mark` in vm.c).
    fn unused(&self, image: &Image<'_>) -> Range<Address> {
        let top = image.read_address(self.innermost.offset(8)).unwrap_or(self.innermost);
        let is_top = (self.all.start..=self.innermost).contains(&top) && top.is_aligned(8);
        if is_top { top..self.innermost } else { self.innermost..self.innermost }
    }

    /// The words in use before the frames, as bytes; `None` if a part cannot be read.
    fn values(&self, image: &Image<'_>) -> Option<Vec<u8>> {
        let used = self.unused(image).start - self.all.start;
        let mut bytes = vec![0; used.min(MAX_VALUE_BYTES) as usize];
        image.read_exact(self.all.start, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Its innermost frames, at most `max`, as bytes.
    fn frames(&self, image: &Image<'_>, frame_bytes: usize, max: usize) -> Vec<u8> {
        let used = usize::try_from(self.all.end - self.innermost).unwrap_or(usize::MAX);
        let mut bytes = vec![0; used.min(frame_bytes * max)];
        let read = image.read(self.innermost, &mut bytes);
        bytes.truncate(read / frame_bytes * frame_bytes);
        bytes
    }
}

impl StackLayout {
    /// The only place of contexts that most threads have, and the only size of frames by which nearly all frames are
    /// such. `threads` are the structures of threads; ended ones have no stack.
    pub(crate) fn derive(
        reader: ObjectReader<'_>,
        threads: &[Address],
        may_be_compiled: bool,
    ) -> Option<Self> {
        let image = reader.image;
        let mut stacks: BTreeMap<usize, Vec<Stack>> = BTreeMap::new();
        for &thread in threads.iter().take(MAX_SAMPLES) {
            let mut bytes = [0; THREAD_BYTES];
            let read = image.read(thread, &mut bytes);
            for (number, context) in words(&bytes[..read]).enumerate() {
                let stack = Stack::of(image, Address(context), thread);
                stacks.entry(number * 8).or_default().extend(stack);
            }
        }
        let most = stacks.values().map(Vec::len).max().filter(|&most| most > 0)?;
        let mut places = stacks.into_iter().filter(|(_, stacks)| stacks.len() == most);
        let (context_at, stacks) = places.next().filter(|_| places.next().is_none())?;
        let mut sizes = FRAME_WORDS.map(|words| words * 8).filter(|&frame_bytes| {
            let (mut fitting, mut count) = (0, 0);
            for stack in &stacks {
                if !(stack.all.end - stack.innermost).is_multiple_of(frame_bytes as u64) {
                    return false;
                }
                for frame in
                    stack.frames(image, frame_bytes, MAX_SAMPLE_FRAMES).chunks_exact(frame_bytes)
                {
                    let frame = ControlFrame::read(reader, frame, &stack.all, may_be_compiled);
                    fitting += usize::from(frame.is_some());
                    count += 1;
                }
            }
            count > 0 && fitting * 10 >= count * 9
        });
        let frame_bytes = sizes.next().filter(|_| sizes.next().is_none())?;
        let max_frames = (MAX_FRAMES_IN_ALL / threads.len()).clamp(1, MAX_FRAMES);
        let thread_at =
            stacks.into_iter().map(|stack| stack.thread_places).reduce(|all, its| all & its)?;
        let thread_at = (thread_at != 0).then(|| thread_at.trailing_zeros() as usize * 8)?;
        Some(Self { context_at, thread_at, frame_bytes, max_frames, may_be_compiled })
    }

    /// The stack of the Thread object in the slot `thread`, which wraps `structure`; `None` for ended threads.
    pub(crate) fn vm_stack(
        self,
        image: &Image<'_>,
        thread: u32,
        structure: Address,
    ) -> Option<VmStack> {
        let stack = self.stack(image, structure)?;
        let unused = stack.unused(image);
        Some(VmStack { thread, structure, context: stack.context, start: stack.all.start, unused })
    }

    fn stack(self, image: &Image<'_>, thread: Address) -> Option<Stack> {
        let context = image.read_address(thread.offset(self.context_at as u64)).ok()?;
        Stack::of(image, context, thread)
    }

    /// The valid frames of a thread, innermost first; `None` for ended threads.
    pub(crate) fn frames<'a>(
        self,
        reader: ObjectReader<'a>,
        thread: Address,
    ) -> Option<impl Iterator<Item = ControlFrame> + use<'a>> {
        let stack = self.stack(reader.image, thread)?;
        let bytes = stack.frames(reader.image, self.frame_bytes, self.max_frames);
        let starts = (0..bytes.len()).step_by(self.frame_bytes);
        Some(starts.filter_map(move |start| {
            let frame = bytes.get(start..start + self.frame_bytes)?;
            ControlFrame::read(reader, frame, &stack.all, self.may_be_compiled)
        }))
    }

    /// The bytes of the frames from `innermost` on that are read.
    pub(crate) fn frame_limit(self, innermost: Address, end: Address) -> usize {
        let used = usize::try_from(end - innermost).unwrap_or(usize::MAX);
        used.min(self.frame_bytes * self.max_frames)
    }

    /// Copies the stack of the thread that runs the context at `context` from a process that runs.
    ///
    /// The head of the context is read before the stack and after it. If both are equal, no frame began or ended
    /// meanwhile. Otherwise it is read again, and after [`MAX_TRIES`] only frames older than all that moved count.
    pub(crate) fn copy(self, image: &Image<'_>, context: Address) -> Option<StackCopy> {
        let mut moved = Address(0);
        for left in (0..MAX_TRIES).rev() {
            let thread = image.read_address(context.offset(self.thread_at as u64)).ok()?;
            let stack = Stack::of(image, context, thread)?;
            let is_current =
                image.read_address(thread.offset(self.context_at as u64)) == Ok(context);
            let frames = stack.frames(image, self.frame_bytes, self.max_frames);
            let values = stack.values(image)?;
            let again = Stack::of(image, context, thread)?;
            // A part that cannot be read may be in a mapping that is new.
            if !is_current || again.all != stack.all || frames.is_empty() {
                return None;
            }
            moved = moved.max(stack.innermost).max(again.innermost);
            let is_torn = again.innermost != stack.innermost;
            if left == 0 || !is_torn {
                let first =
                    if is_torn { moved.offset(self.frame_bytes as u64) } else { stack.innermost };
                let skipped = ((first - stack.innermost) as usize).min(frames.len());
                let values = (stack.all.start, values);
                let copy = StackCopy::new(stack.all, values, frames, self);
                return Some(StackCopy { skipped, is_torn, ..copy });
            }
        }
        None
    }
}

/// The `self` of the frame with these bytes.
fn frame_self(frame: &[u8]) -> u64 {
    word(frame, 24)
}

/// The frame that has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its number, from the innermost one.
    pub(crate) frame: usize,
    /// True if its caller has given it the value: as the receiver, or as an argument.
    pub(crate) is_argument: bool,
}

/// A copy of the used parts of a VM stack.
pub(crate) struct StackCopy {
    all: Range<Address>,
    /// The address of the first value that was copied.
    values_start: Address,
    values: Vec<u8>,
    frames: Vec<u8>,
    /// The bytes of frames that changed while they were read.
    skipped: usize,
    layout: StackLayout,
    pub(crate) is_torn: bool,
}

impl StackCopy {
    pub(crate) fn new(
        all: Range<Address>,
        (values_start, values): (Address, Vec<u8>),
        frames: Vec<u8>,
        layout: StackLayout,
    ) -> Self {
        Self { all, values_start, values, frames, skipped: 0, layout, is_torn: false }
    }

    /// The valid frames, innermost first.
    pub(crate) fn frames<'a>(
        &'a self,
        image: &'a Image<'_>,
    ) -> impl Iterator<Item = ControlFrame> + 'a {
        let frames = self.frames[self.skipped..].chunks_exact(self.layout.frame_bytes);
        frames.filter_map(move |frame| self.frame(image, frame))
    }

    /// The native stack is not copied, so which code a frame of ZJIT ran is not known any more: its own words are old. That of YJIT has the
    /// address of code in place of one on the native stack.
    fn frame(&self, image: &Image<'_>, frame: &[u8]) -> Option<ControlFrame> {
        let read = ControlFrame::of(frame, &self.all, |at| self.environment(image, at))?;
        if !self.layout.may_be_compiled {
            return Some(read);
        }
        // The compiler makes the pages of its mapping executable one after the other.
        let is_code =
            |at| image.state.mappings.find(at).is_some_and(|it| it.executable || !it.writable);
        match frame.get(RETURN..RETURN + 8).map_or(0, |bytes| word(bytes, 0)) {
            C_FRAME if read.environment.kind() == C_FUNCTION => {
                Some(ControlFrame { pc: Address(0), iseq: Address(0), ..read })
            }
            place => (place == 0 || is_code(Address(place))).then_some(read),
        }
    }

    /// All frames, innermost first; `None` for those that are not valid.
    pub(crate) fn all_frames<'a>(
        &'a self,
        image: &'a Image<'_>,
    ) -> impl Iterator<Item = Option<ControlFrame>> + 'a {
        let frames = self.frames.chunks_exact(self.layout.frame_bytes);
        frames.map(move |frame| self.frame(image, frame))
    }

    /// The values that were copied, and their addresses.
    pub(crate) fn values(&self) -> impl Iterator<Item = (Address, u64)> + '_ {
        let addresses = (0..).map(|index| self.values_start.offset(index * 8));
        addresses.zip(words(&self.values))
    }

    /// The frame that has the value at `at`: the outermost one whose stack pointer is above. `parameters_of` returns the number of
    /// parameters of an iseq.
    pub(crate) fn holder(
        &self,
        at: Address,
        parameters_of: impl Fn(Address) -> Option<u64>,
    ) -> Option<Holder> {
        let frames = || self.frames.chunks_exact(self.layout.frame_bytes);
        let (frame, bytes) = frames().enumerate().rfind(|(_, frame)| word(frame, 8) > at.0)?;
        let is_argument = frames().nth(frame + 1).is_some_and(|caller| {
            // The stack pointer of a frame that calls is below the receiver and the arguments.
            let first = word(caller, 8);
            self.is_argument(bytes, Address(first), at, &parameters_of)
        });
        Some(Holder { frame, is_argument })
    }

    /// Returns true if the value at `at` is the receiver or an argument of the call of this frame. They begin at `first`.
    fn is_argument(
        &self,
        frame: &[u8],
        first: Address,
        at: Address,
        parameters_of: impl Fn(Address) -> Option<u64>,
    ) -> bool {
        let (iseq, environment) = (Address(word(frame, 16)), Address(word(frame, 32)));
        // The variables of a frame that has made a closure are elsewhere, but what it was given stays on the stack.
        let has_left = !self.all.contains(&environment);
        if !has_left && (!self.has(environment) || at >= environment.before(ENVIRONMENT_BYTES)) {
            return false;
        }
        if iseq.0 == 0 {
            // What C code pushes for its own calls lies behind its environment.
            return !has_left;
        }
        let is_receiver = || self.value(first) == Some(frame_self(frame));
        let is_method = match self.own_environment(environment).filter(|_| !has_left) {
            // From 3.3 on the receiver of a method that a block defines is on the stack, too.
            Some(it) => it.kind() != BLOCK || it.flags & DEFINED_BY_BLOCK != 0 && is_receiver(),
            None => has_left && is_receiver(),
        };
        let words = at.0.saturating_sub(first.0) / 8;
        parameters_of(iseq).is_some_and(|parameters| words < parameters + u64::from(is_method))
    }

    /// The environment at `at`: on this stack, or in memory after it left the stack.
    pub(crate) fn environment(&self, image: &Image<'_>, at: Address) -> Option<Environment> {
        if self.has(at) { self.own_environment(at) } else { Environment::read(image, at) }
    }

    /// The words that determine the code and the method of a frame. Environments that left the stack count by their address.
    pub(crate) fn identity(&self, frame: &ControlFrame) -> Vec<u64> {
        let mut words = vec![frame.pc.0, frame.iseq.0, frame.environment.method.0];
        let mut outer = frame.environment.outer();
        while let Some(at) = outer.filter(|_| words.len() < MAX_IDENTITY_WORDS) {
            let own = if self.has(at) { self.own_environment(at) } else { None };
            words.push(own.map_or(at.0, |environment| environment.method.0));
            outer = own.and_then(Environment::outer);
        }
        words
    }

    /// Returns true if the environment at `at` was copied with the stack.
    fn has(&self, at: Address) -> bool {
        let first = at.0.checked_sub(ENVIRONMENT_BYTES);
        self.all.contains(&at) && first.is_some_and(|first| first >= self.values_start.0)
    }

    /// The value at `at`.
    fn value(&self, at: Address) -> Option<u64> {
        let start = usize::try_from(at.0.checked_sub(self.values_start.0)?).ok()?;
        self.values.get(start..start.checked_add(8)?).map(|bytes| word(bytes, 0))
    }

    fn own_environment(&self, at: Address) -> Option<Environment> {
        let start = usize::try_from(at.before(ENVIRONMENT_BYTES) - self.values_start).ok()?;
        let bytes = self.values.get(start..start + ENVIRONMENT_BYTES as usize + 8);
        bytes.filter(|_| at.is_aligned(8)).map(Environment::of)
    }
}

#[cfg(test)]
mod tests {
    use testkit::SyntheticMemory;

    use super::*;

    #[test]
    fn frames_that_zjit_compiled_have_their_code_behind_the_native_stack() {
        let [slot, entry, pc, iseq] = [0x10_0100, 0x10_0200, 0x7000_0008, 0x7000_1000];
        let mut memory = SyntheticMemory::default();
        memory.map(0x10_0000, 0x1000);
        for (at, word) in [(slot, entry), (entry, pc), (entry + 8, iseq)] {
            memory.write_u64(at, word);
        }
        let image = memory.image();
        let code = |place: u64, flags: u64| {
            let environment = Environment { method: Address(0), outer: 0, flags };
            let (pc, iseq) = (Address(0x10), Address(0x20));
            let mut bytes = [0; 56];
            bytes[48..].copy_from_slice(&place.to_le_bytes());
            let read = ControlFrame { pc, iseq, environment }.compiled(&image, &bytes);
            read.map(|it| (it.pc.0, it.iseq.0))
        };
        assert_eq!(code(slot + 8, BLOCK), Some((pc, iseq)));
        assert_eq!(code(1, C_FUNCTION), Some((0, 0)));
        // The frame is not compiled, another word is there, and nothing can be read.
        assert_eq!([code(0, BLOCK), code(slot, BLOCK), code(0x20_0008, BLOCK)], [None; 3]);
    }

    /// Its own words were those of another method: "Cache#hot made the objects of Tracker#track".
    #[test]
    fn a_copy_does_not_know_the_code_of_frames_that_zjit_compiled() {
        const STACK: u64 = 0x10_0000;
        let mut memory = SyntheticMemory::default();
        memory.map(STACK, 0x1000);
        let image = memory.image();
        let has_code = |place: u64, flags: u64, may_be_compiled| {
            let words = [0x10, 0, 0x20, 0, STACK + 16, 0, place];
            let frame: Vec<u8> = words.iter().flat_map(|it: &u64| it.to_le_bytes()).collect();
            let values: Vec<u8> = [0, 0, flags].iter().flat_map(|it| it.to_le_bytes()).collect();
            let layout = StackLayout {
                context_at: 0,
                thread_at: 0,
                frame_bytes: frame.len(),
                max_frames: 1,
                may_be_compiled,
            };
            let all = Address(STACK)..Address(STACK + 0x1000);
            let copy = StackCopy::new(all, (Address(STACK), values), frame, layout);
            copy.all_frames(&image).next().flatten().map(|it| it.iseq.0)
        };
        assert_eq!(has_code(0, BLOCK, true), Some(0x20));
        assert_eq!(has_code(1, C_FUNCTION, true), Some(0));
        assert_eq!([has_code(STACK + 0x800, BLOCK, true), has_code(1, BLOCK, true)], [None; 2]);
        assert_eq!(has_code(STACK + 0x800, BLOCK, false), Some(0x20), "no compiler does that");
    }
}
