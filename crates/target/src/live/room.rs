//! How much memory a process may still take before a limit is met: of its control groups, or the
//! machine's.

use std::fs;
use std::path::{Path, PathBuf};

use super::proc;

/// Bytes that the process `pid` may still take: the least of what its control groups and the machine
/// leave. `None` where nothing could be learned. Caches of files that the kernel would give up count
/// as room.
pub(crate) fn bytes(pid: i32) -> Option<u64> {
    // Where one of them cannot be read, no more is missing than what the groups leave.
    let groups = proc::read(pid, "cgroup").unwrap_or_default();
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    least(&groups, &mounts)
}

/// [`bytes`] by the lines of /proc/PID/cgroup and of mountinfo, which may be of no encoding.
fn least(groups: &[u8], mounts: &[u8]) -> Option<u64> {
    let (groups, mounts) = (String::from_utf8_lossy(groups), String::from_utf8_lossy(mounts));
    let in_groups = Hierarchy::ALL.iter().filter_map(|hierarchy| {
        let (folder, mount) = hierarchy.folder(&groups, &mounts)?;
        let levels = folder.ancestors().take_while(|level| level.starts_with(&mount));
        levels.filter_map(|level| hierarchy.room(level)).min()
    });
    in_groups.chain(on_machine()).min()
}

fn on_machine() -> Option<u64> {
    number_after(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:").map(|kb| kb * 1024)
}

/// The first number of the line that begins with `key`.
fn number_after(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// How the files of one version of control groups are called, as the kernel's
/// Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst have it.
struct Hierarchy {
    /// The controller in /proc/PID/cgroup; version 2 has one hierarchy for all, without a name.
    controller: &'static str,
    filesystem: &'static str,
    limit: &'static str,
    usage: &'static str,
    cache: &'static str,
}

impl Hierarchy {
    const ALL: [Self; 2] = [
        Self {
            controller: "",
            filesystem: "cgroup2",
            limit: "memory.max",
            usage: "memory.current",
            cache: "inactive_file ",
        },
        Self {
            controller: "memory",
            filesystem: "cgroup",
            limit: "memory.limit_in_bytes",
            usage: "memory.usage_in_bytes",
            cache: "total_inactive_file ",
        },
    ];

    /// The folder of the process's group, and where its hierarchy is mounted.
    fn folder(&self, groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
        let path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            controllers.split(',').any(|name| name == self.controller).then_some(path)
        })?;
        let (root, mount) = mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let is_ours = right.next() == Some(self.filesystem)
                && (self.controller.is_empty()
                    || right.nth(1)?.split(',').any(|name| name == self.controller));
            let mut left = left.split(' ').skip(3);
            is_ours.then(|| Some((left.next()?, left.next()?)))?
        })?;
        // In a container the mount's root may be a group, and the path be told from that or above.
        let below =
            Path::new(path).strip_prefix(root).or_else(|_| Path::new(path).strip_prefix("/"));
        let mount = PathBuf::from(mount);
        let folder = mount.join(below.ok()?);
        Some((if folder.is_dir() { folder } else { mount.clone() }, mount))
    }

    /// What one level leaves; `None` where it sets no limit.
    fn room(&self, level: &Path) -> Option<u64> {
        let number = |name: &str| fs::read_to_string(level.join(name)).ok()?.trim().parse().ok();
        let limit: u64 = number(self.limit)?;
        let usage: u64 = number(self.usage)?;
        let statistics = fs::read_to_string(level.join("memory.stat")).unwrap_or_default();
        let cache = number_after(&statistics, self.cache).unwrap_or(0);
        Some(limit.saturating_sub(usage).saturating_add(cache))
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
        let [two, one] = Hierarchy::ALL;
        // None of these folders exists here, so the mount stands for them.
        let mount = PathBuf::from("/sys/fs/cgroup/unified");
        assert_eq!(two.folder(GROUPS, MOUNTS).map(|found| found.1), Some(mount));
        let mount = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(one.folder(GROUPS, MOUNTS).map(|found| found.1), Some(mount));
        assert_eq!(one.folder("0::/\n", MOUNTS), None);
        assert_eq!(two.folder(GROUPS, ""), None);
    }

    #[test]
    fn the_least_room_of_all_levels_counts_and_caches_are_room() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("memory.max", "1000000\n");
        write("memory.current", "900000\n");
        write("memory.stat", "anon 5\ninactive_file 50000\n");
        let [two, _] = Hierarchy::ALL;
        assert_eq!(two.room(folder.path()), Some(150_000));
        write("memory.max", "max\n");
        assert_eq!(two.room(folder.path()), None);
    }

    #[test]
    fn the_machine_leaves_some_room() {
        let room = bytes(std::process::id().cast_signed()).unwrap();
        assert!(room > 0);
    }

    #[test]
    fn mounts_that_cannot_be_read_take_away_no_more_than_themselves() {
        let machine = least(b"", b"").unwrap();
        assert!(machine > 0);
        assert!(least(GROUPS.as_bytes(), b"").is_some());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.max"), "1000\n").unwrap();
        fs::write(folder.path().join("memory.current"), "400\n").unwrap();
        let mut mounts = b"24 20 0:21 / /mnt/caf\xe9 rw - ext4 /dev/sda rw\n".to_vec();
        let mount = folder.path().display();
        mounts.extend(format!("31 20 0:27 / {mount} rw - cgroup2 cgroup2 rw\n").bytes());
        assert_eq!(least(b"0::/\n", &mounts), Some(600));
    }
}
