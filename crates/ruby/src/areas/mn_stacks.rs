//! The stacks of threads that share native threads (M:N threads, from 3.3 on): those of Ractors, and all with RUBY_MN_THREADS=1.
//!
//! A variable of the interpreter has the last chunk of 512 MiB (`nt_stack_chunks` in thread_pthread_mn.c). A chunk begins with
//! `struct nt_stack_chunk_header`: the chunk before it, the next one with free stacks, from 4.1 on a flag, then four numbers of 16 bits
//! (the first page of stacks, their number, that of those never used, and of free ones) and the free ones. Each stack has room for a
//! VM stack, a guard page and the machine stack. A chunk is accepted if its mappings have this shape.

use std::collections::HashSet;
use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::{AddressClassifier, Place};
use crate::interpreter::Interpreter;

/// The size of a chunk.
const CHUNK_BYTES: u64 = 512 << 20;
/// More chunks than a process has.
const MAX_CHUNKS: usize = 256;
/// More threads than a process has.
const MAX_STACKS: usize = 1 << 16;
/// The offsets of the numbers in a chunk's header: without and with the flag.
const NUMBERS_OFFSETS: [u64; 2] = [16, 18];
/// The largest machine stack that is searched for its end.
const MAX_STACK_BYTES: u64 = 64 << 20;
/// The last words of a machine stack: its chunk and its index.
const FOOTER_BYTES: u64 = 16;

/// The memory for one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MnStack {
    /// The VM stack.
    pub vm: Range<Address>,
    /// The machine stack.
    pub machine: Range<Address>,
    /// True if no thread has it.
    pub is_free: bool,
}

/// The stacks that were in use once, ascending; none if no chunk is recognized.
pub(crate) fn find(
    image: &Image<'_>,
    interpreter: &Interpreter,
    classifier: &AddressClassifier<'_>,
) -> Vec<MnStack> {
    let page_size = image.page_size();
    let is_chunk = |word: u64| {
        word != 0 && word.is_multiple_of(page_size) && classifier.at(word) == Place::Private
    };
    let mut chunks = HashSet::new();
    for (_, word) in interpreter.variable_words(image) {
        let mut at = word;
        while is_chunk(at)
            && chunks.len() < MAX_CHUNKS
            && !chunks.contains(&at)
            && Chunk::read(image, Address(at)).is_some()
        {
            chunks.insert(at);
            at = image.read_u64(Address(at)).unwrap_or_default();
        }
    }
    let chunks = chunks.into_iter().filter_map(|at| Chunk::read(image, Address(at)));
    let mut stacks: Vec<MnStack> =
        chunks.flat_map(|chunk| chunk.stacks(image)).take(MAX_STACKS).collect();
    stacks.sort_by_key(|stack| stack.vm.start);
    stacks
}

/// A chunk of stacks.
struct Chunk {
    /// The first VM stack.
    first: Address,
    vm_bytes: u64,
    /// The distance between two stacks.
    stride: u64,
    /// The number of stacks that were in use once.
    used: u64,
    free: HashSet<u64>,
}

impl Chunk {
    fn read(image: &Image<'_>, at: Address) -> Option<Self> {
        NUMBERS_OFFSETS.into_iter().find_map(|offset| Self::read_as(image, at, offset))
    }

    fn read_as(image: &Image<'_>, at: Address, offset: u64) -> Option<Self> {
        let page_size = image.page_size();
        let numbers = image.read_u64(at.offset(offset)).ok()?;
        let number = |index: u32| numbers >> (16 * index) & 0xffff;
        let [start_page, count, unused, free_count] = [0, 1, 2, 3].map(number);
        let used = count.checked_sub(unused).filter(|used| *used > 0 && free_count <= *used)?;
        let list = offset + 8;
        let pages = (list + 2 * count).div_ceil(page_size);
        if start_page.abs_diff(pages) > 1 || start_page == 0 {
            return None;
        }
        let first = at.offset(start_page * page_size);
        let writable = |from: Address| {
            image
                .state
                .mappings
                .contiguous(from, |it| it.readable && it.writable && it.is_private_anonymous())
        };
        let guard = writable(first).end;
        let machine = guard.offset(page_size);
        let next_guard = writable(machine).end;
        let end = match used {
            // With its footer: the next VM stack may be writable already.
            1 => {
                let (last, index) = (next_guard.0.min(at.0 + CHUNK_BYTES), 0);
                let ends = (machine.0..=last).step_by(page_size as usize).skip(1).map(Address);
                let mut ends = ends.take((MAX_STACK_BYTES / page_size) as usize);
                ends.find(|end| {
                    let footer = Address(end.0 - FOOTER_BYTES);
                    image.read_address(footer) == Ok(at)
                        && image.read_u64(footer.offset(8)) == Ok(index)
                })?
            }
            _ => Address(first.0.checked_add(next_guard.0.checked_sub(guard.0)?)?),
        };
        let (vm_bytes, stride) = (guard.0.checked_sub(first.0)?, end.0.checked_sub(first.0)?);
        let most = (CHUNK_BYTES - page_size * start_page) / stride.max(1);
        let fits = vm_bytes > 0 && end > machine && count.abs_diff(most) <= 1;
        let free = (0..free_count).map(|index| {
            let word = image.read_u64(at.offset(list + 2 * index)).ok()?;
            Some(word & 0xffff).filter(|index| *index < used)
        });
        let free = free.collect::<Option<_>>().filter(|_| fits)?;
        Some(Self { first, vm_bytes, stride, used, free })
    }

    /// The stacks, up to the first that is not mapped as it should be.
    fn stacks(&self, image: &Image<'_>) -> Vec<MnStack> {
        let page_size = image.page_size();
        let is_writable = |range: &Range<Address>| {
            let usable = image.state.mappings.contiguous(range.start, |it| {
                it.readable && it.writable && it.is_private_anonymous()
            });
            usable.start <= range.start && usable.end >= range.end
        };
        let stack = |index: u64| {
            let start = self.first.offset(index * self.stride);
            let vm = start..start.offset(self.vm_bytes);
            let machine = vm.end.offset(page_size)..start.offset(self.stride);
            MnStack { vm, machine, is_free: self.free.contains(&index) }
        };
        let is_right = |stack: &MnStack| is_writable(&stack.vm) && is_writable(&stack.machine);
        (0..self.used).map(stack).take_while(is_right).collect()
    }
}
