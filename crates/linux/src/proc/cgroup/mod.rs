//! The memory of control groups, in versions 1 and 2.

mod events;
mod find;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::memory::{number_after, rollup};
use super::read;
use rustix::fs::{Mode, OFlags};

use crate::text::one_line;
use crate::{Error, Sysroot};
pub use events::GroupEvents;
use find::{GroupPath, Mount};
pub use usage::GroupUsage;

/// The memory of one control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupMemory {
    /// Bytes charged to the group and those below it, caches of files included.
    pub usage_bytes: u64,
    /// The limit of `usage_bytes`; `None` if the group has none. In version 2 it is the lower one of memory.max, at which the
    /// kernel kills a process, and memory.high, at which it delays the processes.
    pub limit_bytes: Option<u64>,
    /// The part of `usage_bytes` in caches of files, which the kernel gives up before it kills a process.
    pub cache_bytes: u64,
    /// The part of `usage_bytes` in files in memory (tmpfs) and shared memory, which it does not give up.
    pub shmem_bytes: u64,
    /// The number of processes that were killed since the group was created because it was full. `None` if
    /// the kernel does not count them (version 1 before Linux 4.13).
    pub oom_kills: Option<u64>,
    /// The number of times that the group met its limit, or `memory.high` of version 2, and the kernel had to reclaim memory. `None` if the
    /// kernel does not count that.
    pub limit_hits: Option<u64>,
    /// The time for which at least one process of the group waited for memory (PSI). `None` if the kernel does not count that for
    /// groups (version 1).
    pub stalled: Option<Duration>,
}

impl GroupMemory {
    /// The bytes in use without caches of files, which the kernel gives up.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.usage_bytes.saturating_sub(self.cache_bytes)
    }

    /// The bytes that can still be allocated before the limit is reached; `None` without a limit.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        Some(self.limit_bytes?.saturating_sub(self.used_bytes()))
    }
}

/// Returns the memory of the control group of process `pid`. A process is in several nested groups: the one whose
/// limit leaves the least room counts, or the innermost if none has a limit. `None` if no group counts its memory.
///
/// # Errors
/// As [`control_groups`].
pub fn group_memory(pid: i32) -> Result<Option<GroupMemory>, Error> {
    control_groups(pid).map(|groups| memory_of_groups(&groups))
}

/// Returns the memory of the group among these that leaves the least room; of the first one if none has a limit.
#[must_use]
pub fn memory_of_groups(groups: &[ControlGroup]) -> Option<GroupMemory> {
    let levels: Vec<GroupMemory> = groups.iter().filter_map(ControlGroup::memory).collect();
    let tightest =
        levels.iter().filter(|it| it.limit_bytes.is_some()).min_by_key(|it| it.room_bytes());
    tightest.or(levels.first()).copied()
}

/// The control groups of a process, one of each hierarchy, as the kernel names them: the lines of /proc/PID/cgroup.
#[derive(Debug, Clone)]
pub struct GroupNames {
    pid: i32,
    lines: Vec<u8>,
}

impl GroupNames {
    /// The names for process `pid`; none if the kernel has no control groups.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub fn of(pid: i32) -> Result<Self, Error> {
        match read(pid, "cgroup") {
            Ok(lines) => Ok(Self { pid, lines }),
            Err(Error::Proc { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Self { pid, lines: vec![] })
            }
            Err(error) => Err(error),
        }
    }

    /// The path of the group that the process was started in; `None` if no hierarchy shows a name.
    #[must_use]
    pub fn path(&self) -> Option<String> {
        innermost_path(&String::from_utf8_lossy(&self.lines))
    }

    /// The groups whose memory limits count, as [`control_groups`] returns them.
    ///
    /// # Errors
    /// As [`control_groups`].
    pub fn control_groups(&self) -> Result<Vec<ControlGroup>, Error> {
        find::levels(self.pid, &self.lines)
    }
}

/// Returns the path in /proc/PID/cgroup that describes the process best: the path of version 2, otherwise systemd's,
/// otherwise the longest one.
fn innermost_path(groups: &str) -> Option<String> {
    let groups = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    // A group above the root of our namespace has no name.
    let is_name = |name: &str| !["", ".."].contains(&name);
    let named = groups.filter(|(_, path)| path.split('/').any(is_name));
    let best = named.max_by_key(|(controllers, path)| {
        (controllers.is_empty(), *controllers == "name=systemd", path.len())
    });
    best.map(|(_, path)| one_line(path))
}

/// A control group, which is read through its folder.
#[derive(Debug, Clone)]
pub struct ControlGroup {
    hierarchy: &'static Hierarchy,
    /// The root of the process in whose mounts the folder is; `None` for our own.
    root: Option<PathBuf>,
    folder: PathBuf,
    id: GroupId,
}

impl PartialEq for ControlGroup {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for ControlGroup {}

/// The kernel's name of a group: the device and the inode of its folder, the same in all mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GroupId {
    device: u64,
    inode: u64,
}

impl GroupId {
    fn of(folder: BorrowedFd<'_>) -> Option<Self> {
        let found = rustix::fs::fstat(folder).ok()?;
        Some(Self { device: found.st_dev, inode: found.st_ino })
    }
}

impl ControlGroup {
    /// Returns the control group at `path`: its folder, or its path as /proc/PID/cgroup shows it. A group that counts memory is
    /// preferred. `None` if there is no such group.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let shown = GroupPath::parse(path.as_os_str().as_bytes());
        let mounted = HIERARCHIES.iter().flat_map(|hierarchy| {
            let folder = |mount: Mount| {
                let (unknown, names) = shown.as_ref()?.below(&mount.root)?;
                (unknown == 0).then(|| mount.point.join(names.iter().collect::<PathBuf>()))
            };
            Mount::all(&mounts, hierarchy).into_iter().filter_map(folder)
        });
        // In a container the root of a mount may be a group, and the path be relative to that.
        let relative = HIERARCHIES.iter().flat_map(|hierarchy| {
            let inside = path.strip_prefix("/").ok();
            let mounts = Mount::all(&mounts, hierarchy).into_iter();
            mounts.filter_map(move |mount| Some(mount.point.join(inside?)))
        });
        let mut groups =
            mounted.chain(relative).chain([path.to_owned()]).filter_map(Self::at_folder);
        let first = groups.next()?;
        if first.memory().is_some() {
            return Some(first);
        }
        Some(groups.find(|group| group.memory().is_some()).unwrap_or(first))
    }

    fn at_folder(folder: PathBuf) -> Option<Self> {
        let found = open_folder(None, &folder).ok()?;
        let hierarchy = HIERARCHIES.iter().find(|hierarchy| hierarchy.has(found.as_fd()))?;
        Some(Self { hierarchy, root: None, folder, id: GroupId::of(found.as_fd())? })
    }

    /// Returns true if no group is above this one.
    #[must_use]
    pub fn is_top(&self) -> bool {
        self.id.inode == ROOT_INODE
    }

    /// Opens the folder, if it is still that of this group.
    fn open(&self) -> Option<Folder> {
        let found = open_folder(self.root.as_deref(), &self.folder).ok()?;
        (GroupId::of(found.as_fd()) == Some(self.id)).then_some(Folder(found))
    }

    /// Returns the memory of the group; `None` if it does not count memory.
    #[must_use]
    pub fn memory(&self) -> Option<GroupMemory> {
        self.hierarchy.memory(&self.open()?.path())
    }

    /// Returns the number of its processes that the kernel has killed since memory was short; `None` if the group is gone, or the kernel
    /// does not count them.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let events = fs::read_to_string(self.open()?.path().join(self.hierarchy.events)).ok()?;
        number_after(&events, "oom_kill ")
    }

    /// Returns the bytes that can still be allocated before a limit is reached; `None` without a limit. Reads no more than it
    /// must, since a forked copy is ended in time only if this is quick.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        self.room_below(self.hierarchy.limits)
    }

    /// Returns the bytes that can still be allocated before the kernel kills a process; `None` without such a limit.
    #[must_use]
    pub fn room_before_kill_bytes(&self) -> Option<u64> {
        self.room_below(&self.hierarchy.limits[..1])
    }

    fn room_below(&self, limits: &[&str]) -> Option<u64> {
        let folder = self.open()?;
        let limit = limit_bytes(limits, &folder.path())?;
        let [usage, cache, _] = self.hierarchy.usage(&folder.path())?;
        Some(limit.saturating_sub(usage.saturating_sub(cache)))
    }

    /// Returns the memory that is charged to the group but may be in no process; `None` if it does not count memory.
    #[must_use]
    pub fn memory_of_kernel(&self) -> Option<KernelMemory> {
        let folder = self.open()?;
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        let counts = read("memory.stat")?;
        let bytes = |name: &str| number_after(&counts, name);
        let [all, mapped, shmem] = self.hierarchy.files;
        let kernel = match self.hierarchy.kernel {
            Some(file) => read(file).and_then(|text| text.trim().parse().ok()),
            // Its sum is there from Linux 5.18 on.
            None => bytes("kernel ").or_else(|| {
                let parts = ["kernel_stack ", "pagetables ", "percpu ", "vmalloc ", "slab "];
                Some(parts.into_iter().filter_map(bytes).sum())
            }),
        };
        // Both counts include files in memory.
        let unmapped = bytes(all)?.saturating_sub(bytes(mapped)?);
        let shmem = bytes(shmem).unwrap_or(0);
        let mapped_shmem = if shmem > 0 { self.mapped_shmem_bytes() } else { 0 };
        let unmapped_shmem_bytes = shmem.saturating_sub(mapped_shmem).min(unmapped);
        Some(KernelMemory {
            unmapped_shmem_bytes,
            unmapped_cache_bytes: unmapped - unmapped_shmem_bytes,
            kernel_bytes: kernel? + bytes("sock ").unwrap_or(0),
        })
    }

    /// Returns the bytes of shared memory and files in memory that processes of the group map.
    fn mapped_shmem_bytes(&self) -> u64 {
        let rollups = self.processes().into_iter().filter_map(|pid| rollup(pid).ok());
        rollups.map(|rollup| rollup.shmem_bytes).sum()
    }

    /// Returns the processes in the group and in those below it, ascending.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let pids = self.each_folder(|folder| {
            let text = fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>()
        });
        let mut pids = pids.concat();
        // 0 is a process that our pid namespace does not have.
        pids.retain(|&pid| pid > 0);
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Returns the numbers by which the kernel names this group and those below it.
    #[must_use]
    pub fn numbers(&self) -> HashSet<u64> {
        let number = |folder: &Path| fs::metadata(folder).ok().map(|found| found.ino());
        self.each_folder(number).into_iter().flatten().collect()
    }

    /// Returns what `read` finds in the folders of this group and of those below it.
    fn each_folder<T>(&self, read: impl Fn(&Path) -> T) -> Vec<T> {
        let Some(folder) = self.open() else { return Vec::new() };
        let mut folders = vec![folder.path()];
        let mut next = 0;
        while let Some(folder) = folders.get(next) {
            let inner: Vec<PathBuf> = folders_in(folder).into_iter().flatten().collect();
            folders.extend(inner);
            next += 1;
        }
        folders.iter().map(|folder| read(folder)).collect()
    }
}

/// The open folder of a group.
struct Folder(OwnedFd);

impl Folder {
    /// A path that leads here also if something is mounted over the folder meanwhile.
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// Opens a folder below the root of a process, or below our own. The caller checks that it is the folder of a group.
fn open_folder(root: Option<&Path>, folder: &Path) -> io::Result<OwnedFd> {
    match Sysroot::open(root).find(folder) {
        Err(error) if !is_short_of_files(&error) => {}
        found => return found,
    }
    // Linux before 5.6, or a seccomp filter that does not know openat2(2). A link of the process may lead elsewhere.
    let inside = folder.strip_prefix("/").map_err(|_| io::ErrorKind::NotFound)?;
    let path = root.unwrap_or(Path::new("/")).join(inside);
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns true if a file may exist, but rbloat or the machine has too many open.
fn is_short_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The folders in a folder.
fn folders_in(folder: &Path) -> io::Result<impl Iterator<Item = PathBuf> + use<>> {
    let entries = fs::read_dir(folder)?.flatten();
    let folders = entries.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.map(|it| it.path()))
}

/// The inode of the folder of the outermost group, from `cgroup_setup_root` in the kernel's kernel/cgroup/cgroup.c.
const ROOT_INODE: u64 = 1;

/// The file with the processes of a group.
const PROCESSES: &str = "cgroup.procs";

/// Memory that is charged to a control group, but not as the memory of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelMemory {
    /// Caches of files on disks that no process maps.
    pub unmapped_cache_bytes: u64,
    /// Files in memory (tmpfs) and shared memory that no process maps. The kernel cannot give them up; it can only swap them.
    pub unmapped_shmem_bytes: u64,
    /// The kernel's own memory: page tables, stacks, buffers.
    pub kernel_bytes: u64,
}

/// Returns the control groups whose memory limits count for process `pid`, from the innermost group outwards: as far as we can
/// see them from our namespaces, those of the process, or those of process 1. None if the kernel has no control groups.
///
/// # Errors
/// [`Error::UnknownGroup`] if the group could not be found, so that its limit is unknown; if there is no such process, the kernel
/// refuses, or too many files are open.
pub fn control_groups(pid: i32) -> Result<Vec<ControlGroup>, Error> {
    GroupNames::of(pid)?.control_groups()
}

/// The names of files in one version of control groups, from the kernel's
/// Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The controller in /proc/PID/cgroup; version 2 has one hierarchy for all, without a name.
    controller: &'static str,
    filesystem: &'static str,
    /// The number of the file system, from the kernel's include/uapi/linux/magic.h.
    magic: rustix::fs::FsWord,
    /// The files with limits, of which the lowest counts. At the first one, the kernel kills.
    limits: &'static [&'static str],
    usage: &'static str,
    cache: &'static str,
    /// The file with a line of `oom_kill`.
    events: &'static str,
    /// The file with the number of times that the limit was met; `None` if `events` has it.
    hits: Option<&'static str>,
    /// The lines with caches of files: all, those that processes map, and files in memory and shared memory, which the first
    /// two include.
    files: [&'static str; 3],
    /// The file with the kernel's own memory; `None` if memory.stat has it.
    kernel: Option<&'static str>,
    /// The file with the time for which processes waited for memory.
    pressure: Option<&'static str>,
}

/// Version 1 shows the maximum of a counter in whole pages if no limit is set. Anything above half of that is no
/// limit.
const NO_LIMIT: u64 = u64::MAX / 4;

static HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy {
        controller: "",
        filesystem: "cgroup2",
        magic: 0x6367_7270,
        limits: &["memory.max", "memory.high"],
        usage: "memory.current",
        cache: "inactive_file ",
        events: "memory.events",
        hits: None,
        files: ["file ", "file_mapped ", "shmem "],
        kernel: None,
        pressure: Some("memory.pressure"),
    },
    Hierarchy {
        controller: "memory",
        filesystem: "cgroup",
        magic: 0x0027_e0eb,
        limits: &["memory.limit_in_bytes"],
        usage: "memory.usage_in_bytes",
        cache: "total_inactive_file ",
        events: "memory.oom_control",
        hits: Some("memory.failcnt"),
        files: ["total_cache ", "total_mapped_file ", "total_shmem "],
        kernel: Some("memory.kmem.usage_in_bytes"),
        pressure: None,
    },
];

/// Returns the only number in a file.
fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the lowest limit in these files of the group in the folder `level`, if it has one.
fn limit_bytes(files: &[&str], level: &Path) -> Option<u64> {
    let limits = files.iter().filter_map(|file| number_in(&level.join(file)));
    limits.filter(|&limit| limit < NO_LIMIT).min()
}

impl Hierarchy {
    /// Returns true if the controller is in a list, separated by commas.
    fn is_among(&self, controllers: &[u8]) -> bool {
        controllers.split(|&byte| byte == b',').any(|name| name == self.controller.as_bytes())
    }

    /// Returns true if a folder is in a file system of this version.
    fn has(&self, folder: BorrowedFd<'_>) -> bool {
        rustix::fs::fstatfs(folder).is_ok_and(|found| found.f_type == self.magic)
    }

    /// Returns the bytes that are charged to the group, and the parts in caches of files and in files in memory; `None` if it does not
    /// count memory.
    fn usage(&self, level: &Path) -> Option<[u64; 3]> {
        let usage = number_in(&level.join(self.usage))?;
        let statistics = fs::read_to_string(level.join("memory.stat")).unwrap_or_default();
        let part = |name| number_after(&statistics, name).unwrap_or(0);
        Some([usage, part(self.cache), part(self.files[2])])
    }

    /// Returns the memory of the group in the folder `level`; `None` if it does not count memory.
    fn memory(&self, level: &Path) -> Option<GroupMemory> {
        let [usage_bytes, cache_bytes, shmem_bytes] = self.usage(level)?;
        let read = |name: &str| fs::read_to_string(level.join(name)).ok();
        let events = read(self.events).unwrap_or_default();
        let limit_hits = match self.hits {
            Some(file) => number_in(&level.join(file)),
            None => number_after(&events, "high ")
                .zip(number_after(&events, "max "))
                .map(|(high, max)| high + max),
        };
        Some(GroupMemory {
            usage_bytes,
            limit_bytes: limit_bytes(self.limits, level),
            cache_bytes,
            shmem_bytes,
            oom_kills: number_after(&events, "oom_kill "),
            limit_hits,
            stalled: self.pressure.and_then(read).and_then(|text| super::memory::stalled(&text)),
        })
    }
}
