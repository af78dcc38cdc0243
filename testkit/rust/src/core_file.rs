use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use image::Memory;
use linux::{Address, Backing, Mapping, Thread, length};

use crate::SyntheticMemory;

/// EM_AARCH64 of elf.h.
const AARCH64: u8 = 183;
/// The type of the page size in the auxiliary vector.
const AT_PAGESZ: u64 = 6;

/// The program that writes a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreWriter {
    /// The kernel, which lists every mapping and makes holes for absent pages.
    Kernel,
    /// gdb, which writes zeros for absent pages, marks all memory readable, and leaves out mappings that it does not
    /// dump.
    Debugger,
}

/// A core file of an invented process.
#[derive(Debug, Clone)]
pub struct SyntheticCore {
    writer: CoreWriter,
    memory: SyntheticMemory,
    threads: Vec<Thread>,
    pid: i32,
    /// The signal that ended the process.
    pub signal: u16,
    /// The beginning of its command line.
    pub arguments: String,
    /// The auxiliary vector: types and values.
    pub auxiliary: Vec<(u64, u64)>,
    /// The beginnings of mappings that are not dumped.
    pub not_dumped: Vec<u64>,
    /// The CPU in its header.
    pub machine: u8,
    /// The kind of ELF file in its header.
    pub kind: u8,
}

impl SyntheticCore {
    /// The core of a process with this memory and these threads. The first one is the main thread.
    #[must_use]
    pub fn new(writer: CoreWriter, memory: &SyntheticMemory, threads: &[Thread]) -> Self {
        let page_size = memory.machine.page_size;
        Self {
            writer,
            memory: memory.clone(),
            threads: threads.to_vec(),
            pid: threads.first().map_or(1, |thread| thread.tid),
            signal: if writer == CoreWriter::Kernel { 6 } else { 0 },
            arguments: "ruby synthetic.rb ".into(),
            auxiliary: vec![(AT_PAGESZ, page_size)],
            not_dumped: Vec::new(),
            machine: 62,
            kind: 4,
        }
    }

    /// Writes it to `path`, with holes where the kernel makes some.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) {
        let mut file = File::create(path).expect("the core can be made");
        let (head, offsets, end) = self.head();
        file.write_all(&head).expect("the core can be written");
        let state = self.memory.state();
        let page_size = self.page_size();
        let pages = state.pages.expect("synthetic memory has page states");
        for (mapping, offset) in state.mappings.iter().zip(offsets) {
            let Some(offset) = offset else { continue };
            for page in 0..length(&mapping.range) / page_size {
                let at = mapping.range.start.offset(page * page_size);
                let is_there = pages.resident_bytes(&(at..at.offset(page_size))) > 0;
                if is_there || self.writer == CoreWriter::Debugger {
                    let mut bytes = vec![0; page_size as usize];
                    self.memory.read(at, &mut bytes);
                    file.seek(SeekFrom::Start(offset + page * page_size)).expect("it is a file");
                    file.write_all(&bytes).expect("the core can be written");
                }
            }
        }
        file.set_len(end).expect("the core can be written");
    }

    fn page_size(&self) -> u64 {
        self.memory.machine.page_size
    }

    /// Returns the headers and notes, the offset of each mapping's bytes, and the size of the file.
    fn head(&self) -> (Vec<u8>, Vec<Option<u64>>, u64) {
        let mappings = self.memory.state().mappings;
        let is_dumped = |mapping: &Mapping| {
            let is_listed = self.not_dumped.contains(&mapping.range.start.0);
            !is_listed && (mapping.readable || self.writer == CoreWriter::Debugger)
        };
        let is_stated = |mapping: &Mapping| self.writer == CoreWriter::Kernel || is_dumped(mapping);
        let notes = self.notes(mappings.iter());
        let count = mappings.iter().filter(|mapping| is_stated(mapping)).count() as u64 + 1;
        let notes_at = 64 + 56 * count;
        // Room for a section header.
        let mut at = notes_at + notes.len() as u64 + 64;
        if self.writer == CoreWriter::Kernel {
            at = at.next_multiple_of(self.page_size());
        }
        let mut programs = program(4, 4, notes_at, 0, notes.len() as u64, 0);
        let mut offsets = Vec::new();
        for mapping in &mappings {
            let bytes = length(&mapping.range);
            let dumped = if is_dumped(mapping) { bytes } else { 0 };
            let readable = mapping.readable || self.writer == CoreWriter::Debugger;
            let flags = u32::from(mapping.executable)
                | u32::from(mapping.writable) << 1
                | u32::from(readable) << 2;
            if is_stated(mapping) {
                programs.extend(program(1, flags, at, mapping.range.start.0, dumped, bytes));
            }
            offsets.push((dumped > 0).then_some(at));
            at += dumped;
        }
        let sections = if self.writer == CoreWriter::Debugger { 2 } else { 0 };
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(16, 0);
        head.extend([self.kind, 0, self.machine, 0, 1, 0, 0, 0]);
        head.extend([0; 8]);
        head.extend(64_u64.to_le_bytes());
        head.extend([0; 12]);
        let stated = u16::try_from(count).unwrap_or(u16::MAX);
        for half in [64, 56, stated, 64, sections, 0] {
            head.extend(half.to_le_bytes());
        }
        head.extend(programs);
        head.extend(notes);
        if stated == u16::MAX {
            // The number of segments is then in a section header. The kernel writes no other.
            let section = head.len() as u64;
            head[40..48].copy_from_slice(&section.to_le_bytes());
            head[60..62].copy_from_slice(&1_u16.to_le_bytes());
            head.extend([0; 44]);
            head.extend((count as u32).to_le_bytes());
            head.extend([0; 16]);
        }
        (head, offsets, at)
    }

    fn notes<'a>(&self, mappings: impl Iterator<Item = &'a Mapping>) -> Vec<u8> {
        let mut information = vec![0; 24];
        information.extend(self.pid.to_le_bytes());
        information.resize(40, 0);
        information.extend(b"ruby");
        information.resize(56, 0);
        information.extend(self.arguments.as_bytes());
        information.resize(136, 0);
        let mut notes = Vec::new();
        for thread in &self.threads {
            notes.extend(note(1, &self.status(thread)));
            if self.machine == AARCH64 {
                notes.extend(note(0x401, &thread.thread_pointer.0.to_le_bytes()));
            }
            // Floating point registers, which are not read.
            notes.extend(note(2, &[0xff; 512]));
        }
        notes.extend(note(3, &information));
        let pairs = self.auxiliary.iter().chain([&(0, 0)]);
        let words: Vec<u8> = pairs
            .flat_map(|(key, value)| [key.to_le_bytes(), value.to_le_bytes()].concat())
            .collect();
        notes.extend(note(6, &words));
        notes.extend(note(0x4649_4c45, &self.files(mappings)));
        notes
    }

    fn status(&self, thread: &Thread) -> Vec<u8> {
        let mut status = vec![0; 12];
        status.extend(self.signal.to_le_bytes());
        status.resize(32, 0);
        status.extend(thread.tid.to_le_bytes());
        status.resize(112, 0);
        let mut registers = thread.registers.clone();
        if self.machine == AARCH64 {
            registers.resize(34, 0);
            registers[31] = thread.stack_pointer.0;
        } else {
            registers.resize(27, 0);
            registers[19] = thread.stack_pointer.0;
            registers[21] = thread.thread_pointer.0;
        }
        status.extend(registers.iter().flat_map(|it| it.to_le_bytes()));
        status.resize(400, 0);
        status
    }

    /// The kernel counts offsets in pages, gdb in bytes.
    fn files<'a>(&self, mappings: impl Iterator<Item = &'a Mapping>) -> Vec<u8> {
        let unit = if self.writer == CoreWriter::Kernel { self.page_size() } else { 1 };
        let mut numbers = Vec::new();
        let mut names = Vec::new();
        for mapping in mappings {
            let Backing::File(path) = &mapping.backing else { continue };
            let Address(start) = mapping.range.start;
            numbers.extend([start, mapping.range.end.0, mapping.file_offset / unit]);
            names.extend(path.to_str().expect("paths of tests are text").bytes());
            names.push(0);
        }
        let mut words = vec![numbers.len() as u64 / 3, unit];
        words.extend(numbers);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(names);
        bytes
    }
}

fn program(kind: u32, flags: u32, offset: u64, address: u64, dumped: u64, bytes: u64) -> Vec<u8> {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend(flags.to_le_bytes());
    for word in [offset, address, 0, dumped, bytes, u64::from(kind == 1) << 12] {
        header.extend(word.to_le_bytes());
    }
    header
}

fn note(kind: u32, content: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for half in [5, content.len() as u32, kind] {
        note.extend(half.to_le_bytes());
    }
    note.extend(b"CORE\0\0\0\0");
    note.extend(content);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}
