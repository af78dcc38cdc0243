use std::path::PathBuf;

use linux::{Address, Backing, Mapping};

use crate::SyntheticMemory;

const BASE: u64 = 0x7f00_0000_0000;
const CODE_BYTES: u64 = 0x2000;
const DATA: u64 = 0x1_0000;
const DATA_BYTES: u64 = 0x5000;
/// The size of `.bss`, which is not in the file.
const REST_BYTES: u64 = 0x3000;

const DYNAMIC: u64 = 0x400;
const SYMBOLS: u64 = 0x600;
const STRINGS: u64 = 0x700;
const HASH: u64 = 0x800;
const RELOCATIONS: u64 = 0x900;
const VERSION: u64 = 0x1800;
const VERSION_FUNCTION: u64 = 0x1000;
const MALLOC: u64 = 0x1100;
const OFFSETS: u64 = DATA + 0x40;
const BREAK: u64 = DATA + DATA_BYTES + 0x338;

/// A C library without code: an ELF file in memory with the parts that a reader of the heap needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyntheticLibc;

impl SyntheticLibc {
    /// The address of the main arena.
    pub(crate) const MAIN_ARENA: u64 = BASE + DATA + 0x1c80;
    /// The address of `mp_`.
    pub(crate) const PARAMETERS: u64 = BASE + DATA + 0x1340;
    /// The end of its variables.
    pub(crate) const END: u64 = BASE + DATA + DATA_BYTES + REST_BYTES;
    /// A place within the library that is no chunk.
    pub(crate) const DUMMY: u64 = BASE + VERSION + 0x100;

    /// Writes the library. `offsets` are the results of its relocations of thread-local variables, and `break_` is the
    /// value of `__curbrk`.
    pub(crate) fn write(memory: &mut SyntheticMemory, version: &str, offsets: &[i64], break_: u64) {
        let file = Backing::File(PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"));
        let page_size = memory.machine.page_size;
        let mapping =
            |start: u64, end: u64| Mapping::anonymous(Address(BASE + start)..Address(BASE + end));
        let end_of_file = (DATA + DATA_BYTES).next_multiple_of(page_size);
        let end = (DATA + DATA_BYTES + REST_BYTES)
            .next_multiple_of(page_size)
            .max(end_of_file + page_size);
        let code = Mapping {
            writable: false,
            executable: true,
            ..mapping(0, CODE_BYTES.next_multiple_of(page_size))
        };
        memory.mappings.push(Mapping { backing: file.clone(), ..code });
        let data = Mapping { file_offset: DATA, ..mapping(DATA, end_of_file) };
        memory.mappings.push(Mapping { backing: file, ..data });
        memory.mappings.push(mapping(end_of_file, end));

        write_headers(memory);
        write_dynamic(memory, offsets.len() as u64);
        let rows =
            [("__curbrk", BREAK), ("gnu_get_libc_version", VERSION_FUNCTION), ("malloc", MALLOC)];
        write_symbols(memory, &rows);
        for (index, &offset) in (0..).zip(offsets) {
            let slot = OFFSETS + 8 * index;
            let row = BASE + RELOCATIONS + 24 * index;
            memory.write_u64(row, slot);
            memory.write_u64(row + 8, 18);
            memory.write_u64(BASE + slot, offset.cast_unsigned());
        }
        let distance = (VERSION - VERSION_FUNCTION - 7) as u32;
        memory.write(BASE + VERSION_FUNCTION, &[0x48, 0x8d, 0x05]);
        memory.write(BASE + VERSION_FUNCTION + 3, &distance.to_le_bytes());
        memory.write(BASE + VERSION, version.as_bytes());
        memory.write_u64(BASE + BREAK, break_);
        write_decoys(memory);
    }
}

fn write_headers(memory: &mut SyntheticMemory) {
    memory.write(BASE, b"\x7fELF\x02\x01\x01");
    memory.write(BASE + 16, &[3, 0, 62, 0, 1, 0, 0, 0]);
    memory.write_u64(BASE + 32, 64);
    memory.write(BASE + 52, &[64, 0, 56, 0, 3, 0]);
    let segments =
        [(1, 5, 0, CODE_BYTES), (1, 6, DATA, DATA_BYTES + REST_BYTES), (2, 4, DYNAMIC, 0x100)];
    for (index, (kind, flags, start, bytes)) in (0..).zip(segments) {
        let at = BASE + 64 + 56 * index;
        memory.write_u64(at, kind | flags << 32);
        for (offset, word) in [(8, start), (16, start), (24, start), (32, bytes), (40, bytes)] {
            memory.write_u64(at + offset, word);
        }
    }
}

fn write_dynamic(memory: &mut SyntheticMemory, relocations: u64) {
    let rows = [
        (6, BASE + SYMBOLS),
        (5, BASE + STRINGS),
        (4, BASE + HASH),
        (7, BASE + RELOCATIONS),
        (8, 24 * relocations),
        (0, 0),
    ];
    for (index, (tag, value)) in (0..).zip(rows) {
        memory.write_u64(BASE + DYNAMIC + 16 * index, tag);
        memory.write_u64(BASE + DYNAMIC + 16 * index + 8, value);
    }
}

/// Writes symbols and a hash table with one bucket.
fn write_symbols(memory: &mut SyntheticMemory, rows: &[(&str, u64)]) {
    let half = |memory: &mut SyntheticMemory, at: u64, value: u32| {
        memory.write(at, &value.to_le_bytes());
    };
    let count = rows.len() as u32;
    for (index, value) in (0..).zip([1, count + 1, u32::from(count > 0)]) {
        half(memory, BASE + HASH + 4 * index, value);
    }
    let mut name_at = 1;
    for (index, &(name, value)) in (1..).zip(rows) {
        let at = BASE + SYMBOLS + 24 * u64::from(index);
        half(memory, at, name_at);
        memory.write(at + 4, &[0x11, 0, 7, 0]);
        memory.write_u64(at + 8, value);
        memory.write_u64(at + 16, 8);
        memory.write(BASE + STRINGS + u64::from(name_at), name.as_bytes());
        name_at += name.len() as u32 + 1;
        let next = if index == count { 0 } else { index + 1 };
        half(memory, BASE + HASH + 12 + 4 * u64::from(index), next);
    }
}

/// Writes lists that point at themselves, and numbers, such as other parts of a C library have too.
fn write_decoys(memory: &mut SyntheticMemory) {
    for index in 0..40 {
        let at = BASE + DATA + 0x400 + 16 * index;
        memory.write_u64(at, at - 16);
        memory.write_u64(at + 8, at - 16);
        memory.write_u64(BASE + DATA + 0x4000 + 8 * index, 0x20000 >> (index % 20));
    }
}
