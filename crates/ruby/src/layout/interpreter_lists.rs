//! Entries of lists that only the interpreter refers to: `at_exit`, hooks of TracePoints, messages for Ractors.

use std::ops::RangeInclusive;

use linux::{Address, MIN_PAGE_SIZE};

/// An entry of `at_exit`: `struct end_proc_data` (eval_jump.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndProc {
    /// The function, which the interpreter calls with `argument`.
    pub function: Address,
    /// For blocks of `at_exit` the Proc.
    pub argument: u64,
    /// The entry that was added before it; 0 in the first one.
    pub next: Address,
}

impl EndProc {
    /// The bytes of an entry.
    pub const BYTES: u64 = 24;

    /// The entry with these words.
    #[must_use]
    pub fn from_words([function, argument, next]: [u64; 3]) -> Self {
        Self { function: Address(function), argument, next: Address(next) }
    }
}

/// A hook of events: `struct rb_event_hook_struct` (vm_trace.c): flags and events of 4 bytes, the function, its argument, the next
/// hook, a thread and a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventHook {
    /// The function, which the interpreter calls with `argument`.
    pub function: Address,
    /// For hooks of TracePoints the TracePoint.
    pub argument: u64,
}

impl EventHook {
    /// The bytes of a hook.
    pub const BYTES: u64 = 48;
    /// `rb_event_hook_flag_t` (include/ruby/debug.h): safe, deleted, raw argument.
    const FLAGS: u32 = 7;

    /// The hook that begins with these words; `None` if it has no events or unknown flags.
    #[must_use]
    pub fn from_words([head, function, argument]: [u64; 3]) -> Option<Self> {
        let is_hook = head as u32 & !Self::FLAGS == 0 && head >> 32 != 0;
        is_hook.then_some(Self { function: Address(function), argument })
    }
}

/// An entry of `rb_gc_register_address`: `struct gc_list` (gc.c), or `struct global_object_list`; up to 4.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredAddress {
    /// The address of a word that may refer to an object.
    pub address: Address,
    /// The entry that was added before it; 0 in the first one.
    pub next: Address,
}

impl RegisteredAddress {
    /// The bytes of an entry.
    pub const BYTES: u64 = 16;

    /// The entry with these words; `None` if the address is no word's.
    #[must_use]
    pub fn from_words([address, next]: [u64; 2]) -> Option<Self> {
        let is_word = address != 0 && address.is_multiple_of(8);
        is_word.then_some(Self { address: Address(address), next: Address(next) })
    }
}

/// The addresses of `rb_gc_register_address` from 4.1 on: members of `registered_globals` of `rb_vm_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredAddresses {
    /// The address of the first one.
    pub first: Address,
    /// Their number.
    pub count: u64,
    /// The number of addresses that there is room for.
    pub room: u64,
}

impl RegisteredAddresses {
    /// The words of these members.
    pub const WORDS: usize = 3;

    /// The addresses to which these words refer; `None` if their numbers contradict each other.
    #[must_use]
    pub fn from_words([first, count, room]: [u64; Self::WORDS]) -> Option<Self> {
        let is_one = first != 0 && count > 0 && count <= room && room <= u64::from(u32::MAX);
        is_one.then_some(Self { first: Address(first), count, room })
    }
}

/// The queue of a Ractor: `struct rb_ractor_queue` (ractor_core.h, 3.0 to 3.4; since then [`MessageList`]): the messages, then the number of the first one, their
/// count, and the room for them, as numbers of 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RactorQueue {
    /// The address of the messages.
    pub messages: Address,
    /// The number of messages that there is room for.
    room: u32,
}

impl RactorQueue {
    /// The words of a queue.
    pub const WORDS: usize = 3;
    /// The part of a Ractor's structure (`rb_ractor_t`) that has queues, at most, in bytes.
    pub const MAX_RACTOR_BYTES: u64 = 4 << 10;
    /// The least and the largest size of a message (`struct rb_ractor_basket`), in bytes.
    const MESSAGE_BYTES: [u64; 2] = [24, 48];

    /// The queue with these words; `None` if its numbers contradict each other.
    #[must_use]
    pub fn from_words([messages, numbers, room]: [u64; Self::WORDS]) -> Option<Self> {
        let (first, count, room) = (numbers as u32, (numbers >> 32) as u32, room as u32);
        let is_queue = room > 0 && first < room && count <= room;
        is_queue.then_some(Self { messages: Address(messages), room })
    }

    /// The sizes of the block with the messages, in bytes. A large one may have up to a page more than was asked for.
    #[must_use]
    pub fn usable_bytes(self) -> RangeInclusive<u64> {
        let [least, most] = Self::MESSAGE_BYTES.map(|bytes| bytes * u64::from(self.room));
        least..=most + MIN_PAGE_SIZE
    }
}

/// The queue of a Ractor or of a port: `struct ractor_queue` (ractor_sync.c, from 4.0 on): the head of a list of messages, and a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageList;

impl MessageList {
    /// The bytes of a queue.
    pub const BYTES: u64 = 24;
    /// The bytes of a head or of a node of the list (`struct ccan_list_node`): the next node, and the one before.
    pub const NODE_BYTES: u64 = 16;
}

/// The records of GC::Profiler: members of `rb_objspace_t` (gc.c, from 3.4 on gc/default/default.c; `profile.records` and what follows it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcRecords {
    /// Their address.
    pub records: Address,
    /// The record that is being written; 0 if the profiler is disabled.
    pub current: Address,
    /// The number of records that there is room for.
    room: u64,
}

impl GcRecords {
    /// The words of these members.
    pub const WORDS: usize = 4;
    /// The part of an object space that has them, at most, in bytes.
    pub const MAX_SPACE_BYTES: u64 = 16 << 10;
    /// The least and the largest size of a record (`gc_profile_record`), in bytes.
    const RECORD_BYTES: [u64; 2] = [48, 512];

    /// The records to which these words refer; `None` if their numbers contradict each other.
    #[must_use]
    pub fn from_words([records, current, next, room]: [u64; Self::WORDS]) -> Option<Self> {
        let is_one = records != 0 && room > 0 && next <= room && room <= u64::from(u32::MAX);
        is_one.then_some(Self { records: Address(records), current: Address(current), room })
    }

    /// The sizes of the block with the records, in bytes.
    #[must_use]
    pub fn usable_bytes(self) -> RangeInclusive<u64> {
        let [least, most] = Self::RECORD_BYTES.map(|bytes| bytes * self.room);
        least..=most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_hook_are_rejected() {
        let hook = EventHook { function: Address(0x1000), argument: 0x2000 };
        assert_eq!(EventHook::from_words([8 << 32 | 1, 0x1000, 0x2000]), Some(hook));
        for head in [1, 8 << 32 | 8, 0] {
            assert_eq!(EventHook::from_words([head, 0x1000, 0x2000]), None, "{head:#x}");
        }
    }

    #[test]
    fn records_of_collections_fit_their_block() {
        let records = |next, room| GcRecords::from_words([0x1000, 0x1080, next, room]);
        let sizes = records(99, 100).unwrap().usable_bytes();
        let fits = [4799, 4800, 51_200, 51_201].map(|bytes| sizes.contains(&bytes));
        assert_eq!(fits, [false, true, true, false]);
        assert_eq!([records(101, 100), records(0, 0), records(0, 1 << 32)], [None; 3]);
        assert_eq!(GcRecords::from_words([0, 0, 0, 100]), None);
    }

    #[test]
    fn words_that_are_no_registered_addresses_are_rejected() {
        let entry = RegisteredAddress { address: Address(0x1000), next: Address(0) };
        assert_eq!(RegisteredAddress::from_words([0x1000, 0]), Some(entry));
        assert_eq!([[0, 0], [0x1004, 0]].map(RegisteredAddress::from_words), [None; 2]);
        let addresses = |count, room| RegisteredAddresses::from_words([0x1000, count, room]);
        assert!(addresses(64, 64).is_some());
        assert_eq!([addresses(0, 64), addresses(65, 64), addresses(1, 1 << 32)], [None; 3]);
    }

    #[test]
    fn numbers_of_a_queue_agree_with_each_other_and_with_its_block() {
        let queue = |first: u64, count: u64, room| {
            RactorQueue::from_words([0x1000, count << 32 | first, room])
        };
        let sizes = queue(3, 4, 4).unwrap().usable_bytes();
        assert_eq!((sizes.contains(&95), sizes.contains(&96)), (false, true));
        assert!(sizes.contains(&(4 * 48)) && !sizes.contains(&(4 * 48 + MIN_PAGE_SIZE + 1)));
        assert_eq!([queue(4, 0, 4), queue(0, 5, 4), queue(0, 0, 0)], [None; 3]);
    }
}
