use std::fmt;
use std::ops::RangeInclusive;

use ledger::InconsistentMap;

/// The version of the file format that is written. It grows if a field is removed or gets another meaning, not if one is added.
pub const FORMAT: u32 = 3;
/// The versions of the file format that are read. Since the first release, the oldest is the one of that release.
pub const READ_FORMATS: RangeInclusive<u32> = 3..=FORMAT;

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
    #[error("another version of rbloat wrote it (format {0}; this version reads formats {oldest}-{FORMAT})", oldest = READ_FORMATS.start())]
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
    #[error("it is the snapshot of {0}")]
    OtherKind(SnapshotKind),
    /// The areas are inconsistent.
    #[error(transparent)]
    InconsistentMap(#[from] InconsistentMap),
}

/// The kind of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotKind {
    /// Of one process.
    Process,
    /// Of a family of forked processes.
    Family,
}

impl fmt::Display for SnapshotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "one process",
            Self::Family => "a family",
        })
    }
}
