use image::Image;
use ruby::{Ages, Collections, CollectionsSearch, FreeListSearch, FreeLists, RunningStacks};

use crate::program::{NoStacks, stacks};

/// Everything that is derived of a program whose new objects are to be followed.
pub struct KeptProgram {
    pub(super) stacks: RunningStacks,
    pub(super) lists: FreeLists,
    pub(super) ages: Ages,
    pub(super) collections: Collections,
    pub(super) is_compiled: bool,
}

/// What a capture tells of a program. The rest is told by what the process does afterwards: see [`KeptSearch::look`].
pub struct KeptSearch {
    stacks: RunningStacks,
    lists: FreeListSearch,
    ages: Ages,
    collections: CollectionsSearch,
    is_compiled: bool,
    found: (Option<FreeLists>, Option<Collections>),
}

/// The part of the allocator or the collector that was not found in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotShown {
    /// It has collected no garbage, or has not made both a minor and a major collection.
    Collections,
    /// Its lists of free slots were not found: either it allocated nothing, or their layout is not known.
    FreeLists,
}

impl KeptSearch {
    /// Derives what a captured process tells.
    ///
    /// # Errors
    /// If a part could not be derived.
    pub fn begin(image: &Image<'_>) -> Result<Self, NoStacks> {
        let space = ruby::read(image)?;
        let stacks = stacks(image, &space)?;
        let lists = FreeListSearch::begin(image, &space);
        let mut lists = lists.ok_or(NoStacks::NotDerived("the lists of free slots"))?;
        lists.look(image);
        Ok(Self {
            stacks,
            lists,
            ages: Ages::derive(image, &space).ok_or(NoStacks::FewOldObjects)?,
            collections: CollectionsSearch::begin(image, &space)
                .ok_or(NoStacks::NotDerived("the place of its collector"))?,
            is_compiled: !space.jit_code.is_empty(),
            found: (None, None),
        })
    }

    /// Looks at the running process once more. Returns true if everything is known. It needs a process that allocates, and a
    /// collection.
    pub fn look(&mut self, image: &Image<'_>) -> bool {
        let (lists, collections) = &mut self.found;
        if lists.is_none() {
            self.lists.look(image);
            *lists = self.lists.found(image);
        }
        if collections.is_none() {
            *collections = self.collections.look(image);
        }
        lists.is_some() && collections.is_some()
    }

    /// The program.
    ///
    /// # Errors
    /// If the process has not shown something.
    pub fn end(self) -> Result<KeptProgram, NotShown> {
        let Self { stacks, ages, is_compiled, found: (lists, collections), .. } = self;
        Ok(KeptProgram {
            stacks,
            ages,
            is_compiled,
            collections: collections.ok_or(NotShown::Collections)?,
            lists: lists.ok_or(NotShown::FreeLists)?,
        })
    }
}
