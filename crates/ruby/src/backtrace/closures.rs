//! The code of Procs, Bindings, Methods and UnboundMethods, and of methods that were defined by a Proc.
//!
//! A Proc (`rb_proc_t` in vm_core.h) begins with its block: `self`, the environment, the code, and the kind of block; the same
//! from 2.7 to 4.1. So does a Binding (`rb_binding_t`), but its code is that of its last `eval`. Behind it are the path and the line of the
//! call of `binding`. A Method (`struct METHOD` in proc.c) has its method entry among its first words. The definition of a method
//! refers to its bytecode in its second word (`rb_method_definition_t` in method.h), or to the Proc of `define_method`.
//! Nothing is accepted unless the code is bytecode, or the entry a method entry.

use std::collections::HashMap;

use image::{Image, Memory, Window};
use linux::Address;

use crate::backtrace::code::CodeReader;
use crate::layout::class_names::ObjectReader;
use crate::layout::embedded::{STRUCTURE, TYPE_WORD, is_embedded};
use crate::model::closures::{Closure, Closures};
use crate::model::code_paths::CodePaths;
use crate::model::data_type::DataType;
use crate::model::imemo::ImemoType;
use crate::object_space::ObjectSpace;
use crate::word::{word, words};

/// The words of a block, and its kind if it has bytecode (`block_type_iseq`).
const BLOCK_BYTES: usize = 32;
const ISEQ_BLOCK: u32 = 0;
/// The words of a Binding behind its block.
const PATH: usize = BLOCK_BYTES;
const LINE: usize = PATH + 8;
const BINDING_BYTES: usize = LINE + 8;
/// The first words of a Method, among which is its entry.
const METHOD_BYTES: usize = 48;
/// The words of a method entry up to its definition.
const DEFINITION: u64 = 16;
/// The word of a definition that refers to the code.
const CODE: u64 = 8;
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// More pieces of code than a program has; further ones are unknown.
const MAX_CODES: usize = 1 << 20;

/// Reads the code of all Procs, Bindings, Methods, UnboundMethods, and of the entries of methods that a Proc defines; nothing if names or
/// the places of paths could not be derived.
///
/// `image` is the one that `space` and `paths` were read from, of the same instant.
#[must_use]
pub fn closures(image: &Image<'_>, space: &ObjectSpace, paths: &CodePaths) -> Closures {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let Some(code) = CodeReader::derive(reader, space, paths) else { return Closures::default() };
    let mut found = Finder { space, reader, code, known: HashMap::new(), all: Vec::new() };
    let objects = space.data_objects.iter().filter_map(|(slot, data_type)| {
        let is_live = space.slots.get(slot as usize)?.is_live();
        let data_type = space.data_types.get(data_type? as usize)?;
        let at = space.slot_address(slot as usize).filter(|_| is_live)?;
        let code = match data_type {
            it if it.is_proc() => found.of_proc(at),
            it if it.is_binding() => found.of_binding(at),
            it if it.is_method() => found.of_method(at),
            _ => None,
        };
        Some((slot, code?))
    });
    let mut slots: Vec<_> = objects.collect();
    slots.extend(found.of_defined_methods());
    slots.sort_unstable();
    Closures { slots, all: found.all }
}

struct Finder<'a> {
    space: &'a ObjectSpace,
    reader: ObjectReader<'a>,
    code: CodeReader,
    /// The index of the code of each iseq and method entry, and of each path and line of a Binding.
    known: HashMap<(Address, u32), Option<u32>>,
    all: Vec<Closure>,
}

impl Finder<'_> {
    fn of_proc(&mut self, object: Address) -> Option<u32> {
        let iseq = self.iseq_of_proc(object)?;
        self.index((iseq, 0), |finder| {
            let (path, line) = finder.code.source(finder.reader, iseq)?;
            Some(Closure { method: None, path, line })
        })
    }

    fn of_binding(&mut self, object: Address) -> Option<u32> {
        let mut bytes = [0; BINDING_BYTES];
        self.reader.image.read_exact(structure(self.reader.image, object)?, &mut bytes).ok()?;
        let path = self.reader.current_place(Address(word(&bytes, PATH)));
        let line = word(&bytes, LINE) as u32;
        self.index((path, line), |finder| {
            // That of the main program has no file.
            let path = finder.code.path(finder.reader, path).filter(|it| !it.starts_with('<'))?;
            Some(Closure { method: None, path: Some(path), line: Some(line).filter(|it| *it > 0) })
        })
    }

    fn of_method(&mut self, object: Address) -> Option<u32> {
        let mut bytes = [0; METHOD_BYTES];
        let at = structure(self.reader.image, object)?;
        self.reader.image.read_exact(at, &mut bytes).ok()?;
        let entry = words(&bytes).map(Address).find(|&it| self.is(it, ImemoType::Ment))?;
        self.of_entry(entry)
    }

    /// The slots of the entries of methods that Procs define (`define_method`), with their code.
    fn of_defined_methods(&mut self) -> Vec<(u32, u32)> {
        let mut entries = methods_with_code(self.reader.image, self.space);
        entries.retain(|&(code, ..)| self.is_proc(code));
        entries.iter().filter_map(|&(_, entry, slot)| Some((slot, self.of_entry(entry)?))).collect()
    }

    fn of_entry(&mut self, entry: Address) -> Option<u32> {
        self.index((entry, 0), |finder| {
            let number = finder.code.methods().number(finder.reader, entry);
            let method = finder.code.methods().get(number?)?.label()?;
            let (path, line) = finder.source_of_method(entry).unwrap_or_default();
            Some(Closure { method: Some(method), path, line })
        })
    }

    fn iseq_of_proc(&self, object: Address) -> Option<Address> {
        let mut block = [0; BLOCK_BYTES];
        let at = structure(self.reader.image, object)?;
        self.reader.image.read_exact(at, &mut block).ok()?;
        (word(&block, 24) as u32 == ISEQ_BLOCK).then(|| Address(word(&block, 16)))
    }

    fn source_of_method(&self, entry: Address) -> Option<(Option<String>, Option<u32>)> {
        let image = self.reader.image;
        let definition = image.read_address(entry.offset(DEFINITION)).ok()?;
        let code =
            image.read_address(definition.offset(CODE)).ok().filter(|_| definition.0 != 0)?;
        let iseq = if self.is_proc(code) { self.iseq_of_proc(code)? } else { code };
        self.code.source(self.reader, iseq)
    }

    fn is_proc(&self, at: Address) -> bool {
        let data_type = self.space.slot_at(at).and_then(|slot| self.space.data_type_of(slot));
        data_type.is_some_and(DataType::is_proc)
    }

    fn is(&self, at: Address, kind: ImemoType) -> bool {
        self.space.imemo_types.and_then(|types| types.at(self.reader, at)) == Some(kind)
    }

    /// The index of the code with this key.
    fn index(
        &mut self,
        key: (Address, u32),
        read: impl FnOnce(&mut Self) -> Option<Closure>,
    ) -> Option<u32> {
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let closure = if self.all.len() < MAX_CODES { read(self) } else { None };
        let index = closure.map(|closure| {
            self.all.push(closure);
            self.all.len() as u32 - 1
        });
        self.known.insert(key, index);
        index
    }
}

/// The method entries with what their definition has in the word of its code, their addresses, and their slots.
pub(crate) fn methods_with_code(
    image: &Image<'_>,
    space: &ObjectSpace,
) -> Vec<(Address, Address, u32)> {
    let mut window = Window::new(image, READ_BYTES);
    let word = |window: &mut Window<'_>, at: Address| {
        let bytes = window.bytes(at, 8).ok()?;
        bytes.try_into().map(|bytes| Address(u64::from_le_bytes(bytes))).ok()
    };
    let entries = space.live_imemos(ImemoType::Ment).filter_map(|slot| {
        let entry = space.slot_address(slot as usize)?;
        Some((word(&mut window, entry.offset(DEFINITION))?, entry, slot))
    });
    let mut entries: Vec<_> = entries.filter(|(definition, ..)| definition.0 != 0).collect();
    // Their definitions are read in the order of memory.
    entries.sort_unstable();
    let code = |(definition, entry, slot): (Address, Address, u32)| {
        Some((word(&mut window, definition.offset(CODE))?, entry, slot))
    };
    entries.into_iter().filter_map(code).collect()
}

/// The structure of a T_DATA object, which may be in its slot (from 3.3 on).
pub(crate) fn structure(image: &Image<'_>, object: Address) -> Option<Address> {
    let type_word = image.read_u64(object.offset(8 * TYPE_WORD as u64)).ok()?;
    let at = object.offset(STRUCTURE as u64);
    match is_embedded(type_word) {
        true => Some(at),
        false => image.read_address(at).ok().filter(|it| it.0 != 0 && it.is_aligned(8)),
    }
}
