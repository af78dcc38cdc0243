//! The methods that threads run: the backtrace of each, as `Thread#backtrace` shows it.
//!
//! | module | |
//! |---|---|
//! | `stacks` | the control frames of threads |
//! | `methods` | the names of methods and of their owners |

mod methods;
mod stacks;

use std::collections::HashMap;

use capture::{Address, Image, Memory};

use crate::backtrace::methods::{Method, Methods, imemo_type};
use crate::backtrace::stacks::ControlFrame;
pub(crate) use crate::backtrace::stacks::StackLayout;
use crate::layout::class_names::ObjectReader;
use crate::layout::iseq_location::{BODY_BYTES, IseqLocation};
use crate::layout::line_tables::Instructions;
use crate::model::backtrace::{Backtrace, Frame};
use crate::model::code_paths::CodePaths;
use crate::model::data_type::DataType;
use crate::model::imemo::ImemoType;
use crate::model::vm_stack::VmStack;
use crate::object_space::ObjectSpace;
use crate::page_cache::cached;
use crate::roots::program::Program;
use crate::word::word;

/// The offset of the body in an iseq (`rb_iseq_struct` in vm_core.h).
const BODY: u64 = 16;

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
    let image = cached(image);
    let reader = ObjectReader { image: &image, index: &space.slot_index, slots: &space.slots };
    let Some((layout, mut labels)) =
        space.stack_layout.and_then(|layout| Some((layout, Labels::new(reader, space, paths)?)))
    else {
        return Vec::new();
    };
    let of_thread = |stack: &VmStack| {
        let frames = layout.frames(reader, stack.structure)?;
        each(stack.thread, &mut frames.filter_map(|frame| labels.frame(&frame)))
    };
    space.vm_stacks.iter().filter_map(of_thread).collect()
}

/// Derives the layout of stacks, and finds the stack of each thread. Without a layout there are no stacks.
pub(crate) fn vm_stacks(
    image: &Image<'_>,
    space: &ObjectSpace,
) -> (Option<StackLayout>, Vec<VmStack>) {
    let image = cached(image);
    let reader = ObjectReader { image: &image, index: &space.slot_index, slots: &space.slots };
    let threads = threads(space);
    let structures: Vec<Address> = threads.iter().map(|thread| thread.1).collect();
    let layout = StackLayout::derive(reader, &structures);
    let stacks = layout.iter().flat_map(|layout| {
        threads.iter().filter_map(|&(slot, structure)| layout.vm_stack(&image, slot, structure))
    });
    (layout, stacks.collect())
}

/// The slots of Thread objects and the structures that they wrap.
fn threads(space: &ObjectSpace) -> Vec<(u32, Address)> {
    let is_thread =
        |data_type: u32| space.data_types.get(data_type as usize).is_some_and(DataType::is_thread);
    let objects = space.data_objects.iter();
    let threads = objects.filter(|(_, data_type)| data_type.is_some_and(is_thread));
    threads
        .flat_map(|(slot, _)| space.references.of(slot).iter().map(move |&it| (slot, it)))
        .collect()
}

/// An iseq, as far as frames need it.
struct Code {
    body: Vec<u8>,
    instructions: Instructions,
    label: String,
    /// The label of its method.
    method_label: String,
    path: Option<String>,
}

struct Labels<'a> {
    space: &'a ObjectSpace,
    paths: &'a CodePaths,
    location: IseqLocation,
    reader: ObjectReader<'a>,
    methods: Methods<'a>,
    known: HashMap<Address, Option<Code>>,
}

impl<'a> Labels<'a> {
    fn new(reader: ObjectReader<'a>, space: &'a ObjectSpace, paths: &'a CodePaths) -> Option<Self> {
        let methods = Methods::new(Program::read(space, reader)?);
        let location = paths.location?;
        Some(Self { space, paths, location, reader, methods, known: HashMap::new() })
    }

    /// The frame as a backtrace shows it; `None` for frames that backtraces leave out.
    fn frame(&mut self, frame: &ControlFrame) -> Option<Frame> {
        if frame.is_c_function() {
            let Method { owner, name } = self.methods.of(frame.environment)?;
            let label = owner.clone().unwrap_or_default() + name.as_ref()?;
            return Some(Frame { label, path: None, line: None });
        }
        if frame.pc.0 == 0 || frame.is_dummy() {
            return None;
        }
        if !self.known.contains_key(&frame.iseq) {
            let code = self.code(frame.iseq);
            self.known.insert(frame.iseq, code);
        }
        let code = self.known.get(&frame.iseq)?.as_ref()?;
        let position = code.instructions.position(frame.pc)?;
        let method = self.methods.of(frame.environment);
        let owner = method.and_then(|method| method.owner.as_deref());
        Some(Frame {
            label: qualified(&code.label, &code.method_label, owner),
            path: code.path.clone(),
            line: self
                .paths
                .lines
                .and_then(|lines| lines.line(self.reader.image, &code.body, position)),
        })
    }

    fn code(&self, iseq: Address) -> Option<Code> {
        if imemo_type(self.space, iseq) != Some(ImemoType::Iseq) {
            return None;
        }
        let image = self.reader.image;
        let mut body = vec![0; BODY_BYTES];
        let read = image.read(image.read_address(iseq.offset(BODY)).ok()?, &mut body);
        body.truncate(read);
        let text =
            |at| self.space.class_names?.text(self.reader, word(&body, self.location.0 + at));
        let path = self.paths.of(self.space.slot_at(iseq)?);
        Some(Code {
            instructions: Instructions::of(&body)?,
            method_label: text(8)?,
            label: text(16)?,
            path: path.and_then(|path| self.paths.paths.get(path as usize).cloned()),
            body,
        })
    }
}

/// The label of an iseq with the owner of its method: `block in run` of `Export#` is `block in Export#run`. Labels of
/// files and of the bodies of classes have no owner.
fn qualified(label: &str, method_label: &str, owner: Option<&str>) -> String {
    let mut start = method_label.chars();
    let is_body = start.next() == Some('<') && start.next().is_some_and(char::is_alphabetic);
    // Prism's label of evaluated code (3.4).
    let label = if label == "<compiled>" { method_label } else { label };
    match (label.strip_suffix(method_label), owner) {
        (Some(before), Some(owner)) if !is_body => format!("{before}{owner}{method_label}"),
        _ => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_owner_of_its_method() {
        for (label, method, owner, expected) in [
            ("run", "run", Some("Billing::Export#"), "Billing::Export#run"),
            ("block (2 levels) in run", "run", Some("Export."), "block (2 levels) in Export.run"),
            ("<=>", "<=>", Some("Price#"), "Price#<=>"),
            ("run", "run", None, "run"),
            ("<main>", "<main>", None, "<main>"),
            // The block of define_method.
            (
                "block in <class:Export>",
                "<class:Export>",
                Some("Export#"),
                "block in <class:Export>",
            ),
            ("<compiled>", "run", Some("Export#"), "Export#run"),
            ("<compiled>", "<main>", Some("Export#"), "<main>"),
            ("odd", "run", Some("Export#"), "odd"),
        ] {
            assert_eq!(qualified(label, method, owner), expected);
        }
    }
}
