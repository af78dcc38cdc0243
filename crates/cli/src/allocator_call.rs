use allocator::{Allocator, TrimCall, jemalloc};
use capture::elf::{self, Module};
use capture::{Address, Argument, Image, SystemCall};
use formats::AllocatorStatistics;
use inferior::{Error, ForkedCopy, FunctionCall};

use crate::failure::Failure;

/// The call by which a process's allocator returns free memory to the kernel.
pub(crate) struct AllocatorCall {
    pub(crate) allocator: Allocator,
    /// The call as a person writes it.
    pub(crate) shown: &'static str,
    function: Address,
    arguments: &'static [Argument<'static>],
    system_calls: &'static [SystemCall],
}

impl AllocatorCall {
    /// Finds the call of the process's allocator.
    pub(crate) fn find(pid: i32) -> Result<Self, Failure> {
        let image = capture::look(pid)?;
        let modules = elf::modules(&image);
        let (allocator, module) = serving(&image, &modules);
        let found = allocator.trim_call().and_then(|call| {
            let function = module?.symbol(&image, call.function).ok()??;
            Some((call, function.address))
        });
        let Some((TrimCall { arguments, shown, system_calls, .. }, function)) = found else {
            return Err(Failure::NoTrim { pid, allocator: allocator.to_string() });
        };
        Ok(Self { allocator, shown, function, arguments, system_calls })
    }

    /// The call as it is made in a process.
    pub(crate) fn function_call(&self) -> FunctionCall<'static> {
        let Self { function, arguments, system_calls, .. } = *self;
        FunctionCall { function, arguments, system_calls }
    }

    /// Makes the call in a forked copy. Returns the bytes that it returned to the kernel; `None` if the call did not end.
    pub(crate) fn try_on(&self, copy: &mut ForkedCopy) -> Result<Option<u64>, Error> {
        let before = copy.anonymous_bytes()?;
        if copy.call(self.function_call())?.is_none() {
            return Ok(None);
        }
        Ok(Some(before.saturating_sub(copy.anonymous_bytes()?)))
    }
}

/// The allocator that serves the Ruby of a process, and its module.
fn serving<'m>(image: &Image<'_>, modules: &'m [Module]) -> (Allocator, Option<&'m Module>) {
    let interpreter = ruby::find_in(image, modules);
    let caller = interpreter.and_then(|it| it.module_among(modules));
    let found = allocator::find_allocator(image, modules, caller);
    (found.allocator, found.module)
}

/// Lets a forked copy work out jemalloc's statistics at the instant of the fork; `None` if another allocator serves
/// malloc, or it keeps no statistics.
pub(crate) fn statistics(copy: &mut ForkedCopy) -> Result<Option<AllocatorStatistics>, Error> {
    let image = copy.image();
    let modules = elf::modules(image);
    let (Allocator::Jemalloc, Some(module)) = serving(image, &modules) else { return Ok(None) };
    let Ok(Some(mallctl)) = module.symbol(image, jemalloc::FUNCTION) else { return Ok(None) };
    let mut mallctl = |arguments: &[Argument<'_>]| {
        copy.call(FunctionCall { function: mallctl.address, arguments, system_calls: &[] })
    };
    let renewed = mallctl(&jemalloc::RENEW)?;
    if !renewed.is_some_and(|(returned, _)| jemalloc::is_done(returned)) {
        return Ok(None);
    }
    let mut figures = [0; jemalloc::COUNTS.len()];
    for (figure, name) in figures.iter_mut().zip(jemalloc::COUNTS) {
        match mallctl(&jemalloc::count(name))? {
            Some((returned, words)) if jemalloc::is_done(returned) && !words.is_empty() => {
                *figure = words[0];
            }
            _ => return Ok(None),
        }
    }
    let [allocated_bytes, active_bytes, resident_bytes, retained_bytes] = figures;
    Ok(Some(AllocatorStatistics { allocated_bytes, active_bytes, resident_bytes, retained_bytes }))
}
