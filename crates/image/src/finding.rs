/// A limit of the knowledge that a core gives about its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The file ends before its last segment.
    Truncated {
        /// The bytes of segments that are missing.
        bytes: u64,
    },
    /// Private memory was not dumped.
    NotDumped {
        /// The bytes of it.
        bytes: u64,
    },
    /// The debugger could not read stacks that begin with a guard page.
    StacksNotDumped {
        /// The number of their threads.
        threads: u64,
    },
    /// Segments are invalid, and were left out.
    InvalidSegments {
        /// Their number.
        segments: u64,
    },
    /// The core does not name the files that the process had mapped.
    FilesUnknown,
    /// The core has no threads.
    NoThreads,
    /// Resident pages are recognized by holes in the file.
    ResidencyByHoles,
    /// Resident pages are recognized by their contents: pages of zeros count as absent.
    ResidencyByContents,
    /// It is unknown how much of mapped files was resident.
    FileResidencyUnknown {
        /// The bytes of the mappings.
        bytes: u64,
    },
    /// Mapped files are missing.
    FilesMissing {
        /// The first of them, those with the largest mappings before the others.
        files: Vec<MissingFile>,
        /// The number of the others.
        others: u64,
    },
    /// Files have other build ids than the mapped ones.
    FilesDiffer {
        /// The first of them, those with the largest mappings before the others.
        files: Vec<DifferentFile>,
        /// The number of the others.
        others: u64,
    },
    /// The core does not have the build ids of mapped files.
    FilesUnproven {
        /// The paths of the first ones.
        paths: Vec<String>,
        /// The number of the others.
        others: u64,
    },
}

/// A file that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFile {
    /// Its path in the process.
    pub path: String,
    /// The error.
    pub error: String,
}

/// A file that is not the one that the process had mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DifferentFile {
    /// Its path in the process.
    pub path: String,
    /// Its build id; `None` if it has none.
    pub build_id: Option<String>,
    /// The build id of the mapped file.
    pub mapped_build_id: String,
}
