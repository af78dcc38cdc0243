//! The names of methods, as backtraces show them.

use std::collections::HashMap;

use capture::{Address, Memory};

use crate::backtrace::stacks::Environment;
use crate::model::class::ClassKind;
use crate::model::imemo::ImemoType;
use crate::object_space::ObjectSpace;
use crate::roots::program::Program;
use crate::word::{word, words};

/// The method entries from which the place of their original names is derived.
const MAX_SAMPLES: usize = 256;
/// The first bytes of a method's definition, among which its original name is searched for.
const DEFINITION_BYTES: usize = 64;
/// The words of a method entry (`rb_method_entry_t` in method.h): flags, the class that it was found in,
/// its definition, its name, and its owner; the same from 2.7 to 4.1.
const ENTRY_BYTES: usize = 40;
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

/// Reads methods.
pub(crate) struct Methods<'a> {
    program: Program<'a>,
    /// The offset of a method's original name in its definition; without it, an alias has its own name.
    original_name_at: Option<usize>,
    known: HashMap<Address, Method>,
}

impl<'a> Methods<'a> {
    pub(crate) fn new(program: Program<'a>) -> Self {
        let original_name_at = original_name_at(&program);
        Self { program, original_name_at, known: HashMap::new() }
    }

    /// The method to which this environment, its own or a block's, belongs; `None` outside of methods
    /// (`rb_vm_frame_method_entry` in vm_insnhelper.c).
    pub(crate) fn of(&mut self, environment: Environment) -> Option<&Method> {
        let reader = self.program.reader;
        let mut environment = environment;
        for _ in 0..MAX_BLOCKS {
            let outer = environment.outer();
            let entry = match imemo_type(self.program.space, environment.method) {
                Some(ImemoType::Ment) => Some(environment.method),
                // A method's special variables, such as `$~`, refer to it in its place.
                Some(ImemoType::Svar) if outer.is_none() => {
                    let method = reader.image.read_address(environment.method.offset(8)).ok();
                    method.filter(|&at| imemo_type(self.program.space, at) == Some(ImemoType::Ment))
                }
                _ => None,
            };
            if let Some(entry) = entry {
                if !self.known.contains_key(&entry) {
                    let method = self.read(entry)?;
                    self.known.insert(entry, method);
                }
                return self.known.get(&entry);
            }
            environment = Environment::read(reader.image, outer?)?;
        }
        None
    }

    fn read(&self, entry: Address) -> Option<Method> {
        let image = self.program.reader.image;
        let mut bytes = [0; ENTRY_BYTES];
        image.read_exact(entry, &mut bytes).ok()?;
        let [definition, name, owner] = [16, 24, 32].map(|at| word(&bytes, at));
        let original = self.original_name_at.and_then(|at| {
            let id = image.read_u64(Address(definition).offset(at as u64)).ok()?;
            self.program.symbols.name_of_any_id(id)
        });
        Some(Method {
            owner: self.owner(Address(owner)),
            name: original.or_else(|| self.program.symbols.name_of_any_id(name)),
        })
    }

    /// The name of a class and `#`, or, for a singleton class, the name of its object and a dot.
    fn owner(&self, class: Address) -> Option<String> {
        let Program { class_names, reader, .. } = &self.program;
        let name = |class, separator| Some(class_names.name(*reader, class)? + separator);
        name(class, "#").or_else(|| name(self.program.attached(class)?, "."))
    }
}

/// The only offset at which most definitions have the name of their method: few are aliases.
fn original_name_at(program: &Program<'_>) -> Option<usize> {
    let image = program.reader.image;
    let is_method = |slot: &u32| type_of_slot(program.space, *slot) == Some(ImemoType::Ment);
    let entries = (0..program.space.slots.len() as u32).filter(is_method);
    let definitions = entries.filter_map(|slot| {
        let mut entry = [0; ENTRY_BYTES];
        image.read_exact(program.space.slot_address(slot as usize)?, &mut entry).ok()?;
        let (definition, name) = (Address(word(&entry, 16)), word(&entry, 24));
        let mut bytes = [0; DEFINITION_BYTES];
        image.read_exact(definition, &mut bytes).ok().filter(|()| definition.0 != 0)?;
        Some((name, bytes))
    });
    let definitions: Vec<_> = definitions.take(MAX_SAMPLES).collect();
    let mut places = (0..DEFINITION_BYTES).step_by(8).filter(|at| {
        let has_name = |(name, bytes): &&(u64, [u8; DEFINITION_BYTES])| {
            words(bytes).nth(at / 8) == Some(*name)
        };
        definitions.iter().filter(has_name).count() * 4 >= definitions.len() * 3
    });
    places.next().filter(|_| !definitions.is_empty() && places.next().is_none())
}

/// The type of the internal object at `at`; `None` for other objects.
pub(crate) fn imemo_type(space: &ObjectSpace, at: Address) -> Option<ImemoType> {
    type_of_slot(space, space.slot_at(at)?)
}

fn type_of_slot(space: &ObjectSpace, slot: u32) -> Option<ImemoType> {
    let slot = space.slots.get(slot as usize).filter(|slot| slot.is_live())?;
    match space.classes.get(slot.class() as usize)?.kind {
        ClassKind::Imemo(it) => Some(it),
        ClassKind::Visible(_) | ClassKind::Hidden(_) => None,
    }
}
