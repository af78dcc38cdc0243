//! Files that get their names when they are complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::WRITE;

/// The mode of a new file. A map or a report shows the names and sizes of everything in a process.
const NEW_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A new file, and the name that it will have.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) folder: Arc<OwnedFd>,
    pub(super) name: OsString,
    /// Its present name, if the file system has no files without names.
    pub(super) temporary: Option<TemporaryName>,
    /// True if giving it its name needs root's rights: it is in another user's folder, or has another owner.
    pub(super) takes_rights: bool,
}

/// A name that a file has until it gets its own. It is removed with this value.
#[derive(Debug)]
pub(super) struct TemporaryName {
    folder: Arc<OwnedFd>,
    pub(super) name: OsString,
}

/// All temporary names.
static TEMPORARY_NAMES: Mutex<Vec<(Arc<OwnedFd>, OsString)>> = Mutex::new(Vec::new());

/// Creates a file in `folder`. It has no name, or a temporary one if the file system has no files without names.
pub(super) fn create(folder: &Arc<OwnedFd>) -> io::Result<(File, Option<TemporaryName>)> {
    match rustix::fs::openat(folder, ".", WRITE | OFlags::TMPFILE, NEW_FILE) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            create_named(folder).map(|(name, file)| (file, Some(name)))
        }
        file => Ok((file?.into(), None)),
    }
}

/// Creates a file in `folder` under a temporary name.
pub(super) fn create_named(folder: &Arc<OwnedFd>) -> io::Result<(TemporaryName, File)> {
    let flags = WRITE | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let create = |name: &OsStr| rustix::fs::openat(folder, name, flags, NEW_FILE);
    TemporaryName::give(folder, create).map(|(name, file)| (name, file.into()))
}

/// Calls `make` with temporary names until it finds one that no file has.
fn under_a_new_name<T>(
    mut make: impl FnMut(&OsStr) -> Result<T, Errno>,
) -> io::Result<(OsString, T)> {
    for number in 0..10_000 {
        let name = OsString::from(format!(".rbloat-{}-{number}", std::process::id()));
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return Ok((name, made?)),
        }
    }
    Err(Errno::EXIST.into())
}

impl NewFile {
    pub(super) fn publish(mut self, file: &File) -> io::Result<()> {
        let Self { folder, name, temporary, .. } = &mut self;
        if temporary.is_none() {
            let open = format!("/proc/self/fd/{}", file.as_raw_fd());
            let link = |name: &OsStr| {
                rustix::fs::linkat(CWD, &open, &**folder, name, AtFlags::SYMLINK_FOLLOW)
            };
            // No file gets its name any more when rbloat is about to end.
            let all = temporary_names();
            let linked = link(name);
            drop(all);
            match linked {
                Err(Errno::EXIST) => *temporary = Some(TemporaryName::give(folder, link)?.0),
                linked => return Ok(linked?),
            }
        }
        temporary.take().map_or(Ok(()), |old| old.replace_by(name))
    }
}

impl TemporaryName {
    /// Calls `make` to make a file with such a name.
    fn give<T>(
        folder: &Arc<OwnedFd>,
        make: impl FnMut(&OsStr) -> Result<T, Errno>,
    ) -> io::Result<(Self, T)> {
        let mut all = temporary_names();
        let (name, made) = under_a_new_name(make)?;
        all.push((Arc::clone(folder), name.clone()));
        Ok((Self { folder: Arc::clone(folder), name }, made))
    }

    /// Gives the file its own name. An existing file with this name is replaced.
    fn replace_by(self, name: &OsStr) -> io::Result<()> {
        // No other thread removes the temporary name meanwhile.
        let all = temporary_names();
        let renamed = rustix::fs::renameat(&*self.folder, &*self.name, &*self.folder, name);
        drop(all);
        Ok(renamed?)
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        let mut all = temporary_names();
        let _ = rustix::fs::unlinkat(&*self.folder, &*self.name, AtFlags::empty());
        all.retain(|(folder, name)| !Arc::ptr_eq(folder, &self.folder) || *name != self.name);
    }
}

/// Removes the files that are not complete, and lets no further one be completed. For the end of rbloat.
pub fn abandon() {
    let all = temporary_names();
    for (folder, name) in &*all {
        let _ = rustix::fs::unlinkat(&**folder, &**name, AtFlags::empty());
    }
    std::mem::forget(all);
}

fn temporary_names() -> MutexGuard<'static, Vec<(Arc<OwnedFd>, OsString)>> {
    TEMPORARY_NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}
