use linux::Address;

use super::classes::Classes;
use super::span::{Span, Use};
use crate::BlockState;
use crate::structures::Structures;

/// The objects of all spans.
#[derive(Debug)]
pub(super) struct Objects<'s> {
    spans: &'s [Span],
    shift: u32,
    pub(super) classes: Classes,
    /// For each span the state of its objects. `None` if it has none, or if it was being changed.
    pub(super) states: Vec<Option<Vec<BlockState>>>,
    /// The spans of objects that do not agree with their own counts.
    pub(super) changing: usize,
}

/// A walk along a list of free objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List {
    pub(super) objects: u64,
    /// The last one.
    pub(super) last: Address,
    /// True if it ended with a null pointer, and all its objects were in use by their spans.
    pub(super) is_sane: bool,
}

impl<'s> Objects<'s> {
    /// Reads the lists of all spans: the objects on them and those in use must add up to those that there are. `None` if more than
    /// `max_changing` spans do not agree.
    pub(super) fn read(
        structures: &mut Structures<'_>,
        spans: &'s [Span],
        shift: u32,
        classes: Classes,
        max_changing: usize,
    ) -> Option<Self> {
        let mut all = Self { spans, shift, classes, states: Vec::new(), changing: 0 };
        for span in spans {
            let Use::Objects(class) = span.usage else {
                all.states.push(None);
                continue;
            };
            let (_, count) = all.classes.objects(span, class, shift)?;
            all.states.push(Some(vec![BlockState::InUse; count as usize]));
            let list = all.take(structures, span.objects, class, BlockState::Free, count);
            if !list.is_sane || list.objects + span.in_use != count {
                if let Some(states) = all.states.last_mut() {
                    *states = None;
                }
                all.changing += 1;
            }
            if all.changing > max_changing {
                return None;
            }
        }
        Some(all)
    }

    /// Follows a list of at most `most` objects of a class, which change from in use to `state`.
    pub(super) fn take(
        &mut self,
        structures: &mut Structures<'_>,
        first: Address,
        class: u8,
        state: BlockState,
        most: u64,
    ) -> List {
        let (mut at, mut objects, mut last) = (first, 0, Address(0));
        while at.0 != 0 {
            let is_sane = objects < most && self.mark(at, class, state);
            let next = structures.pointer(at).ok().filter(|_| is_sane);
            let Some(next) = next else { return List { objects, last, is_sane: false } };
            objects += 1;
            (last, at) = (at, next);
        }
        List { objects, last, is_sane: true }
    }

    /// Changes the state of an object that is in use. Returns false if it is none.
    fn mark(&mut self, at: Address, class: u8, state: BlockState) -> bool {
        let page = at.0 >> self.shift;
        let after = self.spans.partition_point(|span| span.first <= page);
        let Some(number) = after.checked_sub(1) else { return false };
        let span = &self.spans[number];
        if span.end() <= page || span.usage != Use::Objects(class) {
            return false;
        }
        let offset = at - span.area(self.shift).start;
        let Some(bytes) = self.classes.bytes(class).filter(|bytes| offset.is_multiple_of(*bytes))
        else {
            return false;
        };
        match self.states.get_mut(number) {
            Some(Some(states)) => match states.get_mut((offset / bytes) as usize) {
                Some(own) if *own == BlockState::InUse => {
                    *own = state;
                    true
                }
                _ => false,
            },
            // Nothing is known of its objects.
            Some(None) => true,
            // It was not read yet.
            None => false,
        }
    }

    /// The spans of a class, and their free objects.
    pub(super) fn count(&self, class: u8) -> (u64, u64) {
        let of_class = self.spans.iter().zip(&self.states);
        let of_class = of_class.filter(|(span, _)| span.usage == Use::Objects(class));
        of_class.fold((0, 0), |(spans, free), (_, states)| {
            let objects = states.iter().flatten().filter(|it| **it == BlockState::Free).count();
            (spans + 1, free + objects as u64)
        })
    }
}
