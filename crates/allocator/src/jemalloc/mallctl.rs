//! Calls of jemalloc's mallctl(3). The names are part of its interface.

use std::ffi::CStr;

use capture::Argument;

/// The function.
pub const FUNCTION: &str = "mallctl";
/// Arguments that purge all arenas (MALLCTL_ARENAS_ALL of jemalloc/jemalloc.h).
pub const PURGE: [Argument<'static>; 5] =
    [Argument::Text(c"arena.4096.purge"), NONE, NONE, NONE, NONE];
/// Arguments that refresh the statistics, which are otherwise those of the last epoch.
pub const RENEW: [Argument<'static>; 5] =
    [Argument::Text(c"epoch"), NONE, NONE, Argument::Word(1), Argument::Number(8)];
/// The statistics that tell where memory is, in bytes.
pub const COUNTS: [&CStr; 4] =
    [c"stats.allocated", c"stats.active", c"stats.resident", c"stats.retained"];

const NONE: Argument<'static> = Argument::Number(0);

/// Arguments that read a statistic into their first word.
#[must_use]
pub const fn count(name: &CStr) -> [Argument<'_>; 5] {
    [Argument::Text(name), Argument::Word(0), Argument::Word(8), NONE, NONE]
}

/// Returns true if mallctl succeeded. It returns an int, so the upper half of the register has no meaning.
#[must_use]
pub const fn is_done(returned: u64) -> bool {
    returned as u32 == 0
}
