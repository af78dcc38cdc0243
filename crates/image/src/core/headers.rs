//! The ELF header and program headers of a core: the dumped memory, and its offsets in the file.
//!
//! The kernel writes one PT_LOAD segment for each mapping (fs/binfmt_elf.c, `elf_core_dump`), with a size of 0 in the
//! file if it dumped nothing. gdb's gcore leaves such mappings out, and marks all others as readable.

use std::ops::Range;

use linux::arch::{Cpu, MAX_USER_SPACE_END};
use linux::{Address, MIN_PAGE_SIZE};
use object::LittleEndian as LE;
use object::elf;

use super::error::CoreError;
use super::file::CoreFile;

/// More mappings than a process has (vm.max_map_count is 65,530, or 262,144 for some databases).
const MAX_SEGMENTS: u64 = 1 << 20;
/// More segments of notes than a core has, which is one.
const MAX_NOTE_SEGMENTS: usize = 64;

/// The memory of one mapping, and its dumped part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The addresses, in whole pages.
    pub(crate) range: Range<Address>,
    /// The offset in the file.
    pub(crate) offset: u64,
    /// The number of bytes that were dumped, from the start of the mapping.
    pub(crate) dumped: u64,
    /// The number of these bytes that the file still has.
    pub(crate) present: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
}

impl Segment {
    /// The addresses whose bytes the file has.
    pub(crate) fn present(&self) -> Range<Address> {
        self.range.start..self.range.start.offset(self.present)
    }

    /// The addresses whose bytes were dumped, but are missing from the file.
    pub(crate) fn lost(&self) -> Range<Address> {
        self.range.start.offset(self.present)..self.range.start.offset(self.dumped)
    }
}

/// The headers of a core.
pub(crate) struct Headers {
    /// The CPU of the process.
    pub(crate) cpu: Cpu,
    /// Ascending by address and disjoint.
    pub(crate) segments: Vec<Segment>,
    /// The offsets of notes in the file.
    pub(crate) notes: Vec<Range<u64>>,
    /// True if a debugger wrote it, not the kernel: only debuggers write sections.
    pub(crate) by_debugger: bool,
    /// True if the flags show which memory is not readable: the kernel's flags do, gdb's do not.
    pub(crate) have_protection: bool,
    /// The number of invalid segments, which are left out.
    pub(crate) invalid: u64,
}

impl Headers {
    pub(crate) fn read(file: &CoreFile) -> Result<Self, CoreError> {
        let (header, cpu) = file_header(file)?;
        let damaged =
            |what: &str| CoreError::Damaged { path: file.path.clone(), what: what.into() };
        let count = match header.e_phnum.get(LE) {
            elf::PN_XNUM => {
                let section: Option<elf::SectionHeader64<LE>> =
                    file.read_pod(header.e_shoff.get(LE));
                let section = section.ok_or_else(|| damaged("its section header is missing"))?;
                u64::from(section.sh_info.get(LE))
            }
            count => u64::from(count),
        };
        let mut headers = Self {
            cpu,
            segments: Vec::new(),
            notes: Vec::new(),
            by_debugger: has_sections(&header),
            have_protection: false,
            invalid: 0,
        };
        let size = size_of::<elf::ProgramHeader64<LE>>() as u64;
        if count > 0 && u64::from(header.e_phentsize.get(LE)) != size {
            return Err(damaged("its program headers have an impossible size"));
        }
        for index in 0..count.min(MAX_SEGMENTS) {
            let at = header.e_phoff.get(LE).saturating_add(index * size);
            let program: elf::ProgramHeader64<LE> = file
                .read_pod(at)
                .ok_or_else(|| damaged("it ends before its program headers do"))?;
            headers.take(&program, file.bytes);
        }
        headers.put_in_order(file.bytes);
        headers.have_protection =
            !headers.by_debugger || headers.segments.iter().any(|segment| !segment.readable);
        if headers.segments.is_empty() {
            return Err(damaged("it has no memory of a process"));
        }
        Ok(headers)
    }

    fn take(&mut self, program: &elf::ProgramHeader64<LE>, file_bytes: u64) {
        let offset = program.p_offset.get(LE);
        let dumped = program.p_filesz.get(LE);
        let behind = |bytes: u64| offset.saturating_add(bytes).min(file_bytes);
        match program.p_type.get(LE) {
            elf::PT_NOTE if self.notes.len() < MAX_NOTE_SEGMENTS => {
                self.notes.push(offset..behind(dumped));
            }
            elf::PT_LOAD => {
                let start = program.p_vaddr.get(LE);
                // The vsyscall page belongs to the kernel.
                if start >= MAX_USER_SPACE_END {
                    return;
                }
                let bytes = program.p_memsz.get(LE);
                let fits = bytes > 0
                    && start.is_multiple_of(MIN_PAGE_SIZE)
                    && bytes.is_multiple_of(MIN_PAGE_SIZE)
                    && start.checked_add(bytes).is_some_and(|end| end <= MAX_USER_SPACE_END)
                    && dumped <= bytes
                    && dumped.is_multiple_of(MIN_PAGE_SIZE)
                    && offset.checked_add(dumped).is_some();
                if !fits {
                    self.invalid += 1;
                    return;
                }
                let flags = program.p_flags.get(LE);
                self.segments.push(Segment {
                    range: Address(start)..Address(start + bytes),
                    offset,
                    dumped,
                    // In whole pages: a page that is cut in the middle is lost.
                    present: behind(dumped).saturating_sub(offset) & !(MIN_PAGE_SIZE - 1),
                    readable: flags.contains(elf::PF_R),
                    writable: flags.contains(elf::PF_W),
                    executable: flags.contains(elf::PF_X),
                });
            }
            _ => {}
        }
    }

    /// Leaves out segments that do not consist of whole pages, and those pages of the others that the file has only a part of.
    pub(crate) fn cut_to_pages(&mut self, page_size: u64) {
        let all = self.segments.len();
        self.segments.retain(|segment| {
            segment.range.start.is_aligned(page_size)
                && segment.range.end.is_aligned(page_size)
                && segment.dumped.is_multiple_of(page_size)
        });
        self.invalid += (all - self.segments.len()) as u64;
        self.segments.iter_mut().for_each(|segment| segment.present &= !(page_size - 1));
    }

    /// Sorts the segments. Leaves out segments that overlap others in memory, and segments that together would have
    /// more bytes than the file: each byte in the file was dumped once.
    fn put_in_order(&mut self, file_bytes: u64) {
        self.segments.sort_by_key(|segment| segment.range.start);
        let (mut end, mut room) = (Address(0), file_bytes);
        let all = self.segments.len();
        self.segments.retain(|segment| {
            let is_sound = segment.range.start >= end && segment.present <= room;
            if is_sound {
                end = segment.range.end;
                room -= segment.present;
            }
            is_sound
        });
        self.invalid += (all - self.segments.len()) as u64;
    }
}

/// Returns true if there are sections beside the one with the number of segments. If there are too many, their number
/// is not in the header either.
fn has_sections(header: &elf::FileHeader64<LE>) -> bool {
    match header.e_shnum.get(LE) {
        0 => header.e_shoff.get(LE) != 0,
        count => count > 1,
    }
}

/// Reads the header of the file, and checks that it is a core of a known CPU.
fn file_header(file: &CoreFile) -> Result<(elf::FileHeader64<LE>, Cpu), CoreError> {
    let no_core = |what: &str| CoreError::NoCore { path: file.path.clone(), what: what.into() };
    let mut magic = [0; 4];
    let read = file.read(0, &mut magic);
    match magic {
        elf::ELFMAG => {}
        [0x28, 0xb5, 0x2f, 0xfd] => {
            return Err(no_core("it is compressed: unpack it with zstd -d"));
        }
        [0x04, 0x22, 0x4d, 0x18] => return Err(no_core("it is compressed: unpack it with lz4 -d")),
        [0xfd, b'7', b'z', b'X'] => return Err(no_core("it is compressed: unpack it with xz -d")),
        [0x1f, 0x8b, ..] => return Err(no_core("it is compressed: unpack it with gzip -d")),
        _ if read == 0 => return Err(no_core("it is empty")),
        _ => return Err(no_core("it does not begin as an ELF file does")),
    }
    let header: elf::FileHeader64<LE> =
        file.read_pod(0).ok_or_else(|| no_core("it ends in the middle of its header"))?;
    let ident = &header.e_ident;
    let machine = header.e_machine.get(LE);
    let has_known_words = ident.class == elf::ELFCLASS64 && ident.data == elf::ELFDATA2LSB;
    let Some(cpu) = Cpu::of_elf(machine).filter(|_| has_known_words) else {
        // The number is in the file's own byte order.
        let machine =
            if ident.data == elf::ELFDATA2MSB { machine.0.swap_bytes() } else { machine.0 };
        let name = match elf::Machine(machine) {
            elf::EM_AARCH64 => "aarch64 with the most significant byte first".into(),
            elf::EM_386 => "i386".into(),
            elf::EM_ARM => "arm".into(),
            elf::EM_PPC64 => "ppc64".into(),
            elf::EM_S390 => "s390".into(),
            elf::EM_RISCV => "riscv".into(),
            elf::EM_X86_64 => "x32".into(),
            elf::Machine(number) => format!("number {number}"),
        };
        return Err(CoreError::ForeignCpu { path: file.path.clone(), machine: name });
    };
    match header.e_type.get(LE) {
        elf::ET_CORE => Ok((header, cpu)),
        elf::ET_EXEC | elf::ET_DYN => Err(no_core("it is a program or a library")),
        _ => Err(no_core("it is an ELF file of another kind")),
    }
}
