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

/// The reason why the stacks of a process cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoStacks {
    /// The heap cannot be read.
    #[error(transparent)]
    NoHeap(#[from] ruby::Error),
    /// This part could not be derived.
    #[error("{0} could not be derived")]
    NotDerived(&'static str),
    /// The layout of threads could not be derived of a process without marked objects, by which it is checked.
    #[error(
        "the layout of its threads and stacks could not be derived: Ruby has not collected garbage yet"
    )]
    NotCollected,
    /// The ages of objects are told by those that are old.
    #[error("the ages of its objects could not be derived: fewer than 100 are old")]
    FewOldObjects,
}

impl Program {
    /// Derives everything from a captured process.
    pub fn derive(image: &Image<'_>) -> Result<Self, NoStacks> {
        let space = ruby::read(image)?;
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
pub(crate) fn stacks(image: &Image<'_>, space: &ObjectSpace) -> Result<RunningStacks, NoStacks> {
    let paths = ruby::code_paths(image, space)
        .map_err(|_| NoStacks::NotDerived("the files of its bytecode"))?;
    let is_marked = |slot: &Slot| slot.state() == SlotState::Marked;
    RunningStacks::derive(image, space, &paths).ok_or_else(|| {
        match space.slots.iter().any(is_marked) {
            true => NoStacks::NotDerived("the layout of its threads and stacks"),
            false => NoStacks::NotCollected,
        }
    })
}
