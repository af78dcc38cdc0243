//! Structures of the interpreter that are known by their layout, and the blocks that they are in.

mod registered;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use allocator::HeapMap;
use image::elf::Module;
use image::{Image, Memory};
use linux::{Address, length};
use ruby::{
    DataType, EndProc, EventHook, GcRecords, MAX_SPECIAL, MessageList, ObjectSpace, RactorQueue,
    References, SlotType,
};

use crate::ownership::address_index::{AddressIndex, Referent};
use crate::ownership::bits::Bits;
use crate::ownership::graph::PointerGraph;

pub(crate) use registered::Registered;

/// Bytes of variables that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// The part of the VM's structure (`rb_vm_t`) that has the handlers of signals, at most.
const MAX_VM_BYTES: u64 = 4 << 10;

/// Fewer words than the list of handlers has: `RUBY_NSIG` is 65 on Linux.
const MIN_SIGNALS: usize = 60;

/// Lists of the interpreter whose entries retain objects. Nothing else refers to the entries, so words elsewhere that have their
/// addresses are old.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// The blocks of `at_exit` and the slots that they refer to.
    pub(crate) at_exit: Vec<(u32, u32)>,
    /// The hooks of TracePoints that are enabled, and the slots of these.
    pub(crate) trace_points: Vec<(u32, u32)>,
    /// The addresses that C code registered.
    pub(crate) registered: Registered,
    /// The procs that handle signals, and the Strings with code for that.
    pub(crate) signal_handlers: Vec<u32>,
    /// The Hash with the counters of code coverage.
    pub(crate) coverage: Vec<u32>,
    /// The blocks with the messages that Ractors have not received yet.
    pub(crate) ractor_queues: Vec<u32>,
    /// The slots of Ractors, and the blocks with the messages in their lists and in those of their ports (from 4.0 on), ascending.
    pub(crate) messages: Vec<(u32, u32)>,
    /// The block with the records of GC::Profiler.
    pub(crate) gc_records: Option<u32>,
    /// The Ractors that run.
    pub(crate) ractors: RunningRactors,
    /// The slots of Ractors, and the blocks with their structures, ascending. From 4.1 on others seem to own these: those of Ractors that
    /// have ended are in a list, to which a variable refers.
    pub(crate) ractor_structures: Vec<(u32, u32)>,
    /// The slots of the Thread objects whose threads have ended.
    pub(crate) ended_threads: HashSet<u32>,
    /// The block with the entries of the table of traced objects.
    pub(crate) traced_objects: Option<u32>,
    /// The blocks of `at_exit`, of hooks and of registered addresses.
    entries: Bits,
}

impl Lists {
    pub(crate) fn find(
        image: &Image<'_>,
        modules: &[Module],
        heap: &HeapMap,
        space: &ObjectSpace,
        addresses: &AddressIndex<'_>,
        graph: &PointerGraph,
    ) -> Self {
        let finder = Finder { image, heap, space, addresses, graph };
        let at_exit = finder.at_exit(space.interpreter.module_among(modules));
        let mut entries = Bits::new(heap.block_count());
        let trace_points = finder.trace_points();
        let registered = finder.registered(modules);
        let hooks = at_exit.iter().chain(&trace_points).map(|&(block, _)| block);
        for block in hooks.chain(registered.entries.iter().copied()) {
            entries.insert(block);
        }
        let ractors = finder.running_ractors();
        let of_ended_ractors = finder.threads_of_ended_ractors(&ractors);
        Self {
            at_exit,
            trace_points,
            registered,
            signal_handlers: finder.signal_handlers(),
            coverage: finder.coverage(),
            ractor_queues: finder
                .structures_of(DataType::is_ractor)
                .flat_map(|it| finder.ractor_queues(it))
                .collect(),
            messages: finder.messages_in_lists(),
            gc_records: finder.gc_records(),
            ractors,
            ractor_structures: finder.ractor_structures(),
            ended_threads: space.ended_threads.iter().copied().chain(of_ended_ractors).collect(),
            traced_objects: ruby::traced_objects(image, space, modules)
                .and_then(|at| addresses.block_at(at)),
            entries,
        }
    }

    /// Returns true for the blocks of these lists.
    pub(crate) fn has_entry(&self, block: u32) -> bool {
        self.entries.contains(block)
    }
}

/// The Ractors that run.
#[derive(Debug, Default)]
pub(crate) struct RunningRactors {
    /// The slot of the main one; `None` if it was not found.
    pub(crate) main: Option<u32>,
    /// The slots of the others.
    pub(crate) others: Vec<u32>,
    /// The structures of all.
    pub(crate) structures: HashSet<u32>,
}

/// A type of T_DATA objects.
type IsType = fn(&DataType) -> bool;

struct Finder<'a> {
    image: &'a Image<'a>,
    heap: &'a HeapMap,
    space: &'a ObjectSpace,
    addresses: &'a AddressIndex<'a>,
    graph: &'a PointerGraph,
}

impl Finder<'_> {
    /// The entries of `at_exit`, to which a variable of the interpreter refers. A list counts only as a whole: each entry must
    /// have a function, and one must be the interpreter's with a Proc.
    fn at_exit(&self, interpreter: Option<&Module>) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        let Some(interpreter) = interpreter else { return found };
        let mut known = Bits::new(self.heap.block_count());
        // Words of variables that lead to no list must not make the search endless.
        let mut steps = 2 * self.heap.block_count();
        for range in &interpreter.variables {
            self.each_word(range, |word| {
                let list = self.end_procs(word, &interpreter.range, &known, &mut steps);
                for (number, slot) in list.into_iter().flatten() {
                    known.insert(number);
                    found.push((number, slot));
                }
            });
        }
        found
    }

    /// The entries from `first` on that are not known; `None` if no list begins there. Takes each entry from `steps`.
    fn end_procs(
        &self,
        first: u64,
        interpreter: &Range<Address>,
        known: &Bits,
        steps: &mut usize,
    ) -> Option<Vec<(u32, u32)>> {
        let (mut list, mut visited, mut has_proc) = (Vec::new(), HashSet::new(), false);
        let mut next = first;
        while next != 0 {
            let (number, words) = self.block_with(next, EndProc::BYTES)?;
            let EndProc { function, argument, next: after } = EndProc::from_words(words);
            *steps = steps.checked_sub(1)?;
            if known.contains(number) {
                return Some(list);
            }
            if !visited.insert(number) || !self.is_code(function) {
                return None;
            }
            match self.addresses.at(Address(argument)) {
                Referent::Slot(slot) => {
                    let is_own = interpreter.contains(&function);
                    has_proc |= is_own && self.is_of(slot, DataType::is_proc);
                    list.push((number, slot));
                }
                _ if argument.is_multiple_of(8) && argument > MAX_SPECIAL => return None,
                _ => {}
            }
            next = after.0;
        }
        has_proc.then_some(list)
    }

    /// The TracePoints to which hooks of events refer.
    fn trace_points(&self) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        if self.objects_of(DataType::is_trace_point).next().is_none() {
            return found;
        }
        for (number, block) in self.heap.all_blocks() {
            let usable = self.heap.header.usable(block);
            let node = number as u32;
            if !block.state().is_in_use() || !self.heap.fits(EventHook::BYTES, length(&usable)) {
                continue;
            }
            let slots = self.graph.slots(node).iter().map(|edge| edge.to());
            let trace_point =
                slots.into_iter().find(|&slot| self.is_of(slot, DataType::is_trace_point));
            let Some((slot, address)) =
                trace_point.and_then(|it| Some((it, self.space.slot_address(it as usize)?)))
            else {
                continue;
            };
            let words = self.block_with(usable.start.0, EventHook::BYTES).map(|it| it.1);
            let Some(hook) = words.and_then(EventHook::from_words) else { continue };
            if self.is_code(hook.function) && hook.argument == address.0 {
                found.push((node, slot));
            }
        }
        found
    }

    /// The procs to which the structure of the VM itself refers, and the Strings in its list of handlers (`trap_list` of `rb_vm_t`): that
    /// has a word for each signal. The name of the program is a String elsewhere.
    fn signal_handlers(&self) -> Vec<u32> {
        let is_proc = |slot: &u32| self.is_of(*slot, DataType::is_proc);
        let mut found: Vec<u32> = self.objects_of_vm().filter(is_proc).collect();
        let is_string = |slot: &u32| {
            self.space.slots.get(*slot as usize).is_some_and(|it| it.kind() == SlotType::STRING)
        };
        for words in self.words_of_vm() {
            let handlers: Vec<Option<Option<u32>>> = words
                .iter()
                .map(|&word| match self.addresses.at(Address(word)) {
                    _ if word <= MAX_SPECIAL => Some(None),
                    Referent::Slot(it) if is_proc(&it) || is_string(&it) => Some(Some(it)),
                    _ => None,
                })
                .collect();
            let lists = handlers.split(Option::is_none).filter(|list| list.len() >= MIN_SIGNALS);
            found.extend(lists.flatten().copied().flatten().flatten().filter(is_string));
        }
        found
    }

    /// The words of the structure of the VM, which is a block, or a variable from 4.1 on.
    fn words_of_vm(&self) -> Vec<Vec<u64>> {
        let blocks = self.structures_of(DataType::is_vm);
        let ranges = blocks.filter_map(|number| {
            let usable = self.heap.header.usable(self.heap.block(number as usize)?);
            Some((usable.start, length(&usable).min(MAX_VM_BYTES)))
        });
        let variable = ruby::object_in_variables(self.image, self.space, DataType::is_vm);
        let variable = variable.map(|(_, vm)| (vm, MAX_VM_BYTES));
        ranges.chain(variable).map(|(start, bytes)| self.words(start, bytes)).collect()
    }

    /// The Hash with the counters of code coverage to which the structure of the VM refers (`coverages` of `rb_vm_t`). It is hidden, and so are
    /// the Arrays that are its values. Its keys are the paths of files.
    fn coverage(&self) -> Vec<u32> {
        let kind = |slot: u32| Some(self.space.slots.get(slot as usize)?.kind());
        let is_coverage = |&slot: &u32| {
            let entries = self.entries_of_hash(slot);
            let arrays = entries.iter().filter(|&&to| self.space.is_hidden_array(to)).count();
            let paths = entries.iter().filter(|&&to| kind(to) == Some(SlotType::STRING)).count();
            arrays > 0 && arrays + paths == entries.len() && arrays >= paths
        };
        let hashes = self.objects_of_vm().filter(|&slot| kind(slot) == Some(SlotType::HASH));
        let mut found: Vec<u32> = hashes.filter(is_coverage).collect();
        found.dedup();
        found
    }

    /// The keys and values of a large Hash: its table is a block, which refers to the block with the entries.
    fn entries_of_hash(&self, slot: u32) -> Vec<u32> {
        let tables = self.graph.of_slots.of(slot).iter().filter_map(|edge| self.graph.block(*edge));
        let tables: Vec<u32> = tables.collect();
        let parts = tables.iter().flat_map(|&table| self.graph.edges(table));
        let parts = parts.filter_map(|edge| self.graph.block(*edge));
        let blocks: Vec<u32> = tables.iter().copied().chain(parts).collect();
        blocks.into_iter().flat_map(|it| self.graph.slots(it)).map(|edge| edge.to()).collect()
    }

    /// The objects to which the structure of the VM itself refers.
    fn objects_of_vm(&self) -> impl Iterator<Item = u32> + '_ {
        let in_memory = self.structures_of(DataType::is_vm).flat_map(|it| self.graph.slots(it));
        let in_memory = in_memory.map(|edge| edge.to());
        let variable = ruby::object_in_variables(self.image, self.space, DataType::is_vm);
        let words = variable.map_or(Vec::new(), |(_, vm)| self.words(vm, MAX_VM_BYTES));
        let in_variable =
            words.into_iter().filter_map(|word| match self.addresses.at(Address(word)) {
                Referent::Slot(slot) => Some(slot),
                _ => None,
            });
        in_memory.chain(in_variable)
    }

    /// The Ractors that run, each of which refers to the next one in the list of the VM. The main one is the first to whose beginning the
    /// structure of the VM refers (`main_ractor` of `rb_vm_t`). From 4.1 on both structures are variables.
    fn running_ractors(&self) -> RunningRactors {
        let mut objects = HashMap::new();
        for slot in self.objects_of(DataType::is_ractor) {
            for block in self.graph.of_slots.of(slot).iter().filter_map(|it| self.graph.block(*it))
            {
                objects.insert(block, slot);
            }
        }
        let vms: Vec<u32> = self.structures_of(DataType::is_vm).collect();
        let of_vm = vms.iter().flat_map(|&vm| self.graph.edges(vm));
        let mut exact = of_vm.clone().filter(|edge| !edge.is_uncertain());
        let variable = ruby::object_in_variables(self.image, self.space, DataType::is_ractor);
        let main = exact.find_map(|edge| objects.get(&edge.to())).copied();
        let main = main.or(variable.map(|(slot, _)| slot));
        let mut found = RunningRactors { main, ..RunningRactors::default() };
        let mut waiting: Vec<u32> = of_vm.map(|edge| edge.to()).collect();
        if let Some((_, structure)) = variable {
            let words = self.words(structure, RactorQueue::MAX_RACTOR_BYTES);
            waiting.extend(words.into_iter().filter_map(|word| self.block_around(Address(word))));
        }
        while let Some(structure) = waiting.pop() {
            let Some(&slot) = objects.get(&structure) else { continue };
            if found.structures.insert(structure) {
                found.others.extend(Some(slot).filter(|_| Some(slot) != main));
                waiting.extend(self.graph.edges(structure).iter().map(|edge| edge.to()));
            }
        }
        found
    }

    fn ractor_structures(&self) -> Vec<(u32, u32)> {
        let ractors = self.objects_of(DataType::is_ractor);
        let structures = |slot: u32| self.graph.of_slots.of(slot).iter().copied();
        let mut found: Vec<(u32, u32)> = ractors
            .flat_map(|slot| structures(slot).map(move |edge| (slot, edge)))
            .filter_map(|(slot, edge)| Some((slot, self.graph.block(edge)?)))
            .collect();
        found.sort_unstable();
        found
    }

    /// The threads whose list is in the structure of a Ractor that has ended.
    fn threads_of_ended_ractors(&self, running: &RunningRactors) -> Vec<u32> {
        let ractors: HashSet<u32> = self.structures_of(DataType::is_ractor).collect();
        let is_of_ended = |list: Address| {
            self.block_around(list).is_some_and(|number| {
                ractors.contains(&number) && !running.structures.contains(&number)
            })
        };
        let threads = self.space.stackless_threads.iter();
        let of_ended = threads.filter(|(_, list)| running.main.is_some() && is_of_ended(*list));
        of_ended.map(|(slot, _)| *slot).collect()
    }

    /// The blocks with messages to which the structure of a Ractor refers.
    fn ractor_queues(&self, structure: u32) -> Vec<u32> {
        let Some(block) = self.heap.block(structure as usize) else { return Vec::new() };
        let usable = self.heap.header.usable(block);
        let words = self.words(usable.start, length(&usable).min(RactorQueue::MAX_RACTOR_BYTES));
        let queues = words.windows(RactorQueue::WORDS);
        queues.filter_map(|words| self.messages(words)).collect()
    }

    /// The block with the messages of the queue with these words.
    fn messages(&self, words: &[u64]) -> Option<u32> {
        let queue = RactorQueue::from_words(words.try_into().ok()?)?;
        let number = self.addresses.block_at(queue.messages)?;
        queue.usable_bytes().contains(&self.heap.usable_bytes(number)).then_some(number)
    }

    /// The messages in the lists of Ractors and their ports.
    fn messages_in_lists(&self) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        if !self.space.interpreter.has_lists_of_messages() {
            return found;
        }
        // Words that lead to no list must not make the search endless.
        let mut steps = 2 * self.heap.block_count();
        let main = ruby::object_in_variables(self.image, self.space, DataType::is_ractor);
        for slot in self.objects_of(DataType::is_ractor) {
            let structures: Vec<u32> = self.blocks_of_ractor(slot, main).collect();
            let parts = structures.iter().flat_map(|&it| self.blocks_behind(it));
            let tables = parts.filter(|it| self.graph.hash_tables.binary_search(it).is_ok());
            let of_ports = tables.flat_map(|it| self.blocks_behind(it));
            let mut queues: Vec<u32> = of_ports.chain(structures.iter().copied()).collect();
            queues.sort_unstable();
            queues.dedup();
            let messages = queues.into_iter().filter_map(|it| self.messages_of(it, &mut steps));
            found.extend(messages.flatten().map(|message| (slot, message)));
        }
        found.sort_unstable();
        found
    }

    /// The blocks to which the structure of a Ractor refers. From 4.1 on that of the main one is a variable.
    fn blocks_of_ractor(
        &self,
        slot: u32,
        main: Option<(u32, Address)>,
    ) -> impl Iterator<Item = u32> + '_ {
        let structures = self.graph.of_slots.of(slot).iter();
        let behind = structures.filter_map(|it| self.graph.block(*it));
        let behind = behind.flat_map(|it| self.blocks_behind(it));
        let words = match main {
            Some((main, at)) if main == slot => self.words(at, RactorQueue::MAX_RACTOR_BYTES),
            _ => Vec::new(),
        };
        behind.chain(words.into_iter().filter_map(|it| self.addresses.block_at(Address(it))))
    }

    fn blocks_behind(&self, block: u32) -> impl Iterator<Item = u32> + '_ {
        self.graph.edges(block).iter().filter_map(|edge| self.graph.block(*edge))
    }

    /// The messages in the list that begins in this block; `None` if it is no list. Takes each message from `steps`.
    fn messages_of(&self, queue: u32, steps: &mut usize) -> Option<Vec<u32>> {
        let usable = self.heap.header.usable(self.heap.block(queue as usize)?);
        if !self.heap.fits(MessageList::BYTES, length(&usable)) {
            return None;
        }
        let mut messages = Vec::new();
        let head = usable.start;
        let mut before = head;
        loop {
            let words = self.words(before, MessageList::NODE_BYTES);
            let next = Address(*words.first()?);
            let previous = *self.words(next, MessageList::NODE_BYTES).get(1)?;
            if previous != before.0 {
                return None;
            }
            if next == head {
                return Some(messages);
            }
            *steps = steps.checked_sub(1)?;
            messages.push(self.block_around(next)?);
            before = next;
        }
    }

    /// The block with the records of GC::Profiler, to which the object space refers.
    fn gc_records(&self) -> Option<u32> {
        self.words_of_collector()?.windows(GcRecords::WORDS).find_map(|words| {
            let found = GcRecords::from_words(words.try_into().ok()?)?;
            let number = self.addresses.block_at(found.records)?;
            let is_within =
                found.current.0 == 0 || self.block_around(found.current) == Some(number);
            let bytes = self.heap.usable_bytes(number);
            (is_within && found.usable_bytes().contains(&bytes)).then_some(number)
        })
    }

    /// The words of the object space.
    fn words_of_collector(&self) -> Option<Vec<u64>> {
        let space = self.heap.block_around(self.space.collector_address?)?;
        let usable = self.heap.header.usable(space);
        Some(self.words(usable.start, length(&usable).min(GcRecords::MAX_SPACE_BYTES)))
    }

    /// The objects of this type.
    fn objects_of(&self, is_type: IsType) -> impl Iterator<Item = u32> + '_ {
        let is_it = move |data_type: u32| {
            self.space.data_types.get(data_type as usize).is_some_and(is_type)
        };
        let objects = self.space.data_objects.iter();
        objects.filter(move |(_, data_type)| data_type.is_some_and(is_it)).map(|(slot, _)| slot)
    }

    /// The structures that objects of this type wrap.
    fn structures_of(&self, is_type: IsType) -> impl Iterator<Item = u32> + '_ {
        let edges = self.objects_of(is_type).flat_map(|slot| self.graph.of_slots.of(slot));
        edges.filter_map(|edge| self.graph.block(*edge))
    }

    fn is_of(&self, slot: u32, is_type: IsType) -> bool {
        self.space.data_type_of(slot).is_some_and(is_type)
    }

    /// The block that has this address.
    fn block_around(&self, at: Address) -> Option<u32> {
        match self.addresses.at(at) {
            Referent::Block { number, .. } => Some(number),
            _ => None,
        }
    }

    /// The block that begins at `at`, and its first words, if it has the size of a structure of these bytes.
    fn block_with(&self, at: u64, bytes: u64) -> Option<(u32, [u64; 3])> {
        let number = self.addresses.block_at(Address(at))?;
        let usable = self.heap.header.usable(self.heap.block(number as usize)?);
        if !self.heap.fits(bytes, length(&usable)) {
            return None;
        }
        Some((number, self.words(usable.start, 24).try_into().ok()?))
    }

    fn is_code(&self, at: Address) -> bool {
        let mapping = self.image.state.mappings.find(at);
        mapping.is_some_and(|mapping| mapping.executable)
    }

    /// The words from `at` on; empty if they cannot be read.
    fn words(&self, at: Address, bytes: u64) -> Vec<u64> {
        let mut buffer = vec![0; bytes as usize];
        match self.image.read_exact(at, &mut buffer) {
            Ok(()) => words_of(&buffer).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Calls `each` with the words of a range that can be read.
    fn each_word(&self, range: &Range<Address>, mut each: impl FnMut(u64)) {
        let mut buffer = vec![0; READ_BYTES];
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(READ_BYTES as u64);
            let read = self.image.read(at, &mut buffer[..bytes as usize]);
            words_of(&buffer[..read]).for_each(&mut each);
            at = at.offset(bytes);
        }
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

/// The blocks with the execution contexts and VM stacks of threads.
#[derive(Debug, Default)]
pub(crate) struct OfThreads {
    /// By the structure of the thread, ascending.
    pub(crate) structures: Vec<(u32, u32)>,
    /// By the slot of the Thread object, if its structure is a variable of the interpreter: that of the main thread is, from 4.1 on.
    pub(crate) slots: Vec<(u32, u32)>,
}

impl OfThreads {
    pub(crate) fn find(space: &ObjectSpace, addresses: &AddressIndex<'_>) -> Self {
        let block_at = |address: Address| match addresses.at(address) {
            Referent::Block { number, .. } => Some(number),
            _ => None,
        };
        let mut found = Self::default();
        for stack in &space.vm_stacks {
            for block in [stack.context, stack.start].into_iter().filter_map(block_at) {
                match block_at(stack.structure) {
                    Some(structure) => found.structures.push((structure, block)),
                    None => found.slots.push((stack.thread, block)),
                }
            }
        }
        found.structures.sort_unstable();
        found.slots.sort_unstable();
        found
    }

    /// All of these blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.structures.iter().chain(&self.slots).map(|it| it.1)
    }
}

/// The blocks that sets of symbols and deduplicated strings refer to.
pub(crate) fn concurrent_sets(
    heap: &HeapMap,
    space: &ObjectSpace,
    references: &References,
    addresses: &AddressIndex<'_>,
) -> Bits {
    let mut blocks = Bits::new(heap.block_count());
    let is_set = |data_type: u32| {
        space.data_types.get(data_type as usize).is_some_and(DataType::is_concurrent_set)
    };
    let sets = space.data_objects.iter().filter(|(_, data_type)| data_type.is_some_and(is_set));
    for block in
        sets.flat_map(|(slot, _)| references.of(slot)).filter_map(|(at, _)| addresses.block_at(at))
    {
        blocks.insert(block);
    }
    blocks
}
