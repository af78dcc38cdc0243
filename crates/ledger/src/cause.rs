use std::fmt;
use std::ops::{Index, IndexMut};

/// The purpose of a resident byte. Every resident byte of every mapping has exactly one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Slots that hold a live object.
    RubyLiveSlots,
    /// Free slots on resident heap pages: fragmentation at Ruby's level.
    RubyFreeSlots,
    /// Memory of the transient heap that no object has (up to 3.2).
    RubyTransient,
    /// Headers of heap pages, and padding behind their last slot.
    RubyOverhead,
    /// Malloc'ed bytes that Ruby objects hold: strings, arrays, hashes, instance variables.
    RubyMalloc,
    /// Malloc'ed bytes of the interpreter itself: classes, methods, bytecode, tables.
    RubyVm,
    /// Code that a JIT compiler made, and its tables.
    RubyJit,
    /// Malloc'ed bytes that an extension's objects hold.
    NativeHeld,
    /// Malloc'ed bytes that are reachable only from variables of libraries, thread-local variables or stacks.
    NativeGlobal,
    /// Malloc'ed bytes in use that are not reachable.
    NativeUnreachable,
    /// Malloc'ed bytes in use that no Ruby object refers to, if owners were not traced.
    MallocInUse,
    /// Free bytes that a trim would return now: whole free pages.
    MallocUnreturned,
    /// Free pages that jemalloc released by MADV_FREE: the kernel takes them when memory gets short.
    MallocMuzzy,
    /// Free bytes that share a page with bytes in use.
    MallocFragmented,
    /// Free bytes that malloc keeps for growth: the top of an arena, which malloc_trim does not return, or free slices of mimalloc.
    MallocTop,
    /// Blocks in tcaches and fastbins.
    MallocCached,
    /// Headers of blocks, structures of arenas and heaps.
    MallocOverhead,
    /// Machine stacks of threads, with their thread-local storage.
    StackThreads,
    /// Machine stacks of fibers.
    StackFibers,
    /// Private copies of pages of files that the process wrote to: data of libraries.
    FilePrivate,
    /// Pages of files on disk in the kernel's cache.
    FileShared,
    /// Pages of files in memory: tmpfs, memfd, and shared memory, which the kernel backs by such files. It can only swap them.
    FileShmem,
    /// Anonymous memory without any other cause.
    Unknown,
}

impl Cause {
    /// Returns true for memory that Ruby's own objects and structures hold, and false for extensions and libraries.
    pub(crate) fn is_rubys(self) -> bool {
        matches!(self, Self::RubyMalloc | Self::RubyVm | Self::RubyJit)
    }

    /// All causes, in display order.
    pub const ALL: [Self; 23] = [
        Self::RubyLiveSlots,
        Self::RubyFreeSlots,
        Self::RubyTransient,
        Self::RubyOverhead,
        Self::RubyMalloc,
        Self::RubyVm,
        Self::RubyJit,
        Self::NativeHeld,
        Self::NativeGlobal,
        Self::NativeUnreachable,
        Self::MallocInUse,
        Self::MallocUnreturned,
        Self::MallocMuzzy,
        Self::MallocFragmented,
        Self::MallocTop,
        Self::MallocCached,
        Self::MallocOverhead,
        Self::StackThreads,
        Self::StackFibers,
        Self::FilePrivate,
        Self::FileShared,
        Self::FileShmem,
        Self::Unknown,
    ];

    /// Its name, part of the stable interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RubyLiveSlots => "ruby.live_slots",
            Self::RubyFreeSlots => "ruby.free_slots",
            Self::RubyTransient => "ruby.transient",
            Self::RubyOverhead => "ruby.overhead",
            Self::RubyMalloc => "ruby.malloc",
            Self::RubyVm => "ruby.vm",
            Self::RubyJit => "ruby.jit",
            Self::NativeHeld => "native.held",
            Self::NativeGlobal => "native.global",
            Self::NativeUnreachable => "native.unreachable",
            Self::MallocInUse => "malloc.in_use",
            Self::MallocUnreturned => "malloc.unreturned",
            Self::MallocMuzzy => "malloc.muzzy",
            Self::MallocFragmented => "malloc.fragmented",
            Self::MallocTop => "malloc.top",
            Self::MallocCached => "malloc.cached",
            Self::MallocOverhead => "malloc.overhead",
            Self::StackThreads => "stack.threads",
            Self::StackFibers => "stack.fibers",
            Self::FilePrivate => "file.private",
            Self::FileShared => "file.shared",
            Self::FileShmem => "file.shmem",
            Self::Unknown => "unknown",
        }
    }

    /// The group that it belongs to.
    #[must_use]
    pub const fn group(self) -> CauseGroup {
        match self {
            Self::MallocUnreturned | Self::MallocMuzzy => CauseGroup::Unreturned,
            Self::MallocFragmented => CauseGroup::Fragmented,
            Self::RubyTransient | Self::MallocTop | Self::MallocCached => CauseGroup::KeptForReuse,
            Self::RubyLiveSlots | Self::RubyMalloc => CauseGroup::RubyObjects,
            Self::RubyFreeSlots => CauseGroup::FreeSlots,
            Self::StackThreads | Self::StackFibers => CauseGroup::Stacks,
            Self::FilePrivate | Self::FileShared => CauseGroup::Files,
            Self::FileShmem => CauseGroup::SharedMemory,
            Self::NativeHeld => CauseGroup::NativeHeld,
            Self::NativeUnreachable => CauseGroup::NativeUnreachable,
            Self::NativeGlobal => CauseGroup::NativeGlobal,
            Self::RubyVm => CauseGroup::Interpreter,
            Self::MallocInUse => CauseGroup::Untraced,
            Self::RubyJit => CauseGroup::Jit,
            Self::Unknown => CauseGroup::Unknown,
            Self::RubyOverhead | Self::MallocOverhead => CauseGroup::Overhead,
        }
    }

    /// Returns true for memory of C code whose owners, or their lack, are known.
    #[must_use]
    pub fn is_native(self) -> bool {
        matches!(self, Self::NativeHeld | Self::NativeGlobal | Self::NativeUnreachable)
    }
}

/// Causes that mean the same to a user. Each cause belongs to exactly one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CauseGroup {
    /// Free whole pages that malloc could return.
    Unreturned,
    /// Free memory that shares pages with memory in use.
    Fragmented,
    /// Free memory that malloc keeps for reuse: tops of arenas and caches.
    KeptForReuse,
    /// Live Ruby objects, and the malloc'ed memory that they hold.
    RubyObjects,
    /// Free slots on Ruby's heap pages.
    FreeSlots,
    /// Stacks of threads and fibers.
    Stacks,
    /// Pages of files on disk.
    Files,
    /// Pages of files in memory, and shared memory.
    SharedMemory,
    /// Native memory that objects of C extensions hold.
    NativeHeld,
    /// Native memory in use that is not reachable.
    NativeUnreachable,
    /// Native memory of libraries and threads.
    NativeGlobal,
    /// The interpreter's own memory.
    Interpreter,
    /// Native memory in use whose owners were not traced.
    Untraced,
    /// JIT code, and the compiler's tables.
    Jit,
    /// Anonymous memory without any other cause.
    Unknown,
    /// Headers and padding of malloc and of Ruby's heap pages.
    Overhead,
}

impl CauseGroup {
    /// All groups, in the order in which a verdict prefers them if they have the same size.
    pub const ALL: [Self; 16] = [
        Self::Unreturned,
        Self::Fragmented,
        Self::KeptForReuse,
        Self::RubyObjects,
        Self::FreeSlots,
        Self::Stacks,
        Self::Files,
        Self::SharedMemory,
        Self::NativeHeld,
        Self::NativeUnreachable,
        Self::NativeGlobal,
        Self::Interpreter,
        Self::Untraced,
        Self::Jit,
        Self::Unknown,
        Self::Overhead,
    ];

    /// Its causes, in display order.
    pub fn causes(self) -> impl DoubleEndedIterator<Item = Cause> + Clone {
        Cause::ALL.into_iter().filter(move |cause| cause.group() == self)
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
    /// Each cause with its bytes, in display order.
    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().zip(self.0)
    }

    /// The bytes of all causes together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.0.iter_mut().zip(more.0).for_each(|(bytes, more)| *bytes += more);
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
    fn each_cause_is_in_one_group() {
        let mut grouped: Vec<_> =
            CauseGroup::ALL.into_iter().flat_map(CauseGroup::causes).collect();
        grouped.sort();
        assert_eq!(grouped, Cause::ALL);
    }

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
