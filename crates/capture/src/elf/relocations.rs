//! Relocations: the addresses that the dynamic linker fills in when it loads a module.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;

use super::Module;
use crate::{Address, Memory, Unreadable, Window, arch};

/// More relocations than any module has.
const MAX_RELOCATIONS: u64 = 4_000_000;
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

    /// Returns the offsets from the thread pointer at which this module finds thread-local variables, ascending: the
    /// values of its TPOFF relocations. They are negative if [`arch`] has such variables below the thread pointer.
    ///
    /// # Errors
    /// If the relocations cannot be read.
    pub fn tls_offsets(&self, memory: &dyn Memory) -> Result<Vec<i64>, Unreadable> {
        let relocations = self.relocations(memory, &[arch::relocations::TPOFF])?;
        let offset = |relocation: &Relocation| memory.read_u64(relocation.slot);
        let mut offsets = relocations
            .iter()
            .map(|relocation| offset(relocation).map(u64::cast_signed))
            .collect::<Result<Vec<_>, _>>()?;
        offsets.sort_unstable();
        offsets.dedup();
        Ok(offsets)
    }
}
