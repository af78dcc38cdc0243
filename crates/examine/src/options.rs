//! The way to examine a process, and the depth.

use std::time::Duration;

use ledger::{Analyses, ReadDepth};

use crate::sandbox::SandboxOptions;

/// The way to capture a process and to analyse what was read.
#[derive(Debug, Clone, Copy)]
pub struct CaptureOptions {
    /// The method.
    pub mode: CaptureMode,
    /// The longest pause of the process; `None` for a limit by its size.
    pub max_pause: Option<Duration>,
    /// The most memory of its own that rbloat may use for a shorter pause, in bytes; `None` for as much as there is room for.
    pub max_own_bytes: Option<u64>,
    /// The sandbox of the analysis.
    pub sandbox: SandboxOptions,
}

/// The method of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// A forked copy if one can be made, else a freeze.
    Auto,
    /// A forked copy.
    Fork,
    /// A freeze.
    Freeze,
}

/// The depth of an examination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detail {
    /// True if owners are searched for.
    pub owners: bool,
    /// The analyses of the ledger.
    pub analyses: Analyses,
    /// True if the sums over its family are wanted, for which the kernel walks the page tables of all members.
    pub family: bool,
}

impl Detail {
    /// Causes and owners.
    pub const OWNERS: Self = Self { owners: true, ..Self::CAUSES };
    /// Causes only.
    pub const CAUSES: Self = Self {
        owners: false,
        analyses: Analyses {
            retained_sizes: false,
            memory_map: false,
            contents: false,
            texts: false,
            objects: false,
            values: false,
        },
        family: false,
    };

    /// Everything that a snapshot has, also the retained sizes if they are wanted.
    #[must_use]
    pub fn snapshot(retained_sizes: bool) -> Self {
        let analyses = Analyses { retained_sizes, memory_map: true, ..Analyses::default() };
        Self { owners: true, analyses, family: true }
    }

    /// Everything that a dump has, also the retained sizes or the texts of strings if they are wanted.
    #[must_use]
    pub fn dump(retained_sizes: bool, values: bool) -> Self {
        let analyses = Analyses { retained_sizes, objects: true, values, ..Analyses::default() };
        Self { owners: true, analyses, family: false }
    }

    /// The parts of the process that have to be read.
    pub(crate) fn read_depth(self) -> ReadDepth {
        match self {
            Self { owners: false, .. } => ReadDepth::Causes,
            Self { analyses: Analyses { objects: true, values: true, .. }, .. } => {
                ReadDepth::Values
            }
            Self { analyses: Analyses { objects: true, .. }, .. } => ReadDepth::Objects,
            Self { analyses: Analyses { contents: true, texts: true, .. }, .. } => ReadDepth::Texts,
            Self { analyses: Analyses { contents: true, .. }, .. } => ReadDepth::Contents,
            _ => ReadDepth::Owners,
        }
    }
}
