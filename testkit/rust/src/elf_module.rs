use std::path::PathBuf;

use linux::arch::{Cpu, Relocations};
use linux::{Address, Backing, Mapping};

use crate::SyntheticMemory;

/// A whole number of pages on every machine.
pub(crate) const CODE_BYTES: u64 = 0x1_0000;
const DYNAMIC: u64 = 0x400;
const SYMBOLS: u64 = 0x600;
const STRINGS: u64 = 0x1000;
const HASH: u64 = 0x1800;
const CONSTANTS: u64 = 0x2000;
const RELOCATIONS: u64 = 0x3000;

/// Relocations of this CPU: a variable copied from a library, the address of a symbol for all uses, and the address of a
/// symbol for calls.
const KINDS: Relocations = Cpu::OWN.relocations();
const COPY: u64 = KINDS.copy.0 as u64;
const GLOB_DAT: u64 = KINDS.glob_dat.0 as u64;
const JUMP_SLOT: u64 = KINDS.jump_slot.0 as u64;

/// An ELF module without code in memory: symbols, constants and variables, and the references to other modules as the
/// dynamic linker has resolved them.
#[derive(Debug, Clone)]
pub struct ElfModule {
    path: &'static str,
    base: u64,
    variable_bytes: u64,
    next_variable: u64,
    next_constant: u64,
    symbols: Vec<Symbol>,
    /// The address, the type, and the index of the symbol.
    relocations: Vec<[u64; 3]>,
    debug: u64,
    thread_local_bytes: u64,
    contents: Vec<(u64, Vec<u8>)>,
}

#[derive(Debug, Clone)]
struct Symbol {
    name: &'static str,
    value: u64,
    is_defined: bool,
}

impl ElfModule {
    /// A library at `base` with room for `variable_bytes` of variables.
    #[must_use]
    pub fn new(path: &'static str, base: u64, variable_bytes: u64) -> Self {
        Self {
            path,
            base,
            variable_bytes,
            next_variable: base + CODE_BYTES,
            next_constant: base + CONSTANTS,
            symbols: Vec::new(),
            relocations: Vec::new(),
            debug: 0,
            thread_local_bytes: 0,
            contents: Vec::new(),
        }
    }

    /// Exports a name for an address within it.
    pub fn symbol(&mut self, name: &'static str, address: u64) {
        self.symbols.push(Symbol { name, value: address - self.base, is_defined: true });
    }

    /// Adds a call of another module's function, which is at `address`.
    pub fn call(&mut self, name: &'static str, address: u64) {
        self.refer(JUMP_SLOT, name, address);
    }

    /// Adds a pointer to another module's function, which is at `address`.
    pub fn point_to(&mut self, name: &'static str, address: u64) {
        self.refer(GLOB_DAT, name, address);
    }

    fn refer(&mut self, kind: u64, name: &'static str, address: u64) {
        self.symbols.push(Symbol { name, value: 0, is_defined: false });
        let slot = self.variables(None, &[address]);
        self.relocations.push([slot - self.base, kind, self.symbols.len() as u64]);
    }

    /// Adds a copy of another module's variable, a word, and returns its address.
    pub fn copy(&mut self, name: &'static str, word: u64) -> u64 {
        let at = self.variables(Some(name), &[word]);
        self.relocations.push([at - self.base, COPY, self.symbols.len() as u64]);
        at
    }

    /// Writes the dynamic linker's list of modules to `at`, which must be mapped, and makes this module, the
    /// executable, refer to it. `modules` are all modules in order, including this one. If it `loops`, the last entry
    /// leads to the first module again.
    pub fn link(&mut self, memory: &mut SyntheticMemory, at: u64, modules: &[u64], loops: bool) {
        const ENTRY: u64 = 40;
        self.debug = at;
        memory.write_u64(at, 1);
        memory.write_u64(at + 8, at + ENTRY);
        for (index, &base) in (1..).zip(modules) {
            let entry = at + ENTRY * index;
            let is_last = index == modules.len() as u64;
            let next = match (is_last, loops) {
                (false, _) => entry + ENTRY,
                (true, true) => at + ENTRY,
                (true, false) => 0,
            };
            for (offset, word) in [(0, base), (16, base + DYNAMIC), (24, next)] {
                memory.write_u64(entry + offset, word);
            }
        }
    }

    /// Adds a constant with an exported name.
    pub fn constant(&mut self, name: &'static str, bytes: &[u8]) {
        self.symbol(name, self.next_constant);
        self.add_constant(bytes);
    }

    /// Adds a text to the read-only data.
    pub fn text(&mut self, text: &str) {
        self.add_constant(text.as_bytes());
    }

    fn add_constant(&mut self, bytes: &[u8]) {
        self.contents.push((self.next_constant, bytes.to_vec()));
        self.next_constant += bytes.len() as u64 + 1;
    }

    /// Gives it a segment of thread-local variables.
    pub fn thread_local(&mut self, bytes: u64) {
        self.thread_local_bytes = bytes;
    }

    /// Adds variables and returns their address. They are exported if they have a name.
    pub fn variables(&mut self, name: Option<&'static str>, words: &[u64]) -> u64 {
        let at = self.next_variable;
        if let Some(name) = name {
            self.symbol(name, at);
        }
        self.contents.push((at, words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        self.next_variable += words.len() as u64 * 8;
        at
    }

    /// Writes the library and maps it.
    pub fn write(&self, memory: &mut SyntheticMemory) {
        let file = Backing::File(PathBuf::from(self.path));
        let mapping = |start: u64, bytes: u64| {
            Mapping::anonymous(Address(self.base + start)..Address(self.base + start + bytes))
        };
        let whole = |bytes: u64| bytes.next_multiple_of(memory.machine.page_size);
        let code = Mapping { writable: false, executable: true, ..mapping(0, CODE_BYTES) };
        memory.mappings.push(Mapping { backing: file.clone(), ..code });
        let data =
            Mapping { file_offset: CODE_BYTES, ..mapping(CODE_BYTES, whole(self.variable_bytes)) };
        memory.mappings.push(Mapping { backing: file, ..data });
        self.write_headers(memory);
        self.write_symbols(memory);
        for (at, bytes) in &self.contents {
            memory.write(*at, bytes);
        }
    }

    fn write_headers(&self, memory: &mut SyntheticMemory) {
        let base = self.base;
        memory.write(base, b"\x7fELF\x02\x01\x01");
        memory.write(base + 16, &[3, 0, 62, 0, 1, 0, 0, 0]);
        memory.write_u64(base + 32, 64);
        let segments = [
            (1, 5, 0, CODE_BYTES),
            (1, 6, CODE_BYTES, self.variable_bytes),
            (2, 4, DYNAMIC, 0x100),
            (7, 4, DYNAMIC, self.thread_local_bytes),
        ];
        let count = if self.thread_local_bytes > 0 { 4 } else { 3 };
        memory.write(base + 52, &[64, 0, 56, 0, count, 0]);
        let segments = segments.into_iter().take(count.into());
        for (index, (kind, flags, start, bytes)) in (0..).zip(segments) {
            let at = base + 64 + 56 * index;
            memory.write_u64(at, kind | flags << 32);
            for (offset, word) in [(8, start), (16, start), (24, start), (32, bytes), (40, bytes)] {
                memory.write_u64(at + offset, word);
            }
        }
        let relocation_bytes = 24 * self.relocations.len() as u64;
        let rows = [
            (6, base + SYMBOLS),
            (5, base + STRINGS),
            (4, base + HASH),
            (7, base + RELOCATIONS),
            (8, relocation_bytes),
            (21, self.debug),
            (0, 0),
        ];
        for (index, (tag, value)) in (0..).zip(rows) {
            memory.write_u64(base + DYNAMIC + 16 * index, tag);
            memory.write_u64(base + DYNAMIC + 16 * index + 8, value);
        }
        for (index, [slot, kind, symbol]) in (0..).zip(&self.relocations) {
            let row = base + RELOCATIONS + 24 * index;
            memory.write_u64(row, *slot);
            memory.write_u64(row + 8, symbol << 32 | kind);
        }
    }

    /// Writes the symbols and a hash table with one bucket.
    fn write_symbols(&self, memory: &mut SyntheticMemory) {
        let mut half = |at: u64, value: u32| memory.write(self.base + at, &value.to_le_bytes());
        let count = self.symbols.len() as u32;
        for (index, value) in (0..).zip([1, count + 1, u32::from(count > 0)]) {
            half(HASH + 4 * index, value);
        }
        let mut name_at = 1;
        for (index, Symbol { name, .. }) in (1..).zip(&self.symbols) {
            half(SYMBOLS + 24 * u64::from(index), name_at);
            let next = if index == count { 0 } else { index + 1 };
            half(HASH + 12 + 4 * u64::from(index), next);
            name_at += name.len() as u32 + 1;
        }
        let mut name_at = 1;
        for (index, Symbol { name, value, is_defined }) in (1..).zip(&self.symbols) {
            let at = self.base + SYMBOLS + 24 * index;
            memory.write(at + 4, &[0x11, 0, if *is_defined { 7 } else { 0 }, 0]);
            memory.write_u64(at + 8, *value);
            memory.write_u64(at + 16, 8);
            memory.write(self.base + STRINGS + name_at, name.as_bytes());
            name_at += name.len() as u64 + 1;
        }
    }
}
