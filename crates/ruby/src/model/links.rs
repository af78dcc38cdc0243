use image::SparseRows;

use crate::model::slot::Slot;

/// The references between slots: for each slot, the slots whose addresses are among its words, and its singleton class.
///
/// It covers the words of the slots themselves only: elements that an array or a hash has in
/// malloc'ed memory are behind its [`References`](crate::References).
#[derive(Debug, Clone, Default)]
pub struct Links {
    /// The slot of the first row. Portions of the heap are read at the same time, and joined.
    first: u32,
    rows: SparseRows<u32>,
}

impl Links {
    /// No links yet; those that follow are of slots from `first` on.
    pub(crate) fn from_slot(first: u32) -> Self {
        // Tables of rows are joined at multiples of 64.
        Self { first: first - first % 64, rows: SparseRows::default() }
    }

    /// Adds a link. Links come in ascending order of `from`.
    pub(crate) fn push(&mut self, from: u32, to: u32) {
        self.rows.end_rows(from - self.first);
        if from != to && self.rows.open_row().last() != Some(&to) {
            self.rows.push(to);
        }
    }

    /// Adds the links of later slots.
    pub(crate) fn append(&mut self, more: Self) {
        if more.rows.values().is_empty() {
            return;
        }
        if !self.rows.open_row().is_empty() {
            self.rows.end_row();
        }
        self.rows.end_rows(more.first - self.first);
        self.rows.append(more.rows);
    }

    /// Adds links of slots that have been read, ascending by `from`. All parts have been [appended](Self::append).
    pub(crate) fn insert(&mut self, mut links: Vec<(u32, u32)>) {
        links.iter_mut().for_each(|link| link.0 -= self.first);
        self.rows.insert(&links);
    }

    /// Drops links to slots that are not live: they come from stale words.
    pub(crate) fn finish(mut self, slots: &[Slot]) -> Self {
        self.rows.end_rows(slots.len() as u32 - self.first);
        self.rows.retain(|&to| slots[to as usize].is_live());
        self
    }

    /// The slots that refer to other slots, ascending.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows.iter().map(|(row, _)| self.first + row)
    }

    /// The live slots that this slot refers to, in the order of its words.
    #[must_use]
    pub fn of(&self, slot: u32) -> &[u32] {
        slot.checked_sub(self.first).map_or(&[], |row| self.rows.of(row))
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
        assert_eq!(links.rows.values().len(), 5);
        assert!(Links::default().of(0).is_empty());
    }

    #[test]
    fn links_of_two_halves_are_joined_wherever_they_were_cut() {
        let live = Slot::new(0, SlotType::OBJECT, SlotState::Marked);
        let slots = vec![live; 400];
        let pairs: Vec<(u32, u32)> = (0..400)
            .filter(|slot| slot % 7 != 3)
            .map(|slot| (slot, (slot * 31 + 1) % 400))
            .collect();
        for cut in [0, 1, 63, 64, 65, 199, 256, 399, 400] {
            let [mut first, mut second] = [Links::default(), Links::from_slot(cut)];
            for &(from, to) in &pairs {
                let part = if from < cut { &mut first } else { &mut second };
                part.push(from, to);
            }
            first.append(second);
            let links = first.finish(&slots);
            for slot in 0..400 {
                let expected: Vec<u32> =
                    pairs.iter().filter(|it| it.0 == slot && it.1 != slot).map(|it| it.1).collect();
                assert_eq!(links.of(slot), expected, "{cut} {slot}");
            }
        }
    }
}
