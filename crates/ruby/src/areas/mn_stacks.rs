//! The stacks of threads that share native threads (M:N threads, from 3.3 on): those of Ractors, and all with RUBY_MN_THREADS=1.
//!
//! A variable of the interpreter has the last chunk of 512 MiB (`nt_stack_chunks` in thread_pthread_mn.c). A chunk begins with
//! `struct nt_stack_chunk_header`: the chunk before it, the next one with free stacks, from 4.1 on a flag, then four numbers of 16 bits
//! (the first page of stacks, their number, that of those never used, and of free ones) and the free ones. Each stack has room for a
//! VM stack, a guard page and the machine stack. A chunk is accepted if its mappings have this shape.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::{AddressClassifier, Place};
use crate::interpreter::Interpreter;
use crate::model::vm_stack::VmStack;
use crate::word::words;

/// The size of a chunk.
const CHUNK_BYTES: u64 = 512 << 20;
/// The number of chunks that are read: these have stacks for 65,000 threads of the default size.
const MAX_CHUNKS: usize = 256;
/// The number of words that may be the address of a chunk. Few begin with such numbers.
const MAX_CANDIDATES: usize = 64;
/// The number of stacks that are read: the numbers of a chunk cannot be trusted.
const MAX_STACKS: usize = 1 << 16;
/// The offsets of the numbers in a chunk's header: without and with the flag.
const NUMBERS_OFFSETS: [u64; 2] = [16, 18];
/// The largest machine stack that is searched for its end.
const MAX_STACK_BYTES: u64 = 64 << 20;
/// The last words of a machine stack: its chunk and its index.
const FOOTER_BYTES: u64 = 16;
/// The number of adjoining mappings that the memory of two threads may have.
const MAX_MAPPINGS: usize = 16;
/// The first bytes of `rb_thread_t` (about 500), among which the address of its stack is (`sched.context_stack`). Beyond it lie others.
const THREAD_BYTES: usize = 384;

/// The memory for one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MnStack {
    /// The VM stack.
    pub vm: Range<Address>,
    /// The machine stack.
    pub machine: Range<Address>,
    /// The slot of the Thread object that has it; `None` if its thread has ended.
    pub thread: Option<u32>,
}

/// The stacks that were in use once, ascending; none if no chunk is recognized.
pub(crate) fn find(
    image: &Image<'_>,
    interpreter: &Interpreter,
    classifier: &AddressClassifier<'_>,
) -> Vec<MnStack> {
    let page_size = image.page_size();
    let is_candidate = |word: &u64| {
        let is_page = *word != 0 && word.is_multiple_of(page_size);
        is_page
            && classifier.at(*word) == Place::Private
            && Header::read(image, Address(*word)).is_some()
    };
    let words: HashSet<u64> = interpreter.variable_words(image).map(|(_, word)| word).collect();
    let mut words: Vec<u64> = words.into_iter().filter(is_candidate).collect();
    words.sort_unstable();
    words.truncate(MAX_CANDIDATES);
    let (mut known, mut chunks) = (HashSet::new(), Vec::new());
    for word in words {
        let mut at = word;
        while known.len() < MAX_CHUNKS && known.insert(at) && is_candidate(&at) {
            // The only stack of a chunk, and its footer with it, may be gone.
            chunks.extend(Chunk::read(image, Address(at)));
            // The chunk before this one.
            at = image.read_u64(Address(at)).unwrap_or_default();
        }
    }
    let stacks = chunks.iter().flat_map(|chunk| chunk.stacks(image));
    let mut stacks: Vec<MnStack> = stacks.take(MAX_STACKS).collect();
    stacks.sort_by_key(|stack| stack.vm.start);
    // Chunks that overlap are none.
    stacks.dedup_by(|next, last| next.vm.start < last.machine.end);
    stacks
}

/// Finds the thread of each stack. A thread that has ended, or is not in a forked process, has no VM stack.
pub(crate) fn find_threads(image: &Image<'_>, stacks: &mut [MnStack], threads: &[VmStack]) {
    let by_stack = stacks.iter().enumerate();
    let by_stack: HashMap<u64, usize> =
        by_stack.map(|(index, stack)| (stack.machine.start.0, index)).collect();
    if by_stack.is_empty() {
        return;
    }
    let mut bytes = vec![0; THREAD_BYTES];
    for thread in threads {
        let read = image.read(thread.structure, &mut bytes);
        let stack = words(&bytes[..read]).find_map(|word| by_stack.get(&word));
        if let Some(&index) = stack {
            stacks[index].thread = Some(thread.thread);
        }
    }
}

/// The numbers of a chunk.
struct Header {
    /// The offset of the first stack.
    offset: u64,
    count: u64,
    /// The number of stacks that were in use once.
    used: u64,
}

impl Header {
    fn read(image: &Image<'_>, at: Address) -> Option<Self> {
        NUMBERS_OFFSETS.into_iter().find_map(|offset| Self::read_at(image, at, offset))
    }

    fn read_at(image: &Image<'_>, at: Address, offset: u64) -> Option<Self> {
        let numbers = image.read_u64(at.offset(offset)).ok()?;
        let number = |index: u32| numbers >> (16 * index) & 0xffff;
        let [start_page, count, unused, free] = [0, 1, 2, 3].map(number);
        let used = count.checked_sub(unused).filter(|used| *used > 0 && free <= *used)?;
        let pages = (offset + 8 + 2 * count).div_ceil(image.page_size());
        let fits = start_page > 0 && start_page.abs_diff(pages) <= 1;
        fits.then_some(Self { offset: start_page * image.page_size(), count, used })
    }
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
}

impl Chunk {
    fn read(image: &Image<'_>, at: Address) -> Option<Self> {
        let page_size = image.page_size();
        let Header { offset, count, used } = Header::read(image, at)?;
        let first = at.offset(offset);
        let guard = writable_end(image, first);
        let machine = guard.offset(page_size);
        let next_guard = writable_end(image, machine);
        let end = match used {
            // The next VM stack may be writable already, so the end is where the footer is.
            1 => {
                let pages =
                    (next_guard.0.saturating_sub(machine.0)).min(MAX_STACK_BYTES) / page_size;
                let mut ends = (1..=pages).map(|page| machine.offset(page * page_size));
                ends.find(|end| {
                    let footer = Address(end.0 - FOOTER_BYTES);
                    image.read_address(footer) == Ok(at)
                        && image.read_u64(footer.offset(8)) == Ok(0)
                })?
            }
            _ => first.offset(next_guard.0.checked_sub(guard.0)?),
        };
        let (vm_bytes, stride) = (guard.0.checked_sub(first.0)?, end.0.checked_sub(first.0)?);
        let most = (CHUNK_BYTES - page_size).saturating_sub(offset) / stride.max(1);
        let fits = vm_bytes > 0 && end > machine && count.abs_diff(most) <= 1;
        fits.then_some(Self { first, vm_bytes, stride, used })
    }

    /// The stacks, up to the first that is not mapped as it should be.
    fn stacks<'a>(&'a self, image: &'a Image<'_>) -> impl Iterator<Item = MnStack> + 'a {
        let page_size = image.page_size();
        let stack = move |index: u64| {
            let start = self.first.offset(index * self.stride);
            let vm = start..start.offset(self.vm_bytes);
            let machine = vm.end.offset(page_size)..start.offset(self.stride);
            MnStack { vm, machine, thread: None }
        };
        let is_writable = |range: &Range<Address>| writable_end(image, range.start) >= range.end;
        let is_right = move |stack: &MnStack| is_writable(&stack.vm) && is_writable(&stack.machine);
        (0..self.used).map(stack).take_while(is_right)
    }
}

/// The end of the writable memory at an address, across some adjoining mappings; the address itself if it is not writable.
fn writable_end(image: &Image<'_>, from: Address) -> Address {
    let mut at = from;
    for _ in 0..MAX_MAPPINGS {
        let mapping = image.state.mappings.find(at);
        match mapping.filter(|it| it.readable && it.writable && it.is_private_anonymous()) {
            Some(mapping) => at = mapping.range.end,
            None => break,
        }
    }
    at
}
