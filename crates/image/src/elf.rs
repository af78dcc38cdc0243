//! The ELF modules of the target: symbols, variables and thread-local offsets, read from its memory.
//!
//! No file is opened by path, since a path may name another file in another mount namespace, or a newer one than the
//! target runs. Structures follow the System V gABI; the GNU hash table, which the gABI does not describe, follows
//! glibc's elf/dl-lookup.c.

mod link_map;
mod relocations;

use std::ops::Range;

use linux::arch::Cpu;
use linux::{Address, MIN_PAGE_SIZE, Mapping, one_line};
use object::LittleEndian as LE;
use object::elf;
use object::pod::{Pod, from_bytes};

use crate::{Image, Memory, Unreadable, Window};
use relocations::{Relocation, RelocationTable};

/// The end of bounded walks: more program headers or dynamic entries than any module has.
const MAX_HEADERS: u64 = 512;
/// More symbols in one hash chain than any module has.
const MAX_CHAIN: u64 = 4096;
/// More symbols than any module uses from others.
const MAX_SYMBOLS: u64 = 1 << 20;
/// The longest name of a symbol that is compared with others.
const MAX_NAME: usize = 4096;
/// The bytes of symbols, and of their names, that are read at a time.
const SYMBOLS_AHEAD: usize = 64 << 10;

/// An ELF file in the memory of the target: the executable or a shared library.
#[derive(Debug, Clone)]
pub struct Module {
    /// The CPU that its code is for.
    pub cpu: Cpu,
    /// The file name, without a folder.
    pub name: String,
    /// The range from its first mapping to its last, with holes and `.bss`.
    pub range: Range<Address>,
    /// Its writable loadable segments: `.data` and `.bss`, to the byte.
    pub writable: Vec<Range<Address>>,
    /// Its variables: [`writable`](Self::writable), but the executable's copies of variables that a library defines
    /// are listed with the library.
    pub variables: Vec<Range<Address>>,
    /// The index in the dynamic linker's list of modules, 0 for the executable; `None` if the module is not listed, or
    /// the list could not be read.
    pub place: Option<usize>,
    /// The dynamic section.
    dynamic: Address,
    /// The dynamic linker's data for debuggers (DT_DEBUG). Only the executable names it.
    debug: Option<Address>,
    bias: u64,
    symbols: Address,
    strings: Address,
    gnu_hash: Option<Address>,
    hash: Option<Address>,
    relocations: Vec<RelocationTable>,
}

/// A symbol that a module exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The address in the target.
    pub address: Address,
    /// The size in bytes, as stated by the module.
    pub bytes: u64,
}

/// Returns the ELF modules of an image, in the order in which the dynamic linker searches them for a symbol. Modules
/// that it does not list come last, by address. Modules that cannot be read are left out.
#[must_use]
pub fn modules(image: &Image<'_>) -> Vec<Module> {
    let files = image.state.mappings.iter().filter(|mapping| {
        mapping.file_offset == 0 && mapping.file().is_some() && mapping.readable && !mapping.shared
    });
    let mut modules: Vec<_> =
        files.filter_map(|mapping| Module::read(image, mapping).ok().flatten()).collect();
    link_map::sort(image, &mut modules);
    link_map::attribute_copies(image, &mut modules);
    modules
}

fn read_pod<T: Pod + Copy>(window: &mut Window<'_>, at: Address) -> Result<T, Unreadable> {
    let bytes = size_of::<T>();
    let (value, _) =
        from_bytes::<T>(window.bytes(at, bytes)?).map_err(|()| Unreadable { at, bytes })?;
    Ok(*value)
}

impl Module {
    /// Reads the module whose first mapping is `first`; `None` if it is not a dynamic ELF module.
    fn read(image: &Image<'_>, first: &Mapping) -> Result<Option<Self>, Unreadable> {
        let base = first.range.start;
        let mut window = Window::new(image, MIN_PAGE_SIZE as usize);
        let header: elf::FileHeader64<LE> = read_pod(&mut window, base)?;
        let is_64_bit_elf = header.e_ident.magic == elf::ELFMAG
            && header.e_ident.class == elf::ELFCLASS64
            && u64::from(header.e_phentsize.get(LE))
                == size_of::<elf::ProgramHeader64<LE>>() as u64;
        let Some(name) = first.file_name().filter(|_| is_64_bit_elf) else { return Ok(None) };

        let headers = base.offset(header.e_phoff.get(LE));
        let count = u64::from(header.e_phnum.get(LE)).min(MAX_HEADERS);
        let segments = (0..count)
            .map(|index| {
                let size = size_of::<elf::ProgramHeader64<LE>>() as u64;
                read_pod::<elf::ProgramHeader64<LE>>(&mut window, headers.offset(index * size))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let loads = || segments.iter().filter(|segment| segment.p_type.get(LE) == elf::PT_LOAD);
        let Some(lowest) = loads().map(|segment| segment.p_vaddr.get(LE)).min() else {
            return Ok(None);
        };
        let page_size = image.state.machine.page_size;
        let bias = base.0.wrapping_sub(lowest & !(page_size - 1));
        let span = |segment: &elf::ProgramHeader64<LE>| {
            let start = Address(bias).offset(segment.p_vaddr.get(LE));
            start..start.offset(segment.p_memsz.get(LE)).max(start)
        };
        let end = loads().map(|segment| span(segment).end).max().unwrap_or(base);
        let dynamic = segments.iter().find(|segment| segment.p_type.get(LE) == elf::PT_DYNAMIC);
        let Some(dynamic) = dynamic.map(span) else { return Ok(None) };

        let writable: Vec<_> = loads()
            .filter(|segment| segment.p_flags.get(LE).contains(elf::PF_W))
            .map(span)
            .collect();
        let mut module = Self {
            cpu: image.state.machine.cpu,
            // A file may be called anything.
            name: one_line(&name),
            range: base..end.align_up(page_size),
            variables: writable.clone(),
            writable,
            place: None,
            dynamic: dynamic.start,
            debug: None,
            bias,
            symbols: Address(0),
            strings: Address(0),
            gnu_hash: None,
            hash: None,
            relocations: Vec::new(),
        };
        module.read_dynamic(&mut window, &dynamic)?;
        Ok(Some(module))
    }

    fn read_dynamic(
        &mut self,
        window: &mut Window<'_>,
        dynamic: &Range<Address>,
    ) -> Result<(), Unreadable> {
        let (mut rela, mut rela_bytes, mut relative, mut plt, mut plt_bytes) =
            (None, 0, 0, None, 0);
        let size = size_of::<elf::Dyn64<LE>>() as u64;
        for index in 0..((dynamic.end - dynamic.start) / size).min(MAX_HEADERS) {
            let entry: elf::Dyn64<LE> = read_pod(window, dynamic.start.offset(index * size))?;
            let value = entry.d_val.get(LE);
            // The dynamic linker relocates these addresses in place, except in modules that it
            // must not write to.
            let address = Address(if value < self.range.start.0 {
                self.bias.wrapping_add(value)
            } else {
                value
            });
            match entry.d_tag.get(LE) {
                elf::DT_NULL => break,
                elf::DT_SYMTAB => self.symbols = address,
                elf::DT_STRTAB => self.strings = address,
                elf::DT_GNU_HASH => self.gnu_hash = Some(address),
                elf::DT_HASH => self.hash = Some(address),
                elf::DT_RELA => rela = Some(address),
                elf::DT_RELASZ => rela_bytes = value,
                elf::DT_RELACOUNT => relative = value,
                elf::DT_DEBUG => self.debug = Some(Address(value)).filter(|at| at.0 != 0),
                elf::DT_JMPREL => plt = Some(address),
                elf::DT_PLTRELSZ => plt_bytes = value,
                _ => {}
            }
        }
        let tables = [(rela, rela_bytes, relative), (plt, plt_bytes, 0)];
        self.relocations = tables
            .into_iter()
            .filter_map(|(start, bytes, relative)| RelocationTable::new(start?, bytes, relative))
            .collect();
        Ok(())
    }

    /// Returns the exported symbol `name`, if the module defines it.
    ///
    /// # Errors
    /// If the symbol table cannot be read.
    pub fn symbol(&self, memory: &dyn Memory, name: &str) -> Result<Option<Symbol>, Unreadable> {
        match (self.gnu_hash, self.hash) {
            (Some(table), _) => self.symbol_by_gnu_hash(memory, table, name),
            (None, Some(table)) => self.symbol_by_hash(memory, table, name),
            (None, None) => Ok(None),
        }
    }

    fn symbol_by_gnu_hash(
        &self,
        memory: &dyn Memory,
        table: Address,
        name: &str,
    ) -> Result<Option<Symbol>, Unreadable> {
        let word = |at: Address| memory.read_u32(at).map(u64::from);
        let buckets = word(table)?;
        let first_symbol = word(table.offset(4))?;
        let bloom_words = word(table.offset(8))?;
        if buckets == 0 {
            return Ok(None);
        }
        let hash = u64::from(elf::gnu_hash(name.as_bytes()));
        let bucket_table = table.offset(16 + bloom_words * 8);
        let first = word(bucket_table.offset(hash % buckets * 4))?;
        if first < first_symbol {
            return Ok(None);
        }
        let chains = bucket_table.offset(buckets * 4);
        for index in first..first + MAX_CHAIN {
            let chained = word(chains.offset((index - first_symbol) * 4))?;
            if chained | 1 == hash | 1
                && let Some(symbol) = self.symbol_at(memory, index, name)?
            {
                return Ok(Some(symbol));
            }
            if chained & 1 == 1 {
                break;
            }
        }
        Ok(None)
    }

    fn symbol_by_hash(
        &self,
        memory: &dyn Memory,
        table: Address,
        name: &str,
    ) -> Result<Option<Symbol>, Unreadable> {
        let word = |at: Address| memory.read_u32(at).map(u64::from);
        let buckets = word(table)?;
        if buckets == 0 {
            return Ok(None);
        }
        let hash = u64::from(elf::hash(name.as_bytes()));
        let mut index = word(table.offset(8 + hash % buckets * 4))?;
        for _ in 0..MAX_CHAIN {
            if index == 0 {
                break;
            }
            if let Some(symbol) = self.symbol_at(memory, index, name)? {
                return Ok(Some(symbol));
            }
            index = word(table.offset(8 + (buckets + index) * 4))?;
        }
        Ok(None)
    }

    /// Returns the symbol with this index, if it is defined and has this name.
    fn symbol_at(
        &self,
        memory: &dyn Memory,
        index: u64,
        name: &str,
    ) -> Result<Option<Symbol>, Unreadable> {
        let mut window = Window::new(memory, size_of::<elf::Sym64<LE>>());
        let symbol = self.read_symbol(&mut window, index)?;
        if symbol.st_shndx.get(LE) == elf::SHN_UNDEF {
            return Ok(None);
        }
        let at = self.strings.offset(u64::from(symbol.st_name.get(LE)));
        let mut stored = vec![0; name.len() + 1];
        memory.read_exact(at, &mut stored)?;
        let same = stored.strip_suffix(&[0]) == Some(name.as_bytes());
        Ok(same.then(|| Symbol {
            address: Address(self.bias).offset(symbol.st_value.get(LE)),
            bytes: symbol.st_size.get(LE),
        }))
    }

    fn read_symbol(
        &self,
        window: &mut Window<'_>,
        index: u64,
    ) -> Result<elf::Sym64<LE>, Unreadable> {
        read_pod(window, self.symbols.offset(index * size_of::<elf::Sym64<LE>>() as u64))
    }

    /// Returns the name and the size of the symbol with this index.
    fn symbol_by_index(
        &self,
        memory: &dyn Memory,
        index: u32,
    ) -> Result<(String, u64), Unreadable> {
        let mut window = Window::new(memory, size_of::<elf::Sym64<LE>>());
        let symbol = self.read_symbol(&mut window, index.into())?;
        let name = self.strings.offset(u64::from(symbol.st_name.get(LE)));
        let name = memory.read_c_string(name, MAX_NAME)?;
        Ok((String::from_utf8_lossy(&name).into_owned(), symbol.st_size.get(LE)))
    }

    /// Returns true if this table has no symbols, as in a program that exports none: the linker writes one empty bucket.
    fn is_empty_gnu_hash(&self, memory: &dyn Memory, table: Address) -> Result<bool, Unreadable> {
        let [buckets, bloom_words] = [memory.read_u32(table)?, memory.read_u32(table.offset(8))?];
        let bucket = table.offset(16 + u64::from(bloom_words) * 8);
        Ok(buckets <= 1 && memory.read_u32(bucket)? == 0)
    }

    /// Returns the indices of the undefined symbols called `name`, which the module uses.
    fn undefined_symbols(&self, memory: &dyn Memory, name: &str) -> Result<Vec<u32>, Unreadable> {
        // The GNU hash table leaves out undefined symbols, which therefore come first. A table without symbols has no such
        // number, but the strings follow the symbols. The other table has an entry for every symbol.
        let count = match (self.gnu_hash, self.hash) {
            (Some(table), _) if self.is_empty_gnu_hash(memory, table)? => {
                let bytes = self.strings.0.saturating_sub(self.symbols.0);
                bytes / size_of::<elf::Sym64<LE>>() as u64
            }
            (Some(table), _) | (None, Some(table)) => memory.read_u32(table.offset(4))?.into(),
            (None, None) => 0,
        };
        let mut symbols = Window::new(memory, SYMBOLS_AHEAD);
        let mut names = Window::new(memory, SYMBOLS_AHEAD);
        let mut found = Vec::new();
        for index in 1..count.min(MAX_SYMBOLS) {
            let symbol = self.read_symbol(&mut symbols, index)?;
            if symbol.st_shndx.get(LE) != elf::SHN_UNDEF {
                continue;
            }
            let at = self.strings.offset(u64::from(symbol.st_name.get(LE)));
            let stored = names.bytes(at, name.len() + 1)?;
            if stored.strip_suffix(&[0]) == Some(name.as_bytes()) {
                found.push(index as u32);
            }
        }
        Ok(found)
    }
}
