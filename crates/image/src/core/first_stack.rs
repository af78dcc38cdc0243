//! The command line and the environment of a process, from the data that the kernel put on its stack at the start:
//! pointers to both, the auxiliary vector (which is also a note of the core), and then the strings (fs/binfmt_elf.c,
//! `create_elf_tables`).

use std::ops::Range;

use linux::Address;

use crate::Memory;

use super::notes::Notes;

/// `AT_EXECFN`: the file name of the program, the last of the strings.
const AT_EXECFN: u64 = 31;
/// More bytes than the strings, the pointers and the vector have: the kernel allows a quarter of the stack's limit, at
/// most 6 MiB.
const MAX_BYTES: u64 = 8 << 20;
/// The number of entries by which the auxiliary vector is found.
const ENTRIES: usize = 4;

/// The strings of a process's command line and environment, each terminated by a NUL.
pub(crate) struct FirstStack {
    pub(crate) arguments: Vec<u8>,
    pub(crate) environment: Vec<u8>,
}

impl FirstStack {
    /// Finds them; `None` if the stack was not dumped, or was changed.
    pub(crate) fn find(memory: &dyn Memory, notes: &Notes) -> Option<Self> {
        let end = Address(notes.auxiliary(AT_EXECFN)?);
        let start = end.before(MAX_BYTES.min(end.0)).align_up(8);
        let words = words_before(memory, start, end);
        let first = Address(end.align_down(8).0.checked_sub(words.len() as u64 * 8)?);
        let entries = notes.auxiliary.get(..ENTRIES)?;
        let vector: Vec<u64> = entries.iter().flat_map(|&(key, value)| [key, value]).collect();
        // The vector is nearer to the strings than copies that the program put on its stack.
        let vector_at = words.windows(vector.len()).rposition(|part| part == vector)?;
        // The order is: the number of arguments, pointers to arguments, NULL, pointers to variables, NULL, the vector.
        let pointers = words[..vector_at].strip_suffix(&[0])?;
        let null = pointers.iter().rposition(|&it| it == 0)?;
        let variables = &pointers[null + 1..];
        let count = (0..null).rev().find(|&at| pointers[at] == (null - at - 1) as u64)?;
        let arguments = &pointers[count + 1..null];

        let within = |at: u64| (first..end).contains(&Address(at)).then_some(Address(at));
        let environment = match variables.first() {
            Some(&at) => within(at)?..end,
            None => end..end,
        };
        let arguments = match arguments.first() {
            Some(&at) => within(at)?..environment.start,
            None => environment.start..environment.start,
        };
        let read = |range: Range<Address>| {
            let mut bytes = vec![0; (range.end - range.start).min(MAX_BYTES) as usize];
            memory.read_exact(range.start, &mut bytes).ok().map(|()| bytes)
        };
        Some(Self { arguments: read(arguments)?, environment: read(environment)? })
    }
}

/// Returns the readable words between `start` and `end`, up to the end: mostly, the stack begins after `start`.
fn words_before(memory: &dyn Memory, start: Address, end: Address) -> Vec<u64> {
    const STEP: u64 = 64 << 10;
    let end = end.align_down(8);
    let mut parts = Vec::new();
    let mut at = end;
    while at > start {
        let from = at.before(STEP.min(at - start));
        let mut bytes = vec![0; (at - from) as usize];
        if memory.read_exact(from, &mut bytes).is_err() {
            break;
        }
        parts.push(bytes);
        at = from;
    }
    let bytes = parts.into_iter().rev().flatten().collect::<Vec<u8>>();
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}
