use image::Unreadable;
use linux::Address;

/// The reason why nothing is known of glibc's heap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The data of the C library could not be read.
    #[error("the data of {module}, where its heap begins, cannot be read")]
    Data {
        /// The file name of the library.
        module: String,
        /// The memory that could not be read.
        #[source]
        source: Unreadable,
    },
    /// No known layout of an arena fits any part of the library's data.
    #[error(
        "no main arena was found in the data of {module} ({start} to {end}): the process has \
         never used this library's malloc, or rbloat does not know its layout"
    )]
    NoMainArena {
        /// The file name of the library.
        module: String,
        /// The beginning of its writable data.
        start: Address,
        /// The end of its writable data.
        end: Address,
    },
}
