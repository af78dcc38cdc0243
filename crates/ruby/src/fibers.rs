//! The machine stacks of fibers: a pool of them hangs on a variable of the interpreter.
//!
//! `struct fiber_pool` in cont.c, the same from 2.7 to 3.4: `allocations`, `vacancies`, `size`,
//! `count` ... It names its allocations, of which each names it in return: base, size, stride,
//! count, the stacks in use, the pool, and the neighbours in a list. Each stack has its own guard
//! page below. That a pool names a mapping of just this shape is the proof; what has another shape
//! is left alone.

use std::ops::Range;

use capture::{Address, Image, Memory, PAGE_SIZE};

use crate::interpreter::Interpreter;
use crate::territory::{Place, Territory};

/// More bytes of variables than an interpreter has.
const MOST_VARIABLES: u64 = 16 << 20;
/// More allocations than a pool has: each is at least as large as the one before, up to a limit.
const MOST_ALLOCATIONS: usize = 4096;
/// Where an allocation names its pool: behind the stacks in use, where these are counted.
const POOL: [u64; 2] = [40, 32];

/// One mapping of stacks (`struct fiber_pool_allocation`).
#[derive(Debug, Clone, Copy)]
struct Allocation {
    base: Address,
    stack_bytes: u64,
    stride: u64,
    count: u64,
}

/// The machine stacks of fibers, without their guard pages; none where they cannot be told for
/// certain.
pub(crate) fn find_stacks(
    image: &Image<'_>,
    interpreter: &Interpreter,
    territory: &Territory<'_>,
) -> Vec<Range<Address>> {
    let mut stacks = Vec::new();
    for variables in &interpreter.variables {
        let mut bytes = vec![0; capture::length(variables).min(MOST_VARIABLES) as usize];
        let read = image.read(variables.start, &mut bytes);
        for (number, word) in bytes[..read].chunks_exact(8).enumerate() {
            let allocation = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            if allocation & 7 == 0 && territory.at(allocation) == Place::Private {
                let pool = variables.start.offset(number as u64 * 8);
                walk_pool(image, pool, Address(allocation), &mut stacks);
            }
        }
    }
    stacks.sort_by_key(|stack| stack.start);
    stacks.dedup_by(|next, last| next.start < last.end);
    stacks
}

/// Adds the stacks of the pool at `pool`, if it is one and `first` its first allocation.
fn walk_pool(image: &Image<'_>, pool: Address, first: Address, stacks: &mut Vec<Range<Address>>) {
    let Some(at) = POOL.into_iter().find(|&at| image.read_address(first.offset(at)) == Ok(pool))
    else {
        return;
    };
    // Allocations that count their stacks in use are linked both ways.
    let next = if at == 40 { at + 16 } else { at + 8 };
    let Ok(stack_bytes) = image.read_u64(pool.offset(16)) else { return };
    let mut allocation = first;
    for _ in 0..MOST_ALLOCATIONS {
        let stated = Allocation::read(image, allocation, pool, at);
        let Some(stated) = stated.filter(|it| it.stack_bytes == stack_bytes) else { return };
        stated.add_stacks(image, stacks);
        match image.read_address(allocation.offset(next)) {
            Ok(Address(0)) | Err(_) => return,
            Ok(next) => allocation = next,
        }
    }
}

impl Allocation {
    fn read(image: &Image<'_>, at: Address, pool: Address, pool_at: u64) -> Option<Self> {
        let word = |offset| image.read_u64(at.offset(offset)).ok();
        let it = Self {
            base: Address(word(0)?),
            stack_bytes: word(8)?,
            stride: word(16)?,
            count: word(24)?,
        };
        let fits = word(pool_at)? == pool.0
            && it.base.is_aligned(PAGE_SIZE)
            && it.stack_bytes.is_multiple_of(PAGE_SIZE)
            && it.stack_bytes > 0
            && it.stack_bytes.checked_add(PAGE_SIZE) == Some(it.stride);
        fits.then_some(it)
    }

    /// Adds the stacks above whose guard pages are where this states them.
    fn add_stacks(&self, image: &Image<'_>, stacks: &mut Vec<Range<Address>>) {
        let mappings = &image.state.mappings;
        for number in 0..self.count {
            let guard = self.base.offset(number.wrapping_mul(self.stride));
            let stack = guard.offset(PAGE_SIZE)..guard.offset(self.stride);
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
