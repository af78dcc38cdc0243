//! The machine stacks of fibers: a variable of the interpreter holds a pool of them.
//!
//! `struct fiber_pool` in cont.c is the same from 2.7 to 3.4: `allocations`, `vacancies`, `size`,
//! `count` ... Each allocation points back to its pool; it has a base, a size, a stride, a count, the
//! number of stacks in use, the pool, and its neighbours in a list. Each stack has its own guard page
//! below it. A pool is accepted if its mappings have exactly this shape, and ignored otherwise.

use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::{AddressClassifier, Place};
use crate::interpreter::Interpreter;

/// More allocations than a pool has: each is at least as large as the one before, up to a limit.
const MAX_ALLOCATIONS: usize = 4096;
/// The offsets at which an allocation may point to its pool: the first one if stacks in use are
/// counted (`used`, with FIBER_POOL_ALLOCATION_FREE).
const POOL_OFFSETS: [u64; 2] = [40, 32];

/// One mapping of stacks (`struct fiber_pool_allocation`).
#[derive(Debug, Clone, Copy)]
struct Allocation {
    base: Address,
    stack_bytes: u64,
    stride: u64,
    count: u64,
}

/// The machine stacks of fibers, without their guard pages; none if the pool is not recognized.
pub(crate) fn find(
    image: &Image<'_>,
    interpreter: &Interpreter,
    classifier: &AddressClassifier<'_>,
) -> Vec<Range<Address>> {
    let mut stacks = Vec::new();
    for (pool, allocation) in interpreter.variable_words(image) {
        if allocation & 7 == 0 && classifier.at(allocation) == Place::Private {
            walk_pool(image, pool, Address(allocation), &mut stacks);
        }
    }
    stacks.sort_by_key(|stack| stack.start);
    stacks.dedup_by(|next, last| next.start < last.end);
    stacks
}

/// Adds the stacks of the pool at `pool`, if it is one and `first` is its first allocation.
fn walk_pool(image: &Image<'_>, pool: Address, first: Address, stacks: &mut Vec<Range<Address>>) {
    let points_back = |at: &u64| image.read_address(first.offset(*at)) == Ok(pool);
    let Some(pool_offset) = POOL_OFFSETS.into_iter().find(points_back) else { return };
    // Allocations that count their stacks in use are in a doubly linked list.
    let next_offset = if pool_offset == 40 { pool_offset + 16 } else { pool_offset + 8 };
    let Ok(stack_bytes) = image.read_u64(pool.offset(16)) else { return };
    let mut at = first;
    for _ in 0..MAX_ALLOCATIONS {
        let allocation = Allocation::read(image, at, pool, pool_offset);
        let Some(allocation) = allocation.filter(|it| it.stack_bytes == stack_bytes) else {
            return;
        };
        allocation.add_stacks(image, stacks);
        match image.read_address(at.offset(next_offset)) {
            Ok(Address(0)) | Err(_) => return,
            Ok(next) => at = next,
        }
    }
}

impl Allocation {
    fn read(image: &Image<'_>, at: Address, pool: Address, pool_offset: u64) -> Option<Self> {
        let word = |offset| image.read_u64(at.offset(offset)).ok();
        let it = Self {
            base: Address(word(0)?),
            stack_bytes: word(8)?,
            stride: word(16)?,
            count: word(24)?,
        };
        let page_size = image.page_size();
        let fits = word(pool_offset)? == pool.0
            && it.base.is_aligned(page_size)
            && it.stack_bytes.is_multiple_of(page_size)
            && it.stack_bytes > 0
            && it.stack_bytes.checked_add(page_size) == Some(it.stride);
        fits.then_some(it)
    }

    /// Adds the stacks, up to the first that is not mapped as it should be.
    fn add_stacks(&self, image: &Image<'_>, stacks: &mut Vec<Range<Address>>) {
        let mappings = &image.state.mappings;
        for number in 0..self.count {
            let guard = self.base.offset(number.wrapping_mul(self.stride));
            let stack = guard.offset(image.page_size())..guard.offset(self.stride);
            let is_guard = mappings.find(guard).is_some_and(|it| !it.readable && !it.writable);
            let usable = mappings.contiguous(stack.start, |it| {
                it.readable && it.writable && it.is_private_anonymous()
            });
            if !is_guard || usable.start != stack.start || usable.end < stack.end {
                return;
            }
            stacks.push(stack);
        }
    }
}
