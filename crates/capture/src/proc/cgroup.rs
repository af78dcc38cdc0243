//! The memory of control groups, in versions 1 and 2.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::memory::number_after;
use super::read;
use crate::text::one_line;

/// The memory of one control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupMemory {
    /// Bytes charged to the group and those below it, caches of files included.
    pub usage_bytes: u64,
    /// The limit of `usage_bytes`; `None` if the group has none.
    pub limit_bytes: Option<u64>,
    /// The part of `usage_bytes` in caches of files, which the kernel gives up before it kills a process.
    pub cache_bytes: u64,
    /// The number of processes that were killed since the group was created because it was full. `None` if
    /// the kernel does not count them (version 1 before Linux 4.13).
    pub oom_kills: Option<u64>,
    /// How often the group met its limit, or `memory.high` of version 2, and the kernel had to reclaim memory. `None` if the
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

    /// The bytes that can still be allocated before the kernel kills a process; `None` without a limit.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        let room = self.limit_bytes?.saturating_sub(self.usage_bytes);
        Some(room.saturating_add(self.cache_bytes))
    }
}

/// Returns the memory of the control group of process `pid`. A process is in several nested groups: the one whose
/// limit leaves the least room counts, or the innermost if none has a limit. `None` if no group could be read.
#[must_use]
pub fn group_memory(pid: i32) -> Option<GroupMemory> {
    let levels: Vec<GroupMemory> =
        control_groups(pid).iter().filter_map(ControlGroup::memory).collect();
    let tightest =
        levels.iter().filter(|it| it.limit_bytes.is_some()).min_by_key(|it| it.room_bytes());
    tightest.or(levels.first()).copied()
}

/// Returns the path of the control group that process `pid` was started in, as /proc shows it; `None` if all
/// hierarchies show their root.
pub(super) fn path(pid: i32) -> Option<String> {
    innermost_path(&String::from_utf8_lossy(&read(pid, "cgroup").ok()?))
}

/// Returns the path in /proc/PID/cgroup that describes the process best: the path of version 2, otherwise systemd's,
/// otherwise the longest one.
fn innermost_path(groups: &str) -> Option<String> {
    let groups = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let named = groups.filter(|(_, path)| *path != "/");
    let best = named.max_by_key(|(controllers, path)| {
        (controllers.is_empty(), *controllers == "name=systemd", path.len())
    });
    best.map(|(_, path)| one_line(path))
}

/// A control group that a process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    hierarchy: &'static Hierarchy,
    folder: PathBuf,
}

impl ControlGroup {
    /// Returns the control group at `path`: its folder, or its path as /proc/PID/cgroup shows it. A group that counts memory is
    /// preferred. `None` if there is no such group.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        let mounted = HIERARCHIES.iter().filter_map(|hierarchy| {
            let (root, mount) = hierarchy.mount(&mounts)?;
            Some((hierarchy, below(path, &root, &mount)?))
        });
        let named = HIERARCHIES.iter().map(|hierarchy| (hierarchy, path.to_owned()));
        let folders = mounted.chain(named).filter(|(_, folder)| folder.join(PROCESSES).is_file());
        let mut groups = folders.map(|(hierarchy, folder)| Self { hierarchy, folder });
        let first = groups.next()?;
        if first.memory().is_some() {
            return Some(first);
        }
        Some(groups.find(|group| group.memory().is_some()).unwrap_or(first))
    }

    /// Returns the memory of the group; `None` if it does not count memory.
    #[must_use]
    pub fn memory(&self) -> Option<GroupMemory> {
        self.hierarchy.memory(&self.folder)
    }

    /// Returns the memory that is charged to the group but may be in no process; `None` if it does not count memory.
    #[must_use]
    pub fn memory_of_kernel(&self) -> Option<KernelMemory> {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).ok();
        let counts = read("memory.stat")?;
        let bytes = |name: &str| number_after(&counts, name);
        let [all, mapped] = self.hierarchy.files;
        let kernel = match self.hierarchy.kernel {
            Some(file) => read(file).and_then(|text| text.trim().parse().ok()),
            // Its sum is there from Linux 5.18 on.
            None => bytes("kernel ").or_else(|| {
                let parts = ["kernel_stack ", "pagetables ", "percpu ", "vmalloc ", "slab "];
                Some(parts.into_iter().filter_map(bytes).sum())
            }),
        };
        Some(KernelMemory {
            unmapped_cache_bytes: bytes(all)?.saturating_sub(bytes(mapped)?),
            kernel_bytes: kernel? + bytes("sock ").unwrap_or(0),
        })
    }

    /// Returns the processes in the group and in those below it, ascending.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = Vec::new();
        for folder in self.folders() {
            let text = fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
        // 0 is a process that our pid namespace does not have.
        pids.retain(|&pid| pid > 0);
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Returns the numbers by which the kernel names this group and those below it.
    #[must_use]
    pub fn numbers(&self) -> HashSet<u64> {
        let number = |folder: PathBuf| fs::metadata(folder).ok().map(|found| found.ino());
        self.folders().into_iter().filter_map(number).collect()
    }

    /// The folders of this group and of those below it.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.folder.clone()];
        let mut next = 0;
        while let Some(folder) = folders.get(next) {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let inner = entries.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
            let inner: Vec<PathBuf> = inner.map(|it| it.path()).collect();
            folders.extend(inner);
            next += 1;
        }
        folders
    }
}

/// The file with the processes of a group.
const PROCESSES: &str = "cgroup.procs";

/// Memory that is charged to a control group, but not as the memory of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelMemory {
    /// Caches of files that no process maps.
    pub unmapped_cache_bytes: u64,
    /// The kernel's own memory: page tables, stacks, buffers.
    pub kernel_bytes: u64,
}

/// Returns the folder of the group at `path`, in a hierarchy whose group `root` is mounted at `mount`. In a container the root
/// may be a group, and the path be relative to that or above it.
fn below(path: &Path, root: &str, mount: &Path) -> Option<PathBuf> {
    let inside = path.strip_prefix(root).or_else(|_| path.strip_prefix("/"));
    Some(mount.join(inside.ok()?))
}

/// Returns the control groups that process `pid` is in: for each hierarchy, from the innermost group outwards.
#[must_use]
pub fn control_groups(pid: i32) -> Vec<ControlGroup> {
    let groups = read(pid, "cgroup").unwrap_or_default();
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    parse_groups(&groups, &mounts)
}

/// Parses the lines of /proc/PID/cgroup and of mountinfo, which may be of no encoding.
fn parse_groups(groups: &[u8], mounts: &[u8]) -> Vec<ControlGroup> {
    let (groups, mounts) = (String::from_utf8_lossy(groups), String::from_utf8_lossy(mounts));
    let in_hierarchy = |hierarchy: &'static Hierarchy| {
        let (folder, mount) = hierarchy.folder(&groups, &mounts)?;
        let levels = folder.ancestors().take_while(|level| level.starts_with(&mount));
        let levels = levels.map(|folder| ControlGroup { hierarchy, folder: folder.into() });
        Some(levels.collect::<Vec<_>>())
    };
    HIERARCHIES.iter().filter_map(in_hierarchy).flatten().collect()
}

/// The names of files in one version of control groups, from the kernel's
/// Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The controller in /proc/PID/cgroup; version 2 has one hierarchy for all, without a name.
    controller: &'static str,
    filesystem: &'static str,
    limit: &'static str,
    usage: &'static str,
    cache: &'static str,
    /// The file with a line of `oom_kill`.
    events: &'static str,
    /// The file with the number of times that the limit was met; `None` if `events` has it.
    hits: Option<&'static str>,
    /// The lines with caches of files: all, and those that processes map.
    files: [&'static str; 2],
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
        limit: "memory.max",
        usage: "memory.current",
        cache: "inactive_file ",
        events: "memory.events",
        hits: None,
        files: ["file ", "file_mapped "],
        kernel: None,
        pressure: Some("memory.pressure"),
    },
    Hierarchy {
        controller: "memory",
        filesystem: "cgroup",
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cache: "total_inactive_file ",
        events: "memory.oom_control",
        hits: Some("memory.failcnt"),
        files: ["total_cache ", "total_mapped_file "],
        kernel: Some("memory.kmem.usage_in_bytes"),
        pressure: None,
    },
];

impl Hierarchy {
    /// Returns the folder of the process's group, and the mount point of its hierarchy.
    fn folder(&self, groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
        let path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            controllers.split(',').any(|name| name == self.controller).then_some(path)
        })?;
        let (root, mount) = self.mount(mounts)?;
        let folder = below(Path::new(path), &root, &mount)?;
        Some((if folder.is_dir() { folder } else { mount.clone() }, mount))
    }

    /// Returns the group that is mounted, and the mount point.
    fn mount(&self, mounts: &str) -> Option<(String, PathBuf)> {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let is_ours = right.next() == Some(self.filesystem)
                && (self.controller.is_empty()
                    || right.nth(1)?.split(',').any(|name| name == self.controller));
            let mut left = left.split(' ').skip(3);
            is_ours.then(|| Some((left.next()?.to_owned(), left.next()?.into())))?
        })
    }

    /// Returns the memory of the group in the folder `level`; `None` if it does not count memory.
    fn memory(&self, level: &Path) -> Option<GroupMemory> {
        let read = |name: &str| fs::read_to_string(level.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let events = read(self.events).unwrap_or_default();
        let limit_hits = match self.hits {
            Some(file) => number(file),
            None => number_after(&events, "high ")
                .zip(number_after(&events, "max "))
                .map(|(high, max)| high + max),
        };
        Some(GroupMemory {
            usage_bytes: number(self.usage)?,
            limit_bytes: number(self.limit).filter(|&limit| limit < NO_LIMIT),
            cache_bytes: number_after(&read("memory.stat").unwrap_or_default(), self.cache)
                .unwrap_or(0),
            oom_kills: number_after(&events, "oom_kill "),
            limit_hits,
            stalled: self.pressure.and_then(read).and_then(|text| super::memory::stalled(&text)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 20 0:22 / /proc rw,nosuid - proc proc rw
30 20 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 20 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const GROUPS: &str = "4:memory:/shop/web\n3:cpuset,cpu:/\n0::/shop\n";

    #[test]
    fn the_folder_of_a_group_is_found_in_either_version() {
        let [two, one] = &HIERARCHIES;
        // None of these folders exists here, so the mount is found in their place.
        let mount = PathBuf::from("/sys/fs/cgroup/unified");
        assert_eq!(two.folder(GROUPS, MOUNTS).map(|found| found.1), Some(mount));
        let mount = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(one.folder(GROUPS, MOUNTS).map(|found| found.1), Some(mount));
        assert_eq!(one.folder("0::/\n", MOUNTS), None);
        assert_eq!(two.folder(GROUPS, ""), None);
    }

    #[test]
    fn the_path_of_a_group_is_that_of_version_2_if_it_is_not_the_root() {
        let path = |groups| innermost_path(groups);
        assert_eq!(path(GROUPS).as_deref(), Some("/shop"));
        let hybrid = "3:memory:/docker/0123\n1:name=systemd:/docker/0123\n0::/\n";
        assert_eq!(path(hybrid).as_deref(), Some("/docker/0123"));
        let service =
            "3:memory:/much/longer/path/of/a/group\n1:name=systemd:/system.slice/a.service\n0::/\n";
        assert_eq!(path(service).as_deref(), Some("/system.slice/a.service"));
        assert_eq!(path("2:cpu:/\n0::/\nodd\n"), None);
        assert_eq!(path("0::/a:b\u{1b}[2J.service\n").as_deref(), Some("/a:b [2J.service"));
    }

    #[test]
    fn mounts_that_cannot_be_read_take_away_no_more_than_themselves() {
        assert_eq!(parse_groups(b"", b"").len(), 0);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.max"), "1000\n").unwrap();
        fs::write(folder.path().join("memory.current"), "400\n").unwrap();
        let mut mounts = b"24 20 0:21 / /mnt/caf\xe9 rw - ext4 /dev/sda rw\n".to_vec();
        let mount = folder.path().display();
        mounts.extend(format!("31 20 0:27 / {mount} rw - cgroup2 cgroup2 rw\n").bytes());
        let levels = parse_groups(b"0::/\n", &mounts);
        let rooms: Vec<_> =
            levels.iter().map(|level| level.memory().unwrap().room_bytes()).collect();
        assert_eq!(rooms, [Some(600)]);
    }

    #[test]
    fn a_group_of_either_version_says_use_limit_and_kills() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let [two, one] = &HIERARCHIES;
        assert_eq!(two.memory(folder.path()), None);
        write("memory.max", "1000000\n");
        write("memory.current", "900000\n");
        write("memory.stat", "anon 5\ninactive_file 50000\ntotal_inactive_file 70000\n");
        write("memory.events", "low 0\nhigh 2\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n");
        let full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
        write(
            "memory.pressure",
            &format!("some avg10=0.25 avg60=0.05 avg300=0.01 total=7654321\n{full}"),
        );
        let memory = two.memory(folder.path()).unwrap();
        let expected = GroupMemory {
            usage_bytes: 900_000,
            limit_bytes: Some(1_000_000),
            cache_bytes: 50_000,
            oom_kills: Some(3),
            limit_hits: Some(11),
            stalled: Some(Duration::from_micros(7_654_321)),
        };
        assert_eq!(memory, expected);
        assert_eq!(memory.room_bytes(), Some(150_000));
        write("memory.max", "max\n");
        assert_eq!(two.memory(folder.path()).unwrap().room_bytes(), None);

        write("memory.usage_in_bytes", "800000\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        write("memory.failcnt", "7\n");
        let memory = one.memory(folder.path()).unwrap();
        let expected = GroupMemory {
            usage_bytes: 800_000,
            limit_bytes: None,
            cache_bytes: 70_000,
            oom_kills: Some(2),
            limit_hits: Some(7),
            stalled: None,
        };
        assert_eq!(memory, expected);
    }
}
