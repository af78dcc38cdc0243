//! The files that the process had mapped: most of what it only read is in these, not in the core.
//!
//! A file is believed to be the one that was mapped where its build id is the one in memory: the
//! kernel dumps the first page of each ELF file for that (bit 4 of /proc/PID/coredump_filter), and gdb
//! dumps what was written to.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::text::one_line;
use crate::{Address, Backing, Finding, Mapping, Memory, PAGE_SIZE, Severity, length};

use super::file::{open_without_waiting, read_fully};
use super::head::{BuildId, Read, build_id, code, is_elf};
use super::mappings::is_shared_memory;

/// More files than a process maps: each is kept open.
const MOST_FILES: usize = 8192;
/// Files that a finding names.
const NAMED: usize = 6;
/// What the kernel appends to the name of a file that was removed.
const DELETED: &str = " (deleted)";

/// Why a file that was mapped cannot be read.
enum Absence {
    /// With the reason.
    Unopened(String),
    OtherBuild {
        had: BuildId,
        is: Option<BuildId>,
    },
}

/// The ELF files that a process had mapped, as far as they are at hand.
pub(crate) struct Files {
    /// By their paths in the process.
    found: BTreeMap<PathBuf, File>,
    absent: Vec<(PathBuf, u64, Absence)>,
    /// Files that might be others than were mapped.
    unproven: Vec<PathBuf>,
}

impl Files {
    /// Looks for the ELF files of `mappings`, below `sysroot` where one is given. `memory` is what was
    /// dumped.
    pub(crate) fn open(mappings: &[Mapping], memory: &dyn Memory, sysroot: Option<&Path>) -> Self {
        let mut files = Self { found: BTreeMap::new(), absent: Vec::new(), unproven: Vec::new() };
        let mut bytes = BTreeMap::<&Path, (u64, Option<&Mapping>)>::new();
        for mapping in mappings {
            let Backing::File(path) = &mapping.backing else { continue };
            if mapping.shared || is_shared_memory(path) {
                continue;
            }
            let entry = bytes.entry(path).or_default();
            entry.0 += length(&mapping.range);
            if mapping.file_offset == 0 && entry.1.is_none() {
                entry.1 = Some(mapping);
            }
        }
        let is_head_dumped = |first: &Mapping| is_elf(&read_from(first, memory));
        let are_heads_dumped = bytes.values().any(|(_, first)| first.is_some_and(is_head_dumped));
        for (path, (bytes, first)) in bytes.into_iter().take(MOST_FILES) {
            // A file of which only the middle is mapped is no program.
            let Some(first) = first else { continue };
            let was_dumped = read_from(first, memory)(0, &mut [0; 4]) == 4;
            // Where the heads of programs were dumped, what has none is no program.
            if is_head_dumped(first) || !was_dumped && !are_heads_dumped {
                files.take(path, bytes, first, memory, sysroot);
            }
        }
        files.absent.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
        files
    }

    fn take(
        &mut self,
        path: &Path,
        bytes: u64,
        first: &Mapping,
        memory: &dyn Memory,
        sysroot: Option<&Path>,
    ) {
        let in_memory = read_from(first, memory);
        let file = match open(path, sysroot) {
            Ok(file) => file,
            // It may be no program.
            Err(_) if !is_elf(&in_memory) && !is_named_as_library(path) => return,
            Err(why) => return self.absent.push((path.to_owned(), bytes, Absence::Unopened(why))),
        };
        let in_file = |offset: u64, into: &mut [u8]| read_fully(&file, offset, into);
        if !is_elf(&in_file) && !is_elf(&in_memory) {
            return;
        }
        match (build_id(&in_memory), build_id(&in_file)) {
            (Some(had), is) if is.as_ref() != Some(&had) => {
                let absence = Absence::OtherBuild { had, is };
                return self.absent.push((path.to_owned(), bytes, absence));
            }
            (Some(_), _) => {}
            (None, _) => self.unproven.push(path.to_owned()),
        }
        self.found.insert(path.to_owned(), file);
    }

    /// Says of the files' mappings which are code, where the core does not: by the heads of the files.
    pub(crate) fn mark_code(mappings: &mut [Mapping], memory: &dyn Memory) {
        let mut parts = (PathBuf::new(), Vec::new());
        for mapping in mappings {
            let Backing::File(path) = &mapping.backing else { continue };
            if mapping.file_offset == 0 {
                parts = (path.clone(), code(&read_from(mapping, memory)));
            }
            let is_in = |part: &std::ops::Range<u64>| part.contains(&mapping.file_offset);
            mapping.executable |=
                !mapping.writable && parts.0 == *path && parts.1.iter().any(is_in);
        }
    }

    /// The file behind `mapping`, if it is at hand.
    pub(crate) fn of(&self, mapping: &Mapping) -> Option<&File> {
        self.found.get(mapping.file()?)
    }

    /// Whether files are not at hand whose symbols are therefore not known.
    pub(crate) fn are_absent(&self) -> bool {
        !self.absent.is_empty()
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut warn = |what| findings.push(Finding::general(Severity::Warning, what));
        let (mut missing, mut others) = (Vec::new(), Vec::new());
        for (path, _, absence) in &self.absent {
            let path = shown(path);
            match absence {
                Absence::Unopened(why) => missing.push(format!("{path} ({why})")),
                Absence::OtherBuild { had, is: Some(is) } => {
                    others.push(format!("{path} (build id {is}, mapped was {had})"));
                }
                Absence::OtherBuild { had, is: None } => {
                    others.push(format!("{path} (no build id, mapped was {had})"));
                }
            }
        }
        if !missing.is_empty() {
            warn(format!(
                "files that the process had mapped are missing, so their symbols are not known: {}; run \
                 rbloat where they are, or put them below a folder as they were (usr/lib/...) and give it \
                 by --sysroot",
                named(&missing)
            ));
        }
        if !others.is_empty() {
            warn(format!(
                "files are other builds than the process had mapped, so they were not read: {}; give a \
                 folder with the right ones by --sysroot",
                named(&others)
            ));
        }
        if !self.unproven.is_empty() {
            let paths: Vec<String> = self.unproven.iter().map(|path| shown(path)).collect();
            warn(format!(
                "whether files are those that the process had mapped cannot be told, since the core has no \
                 build id of them: {}",
                named(&paths)
            ));
        }
        findings
    }
}

/// A path as it may go to a terminal: whoever made the core chose it.
fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy())
}

/// The first of these, and how many others there are.
fn named(all: &[String]) -> String {
    let first = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => first,
        others => format!("{first} and {others} more"),
    }
}

/// Reads what was dumped of a file by its offset, as far as it is in its first mapping.
fn read_from(first: &Mapping, memory: &dyn Memory) -> impl Read {
    move |offset, into| {
        let most = length(&first.range).saturating_sub(offset).min(into.len() as u64);
        memory.read(first.range.start.offset(offset), &mut into[..most as usize])
    }
}

fn is_named_as_library(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".so") || name.contains(".so.") || name.contains(".so ")
}

/// Opens the file at `path` in the process, below `sysroot` where one is given. Its error is a reason.
fn open(path: &Path, sysroot: Option<&Path>) -> Result<File, String> {
    let text = path.as_os_str().to_string_lossy();
    let path = Path::new(text.strip_suffix(DELETED).unwrap_or(&text));
    let within = path.strip_prefix("/").map_err(|_| "no path".to_owned())?;
    // A core may name any path; one must not lead out of the folder that was given.
    if within.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return Err("no path".into());
    }
    let path = sysroot.map_or_else(|| path.to_owned(), |sysroot| sysroot.join(within));
    // Devices are not even opened.
    let metadata = std::fs::metadata(&path).map_err(|error| reason(&error))?;
    if !metadata.is_file() {
        return Err("no regular file".into());
    }
    let file = open_without_waiting(&path).map_err(|error| reason(&error))?;
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if is_file { Ok(file) } else { Err("no regular file".into()) }
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "not there".into(),
        std::io::ErrorKind::PermissionDenied => "not permitted".into(),
        _ => error.to_string(),
    }
}

/// Whether the page at `at` of `mapping` holds in `page` what its file has there. Behind the file's end
/// there are zeros.
pub(crate) fn is_of_file(file: &File, mapping: &Mapping, at: Address, page: &[u8]) -> bool {
    let mut expected = [0; PAGE_SIZE as usize];
    let expected = &mut expected[..page.len()];
    let offset = mapping.file_offset.saturating_add(at - mapping.range.start);
    read_fully(file, offset, expected);
    page == expected
}
