//! The head of an ELF file, read from the file or from its mapping: the build id, and the parts that are code.

use std::fmt;
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;
use object::pod::{Pod, from_bytes};

/// More program headers than an ELF file has.
const MAX_HEADERS: u64 = 512;
/// More bytes than the notes of an ELF file have.
const MAX_NOTES: u64 = 64 << 10;
/// Build ids have 20 bytes, or 16, or whatever was passed to the linker.
const MAX_ID_BYTES: usize = 64;

/// Reads a file from an offset on, as far as possible. Returns the number of bytes read.
pub(crate) trait Read: Fn(u64, &mut [u8]) -> usize {}

impl<F: Fn(u64, &mut [u8]) -> usize> Read for F {}

/// The identity of one build of a file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BuildId(Vec<u8>);

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

pub(crate) fn is_elf(read: &impl Read) -> bool {
    let mut magic = [0; 4];
    read(0, &mut magic) == magic.len() && magic == elf::ELFMAG
}

/// Returns the program headers; none if it is not a 64-bit ELF file, or they cannot be read.
fn programs(read: &impl Read) -> Vec<elf::ProgramHeader64<LE>> {
    let Some(header) = pod::<elf::FileHeader64<LE>>(read, 0) else { return vec![] };
    let is_elf = header.e_ident.magic == elf::ELFMAG && header.e_ident.class == elf::ELFCLASS64;
    let size = size_of::<elf::ProgramHeader64<LE>>() as u64;
    if !is_elf || u64::from(header.e_phentsize.get(LE)) != size {
        return vec![];
    }
    let count = u64::from(header.e_phnum.get(LE)).min(MAX_HEADERS);
    (0..count)
        .map_while(|index| pod(read, header.e_phoff.get(LE).checked_add(index * size)?))
        .collect()
}

/// Returns the offsets of pages that are mapped as executable.
pub(crate) fn code(read: &impl Read, page_size: u64) -> Vec<Range<u64>> {
    let programs = programs(read).into_iter().filter(|program| {
        program.p_type.get(LE) == elf::PT_LOAD && program.p_flags.get(LE).contains(elf::PF_X)
    });
    let pages = programs.map(|program| {
        let start = program.p_offset.get(LE);
        start & !(page_size - 1)..start.saturating_add(program.p_filesz.get(LE))
    });
    pages.collect()
}

/// Returns the GNU build id of the ELF file, if it has one that can be read.
pub(crate) fn build_id(read: &impl Read) -> Option<BuildId> {
    programs(read).into_iter().find_map(|program| {
        if program.p_type.get(LE) != elf::PT_NOTE {
            return None;
        }
        let start = program.p_offset.get(LE);
        let bytes = program.p_filesz.get(LE).min(MAX_NOTES);
        let alignment = if program.p_align.get(LE) == 8 { 8 } else { 4 };
        build_id_note(read, start, start.checked_add(bytes)?, alignment)
    })
}

fn build_id_note(read: &impl Read, start: u64, end: u64, alignment: u64) -> Option<BuildId> {
    let size = size_of::<elf::NoteHeader64<LE>>() as u64;
    let mut at = start;
    while at < end {
        let note: elf::NoteHeader64<LE> = pod(read, at)?;
        let name = u64::from(note.n_namesz.get(LE));
        let content = (at + size + name).next_multiple_of(alignment);
        let bytes = u64::from(note.n_descsz.get(LE));
        if note.n_type.get(LE) == elf::NT_GNU_BUILD_ID && name == 4 {
            let mut owner = [0; 4];
            let mut id = vec![0; (bytes as usize).min(MAX_ID_BYTES)];
            let is_read = read(at + size, &mut owner) == 4 && read(content, &mut id) == id.len();
            if is_read && &owner == b"GNU\0" && !id.is_empty() {
                return Some(BuildId(id));
            }
        }
        at = (content + bytes).next_multiple_of(alignment);
    }
    None
}

fn pod<T: Pod + Copy>(read: &impl Read, at: u64) -> Option<T> {
    let mut bytes = [0; 64];
    let bytes = bytes.get_mut(..size_of::<T>())?;
    (read(at, bytes) == bytes.len()).then_some(())?;
    from_bytes::<T>(bytes).ok().map(|(value, _)| *value)
}
