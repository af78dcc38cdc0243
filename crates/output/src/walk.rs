//! Paths, followed component by component, so that no other user's link is followed.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{FOLDER, WRITE};

/// The kernel's limit of symbolic links in a path.
const MAX_LINKS: u32 = 40;

/// The end of a path.
pub(super) enum End {
    /// A file that is not a folder, or a name that no file has. `after` is the rest of the path behind it.
    Entry {
        folder: OwnedFd,
        name: OsString,
        existing: Option<Stat>,
        after: PathBuf,
    },
    Folder(OwnedFd),
    /// A file that a link of /proc leads to, such as /dev/stdout.
    Open(File),
}

/// Follows a path without opening the file at its end.
pub(super) fn walk(path: &Path) -> io::Result<End> {
    walk_from(rustix::fs::open(".", FOLDER, Mode::empty())?, path)
}

/// Follows a path from `folder`.
pub(super) fn walk_from(mut folder: OwnedFd, path: &Path) -> io::Result<End> {
    let mut rest = path.to_path_buf();
    let mut links = 0;
    loop {
        let mut parts = rest.components();
        let Some(part) = parts.next() else { return Ok(End::Folder(folder)) };
        let after = parts.as_path().to_path_buf();
        let name = match part {
            Component::Prefix(_) | Component::CurDir => {
                rest = after;
                continue;
            }
            Component::RootDir | Component::ParentDir => {
                folder = rustix::fs::openat(&folder, part.as_os_str(), FOLDER, Mode::empty())?;
                rest = after;
                continue;
            }
            Component::Normal(name) => name.to_os_string(),
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat(&folder, &name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                return Ok(End::Entry { folder, name, existing: None, after });
            }
            found => found?,
        };
        let stat = rustix::fs::fstat(&found)?;
        rest = match kind(&stat) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if !is_trusted(&stat) {
                    let what = format!("{} is a symbolic link", name.display());
                    return Err(refusal(&what, &stat, "give the path that it leads to"));
                }
                if rustix::fs::fstatfs(&found)?.f_type != rustix::fs::PROC_SUPER_MAGIC {
                    let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                    PathBuf::from(OsString::from_vec(target.into_bytes())).join(after)
                } else if after.as_os_str().is_empty() {
                    // The text of such a link is not always a path. If a shell opened the file by >>, append to it.
                    let flags = WRITE | OFlags::APPEND;
                    let file = rustix::fs::openat(&folder, &name, flags, Mode::empty())?;
                    return Ok(End::Open(file.into()));
                } else {
                    folder = rustix::fs::openat(&folder, &name, FOLDER, Mode::empty())?;
                    after
                }
            }
            FileType::Directory => {
                folder = found;
                after
            }
            _ if after.as_os_str().is_empty() => {
                return Ok(End::Entry { folder, name, existing: Some(stat), after });
            }
            _ => return Err(Errno::NOTDIR.into()),
        };
    }
}

/// Refuses an existing file that another user may have planted: any file in a folder that others can write to, and in
/// any folder a pipe, since that user may read from it.
pub(super) fn check(stat: &Stat, folder: &Stat) -> io::Result<()> {
    let is_shared = folder.st_mode & 0o002 != 0 || folder.st_mode & 0o1020 == 0o1020;
    match kind(stat) {
        _ if is_trusted(stat) => Ok(()),
        FileType::Fifo => Err(refusal("it is a pipe", stat, "give another name")),
        _ if is_shared => {
            let what = "it is in a folder that others can write to,";
            Err(refusal(what, stat, "give another name"))
        }
        _ => Ok(()),
    }
}

fn refusal(what: &str, stat: &Stat, remedy: &str) -> io::Error {
    let message = format!("{what} and belongs to another user (uid {}); {remedy}", stat.st_uid);
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns true if a file belongs to root or to us.
fn is_trusted(stat: &Stat) -> bool {
    stat.st_uid == 0 || is_own(stat)
}

pub(super) fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}
