use crate::memory_map::{MemoryMap, column};

/// The numbers in the column that are no roots.
pub(crate) const UNKNOWN: u16 = 0;
pub(crate) const NOTHING: u16 = 1;
pub(crate) const FIRST_ROOT: u16 = 2;

/// The roots that retain the objects of a map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MapRoots {
    /// Those that retain many objects.
    pub roots: Vec<MapRoot>,
    /// A number (LEB128) for each slot with an object, in the order of areas: 0 if it is not known what retains the object, or it
    /// is a root that retains few objects; 1 if nothing does; otherwise 2 plus an index into the roots. Empty if nothing is known.
    pub of_objects: Vec<u8>,
}

/// A root, and what it retains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapRoot {
    /// Its name: `Cache::STORE`, `(at_exit)`.
    pub name: String,
    /// The bytes of the slots of its objects, and the resident bytes of the blocks that they own.
    pub bytes: u64,
}

/// The retaining root of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainedBy {
    /// That is not known, or it is a root that retains few objects.
    Unknown,
    /// Nothing: it is garbage.
    Nothing,
    /// The root with this index in [`MapRoots::roots`].
    Root(usize),
}

impl MapRoots {
    /// Adds the number of the next object.
    pub(super) fn push(&mut self, number: u16) {
        column::push(&mut self.of_objects, number.into());
    }

    /// The retaining root of each object, in the order of areas. Ends early if the numbers do.
    pub fn of_objects(&self) -> impl Iterator<Item = RetainedBy> {
        let mut numbers = self.of_objects.as_slice();
        std::iter::from_fn(move || {
            let number = column::take(&mut numbers)?;
            Some(match u16::try_from(number).unwrap_or(UNKNOWN) {
                UNKNOWN => RetainedBy::Unknown,
                NOTHING => RetainedBy::Nothing,
                number => RetainedBy::Root((number - FIRST_ROOT).into()),
            })
        })
    }

    /// Returns true if there is a number for each object of `map`, or none at all, and each is one of a root.
    pub(super) fn fit(&self, map: &MemoryMap) -> bool {
        if self.of_objects.is_empty() {
            return self.roots.is_empty();
        }
        let blocks = map.areas.iter().flat_map(|area| map.blocks(area));
        let mut numbers = self.of_objects.as_slice();
        let has_number = |_| {
            column::take(&mut numbers)
                .is_some_and(|number| number < u64::from(FIRST_ROOT) + self.roots.len() as u64)
        };
        blocks.filter(|block| block.used.is_object()).all(has_number) && numbers.is_empty()
    }
}
