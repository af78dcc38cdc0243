//! A search of what an object refers to.

use std::collections::{HashSet, VecDeque};

use ruby::{ObjectSpace, SlotType};

use crate::ownership::edges::Edge;
use crate::ownership::graph::PointerGraph;

/// What a search does about an object that it meets.
pub(crate) enum Met {
    /// It is what is searched for.
    Wanted,
    /// The search goes on behind it.
    Other,
    /// The search does not go on behind it: what is there is known.
    Known,
    /// Behind it is too much to tell.
    TooMuch,
}

/// What a search found.
pub(crate) struct Search {
    /// Whether the wanted object was found; `None` if there were too many references to tell.
    pub(crate) found: Option<bool>,
    /// The number of references that were followed.
    pub(crate) references: usize,
}

/// Which references to blocks a search follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    Certain,
    /// Also pointers into blocks: a proc has one into its scope.
    All,
}

/// Searches what the object in the slot `from` refers to, itself or by other objects and blocks, until `meet` says that an object is wanted
/// or too much, or more than `max` references were followed. `meet` is asked once for each object, but not for the first one. Classes lead
/// to too much: they are met, but not followed.
pub(crate) fn search(
    graph: &PointerGraph,
    space: &ObjectSpace,
    from: u32,
    follow: Follow,
    max: usize,
    mut meet: impl FnMut(u32) -> Met,
) -> Search {
    let (mut slots, mut blocks) = (VecDeque::from([from]), VecDeque::new());
    let (mut met_slots, mut met_blocks) = (HashSet::from([from]), HashSet::new());
    let mut references = 0;
    let is_class = |slot: u32| {
        let kind = space.slots.get(slot as usize).map(|it| it.kind());
        matches!(kind, Some(SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS))
    };
    loop {
        let (links, edges, further) = if let Some(block) = blocks.pop_front() {
            (&[][..], graph.slots(block), graph.edges(block))
        } else if let Some(slot) = slots.pop_front() {
            (space.links.of(slot), &[][..], graph.of_slots.of(slot))
        } else {
            return Search { found: Some(false), references };
        };
        for other in links.iter().copied().chain(edges.iter().map(|edge| edge.to())) {
            references += 1;
            if references > max {
                return Search { found: None, references: max };
            }
            if met_slots.insert(other) {
                match meet(other) {
                    Met::Wanted => return Search { found: Some(true), references },
                    Met::TooMuch => return Search { found: None, references },
                    Met::Other if !is_class(other) => slots.push_back(other),
                    Met::Other | Met::Known => {}
                }
            }
        }
        let block = |edge: &Edge| match follow {
            Follow::Certain => graph.block(*edge),
            Follow::All => graph.possible_block(*edge),
        };
        for block in further.iter().filter_map(block) {
            references += 1;
            if references > max {
                return Search { found: None, references: max };
            }
            if met_blocks.insert(block) {
                blocks.push_back(block);
            }
        }
    }
}
