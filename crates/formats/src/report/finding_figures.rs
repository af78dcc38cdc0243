//! The words and files that findings name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MissingFile {
    /// Its path in the process.
    pub path: String,
    /// The message of the error.
    pub error: String,
}

/// A file that is not the one that the process had mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DifferentFile {
    /// Its path in the process.
    pub path: String,
    /// Its build id. `null` if it has none.
    pub build_id: Option<String>,
    /// The build id of the mapped file.
    pub mapped_build_id: String,
}

/// The evidence by which resident pages of a core are recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResidencyEvidence {
    /// Holes in the file.
    Holes,
    /// The contents of pages: those of zeros count as absent.
    Contents,
}

/// The reason why an arena could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArenaProblem {
    /// A part of it cannot be read.
    Unreadable,
    /// It was being changed.
    Changing,
    /// It is damaged, or was being changed.
    Inconsistent,
}

/// A part of jemalloc's heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeapPart {
    /// Entries of the tree of extents.
    TreeEntries,
    /// Extents.
    Extents,
    /// Regions on their way into or out of thread caches.
    CachedRegions,
    /// Lists of thread caches.
    CacheLists,
}

/// The reason why thread caches are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CachesProblem {
    /// The registers of the threads are unknown.
    NoRegisters,
    /// No thread cache was found.
    NotFound,
    /// Thread caches were found in two ways.
    Ambiguous,
}

/// The things by which thread caches are compared with the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheUnit {
    /// Threads that have a cache.
    Threads,
    /// Regions in caches.
    Regions,
}

/// The reason why the cache of a thread could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheProblem {
    /// It is in an arena that could not be read.
    ArenaUnread,
    /// It was being changed.
    Changing,
    /// It is invalid.
    Invalid,
}

/// A part of the report that depends on a layout of Ruby's structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RubyPart {
    /// The names of classes.
    ClassNames,
    /// The classes of objects with singleton classes.
    SingletonClasses,
    /// The types of internal objects.
    InternalTypes,
    /// The types of C extensions' objects.
    DataTypes,
    /// The names of constants and variables.
    RootNames,
    /// The variables of classes.
    ClassVariables,
    /// Global variables.
    GlobalVariables,
    /// The files of bytecode.
    CodeFiles,
}

/// The source of a count of resident bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RssCount {
    /// The page states.
    PageStates,
    /// The kernel's own count.
    Kernel,
    /// The size of the core.
    Core,
}
