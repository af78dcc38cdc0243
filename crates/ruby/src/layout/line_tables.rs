//! The lines of instructions.
//!
//! `struct iseq_insn_info` in vm_core.h, a part of an iseq's body: a pointer to entries, a pointer to
//! their positions (null once the table of positions is compact), their number, and a pointer to the
//! compact table. An entry has a line, from 3.1 on the number of a syntax node, and events (iseq.h).
//! The compact table (`struct succ_index_table` in iseq.c) maps an instruction to the number of entries
//! that begin at or before it; the same from 2.7 to 4.1.
//!
//! The place and the size of an entry are derived from the bodies of a process: the table must count up to the number
//! of entries, and the events must be events that the compiler sets.

use image::{Image, Memory};
use linux::Address;

use crate::layout::iseq_location::BODY_BYTES;
use crate::word::word;

/// The bytes of `struct iseq_insn_info`.
const INFO_BYTES: usize = 32;
/// The sizes of an entry: without the number of a node, and with it.
const ENTRY_BYTES: [u64; 2] = [8, 12];
/// The entries of each body that are examined.
const MAX_ENTRIES: u64 = 64;
/// More instructions than a method has.
const MAX_INSTRUCTIONS: u64 = 1 << 24;
/// More lines than a file has.
const MAX_LINE: u32 = 1 << 24;
/// The events that the compiler sets (include/ruby/internal/event.h): a line, the begin and end of
/// classes, methods, calls of C functions, and blocks, a rescue, and two of coverage.
const EVENTS: u32 = 0x3_437f;
/// The instructions whose entries are counted in words of their own (`IMMEDIATE_TABLE_SIZE`), 9 in each.
const IMMEDIATE: u64 = 54;
/// A block of the compact table: the number of entries before it, the numbers in its words but the last
/// (9 bits each), and one bit for each instruction.
const BLOCK_BYTES: u64 = 80;
const BLOCK_INSTRUCTIONS: u64 = 512;

/// The place of the table of lines in the body of an iseq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineTables {
    at: usize,
    entry_bytes: u64,
}

/// The instructions of an iseq, from the first words of its body (`rb_iseq_constant_body`): its type, their
/// number, and their address; the same from 2.7 to 4.1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Instructions {
    count: u64,
    start: Address,
}

/// The table of one iseq.
struct Info {
    entries: Address,
    count: u64,
    positions: Address,
}

impl Instructions {
    /// The number of instructions of the iseq with this body.
    pub(crate) fn count(body: &[u8]) -> u64 {
        word(body, 0) >> 32
    }

    /// The instructions of the iseq with this body; `None` if it has no instructions.
    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        let (count, start) = (Self::count(body), Address(word(body, 8)));
        let fits = (1..=MAX_INSTRUCTIONS).contains(&count) && start.0 != 0 && start.is_aligned(8);
        fits.then_some(Self { count, start })
    }

    /// Their address, and the words that they take.
    pub(crate) fn memory(self) -> (Address, u64) {
        (self.start, self.count)
    }

    /// The position of the instruction that runs, if the program counter `pc` is among these. It points to
    /// the next one.
    pub(crate) fn position(self, pc: Address) -> Option<u64> {
        let position = pc.0.checked_sub(self.start.0)? / 8;
        (position <= self.count).then(|| position.saturating_sub(1))
    }
}

impl LineTables {
    /// The only layout that at least nine in ten of these bodies have.
    pub(crate) fn derive(image: &Image<'_>, bodies: &[Vec<u8>]) -> Option<Self> {
        let all = (0..=BODY_BYTES - INFO_BYTES)
            .step_by(8)
            .flat_map(|at| ENTRY_BYTES.map(|entry_bytes| Self { at, entry_bytes }));
        let mut found = all.filter(|layout| {
            let fits = |body: &&Vec<u8>| layout.fits(image, body).is_some();
            bodies.iter().filter(fits).count() * 10 >= bodies.len() * 9
        });
        found.next().filter(|_| !bodies.is_empty() && found.next().is_none())
    }

    fn fits(self, image: &Image<'_>, body: &[u8]) -> Option<()> {
        let instructions = Instructions::of(body)?;
        let info = self.info(body, instructions)?;
        if info.count > 1 && rank(image, info.positions, instructions.count - 1)? != info.count {
            return None;
        }
        let mut entries = vec![0; (info.count.min(MAX_ENTRIES) * self.entry_bytes) as usize];
        image.read_exact(info.entries, &mut entries).ok()?;
        let is_entry = |entry: &[u8]| {
            let events = number(&entry[entry.len() - 4..]);
            number(entry) < MAX_LINE && events & !EVENTS == 0
        };
        entries.chunks_exact(self.entry_bytes as usize).all(is_entry).then_some(())
    }

    fn info(self, body: &[u8], instructions: Instructions) -> Option<Info> {
        let [entries, plain, count, compact] = [0, 8, 16, 24].map(|at| word(body, self.at + at));
        let count = u64::from(count as u32);
        let is_table = count == 1 || plain == 0 && compact != 0 && compact.is_multiple_of(8);
        let fits = (1..=instructions.count).contains(&count)
            && entries != 0
            && entries.is_multiple_of(8)
            && is_table;
        fits.then_some(Info { entries: Address(entries), count, positions: Address(compact) })
    }

    /// The memory with the entries, their positions, and the IDs of the local variables (`local_table`), which follows
    /// the table in all releases: numbers only.
    pub(crate) fn numbers(self, body: &[u8], instructions: Instructions) -> Option<[Address; 3]> {
        let info = self.info(body, instructions)?;
        let after = self.at + INFO_BYTES;
        let names = body.get(after..after + 8).map_or(0, |bytes| word(bytes, 0));
        Some([info.entries, info.positions, Address(names)])
    }

    /// The line of the instruction at `position`.
    pub(crate) fn line(self, image: &Image<'_>, body: &[u8], position: u64) -> Option<u32> {
        let info = self.info(body, Instructions::of(body)?)?;
        let index = match info.count {
            1 => 0,
            count => {
                rank(image, info.positions, position)?.checked_sub(1).filter(|&it| it < count)?
            }
        };
        let mut entry = [0; 4];
        image.read_exact(info.entries.offset(index * self.entry_bytes), &mut entry).ok()?;
        Some(number(&entry)).filter(|line| (1..MAX_LINE).contains(line))
    }
}

/// The number that these bytes begin with.
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |number| u32::from_le_bytes(*number))
}

/// The number of entries that begin at or before the instruction at `position`, by the compact table
/// (`succ_index_lookup` in iseq.c).
fn rank(image: &Image<'_>, table: Address, position: u64) -> Option<u64> {
    let Some(behind) = position.checked_sub(IMMEDIATE) else {
        let ranks = image.read_u64(table.offset(position / 9 * 8)).ok()?;
        return Some(ranks >> (position % 9 * 7) & 0x7f);
    };
    let block = table.offset(IMMEDIATE / 9 * 8 + behind / BLOCK_INSTRUCTIONS * BLOCK_BYTES);
    let mut bytes = [0; BLOCK_BYTES as usize];
    image.read_exact(block, &mut bytes).ok()?;
    let bit = behind % BLOCK_INSTRUCTIONS;
    let before = match bit / 64 {
        0 => 0,
        number => word(&bytes, 8) >> (9 * (number - 1)) & 0x1ff,
    };
    let bits = word(&bytes, 16 + (bit / 64 * 8) as usize) << (63 - bit % 64);
    Some((word(&bytes, 0) & 0xffff_ffff) + before + u64::from(bits.count_ones()))
}
