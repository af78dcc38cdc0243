//! The copy of a thread's registers, free lists and stack that the kernel makes at a tick of a clock.
//!
//! A page's slots are taken in the order of their addresses, so what was allocated a moment ago lies just above the first free slot, or from
//! 4.1 on just below it. A word in a register or on the VM stack that refers to such a slot is a new object in the
//! hands of the code that made it. Leftovers on the machine stack would name code that ran before.

use std::cmp::Reverse;

use image::Image;
use linux::Address;
use linux::arch::{GENERAL_REGISTERS, INSTRUCTION_AT, PRESERVED_REGISTERS, is_of_kernel};
use linux::bpf::Register::{R1, R2, R3, R9};
use linux::bpf::{Assembler, LOCALS, POINTER, RECORD, RECORD_HEADER};

use crate::allocation::collections::Collections;
use crate::allocation::free_lists::{FreeLists, Order, Place};
use crate::backtrace::{
    ContextPath, CopiedStack, Holder, RunningStacks, STACK_POINTER, write_after,
};
use crate::collector::CollectorLayout;
use crate::word::{word, words};

/// The place of the address of the lists before a record begins.
const LISTS_AT: i16 = -64;
/// The slots next to the first free one in which new objects are, at most. A trial with all slots of a page found 560 right samples
/// within these, and 9 right and 5 wrong ones beyond.
const RECENT_SLOTS: u64 = 64;
/// The new objects of a tick, at most. Code has few in its hands; a program can write what it likes there.
const MAX_SIGHTINGS: usize = 64;
/// The words of a tick that refer to new objects, at most.
const MAX_WORDS: usize = 256;
/// The words above the stack pointer that are copied. The first of them are operands of the instruction that runs; a method that has
/// returned had at least three words before its own: its environment.
const ABOVE_WORDS: i16 = 32;
const OPERANDS: usize = 3;
/// The places in a record: the number of collections, the collector's flags, the instruction, the registers, the words above the stack
/// pointer, and the lists.
const COUNT: i16 = 0;
const FLAGS: i16 = 8;
const INSTRUCTION: i16 = 16;
const REGISTERS: i16 = 24;
const ABOVE: i16 = REGISTERS + 8 * GENERAL_REGISTERS;
const LISTS: i16 = ABOVE + 8 * ABOVE_WORDS;

/// Writes the program that the kernel runs at a tick, and reads its records.
#[derive(Debug, Clone)]
pub struct TickProgram {
    context: ContextPath,
    lists: FreeLists,
    collections: Collections,
    is_compiled: bool,
}

/// A record.
pub struct Tick<'a> {
    /// The number of collections at the tick.
    pub collections: u64,
    /// True if the collector marked objects at the tick; `None` if its state is unknown for this release.
    pub is_marking: Option<bool>,
    /// The stack at the tick.
    pub stack: CopiedStack,
    program: &'a TickProgram,
    lists: &'a [u8],
    registers: &'a [u8],
    /// The words above the stack pointer.
    above: &'a [u8],
    is_in_kernel: bool,
}

/// A new object in the hands of the code that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Its slot.
    pub slot: Address,
    /// The frame that made it or called what made it, by its number from the innermost one.
    pub frame: usize,
    /// The frame that gave it to what it called.
    given_by: Option<usize>,
    /// The free list that it was in front of.
    list: usize,
    /// The bytes between it and the first free slot: more for older objects.
    distance: u64,
}

impl TickProgram {
    /// The program for threads whose contexts this path leads to. `is_compiled` is true if a JIT compiler has compiled code.
    #[must_use]
    pub fn new(
        context: ContextPath,
        lists: FreeLists,
        collections: Collections,
        is_compiled: bool,
    ) -> Self {
        Self { context, lists, collections, is_compiled }
    }

    /// Writes the program.
    pub fn write(&self, code: &mut Assembler) {
        self.context.follow(code);
        match &self.lists.place {
            Place::OfRactor { path, at } => {
                code.copy(R9, POINTER);
                for &offset in path {
                    code.follow(offset as i32);
                }
                code.add_number(POINTER, *at as i32);
                code.store(LOCALS, LISTS_AT, POINTER);
                code.copy(POINTER, R9);
            }
            Place::Fixed(at) => {
                code.set_word(R1, at.0);
                code.store(LOCALS, LISTS_AT, R1);
            }
        }
        write_after(code, self.prefix(), |code| {
            code.set_word(R3, self.collections.all().0);
            copy(code, COUNT, 8);
            if let Some(flags) = self.collections.flags() {
                code.set_word(R3, flags.0);
                copy(code, FLAGS, 4);
            }
            code.load_context(R1, INSTRUCTION_AT);
            code.store(RECORD, RECORD_HEADER + INSTRUCTION, R1);
            for register in 0..GENERAL_REGISTERS {
                code.load_context(R1, register * 8);
                code.store(RECORD, RECORD_HEADER + REGISTERS + register * 8, R1);
            }
            code.load(R3, LOCALS, STACK_POINTER);
            copy(code, ABOVE, 8 * i32::from(ABOVE_WORDS));
            code.load(R3, LOCALS, LISTS_AT);
            copy(code, LISTS, self.lists.bytes() as i32);
        });
    }

    /// The bytes of a record before the stack.
    fn prefix(&self) -> i16 {
        LISTS + self.lists.bytes() as i16
    }

    /// Reads a record; `None` if it is none, or has no stack.
    #[must_use]
    pub fn read<'a>(
        &'a self,
        image: &Image<'_>,
        stacks: &RunningStacks,
        record: &'a [u8],
    ) -> Option<Tick<'a>> {
        let (own, stack) = record.split_at_checked(self.prefix() as usize)?;
        Some(Tick {
            collections: word(own, COUNT as usize),
            is_marking: self.collections.flags().map(|_| {
                let flags = word(own, FLAGS as usize) as u32;
                CollectorLayout::is_marking(flags)
            }),
            stack: stacks.copied(image, stack)?,
            program: self,
            lists: &own[LISTS as usize..],
            registers: &own[REGISTERS as usize..ABOVE as usize],
            above: &own[ABOVE as usize..LISTS as usize],
            is_in_kernel: is_of_kernel(Address(word(own, INSTRUCTION as usize))),
        })
    }
}

impl Tick<'_> {
    /// The new objects, each once, with the outermost frame that holds it: code that made an object passes it on to what it calls. An object
    /// that a frame was given is its caller's. `image` is of the same process.
    #[must_use]
    pub fn sightings(&self, image: &Image<'_>) -> Vec<Sighting> {
        let heads: Vec<(u64, u64)> = self.program.lists.heads(self.lists).collect();
        let page_bytes = self.program.lists.page_bytes;
        let order = self.program.lists.order;
        let place = |at: u64| {
            let distances = heads.iter().map(|&head| distance(head, order, page_bytes, at));
            distances.enumerate().find_map(|(list, distance)| Some((list, distance?)))
        };
        let sighting = |slot: u64, Holder { frame, is_argument }: Holder| {
            let (list, distance) = place(slot)?;
            let frame = frame + usize::from(is_argument);
            let given_by = is_argument.then_some(frame);
            Some(Sighting { slot: Address(slot), frame, given_by, list, distance })
        };
        let registers = registers(self.registers, self.is_in_kernel, self.program.is_compiled);
        let innermost = Holder { frame: 0, is_argument: false };
        let in_registers = registers.filter(|&word| !is_left(self.above, word));
        let in_registers = in_registers.filter_map(|word| sighting(word, innermost));
        let on_stack = self.stack.values().filter(|(_, word)| place(*word).is_some());
        let on_stack = on_stack
            .filter_map(|(at, word)| sighting(word, self.stack.holder(image, at)?))
            .take(MAX_WORDS);
        let mut found: Vec<Sighting> = in_registers.chain(on_stack).collect();
        found.sort_unstable_by_key(|it| (it.slot, Reverse(it.frame), Reverse(it.given_by)));
        found.dedup_by_key(|it| it.slot);
        found.truncate(MAX_SIGHTINGS);
        found
    }
}

/// The registers in which the code that runs has values. In a system call they are the kernel's own. The code of a JIT compiler has
/// operands in those that functions need not preserve, and leaves them there: C code that it calls seldom uses all of them.
fn registers(
    registers: &[u8],
    is_in_kernel: bool,
    is_compiled: bool,
) -> impl Iterator<Item = u64> + '_ {
    let all = words(registers).enumerate().filter(move |_| !is_in_kernel);
    all.filter(move |(number, _)| !is_compiled || PRESERVED_REGISTERS.contains(number))
        .map(|(_, word)| word)
}

/// Returns true for a value that a method left in a register when it returned: these words above the stack pointer have it only where
/// that method had its operands.
fn is_left(above: &[u8], value: u64) -> bool {
    words(above).position(|word| word == value).is_some_and(|at| at >= OPERANDS)
}

/// Gives the objects that were made before one with which a frame was called to the caller, too, such as a variable of that one.
/// `is_youngest` returns true for a sighting whose object no collection has seen: then the order of the slots is that of time.
pub fn credit_callers(sightings: &mut [Sighting], is_youngest: impl Fn(usize) -> bool) {
    let given = sightings.iter().enumerate().filter(|(index, _)| is_youngest(*index));
    let given: Vec<(Sighting, usize)> =
        given.filter_map(|(_, it)| Some((*it, it.given_by?))).collect();
    for sighting in sightings {
        let is_older = |(given, _): &&(Sighting, usize)| {
            given.list == sighting.list && given.distance <= sighting.distance
        };
        let caller = given.iter().filter(is_older).map(|it| it.1).max();
        sighting.frame = sighting.frame.max(caller.unwrap_or_default());
    }
}

/// The bytes between a slot of this size and the head of its list, which it was in front of a short time ago; `None` if it was not.
fn distance((head, slot_bytes): (u64, u64), order: Order, page_bytes: u64, at: u64) -> Option<u64> {
    let page = |at: u64| at & !(page_bytes - 1);
    let (distance, latest) = match order {
        Order::Descending => (at.checked_sub(head)?, head),
        // The head may be the end of its page.
        Order::Ascending => (head.checked_sub(at)?, head.checked_sub(slot_bytes)?),
    };
    let is_new = page(at) == page(latest)
        && (slot_bytes..=RECENT_SLOTS * slot_bytes).contains(&distance)
        && distance.is_multiple_of(slot_bytes);
    is_new.then_some(distance)
}

/// Copies memory of the process at R3 to a place of the record.
fn copy(code: &mut Assembler, place: i16, bytes: i32) {
    code.copy(R1, RECORD);
    code.add_number(R1, (RECORD_HEADER + place).into());
    code.set(R2, bytes);
    code.copy_memory(R1, R2, R3);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Made by Checker#check", which read each byte of what it was given.
    #[test]
    fn what_was_made_before_a_call_is_the_callers() {
        let sighting = |slot: u64, frame, given_by, list, distance| Sighting {
            slot: Address(slot),
            frame,
            given_by,
            list,
            distance,
        };
        // The argument of frame 1, an older one, one of another size, a newer one, and one of an outer frame.
        let found = [
            sighting(0x1000, 2, Some(2), 0, 80),
            sighting(0x1028, 1, None, 0, 120),
            sighting(0x9000, 1, None, 1, 160),
            sighting(0x0fd8, 1, None, 0, 40),
            sighting(0x2000, 5, None, 0, 160),
        ];
        let frames = |is_youngest| {
            let mut found = found;
            credit_callers(&mut found, |_| is_youngest);
            found.map(|it| it.frame)
        };
        assert_eq!(frames(true), [2, 2, 1, 1, 5]);
        // The slot of an object that is older than the list says nothing.
        assert_eq!(frames(false), [2, 1, 1, 1, 5]);
    }

    /// With YJIT on Ruby 4.1, a third of the samples of `Tracker#track` were those of a method that was called later.
    #[test]
    fn what_compiled_code_left_in_a_register_is_in_nobodys_hands() {
        let bytes: Vec<u8> =
            (0..GENERAL_REGISTERS as u64).flat_map(|number| number.to_le_bytes()).collect();
        let in_use = |is_in_kernel, is_compiled| -> Vec<u64> {
            registers(&bytes, is_in_kernel, is_compiled).collect()
        };
        let preserved = PRESERVED_REGISTERS.start as u64..PRESERVED_REGISTERS.end as u64;
        assert_eq!(in_use(false, true), preserved.collect::<Vec<_>>());
        assert_eq!(in_use(false, false).len(), GENERAL_REGISTERS as usize);
        assert_eq!([in_use(true, false), in_use(true, true)], [const { Vec::<u64>::new() }; 2]);
    }

    /// "About 3 of 30 samples were made in block in <main>", which called the method that made them.
    #[test]
    fn what_a_method_left_in_a_register_is_not_its_callers() {
        let above: Vec<u8> = [9, 8, 7, 6, 9_u64].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert!(is_left(&above, 6));
        // An operand, and an object that was not on the stack.
        assert!(!is_left(&above, 7) && !is_left(&above, 9) && !is_left(&above, 5));
        assert!(!is_left(&[], 6));
    }

    #[test]
    fn new_objects_are_next_to_the_first_free_slot_of_its_page() {
        const PAGE: u64 = 0x7f00_0001_0000;
        let head = PAGE + 40 * 100;
        let is_new_in = |head: (u64, u64), order, at| distance(head, order, 1 << 16, at).is_some();
        let is_new = |at: u64| is_new_in((head, 40), Order::Descending, at);
        assert!(is_new(head + 40) && is_new(head + 64 * 40));
        // The free slot itself, one below, one too far above, and a word inside of one.
        assert!(!is_new(head) && !is_new(head - 40) && !is_new(head + 65 * 40));
        assert!(!is_new(head + 44) && !is_new(0) && !is_new(u64::MAX));
        // Words of a hostile process: the next page, and heads at the ends of the addresses.
        assert!(!is_new_in((PAGE + 65_480, 40), Order::Descending, PAGE + 65_560));
        assert!(!is_new_in((u64::MAX - 7, 640), Order::Descending, 632));
        assert!(!is_new_in((8, 40), Order::Descending, u64::MAX - 31));
        let is_new = |at: u64| is_new_in((head, 40), Order::Ascending, at);
        assert!(is_new(head - 40) && is_new(head - 64 * 40));
        assert!(!is_new(head) && !is_new(head + 40) && !is_new(head - 65 * 40));
        // The page is used up.
        assert!(is_new_in((PAGE + 65_536, 64), Order::Ascending, PAGE + 65_472));
        assert!(!is_new_in((PAGE + 65_536, 64), Order::Ascending, PAGE + 65_536));
        assert!(!is_new_in((8, 40), Order::Ascending, u64::MAX - 31));
        assert!(!is_new_in((0, 40), Order::Ascending, 0));
    }
}
