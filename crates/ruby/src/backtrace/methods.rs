//! The names of methods, as backtraces show them.

use std::collections::HashMap;

use image::Memory;
use linux::Address;

use crate::backtrace::stacks::Environment;
use crate::layout::class_names::ObjectReader;
use crate::layout::imemo::ImemoTypes;
use crate::model::imemo::ImemoType;
use crate::roots::names::Names;
use crate::roots::program::Program;
use crate::word::{word, words};

/// The method entries from which the place of their original names is derived.
const MAX_SAMPLES: usize = 256;
/// The first bytes of a method's definition, among which its original name is searched for.
const DEFINITION_BYTES: usize = 64;
/// The words of a method entry (`rb_method_entry_t` in method.h): flags, the class that it was found in,
/// its definition, its name, and its owner; the same from 2.7 to 4.1.
const ENTRY_BYTES: usize = 40;
/// More methods than threads are seen in; further ones are unknown.
const MAX_METHODS: usize = 1 << 20;
/// More blocks within each other than a method has.
const MAX_BLOCKS: usize = 256;

/// The method of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Method {
    /// The name of its owner, with `#` or `.`; `None` if that has no name.
    pub(crate) owner: Option<String>,
    /// Its own name; `None` if it could not be read.
    pub(crate) name: Option<String>,
}

impl Method {
    /// Its name with that of its owner: `Billing::Export#run`.
    pub(crate) fn label(&self) -> Option<String> {
        Some(self.owner.clone().unwrap_or_default() + self.name.as_ref()?)
    }
}

/// Reads methods, and keeps them.
#[derive(Debug, Clone)]
pub(crate) struct Methods {
    imemo_types: ImemoTypes,
    names: Names,
    /// The offset of a method's original name in its definition; without it, an alias has its own name.
    original_name_at: Option<usize>,
    all: Vec<Method>,
    /// The number of the method that each entry is of, and the words of the entry, by which a slot with another method
    /// is recognized.
    known: HashMap<Address, (u32, [u8; ENTRY_BYTES])>,
}

impl Methods {
    pub(crate) fn derive(program: Program<'_>, imemo_types: ImemoTypes) -> Self {
        let original_name_at = original_name_at(&program);
        let names = program.names;
        Self { imemo_types, names, original_name_at, all: Vec::new(), known: HashMap::new() }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// The type of the internal object at `at`; `None` for other objects.
    pub(crate) fn imemo_type(&self, reader: ObjectReader<'_>, at: Address) -> Option<ImemoType> {
        self.imemo_types.at(reader, at)
    }

    /// The method with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Method> {
        self.all.get(number as usize)
    }

    /// The number of the method to which this environment, its own or a block's, belongs; `None` outside of methods
    /// (`rb_vm_frame_method_entry` in vm_insnhelper.c).
    pub(crate) fn of(
        &mut self,
        reader: ObjectReader<'_>,
        environment: Environment,
        environment_at: impl Fn(Address) -> Option<Environment>,
    ) -> Option<u32> {
        let mut environment = environment;
        for _ in 0..MAX_BLOCKS {
            let outer = environment.outer();
            let entry = match self.imemo_type(reader, environment.method) {
                Some(ImemoType::Ment) => Some(environment.method),
                // A method's special variables, such as `$~`, refer to it in its place.
                Some(ImemoType::Svar) if outer.is_none() => {
                    let method = reader.image.read_address(environment.method.offset(8)).ok();
                    method.filter(|&at| self.imemo_type(reader, at) == Some(ImemoType::Ment))
                }
                _ => None,
            };
            if let Some(entry) = entry {
                return self.number(reader, entry);
            }
            environment = environment_at(outer?)?;
        }
        None
    }

    /// The number of the method of this entry.
    pub(crate) fn number(&mut self, reader: ObjectReader<'_>, entry: Address) -> Option<u32> {
        let mut bytes = [0; ENTRY_BYTES];
        reader.image.read_exact(entry, &mut bytes).ok()?;
        // The first word has flags of the garbage collector.
        match self.known.get(&entry) {
            Some((number, known)) if known[8..] == bytes[8..] => return Some(*number),
            _ if self.all.len() >= MAX_METHODS => return None,
            _ => {}
        }
        let method = self.read(reader, &bytes);
        let number = self.all.len() as u32;
        self.all.push(method);
        self.known.insert(entry, (number, bytes));
        Some(number)
    }

    fn read(&self, reader: ObjectReader<'_>, entry: &[u8]) -> Method {
        let [definition, name, owner] = [16, 24, 32].map(|at| word(entry, at));
        let symbols = &self.names.symbols;
        let original = self.original_name_at.and_then(|at| {
            let id = reader.image.read_u64(Address(definition).offset(at as u64)).ok()?;
            symbols.name_of_any_id(reader, id)
        });
        Method {
            owner: self.owner(reader, Address(owner)),
            name: original.or_else(|| symbols.name_of_any_id(reader, name)),
        }
    }

    /// The name of a class and `#`, or, for a singleton class, the name of its object and a dot.
    fn owner(&self, reader: ObjectReader<'_>, class: Address) -> Option<String> {
        let name = |class, separator| Some(self.names.class_names.name(reader, class)? + separator);
        name(class, "#").or_else(|| name(self.names.attached(reader, class)?, "."))
    }
}

/// The only offset at which most definitions have the name of their method: few are aliases. They may lie side by side, so the
/// definitions are of methods all over the heap.
fn original_name_at(program: &Program<'_>) -> Option<usize> {
    let image = program.reader.image;
    let entries: Vec<u32> = program.space.live_imemos(ImemoType::Ment).collect();
    let step = entries.len().div_ceil(MAX_SAMPLES).max(1);
    let definitions = entries.into_iter().step_by(step).filter_map(|slot| {
        let mut entry = [0; ENTRY_BYTES];
        image.read_exact(program.space.slot_address(slot as usize)?, &mut entry).ok()?;
        let (definition, name) = (Address(word(&entry, 16)), word(&entry, 24));
        let mut bytes = [0; DEFINITION_BYTES];
        image.read_exact(definition, &mut bytes).ok().filter(|()| definition.0 != 0)?;
        Some((name, bytes))
    });
    let definitions: Vec<_> = definitions.collect();
    let mut places = (0..DEFINITION_BYTES).step_by(8).filter(|at| {
        let has_name = |(name, bytes): &&(u64, [u8; DEFINITION_BYTES])| {
            words(bytes).nth(at / 8) == Some(*name)
        };
        definitions.iter().filter(has_name).count() * 2 > definitions.len()
    });
    places.next().filter(|_| !definitions.is_empty() && places.next().is_none())
}
