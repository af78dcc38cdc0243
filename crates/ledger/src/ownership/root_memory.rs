//! The memory of roots: the variables of modules and threads, stacks, and registers.

use std::ops::Range;

use image::Image;
use image::elf::Module;
use linux::{Address, Thread, range_at};
use ruby::ObjectSpace;

use crate::ownership::areas::live_stacks;
use crate::ownership::threads::StackOwners;

/// Memory that exists although no pointer leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// The variables of the module with this index.
    Variables(usize),
    /// The thread-local variables of a thread.
    Locals,
    /// The stack of a thread or fiber, and the registers of the thread that runs on it.
    Stacks,
    /// The values on the VM stack of a thread that lies on its stack: the local variables of its methods. Unlike other words there,
    /// all of them are in use.
    Values,
}

impl Root {
    /// Returns true for memory on the stack of a thread or fiber.
    pub(crate) fn is_stack(self) -> bool {
        matches!(self, Self::Stacks | Self::Values)
    }
}

/// The memory of a root.
pub(crate) struct RootSource {
    pub(crate) root: Root,
    pub(crate) ranges: Vec<Range<Address>>,
    pub(crate) registers: Vec<u64>,
    /// The descriptor of its thread.
    descriptor: Option<Address>,
    /// The beginning of its stack.
    stack: Option<Address>,
    /// The slot of its Thread object, if that is known.
    thread: Option<u32>,
}

impl RootSource {
    fn new(root: Root, ranges: Vec<Range<Address>>) -> Self {
        Self { root, ranges, registers: Vec::new(), descriptor: None, stack: None, thread: None }
    }

    /// The Thread or Fiber object that it belongs to.
    pub(crate) fn object(&self, owners: &StackOwners) -> Option<u32> {
        let fiber = self.stack.and_then(|start| owners.of_stack(start));
        self.thread.or(fiber).or_else(|| owners.thread(self.descriptor?))
    }
}

/// The memory of all roots: of the variables of modules first.
pub(crate) fn root_sources(
    image: &Image<'_>,
    modules: &[Module],
    space: &ObjectSpace,
    all_stacks: &[Range<Address>],
    locals: &[Range<Address>],
) -> Vec<RootSource> {
    let threads = &image.state.threads;
    let variables = modules
        .iter()
        .enumerate()
        .map(|(index, module)| RootSource::new(Root::Variables(index), module.variables.clone()));
    let mut descriptors: Vec<Address> = threads.iter().map(Thread::descriptor_base).collect();
    descriptors.sort_unstable();
    let live = live_stacks(image, space, all_stacks, locals);
    let locals = locals.iter().cloned().map(|range| {
        let after = descriptors.partition_point(|&descriptor| descriptor < range.start);
        let descriptor = descriptors.get(after).copied().filter(|it| range.contains(it));
        RootSource { descriptor, ..RootSource::new(Root::Locals, vec![range]) }
    });
    let mut without_stack: Vec<bool> = vec![true; threads.len()];
    live.iter().filter_map(|it| it.thread).for_each(|thread| without_stack[thread] = false);
    let stacks = live.into_iter().map(|live| {
        let thread = live.thread.and_then(|thread| threads.get(thread));
        RootSource {
            registers: thread.map_or_else(Vec::new, |thread| thread.registers.clone()),
            descriptor: thread.map(Thread::descriptor_base),
            stack: Some(live.stack.start),
            ..RootSource::new(Root::Stacks, vec![live.range])
        }
    });
    let others = threads.iter().zip(&without_stack).filter(|(_, is_without)| **is_without);
    let others = others.map(|(thread, _)| RootSource {
        registers: thread.registers.clone(),
        descriptor: Some(thread.descriptor_base()),
        ..RootSource::new(Root::Stacks, Vec::new())
    });
    // Other VM stacks are blocks.
    let on_stacks = space.vm_stacks.iter().filter(|it| range_at(all_stacks, it.start).is_some());
    let values = on_stacks.map(|it| RootSource {
        thread: Some(it.thread),
        ..RootSource::new(Root::Values, vec![it.start..it.unused.start])
    });
    variables.chain(locals).chain(stacks).chain(others).chain(values).collect()
}
