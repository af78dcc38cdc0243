use std::fmt;

use capture::Address;

/// Why nothing is known of a process's Ruby side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No module of the process is a Ruby interpreter.
    #[error("no Ruby runs in this process: none of its modules exports rb_cObject")]
    NotRuby,
    /// The interpreter has not got as far as its first class.
    #[error("Ruby {version} is only starting: it has made no classes yet; try again in a moment")]
    NotStarted {
        /// The interpreter's version.
        version: String,
        /// Where the address of the class Object will be.
        at: Address,
    },
    /// The heap belongs to a garbage collector that lays it out in another way.
    #[error(
        "Ruby {version} runs with the garbage collector {collector}, which has no heap pages that \
         rbloat could read; without RUBY_GC_LIBRARY it uses the default one"
    )]
    OtherCollector {
        /// The interpreter's version.
        version: String,
        /// The collector's name, as RUBY_GC_LIBRARY takes it.
        collector: String,
    },
    /// What was derived did not pass a check, so none of it is reported.
    #[error(
        "the heap of Ruby {version} could not be understood: {failure}. Ruby may have been in the \
         midst of a change: try again; where it stays, rbloat does not know this Ruby's layout"
    )]
    Layout {
        /// The interpreter's version.
        version: String,
        /// The check that stood in the way.
        failure: Failure,
    },
}

/// A check that a derived layout did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Which one.
    pub check: Check,
    /// Where it was seen not to hold.
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

/// The checks that every layout has to pass, in the order in which they are made.
///
/// A wrong layout fails one of them: it never becomes other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The page that holds the class Object begins with the address of its descriptor.
    Descriptor,
    /// A slot size and a number of slots fill every page.
    Extent,
    /// The descriptors are linked in a ring with exactly one list head.
    Ring,
    /// The pages can be read.
    Readable,
    /// Near the list head hangs the array of all pages, with its length beside it.
    Array,
    /// No page lies outside the arrays.
    MissingPage,
    /// Ruby's objects that need no garbage collection to be known stand where they must.
    Landmarks,
    /// The bitmaps have bits for objects, and for nothing else.
    Bitmaps,
    /// Slots have types that objects can have.
    Types,
    /// Objects are of classes.
    Classes,
    /// One size of heap pages fits, not several.
    Unique,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptor => "no page descriptor belongs to the class Object",
            Self::Ring => "the list of pages does not close on one list head",
            Self::Array => "no array of all pages is found beside its length",
            Self::Extent => "slots do not fill the pages",
            Self::MissingPage => "a heap page belongs to no object space",
            Self::Readable => "a heap page cannot be read: it is protected or swapped out",
            Self::Landmarks => "a class that always exists is in no slot",
            Self::Bitmaps => "mark bits stand where no objects are",
            Self::Types => "a slot has a type that no object has",
            Self::Classes => "objects are of classes that are none",
            Self::Unique => "another size fits too",
        })
    }
}
