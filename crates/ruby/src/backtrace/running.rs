//! The stacks of processes that run.
//!
//! Everything is derived from a capture: then the structures of all threads are known beyond doubt. Later, the context of a
//! native thread is found by its descriptor (`struct pthread`), and its stack is copied while the thread runs.

use std::collections::{BTreeMap, HashMap, HashSet};

use capture::{Address, Image, Memory};

use crate::backtrace::code::{CodeReader, Place};
use crate::backtrace::stacks::StackLayout;
use crate::layout::class_names::ObjectReader;
use crate::model::backtrace::Frame;
use crate::model::code_paths::CodePaths;
use crate::object_space::ObjectSpace;
use crate::page_cache::cached;
use crate::word::words;

/// The bytes below a descriptor that are searched: thread-local variables.
const LOCALS_BYTES: u64 = 4 << 10;
/// The bytes of a descriptor that are searched, with the first keys of `pthread_setspecific`.
const DESCRIPTOR_BYTES: u64 = 0x900;

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
}

/// The frames of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunningStack {
    /// The numbers of its frames, innermost first; see [`RunningStacks::frame`].
    pub frames: Vec<u32>,
    /// True if it changed while it was read: then its innermost frames are missing.
    pub is_torn: bool,
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
        let image = cached(image);
        let reader = ObjectReader::new(&image, &space.slot_index, &space.slots);
        let code = CodeReader::derive(reader, space, paths)?;
        let layout = space.stack_layout?;
        Some(Self {
            anchor,
            layout,
            context_place,
            code,
            frames: Vec::new(),
            known: HashMap::new(),
        })
    }

    /// Returns true if the process of this image runs the same program at the same addresses, as forked processes do.
    #[must_use]
    pub fn is_of(&self, image: &Image<'_>) -> bool {
        image.read_address(self.anchor.0) == Ok(self.anchor.1)
    }

    /// Reads the stack of the thread with this descriptor; `None` if it runs no Ruby, or its stack could not be read.
    pub fn read(&mut self, image: &Image<'_>, descriptor: Address) -> Option<RunningStack> {
        let context = self.context_place.context(image, descriptor, self.layout)?;
        let copy = self.layout.copy(image, context)?;
        let reader = ObjectReader::running(image);
        let mut stack = RunningStack { frames: Vec::new(), is_torn: copy.is_torn };
        for frame in copy.frames(image) {
            let environment_at = |at| copy.environment(image, at);
            let place = self.code.place(reader, &frame, environment_at);
            stack.frames.extend(place.and_then(|place| self.number(reader, place)));
        }
        Some(stack)
    }

    /// The frame with this number.
    #[must_use]
    pub fn frame(&self, number: u32) -> Option<&Frame> {
        self.frames.get(number as usize)
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
            let (start, bytes) = surroundings(image, thread.pthread());
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
            let words = image.state.threads.iter().filter_map(|it| place.word(image, it.pthread()));
            words.into_iter().any(|word| !known.contains(&word.0))
        };
        let best = votes.into_iter().filter(|(_, found)| found.len() == most).map(|it| it.0);
        best.rev().find(|place| !leads_elsewhere(place))
    }

    /// The word at this place of the thread with this descriptor, unless it is zero.
    fn word(self, image: &Image<'_>, descriptor: Address) -> Option<Address> {
        let at = Address(descriptor.0.checked_add_signed(self.at)?);
        image.read_address(at).ok().filter(|found| found.0 != 0)
    }

    /// The context that the thread with this descriptor runs.
    fn context(
        self,
        image: &Image<'_>,
        descriptor: Address,
        layout: StackLayout,
    ) -> Option<Address> {
        let found = self.word(image, descriptor)?;
        if self.is_context {
            return Some(found);
        }
        image.read_address(found.offset(layout.context_at as u64)).ok()
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
