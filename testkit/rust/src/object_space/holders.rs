//! Constants, variables of classes and global variables, and their names, as Ruby stores them up to 4.0 (symbol.c,
//! id_table.c, constant.h, variable.c, shape.h of these releases).

use std::collections::BTreeMap;

use super::release::NamePlace;
use super::{RubyHeap, Word};

const T_ARRAY: u8 = 7;
/// The address of the list of shapes.
pub(super) const SHAPE_LIST: u64 = 0x7f50_0000_0000;
pub(super) const SHAPE_LIST_BYTES: u64 = 0x10000;
/// The function that reads a global variable which C code declares.
pub(super) const VARIABLE_GETTER: u64 = RubyHeap::FUNCTION + 0x80;

const UNIT: u64 = 512;
/// The number of the first name that is not an operator.
const FIRST_SERIAL: u64 = 180;
/// The distance between the numbers of names, large enough that more than one array of names is needed.
const SERIAL_STEP: u64 = 13;
const NIL: u64 = 8;
const UNDEFINED: u64 = 0x34;

/// A root: the class or module that has it (0 for a global variable), its name, and its value.
pub type Held<'a> = (u64, &'a str, u64);

/// The numbers of names.
#[derive(Default)]
struct Names(BTreeMap<String, u64>);

impl Names {
    fn serial(&mut self, name: &str) -> u64 {
        let next = FIRST_SERIAL + SERIAL_STEP * self.0.len() as u64;
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    fn id(&mut self, name: &str) -> u64 {
        let scope = match name.as_bytes() {
            [b'@', b'@', ..] => 6,
            [b'@', ..] => 1,
            [b'$', ..] => 3,
            [first, ..] if first.is_ascii_uppercase() => 5,
            _ => 0,
        };
        self.serial(name) << 4 | scope << 1 | 1
    }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl RubyHeap {
    /// Adds constants, variables of classes, and global variables to those that every Ruby has. Every other global
    /// variable is declared by C code. Call it at most once, after everything else.
    ///
    /// Returns the names of the roots that refer to objects, with the objects' addresses, sorted by kind and name.
    ///
    /// # Panics
    /// If the release is 4.1 or later, whose tables are not known.
    pub fn hold(
        &mut self,
        constants: &[Held<'_>],
        variables: &[Held<'_>],
        globals: &[Held<'_>],
    ) -> Vec<(String, u64)> {
        assert!(self.layout.version < "4.1", "not known");
        let mut names = Names::default();
        let object = self.object_class();
        let well_known: Vec<(u64, String, u64)> = self
            .variables
            .iter()
            .map(|&(_, class)| (object, self.names[&class].clone(), class))
            .collect();
        let structure = self.class("Members", object);
        let members = self.slot(T_ARRAY, 0, 0, &[Word::Value(0); 3]);
        let mut constants: Vec<(u64, String, u64)> =
            constants.iter().map(|&(of, name, value)| (of, name.to_owned(), value)).collect();
        constants.extend(well_known);
        let mut variables = variables.to_vec();
        variables.push((structure, "__members__", members));
        variables.push((structure, "@after", members));

        let mut tables: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for (owner, name, value) in &constants {
            let entry = self.malloc(24);
            self.memory.push((entry, bytes(&[7 << 32, *value, NIL])));
            tables.entry(*owner).or_default().push((names.serial(name), entry));
        }
        let tables: BTreeMap<u64, u64> =
            tables.into_iter().map(|(owner, rows)| (owner, self.id_table(&rows))).collect();
        let mut of_class: BTreeMap<u64, Vec<(&str, u64)>> = BTreeMap::new();
        for &(owner, name, value) in &variables {
            of_class.entry(owner).or_default().push((name, value));
        }
        match self.layout.name {
            NamePlace::Table => self.extend_classes(&tables, &of_class, &mut names),
            NamePlace::Variable => self.set_constants(&tables),
            NamePlace::Slot(_) if self.layout.version >= "4" => {
                self.set_constants(&tables);
                self.give_fields(&of_class, &mut names);
            }
            NamePlace::Slot(_) => {
                self.set_constants(&tables);
                self.shape_classes(&of_class, &mut names);
            }
        }
        self.write_globals(globals, &mut names);
        self.write_names(&names);

        let mut held = vec![Vec::new(); 4];
        for (owner, name, value) in &constants {
            let prefix =
                if *owner == object { String::new() } else { self.names[owner].clone() + "::" };
            held[0].push((format!("{prefix}{name}"), *value));
        }
        let seen = if self.layout.name == NamePlace::Variable { &[] } else { &variables[..] };
        for (owner, name, value) in seen.iter().filter(|it| it.1.starts_with('@')) {
            let is_of_class = name.starts_with("@@");
            let separator = if is_of_class { "" } else { "." };
            let name = format!("{}{separator}{name}", self.names[owner]);
            held[if is_of_class { 2 } else { 1 }].push((name, *value));
        }
        held[3] = globals.iter().map(|&(_, name, value)| (name.to_owned(), value)).collect();
        held.iter_mut().for_each(|kind| kind.sort());
        let is_object = |it: &(String, u64)| self.objects.contains_key(&it.1);
        held.into_iter().flatten().filter(is_object).collect()
    }

    /// Adds a table with serial numbers as keys.
    fn id_table(&mut self, rows: &[(u64, u64)]) -> u64 {
        let capacity = (rows.len() as u64 * 3 / 2 + 1).next_power_of_two();
        let (table, entries) = (self.malloc(24), self.malloc(capacity * 16));
        let mut all = vec![0; capacity as usize * 2];
        for &(serial, value) in rows {
            let mut at = serial % capacity;
            while all[at as usize * 2] != 0 {
                all[at as usize * 2] |= 1 << 32;
                at = (at + 1) % capacity;
            }
            all[at as usize * 2] = serial;
            all[at as usize * 2 + 1] = value;
        }
        let count = rows.len() as u64;
        self.memory.push((table, bytes(&[capacity | count << 32, count + 1, entries])));
        self.memory.push((entries, bytes(&all)));
        table
    }

    /// Writes the parts of classes outside their slots: variables, which include the name, and constants.
    fn extend_classes(
        &mut self,
        constants: &BTreeMap<u64, u64>,
        variables: &BTreeMap<u64, Vec<(&str, u64)>>,
        names: &mut Names,
    ) {
        let classes: Vec<u64> = self.names.keys().copied().collect();
        for class in classes {
            let name = self.name_strings[&class];
            let mut rows = vec![1, 0x1331, 0x15, 2, 0x0bf1, name];
            for &(name, value) in variables.get(&class).into_iter().flatten() {
                rows.extend([3, names.id(name), value]);
            }
            let count = rows.len() as u64 / 3;
            let (extension, table, entries) =
                (self.malloc(104), self.malloc(56), self.malloc(rows.len() as u64 * 8));
            let constants = constants.get(&class).copied().unwrap_or(0);
            self.memory.push((extension, bytes(&[0, table, constants])));
            let header = [0x0002, RubyHeap::FUNCTION, count, 0, 0, count, entries];
            self.memory.push((table, bytes(&header)));
            self.memory.push((entries, bytes(&rows)));
            self.set_word(class, 24, Word::Pointer(extension));
        }
    }

    fn set_constants(&mut self, constants: &BTreeMap<u64, u64>) {
        for (&class, &table) in constants {
            self.set_word(class, 40, Word::Pointer(table));
        }
    }

    /// Writes the shapes of the classes with variables, each in a branch of its own, and their values.
    fn shape_classes(&mut self, variables: &BTreeMap<u64, Vec<(&str, u64)>>, names: &mut Names) {
        const ROOT: u64 = 0;
        const IVAR: u64 = 1;
        const FROZEN: u64 = 2;
        // Name; number of variables and capacity; type and parent; unused.
        let mut shapes = vec![[0, 0, 0, 0xffff_ffff << 32, 0]];
        for (&class, own) in variables {
            let mut parent = ROOT;
            for (number, (name, _)) in (1..).zip(own) {
                shapes.push([0, names.id(name), number | 4 << 32, IVAR | parent << 32, 0]);
                parent = shapes.len() as u64 - 1;
            }
            shapes.push([0, 0x5eed1, own.len() as u64, FROZEN | parent << 32, 0]);
            let shape = shapes.len() as u64 - 1;
            let values = self.malloc(own.len() as u64 * 8);
            self.memory.push((values, bytes(&own.iter().map(|it| it.1).collect::<Vec<_>>())));
            self.set_word(class, 32, Word::Pointer(values));
            self.objects.get_mut(&class).expect("the class exists").flags |= shape << 32;
        }
        let tree = self.malloc(40);
        self.memory.push((tree, bytes(&[SHAPE_LIST, SHAPE_LIST, shapes.len() as u64])));
        self.shape_list = bytes(&shapes.concat());
        self.interpreter_words.extend([0x20, tree]);
    }

    /// Does the same for 4.0 and later: the values are in internal objects, whose flags contain the shape. If a class
    /// does not have exactly two variables, the values are in malloc'ed memory.
    fn give_fields(&mut self, variables: &BTreeMap<u64, Vec<(&str, u64)>>, names: &mut Names) {
        const NONE: u64 = 0xffff_ffff;
        const IVAR: u64 = 1;
        const OBJECT_ID: u64 = 2;
        const T_IMEMO: u8 = 0x1a;
        const FIELDS: u64 = 13 << 12;
        const ON_HEAP: u64 = 1 << 16;
        const FROZEN: u64 = 1 << 22;
        // Edges, name, index of ancestors, parent with number of fields and capacity, type.
        let mut shapes = vec![[0, 0, 0, NONE, 0]];
        for (&class, own) in variables {
            let mut parent = 0;
            for (number, (name, _)) in (1..).zip(own) {
                let numbers = parent | number << 32 | 4 << 48;
                shapes.push([0x5eed, names.id(name), 0, numbers, IVAR]);
                parent = shapes.len() as u64 - 1;
            }
            let count = own.len() as u64;
            shapes.push([0, 0x5eed1, 0, parent | (count + 1) << 32, OBJECT_ID]);
            let shape = ((shapes.len() as u64 - 1) | FROZEN) << 32;
            let values: Vec<u64> = own.iter().map(|it| it.1).collect();
            let fields = match &values[..] {
                [first, second] => {
                    let words = [Word::Value(*first), Word::Value(*second)];
                    self.slot(T_IMEMO, FIELDS | shape, class, &words)
                }
                values => {
                    let memory = self.malloc(count * 8);
                    self.memory.push((memory, bytes(values)));
                    let words = [Word::Pointer(memory)];
                    self.slot(T_IMEMO, FIELDS | ON_HEAP | shape, class, &words)
                }
            };
            self.imemos.insert(fields, "fields".to_owned());
            self.set_word(class, 48, Word::Value(fields));
            self.objects.get_mut(&class).expect("the class exists").flags |= shape;
        }
        self.shape_list = bytes(&shapes.concat());
        let count = shapes.len() as u64;
        self.interpreter_words.extend([0x20, SHAPE_LIST, SHAPE_LIST, count]);
    }

    fn write_globals(&mut self, globals: &[Held<'_>], names: &mut Names) {
        let own: Vec<String> = (0..25).map(|number| format!("$own{number}")).collect();
        let own = own.iter().map(|name| (0, name.as_str(), 0));
        let mut rows = Vec::new();
        for (number, (_, name, value)) in globals.iter().copied().chain(own).enumerate() {
            let (entry, variable, place) = (self.malloc(24), self.malloc(72), self.malloc(8));
            self.memory.push((place, bytes(&[value])));
            let (data, getter) = match number % 2 {
                0 => (value, RubyHeap::FUNCTION + 0x40),
                _ => (place, VARIABLE_GETTER),
            };
            self.memory.push((variable, bytes(&[1, data, getter, RubyHeap::FUNCTION])));
            self.memory.push((entry, bytes(&[variable, names.id(name)])));
            rows.push((names.serial(name), entry));
        }
        let table = self.id_table(&rows);
        let other = self.id_table(&rows[..3]);
        self.interpreter_words.extend([other, table]);
    }

    /// Writes the arrays of names, and another array that has no names.
    fn write_names(&mut self, names: &Names) {
        let arrays = names.0.values().max().expect("there are some") / UNIT + 1;
        let mut strings = vec![vec![NIL; UNIT as usize * 2]; arrays as usize];
        for (name, serial) in &names.0 {
            let array = &mut strings[(serial / UNIT) as usize];
            array[(serial % UNIT) as usize * 2] = self.string(name);
            array[(serial % UNIT) as usize * 2 + 1] = serial << 12 | 0xc;
        }
        let strings: Vec<u64> = strings.iter().map(|words| self.hidden_array(words)).collect();
        let other = self.hidden_array(&[UNDEFINED; 30]);
        let all = self.hidden_array(&strings);
        self.interpreter_words.extend([other, 0x400, MEMORY, all]);
    }

    fn hidden_array(&mut self, words: &[u64]) -> u64 {
        let elements = self.malloc(words.len() as u64 * 8);
        self.memory.push((elements, bytes(words)));
        let length = words.len() as u64;
        self.slot(
            T_ARRAY,
            0,
            0,
            &[Word::Value(length), Word::Value(length), Word::Pointer(elements)],
        )
    }
}

/// An address in memory that has nothing to do with names.
const MEMORY: u64 = 0x7f30_0000_0100;
