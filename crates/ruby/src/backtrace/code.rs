//! The methods and lines of frames.

use std::collections::HashMap;

use image::{Image, Memory};
use linux::Address;

use crate::backtrace::methods::Methods;
use crate::backtrace::stacks::{ControlFrame, Environment};
use crate::layout::class_names::ObjectReader;
use crate::layout::iseq_location::{self, BODY_BYTES, FirstLine, IseqLocation, LOCATION_BYTES};
use crate::layout::line_tables::{Instructions, LineTables};
use crate::model::backtrace::Frame;
use crate::model::code_paths::CodePaths;
use crate::model::imemo::ImemoType;
use crate::object_space::ObjectSpace;
use crate::roots::program::Program;
use crate::word::word;

/// The offset of the body in an iseq (`rb_iseq_struct` in vm_core.h).
const BODY: u64 = 16;
/// The type, the number and the address of the instructions, which a body begins with.
const INSTRUCTIONS_BYTES: usize = 16;
/// The location of the code (`rb_iseq_location_t`): the path, the labels, and the numbers of lines and columns, in which two
/// methods with the same labels differ.
const IDENTITY_BYTES: usize = 48;
/// More iseqs than threads are seen in; further ones are unknown.
const MAX_CODES: usize = 1 << 20;

/// Reads the code that frames run, and keeps it.
#[derive(Debug, Clone)]
pub(crate) struct CodeReader {
    location: IseqLocation,
    first_line: Option<FirstLine>,
    lines: Option<LineTables>,
    methods: Methods,
    all: Vec<Code>,
    /// The number of the code of each iseq.
    known: HashMap<Address, u32>,
}

/// An iseq, as far as frames need it.
#[derive(Debug, Clone)]
struct Code {
    body_at: Address,
    body: Vec<u8>,
    instructions: Instructions,
    label: String,
    /// The label of its method.
    method_label: String,
    path: Option<String>,
}

/// The instruction that a frame runs: frames with equal places are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The number of its code, and the position; `None` for functions in C.
    code: Option<(u32, u64)>,
    /// The number of its method; `None` outside of methods.
    method: Option<u32>,
}

impl CodeReader {
    /// `None` if names or the places of labels could not be derived.
    pub(crate) fn derive(
        reader: ObjectReader<'_>,
        space: &ObjectSpace,
        paths: &CodePaths,
    ) -> Option<Self> {
        let methods = Methods::derive(Program::read(space, reader)?, space.imemo_types?);
        let CodePaths { location, first_line, lines, .. } = *paths;
        let (all, known) = (Vec::new(), HashMap::new());
        Some(Self { location: location?, first_line, lines, methods, all, known })
    }

    /// The place of a frame; `None` for frames that backtraces leave out. `environment_at` reads an environment.
    pub(crate) fn place(
        &mut self,
        reader: ObjectReader<'_>,
        frame: &ControlFrame,
        environment_at: impl Fn(Address) -> Option<Environment>,
    ) -> Option<Place> {
        if frame.is_c_function() {
            let method = self.methods.of(reader, frame.environment, environment_at)?;
            return Some(Place { code: None, method: Some(method) });
        }
        if !frame.runs_code() {
            return None;
        }
        let code = self.code_at(reader, frame)?;
        let method = self.methods.of(reader, frame.environment, environment_at);
        Some(Place { code: Some(code), method })
    }

    /// The frame at this place, as a backtrace shows it.
    pub(crate) fn frame(&self, reader: ObjectReader<'_>, place: Place) -> Option<Frame> {
        let method = place.method.and_then(|method| self.methods.get(method));
        let Some((code, position)) = place.code else {
            let label = method?.label()?;
            return Some(Frame { label, path: None, line: None });
        };
        let code = self.all.get(code as usize)?;
        let owner = method.and_then(|method| method.owner.as_deref());
        Some(Frame {
            label: qualified(&code.label, &code.method_label, owner),
            path: code.path.clone(),
            line: self.lines.and_then(|lines| lines.line(reader.image, &code.body, position)),
        })
    }

    /// The instruction at this position of an iseq as a frame that runs it; `None` for other objects. `owner` is that of its method.
    pub(crate) fn frame_at(
        &self,
        reader: ObjectReader<'_>,
        iseq: Address,
        position: u64,
        owner: Option<&str>,
    ) -> Option<Frame> {
        let code = self.read(reader, iseq)?;
        Some(Frame {
            label: qualified(&code.label, &code.method_label, owner),
            line: self.lines.and_then(|lines| lines.line(reader.image, &code.body, position)),
            path: code.path,
        })
    }

    /// The path of an iseq, and its first line; `None` for other objects.
    pub(crate) fn source(
        &self,
        reader: ObjectReader<'_>,
        iseq: Address,
    ) -> Option<(Option<String>, Option<u32>)> {
        let code = self.read(reader, iseq)?;
        let line = self.first_line.and_then(|form| form.read(self.location, &code.body));
        Some((code.path, line.filter(|line| *line > 0)))
    }

    /// The text of a path: a string, or an array as iseqs have it.
    pub(crate) fn path(&self, reader: ObjectReader<'_>, path: Address) -> Option<String> {
        iseq_location::path_text(reader, self.methods.names().class_names, path)
    }

    /// The methods.
    pub(crate) fn methods(&mut self) -> &mut Methods {
        &mut self.methods
    }

    /// The number of the code that a frame runs, and the position in it.
    fn code_at(&mut self, reader: ObjectReader<'_>, frame: &ControlFrame) -> Option<(u32, u64)> {
        let known = self.known.get(&frame.iseq).and_then(|&number| {
            let code = self
                .all
                .get(number as usize)
                .filter(|it| self.is_unchanged(reader, frame.iseq, it))?;
            Some((number, code.instructions.position(frame.pc)?))
        });
        if known.is_some() || self.all.len() >= MAX_CODES {
            return known;
        }
        let code = self.read(reader, frame.iseq)?;
        let position = code.instructions.position(frame.pc)?;
        let number = self.all.len() as u32;
        self.all.push(code);
        self.known.insert(frame.iseq, number);
        Some((number, position))
    }

    /// Returns true if this is still the code of the iseq: another one may have taken its slot, and even the memory of its
    /// body and instructions.
    fn is_unchanged(&self, reader: ObjectReader<'_>, iseq: Address, code: &Code) -> bool {
        let mut body = [0; BODY_BYTES];
        let end = (self.location.0 + IDENTITY_BYTES).min(code.body.len());
        let (image, now) = (reader.image, &mut body[..end]);
        if image.read_address(iseq.offset(BODY)) != Ok(code.body_at)
            || image.read_exact(code.body_at, now).is_err()
        {
            return false;
        }
        let fixed = [0..INSTRUCTIONS_BYTES, self.location.0..end];
        fixed.into_iter().all(|range| now.get(range.clone()) == code.body.get(range))
    }

    fn read(&self, reader: ObjectReader<'_>, iseq: Address) -> Option<Code> {
        if self.methods.imemo_type(reader, iseq) != Some(ImemoType::Iseq) {
            return None;
        }
        let image = reader.image;
        let mut body = vec![0; BODY_BYTES];
        let body_at = image.read_address(iseq.offset(BODY)).ok()?;
        let read = image.read(body_at, &mut body);
        body.truncate(read);
        let class_names = self.methods.names().class_names;
        let text = |at| class_names.text(reader, word(&body, self.location.0 + at));
        let location = body.get(self.location.0..self.location.0 + LOCATION_BYTES)?;
        let path = iseq_location::path(reader, location);
        Some(Code {
            instructions: Instructions::of(&body)?,
            method_label: text(8)?,
            label: text(16)?,
            path: path.and_then(|path| iseq_location::path_text(reader, class_names, path)),
            body_at,
            body,
        })
    }
}

/// The number of parameters of an iseq. From 2.7 to 4.0 they follow the instructions in its body: flags of 4 bytes, and the number
/// (`param.size` of `rb_iseq_constant_body` in vm_core.h). `None` if that cannot be a number of parameters, or cannot be read.
pub(crate) fn parameters(image: &Image<'_>, iseq: Address) -> Option<u64> {
    const MAX_PARAMETERS: u64 = 1 << 12;
    let body = image.read_address(iseq.offset(BODY)).ok()?;
    let words = image.read_u64(body.offset(INSTRUCTIONS_BYTES as u64)).ok()?;
    Some(words >> 32).filter(|parameters| *parameters <= MAX_PARAMETERS)
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
