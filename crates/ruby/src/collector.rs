//! The state of the garbage collector.

use image::Memory;
use linux::Address;

use crate::allocation::{CollectionCounts, Collections};
use crate::interpreter::Interpreter;
use crate::object_space::ObjectSpace;

/// `mode`, and its value while objects are marked.
const MODE: u32 = 0b11;
const MARKING: u32 = 1;
/// More bytes than `malloc_limit` can be in earnest.
const MAX_LIMIT: u64 = 1 << 40;

/// The first heap is searched for among this many bytes of an object space.
const MAX_BYTES_BEFORE_HEAPS: u64 = 256;

/// The state of the garbage collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collector {
    /// True if a major collection is marking: it forgot at its start which objects are old, and may go on in steps for as long as the
    /// program allocates little. `None` if it is unknown for this release whether the collection that runs is a major one.
    pub is_marking: Option<bool>,
    /// True after `GC.disable`; `None` while a collection runs.
    pub is_disabled: Option<bool>,
    /// True after `GC.stress = true`; `None` while a collection runs, and if it is unknown for this release.
    pub is_stressed: Option<bool>,
    /// False if `GC.config(rgengc_allow_full_mark: false)` lets it collect young objects only; `None` before Ruby 3.4.
    pub allows_full_mark: Option<bool>,
    /// The collections so far; `None` before the first one, at the moment when one begins, and if their place is unknown for this release.
    pub counts: Option<CollectionCounts>,
}

/// The places of the collector's state in the object space (`rb_objspace_t` of gc.c, from 3.4 on gc/default/default.c), and its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CollectorLayout {
    /// The offset of `malloc_limit`, which tells whether this is an object space.
    pub(crate) limit: u64,
    /// The offset of `flags`, and the number of them.
    pub(crate) flags: u64,
    pub(crate) flag_count: u32,
    /// The flag that `GC.disable` sets: `dont_gc`, from 4.1 on `user_gc_disabled`.
    pub(crate) disabled: u32,
    /// `during_gc` and `during_compacting`: a collection runs, which sets other flags meanwhile.
    pub(crate) during_gc: u32,
    /// `gc_stressful`; `None` if it is elsewhere, or unknown.
    pub(crate) stress: Option<u32>,
    /// `during_minor_gc`.
    pub(crate) minor: Option<u32>,
    /// The offset of `gc_config.full_mark`.
    pub(crate) full_mark: Option<u64>,
    /// The offsets of `profile.minor_gc_count`, which that of major collections follows, and of `profile.count`.
    pub(crate) counts: Option<(u64, u64)>,
}

impl CollectorLayout {
    /// The place of the flags of the collector whose number of minor collections is at `minor`; `None` if that is unknown, or if no flags
    /// are there.
    pub(crate) fn flags_by_count(self, memory: &dyn Memory, minor: Address) -> Option<Address> {
        let start = minor.0.checked_sub(self.counts?.0)?;
        let flags = Address(start.checked_add(self.flags)?);
        let limit = memory.read_u64(Address(start.checked_add(self.limit)?)).ok()?;
        let is_it = memory.read_u32(flags).is_ok_and(|it| self.fits(limit, it));
        is_it.then_some(flags)
    }

    /// Returns true if a collector can have this limit and these flags.
    fn fits(self, limit: u64, flags: u32) -> bool {
        (1..MAX_LIMIT).contains(&limit) && flags >> self.flag_count == 0
    }

    /// Returns true if these flags are of a collector that marks objects.
    pub(crate) fn is_marking(flags: u32) -> bool {
        flags & MODE == MARKING
    }
}

impl Collector {
    /// Reads the state from the structure of an object space, which begins at `at`; `None` if the layout is unknown or implausible.
    #[must_use]
    pub fn read(memory: &dyn Memory, space: &ObjectSpace, at: Address) -> Option<Self> {
        let layout = space.interpreter.collector_layout(first_heap(memory, space, at))?;
        let flags = memory.read_u32(at.offset(layout.flags)).ok()?;
        let limit = memory.read_u64(at.offset(layout.limit)).ok()?;
        if !layout.fits(limit, flags) {
            return None;
        }
        let allows_full_mark = match layout.full_mark {
            None => None,
            Some(offset) => match memory.read_u32(at.offset(offset)).ok()? & 0xff {
                0 => Some(false),
                1 => Some(true),
                _ => return None,
            },
        };
        let runs = flags & layout.during_gc != 0;
        let is_marking = match flags & MODE {
            // Only a major collection marks in steps.
            MARKING if runs => layout.minor.map(|minor| flags & minor == 0),
            mode => Some(mode == MARKING),
        };
        let flag = layout.stress.filter(|_| !runs).map(|stress| flags & stress != 0);
        Some(Self {
            is_marking,
            is_disabled: (!runs).then_some(flags & layout.disabled != 0),
            is_stressed: flag.or(space.is_stressed),
            allows_full_mark,
            counts: layout.counts.and_then(|(minor, all)| {
                let counts = Collections::at(at.offset(minor), at.offset(all)).read(memory);
                // Zeros elsewhere would add up, too.
                counts.filter(|it| it.all > 0)
            }),
        })
    }
}

/// The offset of the first heap in the structure of an object space: it begins with the size of its slots (`rb_heap_t`, from 3.4 on), which
/// is the smallest one.
fn first_heap(memory: &dyn Memory, space: &ObjectSpace, at: Address) -> Option<u64> {
    let sizes = space.pages.iter().map(|page| page.slot_bytes).filter(|&bytes| bytes > 0);
    let size = u64::from(sizes.min()?);
    let mut offsets = (0..MAX_BYTES_BEFORE_HEAPS).step_by(8);
    offsets.find(|&offset| memory.read_u64(at.offset(offset)).is_ok_and(|word| word == size))
}

impl Interpreter {
    /// The number of slots that the collector keeps, free or not, because of the environment variable `name`; `None` for other
    /// variables, and for values that Ruby ignores.
    ///
    /// Up to 3.2 there is one such variable, then one for each size of slots (`gc_set_initial_pages`).
    #[must_use]
    pub fn initial_slots(&self, name: &str, value: &str) -> Option<u64> {
        if !self.has_initial_numbers() {
            return None;
        }
        let size = name.strip_prefix("RUBY_GC_HEAP_")?.strip_suffix("INIT_SLOTS")?;
        let sizes: &[&str] = match self.has_one_initial_number() {
            true => &[""],
            false => &["0_", "1_", "2_", "3_", "4_"],
        };
        let (digits, shift) = match value.as_bytes().last()? {
            b'k' | b'K' => (&value[..value.len() - 1], 10),
            b'm' | b'M' => (&value[..value.len() - 1], 20),
            b'g' | b'G' => (&value[..value.len() - 1], 30),
            _ => (value, 0),
        };
        // Ruby takes a number with a leading zero as octal or hexadecimal.
        let is_decimal = digits.bytes().all(|it| it.is_ascii_digit()) && !digits.starts_with('0');
        let slots = digits.parse::<u64>().ok().filter(|_| is_decimal && sizes.contains(&size))?;
        slots.checked_mul(1 << shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_before_the_numbers_of_collections() {
        /// The place and value of a limit, and of flags.
        struct State([(Address, u64); 2]);
        impl Memory for State {
            fn read(&self, at: Address, into: &mut [u8]) -> usize {
                let Some((_, word)) = self.0.iter().find(|it| it.0 == at) else { return 0 };
                into.copy_from_slice(&word.to_le_bytes()[..into.len()]);
                into.len()
            }
        }
        const START: u64 = 0x10_0000;
        const LIMIT: u64 = 16 << 20;
        // From 4.0 on the limit is in front of the first heap.
        for (version, limit, minor, flags) in [
            ("2.7.4", 0, 376, 16),
            ("3.1.2", 0, 384, 16),
            ("3.3.8", 0, 1336, 16),
            ("3.4.9", 0, 952, 20),
            ("4.0.0", 1000, 1976, 1012),
            ("4.1.0", 1000, 3392, 1012),
        ] {
            let interpreter = Interpreter::for_tests(version, Address(0)..Address(0));
            let layout = interpreter.collector_layout(Some(1 << 10)).unwrap();
            let [limit, flags] = [limit, flags].map(|at| Address(START + at));
            let found = |minor: u64, malloc_limit: u64, bits: u64| {
                let state = State([(limit, malloc_limit), (flags, bits)]);
                layout.flags_by_count(&state, Address(minor))
            };
            assert_eq!(found(START + minor, LIMIT, 0x21), Some(flags), "{version}");
            // They are no flags, there is no limit, or they are elsewhere.
            assert_eq!(found(START + minor, LIMIT, 1 << 20), None);
            assert_eq!(found(START + minor, 0, 0x21), None);
            assert_eq!((found(START, LIMIT, 1), found(8, LIMIT, 1)), (None, None));
        }
        let modes = [0x20, 0x21, 0x22].map(CollectorLayout::is_marking);
        assert_eq!(modes, [false, true, false]);
    }

    #[test]
    fn only_variables_that_the_release_knows_keep_slots() {
        let slots = |version: &str, name: &str, value: &str| {
            Interpreter::for_tests(version, Address(0)..Address(0)).initial_slots(name, value)
        };
        let (one, of_size) = ("RUBY_GC_HEAP_INIT_SLOTS", "RUBY_GC_HEAP_0_INIT_SLOTS");
        assert_eq!(slots("2.7.4", one, "4000000"), Some(4_000_000));
        assert_eq!(slots("3.2.0", one, "2k"), Some(2048));
        assert_eq!(slots("3.3.8", one, "4000000"), None);
        assert_eq!(slots("3.4.1", of_size, "1M"), Some(1 << 20));
        assert_eq!(slots("3.1.2", of_size, "1000"), None);
        assert_eq!(slots("4.1.0", of_size, "1000"), None);
        for value in
            ["", "x", "0x10", "010", "-5", "+5", "99999999999999999999", "20000000000g", "k", "é"]
        {
            assert_eq!(slots("3.1.2", one, value), None, "{value}");
        }
    }
}
