use ledger::Cause;

/// Returns the explanation of a cause for readers who do not know malloc.
#[must_use]
pub const fn meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::RubyLiveSlots => "live Ruby objects: their slots",
        Cause::RubyFreeSlots => "free slots on Ruby's heap pages",
        Cause::RubyTransient => "free, kept for small young arrays and hashes",
        Cause::RubyOverhead => "headers and padding of Ruby's heap pages",
        Cause::RubyMalloc => "malloc'ed memory that Ruby objects hold",
        Cause::RubyVm => "classes, methods, bytecode and tables of the interpreter",
        Cause::RubyJit => "JIT code, and the compiler's tables",
        Cause::NativeHeld => "native memory that objects of C extensions hold",
        Cause::NativeGlobal => "native memory of libraries and threads",
        Cause::NativeUnreachable => "native memory in use that nothing points to: leaked?",
        Cause::MallocInUse => "other malloc'ed memory in use (owners not traced)",
        Cause::MallocUnreturned => "freed, whole pages: a trim would return them now",
        Cause::MallocMuzzy => {
            "freed, released by MADV_FREE: the kernel takes them when it needs them"
        }
        Cause::MallocFragmented => "freed, but on pages that bytes in use pin",
        Cause::MallocTop => "free in one piece, kept for growth",
        Cause::MallocCached => "freed into thread caches and fastbins",
        Cause::MallocOverhead => "malloc's own headers and structures",
        Cause::StackThreads => "stacks of threads",
        Cause::StackFibers => "stacks of fibers",
        Cause::FilePrivate => "pages of files and libraries that this process changed",
        Cause::FileShared => "pages of files and libraries",
        Cause::FileShmem => "pages of files in memory (tmpfs), shared memory",
        Cause::Unknown => "anonymous memory that rbloat cannot explain",
    }
}
