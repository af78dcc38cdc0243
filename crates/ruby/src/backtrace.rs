//! The methods that threads run: the backtrace of each, as `Thread#backtrace` shows it.
//!
//! | module | |
//! |---|---|
//! | `stacks` | the control frames of threads |
//! | `code` | the methods, files and lines of frames |
//! | `methods` | the names of methods and of their owners |
//! | `running` | the stacks of processes that run |
//! | `closures` | the code of Procs and Methods |
//! | `holders` | the variables of objects that have large collections |
//! | `uses` | the code that uses constants and variables |
//! | `at_fault` | the copy of a stack that the kernel makes at a page fault or a tick |

mod at_fault;
mod closures;
mod code;
mod holders;
mod methods;
mod running;
mod stacks;
mod uses;

use std::collections::HashSet;

use image::{Image, Memory};
use linux::Address;

pub(crate) use crate::backtrace::at_fault::{STACK_POINTER, write_after};
pub use crate::backtrace::closures::closures;
pub(crate) use crate::backtrace::closures::structure;
use crate::backtrace::code::CodeReader;
pub use crate::backtrace::running::{
    ContextPath, CopiedStack, NoStack, RunningStack, RunningStacks,
};
pub(crate) use crate::backtrace::stacks::Holder;
pub(crate) use crate::backtrace::stacks::StackLayout;
use crate::backtrace::stacks::{ControlFrame, Environment};
pub use crate::backtrace::uses::{RootUses, uses_of_roots};
use crate::layout::class_names::ObjectReader;
use crate::model::backtrace::{Backtrace, Frame};
use crate::model::code_paths::CodePaths;
use crate::model::data_type::DataType;
use crate::model::vm_stack::VmStack;
use crate::object_space::ObjectSpace;
use crate::word::words;

/// The bytes of a T_DATA object that are searched for its pointer.
const DATA_BYTES: usize = 40;

/// The backtraces of all Ruby threads that have one, by slot. A thread that runs a fiber has the fiber's.
///
/// `image` is the one that `space` and `paths` were read from, of the same instant. Empty if the layout of
/// stacks could not be derived: then the methods of threads are unknown.
#[must_use]
pub fn backtraces(image: &Image<'_>, space: &ObjectSpace, paths: &CodePaths) -> Vec<Backtrace> {
    map_backtraces(image, space, paths, |thread, frames| {
        let frames: Vec<Frame> = frames.collect();
        (!frames.is_empty()).then_some(Backtrace { thread, frames })
    })
}

/// Like [`backtraces`], but calls `each` with the slot of each thread and its frames, innermost first, and returns its
/// results. Frames that it does not request are not read: each takes about a microsecond.
pub fn map_backtraces<T>(
    image: &Image<'_>,
    space: &ObjectSpace,
    paths: &CodePaths,
    mut each: impl FnMut(u32, &mut dyn Iterator<Item = Frame>) -> Option<T>,
) -> Vec<T> {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let layout = space.stack_layout;
    let Some((layout, mut code)) = layout.zip(CodeReader::derive(reader, space, paths)) else {
        return Vec::new();
    };
    let environment_at = |at| Environment::read(image, at);
    let mut frame = |frame: ControlFrame| {
        let place = code.place(reader, &frame, environment_at)?;
        code.frame(reader, place)
    };
    let of_thread = |stack: &VmStack| {
        let mut frames = layout.frames(reader, stack.structure)?.filter_map(&mut frame);
        each(stack.thread, &mut frames)
    };
    space.vm_stacks.iter().filter_map(of_thread).collect()
}

/// Derives the layout of stacks, and finds the stack of each thread. Without a layout there are no stacks.
pub(crate) fn vm_stacks(
    image: &Image<'_>,
    space: &ObjectSpace,
) -> (Option<StackLayout>, Vec<VmStack>) {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let threads = threads(image, space);
    // Ended threads, which may be most, have no stack.
    let (mut structures, ended): (Vec<Address>, Vec<_>) =
        threads.iter().map(|thread| thread.1).partition(|&it| is_in_list(image, it));
    structures.extend(ended);
    let layout =
        StackLayout::derive(reader, &structures, space.interpreter.may_have_frames_elsewhere());
    let stacks = layout.iter().flat_map(|layout| {
        threads.iter().filter_map(|&(slot, structure)| layout.vm_stack(image, slot, structure))
    });
    (layout, stacks.collect())
}

/// The Thread objects whose threads have ended, by the list of threads, and those that are in the list but have no VM stack, with their
/// next links. Empty if a thread with a stack is in no list: then the links are others.
pub(crate) fn threads_without_stack(
    image: &Image<'_>,
    space: &ObjectSpace,
) -> (Vec<u32>, Vec<(u32, Address)>) {
    let (mut ended, mut stackless) = (Vec::new(), Vec::new());
    let has_stack: HashSet<Address> = space.vm_stacks.iter().map(|it| it.structure).collect();
    if has_stack.is_empty() || !has_stack.iter().all(|&it| is_in_list(image, it)) {
        return (ended, stackless);
    }
    for (slot, structure) in threads(image, space) {
        match image.read_address(structure) {
            _ if has_stack.contains(&structure) => {}
            Ok(next) if is_in_list(image, structure) => stackless.push((slot, next)),
            _ => ended.push(slot),
        }
    }
    (ended, stackless)
}

/// Returns true if a structure is in a list of threads: `rb_thread_t` in vm_core.h begins with the links to the next thread and to the
/// previous one, which point back to it until it ends.
fn is_in_list(image: &Image<'_>, structure: Address) -> bool {
    const PREVIOUS: u64 = 8;
    let points_back = |link: u64, back: u64| {
        let neighbour = image.read_address(structure.offset(link));
        let at = neighbour.ok().and_then(|it| it.0.checked_add(back));
        at.is_some_and(|at| image.read_address(Address(at)) == Ok(structure))
    };
    points_back(0, PREVIOUS) && points_back(PREVIOUS, 0)
}

/// The slots of Thread objects and the structures that they wrap.
fn threads(image: &Image<'_>, space: &ObjectSpace) -> Vec<(u32, Address)> {
    let is_thread =
        |data_type: u32| space.data_types.get(data_type as usize).is_some_and(DataType::is_thread);
    let objects = space.data_objects.iter();
    let threads = objects.filter(|(_, data_type)| data_type.is_some_and(is_thread));
    let structures = |slot| {
        let mut structures = space.references.of(slot).map(|(at, _)| at).peekable();
        // The main thread's is a variable (`_main_thread` in vm.c, from 4.1 on), or musl has put it behind the variables of a program or
        // library: it uses the rest of their last page.
        let is_main = structures.peek().is_none();
        let main = || {
            let own = space.slot_address(slot as usize).and_then(|at| structure(image, at));
            own.filter(|at| is_in_list(image, *at))
                .or_else(|| structure_in_variables(image, space, slot))
        };
        structures.chain(is_main.then(main).flatten())
    };
    threads.flat_map(|(slot, _)| structures(slot).map(move |at| (slot, at))).collect()
}

/// The structure of a running thread that this Thread object refers to among the interpreter's variables.
fn structure_in_variables(image: &Image<'_>, space: &ObjectSpace, slot: u32) -> Option<Address> {
    variables_of(image, space, slot).into_iter().find(|at| is_in_list(image, *at))
}

/// The slot of the object of a type whose structure is a variable of the interpreter, and the structure: from 4.1 on those of the VM and of
/// the main Ractor are (`_vm` in vm.c, `_main_ractor` in ractor.c). They begin with a reference to the object.
#[must_use]
pub fn object_in_variables(
    image: &Image<'_>,
    space: &ObjectSpace,
    is_type: impl Fn(&DataType) -> bool,
) -> Option<(u32, Address)> {
    let is_it = |slot: &u32| space.data_type_of(*slot).is_some_and(&is_type);
    space.data_objects.iter().map(|(slot, _)| slot).filter(is_it).find_map(|slot| {
        let object = space.slot_address(slot as usize)?;
        let refers_back = |at: &Address| image.read_address(*at) == Ok(object);
        Some((slot, variables_of(image, space, slot).into_iter().find(refers_back)?))
    })
}

/// The addresses of the interpreter's variables among the words of the T_DATA object in this slot.
fn variables_of(image: &Image<'_>, space: &ObjectSpace, slot: u32) -> Vec<Address> {
    let mut bytes = [0; DATA_BYTES];
    let object = space.slot_address(slot as usize);
    if object.is_none_or(|at| image.read_exact(at, &mut bytes).is_err()) {
        return Vec::new();
    }
    words(&bytes).map(Address).filter(|at| space.interpreter.is_variable(*at)).collect()
}
