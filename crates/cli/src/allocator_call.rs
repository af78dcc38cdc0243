use allocator::{Allocator, TrimCall, jemalloc};
use capture::elf::{self, Module};
use capture::{Address, Argument, Error, Forked, Image};
use formats::AllocatorStatistics;

use crate::failure::Failure;

/// The function by which a process's allocator gives back to the kernel what it can.
pub(crate) struct AllocatorCall {
    pub(crate) allocator: Allocator,
    /// The call as a person writes it.
    pub(crate) shown: &'static str,
    pub(crate) function: Address,
    pub(crate) arguments: &'static [Argument<'static>],
}

impl AllocatorCall {
    /// That of the process's allocator.
    pub(crate) fn find(pid: i32) -> Result<Self, Failure> {
        let image = capture::look(pid)?;
        let modules = elf::modules(&image);
        let (allocator, module) = serving(&image, &modules);
        let found = allocator.trim_call().and_then(|call| {
            let function = module?.symbol(&image, call.function).ok()??;
            Some((call, function.address))
        });
        let Some((TrimCall { arguments, shown, .. }, function)) = found else {
            return Err(Failure::NoTrim { pid, allocator: allocator.to_string() });
        };
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

/// The allocator that serves the Ruby of a process, and its module.
fn serving<'m>(image: &Image<'_>, modules: &'m [Module]) -> (Allocator, Option<&'m Module>) {
    let interpreter = ruby::find_in(image, modules);
    let caller = interpreter.and_then(|it| it.module_among(modules));
    let found = allocator::find_allocator(image, modules, caller);
    (found.allocator, found.module)
}

/// jemalloc's statistics at the instant of the clone, which is made to work them out; `None` where another
/// allocator serves malloc, or it keeps no statistics.
pub(crate) fn statistics(clone: &mut Forked) -> Result<Option<AllocatorStatistics>, Error> {
    let image = clone.image();
    let modules = elf::modules(image);
    let (Allocator::Jemalloc, Some(module)) = serving(image, &modules) else { return Ok(None) };
    let Ok(Some(mallctl)) = module.symbol(image, jemalloc::FUNCTION) else { return Ok(None) };
    let mallctl = mallctl.address;
    let renewed = clone.call(mallctl, &jemalloc::RENEW)?;
    if !renewed.is_some_and(|(returned, _)| jemalloc::is_done(returned)) {
        return Ok(None);
    }
    let mut figures = [0; jemalloc::COUNTS.len()];
    for (figure, name) in figures.iter_mut().zip(jemalloc::COUNTS) {
        match clone.call(mallctl, &jemalloc::count(name))? {
            Some((returned, words)) if jemalloc::is_done(returned) && !words.is_empty() => {
                *figure = words[0];
            }
            _ => return Ok(None),
        }
    }
    let [allocated_bytes, active_bytes, resident_bytes, retained_bytes] = figures;
    Ok(Some(AllocatorStatistics { allocated_bytes, active_bytes, resident_bytes, retained_bytes }))
}
