//! How jemalloc is asked: by mallctl(3), with names that are part of its interface.

use std::ffi::CStr;

use capture::Argument;

/// The function.
pub const FUNCTION: &str = "mallctl";
/// Arguments that purge all arenas (MALLCTL_ARENAS_ALL of jemalloc/jemalloc.h).
pub const PURGE: [Argument<'static>; 5] =
    [Argument::Text(c"arena.4096.purge"), NONE, NONE, NONE, NONE];
/// Arguments that renew what it counts: that is as old as the last change of the epoch.
pub const RENEW: [Argument<'static>; 5] =
    [Argument::Text(c"epoch"), NONE, NONE, Argument::Word(1), Argument::Number(8)];
/// What it counts that tells where memory is, in bytes.
pub const COUNTS: [&CStr; 4] =
    [c"stats.allocated", c"stats.active", c"stats.resident", c"stats.retained"];

const NONE: Argument<'static> = Argument::Number(0);

/// Arguments that leave a count in their first word.
#[must_use]
pub const fn count(name: &CStr) -> [Argument<'_>; 5] {
    [Argument::Text(name), Argument::Word(0), Argument::Word(8), NONE, NONE]
}

/// Whether it did what it was asked, by what it returned: an int, so the upper half of the register is
/// nobody's.
#[must_use]
pub const fn is_done(returned: u64) -> bool {
    returned as u32 == 0
}
