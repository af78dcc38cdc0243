//! A process as it was looked at once, in a small file: the whole report, and the memory map. No byte of its
//! memory is in it but names: of classes, types, constants, variables, and files, and its command line.

mod container;
mod sections;

use ledger::{MemoryMap, Misfit};

use crate::Report;
pub use sections::Section;

/// The version of the file format: the only one that is written and read.
pub const FORMAT: u32 = 2;

/// All that is kept of a process that was looked at: what a report, a map and a comparison are made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The report with all owners and classes.
    pub report: Report,
    /// Where everything lies; its pieces name their owners by the indices in `report.owners`.
    pub memory_map: MemoryMap,
}

/// Why a file cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Nothing is in it.
    #[error("it is empty")]
    Empty,
    /// It begins with something else.
    #[error("it is no snapshot that rbloat wrote")]
    Foreign,
    /// Another version of rbloat wrote it.
    #[error(
        "another version of rbloat wrote it (format {0}; this version reads format {FORMAT}): read it with that version"
    )]
    OtherVersion(u32),
    /// It is not what was written.
    #[error("it is truncated or damaged: its checksum is wrong")]
    Damaged,
    /// It says what cannot be.
    #[error("its part \"{0}\" makes no sense")]
    Senseless(&'static str),
    /// Its areas do not fit together.
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

impl Snapshot {
    /// Whether these first bytes of a file are those of a snapshot.
    #[must_use]
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&container::MAGIC)
    }

    /// The bytes of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        container::seal(&self.sections())
    }

    /// The snapshot in the bytes of a file. Whatever they are, this ends, without a panic, and takes no more
    /// memory than some hundred times their size, nor than 2 GB.
    ///
    /// # Errors
    /// Where they are no snapshot, or one that is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Self::from_sections(&container::open(bytes)?)
    }
}
