use capture::SparseRows;

use crate::model::slot::Slot;

/// The references between slots: for each slot, the slots whose addresses are among its words.
///
/// It covers the words of the slots themselves only: elements that an array or a hash has in
/// malloc'ed memory are behind its [`References`](crate::References).
#[derive(Debug, Clone, Default)]
pub struct Links(SparseRows<u32>);

impl Links {
    /// Adds a link. Links come in ascending order of `from`.
    pub(crate) fn push(&mut self, from: u32, to: u32) {
        self.0.end_rows(from);
        if from != to && self.0.open_row().last() != Some(&to) {
            self.0.push(to);
        }
    }

    /// Drops links to slots that are not live: they come from stale words.
    pub(crate) fn finish(self, slots: &[Slot]) -> Self {
        let mut all = self.0;
        all.end_rows(slots.len() as u32);
        all.retain(|&to| slots[to as usize].is_live());
        Self(all)
    }

    /// The slots that refer to other slots, ascending.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|(slot, _)| slot)
    }

    /// The live slots that this slot refers to, in the order of its words.
    #[must_use]
    pub fn of(&self, slot: u32) -> &[u32] {
        self.0.of(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::slot::{SlotState, SlotType};

    #[test]
    fn links_are_kept_by_slot_and_without_dead_ends() {
        let live = Slot::new(0, SlotType::OBJECT, SlotState::Marked);
        let slots = [live, live, Slot::FREE, live, live];
        let mut links = Links::default();
        for (from, to) in [(0, 2), (0, 1), (0, 1), (0, 4), (1, 4), (1, 1), (1, 0), (3, 0), (3, 2)] {
            links.push(from, to);
        }
        let links = links.finish(&slots);
        let all: Vec<&[u32]> = (0..6).map(|slot| links.of(slot)).collect();
        assert_eq!(all, [&[1, 4][..], &[4, 0], &[], &[0], &[], &[]]);
        assert_eq!(links.0.values().len(), 5);
        assert!(Links::default().of(0).is_empty());
    }
}
