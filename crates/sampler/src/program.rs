use std::collections::HashMap;

use allocator::ThreadList;
use image::Image;
use linux::{Address, Thread};
use ruby::{HeapPages, ObjectSpace, OldObjects, RunningStacks, Slot, SlotState};

/// Everything that is derived of a program, by which its threads are followed while it runs. Processes that it forks have the
/// same.
#[derive(Clone)]
pub struct Program {
    pub(crate) stacks: RunningStacks,
    /// `None` if threads that begin later cannot be found.
    pub(crate) list: Option<ThreadList>,
    pub(crate) heap_pages: Option<HeapPages>,
    pub(crate) old_objects: Option<OldObjects>,
    /// The descriptors of the threads of the captured process.
    pub(crate) threads: HashMap<i32, Address>,
}

impl Program {
    /// Derives everything from a captured process.
    ///
    /// # Errors
    /// A sentence that says which part could not be derived.
    pub fn derive(image: &Image<'_>) -> Result<Self, String> {
        let space = ruby::read(image).map_err(|error| error.to_string())?;
        let stacks = stacks(image, &space)?;
        let descriptor = |thread: &Thread| (thread.tid, thread.descriptor_base());
        Ok(Self {
            stacks,
            list: ThreadList::derive(image),
            heap_pages: HeapPages::derive(image, &space),
            old_objects: space.old_objects,
            threads: image.state.threads.iter().map(descriptor).collect(),
        })
    }
}

/// Derives what is needed to read the stacks of running threads.
pub(crate) fn stacks(image: &Image<'_>, space: &ObjectSpace) -> Result<RunningStacks, String> {
    let paths = ruby::code_paths(image, space)
        .map_err(|_| "the files of its bytecode could not be derived")?;
    let is_marked = |slot: &Slot| slot.state() == SlotState::Marked;
    RunningStacks::derive(image, space, &paths).ok_or_else(|| {
        let hint = match space.slots.iter().any(is_marked) {
            true => "",
            false => ": Ruby has not collected garbage yet. Try again later",
        };
        format!("the layout of its threads and stacks could not be derived{hint}")
    })
}
