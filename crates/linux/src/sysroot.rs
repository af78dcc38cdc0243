//! Files of other mount namespaces, and files that foreign data names, such as the libraries of a core.
//!
//! A path is resolved beneath a folder, as by chroot(2), and only a regular file is opened: opening a device may have
//! effects, and opening a FIFO wakes its writer.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The folder beneath which the files of a process are.
#[derive(Debug)]
pub struct Sysroot {
    /// If it could not be opened, the error is also the error for each file in it.
    folder: Result<OwnedFd, Errno>,
    /// True for the root of our own mount namespace.
    is_own: bool,
}

impl Sysroot {
    /// Opens the folder at `path`; the root of our own mount namespace if that is `None`.
    #[must_use]
    pub fn open(path: Option<&Path>) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path.unwrap_or(Path::new("/")), flags, Mode::empty());
        Self { folder, is_own: path.is_none() }
    }

    /// Opens a regular file by its absolute path in this root.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        open_regular(&self.find(path)?)
    }

    /// Returns true if there is a file at this absolute path in this root.
    pub fn has(&self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    /// Finds a file without opening it. Symbolic links do not lead out of the root. Magic links of /proc are errors.
    pub fn find(&self, path: &Path) -> io::Result<OwnedFd> {
        let folder = self.folder.as_ref().map_err(|&error| error)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve) {
            // Linux before 5.6, or a seccomp filter that does not know the call. No link leads out of our own root.
            Err(Errno::NOSYS | Errno::PERM) if self.is_own => {
                Ok(rustix::fs::open(path, flags, Mode::empty())?)
            }
            Err(Errno::NOSYS) => Err(io::Error::other(
                "opening a file beneath another root needs openat2(2), of Linux 5.6",
            )),
            found => Ok(found?),
        }
    }

    /// Returns the folder, if it could be opened.
    #[must_use]
    pub fn folder(&self) -> Option<BorrowedFd<'_>> {
        self.folder.as_ref().ok().map(AsFd::as_fd)
    }
}

/// Opens the regular file at a path of /proc, which may lead into another mount namespace.
pub fn open_behind_proc(path: &str) -> io::Result<File> {
    open_regular(&rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a file that was found (O_PATH), if it is a regular one.
fn open_regular(found: &OwnedFd) -> io::Result<File> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // By its descriptor, since its path may lead to another file by now.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::mknodat;

    use super::*;

    fn contents(root: &Sysroot, path: &str) -> io::Result<String> {
        root.open_file(Path::new(path)).and_then(io::read_to_string)
    }

    /// A link in the files of a container led to a file of the host.
    #[test]
    fn a_link_in_a_sysroot_led_out_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(root.join("usr/lib/libruby.so"), "within").unwrap();
        std::fs::write(folder.path().join("outside"), "outside").unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink("/usr/lib", root.join("lib64")).unwrap();
        symlink(folder.path().join("outside"), root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        let own = std::fs::File::open(folder.path().join("outside")).unwrap();
        symlink(format!("/proc/self/fd/{}", own.as_raw_fd()), root.join("magic")).unwrap();
        symlink("/proc", root.join("proc")).unwrap();

        let sysroot = Sysroot::open(Some(&root));
        for path in ["/usr/lib/libruby.so", "/lib/libruby.so", "/lib64/libruby.so"] {
            assert_eq!(contents(&sysroot, path).unwrap(), "within", "{path}");
        }
        for path in ["/absolute", "/relative", "/../outside", "/magic", "/proc/self/status"] {
            assert!(contents(&sysroot, path).is_err(), "{path}");
            assert!(!sysroot.has(Path::new(path)), "{path}");
        }
        assert!(sysroot.has(Path::new("/lib64/libruby.so")));
        let absent = Sysroot::open(Some(&root.join("absent")));
        assert_eq!(contents(&absent, "/lib").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_fifo_device_or_folder_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        // A FIFO can be opened for writing without waiting only while it is open for reading.
        let open_for_writing =
            || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
        for root in [Sysroot::open(Some(folder.path())), Sysroot::open(None)] {
            let path = if root.is_own { fifo.as_path() } else { Path::new("/fifo") };
            assert_eq!(root.open_file(path).unwrap_err().to_string(), "not a regular file");
            assert_eq!(open_for_writing().unwrap_err().raw_os_error(), Some(libc::ENXIO));
            assert!(root.open_file(Path::new("/")).is_err());
        }
        assert!(Sysroot::open(None).open_file(Path::new("/dev/zero")).is_err());
        assert!(open_behind_proc(fifo.to_str().unwrap()).is_err());
    }
}
