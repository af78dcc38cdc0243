//! The tables of an archive. docs/formats.md has the same lists; a test compares them.

/// The version of the tables. It changes when a column is removed, renamed, or gets another meaning, but not when one is added.
pub const SCHEMA: u32 = 1;

/// A table: a folder of an archive.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The meaning of a row.
    pub row: &'static str,
    /// Its columns besides [`KEYS`].
    pub columns: &'static [Column],
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its name. Sizes end in `_bytes`, and times in `_ms`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// True if values may be missing.
    pub optional: bool,
    /// Its meaning.
    pub meaning: &'static str,
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A signed number of 64 bits.
    Integer,
    /// UTF-8.
    Text,
    /// True or false.
    Flag,
}

impl Kind {
    /// Returns the name of the type in SQL.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            Self::Integer => "BIGINT",
            Self::Text => "VARCHAR",
            Self::Flag => "BOOLEAN",
        }
    }
}

pub(crate) const fn integer(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: Kind::Integer, optional: false, meaning }
}

pub(crate) const fn text(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: Kind::Text, optional: false, meaning }
}

pub(crate) const fn flag(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: Kind::Flag, optional: false, meaning }
}

pub(crate) const fn optional(column: Column) -> Column {
    Column { optional: true, ..column }
}

/// The columns that each table begins with.
pub const KEYS: &[Column] = &[
    integer("look", "the snapshot: a number made of its content"),
    integer(
        "process",
        "the process: a number made of node, namespace, pod, container, process id and start",
    ),
    integer("unix_ms", "the time of the capture, in ms since 1970"),
];

/// All tables.
pub const TABLES: [Table; 8] = [LOOKS, CAUSES, OWNERS, ARENAS, SIZE_CLASSES, GEMS, REMEDIES, KILLS];

pub(crate) const LOOKS: Table = Table {
    name: "looks",
    row: "a snapshot of a process",
    columns: &[
        text("node", "the machine; empty if unknown, as the next three"),
        text("namespace", "the namespace of Kubernetes"),
        text("pod", "the pod"),
        text("container", "the container, or the service of systemd"),
        text("role", "the role of the process, such as `puma worker 1`"),
        integer("pid", "the process id"),
        optional(integer("uptime_ms", "the age of the process")),
        optional(text("ruby", "the version of Ruby")),
        text("libc", "the C library"),
        text("allocator", "the library that serves malloc"),
        integer("threads", "the number of threads"),
        integer("rss_bytes", "RSS"),
        integer("swap_bytes", "memory in swap"),
        optional(integer(
            "pss_bytes",
            "RSS, with shared pages divided among the processes that share them",
        )),
        optional(integer("limit_bytes", "the memory limit of the container")),
        optional(integer(
            "used_bytes",
            "what the container uses of its limit, without caches of files; earlier archives lack this column",
        )),
        optional(integer("trim_yield_bytes", "the bytes that `rbloat trim` would return")),
        text("verdict", "the cause of the verdict, or `healthy`"),
        integer("verdict_bytes", "the resident bytes of the verdict"),
        text("confidence", "the confidence in the verdict"),
        flag("complete", "false if a part of the process could not be read"),
    ],
};

pub(crate) const CAUSES: Table = Table {
    name: "causes",
    row: "a cause of a snapshot. The rows of a snapshot add up to its RSS",
    columns: &[
        text("cause", "the cause, such as `malloc.unreturned`"),
        integer("bytes", "its resident bytes"),
    ],
};

pub(crate) const OWNERS: Table = Table {
    name: "owners",
    row: "an owner of memory in a snapshot",
    columns: &[
        text("owner", "the class, library, thread or part of the interpreter"),
        text("kind", "`class`, `internal`, `library`, `thread` or `none`"),
        optional(text("cause", "the cause of its memory")),
        optional(text("path", "the path that retains most of it, if that was searched for")),
        integer("objects", "the number of objects"),
        integer("slot_bytes", "the bytes of their slots"),
        integer("exclusive_bytes", "bytes of chunks that are reachable from this owner only"),
        integer("shared_bytes", "bytes of chunks that are also reachable from others"),
        optional(integer("resident_bytes", "the resident part of both")),
        optional(integer(
            "retained_bytes",
            "the memory that would be freed with it, with `--retained`",
        )),
    ],
};

pub(crate) const ARENAS: Table = Table {
    name: "arenas",
    row: "an arena of malloc in a snapshot: its resident bytes by use, and its bytes that are not resident",
    columns: &[
        integer("arena", "its number in the snapshot, from 0"),
        flag("main", "true for the first arena of the process"),
        flag("walked", "false if the arena could not be read"),
        integer("heaps", "the number of its mapped parts"),
        optional(integer("threads", "the threads that use it")),
        integer("system_bytes", "the memory that it has from the kernel"),
        integer("in_use_bytes", "resident and in use"),
        integer("unreturned_bytes", "whole free pages"),
        integer("muzzy_bytes", "free pages that the kernel takes when memory gets short"),
        integer("fragmented_bytes", "free memory on pages that are also in use"),
        integer("cached_bytes", "free chunks in thread caches and fastbins"),
        integer("top_bytes", "free memory at the end"),
        integer("overhead_bytes", "headers and structures"),
        integer("returned_bytes", "returned to the kernel: not resident"),
    ],
};

pub(crate) const SIZE_CLASSES: Table = Table {
    name: "size_classes",
    row: "a size class of an arena in a snapshot, if the allocator has slabs (jemalloc)",
    columns: &[
        integer("arena", "the number of the arena, as the allocator counts them"),
        integer("region_bytes", "the size of a region"),
        integer("slabs", "the number of slabs"),
        integer("regions", "the regions in them"),
        integer("in_use", "the regions in use"),
        integer("cached", "the free regions in thread caches"),
    ],
};

pub(crate) const GEMS: Table = Table {
    name: "gems",
    row: "a gem that is loaded in a snapshot, or another group of Ruby files, with its bytecode",
    columns: &[
        text("gem", "the name of the gem or group"),
        optional(text("version", "its version, if the path of its files has it")),
        integer("files", "the number of loaded files"),
        integer("iseqs", "the number of instruction sequences"),
        integer("slot_bytes", "the bytes of their slots"),
        integer("resident_bytes", "their resident memory from malloc"),
    ],
};

pub(crate) const REMEDIES: Table = Table {
    name: "remedies",
    row: "a step that the report of a snapshot advises",
    columns: &[
        text("remedy", "the step: `action` in the JSON of a report"),
        optional(text("subject", "the class or the retaining path that the step is about")),
        optional(integer("saves_bytes", "the RSS that it saves, if that can be predicted")),
        optional(integer(
            "against_bytes",
            "the resident bytes that it is against: it saves at most this",
        )),
    ],
};

pub(crate) const KILLS: Table = Table {
    name: "kills",
    row: "a process that the kernel killed at a memory limit, with its last snapshot",
    columns: &[
        text("node", "the machine; empty if unknown, as the next three"),
        text("namespace", "the namespace of Kubernetes"),
        text("pod", "the pod"),
        text("container", "the container, or the service of systemd"),
        text("role", "the role of the process"),
        integer("pid", "the process id"),
        optional(integer("after_ms", "the time from the snapshot to the kill")),
        integer("rss_bytes", "RSS in the snapshot"),
        integer("used_bytes", "the memory that the control group used when it was read last"),
        integer("limit_bytes", "its limit; 0 if unknown"),
        integer("tmpfs_bytes", "the part of it in files in memory"),
        text("verdict", "the cause of the verdict, or `healthy`"),
        integer("verdict_bytes", "the resident bytes of the verdict"),
        optional(text("owner", "the owner with most memory, if owners were searched for")),
        optional(integer("owner_bytes", "its slots and resident memory")),
        optional(text("path", "the path that retains most of it")),
    ],
};

impl Table {
    /// All of its columns, in their order.
    pub fn all_columns(&self) -> impl Iterator<Item = &'static Column> + Clone + use<> {
        KEYS.iter().chain(self.columns)
    }
}
