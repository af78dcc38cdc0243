use std::collections::HashMap;

use allocator::ThreadList;
use image::Image;
use linux::{Address, Thread};
use ruby::{HeapPages, OldObjects, RunningStacks, Slot, SlotState};

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
    /// The layout of bytecode could not be derived.
    #[error("the files of its bytecode could not be derived")]
    NoCodeFiles,
    /// The layout of threads could not be derived.
    #[error("the layout of its threads and stacks could not be derived")]
    NoLayout,
    /// The same, in a process without marked objects, by which the layout is checked.
    #[error(
        "the layout of its threads and stacks could not be derived: Ruby has not collected garbage yet"
    )]
    NotCollected,
}

impl Program {
    /// Derives everything from a captured process.
    pub fn derive(image: &Image<'_>) -> Result<Self, NoStacks> {
        let space = ruby::read(image)?;
        let paths = ruby::code_paths(image, &space).map_err(|_| NoStacks::NoCodeFiles)?;
        let is_marked = |slot: &Slot| slot.state() == SlotState::Marked;
        let stacks = RunningStacks::derive(image, &space, &paths).ok_or_else(|| {
            match space.slots.iter().any(is_marked) {
                true => NoStacks::NoLayout,
                false => NoStacks::NotCollected,
            }
        })?;
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
