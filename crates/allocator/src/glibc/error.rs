use capture::{Address, Unreadable};

/// Why nothing can be known of a process's malloc.
///
/// What concerns only a part of it is no error but a [`capture::Finding`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No GNU C library is loaded.
    #[error(
        "no GNU C library is loaded, so the process's heap cannot be read \
         (it uses another C library or is linked statically)"
    )]
    NoGlibc,
    /// The data of the C library could not be read.
    #[error("the data of {module}, where its heap begins, cannot be read")]
    Data {
        /// The file name of the library.
        module: String,
        /// What could not be read.
        #[source]
        source: Unreadable,
    },
    /// There is no arena in the library's data that any known layout fits.
    #[error(
        "no main arena was found in the data of {module} ({start} to {end}): the process has \
         never used this library's malloc, or rbloat does not know its layout"
    )]
    NoMainArena {
        /// The file name of the library.
        module: String,
        /// Where its writable data begins.
        start: Address,
        /// Where it ends.
        end: Address,
    },
}
