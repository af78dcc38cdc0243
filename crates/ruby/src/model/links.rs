use crate::model::slot::Slot;

/// The references between slots: for each slot, the slots whose addresses are among its words.
///
/// It covers the words of the slots themselves only: elements that an array or a hash has in
/// malloc'ed memory are behind its [`References`](crate::References). Four bytes per slot and four
/// per link, since there are millions of both.
#[derive(Debug, Clone, Default)]
pub struct Links {
    /// For each slot the index of its first link in `to`; at the end, the number of links.
    starts: Vec<u32>,
    to: Vec<u32>,
}

impl Links {
    /// No links yet, and room for this many slots.
    pub(crate) fn with_slots(slots: usize) -> Self {
        Self { starts: Vec::with_capacity(slots + 1), to: Vec::new() }
    }

    /// Adds a link. Links come in ascending order of `from`.
    pub(crate) fn push(&mut self, from: u32, to: u32) {
        let own = self.to.len();
        if own == u32::MAX as usize {
            return;
        }
        if self.starts.len() <= from as usize {
            self.starts.resize(from as usize + 1, own as u32);
        } else if self.to.last() == Some(&to) && self.starts[from as usize] < own as u32 {
            return;
        }
        if from != to {
            self.to.push(to);
        }
    }

    /// Drops links to slots that are not live: they come from stale words.
    pub(crate) fn finish(&mut self, slots: &[Slot]) {
        self.starts.resize(slots.len() + 1, self.to.len() as u32);
        let (mut kept, mut next) = (0, 0);
        for from in 0..slots.len() {
            let end = self.starts[from + 1] as usize;
            self.starts[from] = kept as u32;
            for at in next..end {
                let to = self.to[at];
                if slots[to as usize].is_live() {
                    self.to[kept] = to;
                    kept += 1;
                }
            }
            next = end;
        }
        self.starts[slots.len()] = kept as u32;
        self.to.truncate(kept);
        self.to.shrink_to_fit();
    }

    /// The live slots that this slot refers to, in the order of its words.
    #[must_use]
    pub fn of(&self, slot: u32) -> &[u32] {
        let slot = slot as usize;
        let bounds = self.starts.get(slot).zip(self.starts.get(slot + 1));
        bounds.and_then(|(&start, &end)| self.to.get(start as usize..end as usize)).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::slot::{SlotState, SlotType};

    #[test]
    fn links_are_kept_by_slot_and_without_dead_ends() {
        let live = Slot { class: 0, kind: SlotType::OBJECT, state: SlotState::Marked };
        let slots = [live, live, Slot::FREE, live, live];
        let mut links = Links::with_slots(slots.len());
        for (from, to) in [(0, 2), (0, 1), (0, 1), (0, 4), (1, 4), (1, 1), (1, 0), (3, 0), (3, 2)] {
            links.push(from, to);
        }
        links.finish(&slots);
        let all: Vec<&[u32]> = (0..6).map(|slot| links.of(slot)).collect();
        assert_eq!(all, [&[1, 4][..], &[4, 0], &[], &[0], &[], &[]]);
        assert_eq!(links.to.len(), 5);
        assert!(Links::default().of(0).is_empty());
    }
}
