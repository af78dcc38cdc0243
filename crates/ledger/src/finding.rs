use linux::Address;

use crate::Cause;

/// A part of a process that could not be read, or a fact that a reader of its account should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A finding about a core.
    Core(image::Finding),
    /// A finding about the heap of malloc.
    Malloc(allocator::Finding),
    /// A finding about the object space of Ruby.
    Ruby(ruby::Finding),
    /// The memory was not read.
    MemoryUnread,
    /// No library that serves malloc was found.
    MallocNotFound,
    /// The heap of this allocator has an unknown structure.
    MallocUnsupported {
        /// The name of the allocator.
        allocator: String,
    },
    /// The heap of malloc could not be read.
    MallocUnread {
        /// The message of the error.
        error: String,
    },
    /// The process does not run Ruby.
    RubyNotFound,
    /// Ruby has no classes yet.
    RubyStarting {
        /// Its version.
        version: String,
    },
    /// The garbage collector has a heap of an unknown structure.
    CollectorUnsupported {
        /// Ruby's version.
        version: String,
        /// The name of the collector.
        collector: String,
    },
    /// The object space could not be read.
    RubyUnread {
        /// Ruby's version.
        version: String,
        /// The check that failed.
        error: String,
    },
    /// A core without objects: Ruby frees its heap before some signals end the process.
    CoreWithoutObjects,
    /// Memory that may have pointers is swapped out.
    PointersSwapped {
        /// The bytes of it.
        bytes: u64,
    },
    /// Memory that may have pointers is not in the core.
    PointersNotDumped {
        /// The bytes of it.
        bytes: u64,
    },
    /// A block has more pointers than rbloat keeps.
    PointersLeftOut {
        /// The number of those that were left out.
        pointers: u64,
    },
    /// The process has more blocks and objects than rbloat traces.
    OwnersUnknown {
        /// Their number.
        nodes: u64,
        /// The maximum.
        max: u64,
    },
    /// The rows do not add up to the resident bytes by the page states.
    RowsDiffer {
        /// The sum of the rows.
        bytes: u64,
        /// The resident bytes.
        resident_bytes: u64,
    },
    /// The rows do not add up to the resident bytes by an independent count.
    CountDiffers {
        /// The sum of the rows.
        bytes: u64,
        /// The smallest number of bytes by the count.
        min_bytes: u64,
        /// The largest one.
        max_bytes: u64,
        /// True if the kernel counted, false if the core did.
        is_kernels: bool,
    },
    /// Two claims on the same memory.
    ClaimedTwice {
        /// The place of the first ones.
        at: Address,
        /// The number of such ranges.
        ranges: u64,
        /// The cause that has the first range.
        cause: Cause,
        /// The cause of the other claim on it.
        other: Cause,
    },
    /// The environment of the process cannot be read.
    EnvironmentUnknown,
}

impl From<image::Finding> for Finding {
    fn from(finding: image::Finding) -> Self {
        Self::Core(finding)
    }
}

impl From<allocator::Finding> for Finding {
    fn from(finding: allocator::Finding) -> Self {
        Self::Malloc(finding)
    }
}

impl From<ruby::Finding> for Finding {
    fn from(finding: ruby::Finding) -> Self {
        Self::Ruby(finding)
    }
}

impl From<allocator::Error> for Finding {
    fn from(error: allocator::Error) -> Self {
        match error {
            allocator::Error::NoAllocator => Self::MallocNotFound,
            allocator::Error::Unsupported(allocator) => {
                Self::MallocUnsupported { allocator: allocator.to_string() }
            }
            error => Self::MallocUnread { error: error.to_string() },
        }
    }
}

impl From<ruby::Error> for Finding {
    fn from(error: ruby::Error) -> Self {
        match error {
            ruby::Error::NotRuby => Self::RubyNotFound,
            ruby::Error::NotStarted { version, .. } => Self::RubyStarting { version },
            ruby::Error::OtherCollector { version, collector } => {
                Self::CollectorUnsupported { version, collector }
            }
            ruby::Error::Layout { version, failure } => {
                Self::RubyUnread { version, error: failure.to_string() }
            }
        }
    }
}
