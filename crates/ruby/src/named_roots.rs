//! What a program holds objects by, in its own words: constants, variables of classes, and global
//! variables.
//!
//! Where classes keep their constants, and what the numbers of names mean, is derived from classes
//! whose constants are known: Object has one for each [`Landmark`], and it has its name. What does
//! not pass is left out, and a finding says so.

use capture::{Address, Finding, Image, Memory, Severity, elf};

use crate::interpreter::{self, Interpreter, Landmark};
use crate::names::{Naming, Objects};
use crate::object_space::{ObjectSpace, SlotType};
use crate::page_cache::cached;
use crate::shapes::Shapes;
use crate::slots::Kinds;
use crate::symbols::{self, Symbols};
use crate::tables::{Budget, read_id_table, read_st_table};
use crate::word::word;

/// More than a program has; the rest is left out.
const MOST_HOLDERS: usize = 1 << 21;
/// What a class's slot points to is searched so far for the table of its constants.
const SEARCHED_EXTENSION_BYTES: u64 = 128;
/// The class within an object's slot.
const CLASS: usize = 8;
/// The variable of a singleton class that is its object (up to 3.1).
const ATTACHED: &str = "__attached__";
/// The value within a constant's entry (`rb_const_entry_t` in constant.h, in all versions).
const CONSTANT_VALUE: u64 = 8;
/// More class-level variables than a class has.
const MOST_VARIABLES: u64 = 1 << 16;
/// A variable that all classes have that Struct made, and what it holds: an array.
const MEMBERS: &str = "__members__";
/// So many classes with members are enough to tell where variables are.
const ENOUGH_CLASSES: usize = 8;
/// Ruby has more global variables than these from the beginning on.
const FEWEST_GLOBALS: usize = 20;
/// The members of a global variable (`struct rb_global_variable` in variable.c): its value, or
/// where that is, and the function that says which.
const GLOBAL_DATA: usize = 8;
const GLOBAL_GETTER: usize = 16;

/// By what an object is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RootKind {
    /// A constant: `Cache::STORE`.
    Constant,
    /// An instance variable of a class or module: `Cache.@items`.
    InstanceVariable,
    /// A class variable: `Cache@@items`.
    ClassVariable,
    /// A global variable: `$items`. Those are left out whose value Ruby's own code keeps elsewhere
    /// and works out when it is asked (`$LOAD_PATH`, `$~`, from 3.0 on `$stdout`).
    GlobalVariable,
}

/// A constant or variable that holds an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedRoot {
    /// Its kind.
    pub kind: RootKind,
    /// Its name, with that of its class or module: `Cache::STORE`, `Cache.@items`, `Cache@@items`,
    /// `$items`. Classes without a name are as Ruby writes them: `#<Class:0x000...>`, and
    /// `#<Class:Cache>` for singleton classes.
    pub name: String,
    /// The object, an index into [`ObjectSpace::slots`].
    pub value: u32,
}

/// The constants and variables of a process that hold objects, by kind and name, and what could not
/// be told. Those that hold numbers, symbols, `nil` or such are left out.
///
/// `image` is the one that `space` was read from, of the same instant. It takes some microseconds
/// for each.
#[must_use]
pub fn named_roots(image: &Image<'_>, space: &ObjectSpace) -> (Vec<NamedRoot>, Vec<Finding>) {
    let image = cached(image);
    let missing = |what: &str| Finding::general(Severity::Note, what);
    let Some(interpreter) = interpreter::find(&image) else { return Default::default() };
    let objects = Objects { image: &image, kinds: Kinds::Read(space) };
    let Some(program) = Program::read(space, &interpreter, objects) else {
        let what = "the names of constants and variables could not be derived";
        return (Vec::new(), vec![missing(what)]);
    };
    let mut findings = Vec::new();
    let variables = VariablePlace::derive(&program);
    if variables.is_none() {
        findings.push(missing("the variables of classes could not be derived"));
    }
    let mut found = Vec::new();
    for class in program.classes() {
        if found.len() < MOST_HOLDERS {
            program.add_holders_of(class, variables.as_ref(), &mut found);
        }
    }
    if program.budget.is_spent() || found.len() >= MOST_HOLDERS {
        findings.push(missing("there are more constants and variables than were read"));
    }
    match program.global_variables() {
        Some(variables) => found.extend(variables),
        None => findings.push(missing("global variables could not be derived")),
    }
    found.sort_unstable();
    (found, findings)
}

/// Where a class keeps the table of its constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConstantPlace {
    /// The word of its slot that points to it ...
    at: usize,
    /// ... or to what has it at this offset (up to 3.1).
    within: Option<u64>,
}

impl ConstantPlace {
    /// The table of the class in `slot`.
    fn table(self, image: &Image<'_>, slot: &[u8]) -> Option<Address> {
        let pointer = Address(word(slot, self.at));
        if pointer.0 == 0 || !pointer.is_aligned(8) {
            return None;
        }
        match self.within {
            Some(within) => image.read_address(pointer.offset(within)).ok(),
            None => Some(pointer),
        }
    }

    /// The constants of the class in `slot`: serial numbers of names, and values.
    fn constants(self, image: &Image<'_>, slot: &[u8], budget: &Budget) -> Vec<(u32, u64)> {
        let table = self.table(image, slot);
        let table = table.and_then(|table| read_id_table(image, table, budget));
        let value = |(serial, entry): (u32, u64)| {
            Some((serial, image.read_u64(Address(entry).offset(CONSTANT_VALUE)).ok()?))
        };
        table.into_iter().flatten().filter_map(value).collect()
    }

    /// The place at which Object has a constant for each of the landmarks.
    fn derive(objects: Objects<'_>, landmarks: &[Landmark], budget: &Budget) -> Option<Self> {
        let object = landmarks.iter().find(|it| it.name == "Object")?;
        let slot = objects.class(object.class)?;
        let offsets = || (16..slot.len()).step_by(8);
        let direct = offsets().map(|at| Self { at, within: None });
        let behind = offsets().flat_map(|at| {
            let within = (0..SEARCHED_EXTENSION_BYTES).step_by(8);
            within.map(move |within| Self { at, within: Some(within) })
        });
        direct.chain(behind).find(|place| {
            let constants = place.constants(objects.image, &slot, budget);
            let has = |class: Address| constants.iter().any(|(_, value)| *value == class.0);
            landmarks.iter().all(|landmark| has(landmark.class))
        })
    }
}

/// All that is known of a program before its named_roots are read.
struct Program<'a> {
    space: &'a ObjectSpace,
    interpreter: &'a Interpreter,
    objects: Objects<'a>,
    naming: Naming,
    symbols: Symbols<'a>,
    constants: ConstantPlace,
    /// The word of a singleton class that is its object (from 3.2 on).
    attached_at: Option<usize>,
    budget: Budget,
}

impl<'a> Program<'a> {
    fn read(
        space: &'a ObjectSpace,
        interpreter: &'a Interpreter,
        objects: Objects<'a>,
    ) -> Option<Self> {
        let landmarks = interpreter.landmarks(objects.image);
        let naming = Naming::derive(objects, &landmarks, Shapes::find(objects.image, interpreter))?;
        let budget = Budget::new();
        let constants = ConstantPlace::derive(objects, &landmarks, &budget)?;
        let object = landmarks.iter().find(|it| it.name == "Object")?;
        let own = constants.constants(objects.image, &objects.class(object.class)?, &budget);
        // A class may have more names than one, as Integer has in 2.7.
        let known = landmarks.iter().map(|landmark| {
            let of_it = own.iter().filter(|(_, value)| *value == landmark.class.0);
            (landmark.name, of_it.map(|(serial, _)| *serial).collect())
        });
        let symbols =
            Symbols::find(space, interpreter, objects, naming, &known.collect::<Vec<_>>())?;
        let attached_at = attached_at(objects, &landmarks);
        Some(Self { space, interpreter, objects, naming, symbols, constants, attached_at, budget })
    }

    /// All classes and modules.
    fn classes(&self) -> impl Iterator<Item = Address> + '_ {
        (0..self.space.slots.len() as u32).filter_map(|slot| self.class(slot))
    }

    /// The class or module in this slot.
    fn class(&self, slot: u32) -> Option<Address> {
        let it = self.space.slots.get(slot as usize)?;
        let is_class = it.is_live() && matches!(it.kind, SlotType::CLASS | SlotType::MODULE);
        is_class.then(|| self.space.slot_address(slot as usize)).flatten()
    }

    /// The live object that a value is; `None` for numbers, symbols and such.
    fn object(&self, value: u64) -> Option<u32> {
        let slot = self.space.slot_at(Address(value))?;
        self.space.slots.get(slot as usize)?.is_live().then_some(slot)
    }

    /// A class's name; that of its object in the way of Ruby where it is a singleton class, and its
    /// address where it has none.
    fn class_name(&self, class: Address) -> String {
        let name = |class| self.naming.name(self.objects, class);
        name(class).unwrap_or_else(|| {
            let is_class = self.objects.kinds.at(class).is_some_and(|it| it.0 == SlotType::CLASS);
            let kind = if is_class { "Class" } else { "Module" };
            match self.attached(class).and_then(name) {
                Some(name) => format!("#<{kind}:{name}>"),
                None => format!("#<{kind}:{:#018x}>", class.0),
            }
        })
    }

    /// The class or module whose singleton class this is.
    fn attached(&self, class: Address) -> Option<Address> {
        let object = match self.attached_at {
            Some(at) => word(&self.objects.class(class)?, at),
            None => {
                let table = self.naming.variables(self.objects, class)?;
                let variables = read_st_table(self.objects.image, table, MOST_VARIABLES)?;
                let is_it = |id| self.symbols.name_of_id(id).as_deref() == Some(ATTACHED);
                variables.into_iter().find(|(id, _)| is_it(*id))?.1
            }
        };
        let names_it = word(&self.objects.class(Address(object))?, CLASS) == class.0;
        names_it.then_some(Address(object))
    }

    /// Adds the constants and variables of one class.
    fn add_holders_of(
        &self,
        class: Address,
        variables: Option<&VariablePlace>,
        found: &mut Vec<NamedRoot>,
    ) {
        if self.budget.is_spent() {
            return;
        }
        let Some(slot) = self.objects.class(class) else { return };
        let constants =
            self.constants.constants(self.objects.image, &slot, &self.budget).into_iter();
        let constants = constants.filter_map(|(serial, value)| {
            let name = |name: String| is_constant(&name).then_some((RootKind::Constant, name));
            Some((self.object(value)?, name(self.symbols.name(serial)?)?))
        });
        let variables = variables.map_or(Vec::new(), |it| it.variables(self, class, &slot));
        if self.budget.spend(variables.len() as u64).is_none() {
            return;
        }
        let variables = variables.into_iter().filter_map(|(id, value)| {
            let name = |name: String| Some((variable_kind(&name)?, name));
            Some((self.object(value)?, name(self.symbols.name_of_id(id)?)?))
        });
        let mut own = None;
        for (value, (kind, name)) in constants.chain(variables) {
            let own = own.get_or_insert_with(|| self.class_name(class));
            let name = match kind {
                RootKind::Constant if own == "Object" => name,
                RootKind::Constant => format!("{own}::{name}"),
                RootKind::InstanceVariable => format!("{own}.{name}"),
                RootKind::ClassVariable | RootKind::GlobalVariable => format!("{own}{name}"),
            };
            found.push(NamedRoot { kind, name, value });
        }
    }

    /// `None` where their table could not be found.
    fn global_variables(&self) -> Option<Vec<NamedRoot>> {
        let image = self.objects.image;
        let mappings = &image.state.mappings;
        let is_memory = |at: Address| mappings.find(at).is_some_and(|it| it.is_private_anonymous());
        let mut words = symbols::variables(image, self.interpreter).map(|(_, word)| Address(word));
        let globals = words.find_map(|at| {
            (at.0 != 0 && is_memory(at)).then(|| self.table_of_globals(at)).flatten()
        })?;
        let modules = elf::modules(image);
        let own = modules.iter().find(|it| it.name == self.interpreter.module);
        let getter = own.and_then(|it| it.symbol(image, "rb_gvar_var_getter").ok().flatten());
        let found = globals.into_iter().filter_map(|(name, variable)| {
            let mut members = [0; 24];
            image.read_exact(variable, &mut members).ok()?;
            let data = word(&members, GLOBAL_DATA);
            // A program's own has its value there, one of C's code a pointer to it.
            let value = self.object(data).or_else(|| {
                let is_pointer =
                    Some(word(&members, GLOBAL_GETTER)) == getter.map(|it| it.address.0);
                let value = image.read_u64(Address(data)).ok().filter(|_| is_pointer)?;
                self.object(value)
            })?;
            Some(NamedRoot { kind: RootKind::GlobalVariable, name, value })
        });
        Some(found.collect())
    }

    /// The names and variables in the table at `at`; `None` where it is not that of global
    /// variables: each of its entries names its variable and its own key again, as an ID
    /// (`struct rb_global_entry` in internal/variable.h), and all names begin with a dollar.
    fn table_of_globals(&self, at: Address) -> Option<Vec<(String, Address)>> {
        let entries = read_id_table(self.objects.image, at, &Budget::new())?;
        if entries.len() < FEWEST_GLOBALS {
            return None;
        }
        let mut found = Vec::with_capacity(entries.len());
        for (serial, entry) in entries {
            let mut members = [0; 16];
            self.objects.image.read_exact(Address(entry), &mut members).ok()?;
            let name = self.symbols.name_of_id(word(&members, 8))?;
            if !name.starts_with('$') || self.symbols.name(serial).as_ref() != Some(&name) {
                return None;
            }
            found.push((name, Address(word(&members, 0))));
        }
        Some(found)
    }
}

/// Where a class keeps the values of its instance variables, among which its class variables are.
enum VariablePlace {
    /// In a table by their IDs (up to 3.1).
    Table,
    /// Behind a word of its slot, in the order that its shape says (3.3, 3.4).
    Shape { at: usize, shapes: Shapes },
}

impl VariablePlace {
    /// The place at which all classes that Struct made have the names of their members.
    fn derive(program: &Program<'_>) -> Option<Self> {
        if program.classes().any(|it| program.naming.variables(program.objects, it).is_some()) {
            return Some(Self::Table);
        }
        let image = program.objects.image;
        let shapes = Shapes::find_tree(image, program.interpreter)?;
        let with_members = program.classes().filter_map(|class| {
            let slot = program.objects.class(class)?;
            let mut places = shapes.places(image, word(&slot, 0));
            let is_it = |id| program.symbols.name_of_id(id).as_deref() == Some(MEMBERS);
            let place = places.find(|(id, _)| is_it(*id))?.1;
            Some((slot, place))
        });
        let with_members: Vec<_> = with_members.take(ENOUGH_CLASSES).collect();
        let length = with_members.first()?.0.len();
        let mut places = (16..length).step_by(8).map(|at| Self::Shape { at, shapes });
        places.find(|it| {
            with_members.iter().all(|(slot, place)| {
                let value = it.value(image, slot, *place);
                let kind = value.and_then(|value| program.objects.kinds.at(Address(value)));
                kind.is_some_and(|it| it.0 == SlotType::ARRAY)
            })
        })
    }

    fn value(&self, image: &Image<'_>, slot: &[u8], place: u64) -> Option<u64> {
        let Self::Shape { at, .. } = self else { return None };
        let values = Address(word(slot, *at));
        image.read_u64(values.offset(place * 8)).ok().filter(|_| values.0 != 0)
    }

    /// The variables of a class: IDs of names, and values.
    fn variables(&self, program: &Program<'_>, class: Address, slot: &[u8]) -> Vec<(u64, u64)> {
        let image = program.objects.image;
        match self {
            Self::Table => program
                .naming
                .variables(program.objects, class)
                .and_then(|table| read_st_table(image, table, MOST_VARIABLES))
                .unwrap_or_default(),
            Self::Shape { shapes, .. } => {
                let places = shapes.places(image, word(slot, 0));
                let value = |(id, place)| Some((id, self.value(image, slot, place)?));
                places.filter_map(value).collect()
            }
        }
    }
}

/// The word of singleton classes that is their object: that in which those of the landmarks have it.
fn attached_at(objects: Objects<'_>, landmarks: &[Landmark]) -> Option<usize> {
    let singletons = landmarks.iter().filter_map(|landmark| {
        let singleton = Address(word(&objects.class(landmark.class)?, CLASS));
        Some((landmark.class, objects.class(singleton)?))
    });
    let is_class =
        |it: &(Address, _)| objects.kinds.at(it.0).is_some_and(|it| it.0 == SlotType::CLASS);
    let singletons: Vec<_> = singletons.filter(is_class).collect();
    let length = singletons.first()?.1.len();
    let mut places = (16..length).step_by(8);
    places.find(|&at| singletons.iter().all(|(class, slot)| word(slot, at) == class.0))
}

/// The kind of a class's variable with this name; `None` for those that Ruby keeps there for itself.
fn variable_kind(name: &str) -> Option<RootKind> {
    match name.as_bytes() {
        [b'@', b'@', ..] => Some(RootKind::ClassVariable),
        [b'@', ..] => Some(RootKind::InstanceVariable),
        _ => None,
    }
}

/// Ruby's own constants, which programs do not see, have other names.
fn is_constant(name: &str) -> bool {
    name.chars().next().is_some_and(char::is_uppercase)
}
