pub(crate) mod parse;

use std::borrow::Cow;
use std::io::{self, BufRead};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Address;

/// The backing of a mapping's pages, as named in /proc/PID/maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Anonymous memory, without a name or with one given by prctl(2) (`[anon:...]`).
    Anonymous,
    /// The heap of brk(2).
    Heap,
    /// The main thread's stack.
    Stack,
    /// A mapping that the kernel creates and names by itself (`[vdso]`, `[vvar]` ...).
    Kernel(String),
    /// A file, or shared memory, which the kernel backs by an unlinked file. The path is as in /proc: `\012` stands for a line
    /// break, and ` (deleted)` may follow.
    File(PathBuf),
}

/// One mapping of the target, a line of /proc/PID/smaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses, in whole pages.
    pub range: Range<Address>,
    /// True if it may be read.
    pub readable: bool,
    /// True if it may be written.
    pub writable: bool,
    /// True if it may be executed.
    pub executable: bool,
    /// True if other processes that map the same see writes (MAP_SHARED).
    pub shared: bool,
    /// The offset of its start in the file, in bytes.
    pub file_offset: u64,
    /// The backing of its pages.
    pub backing: Backing,
    /// Resident bytes by the kernel's own count; `None` if it was not asked.
    pub kernel_rss_bytes: Option<u64>,
    /// Swapped bytes by the kernel's own count; 0 if it was not asked.
    pub swap_bytes: u64,
    /// True if it consists of page frames that the kernel does not manage (VM_PFNMAP), which RSS leaves out.
    pub has_bare_frames: bool,
    /// True if its file is in memory (tmpfs, memfd, shared memory), so that the kernel can only swap its pages. Unless smaps was read,
    /// its path decides.
    pub is_in_memory: bool,
    /// True if it consists of huge pages of hugetlbfs, which RSS leaves out.
    pub is_hugetlb: bool,
    /// True if a forked process does not inherit its pages: MADV_DONTFORK, MADV_WIPEONFORK.
    pub not_inherited: bool,
    /// True if it is locked in memory (mlock(2), mlockall(2)): the kernel takes back no page of it, and madvise(2) returns none.
    pub is_locked: bool,
}

impl Mapping {
    /// Creates a private, readable and writable anonymous mapping.
    #[must_use]
    pub fn anonymous(range: Range<Address>) -> Self {
        Self {
            range,
            readable: true,
            writable: true,
            executable: false,
            shared: false,
            file_offset: 0,
            backing: Backing::Anonymous,
            kernel_rss_bytes: None,
            swap_bytes: 0,
            has_bare_frames: false,
            is_in_memory: false,
            is_hugetlb: false,
            not_inherited: false,
            is_locked: false,
        }
    }

    /// The path of the backing file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.backing {
            Backing::File(path) => Some(path),
            _ => None,
        }
    }

    /// The name of the backing file, without its folder and without the ` (deleted)` that the kernel appends.
    #[must_use]
    pub fn file_name(&self) -> Option<Cow<'_, str>> {
        let name = self.file()?.file_name()?.as_bytes();
        Some(String::from_utf8_lossy(name.strip_suffix(b" (deleted)").unwrap_or(name)))
    }

    /// Returns true if it is private memory that no file backs, so that absent pages read as zeros.
    #[must_use]
    pub fn is_private_anonymous(&self) -> bool {
        !self.shared && matches!(self.backing, Backing::Anonymous | Backing::Heap | Backing::Stack)
    }

    /// Returns true if it is memory of a device, which cannot be read.
    #[must_use]
    pub fn is_device(&self) -> bool {
        // Anonymous shared memory is `/dev/zero (deleted)`.
        let is_memory = |path: &Path| {
            path.starts_with("/dev/hugepages") || is_shared_memory(path.as_os_str().as_bytes())
        };
        let is_in_dev = |path: &Path| path.starts_with("/dev") && !is_memory(path);
        self.has_bare_frames || !self.is_hugetlb && self.file().is_some_and(is_in_dev)
    }
}

impl Mapping {
    /// Returns true if fork(2) copies its page tables, so that the forked process has the same ones as the original.
    /// For files, the kernel fills them in at the forked process's first access (`vma_needs_copy` in mm/memory.c).
    pub(crate) fn is_copied_by_fork(&self) -> bool {
        self.is_private_anonymous() && !self.not_inherited
    }
}

/// The kernel's name of anonymous memory in huge pages of hugetlbfs (MAP_HUGETLB), before ` (deleted)`.
const HUGETLB_NAME: &[u8] = b"/anon_hugepage";

/// Returns true for this name, which a file may have, too: the flags in smaps decide.
pub fn is_hugetlb_name(path: &[u8]) -> bool {
    path.strip_suffix(b" (deleted)").unwrap_or(path) == HUGETLB_NAME
}

/// Beginnings of the kernel's names for shared memory, which has no file that can be deleted.
const SHARED_MEMORY: [&[u8]; 3] = [b"/memfd:", b"/SYSV", b"/dev/zero"];

/// Returns true if the path is the kernel's name for shared memory, and not that of a file.
#[must_use]
pub fn is_named_by_kernel(path: &[u8]) -> bool {
    SHARED_MEMORY.iter().any(|name| path.starts_with(name))
}

/// Returns true if the path is a name of shared memory, which the kernel can only swap, and not of a file on disk.
#[must_use]
pub fn is_shared_memory(path: &[u8]) -> bool {
    is_named_by_kernel(path) || path.starts_with(b"/dev/shm/")
}

/// The mappings of the target, ascending and disjoint.
#[derive(Debug, Clone, Default)]
pub struct Mappings(Vec<Mapping>);

impl Mappings {
    /// Creates the list from mappings in any order.
    #[must_use]
    pub fn new(mut mappings: Vec<Mapping>) -> Self {
        mappings.sort_by_key(|mapping| mapping.range.start);
        Self(mappings)
    }

    /// Parses the text of /proc/PID/maps or /proc/PID/smaps. A process chooses the names in it, but no name is an error.
    ///
    /// # Errors
    /// If the text cannot be read, or what the kernel writes by itself has an unknown form.
    pub fn parse(text: impl BufRead) -> io::Result<Self> {
        parse::parse(text, |_, path| is_shared_memory(path))
    }

    /// Returns the mapping that contains `at`.
    #[must_use]
    pub fn find(&self, at: Address) -> Option<&Mapping> {
        let after = self.0.partition_point(|mapping| mapping.range.start <= at);
        let mapping = &self.0[after.checked_sub(1)?];
        (at < mapping.range.end).then_some(mapping)
    }

    /// Adds a mapping in the place of those that it overlaps.
    pub fn replace(&mut self, mapping: Mapping) {
        let first = self.0.partition_point(|it| it.range.end <= mapping.range.start);
        let behind = self.0.partition_point(|it| it.range.start < mapping.range.end);
        if self.0[first..behind] != [mapping.clone()] {
            self.0.splice(first..behind, [mapping]);
        }
    }

    /// Returns the range around `at` that consists of adjoining mappings that all satisfy `alike`; empty if the mapping
    /// at `at` does not.
    #[must_use]
    pub fn contiguous(&self, at: Address, alike: impl Fn(&Mapping) -> bool) -> Range<Address> {
        let after = self.0.partition_point(|mapping| mapping.range.start <= at);
        let Some(index) = after.checked_sub(1) else { return at..at };
        if at >= self.0[index].range.end || !alike(&self.0[index]) {
            return at..at;
        }
        let mut range = self.0[index].range.clone();
        for mapping in self.0[..index].iter().rev() {
            if mapping.range.end != range.start || !alike(mapping) {
                break;
            }
            range.start = mapping.range.start;
        }
        for mapping in &self.0[index + 1..] {
            if mapping.range.start != range.end || !alike(mapping) {
                break;
            }
            range.end = mapping.range.end;
        }
        range
    }

    /// Copies the flags and the counts of swapped bytes from an earlier reading.
    pub(crate) fn copy_flags_from(&mut self, other: &Self) {
        for mapping in &mut self.0 {
            let Some(same) = other.find(mapping.range.start) else { continue };
            mapping.has_bare_frames |= same.has_bare_frames;
            // Both names are the kernel's for huge pages, but only the flags of the earlier reading prove them.
            if mapping.is_hugetlb && !same.is_hugetlb && mapping.range == same.range {
                mapping.backing = same.backing.clone();
                mapping.is_hugetlb = false;
            }
            mapping.is_hugetlb |= same.is_hugetlb;
            mapping.swap_bytes = same.swap_bytes;
            mapping.not_inherited |= same.not_inherited;
            mapping.is_locked |= same.is_locked;
            if mapping.backing == same.backing {
                mapping.is_in_memory = same.is_in_memory;
            }
        }
    }

    /// Iterates over the mappings, ascending.
    pub fn iter(&self) -> std::slice::Iter<'_, Mapping> {
        self.0.iter()
    }

    /// Returns the resident bytes by the kernel's own count, saturating; `None` if it was not asked for all mappings.
    #[must_use]
    pub fn kernel_rss_bytes(&self) -> Option<u64> {
        let mut counts = self.0.iter().map(|mapping| mapping.kernel_rss_bytes);
        counts.try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }
}

impl<'a> IntoIterator for &'a Mappings {
    type Item = &'a Mapping;
    type IntoIter = std::slice::Iter<'a, Mapping>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_replaces_those_that_it_overlaps() {
        let anonymous = |range: Range<u64>| {
            Mapping::anonymous(Address(range.start << 12)..Address(range.end << 12))
        };
        let mut mappings = Mappings::new([1..2, 2..4, 6..8].map(anonymous).into());
        for (added, expected) in [
            // A heap that has grown, a new mapping, one that has split, and one that is known.
            (2..5, vec![1..2, 2..5, 6..8]),
            (9..10, vec![1..2, 2..5, 6..8, 9..10]),
            (3..4, vec![1..2, 3..4, 6..8, 9..10]),
            (0..7, vec![0..7, 9..10]),
            (9..10, vec![0..7, 9..10]),
        ] {
            mappings.replace(anonymous(added));
            assert!(mappings.iter().cloned().eq(expected.into_iter().map(anonymous)));
        }
    }

    #[test]
    fn contiguity_ends_at_holes_and_at_other_kinds() {
        let [mut heap, mut reserved] = [0x1000..0x3000, 0x3000..0x9000]
            .map(|range: Range<u64>| Mapping::anonymous(Address(range.start)..Address(range.end)));
        heap.backing = Backing::Heap;
        reserved.writable = false;
        let far = Mapping::anonymous(Address(0x10_000)..Address(0x11_000));
        let mappings = Mappings::new(vec![far, reserved, heap]);
        let all = mappings.contiguous(Address(0x2000), Mapping::is_private_anonymous);
        assert_eq!(all, Address(0x1000)..Address(0x9000));
        let writable = mappings.contiguous(Address(0x2000), |mapping| mapping.writable);
        assert_eq!(writable, Address(0x1000)..Address(0x3000));
        assert!(mappings.contiguous(Address(0xa000), |_| true).is_empty());
    }
}
