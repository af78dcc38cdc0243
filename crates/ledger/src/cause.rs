use std::fmt;
use std::ops::{Index, IndexMut};

/// What a resident byte is there for. Every resident byte of every mapping has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Slots that hold a live object.
    RubyLiveSlots,
    /// Free slots on resident heap pages: fragmentation at Ruby's level.
    RubyFreeSlots,
    /// Headers of heap pages, and what is left over behind their last slot.
    RubyOverhead,
    /// Malloc'ed bytes that Ruby objects hold: strings, arrays, hashes, instance variables ...
    RubyMalloc,
    /// Malloc'ed bytes of the interpreter itself: classes, methods, bytecode, tables.
    RubyVm,
    /// Code that a JIT compiler made, and what it knows of it.
    RubyJit,
    /// Malloc'ed bytes that an extension's objects hold.
    NativeHeld,
    /// Malloc'ed bytes that are reachable from variables of libraries, thread-local ones, or stacks
    /// only.
    NativeGlobal,
    /// Malloc'ed bytes that nothing points to.
    NativeUnreachable,
    /// Malloc'ed bytes in use that no Ruby object names, where owners were not traced.
    MallocInUse,
    /// Free bytes that malloc_trim would give back now: whole free pages ("gray").
    MallocUnreturned,
    /// Free bytes that share a page with bytes in use.
    MallocFragmented,
    /// Free bytes at the top of arenas that malloc_trim does not give back.
    MallocTop,
    /// Chunks in tcaches and fastbins.
    MallocCached,
    /// Headers of chunks, structures of arenas and heaps.
    MallocOverhead,
    /// Machine stacks of threads, with the thread-local storage that glibc puts there.
    StackThreads,
    /// Machine stacks of fibers.
    StackFibers,
    /// Pages of files that the process wrote to and now has for itself: data of libraries.
    FilePrivate,
    /// Pages of files as the kernel caches them for all who map them, and shared memory.
    FileShared,
    /// Anonymous memory that nothing above claims.
    Unknown,
}

impl Cause {
    /// All causes, in the order in which they are shown.
    pub const ALL: [Self; 20] = [
        Self::RubyLiveSlots,
        Self::RubyFreeSlots,
        Self::RubyOverhead,
        Self::RubyMalloc,
        Self::RubyVm,
        Self::RubyJit,
        Self::NativeHeld,
        Self::NativeGlobal,
        Self::NativeUnreachable,
        Self::MallocInUse,
        Self::MallocUnreturned,
        Self::MallocFragmented,
        Self::MallocTop,
        Self::MallocCached,
        Self::MallocOverhead,
        Self::StackThreads,
        Self::StackFibers,
        Self::FilePrivate,
        Self::FileShared,
        Self::Unknown,
    ];

    /// Its name, part of the stable interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RubyLiveSlots => "ruby.live_slots",
            Self::RubyFreeSlots => "ruby.free_slots",
            Self::RubyOverhead => "ruby.overhead",
            Self::RubyMalloc => "ruby.malloc",
            Self::RubyVm => "ruby.vm",
            Self::RubyJit => "ruby.jit",
            Self::NativeHeld => "native.held",
            Self::NativeGlobal => "native.global",
            Self::NativeUnreachable => "native.unreachable",
            Self::MallocInUse => "malloc.in_use",
            Self::MallocUnreturned => "malloc.unreturned",
            Self::MallocFragmented => "malloc.fragmented",
            Self::MallocTop => "malloc.top",
            Self::MallocCached => "malloc.cached",
            Self::MallocOverhead => "malloc.overhead",
            Self::StackThreads => "stack.threads",
            Self::StackFibers => "stack.fibers",
            Self::FilePrivate => "file.private",
            Self::FileShared => "file.shared",
            Self::Unknown => "unknown",
        }
    }

    /// What it is, in words for someone who has not read a book about malloc.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::RubyLiveSlots => "live Ruby objects: their slots",
            Self::RubyFreeSlots => "free slots on Ruby's heap pages",
            Self::RubyOverhead => "headers and padding of Ruby's heap pages",
            Self::RubyMalloc => "malloc'ed memory that Ruby objects hold",
            Self::RubyVm => "classes, methods, bytecode and tables of the interpreter",
            Self::RubyJit => "JIT code, and the compiler's tables",
            Self::NativeHeld => "native memory that objects of C extensions hold",
            Self::NativeGlobal => "native memory of libraries and threads",
            Self::NativeUnreachable => "native memory in use that nothing points to: leaked?",
            Self::MallocInUse => "other malloc'ed memory in use (owners not traced)",
            Self::MallocUnreturned => "freed, whole pages: malloc_trim would return them now",
            Self::MallocFragmented => "freed, but on pages that bytes in use pin",
            Self::MallocTop => "free at the top of arenas, kept for growth",
            Self::MallocCached => "freed into tcaches and fastbins",
            Self::MallocOverhead => "malloc's own headers and structures",
            Self::StackThreads => "stacks of threads",
            Self::StackFibers => "stacks of fibers",
            Self::FilePrivate => "pages of files and libraries that this process changed",
            Self::FileShared => "pages of files and libraries, shared memory",
            Self::Unknown => "anonymous memory that rbloat cannot explain",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Causes([u64; Cause::ALL.len()]);

impl Causes {
    /// Each cause with its bytes, in the order in which they are shown.
    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().zip(self.0)
    }

    /// `bytes` in the proportions of these causes; they add up to `bytes`, unless these are nothing.
    #[must_use]
    pub(crate) fn share_out(&self, bytes: u64) -> Self {
        let total = u128::from(self.total());
        if total == 0 {
            return Self::default();
        }
        let mut shares = *self;
        for share in &mut shares.0 {
            *share = (u128::from(*share) * u128::from(bytes) / total) as u64;
        }
        // What rounding lost goes to the largest.
        let lost = bytes - shares.total();
        if let Some(largest) = shares.0.iter_mut().max() {
            *largest += lost;
        }
        shares
    }

    /// Adds other causes to these.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, bytes) in self.0.iter_mut().zip(other.0) {
            *sum += bytes;
        }
    }

    /// The bytes of all causes together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Index<Cause> for Causes {
    type Output = u64;

    fn index(&self, cause: Cause) -> &u64 {
        &self.0[cause as usize]
    }
}

impl IndexMut<Cause> for Causes {
    fn index_mut(&mut self, cause: Cause) -> &mut u64 {
        &mut self.0[cause as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_stands_at_its_own_index() {
        let mut causes = Causes::default();
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
            causes[cause] += 1 << index;
        }
        assert_eq!(causes.total(), (1 << Cause::ALL.len()) - 1);
        assert!(causes.iter().all(|(cause, bytes)| bytes == 1 << cause as usize));
    }
}
