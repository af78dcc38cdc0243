//! The notes of a core: the process, its threads, and the files that it had mapped.
//!
//! Layouts are those of 64-bit CPUs in the kernel's include/linux/elfcore.h (`elf_prstatus`,
//! `elf_prpsinfo`) and fs/binfmt_elf.c (NT_FILE); gdb writes the same.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use linux::arch::{Cpu, DumpedRegisters};
use linux::{Address, MIN_PAGE_SIZE, Thread};
use object::LittleEndian as LE;
use object::elf;

use super::file::CoreFile;

/// More notes than a core has: four for each thread, and some more.
const MAX_NOTES: u64 = 1 << 20;
/// More threads than a process has.
const MAX_THREADS: usize = 1 << 17;
/// More bytes than an NT_FILE note has: the kernel's limit is 4 MiB, unless it was raised.
const MAX_FILE_NOTE: u64 = 16 << 20;
/// More bytes than any other note has.
const MAX_NOTE: u64 = 4096;

/// Offsets in `elf_prstatus`: the signal, the thread id, and the registers, whose layout depends on the CPU.
const STATUS_SIGNAL: usize = 12;
const STATUS_PID: usize = 32;
const STATUS_REGISTERS: usize = 112;
/// Offsets in `elf_prpsinfo`: the process id, the name and the command line.
const INFO_PID: usize = 24;
const INFO_NAME: Range<usize> = 40..56;
const INFO_ARGUMENTS: Range<usize> = 56..136;

/// The notes of a core.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    cpu: Cpu,
    pub(crate) threads: Vec<Thread>,
    /// The process id; `None` if unknown.
    pub(crate) pid: Option<i32>,
    /// The start of the command line, up to 79 bytes; the name if gdb wrote only that.
    pub(crate) arguments: Vec<u8>,
    pub(crate) name: Vec<u8>,
    /// The signal that ended it; 0 if it lived on.
    pub(crate) signal: u16,
    /// The files that it had mapped, ascending by address and disjoint; `None` if unknown.
    pub(crate) files: Option<Vec<MappedFile>>,
    /// The auxiliary vector: keys and values.
    pub(crate) auxiliary: Vec<(u64, u64)>,
}

/// A mapping of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedFile {
    pub(crate) range: Range<Address>,
    pub(crate) offset: u64,
    pub(crate) path: PathBuf,
}

impl Notes {
    pub(crate) fn read(file: &CoreFile, cpu: Cpu, parts: &[Range<u64>]) -> Self {
        let mut notes = Self { cpu, ..Self::default() };
        let mut left = MAX_NOTES;
        for part in parts {
            let mut at = part.start;
            while at < part.end && left > 0 {
                left -= 1;
                let Some(header) = file.read_pod::<elf::NoteHeader64<LE>>(at) else { break };
                let name_bytes = u64::from(header.n_namesz.get(LE));
                let bytes = u64::from(header.n_descsz.get(LE));
                let name = at + size_of::<elf::NoteHeader64<LE>>() as u64;
                let content = name + name_bytes.next_multiple_of(4);
                let mut owner = [0; 4];
                file.read(name, &mut owner);
                let kind = header.n_type.get(LE);
                let is_ours = &owner == b"CORE" || &owner == b"LINU" && kind == elf::NT_ARM_TLS;
                if is_ours && content < part.end {
                    let most = bytes.min(part.end - content);
                    notes.take(kind, &|limit| {
                        let mut bytes = vec![0; most.min(limit) as usize];
                        let read = file.read(content, &mut bytes);
                        bytes.truncate(read);
                        bytes
                    });
                }
                at = content + bytes.next_multiple_of(4);
            }
        }
        notes
    }

    fn take(&mut self, kind: elf::NoteType, read: &dyn Fn(u64) -> Vec<u8>) {
        match kind {
            elf::NT_PRSTATUS if self.threads.len() < MAX_THREADS => {
                self.take_thread(&read(MAX_NOTE));
            }
            // It follows the note of its thread.
            elf::NT_ARM_TLS => {
                if let (Some(thread), Some(pointer)) =
                    (self.threads.last_mut(), words(&read(MAX_NOTE)).next())
                {
                    thread.thread_pointer = Address(pointer);
                }
            }
            elf::NT_PRPSINFO => {
                let bytes = read(MAX_NOTE);
                self.pid = read_u32(&bytes, INFO_PID).map(u32::cast_signed);
                self.name = string(bytes.get(INFO_NAME));
                self.arguments = string(bytes.get(INFO_ARGUMENTS));
            }
            elf::NT_AUXV => {
                let bytes = read(MAX_NOTE);
                let words: Vec<u64> = words(&bytes).collect();
                self.auxiliary =
                    words.as_chunks::<2>().0.iter().map(|&[key, it]| (key, it)).collect();
            }
            elf::NT_FILE if self.files.is_none() => {
                self.files = Some(mapped_files(&read(MAX_FILE_NOTE)));
            }
            _ => {}
        }
    }

    fn take_thread(&mut self, bytes: &[u8]) {
        let thread = || {
            let words: Vec<u64> = words(bytes.get(STATUS_REGISTERS..)?).collect();
            let DumpedRegisters { thread_pointer, stack_pointer, general } =
                self.cpu.dumped_registers(&words)?;
            Some(Thread {
                tid: read_u32(bytes, STATUS_PID)?.cast_signed(),
                cpu: self.cpu,
                thread_pointer,
                stack_pointer,
                registers: general,
            })
        };
        let Some(thread) = thread() else { return };
        if self.threads.is_empty() {
            let signal = bytes.get(STATUS_SIGNAL..STATUS_SIGNAL + 2).unwrap_or(&[0; 2]);
            self.signal = u16::from_le_bytes([signal[0], signal[1]]);
        }
        self.threads.push(thread);
    }

    /// Returns the value of a key of the auxiliary vector.
    pub(crate) fn auxiliary(&self, key: u64) -> Option<u64> {
        self.auxiliary.iter().find(|(stated, _)| *stated == key).map(|(_, value)| *value)
    }
}

/// Parses an NT_FILE note: a count, the unit of offsets in bytes, start, end and offset of each mapping, and then their
/// names, each terminated by a NUL.
fn mapped_files(bytes: &[u8]) -> Vec<MappedFile> {
    let mut numbers = words(bytes);
    let (Some(count), Some(unit)) = (numbers.next(), numbers.next()) else { return vec![] };
    let rows = bytes.len() as u64 / 24;
    let count = count.min(rows) as usize;
    let rows: Vec<u64> = numbers.take(count * 3).collect();
    let names = bytes.get(16 + count * 24..).unwrap_or_default().split(|&byte| byte == 0);
    let mut files: Vec<MappedFile> = rows
        .as_chunks::<3>()
        .0
        .iter()
        .zip(names)
        .filter_map(|(&[start, end, offset], name)| {
            let offset = offset.checked_mul(unit)?;
            let path = PathBuf::from(OsStr::from_bytes(name));
            let is_whole = |at: u64| at.is_multiple_of(MIN_PAGE_SIZE);
            (start < end && is_whole(start) && is_whole(end)).then_some(MappedFile {
                range: Address(start)..Address(end),
                offset,
                path,
            })
        })
        .collect();
    files.sort_by_key(|file| file.range.start);
    files.dedup_by(|next, last| next.range.start < last.range.end);
    files
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn string(bytes: Option<&[u8]>) -> Vec<u8> {
    let bytes = bytes.unwrap_or_default();
    bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}
