use allocator::{Allocator, TrimCall};
use image::elf::Module;
use image::{Image, Target};
use inferior::{ForkedCopy, FunctionCall};
use linux::{Address, Argument, Identity, SystemCall, proc};

use crate::error::Error;

/// The call by which a process's allocator returns free memory to the kernel.
pub struct AllocatorCall {
    /// The call as a person writes it.
    pub(crate) shown: &'static str,
    /// The program that has the function.
    pub(crate) program: Identity,
    function: Address,
    arguments: &'static [Argument<'static>],
    system_calls: &'static [SystemCall],
}

impl AllocatorCall {
    /// Finds the call of the target's allocator.
    ///
    /// # Errors
    /// If its allocator has none.
    pub fn find(target: &Target) -> Result<Self, Error> {
        let image = target.image();
        let (allocator, module) = serving(image, target.modules());
        let found = allocator.trim_call().and_then(|call| {
            let function = module?.symbol(image, call.function).ok()??;
            Some((call, function.address))
        });
        let Some((TrimCall { arguments, shown, system_calls, .. }, function)) = found else {
            // If the process has ended meanwhile, that is the reason: this read fails.
            let pid = target.pid();
            proc::rollup(pid)?;
            return Err(Error::NoTrim { pid, allocator: allocator.to_string() });
        };
        let program = target.program().clone();
        Ok(Self { shown, program, function, arguments, system_calls })
    }

    /// The call as it is made in a process.
    pub(crate) fn function_call(&self) -> FunctionCall<'static> {
        let Self { function, arguments, system_calls, .. } = *self;
        FunctionCall { function, arguments, system_calls }
    }

    /// Makes the call in a forked copy. Returns the bytes that it returned to the kernel; `None` if the call did not end.
    pub(crate) fn try_on(&self, copy: &mut ForkedCopy) -> Result<Option<u64>, inferior::Error> {
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
