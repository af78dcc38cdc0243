//! The folder of a process's control group, which may lie outside of our control group namespace or mount namespace.
//!
//! The kernel shows the path of a group, and the group at the root of a mount, relative to the root of the reader's control
//! group namespace: `/../x` is beside that root. So a path and a mount agree also in a private namespace, but if the mount begins
//! further up, the names in between are missing. They are found by the process, which is listed in its group.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{
    ControlGroup, GroupId, HIERARCHIES, Hierarchy, PROCESSES, folders_in, is_short_of_files,
    open_folder,
};
use crate::Error;
use crate::proc::memory::number_after;
use crate::proc::refusal;

/// The most folders that are searched for a process.
const MAX_FOLDERS: usize = 1 << 14;

/// The path of a control group as the kernel shows it to us.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupPath {
    /// The number of levels above the root of our namespace at which `names` begins.
    up: usize,
    names: Vec<OsString>,
}

impl GroupPath {
    pub(super) fn parse(path: &[u8]) -> Option<Self> {
        let names = path.strip_prefix(b"/")?.split(|&byte| byte == b'/');
        let names: Vec<&[u8]> = names.filter(|name| !name.is_empty()).collect();
        let up = names.iter().take_while(|name| **name == b"..").count();
        // No name of a group is like that.
        if names[up..].iter().any(|name| [&b"."[..], b".."].contains(name)) {
            return None;
        }
        let names = names[up..].iter().map(|name| OsString::from_vec(name.to_vec())).collect();
        Some(Self { up, names })
    }

    /// Returns the path of this group below the group `root`: the number of names that the kernel does not show, and the names
    /// after them. `None` if it is not below `root`.
    pub(super) fn below(&self, root: &Self) -> Option<(usize, &[OsString])> {
        let unknown = root.up.checked_sub(self.up)?;
        match unknown {
            0 => Some((0, self.names.strip_prefix(&root.names[..])?)),
            // The kernel goes no further up than it must, so our namespace is not below a group that has a name after `..`.
            _ => root.names.is_empty().then_some((unknown, &self.names[..])),
        }
    }
}

/// A mount of control groups, in the mount namespace of some process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The kernel's number of the mount.
    id: u64,
    /// The group that is mounted.
    pub(super) root: GroupPath,
    /// The mount point, relative to the root of the process.
    pub(super) point: PathBuf,
}

impl Mount {
    /// Returns the mounts of a hierarchy, from the lines of /proc/PID/mountinfo.
    pub(super) fn all(mountinfo: &[u8], hierarchy: &Hierarchy) -> Vec<Self> {
        let lines = mountinfo.split(|&byte| byte == b'\n');
        lines.filter_map(|line| Self::parse(line, hierarchy)).collect()
    }

    fn parse(line: &[u8], hierarchy: &Hierarchy) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let mut fields = fields.skip(2);
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        // The optional fields end with a dash.
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let is_ours = fields.next()? == hierarchy.filesystem.as_bytes()
            && (hierarchy.controller.is_empty() || hierarchy.is_among(fields.nth(1)?));
        let root = GroupPath::parse(&root)?;
        is_ours.then(|| Self { id, root, point: OsString::from_vec(point).into() })
    }
}

/// Returns a field of mountinfo without its escapes: a backslash and three octal digits for a blank, for example.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| byte == b'\\').and_then(|it| str::from_utf8(it).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        rest = if escaped.is_some() { &after[3..] } else { after };
        bytes.push(escaped.unwrap_or(byte));
    }
    bytes
}

/// A check that an open folder belongs to the mount with this number, of this hierarchy. Another file system may be mounted
/// over it.
pub(super) type IsGenuine = fn(BorrowedFd<'_>, u64, &Hierarchy) -> io::Result<bool>;

pub(super) fn is_genuine(
    folder: BorrowedFd<'_>,
    mount: u64,
    hierarchy: &Hierarchy,
) -> io::Result<bool> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", folder.as_raw_fd()))?;
    Ok(hierarchy.has(folder) && number_after(&info, "mnt_id:") == Some(mount))
}

/// The control group that counts the memory of a process.
pub(super) struct Sought {
    pid: i32,
    hierarchy: &'static Hierarchy,
    path: GroupPath,
    is_genuine: IsGenuine,
}

/// Returns the control group that counts the memory of process `pid`, and those above it, from the lines of its /proc/PID/cgroup; none if
/// the kernel has no control groups.
///
/// # Errors
/// As [`super::control_groups`].
pub(super) fn levels(pid: i32, lines: &[u8]) -> Result<Vec<ControlGroup>, Error> {
    let Some((hierarchy, path)) = group_of_memory(lines).filter(|_| !is_disabled()) else {
        return Ok(vec![]);
    };
    let unknown = || Error::UnknownGroup { pid };
    let sought = Sought::new(pid, hierarchy, path, is_genuine).ok_or_else(unknown)?;
    let mut best = Vec::new();
    // Ours are the usual ones. Those of others may begin further up.
    for (owner, root) in [("self", None), (&pid.to_string(), Some(pid)), ("1", Some(1))] {
        let path = format!("/proc/{owner}/mountinfo");
        let root = root.map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
        let levels = present(fs::read(&path))
            .and_then(|mounts| sought.levels(&mounts.unwrap_or_default(), root.as_deref()))
            .map_err(|error| refusal(pid, path, error))?;
        if levels.len() > best.len() {
            best = levels;
        }
        if best.last().is_some_and(ControlGroup::is_top) {
            break;
        }
    }
    if best.is_empty() { Err(unknown()) } else { Ok(best) }
}

/// Returns what was found, or `None` if it is not there or not ours to see.
///
/// # Errors
/// If that is unknown, since too many files are open.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if is_short_of_files(&error) => Err(error),
        found => Ok(found.ok()),
    }
}

/// Returns true if the kernel was started with `cgroup_disable=memory`, as some are on small boards.
fn is_disabled() -> bool {
    let controllers = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    controllers.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.next() == Some("memory") && fields.last() == Some("0")
    })
}

/// Returns the hierarchy that counts memory, and the path of the group in it, from the lines of /proc/PID/cgroup.
pub(super) fn group_of_memory(lines: &[u8]) -> Option<(&'static Hierarchy, &[u8])> {
    let lines = lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    // A controller that no hierarchy of version 1 has is in that of version 2.
    HIERARCHIES.iter().rev().find_map(|hierarchy| {
        let mut named = lines.clone().filter(|(names, _)| hierarchy.is_among(names));
        named.next().map(|(_, path)| (hierarchy, path))
    })
}

impl Sought {
    /// The group of process `pid` at `path`, as the kernel shows it.
    pub(super) fn new(
        pid: i32,
        hierarchy: &'static Hierarchy,
        path: &[u8],
        is_genuine: IsGenuine,
    ) -> Option<Self> {
        Some(Self { pid, hierarchy, path: GroupPath::parse(path)?, is_genuine })
    }

    /// Returns the group and those above it, as far as one of the mounts of a process with this root shows them.
    ///
    /// # Errors
    /// If too many files are open.
    pub(super) fn levels(
        &self,
        mountinfo: &[u8],
        root: Option<&Path>,
    ) -> io::Result<Vec<ControlGroup>> {
        let mut best = Vec::new();
        for mount in Mount::all(mountinfo, self.hierarchy) {
            let levels = self.levels_in(&mount, root)?.unwrap_or_default();
            if levels.len() > best.len() {
                best = levels;
            }
        }
        Ok(best)
    }

    /// Returns the group and those above it that a mount shows; `None` if the group is not in it.
    fn levels_in(
        &self,
        mount: &Mount,
        root: Option<&Path>,
    ) -> io::Result<Option<Vec<ControlGroup>>> {
        let open = |folder: &Path| {
            let Some(found) = present(open_folder(root, folder))? else { return Ok(None) };
            let is_genuine = present((self.is_genuine)(found.as_fd(), mount.id, self.hierarchy))?;
            Ok::<_, io::Error>(is_genuine.unwrap_or(false).then_some(found))
        };
        let Some((unknown, names)) = self.path.below(&mount.root) else { return Ok(None) };
        let mut path: PathBuf = names.iter().collect();
        if unknown > 0 {
            let Some(mount) = open(&mount.point)? else { return Ok(None) };
            let Some(found) = self.search(&mount, unknown, &path)? else { return Ok(None) };
            path = found;
        }
        let mut levels = Vec::new();
        for level in path.ancestors() {
            let folder = mount.point.join(level);
            let id = open(&folder)?.and_then(|found| GroupId::of(found.as_fd()));
            // A level that cannot be opened may have a limit.
            let Some(id) = id else { return Ok(None) };
            let root = root.map(Path::to_owned);
            levels.push(ControlGroup { hierarchy: self.hierarchy, root, folder, id });
        }
        Ok(Some(levels))
    }

    /// Searches a mount for the group at `path`, before which so many names are `unknown`.
    fn search(&self, mount: &OwnedFd, unknown: usize, path: &Path) -> io::Result<Option<PathBuf>> {
        let mount = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        let mut outer = vec![mount.clone()];
        for _ in 0..unknown {
            let mut inner = Vec::new();
            for folder in &outer {
                inner.extend(present(folders_in(folder))?.into_iter().flatten());
                inner.truncate(MAX_FOLDERS);
            }
            outer = inner;
        }
        for folder in outer.into_iter().map(|outer| outer.join(path)) {
            let read = |name| present(fs::read_to_string(folder.join(name)));
            // A threaded group lists threads only.
            let listed = match read(PROCESSES)? {
                None => read("cgroup.threads")?,
                listed => listed,
            };
            let has_process = |text: String| text.lines().any(|line| line.parse() == Ok(self.pid));
            if listed.is_some_and(has_process) {
                return Ok(folder.strip_prefix(&mount).ok().map(Path::to_owned));
            }
        }
        Ok(None)
    }
}
