//! The state of the garbage collector.

use image::Memory;
use linux::Address;

use crate::interpreter::Interpreter;

/// Bits that `flags` never has (`rb_objspace_t` of gc.c, from 3.4 on gc/default/default.c): it has 12 or 13.
const UNUSED_FLAGS: u32 = !0 << 13;
/// `mode`, and its value while objects are marked.
const MODE: u32 = 0b11;
const MARKING: u32 = 1;
/// `during_gc` and `during_compacting`: a collection runs, which sets other flags meanwhile.
const DURING_GC: u32 = 1 << 5 | 1 << 6;
const DONT_GC: u32 = 1 << 3;
/// More bytes than `malloc_limit` can be in earnest.
const MAX_LIMIT: u64 = 1 << 40;

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
}

/// The places of the collector's state in the object space, which begins with `malloc_limit` and `malloc_increase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CollectorLayout {
    /// The offset of `flags`.
    pub(crate) flags: u64,
    /// The flag `gc_stressful`.
    pub(crate) stress: Option<u32>,
    /// The offset of `gc_config.full_mark`.
    pub(crate) full_mark: Option<u64>,
}

impl Collector {
    /// Reads the state from the object space, whose block begins at `space`; `None` if the layout is unknown or implausible.
    #[must_use]
    pub fn read(memory: &dyn Memory, interpreter: &Interpreter, space: Address) -> Option<Self> {
        let layout = interpreter.collector_layout()?;
        let flags = memory.read_u32(space.offset(layout.flags)).ok()?;
        let limit = memory.read_u64(space).ok()?;
        if !(1..MAX_LIMIT).contains(&limit) || flags & UNUSED_FLAGS != 0 {
            return None;
        }
        let allows_full_mark = match layout.full_mark {
            None => None,
            Some(offset) => match memory.read_u32(space.offset(offset)).ok()? & 0xff {
                0 => Some(false),
                1 => Some(true),
                _ => return None,
            },
        };
        let runs = flags & DURING_GC != 0;
        let is_marking = match flags & MODE {
            // Only a major collection marks in steps. `during_minor_gc` comes two bits behind `gc_stressful`.
            MARKING if runs => layout.stress.map(|stress| flags & stress << 2 == 0),
            mode => Some(mode == MARKING),
        };
        Some(Self {
            is_marking,
            is_disabled: (!runs).then_some(flags & DONT_GC != 0),
            is_stressed: layout.stress.filter(|_| !runs).map(|stress| flags & stress != 0),
            allows_full_mark,
        })
    }
}

impl Interpreter {
    /// The number of slots that the collector keeps, free or not, because of the environment variable `name`; `None` for other
    /// variables, and for values that Ruby ignores.
    ///
    /// Up to 3.2 there is one such variable, then one for each size of slots (`gc_set_initial_pages`).
    #[must_use]
    pub fn initial_slots(&self, name: &str, value: &str) -> Option<u64> {
        self.collector_layout()?;
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
