use std::ops::Range;
use std::path::{Path, PathBuf};

use procfs_core::FromBufRead;
use procfs_core::process::{MMPermissions, MMapPath, MemoryMap, MemoryMaps, VmFlags};

use crate::Address;

/// The lines of /proc/PID/smaps about a mapping that are used.
const USED_LINES: [&str; 3] = ["Rss:", "Swap:", "VmFlags:"];

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
    /// A file, or shared memory, which the kernel backs by an unlinked file.
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
    /// True if it consists of huge pages of hugetlbfs, which RSS leaves out.
    pub is_hugetlb: bool,
    /// True if a forked process does not inherit its pages: MADV_DONTFORK, MADV_WIPEONFORK.
    pub not_inherited: bool,
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
            is_hugetlb: false,
            not_inherited: false,
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
    pub fn file_name(&self) -> Option<&str> {
        let name = self.file()?.file_name()?.to_str()?;
        Some(name.strip_suffix(" (deleted)").unwrap_or(name))
    }

    /// Returns true if it is private memory that no file backs, so that absent pages read as zeros.
    #[must_use]
    pub fn is_private_anonymous(&self) -> bool {
        !self.shared && matches!(self.backing, Backing::Anonymous | Backing::Heap | Backing::Stack)
    }
}

impl Mapping {
    /// Returns true if fork(2) copies its page tables, so that the forked process has the same ones as the original.
    /// For files, the kernel fills them in at the forked process's first access (`vma_needs_copy` in mm/memory.c).
    pub(crate) fn is_copied_by_fork(&self) -> bool {
        self.is_private_anonymous() && !self.not_inherited
    }
}

/// Returns true for the kernel's name of anonymous memory in huge pages of hugetlbfs (MAP_HUGETLB).
pub(crate) fn is_hugetlb_name(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.trim_end_matches(" (deleted)") == "/anon_hugepage")
}

impl From<MemoryMap> for Mapping {
    fn from(map: MemoryMap) -> Self {
        let may = |permission| map.perms.contains(permission);
        let backing = match map.pathname {
            MMapPath::Path(path) if is_hugetlb_name(&path) && !may(MMPermissions::SHARED) => {
                Backing::Anonymous
            }
            MMapPath::Path(path) => Backing::File(path),
            MMapPath::Heap => Backing::Heap,
            MMapPath::Stack => Backing::Stack,
            MMapPath::Anonymous | MMapPath::TStack(_) => Backing::Anonymous,
            MMapPath::Vdso => Backing::Kernel("[vdso]".into()),
            MMapPath::Vvar => Backing::Kernel("[vvar]".into()),
            MMapPath::Vsyscall => Backing::Kernel("[vsyscall]".into()),
            MMapPath::Rollup => Backing::Kernel("[rollup]".into()),
            MMapPath::Vsys(id) => Backing::File(format!("/SYSV{id:08x}").into()),
            MMapPath::Other(name) if name.starts_with("anon:") => Backing::Anonymous,
            MMapPath::Other(name) => Backing::Kernel(format!("[{name}]")),
        };
        Self {
            range: Address(map.address.0)..Address(map.address.1),
            readable: may(MMPermissions::READ),
            writable: may(MMPermissions::WRITE),
            executable: may(MMPermissions::EXECUTE),
            shared: may(MMPermissions::SHARED),
            file_offset: map.offset,
            kernel_rss_bytes: map.extension.map.get("Rss").copied(),
            swap_bytes: map.extension.map.get("Swap").copied().unwrap_or(0),
            not_inherited: map.extension.vm_flags.intersects(VmFlags::DC | VmFlags::WF),
            is_hugetlb: map.extension.vm_flags.contains(VmFlags::HT),
            has_bare_frames: map.extension.vm_flags.contains(VmFlags::PF)
                || matches!(&backing, Backing::Kernel(name) if name.starts_with("[vvar")),
            backing,
        }
    }
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

    /// Parses the text of /proc/PID/maps or /proc/PID/smaps.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, procfs_core::ProcError> {
        // Paths are bytes, not always text.
        let text = String::from_utf8_lossy(text);
        // A mapping's own line begins with its address. Most of the lines about it in smaps are not used.
        let is_used = |line: &&str| {
            !line.starts_with(|first: char| first.is_ascii_uppercase())
                || USED_LINES.iter().any(|key| line.starts_with(key))
        };
        let text: String = text.split_inclusive('\n').filter(is_used).collect();
        let maps = MemoryMaps::from_buf_read(text.as_bytes())?;
        // The vsyscall page belongs to the kernel's half of the address space.
        let own = maps.0.into_iter().filter(|map| map.pathname != MMapPath::Vsyscall);
        Ok(Self::new(own.map(Mapping::from).collect()))
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
            mapping.is_hugetlb |= same.is_hugetlb;
            mapping.swap_bytes = same.swap_bytes;
            mapping.not_inherited |= same.not_inherited;
        }
    }

    /// Iterates over the mappings, ascending.
    pub fn iter(&self) -> std::slice::Iter<'_, Mapping> {
        self.0.iter()
    }

    /// Returns the resident bytes by the kernel's own count; `None` if it was not asked for all mappings.
    #[must_use]
    pub fn kernel_rss_bytes(&self) -> Option<u64> {
        self.0.iter().map(|mapping| mapping.kernel_rss_bytes).sum()
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

    const SMAPS: &str = "\
55e0c0000000-55e0c0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                 132 kB
Pss:                 132 kB
Swap:                  8 kB
SwapPss:               8 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
Rss:                   4 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me ac sd
7f0000021000-7f0004000000 ---p 00000000 00:00 0 
Rss:                   0 kB
Swap:                  0 kB
VmFlags: mr mw me nr sd
7f1000000000-7f1000001000 r--p 00001000 fe:01 1234                       /usr/lib/libruby-3.1.so.3.1.2 (deleted)
Rss:                   4 kB
Swap:                  0 kB
VmFlags: rd mr mw me sd
7ffd00000000-7ffd00004000 r--p 00000000 00:00 0                          [vvar]
Rss:                   0 kB
Swap:                  0 kB
VmFlags: rd mr pf io de dd sd
7ffe00000000-7ffe00200000 rw-p 00000000 00:11 71270                      /anon_hugepage (deleted)
Rss:                   0 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me de ht
7ffe00200000-7ffe00400000 rw-s 00000000 00:11 71271                      /anon_hugepage (deleted)
Rss:                   0 kB
Swap:                  0 kB
VmFlags: rd wr sh mr mw me ms de ht
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Rss:                   0 kB
VmFlags: ex
";

    #[test]
    fn smaps_of_a_process_parse() {
        let mappings = Mappings::parse(SMAPS.as_bytes()).unwrap();
        assert_eq!(mappings.iter().count(), 7, "vsyscall is the kernel's");
        assert_eq!(mappings.kernel_rss_bytes(), Some(140 * 1024));
        let heap = mappings.iter().next().unwrap();
        assert_eq!(heap.backing, Backing::Heap);
        assert_eq!(heap.swap_bytes, 8192);
        let library = mappings.find(Address(0x7f10_0000_0000)).unwrap();
        assert_eq!(library.file_name(), Some("libruby-3.1.so.3.1.2"));
        assert!(mappings.find(Address(0x7ffd_0000_0000)).unwrap().has_bare_frames);
        assert!(mappings.find(Address(0x7f10_0000_1000)).is_none());
        let [private, shared] = [0x7ffe_0000_0000, 0x7ffe_0020_0000]
            .map(|start| mappings.find(Address(start)).unwrap());
        assert!(private.is_hugetlb && private.is_private_anonymous());
        assert!(shared.is_hugetlb && shared.file().is_some());
    }

    #[test]
    fn a_path_that_is_no_text_hides_no_mapping() {
        let line = b"7f0000000000-7f0000001000 r--p 00000000 fe:01 9 /tmp/\xff\xfe.so\n";
        let mappings = Mappings::parse(line).unwrap();
        assert_eq!(mappings.iter().count(), 1);
        assert!(mappings.iter().next().unwrap().file().is_some());
    }

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
        let mappings = Mappings::parse(SMAPS.as_bytes()).unwrap();
        let at = Address(0x7f00_0000_1000);
        let all = mappings.contiguous(at, |mapping| mapping.backing == Backing::Anonymous);
        assert_eq!(all, Address(0x7f00_0000_0000)..Address(0x7f00_0400_0000));
        let writable = mappings.contiguous(at, |mapping| mapping.writable);
        assert_eq!(writable.end, Address(0x7f00_0002_1000));
        assert!(mappings.contiguous(Address(0x1000), |_| true).is_empty());
    }
}
