#![doc = include_str!("../README.md")]

mod new_file;
mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::{File, ReadDir};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use new_file::abandon;
use new_file::{NewFile, create};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use walk::{End, check, is_own, kind, walk, walk_from};

const NEW_FOLDER: Mode = Mode::RWXU;
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const WRITE: OFlags = OFlags::WRONLY.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The reason why a file or folder could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct Error {
    /// The file or folder.
    pub path: PathBuf,
    /// The reason.
    pub source: io::Error,
}

/// A file that is open for writing. A new regular file gets its name when it is complete, or by [`Output::publish`]. If
/// it is dropped before that, nothing is left of the file. The same holds if rbloat is killed, on file systems with O_TMPFILE.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    way: Way,
}

/// The way in which a file is written.
#[derive(Debug)]
enum Way {
    /// A new file. If there is a file with its name, it is replaced when the new one is complete.
    New(NewFile),
    /// An existing regular file. It is overwritten because we may not create a file with its owner, or in its folder.
    Overwritten,
    /// A pipe or device, or a file that was open before, such as /dev/stdout.
    Direct,
}

/// A folder for several files.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    folder: OwnedFd,
}

/// Returns a file that does not exist for the output on a source, if the user gives none. Its name has the time.
pub fn default_path(source: &str, extension: &str) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name =
        |suffix: &str| PathBuf::from(format!("rbloat-{source}-{seconds}{suffix}.{extension}"));
    let mut path = name("");
    for number in 2.. {
        if !path.exists() {
            break;
        }
        path = name(&format!("-{number}"));
    }
    path
}

impl Output {
    /// Opens the file at `path` for writing. The path `-` is standard output.
    ///
    /// # Errors
    /// If that is not possible, or another user might have planted the file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let opened = match is_dash(path) {
            true => standard_output().map(|file| (file.into(), Way::Direct)),
            false => walk(path).and_then(open_end),
        };
        Self::new(path, opened)
    }

    fn new(path: &Path, opened: io::Result<(File, Way)>) -> Result<Self, Error> {
        let (file, way) = opened.map_err(|source| unwritable(path, source))?;
        Ok(Self { path: path.into(), file, way })
    }

    /// Returns true if standard output gets the content, under whatever name. Then nothing else may be printed there.
    pub fn is_standard_output(&self) -> bool {
        let inode = |file: BorrowedFd<'_>| {
            rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).ok()
        };
        let standard = standard_output().ok().and_then(|file| inode(file.as_fd()));
        matches!(self.way, Way::Direct)
            && standard.is_some()
            && inode(self.file.as_fd()) == standard
    }

    /// Returns the folder of a file that has no name yet, and true if giving it a name needs root's rights.
    pub fn pending(&self) -> Option<(Arc<OwnedFd>, bool)> {
        match &self.way {
            Way::New(file) => Some((Arc::clone(&file.folder), file.takes_rights)),
            _ => None,
        }
    }

    /// Writes `bytes`, and gives the file its name.
    ///
    /// # Errors
    /// If they cannot be written. The existing file, if any, remains.
    pub fn write(mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.writer()?.write_all(bytes);
        written.map_err(|source| unwritable(&self.path, source))?;
        self.complete()
    }

    /// Returns the file for a content that is written part by part. [`Output::complete`] gives it its name.
    ///
    /// # Errors
    /// If an existing file cannot be emptied.
    pub fn writer(&mut self) -> Result<&mut File, Error> {
        let Self { path, file, way } = self;
        match way {
            Way::Overwritten => file.set_len(0).map_err(|source| unwritable(path, source))?,
            Way::New(_) | Way::Direct => {}
        }
        Ok(file)
    }

    /// Gives the file, to which everything has been written, its name.
    ///
    /// # Errors
    /// If that is not possible. The existing file, if any, remains.
    pub fn complete(self) -> Result<(), Error> {
        let Self { path, file, way } = self;
        let Way::New(new) = way else { return Ok(()) };
        let named = file.sync_all().and_then(|()| new.publish(&file));
        named.map_err(|source| unwritable(&path, source))
    }

    /// Gives the file its name at once, since others read it while it is written.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn publish(self) -> Result<(PathBuf, File), Error> {
        let Self { path, file, way } = self;
        let published = match way {
            Way::New(new) => new.publish(&file),
            Way::Overwritten => file.set_len(0),
            Way::Direct => Ok(()),
        };
        match published {
            Ok(()) => Ok((path, file)),
            Err(source) => Err(unwritable(&path, source)),
        }
    }
}

impl Folder {
    /// Opens the folder at `path`, and creates it first if necessary.
    ///
    /// # Errors
    /// If it is no folder, cannot be created, or another user might have planted it.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let create = || match is_dash(path) {
            true => Err(io::Error::other(
                "standard output is no folder; write ./- for a folder of this name",
            )),
            false => create_below(&rustix::fs::open(".", FOLDER, Mode::empty())?, path),
        };
        let folder = create().map_err(|source| unwritable(path, source))?;
        Ok(Self { path: path.into(), folder })
    }

    /// Opens the folder at this path inside it, and creates it and those above it first if necessary. The path of this folder may
    /// lead elsewhere by now. If this folder was removed, it is created again.
    ///
    /// # Errors
    /// As for [`Folder::create`].
    pub fn inner(&self, path: &Path) -> Result<Self, Error> {
        let again = || match rustix::fs::fstat(&self.folder) {
            Ok(stat) if stat.st_nlink == 0 => Ok(Self::create(&self.path)?.folder),
            _ => self.folder.try_clone().map_err(|source| unwritable(&self.path, source)),
        };
        let mut inner = Self { path: self.path.clone(), folder: again()? };
        for part in path {
            let path = inner.path.join(part);
            let folder = create_below(&inner.folder, Path::new(part));
            let folder = folder.map_err(|source| unwritable(&path, source))?;
            inner = Self { path, folder };
        }
        Ok(inner)
    }

    /// Returns what is in it. Its path may lead elsewhere by now.
    fn entries(&self) -> io::Result<ReadDir> {
        std::fs::read_dir(format!("/proc/self/fd/{}", self.folder.as_raw_fd()))
    }

    /// Returns the names of what is in it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn names(&self) -> Result<Vec<OsString>, Error> {
        let names = self
            .entries()
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
        names.map_err(|source| unwritable(&self.path, source))
    }

    /// Returns the path of a file in it.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file in it for writing.
    ///
    /// # Errors
    /// As for [`Output::open`].
    pub fn output(&self, name: &str) -> Result<Output, Error> {
        let path = self.path_of(name);
        let opened = self.folder.try_clone().and_then(|folder| {
            let end = walk_from(folder, Path::new(name))?;
            open_end(end)
        });
        Output::new(&path, opened)
    }

    /// Opens a file in it for reading.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.folder, name, flags, Mode::empty())?.into())
    }

    /// The files in it: names and sizes.
    pub fn files(&self) -> io::Result<Vec<(String, u64)>> {
        let file = |entry: std::fs::DirEntry| {
            let metadata = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
            Some((entry.file_name().into_string().ok()?, metadata.len()))
        };
        Ok(self.entries()?.flatten().filter_map(file).collect())
    }

    /// The names of the folders in it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn folders(&self) -> Result<Vec<String>, Error> {
        let entries = self.entries().map_err(|source| unwritable(&self.path, source))?;
        let folder = |entry: std::fs::DirEntry| {
            entry.file_type().ok().filter(std::fs::FileType::is_dir)?;
            entry.file_name().into_string().ok()
        };
        Ok(entries.flatten().filter_map(folder).collect())
    }

    /// Removes a file in it.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    /// Removes an empty folder in it.
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.folder, name, AtFlags::REMOVEDIR)?)
    }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns standard output, with the mode and the offset that the shell gave it.
#[expect(clippy::disallowed_methods, reason = "this writes a file, not text for a terminal")]
fn standard_output() -> io::Result<OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Opens the folder at this path from `start`, and creates it first if necessary.
fn create_below(start: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    loop {
        match walk_from(start.try_clone()?, path)? {
            End::Folder(folder) => {
                let outer = rustix::fs::openat(&folder, "..", FOLDER, Mode::empty())?;
                check(&rustix::fs::fstat(&folder)?, &rustix::fs::fstat(&outer)?)?;
                return Ok(folder);
            }
            End::Entry { folder, name, existing: None, .. } => {
                match rustix::fs::mkdirat(&folder, &name, NEW_FOLDER) {
                    Err(error) if error != Errno::EXIST => return Err(error.into()),
                    _ => {}
                }
            }
            End::Entry { .. } | End::Open(_) => return Err(Errno::NOTDIR.into()),
        }
    }
}

fn unwritable(path: &Path, source: io::Error) -> Error {
    Error { path: path.into(), source }
}

/// Opens the end of a path for writing.
fn open_end(end: End) -> io::Result<(File, Way)> {
    let (folder, name, existing) = match end {
        End::Open(file) => return Ok((file, Way::Direct)),
        End::Folder(_) => return Err(Errno::ISDIR.into()),
        End::Entry { after, .. } if !after.as_os_str().is_empty() => {
            return Err(Errno::NOENT.into());
        }
        End::Entry { folder, name, existing, .. } => (folder, name, existing),
    };
    let folder_stat = rustix::fs::fstat(&folder)?;
    if let Some(stat) = &existing {
        check(stat, &folder_stat)?;
        if kind(stat) != FileType::RegularFile {
            return Ok((open_existing(&folder, &name, &folder_stat)?, Way::Direct));
        }
    }
    let folder = Arc::new(folder);
    let (file, temporary) = match create(&folder) {
        // We may write to the file, though not to its folder.
        Err(error) if existing.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok((open_existing(&folder, &name, &folder_stat)?, Way::Overwritten));
        }
        created => created?,
    };
    let is_own_folder = is_own(&folder_stat) && folder_stat.st_mode & 0o300 == 0o300;
    let takes_rights = !is_own_folder || !existing.as_ref().is_none_or(is_own);
    let new = NewFile { folder, name, temporary, takes_rights };
    match &existing {
        // If `new` has a temporary name, that is removed with it.
        Some(stat) if keep_owner(&file, stat).is_err() => {
            Ok((open_existing(&new.folder, &new.name, &folder_stat)?, Way::Overwritten))
        }
        _ => Ok((file, Way::New(new))),
    }
}

/// Opens an existing file for writing, unless another user has planted it meanwhile.
fn open_existing(folder: &OwnedFd, name: &OsStr, folder_stat: &Stat) -> io::Result<File> {
    let file = rustix::fs::openat(folder, name, WRITE | OFlags::NOFOLLOW, Mode::empty())?;
    check(&rustix::fs::fstat(&file)?, folder_stat)?;
    Ok(file.into())
}

/// Gives a new file the owner and the mode of the existing one that it is to replace.
fn keep_owner(file: &File, existing: &Stat) -> io::Result<()> {
    let new = rustix::fs::fstat(file)?;
    if (new.st_uid, new.st_gid) != (existing.st_uid, existing.st_gid) {
        let (owner, group) = (Uid::from_raw(existing.st_uid), Gid::from_raw(existing.st_gid));
        rustix::fs::fchown(file, Some(owner), Some(group))?;
    }
    // Without the set-user-ID and set-group-ID bits.
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(existing.st_mode & 0o777))?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::new_file::create_named;
    use super::*;

    fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
        Output::open(path).and_then(|output| output.write(bytes)).map_err(|error| error.to_string())
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_link_to_a_pipe_such_as_dev_stdout_is_written_to_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("stdout");
        let (mut reader, writer) = io::pipe().unwrap();
        symlink(format!("/proc/self/fd/{}", writer.as_raw_fd()), &link).unwrap();
        write(&link, b"all of it").unwrap();
        drop(writer);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "all of it");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_link_to_a_file_that_was_deleted_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("stdout");
        let mut file = tempfile::tempfile_in(folder.path()).unwrap();
        symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), &link).unwrap();
        write(&link, b"all of it").unwrap();
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "all of it");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    /// The file was replaced before.
    #[test]
    fn a_file_that_a_shell_opened_to_be_continued_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "first\n").unwrap();
        let open = File::options().append(true).open(&path).unwrap();
        let stdout = PathBuf::from(format!("/dev/fd/{}", open.as_raw_fd()));
        write(&stdout, b"second\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\n");
    }

    #[test]
    fn a_dash_is_standard_output_and_no_folder() {
        assert!(Output::open(Path::new("-")).unwrap().is_standard_output());
        let folder = tempfile::tempdir().unwrap();
        assert!(!Output::open(&folder.path().join("-")).unwrap().is_standard_output());
        let error = Folder::create(Path::new("-")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot write -: standard output is no folder; write ./- for a folder of this name"
        );
    }

    #[test]
    fn a_new_file_is_for_its_owner_only_and_an_existing_one_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write(&path, b"1").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        write(&path, b"22").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read(&path).unwrap(), b"22");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn paths_lead_through_folders_and_links_as_usual() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink("a/b", at("link")).unwrap();
        symlink(at("link"), at("absolute")).unwrap();
        symlink("../c", at("a/b/up")).unwrap();
        symlink("loop", at("loop")).unwrap();
        write(&at("absolute/../b/./up"), b"1").unwrap();
        assert_eq!(fs::read(at("a/c")).unwrap(), b"1");
        assert!(fs::symlink_metadata(at("a/b/up")).unwrap().is_symlink());
        for (path, why) in [
            ("loop", "Too many levels of symbolic links"),
            ("a", "Is a directory"),
            ("a/c/d", "Not a directory"),
            ("new/d", "No such file or directory"),
        ] {
            let error = write(&at(path), b"").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_written_to_the_end_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        drop(Output::open(&path).unwrap());
        assert!(names(folder.path()).is_empty());
    }

    /// As on a file system without O_TMPFILE.
    #[test]
    fn a_file_with_a_temporary_name_gets_its_own_or_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        for is_whole in [false, true] {
            let open = Arc::new(rustix::fs::open(folder.path(), FOLDER, Mode::empty()).unwrap());
            let (temporary, file) = create_named(&open).unwrap();
            let present = folder.path().join(&temporary.name);
            assert_eq!(fs::metadata(present).unwrap().mode() & 0o777, 0o600);
            let way = Way::New(NewFile {
                folder: open,
                name: "a".into(),
                temporary: Some(temporary),
                takes_rights: false,
            });
            let output = Output { path: path.clone(), file, way };
            match is_whole {
                true => output.write(b"new").unwrap(),
                false => drop(output),
            }
            assert_eq!(names(folder.path()), ["a"]);
            assert_eq!(fs::read(&path).unwrap(), if is_whole { b"new" } else { b"old" });
        }
    }

    #[test]
    fn a_folder_is_created_for_its_owner_only() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a/b");
        let folder = Folder::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        folder.output("c").unwrap().write(b"1").unwrap();
        assert_eq!(io::read_to_string(folder.read("c").unwrap()).unwrap(), "1");
        folder.remove("c").unwrap();
        assert!(names(&path).is_empty());
        assert!(Folder::create(&path).is_ok());
    }

    /// Names were read, and inner folders opened, by the path again.
    #[test]
    fn a_folder_stays_the_same_when_its_path_leads_elsewhere() {
        let outer = tempfile::tempdir().unwrap();
        let [path, moved, other] = ["a", "b", "c"].map(|name| outer.path().join(name));
        let folder = Folder::create(&path).unwrap();
        folder.output("file").unwrap().write(b"1").unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&other).unwrap();
        symlink(&other, &path).unwrap();
        assert_eq!(folder.names().unwrap(), ["file"]);
        folder.inner(Path::new("d/e")).unwrap().output("f").unwrap().write(b"2").unwrap();
        assert_eq!(fs::read(moved.join("d/e/f")).unwrap(), b"2");
        assert!(names(&other).is_empty());
    }

    #[test]
    fn an_inner_folder_of_a_removed_folder_is_created_with_it() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a");
        let folder = Folder::create(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        folder.inner(Path::new("b")).unwrap().output("c").unwrap().write(b"1").unwrap();
        assert_eq!(fs::read(path.join("b/c")).unwrap(), b"1");
    }
}
