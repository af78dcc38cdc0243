use ruby::{HeapPage, ObjectSpace, SlotState};

use crate::Cause;
use crate::claims::Span;

/// The claims of some of Ruby's heap pages, ascending and disjoint: runs of live or free slots, and the rest.
pub(crate) fn ruby_spans<'a>(
    space: &'a ObjectSpace,
    pages: &'a [HeapPage],
) -> impl Iterator<Item = Span> + 'a {
    pages.iter().flat_map(|page| page_spans(space, page))
}

fn page_spans(space: &ObjectSpace, page: &HeapPage) -> Vec<Span> {
    if page.slot_bytes == 0 {
        // Since 3.4 Ruby keeps emptied pages, for slots of any size.
        return vec![Span::new(page.range.clone(), Cause::RubyFreeSlots)];
    }
    let mut spans = Vec::new();
    let mut at = page.range.start;
    let mut push = |end: linux::Address, cause| {
        let end = end.min(page.range.end);
        if at < end {
            spans.push(Span::new(at..end, cause));
            at = end;
        }
    };
    push(page.first_slot, Cause::RubyOverhead);
    let slots = space.slots.get(page.slots.clone()).unwrap_or_default();
    let is_free = |slot: &ruby::Slot| slot.state() == SlotState::Free;
    let mut end = page.first_slot;
    for run in slots.chunk_by(|a, b| is_free(a) == is_free(b)) {
        end = end.offset(run.len() as u64 * u64::from(page.slot_bytes));
        push(end, if is_free(&run[0]) { Cause::RubyFreeSlots } else { Cause::RubyLiveSlots });
    }
    push(page.range.end, Cause::RubyOverhead);
    spans
}
