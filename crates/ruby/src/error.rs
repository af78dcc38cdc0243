use std::fmt;

use linux::Address;

/// Why the Ruby side of a process could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No module of the process is a Ruby interpreter.
    #[error("this process does not run Ruby: none of its modules exports rb_cObject")]
    NotRuby,
    /// The interpreter has not created its first class yet.
    #[error("Ruby {version} is still starting and has no classes yet")]
    NotStarted {
        /// The interpreter's version.
        version: String,
        /// The future address of the class Object.
        at: Address,
    },
    /// The heap belongs to a garbage collector with another kind of heap.
    #[error(
        "cannot read the heap of Ruby {version}: its garbage collector {collector} has no heap pages \
         as the default one has"
    )]
    OtherCollector {
        /// The interpreter's version.
        version: String,
        /// The collector's name, as RUBY_GC_LIBRARY takes it.
        collector: String,
    },
    /// A derived layout did not pass a check, so nothing of it is reported. Ruby may have been in the middle of a change, or has a layout
    /// that rbloat does not support.
    #[error("cannot read the heap of Ruby {version}: {failure}")]
    Layout {
        /// The interpreter's version.
        version: String,
        /// The check that failed.
        failure: Failure,
    },
}

/// A check that a derived layout failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The check.
    pub check: Check,
    /// The address at which it failed.
    pub at: Address,
    /// The size of heap pages that was tried, in bytes.
    pub page_bytes: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, at, page_bytes } = self;
        write!(f, "with heap pages of {} KiB, {check} (at {at})", page_bytes >> 10)
    }
}

/// The checks that every layout has to pass, in order.
///
/// A wrong layout fails one of them, so it is never reported as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The page of the class Object begins with the address of its descriptor.
    Descriptor,
    /// A slot size and a number of slots fill every page.
    Extent,
    /// The descriptors are linked in a ring with exactly one list head.
    Ring,
    /// The pages can be read.
    Readable,
    /// Near the list head is a pointer to the array of all pages, with its length beside it.
    Array,
    /// No page lies outside the arrays.
    MissingPage,
    /// The classes that every Ruby has are in slots.
    Landmarks,
    /// The bitmaps have bits for objects only.
    Bitmaps,
    /// Slots have types that objects can have.
    Types,
    /// The classes of objects are classes.
    Classes,
    /// Only one layout passes.
    Unique,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptor => "the class Object is on no page that has a descriptor",
            Self::Ring => "the list of pages does not lead back to one list head",
            Self::Array => "no array of all pages was found",
            Self::Extent => "no slot size and number of slots fit the pages",
            Self::MissingPage => "a heap page belongs to no object space",
            Self::Readable => "a heap page is protected or swapped out",
            Self::Landmarks => "a class that every Ruby has is in no slot",
            Self::Bitmaps => "mark bits are set for slots without objects",
            Self::Types => "a slot has a type that no object has",
            Self::Classes => "objects point to classes that do not exist",
            Self::Unique => "several layouts fit",
        })
    }
}
