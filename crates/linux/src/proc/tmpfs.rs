//! Files in memory (tmpfs) that processes have open, with those that are deleted.

use std::collections::HashSet;
use std::fs;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

use super::read;
use crate::mapping::parse::Device;
use crate::text::one_line;
use crate::{Error, is_shared_memory};

/// More open files of a process than the usual limit (`ulimit -n`) of large servers.
const MAX_FILES: usize = 1 << 16;
/// The longest path that is kept, in characters.
const MAX_PATH: usize = 256;
/// A block of statx(2).
const BLOCK_BYTES: u64 = 512;
/// The mark of deleted files in /proc/PID/fd.
const DELETED: &str = " (deleted)";

/// A file in memory that a process has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TmpfsFile {
    /// Its path, as one line.
    pub path: String,
    /// The memory that it takes.
    pub bytes: u64,
    /// True if it has no name any more: its memory is freed when it is closed.
    pub is_deleted: bool,
    /// A process that has it open.
    pub pid: i32,
}

/// Returns the files in memory that these processes have open, each once, the largest first. Those in other mount namespaces
/// than their process's may be missing.
#[must_use]
pub fn open_tmpfs_files(pids: &[i32]) -> Vec<TmpfsFile> {
    let mut known = HashSet::new();
    let mut files = Vec::new();
    for &pid in pids {
        let Ok(mounts) = Mounts::read(pid) else { continue };
        let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for link in links.take(MAX_FILES) {
            let link = link.path();
            let Ok(target) = fs::read_link(&link) else { continue };
            let path = one_line(&target.to_string_lossy());
            // It is not asked for new attributes: the server of a network or FUSE file system may never answer.
            let wanted = StatxFlags::BASIC_STATS;
            let Ok(found) = rustix::fs::statx(CWD, &link, AtFlags::STATX_DONT_SYNC, wanted) else {
                continue;
            };
            let device = (found.stx_dev_major, found.stx_dev_minor);
            let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
            if is_file
                && mounts.has_in_memory(device, path.as_bytes())
                && known.insert((device, found.stx_ino))
            {
                let is_deleted = found.stx_nlink == 0;
                let name = if is_deleted { path.strip_suffix(DELETED) } else { None };
                files.push(TmpfsFile {
                    path: name.unwrap_or(&path).chars().take(MAX_PATH).collect(),
                    bytes: found.stx_blocks.saturating_mul(BLOCK_BYTES),
                    is_deleted,
                    pid,
                });
            }
        }
    }
    files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    files
}

/// The devices of the file systems that a process sees.
pub(super) struct Mounts {
    all: HashSet<Device>,
    in_memory: HashSet<Device>,
}

impl Mounts {
    /// Reads the mounts that a process sees.
    pub(super) fn read(pid: i32) -> Result<Self, Error> {
        let text = read(pid, "mountinfo")?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Parses lines such as `36 35 0:31 / /dev/shm rw,nosuid - tmpfs tmpfs rw`.
    fn parse(text: &str) -> Self {
        let mut mounts = Self { all: HashSet::new(), in_memory: HashSet::new() };
        for line in text.lines() {
            let Some((major, minor)) = line.split(' ').nth(2).and_then(|it| it.split_once(':'))
            else {
                continue;
            };
            let (Ok(major), Ok(minor)) = (major.parse(), minor.parse()) else { continue };
            mounts.all.insert((major, minor));
            let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
            if kind == Some("tmpfs") {
                mounts.in_memory.insert((major, minor));
            }
        }
        mounts
    }

    /// Returns true if the file with this device and path is in memory. The kernel's own mount of tmpfs, which is in no list, has those
    /// of memfd_create(2), shmget(2) and mmap(2), and gives them their names.
    pub(super) fn has_in_memory(&self, device: Device, path: &[u8]) -> bool {
        self.in_memory.contains(&device) || !self.all.contains(&device) && is_shared_memory(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tmpfs_is_in_memory() {
        let text = "36 35 0:31 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw\n\
                    22 1 254:1 / / rw - ext4 /dev/vda1 rw\n\
                    odd\n40 35 0:x / /x rw - tmpfs tmpfs rw\n\
                    41 35 0:40 / /tmpfs\\040-\\040 rw - fuse.tmpfs - tmpfs rw";
        let mounts = Mounts::parse(text);
        assert!(mounts.has_in_memory((0, 31), b"/dev/shm/x"));
        // A file can have any name.
        assert!(!mounts.has_in_memory((254, 1), b"/dev/shm/x"));
        assert!(!mounts.has_in_memory((0, 40), b"/SYSV"));
        // The kernel's own mount is in no list.
        assert!(mounts.has_in_memory((0, 1), b"/memfd:x (deleted)"));
        // So is a device of btrfs.
        assert!(!mounts.has_in_memory((0, 50), b"/srv/x"));
    }
}
