//! Relocations: the addresses that the dynamic linker fills in when it loads a module.

use std::collections::BTreeSet;
use std::ops::Range;

use linux::Address;
use object::LittleEndian as LE;
use object::elf;

use super::Module;
use crate::{Memory, Unreadable, Window};

/// More relocations than any module has.
const MAX_RELOCATIONS: u64 = 4_000_000;
/// More words than the thread-local variables of a C library have.
const MAX_WORDS: usize = 1 << 10;
/// The size of an entry, in bytes.
const ENTRY: u64 = size_of::<elf::Rela64<LE>>() as u64;

/// A table of relocations.
#[derive(Debug, Clone)]
pub(super) struct RelocationTable(Range<Address>);

impl RelocationTable {
    /// Returns the table of `bytes` bytes at `start`, without its first `relative` entries: these (RELATIVE) concern the
    /// module alone, and are most of the table.
    pub(super) fn new(start: Address, bytes: u64, relative: u64) -> Option<Self> {
        let skipped = relative.checked_mul(ENTRY).filter(|skipped| *skipped <= bytes)?;
        let end = start.offset(bytes.min(MAX_RELOCATIONS * ENTRY));
        Some(Self(start.offset(skipped).min(end)..end))
    }
}

/// A word that the dynamic linker fills in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relocation {
    pub(super) kind: elf::RelocationType,
    /// The index of the symbol that it refers to.
    pub(super) symbol: u32,
    pub(super) slot: Address,
}

impl Module {
    /// Returns its relocations of these kinds.
    pub(super) fn relocations(
        &self,
        memory: &dyn Memory,
        kinds: &[elf::RelocationType],
    ) -> Result<Vec<Relocation>, Unreadable> {
        let mut found = Vec::new();
        for RelocationTable(table) in &self.relocations {
            let mut window = Window::new(memory, 64 << 10);
            for index in 0..(table.end - table.start) / ENTRY {
                let at = table.start.offset(index * ENTRY);
                let info = window.word(at.offset(8))?;
                let kind = elf::RelocationType(info as u32);
                if kinds.contains(&kind) {
                    let slot = Address(self.bias).offset(window.word(at)?);
                    found.push(Relocation { kind, symbol: (info >> 32) as u32, slot });
                }
            }
        }
        Ok(found)
    }

    /// Returns the offsets from the thread pointer at which this module may find thread-local variables, ascending: all
    /// words from the first to the last one with a TPOFF relocation. Compilers for some CPUs address a variable
    /// relative to one that is near it, so it needs no relocation of its own. The offsets are negative if the CPU has such
    /// variables below the thread pointer.
    ///
    /// # Errors
    /// If the relocations cannot be read.
    pub fn tls_offsets(&self, memory: &dyn Memory) -> Result<Vec<i64>, Unreadable> {
        let relocations = self.relocations(memory, &[self.cpu.relocations().tpoff])?;
        let offset = |relocation: &Relocation| memory.read_u64(relocation.slot);
        let offsets = relocations
            .iter()
            .map(|relocation| offset(relocation).map(u64::cast_signed))
            .collect::<Result<BTreeSet<_>, _>>()?;
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
            return Ok(Vec::new());
        };
        // Behind the last variable may be one more.
        let between = first.div_euclid(8)..=last.div_euclid(8).saturating_add(1);
        let words = between.take(MAX_WORDS).map(|word| word.saturating_mul(8));
        let words = words.filter(|word| (*word < 0) == (*first < 0));
        Ok(words.chain(offsets.iter().copied()).collect::<BTreeSet<_>>().into_iter().collect())
    }
}
