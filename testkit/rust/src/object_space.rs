//! A writer of synthetic Ruby heaps: objects are put into slots of pages, and written as Ruby of a given release would
//! write them.
//!
//! Offsets are from Ruby's sources and DWARF, not from the reader, so an error in either one makes them disagree.

mod classes;
mod code;
mod holders;
mod pages;
mod release;
mod shapes;
mod writing;

use std::collections::BTreeMap;

pub use holders::Held;
use pages::HeapPage;
use release::Layout;
pub use release::{RubyRelease, Shift};

const PAGES_START: u64 = 0x7f20_0000_0000;
const MEMORY_START: u64 = 0x7f30_0000_0000;
/// The address of the interpreter's object space.
const OBJECT_SPACE: u64 = MEMORY_START + 0x1000;
/// The size of an object space, of which several lie close together, and the maximum number of them.
const OBJECT_SPACE_BYTES: u64 = 0x1400;
const MAX_SPACES: u64 = 4;

/// Every Ruby starts with more than one page.
const FIRST_PAGES: usize = 12;

const T_OBJECT: u8 = 1;
const T_CLASS: u8 = 2;
const T_MODULE: u8 = 3;
const T_FLOAT: u8 = 4;
const T_STRING: u8 = 5;
const T_DATA: u8 = 0xc;
const T_MATCH: u8 = 0xd;
const T_IMEMO: u8 = 0x1a;
const T_ICLASS: u8 = 0x1c;

const OLD_FLAG: u64 = 1 << 5;
const NOT_EMBEDDED: u64 = 1 << 13;

/// A word of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// A pointer to malloc'ed memory.
    Pointer(u64),
    /// Anything else: a value, a number, the address of another object.
    Value(u64),
}

/// An object in a slot.
#[derive(Debug, Clone)]
struct Object {
    address: u64,
    kind: u8,
    flags: u64,
    /// The word in the place of the class.
    class: u64,
    words: Vec<Word>,
    is_marked: bool,
    is_old: bool,
    is_unprotected: bool,
}

/// The facts that a reader of a synthetic heap must find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RubyTruth {
    /// The result of `ObjectSpace.count_objects`.
    pub counts: BTreeMap<String, u64>,
    /// The number of objects by the name of their class; by their type in parentheses if they have no class.
    pub classes: BTreeMap<String, u64>,
    /// Slots and the pointers in them, ascending by slot.
    pub references: Vec<(u64, u64)>,
    /// Slots and the other slots that their words refer to, ascending by slot.
    pub links: Vec<(u64, u64)>,
    /// The slots of objects that wrap a C struct, ascending, and the name of its type; `None` if it has none.
    pub data: Vec<(u64, Option<String>)>,
    /// The slots of marked objects, ascending.
    pub marked: Vec<u64>,
    /// The pages, ascending, those without slots included.
    pub pages: Vec<u64>,
    /// For each object space, the address of its array of pages, and the bytes of it that are in use.
    pub page_arrays: Vec<(u64, u64)>,
}

/// A Ruby heap to be written.
#[derive(Debug, Clone)]
pub struct RubyHeap {
    layout: Layout,
    objects: BTreeMap<u64, Object>,
    names: BTreeMap<u64, String>,
    /// The strings that are the names of classes.
    name_strings: BTreeMap<u64, u64>,
    singletons: BTreeMap<u64, u64>,
    /// The names of types by their addresses.
    data_types: BTreeMap<u64, String>,
    /// The types of objects that have one, by their slots.
    typed: BTreeMap<u64, u64>,
    /// The types of internal objects, by their slots.
    imemos: BTreeMap<u64, String>,
    pages: Vec<HeapPage>,
    /// Pages without slots, which are kept for slots of any size (from 3.4 on).
    emptied: usize,
    /// Pages that were freed, but whose memory still looks like pages.
    freed: usize,
    /// True if the mark bits of each page that belong to no slot are set, as on pages that Ruby sweeps.
    is_swept: bool,
    /// The number of object spaces that share the pages: one, or one for each Ractor (from 4.1 on).
    spaces: usize,
    next_page: u64,
    next_memory: u64,
    /// The contents of malloc'ed memory.
    memory: Vec<(u64, Vec<u8>)>,
    variables: Vec<(&'static str, u64)>,
    /// Words among the interpreter's variables that are not exported.
    interpreter_words: Vec<u64>,
    /// The list of shapes (from 3.3 on); empty if no test needs it.
    shape_list: Vec<u8>,
}

impl RubyHeap {
    /// The address of code of the interpreter.
    pub const FUNCTION: u64 = 0x7f10_0000_3000;

    /// A heap with the classes and modules that every Ruby has.
    #[must_use]
    pub fn new(release: RubyRelease) -> Self {
        Self::with_layout(release.layout())
    }

    /// A heap of a release with a changed layout.
    #[must_use]
    pub fn shifted(release: RubyRelease, shift: Shift) -> Self {
        Self::with_layout(release.layout().shifted(shift))
    }

    fn with_layout(layout: Layout) -> Self {
        let mut heap = Self {
            layout,
            objects: BTreeMap::new(),
            names: BTreeMap::new(),
            name_strings: BTreeMap::new(),
            singletons: BTreeMap::new(),
            data_types: BTreeMap::new(),
            typed: BTreeMap::new(),
            imemos: BTreeMap::new(),
            pages: Vec::new(),
            emptied: 0,
            freed: 0,
            is_swept: false,
            spaces: 1,
            next_page: PAGES_START,
            next_memory: OBJECT_SPACE + MAX_SPACES * OBJECT_SPACE_BYTES,
            memory: Vec::new(),
            variables: Vec::new(),
            interpreter_words: Vec::new(),
            shape_list: Vec::new(),
        };
        for &bytes in heap.layout.slot_sizes.iter().cycle().take(FIRST_PAGES) {
            heap.add_page(bytes);
        }
        // Names are strings, which need the class String: classes come first, names later.
        let basic = heap.bare_class(T_CLASS, 0);
        let object = heap.bare_class(T_CLASS, basic);
        let module = heap.bare_class(T_CLASS, object);
        let class = heap.bare_class(T_CLASS, module);
        let string = heap.bare_class(T_CLASS, object);
        heap.variables = vec![
            ("rb_cObject", object),
            ("rb_cModule", module),
            ("rb_cClass", class),
            ("rb_cString", string),
        ];
        let first = [
            (basic, "BasicObject"),
            (object, "Object"),
            (module, "Module"),
            (class, "Class"),
            (string, "String"),
        ];
        for (class, _) in first {
            heap.give_class_its_own(class);
        }
        for (class, name) in first {
            heap.name(class, name);
        }
        for (symbol, name) in [
            ("rb_cArray", "Array"),
            ("rb_cHash", "Hash"),
            ("rb_cInteger", "Integer"),
            ("rb_cProc", "Proc"),
        ] {
            let class = heap.class(name, object);
            heap.variables.push((symbol, class));
        }
        let kernel = heap.bare_class(T_MODULE, 0);
        heap.objects.get_mut(&kernel).expect("it was made above").class = module;
        heap.name(kernel, "Kernel");
        heap.variables.push(("rb_mKernel", kernel));
        heap
    }

    fn well_known(&self, symbol: &str) -> u64 {
        let found = self.variables.iter().find(|(own, _)| *own == symbol);
        found.unwrap_or_else(|| panic!("{symbol} is known")).1
    }

    /// The class Object.
    #[must_use]
    pub fn object_class(&self) -> u64 {
        self.well_known("rb_cObject")
    }

    /// The class String.
    #[must_use]
    pub fn string_class(&self) -> u64 {
        self.well_known("rb_cString")
    }

    /// Adds an object to the first free slot that is large enough and returns its address.
    fn put(&mut self, kind: u8, flags: u64, class: u64, words: Vec<Word>) -> u64 {
        let needed = (16 + 8 * words.len() as u64).max(32);
        let sizes = self.layout.slot_sizes;
        let bytes =
            sizes.iter().copied().find(|&bytes| bytes >= needed).unwrap_or(sizes[sizes.len() - 1]);
        let address = self.free_slot(bytes);
        let (is_marked, is_old, is_unprotected) = (false, false, false);
        let flags = flags | u64::from(kind);
        let object =
            Object { address, kind, flags, class, words, is_marked, is_old, is_unprotected };
        self.objects.insert(address, object);
        address
    }

    /// Takes malloc'ed memory that no allocator of this crate knows of and returns its address.
    pub fn malloc(&mut self, bytes: u64) -> u64 {
        let at = self.next_memory;
        self.next_memory += bytes.next_multiple_of(16) + 16;
        at
    }

    fn set_word(&mut self, object: u64, at: u64, word: Word) {
        let object = self.objects.get_mut(&object).expect("the object exists");
        object.words[at as usize / 8 - 2] = word;
    }

    /// Adds an object of `class`, of a type that may have anything in the words of its slot.
    pub fn object(&mut self, class: u64, words: &[Word]) -> u64 {
        self.put(T_MATCH, 0, class, words.to_vec())
    }

    /// Adds an object of a type and a class (0 for none) with flags of its own.
    pub fn slot(&mut self, kind: u8, flags: u64, class: u64, words: &[Word]) -> u64 {
        self.put(kind, flags, class, words.to_vec())
    }

    /// Adds an internal object of the type that Ruby's releases call `name`, with the other objects that it needs.
    /// Returns its address.
    ///
    /// # Panics
    /// If the release has no such type.
    pub fn imemo(&mut self, name: &str) -> u64 {
        let memory = self.malloc(400);
        self.imemo_as(name, self.layout.imemo_number(name), memory)
    }

    /// Adds a method entry without a definition: a cached failure to find a method.
    pub fn missing_method(&mut self) -> u64 {
        const NIL: u64 = 8;
        let number = u64::from(self.layout.imemo_number("ment"));
        let words = vec![Word::Value(0), Word::Value(0xc541), Word::Value(NIL)];
        let own = self.put(T_IMEMO, number << 12, NIL, words);
        self.imemos.insert(own, "ment".to_owned());
        own
    }

    /// Adds the cache of a constant with this value, evaluated at a place of code (`ic_cref`) whose slot may have another object now.
    pub fn constant_cache(&mut self, value: u64, place: u64) -> u64 {
        let number = u64::from(self.layout.imemo_number("constcache"));
        let words = [0, 0, place].map(Word::Value);
        let own = self.put(T_IMEMO, number << 12, value, words.to_vec());
        self.imemos.insert(own, "constcache".to_owned());
        own
    }

    /// Adds a cache of a call's class and method. Its last word is that of an object that had the slot before.
    pub fn method_cache(&mut self, class: u64, method: u64, stale: u64) -> u64 {
        let number = u64::from(self.layout.imemo_number("callcache"));
        let words = [method, Self::FUNCTION, stale].map(Word::Value);
        let own = self.put(T_IMEMO, number << 12, class, words.to_vec());
        self.imemos.insert(own, "callcache".to_owned());
        own
    }

    /// Adds an internal object of the type `name`, but with a type number chosen by the caller. Its malloc'ed memory,
    /// 400 bytes, is at `memory`.
    pub fn imemo_as(&mut self, name: &str, number: u8, memory: u64) -> u64 {
        let object = self.object_class();
        let (class, flags, words) = match name {
            "iseq" => (0, 0, vec![Word::Pointer(memory)]),
            "ment" => {
                let name = Word::Value(0x1230c);
                (object, 0, vec![Word::Pointer(memory), name, Word::Value(object)])
            }
            "callcache" => {
                let method = self.imemo("ment");
                (object, 0, vec![Word::Value(method), Word::Value(Self::FUNCTION)])
            }
            "env" => {
                let (top, count) = (Word::Value(memory + 32), Word::Value(6));
                (self.imemo("iseq"), 0, vec![top, Word::Pointer(memory), count])
            }
            "fields" => {
                let shape = 0x77 << 32;
                let owner = self.slot(T_OBJECT, shape, object, &[Word::Value(1)]);
                (owner, shape, vec![Word::Pointer(memory)])
            }
            // No refinements, a module, no outer place, and a visibility.
            "cref" => (0, 0, vec![Word::Value(object), Word::Value(0), Word::Value(1)]),
            "constcache" => (object, 0, vec![]),
            _ => (0, 0, vec![Word::Value(1), Word::Pointer(memory)]),
        };
        let own = self.put(T_IMEMO, u64::from(number) << 12 | flags, class, words);
        self.imemos.insert(own, name.to_owned());
        if name == "iseq" {
            let label = self.string("label");
            // The number of instructions is in the upper half of the first word.
            for (offset, word) in [(0, 1 << 32), (64, label), (184, own)] {
                self.memory.push((memory + offset, word.to_le_bytes().to_vec()));
            }
        }
        own
    }

    /// Adds a type of C structs that objects wrap, as extensions define them, and returns its address.
    pub fn data_type(&mut self, name: &str, has_memsize: bool) -> u64 {
        let size = if has_memsize { Self::FUNCTION } else { 0 };
        self.data_type_of(name, Self::FUNCTION + 16, size)
    }

    /// Adds a type of C structs that their objects borrow: it has no function that frees or measures them.
    pub fn borrowed_data_type(&mut self, name: &str) -> u64 {
        self.data_type_of(name, 0, 0)
    }

    fn data_type_of(&mut self, name: &str, free: u64, size: u64) -> u64 {
        let (text, own) = (self.malloc(name.len() as u64 + 1), self.malloc(80));
        self.memory.push((text, name.as_bytes().to_vec()));
        // The name; functions that mark, free and measure.
        let words = [text, 0, free, size];
        self.memory.push((own, words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        self.data_types.insert(own, name.to_owned());
        own
    }

    /// Adds an object of `class` (0 for none) that wraps a C struct at `pointer`, or in its own slot if that is 0 (from
    /// 3.3 on).
    pub fn data(&mut self, class: u64, data_type: u64, pointer: u64) -> u64 {
        let is_embedded = pointer == 0;
        let data = if is_embedded { Word::Value(0) } else { Word::Pointer(pointer) };
        let words = if self.layout.tagged_types {
            let data_type =
                if is_embedded { Word::Value(data_type | 1) } else { Word::Pointer(data_type) };
            vec![Word::Value(0), data_type, data]
        } else {
            vec![Word::Pointer(data_type), Word::Value(if is_embedded { 3 } else { 1 }), data]
        };
        let own = self.put(T_DATA, 0, class, words);
        self.typed.insert(own, data_type);
        own
    }

    /// Adds an object of `class` that wraps a C struct at `pointer` without a type: the function
    /// that frees it is at [`RubyHeap::FUNCTION`].
    pub fn untyped_data(&mut self, class: u64, pointer: u64) -> u64 {
        let words = vec![Word::Value(0), Word::Value(Self::FUNCTION), Word::Pointer(pointer)];
        self.put(T_DATA, 0, class, words)
    }

    /// Adds a string that is short enough to be embedded in its slot.
    ///
    /// # Panics
    /// If it is too long for slots of this release.
    pub fn string(&mut self, text: &str) -> u64 {
        let class = self.well_known("rb_cString");
        let mut bytes = text.as_bytes().to_vec();
        let mut flags = 0;
        if self.layout.length_in_flags {
            assert!(bytes.len() <= 23, "{text} is too long to be embedded");
            flags = (bytes.len() as u64) << 14;
            bytes.resize(24, 0);
        } else {
            bytes.splice(0..0, (text.len() as u64).to_le_bytes());
            bytes.resize((bytes.len() + 1).next_multiple_of(8).max(24), 0);
        }
        let words =
            bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().expect("8 bytes")));
        let words = words.map(Word::Value).collect();
        self.put(T_STRING, flags, class, words)
    }

    /// Adds a string whose bytes are at `pointer`.
    pub fn string_at(&mut self, pointer: u64, length: u64) -> u64 {
        let words = vec![Word::Value(length), Word::Pointer(pointer), Word::Value(length)];
        let class = self.well_known("rb_cString");
        self.put(T_STRING, NOT_EMBEDDED, class, words)
    }

    /// Adds a string that shares the bytes of the string `owner`, at `pointer`.
    pub fn shared_string(&mut self, owner: u64, pointer: u64, length: u64) -> u64 {
        let words = vec![Word::Value(length), Word::Value(pointer), Word::Value(owner)];
        let class = self.well_known("rb_cString");
        self.put(T_STRING, NOT_EMBEDDED | self.layout.shared_flag, class, words)
    }

    /// Frees an object's slot.
    pub fn free(&mut self, object: u64) {
        self.objects.remove(&object);
        self.names.remove(&object);
    }

    /// Marks an object. Minor collections do not collect an old one, even without a new mark.
    pub fn mark(&mut self, object: u64, is_old: bool) {
        let age = if self.layout.age_in_flags { OLD_FLAG | OLD_FLAG << 1 } else { OLD_FLAG };
        let object = self.objects.get_mut(&object).expect("the object exists");
        (object.is_marked, object.is_old) = (true, is_old);
        object.flags |= if is_old { age } else { 0 };
    }

    /// Makes an object have no write barrier.
    pub fn unprotect(&mut self, object: u64) {
        self.objects.get_mut(&object).expect("the object exists").is_unprotected = true;
    }

    /// The addresses of all objects, ascending.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.objects.keys().copied()
    }
}
