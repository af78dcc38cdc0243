//! The Thread and Fiber objects that stacks and thread-local variables belong to.

use std::collections::{HashMap, HashSet};
use std::ops::{Range, RangeInclusive};

use allocator::HeapMap;
use image::{Image, Memory};
use linux::{Address, Thread, length};
use ruby::{CodePaths, DataType, Frame, ObjectSpace, References, SlotType};

use crate::interpreter::Gem;

use crate::ownership::address_index::AddressIndex;

/// The bytes of a structure that are searched. A thread's structure has about 1 KiB; the stack of a fiber is a block,
/// too.
const MAX_STRUCTURE_BYTES: u64 = 4 << 10;
/// The number of blocks that a structure refers to and that are searched.
const MAX_PARTS: usize = 32;
/// The sizes of alternate signal stacks (`rb_sigaltstack_size` in signal.c): 16 KiB, or more if a frame of a signal handler needs it.
const ALTERNATE_STACK_BYTES: RangeInclusive<u64> = 16 << 10..=80 << 10;

/// The objects that stacks belong to.
#[derive(Debug, Default)]
pub(crate) struct StackOwners {
    /// Thread objects by the address of their native thread's descriptor; `None` if several objects refer to it, since the
    /// C library gives the descriptor of an ended thread to a new one.
    threads: HashMap<Address, Option<u32>>,
    /// Fiber objects by the address of their stack, and Thread objects if native threads run theirs in turn.
    by_stack: HashMap<Address, u32>,
    /// The parts of the stacks of fibers that no call used when they stopped, by the address of the stack.
    unused: HashMap<Address, Vec<Range<Address>>>,
    /// The names that the program gave to threads, by slot.
    pub(crate) names: HashMap<u32, String>,
    /// The alternate signal stacks of threads. Only the handler of a stack overflow writes there, so their words are those of earlier
    /// owners.
    pub(crate) alternate_stacks: Vec<Range<Address>>,
}

impl StackOwners {
    /// Finds the object of each native thread and of each fiber's stack.
    ///
    /// `rb_thread_t`, or the `rb_native_thread` that it refers to (from 3.2 on), has the `pthread_t`: the address of the
    /// descriptor. `rb_fiber_t` has the base of its stack.
    pub(crate) fn find(
        image: &Image<'_>,
        heap: &HeapMap,
        space: &ObjectSpace,
        references: &References,
        addresses: &AddressIndex<'_>,
    ) -> Self {
        let reader = StructureReader { image, heap, addresses };
        let descriptors: HashSet<_> =
            image.state.threads.iter().map(Thread::descriptor_base).collect();
        let (mut owners, mut alternate_stacks) = (Self::default(), Vec::new());
        let kernel_names: HashSet<&[u8]> =
            image.state.process.thread_names.iter().map(String::as_bytes).collect();
        let of_threads = space.mn_stacks.iter();
        let of_threads = of_threads.filter_map(|it| Some((it.machine.start, it.thread?)));
        owners.by_stack.extend(of_threads);
        for (slot, data_type) in objects(space) {
            let structures = references.of(slot).filter_map(|(at, _)| reader.block_at(at));
            for structure in structures {
                let words = reader.words(structure);
                if data_type.is_fiber() {
                    // `stack.base`, which is NULL after the fiber has ended. Other words still point into the stack then.
                    let is_base = |word: &&u64| {
                        let stack = stack_at(&space.fiber_stacks, Address(**word));
                        stack.is_some_and(|stack| stack.start.0 == **word)
                    };
                    let base = words.iter().find(is_base);
                    owners.by_stack.extend(base.map(|&base| (Address(base), slot)));
                    let stack = base.and_then(|&it| stack_at(&space.fiber_stacks, Address(it)));
                    let unused = |stack: &Range<Address>| {
                        (stack.start, unused_of_fiber(image, stack, &words))
                    };
                    owners.unused.extend(stack.map(unused));
                    continue;
                }
                let parts = words.iter().filter_map(|&word| reader.block_at(Address(word)));
                let parts: Vec<_> = parts.take(MAX_PARTS).map(|part| reader.words(part)).collect();
                let alternate_stack = |&word: &u64| reader.alternate_stack(Address(word));
                // `rb_native_thread` refers back to the thread that it runs (`running_thread`, from 3.3 on), also after that has ended. It is
                // the only part as small that does.
                let at = reader.start(structure);
                let own = parts.iter().filter(|part| 2 * part.len() < words.len());
                let own = own.filter(|part| at.is_some_and(|at| part.contains(&at.0)));
                owners.alternate_stacks.extend(own.flatten().find_map(alternate_stack));
                let native = [words.clone()].into_iter().chain(parts).find_map(|words| {
                    let mut addresses = words.iter().copied().map(Address);
                    let descriptor = addresses.find(|it| descriptors.contains(it))?;
                    Some((descriptor, words))
                });
                let Some((descriptor, native)) = native else { continue };
                alternate_stacks
                    .extend(native.iter().find_map(alternate_stack).map(|it| (descriptor, it)));
                let threads = owners.threads.entry(descriptor);
                threads.and_modify(|known| *known = None).or_insert(Some(slot));
                let strings = words.iter().filter_map(|&word| space.slot_at(Address(word)));
                let strings =
                    strings.filter(|&it| space.slots[it as usize].kind() == SlotType::STRING);
                let names = strings.filter_map(|string| space.text(image, string));
                let is_known = |name: &String| kernel_names.contains(kernel_name(name));
                owners.names.extend(names.into_iter().find(is_known).map(|name| (slot, name)));
            }
        }
        // The object of an ended thread may still point to the stack, which is another's by now.
        let is_sure = |descriptor: &Address| owners.thread(*descriptor).is_some();
        alternate_stacks.retain(|(descriptor, _)| is_sure(descriptor));
        owners.alternate_stacks.extend(alternate_stacks.into_iter().map(|(_, stack)| stack));
        owners
    }

    /// The Thread object of the native thread with this descriptor.
    pub(crate) fn thread(&self, descriptor: Address) -> Option<u32> {
        self.threads.get(&descriptor).copied().flatten()
    }

    /// The parts of the stack at `start` that no call of its Fiber used when that stopped.
    pub(crate) fn unused(&self, start: Address) -> &[Range<Address>] {
        self.unused.get(&start).map_or(&[], Vec::as_slice)
    }

    /// The Fiber or Thread object with the stack that begins at `start`.
    pub(crate) fn of_stack(&self, start: Address) -> Option<u32> {
        self.by_stack.get(&start).copied()
    }
}

/// The current method of each thread, by the slot of the Thread object: the innermost one of the application, or else of Ruby
/// code, or else the innermost.
pub(crate) fn current_frames(
    image: &Image<'_>,
    space: &ObjectSpace,
    paths: &CodePaths,
) -> HashMap<u32, Frame> {
    let mut known: HashMap<String, bool> = HashMap::new();
    let mut is_application = |path: &str| {
        known.get(path).copied().unwrap_or_else(|| {
            let is_it = Gem::of(Some(path)).is_application();
            known.insert(path.to_owned(), is_it);
            is_it
        })
    };
    let frames = ruby::map_backtraces(image, space, paths, |thread, frames| {
        let mut current: Option<Frame> = None;
        for frame in frames {
            if frame.path.as_deref().is_some_and(&mut is_application) {
                return Some((thread, frame));
            }
            if current.as_ref().is_none_or(|it| it.path.is_none() && frame.path.is_some()) {
                current = Some(frame);
            }
        }
        Some((thread, current?))
    });
    frames.into_iter().collect()
}

/// The part of a thread's name that the kernel keeps. A name counts only if the kernel knows it: the structure of a thread
/// refers to other strings, such as the value of an ended thread, which are data of the program.
fn kernel_name(name: &str) -> &[u8] {
    const MAX_KERNEL_NAME: usize = 15;
    &name.as_bytes()[..name.len().min(MAX_KERNEL_NAME)]
}

/// The threads and fibers.
fn objects(space: &ObjectSpace) -> impl Iterator<Item = (u32, &DataType)> {
    space.data_objects.iter().filter_map(|(slot, data_type)| {
        let data_type = space.data_types.get(data_type? as usize)?;
        (data_type.is_thread() || data_type.is_fiber()).then_some((slot, data_type))
    })
}

/// The parts of a fiber's stack that no call used when the fiber stopped. `words` are those of its structure. Of those that point
/// into the stack, the lowest one but the base is `context.stack_pointer`: the others are places of callers, and of the VM stack.
/// The context begins with the VM stack, its size in words, and the innermost frame, whose second word is the end of the values.
fn unused_of_fiber(
    image: &Image<'_>,
    stack: &Range<Address>,
    words: &[u64],
) -> Vec<Range<Address>> {
    let inside = stack.start.offset(1)..stack.end;
    let floor = words.iter().copied().map(Address).filter(|at| inside.contains(at)).min();
    let of_vm = words.windows(3).find_map(|words| {
        let (start, size, frame) = (Address(words[0]), words[1], Address(words[2]));
        let is_vm_stack = stack.contains(&start)
            && size.checked_mul(8).is_some_and(|bytes| bytes <= stack.end - start)
            && (start..start.offset(8 * size)).contains(&frame);
        let top = is_vm_stack.then(|| image.read_address(frame.offset(8)).ok()).flatten()?;
        (start..=frame).contains(&top).then_some(top..frame)
    });
    floor.map(|floor| stack.start..floor).into_iter().chain(of_vm).collect()
}

/// The stack that `at` lies in, or ends at: stacks grow down from their base.
fn stack_at(stacks: &[Range<Address>], at: Address) -> Option<&Range<Address>> {
    let after = stacks.partition_point(|stack| stack.end < at);
    stacks.get(after).filter(|stack| stack.start <= at)
}

struct StructureReader<'a> {
    image: &'a Image<'a>,
    heap: &'a HeapMap,
    addresses: &'a AddressIndex<'a>,
}

impl StructureReader<'_> {
    /// The number of the block that begins at `at`, unless it is too large for a structure.
    fn block_at(&self, at: Address) -> Option<u32> {
        let number = self.addresses.block_at(at)?;
        let block = self.heap.block(number as usize)?;
        (block.bytes() <= MAX_STRUCTURE_BYTES).then_some(number)
    }

    /// The block at `at`, if it has the size of an alternate signal stack. No other block to whose beginning the structure of a native
    /// thread points is as large: `rb_vm_t` has less than 16 KiB.
    fn alternate_stack(&self, at: Address) -> Option<Range<Address>> {
        let block = self.heap.block(self.addresses.block_at(at)? as usize)?;
        let usable = self.heap.header.usable(block);
        let is_stack = usable.start == at && ALTERNATE_STACK_BYTES.contains(&length(&usable));
        is_stack.then_some(usable)
    }

    /// The address of the memory of a block.
    fn start(&self, block: u32) -> Option<Address> {
        Some(self.heap.header.usable(self.heap.block(block as usize)?).start)
    }

    fn words(&self, block: u32) -> Vec<u64> {
        let Some(block) = self.heap.block(block as usize) else { return Vec::new() };
        let usable = self.heap.header.usable(block);
        let mut bytes = vec![0; length(&usable) as usize];
        if self.image.read_exact(usable.start, &mut bytes).is_err() {
            return Vec::new();
        }
        bytes
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?)))
            .collect()
    }
}
