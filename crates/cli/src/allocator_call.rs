use std::ffi::CStr;

use glibc::Allocator;
use report::AllocatorStatistics;
use target::{Address, Argument, Error, Forked, elf, find_function};

use crate::failure::Failure;

/// The function by which an allocator gives back to the kernel what it can.
pub(crate) struct AllocatorCall {
    pub(crate) allocator: Allocator,
    /// The call as a person writes it.
    pub(crate) shown: &'static str,
    pub(crate) function: Address,
    pub(crate) arguments: &'static [Argument<'static>],
}

/// All arenas of jemalloc (MALLCTL_ARENAS_ALL of jemalloc/jemalloc.h), purged.
const PURGE: &CStr = c"arena.4096.purge";
const NONE: Argument<'static> = Argument::Number(0);

impl AllocatorCall {
    /// That of the process's allocator.
    pub(crate) fn find(pid: i32) -> Result<Self, Failure> {
        let image = target::look(pid)?;
        let allocator = glibc::allocator(&image, &elf::modules(&image));
        let (symbol, shown, arguments): (_, _, &[Argument<'_>]) = match allocator {
            Allocator::Glibc { .. } => ("malloc_trim", "malloc_trim(0)", &[NONE]),
            Allocator::Jemalloc => (
                "mallctl",
                "mallctl(\"arena.4096.purge\")",
                &[Argument::Text(PURGE), NONE, NONE, NONE, NONE],
            ),
            Allocator::Tcmalloc => {
                ("MallocExtension_ReleaseFreeMemory", "MallocExtension_ReleaseFreeMemory()", &[])
            }
            _ => return Err(Failure::NoTrim { pid, allocator: allocator.to_string() }),
        };
        let function = find_function(&image, symbol)
            .ok_or_else(|| Failure::NoTrim { pid, allocator: allocator.to_string() })?;
        Ok(Self { allocator, shown, function, arguments })
    }

    /// What the call would bring, in bytes, found out by letting the clone do it; `None` where it does not
    /// come to an end there.
    pub(crate) fn try_on(&self, clone: &mut Forked) -> Result<Option<u64>, Error> {
        let before = clone.anonymous_bytes()?;
        if clone.call(self.function, self.arguments)?.is_none() {
            return Ok(None);
        }
        Ok(Some(before.saturating_sub(clone.anonymous_bytes()?)))
    }
}

/// What jemalloc counts, by the names of its mallctl(3).
const STATISTICS: [&CStr; 4] =
    [c"stats.allocated", c"stats.active", c"stats.resident", c"stats.retained"];

/// jemalloc's statistics at the instant of the clone, which is made to work them out; `None` where another
/// allocator serves malloc, or it keeps no statistics.
pub(crate) fn statistics(clone: &mut Forked) -> Result<Option<AllocatorStatistics>, Error> {
    let image = clone.image();
    if glibc::allocator(image, &elf::modules(image)) != Allocator::Jemalloc {
        return Ok(None);
    }
    let Some(mallctl) = find_function(image, "mallctl") else { return Ok(None) };
    // The statistics are as old as the last change of the epoch.
    let renew = [Argument::Text(c"epoch"), NONE, NONE, Argument::Word(1), Argument::Number(8)];
    if clone.call(mallctl, &renew)?.is_none_or(|(result, _)| result as u32 != 0) {
        return Ok(None);
    }
    let mut figures = [0; STATISTICS.len()];
    for (figure, name) in figures.iter_mut().zip(STATISTICS) {
        let ask = [Argument::Text(name), Argument::Word(0), Argument::Word(8), NONE, NONE];
        match clone.call(mallctl, &ask)? {
            // mallctl returns an int: the upper half of the register is nobody's.
            Some((result, words)) if result as u32 == 0 && !words.is_empty() => *figure = words[0],
            _ => return Ok(None),
        }
    }
    let [allocated_bytes, active_bytes, resident_bytes, retained_bytes] = figures;
    Ok(Some(AllocatorStatistics { allocated_bytes, active_bytes, resident_bytes, retained_bytes }))
}
