use std::path::PathBuf;

use target::{Address, Backing, Mapping};

use crate::SyntheticMemory;

const CODE_BYTES: u64 = 0x4000;
const DYNAMIC: u64 = 0x400;
const SYMBOLS: u64 = 0x600;
const STRINGS: u64 = 0x1000;
const HASH: u64 = 0x1800;
const CONSTANTS: u64 = 0x2000;

/// An ELF library without code in memory: symbols, constants and variables.
#[derive(Debug, Clone)]
pub(crate) struct ElfModule {
    path: &'static str,
    base: u64,
    variable_bytes: u64,
    next_variable: u64,
    next_constant: u64,
    symbols: Vec<(&'static str, u64)>,
    contents: Vec<(u64, Vec<u8>)>,
}

impl ElfModule {
    /// A library at `base` with room for so many bytes of variables.
    pub(crate) fn new(path: &'static str, base: u64, variable_bytes: u64) -> Self {
        Self {
            path,
            base,
            variable_bytes,
            next_variable: base + CODE_BYTES,
            next_constant: base + CONSTANTS,
            symbols: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Exports a name for an address within it.
    pub(crate) fn symbol(&mut self, name: &'static str, address: u64) {
        self.symbols.push((name, address - self.base));
    }

    /// Adds a constant with an exported name.
    pub(crate) fn constant(&mut self, name: &'static str, bytes: &[u8]) {
        self.symbols.push((name, self.next_constant - self.base));
        self.contents.push((self.next_constant, bytes.to_vec()));
        self.next_constant += bytes.len() as u64 + 1;
    }

    /// Adds variables and returns their address; exported where they have a name.
    pub(crate) fn variables(&mut self, name: Option<&'static str>, words: &[u64]) -> u64 {
        let at = self.next_variable;
        if let Some(name) = name {
            self.symbols.push((name, at - self.base));
        }
        self.contents.push((at, words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        self.next_variable += words.len() as u64 * 8;
        at
    }

    /// Writes the library and maps it.
    pub(crate) fn write(&self, memory: &mut SyntheticMemory) {
        let file = Backing::File(PathBuf::from(self.path));
        let mapping = |start: u64, bytes: u64| {
            Mapping::anonymous(Address(self.base + start)..Address(self.base + start + bytes))
        };
        let code = Mapping { writable: false, executable: true, ..mapping(0, CODE_BYTES) };
        memory.mappings.push(Mapping { backing: file.clone(), ..code });
        let data = Mapping { file_offset: CODE_BYTES, ..mapping(CODE_BYTES, self.variable_bytes) };
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
        memory.write(base + 52, &[64, 0, 56, 0, 3, 0]);
        let segments = [
            (1, 5, 0, CODE_BYTES),
            (1, 6, CODE_BYTES, self.variable_bytes),
            (2, 4, DYNAMIC, 0x100),
        ];
        for (index, (kind, flags, start, bytes)) in (0..).zip(segments) {
            let at = base + 64 + 56 * index;
            memory.write_u64(at, kind | flags << 32);
            for (offset, word) in [(8, start), (16, start), (24, start), (32, bytes), (40, bytes)] {
                memory.write_u64(at + offset, word);
            }
        }
        let rows = [(6, base + SYMBOLS), (5, base + STRINGS), (4, base + HASH), (0, 0)];
        for (index, (tag, value)) in (0..).zip(rows) {
            memory.write_u64(base + DYNAMIC + 16 * index, tag);
            memory.write_u64(base + DYNAMIC + 16 * index + 8, value);
        }
    }

    /// Writes the symbols and a hash table of one bucket, in which they all are.
    fn write_symbols(&self, memory: &mut SyntheticMemory) {
        let mut half = |at: u64, value: u32| memory.write(self.base + at, &value.to_le_bytes());
        let count = self.symbols.len() as u32;
        for (index, value) in (0..).zip([1, count + 1, u32::from(count > 0)]) {
            half(HASH + 4 * index, value);
        }
        let mut name_at = 1;
        for (index, &(name, _)) in (1..).zip(&self.symbols) {
            half(SYMBOLS + 24 * u64::from(index), name_at);
            let next = if index == count { 0 } else { index + 1 };
            half(HASH + 12 + 4 * u64::from(index), next);
            name_at += name.len() as u32 + 1;
        }
        let mut name_at = 1;
        for (index, &(name, value)) in (1..).zip(&self.symbols) {
            let at = self.base + SYMBOLS + 24 * index;
            memory.write(at + 4, &[0x11, 0, 7, 0]);
            memory.write_u64(at + 8, value);
            memory.write_u64(at + 16, 8);
            memory.write(self.base + STRINGS + name_at, name.as_bytes());
            name_at += name.len() as u64 + 1;
        }
    }
}
