//! Snapshots: the full report and the memory map of a process in a small file. A snapshot contains none of the process's
//! memory except names (of classes, types, constants, variables and files) and the command line.

mod container;
mod error;
mod sections;

use ledger::MemoryMap;

use crate::{Family, Report};
pub use container::Section;
pub use error::{FORMAT, READ_FORMATS, SnapshotError, SnapshotKind};

/// The result of one capture, from which reports, maps and diffs are made.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The report with all owners and classes.
    pub report: Report,
    /// The memory map. Its blocks refer to owners by their index in `report.owners`.
    pub memory_map: MemoryMap,
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
