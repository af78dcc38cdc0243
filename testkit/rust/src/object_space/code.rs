//! Bytecode, and the paths that it was compiled from (`rb_iseq_location_t` in vm_core.h).

use super::{NOT_EMBEDDED, RubyHeap, T_IMEMO, T_STRING, Word};

const T_ARRAY: u8 = 7;
const FROZEN: u64 = 1 << 11;
/// An array of two elements in its slot.
const EMBEDDED_PAIR: u64 = 1 << 13 | 2 << 15;
const NIL: u64 = 8;

impl RubyHeap {
    /// The offset of the location in the body of an iseq, the same in all releases.
    pub const ISEQ_LOCATION: u64 = 64;

    /// Adds a path as Ruby stores it: a frozen string.
    pub fn path(&mut self, text: &str) -> u64 {
        let at = self.malloc(text.len() as u64 + 1);
        self.memory.push((at, text.as_bytes().to_vec()));
        let length = Word::Value(text.len() as u64);
        let class = self.string_class();
        self.put(T_STRING, NOT_EMBEDDED | FROZEN, class, vec![length, Word::Pointer(at), length])
    }

    /// Adds a path with its real path, `None` for nil: a frozen array.
    pub fn path_pair(&mut self, path: &str, real: Option<&str>) -> u64 {
        let path = self.path(path);
        let real = real.map_or(NIL, |real| self.path(real));
        let class = self.well_known("rb_cArray");
        let words = vec![Word::Value(path), Word::Value(real)];
        self.put(T_ARRAY, FROZEN | EMBEDDED_PAIR, class, words)
    }

    /// Adds an iseq that was compiled from `path`. Its body is at `memory`, 400 bytes, with the location at `offset`.
    pub fn iseq(&mut self, path: u64, memory: u64, offset: u64) -> u64 {
        let number = self.layout.imemo_number("iseq");
        let own = self.imemo_as("iseq", number, memory);
        self.write_location(path, memory, offset);
        own
    }

    /// Adds an iseq with a label and no instructions, as Ruby makes them for files that it loads.
    pub fn dummy_iseq(&mut self, path: u64) -> u64 {
        let (number, memory) = (self.layout.imemo_number("iseq"), self.malloc(400));
        let own = self.put(T_IMEMO, u64::from(number) << 12, 0, vec![Word::Pointer(memory)]);
        self.imemos.insert(own, "iseq".to_owned());
        self.write_location(path, memory, Self::ISEQ_LOCATION);
        own
    }

    /// Adds a word to the interpreter's variables.
    pub fn refer(&mut self, word: u64) {
        self.interpreter_words.push(word);
    }

    /// Writes a location that names `path` at `offset` into the body at `memory`.
    pub fn write_location(&mut self, path: u64, memory: u64, offset: u64) {
        let label = self.string("label");
        for (index, word) in (0..).zip([path, label, label]) {
            self.memory.push((memory + offset + 8 * index, word.to_le_bytes().to_vec()));
        }
    }
}
