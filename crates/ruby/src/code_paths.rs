//! The paths that bytecode was compiled from.

use std::collections::HashMap;

use image::{Image, Memory, Window};
use linux::Address;

use crate::finding::Finding;
use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::layout::iseq_location::{self, BODY_BYTES, FirstLine, IseqLocation, SOURCE_BYTES};
use crate::layout::line_tables::{Instructions, LineTables};
use crate::model::code_paths::{CodePaths, IseqSource};
use crate::model::content::{Content, Form};
use crate::model::imemo::ImemoType;
use crate::model::slot::{SlotState, SlotType};
use crate::object_space::ObjectSpace;

/// The bodies from which the place of their location is derived.
const MAX_SAMPLES: usize = 256;
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// More paths than a program has; those beyond are unknown.
const MAX_PATHS: usize = 1 << 17;
/// The paths of methods that the interpreter has in Ruby begin so. Every Ruby has some.
const INTERNAL: &str = "<internal:";

/// An iseq, by its slot, and its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Iseq {
    body: Address,
    slot: u32,
}

impl Iseq {
    /// Its body.
    pub(crate) fn body(&self) -> Address {
        self.body
    }

    /// Its slot.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }
}

/// Reads the paths of all bytecode. `image` is the one that `space` was read from, of the same instant.
///
/// # Errors
/// If the place of paths could not be derived, or the words there do not point to paths.
pub fn code_paths(image: &Image<'_>, space: &ObjectSpace) -> Result<CodePaths, Finding> {
    if space.iseqs.is_empty() {
        return Ok(CodePaths::default());
    }
    read(image, space, &space.iseqs).ok_or(Finding::CodeFilesUnknown)
}

/// All iseqs with a body, by its address, so that bodies are read in this order.
pub(crate) fn iseqs(space: &ObjectSpace) -> Vec<Iseq> {
    // The body is the first pointer of the slot (`rb_iseq_struct` in vm_core.h).
    let body = |slot| space.references.of(slot).next().map(|(body, _)| Iseq { body, slot });
    let mut iseqs: Vec<Iseq> = space.live_imemos(ImemoType::Iseq).filter_map(body).collect();
    iseqs.sort_unstable_by_key(|iseq| iseq.body);
    iseqs
}

/// The memory of bytecode that has numbers only, and the instructions, with the part that is in use. malloc does not clear the
/// rest. `image` is the one that `space` was read from, of the same instant.
#[must_use]
pub fn memory_of_bytecode(image: &Image<'_>, space: &ObjectSpace) -> Vec<(Address, Content)> {
    let samples = samples(image, space, &space.iseqs);
    let Some(lines) = LineTables::derive(image, &samples) else { return Vec::new() };
    let mut window = Window::new(image, READ_BYTES);
    let mut found = Vec::new();
    for iseq in &space.iseqs {
        let Ok(body) = window.bytes(iseq.body, BODY_BYTES) else { continue };
        let Some(instructions) = Instructions::of(body) else { continue };
        if let Some(numbers) = lines.numbers(body, instructions) {
            let (start, words) = instructions.memory();
            found.push((start, Content::new(Form::Words, words)));
            found.extend(numbers.map(|at| (at, Content::BYTES)));
        }
    }
    found
}

fn read(image: &Image<'_>, space: &ObjectSpace, iseqs: &[Iseq]) -> Option<CodePaths> {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let mut paths = Paths {
        space,
        reader,
        class_names: space.class_names?,
        known: HashMap::new(),
        of_name: HashMap::new(),
        all: CodePaths::default(),
    };
    let samples = samples(image, space, iseqs);
    let location = IseqLocation::derive(reader, &samples)?;
    paths.all.location = Some(location);
    paths.all.first_line = FirstLine::derive(location, &samples);
    paths.all.lines = LineTables::derive(image, &samples);
    let mut window = Window::new(image, READ_BYTES);
    let (mut marked, mut misfits) = (0_usize, 0_usize);
    for iseq in iseqs {
        let bytes = window.bytes(iseq.body.offset(location.0 as u64), SOURCE_BYTES).ok();
        let path = bytes.and_then(|bytes| iseq_location::path(reader, bytes));
        let path = path.and_then(|path| paths.index(path));
        let first_line = paths.all.first_line;
        let line = bytes.and_then(|bytes| first_line?.read(IseqLocation(0), bytes)).unwrap_or(0);
        paths.all.iseqs.extend(path.map(|path| IseqSource { slot: iseq.slot, path, line }));
        let is_marked = is_marked(space, iseq);
        marked += usize::from(is_marked);
        misfits += usize::from(is_marked && path.is_none());
    }
    let has_internal = paths.all.paths.iter().any(|path| path.starts_with(INTERNAL));
    paths.all.iseqs.sort_unstable();
    (has_internal && misfits * 10 <= marked).then_some(paths.all)
}

/// The first bytes of some bodies, from the first to the last; of marked iseqs if there are any, since
/// others may be garbage.
fn samples(image: &Image<'_>, space: &ObjectSpace, iseqs: &[Iseq]) -> Vec<Vec<u8>> {
    let marked = iseqs.iter().copied().filter(|iseq| is_marked(space, iseq));
    let marked: Vec<Iseq> = marked.collect();
    let iseqs = if marked.is_empty() { iseqs } else { &marked };
    let step = iseqs.len().div_ceil(MAX_SAMPLES).max(1);
    let read = |iseq: &Iseq| {
        let mut bytes = vec![0; BODY_BYTES];
        let read = image.read(iseq.body, &mut bytes);
        bytes.truncate(read);
        bytes
    };
    // Code that has not been compiled, and what was left of its compilation, has no instructions.
    let is_compiled = |body: &Vec<u8>| Instructions::count(body) != 0;
    iseqs.iter().step_by(step).map(read).filter(is_compiled).collect()
}

fn is_marked(space: &ObjectSpace, iseq: &Iseq) -> bool {
    space.slots[iseq.slot as usize].state() == SlotState::Marked
}

/// Collects the paths in objects.
struct Paths<'a> {
    space: &'a ObjectSpace,
    reader: ObjectReader<'a>,
    class_names: ClassNames,
    /// The index of the path of each object: a string, or an array of two.
    known: HashMap<Address, Option<u32>>,
    of_name: HashMap<String, u32>,
    all: CodePaths,
}

impl Paths<'_> {
    /// The index of the path in this object; `None` if it is not a path. Iseqs of one file may have an array each, but
    /// these refer to the same strings.
    fn index(&mut self, object: Address) -> Option<u32> {
        if let Some(known) = self.known.get(&object) {
            return *known;
        }
        let index = match self.reader.type_at(object) {
            Some(SlotType::STRING) => self.read_string(object),
            Some(SlotType::ARRAY) => self.read_pair(object),
            _ => None,
        };
        self.known.insert(object, index);
        index
    }

    fn read_pair(&mut self, object: Address) -> Option<u32> {
        let (path, real_path) = match self.space.links.of(self.space.slot_at(object)?) {
            [path] => (*path, None),
            [path, real_path] => (*path, Some(*real_path)),
            _ => return None,
        };
        let given = self.string_in(path);
        let text = given.and_then(|path| self.all.paths.get(path as usize));
        let is_absolute = text.is_some_and(|text| text.starts_with('/'));
        iseq_location::preferred(given, is_absolute, || self.string_in(real_path?))
    }

    fn string_in(&mut self, slot: u32) -> Option<u32> {
        let string = self.reader.current_place(self.space.slot_address(slot as usize)?);
        let is_string = self.reader.type_at(string) == Some(SlotType::STRING);
        is_string.then(|| self.index(string)).flatten()
    }

    fn read_string(&mut self, string: Address) -> Option<u32> {
        let flags = self.reader.image.read_u64(string).ok()?;
        let text = self.class_names.text(self.reader, string.0)?;
        if text.is_empty() || !iseq_location::is_frozen(flags) {
            return None;
        }
        match self.of_name.get(&text) {
            None if self.all.paths.len() >= MAX_PATHS => None,
            None => {
                let index = self.all.paths.len() as u32;
                self.all.paths.push(text.clone());
                self.of_name.insert(text, index);
                Some(index)
            }
            known => known.copied(),
        }
    }
}
