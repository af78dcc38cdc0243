//! Snapshots: the full report and the memory map of a process in a small file. A snapshot contains none of the process's
//! memory except names (of classes, types, constants, variables and files) and the command line.

mod container;
mod sections;

use ledger::{InconsistentMap, MemoryMap};

use crate::{Family, Report};
pub use sections::Section;

/// The version of the file format. No other version is written or read.
pub const FORMAT: u32 = 3;

/// The result of one capture, from which reports, maps and diffs are made.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The report with all owners and classes.
    pub report: Report,
    /// The memory map. Its blocks refer to owners by their index in `report.owners`.
    pub memory_map: MemoryMap,
}

/// The reason why a file cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file is empty.
    #[error("it is empty")]
    Empty,
    /// The file does not begin like a snapshot.
    #[error("it is not a snapshot that rbloat wrote")]
    Foreign,
    /// Another version of rbloat wrote it.
    #[error(
        "another version of rbloat wrote it (format {0}; this version reads format {FORMAT}): read it with that version"
    )]
    OtherVersion(u32),
    /// The checksum is wrong.
    #[error("it is truncated or damaged: its checksum is wrong")]
    Damaged,
    /// A section has invalid content.
    #[error("its section \"{name}\" is invalid: {what}")]
    InvalidSection {
        /// The name of the section.
        name: &'static str,
        /// The reason.
        what: String,
    },
    /// The report and the memory map differ.
    #[error("its report has {report_bytes} resident bytes, but its map has {map_bytes}")]
    DifferentSizes {
        /// RSS in the report.
        report_bytes: u64,
        /// The resident bytes of the map.
        map_bytes: u64,
    },
    /// The file has another kind of snapshot than the one that is wanted.
    #[error("{0}")]
    OtherKind(&'static str),
    /// The areas are inconsistent.
    #[error(transparent)]
    InconsistentMap(#[from] InconsistentMap),
}

impl Snapshot {
    /// Returns true if a file with these first bytes is a snapshot.
    #[must_use]
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&container::MAGIC)
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        container::seal(&self.sections())
    }

    /// Reads a snapshot from the bytes of a file. For any input this terminates without a panic, and uses about
    /// 1 GiB of memory, or a hundred times the input's size if that is more.
    ///
    /// # Errors
    /// If the bytes are not a snapshot, or are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Self::from_sections(&container::open(bytes)?)
    }
}

impl Family {
    /// Returns the bytes of a snapshot of a family: its account.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        container::seal(&[sections::of_family(self)])
    }

    /// Reads the snapshot of a family from the bytes of a file, as [`Snapshot::from_bytes`] reads that of a process.
    ///
    /// # Errors
    /// If the bytes are not a snapshot of a family, or are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SnapshotError> {
        sections::family(&container::open(bytes)?)
    }
}
