//! The files that the process had mapped, for pages that are not in the core since the process only read them.
//!
//! A file is accepted if its build id is the one in memory: the kernel dumps the first page of each ELF file for that
//! purpose (bit 4 of /proc/PID/coredump_filter), and gdb dumps pages that were written to.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use linux::{Address, Backing, MIN_PAGE_SIZE, Mapping, Sysroot, length, one_line};

use crate::{DifferentFile, Finding, Memory, MissingFile};

use super::file::read_fully;
use super::head::{BuildId, Read, build_id, code, is_elf};

/// More files than a process maps: each is kept open.
const MAX_FILES: usize = 8192;
/// The number of files that a finding names.
const NAMED: usize = 6;
/// The kernel appends this to the name of a file that was removed.
const DELETED: &[u8] = b" (deleted)";

/// The reason why a mapped file cannot be read.
enum Absence {
    /// It could not be opened, for this reason.
    Unopened(String),
    /// It has another build id.
    OtherBuild { had: BuildId, is: Option<BuildId> },
}

/// The ELF files that a process had mapped, if they can be read.
pub(crate) struct Files {
    /// By path in the process.
    found: BTreeMap<PathBuf, File>,
    absent: Vec<(PathBuf, u64, Absence)>,
    /// Files that may differ from the mapped ones.
    unproven: Vec<PathBuf>,
}

impl Files {
    /// Opens the ELF files of `mappings` beneath `sysroot`. `memory` is the dumped memory.
    pub(crate) fn open(mappings: &[Mapping], memory: &dyn Memory, sysroot: &Sysroot) -> Self {
        let mut files = Self { found: BTreeMap::new(), absent: Vec::new(), unproven: Vec::new() };
        let mut bytes = BTreeMap::<&Path, (u64, Option<&Mapping>)>::new();
        for mapping in mappings {
            let Backing::File(path) = &mapping.backing else { continue };
            if mapping.shared || mapping.is_in_memory {
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
        for (path, (bytes, first)) in bytes.into_iter().take(MAX_FILES) {
            // If only the middle of a file is mapped, it is not a program.
            let Some(first) = first else { continue };
            let was_dumped = read_from(first, memory)(0, &mut [0; 4]) == 4;
            // If the heads of programs were dumped, a file without one is not a program.
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
        sysroot: &Sysroot,
    ) {
        let in_memory = read_from(first, memory);
        let file = match open(path, sysroot) {
            Ok(file) => file,
            // It need not be a program.
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

    /// Marks the mappings of code, by the heads of the files, for cores without permissions of mappings.
    pub(crate) fn mark_code(mappings: &mut [Mapping], memory: &dyn Memory, page_size: u64) {
        let mut parts = (PathBuf::new(), Vec::new());
        for mapping in mappings {
            let Backing::File(path) = &mapping.backing else { continue };
            if mapping.file_offset == 0 {
                parts = (path.clone(), code(&read_from(mapping, memory), page_size));
            }
            let is_in = |part: &std::ops::Range<u64>| part.contains(&mapping.file_offset);
            mapping.executable |=
                !mapping.writable && parts.0 == *path && parts.1.iter().any(is_in);
        }
    }

    /// Returns the backing file of `mapping`, if it is open.
    pub(crate) fn of(&self, mapping: &Mapping) -> Option<&File> {
        self.found.get(mapping.file()?)
    }

    /// Returns true if files are missing, so that their symbols are unknown.
    pub(crate) fn are_absent(&self) -> bool {
        !self.absent.is_empty()
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let (mut missing, mut different) = (Vec::new(), Vec::new());
        for (path, _, absence) in &self.absent {
            let path = shown(path);
            match absence {
                Absence::Unopened(error) => {
                    missing.push(MissingFile { path, error: error.clone() });
                }
                Absence::OtherBuild { had, is } => different.push(DifferentFile {
                    path,
                    build_id: is.as_ref().map(BuildId::to_string),
                    mapped_build_id: had.to_string(),
                }),
            }
        }
        let mut findings = Vec::new();
        if let Some((files, others)) = first(missing) {
            findings.push(Finding::FilesMissing { files, others });
        }
        if let Some((files, others)) = first(different) {
            findings.push(Finding::FilesDiffer { files, others });
        }
        if let Some((paths, others)) = first(self.unproven.iter().map(|it| shown(it)).collect()) {
            findings.push(Finding::FilesUnproven { paths, others });
        }
        findings
    }
}

/// Returns a path as text for a terminal, since the core may contain any.
fn shown(path: &Path) -> String {
    one_line(&path.to_string_lossy())
}

/// The files that a finding names, and the number of the others; `None` if there are none at all.
fn first<T>(mut all: Vec<T>) -> Option<(Vec<T>, u64)> {
    let others = all.len().saturating_sub(NAMED) as u64;
    all.truncate(NAMED);
    (!all.is_empty()).then_some((all, others))
}

/// Returns a reader of the dumped part of a file's first mapping, by offset in the file.
fn read_from(first: &Mapping, memory: &dyn Memory) -> impl Read {
    move |offset, into| {
        let most = length(&first.range).saturating_sub(offset).min(into.len() as u64);
        memory.read(first.range.start.offset(offset), &mut into[..most as usize])
    }
}

fn is_named_as_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".so") || name.contains(".so.") || name.contains(".so ")
}

/// Opens the file at `path` in the process. The error is the reason.
fn open(path: &Path, sysroot: &Sysroot) -> Result<File, String> {
    let bytes = path.as_os_str().as_bytes();
    let path = Path::new(OsStr::from_bytes(bytes.strip_suffix(DELETED).unwrap_or(bytes)));
    if !path.is_absolute() {
        return Err("not an absolute path".into());
    }
    sysroot.open_file(path).map_err(|error| reason(&error))
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

/// Returns true if `page`, at `at` in `mapping`, equals the page of the file, which is followed by zeros.
pub(crate) fn is_of_file(file: &File, mapping: &Mapping, at: Address, page: &[u8]) -> bool {
    let offset = mapping.file_offset.saturating_add(at - mapping.range.start);
    let offsets = (offset..).step_by(MIN_PAGE_SIZE as usize);
    page.chunks(MIN_PAGE_SIZE as usize).zip(offsets).all(|(part, offset)| {
        let mut expected = [0; MIN_PAGE_SIZE as usize];
        let expected = &mut expected[..part.len()];
        read_fully(file, offset, expected);
        part == expected
    })
}
