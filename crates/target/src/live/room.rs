//! How much memory a process may still take before a limit is met: of its control groups, or the
//! machine's.

use std::fs;

use super::cgroup::{self, GroupMemory};
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
    let levels = cgroup::levels(groups, mounts).into_iter().flatten();
    let in_groups = levels.filter_map(|group: GroupMemory| group.room_bytes());
    in_groups.chain(on_machine()).min()
}

fn on_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    cgroup::number_after(&text, "MemAvailable:").map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_leaves_some_room() {
        let room = bytes(std::process::id().cast_signed()).unwrap();
        assert!(room > 0);
    }

    #[test]
    fn mounts_that_cannot_be_read_take_away_no_more_than_themselves() {
        let machine = least(b"", b"").unwrap();
        assert!(machine > 0);
        assert!(least(b"4:memory:/shop/web\n0::/shop\n", b"").is_some());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.max"), "1000\n").unwrap();
        fs::write(folder.path().join("memory.current"), "400\n").unwrap();
        let mut mounts = b"24 20 0:21 / /mnt/caf\xe9 rw - ext4 /dev/sda rw\n".to_vec();
        let mount = folder.path().display();
        mounts.extend(format!("31 20 0:27 / {mount} rw - cgroup2 cgroup2 rw\n").bytes());
        assert_eq!(least(b"0::/\n", &mounts), Some(600));
    }
}
