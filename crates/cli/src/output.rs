//! Files that are written completely or not at all.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::Builder;

use crate::failure::Failure;

/// Writes `bytes` to the file at `path` by replacing it, so that the file is always either the old or the new one. A
/// path that is not a regular file, such as a pipe, is written to directly.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    replace(path, bytes).map_err(|source| Failure::Unwritable { path: path.into(), source })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path: PathBuf = match fs::metadata(path) {
        // Replaces the target of a link, not the link.
        Ok(metadata) => match fs::canonicalize(path) {
            Ok(real) if metadata.is_file() => real,
            // /dev/stdout may lead to a pipe, which has no path.
            _ => return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes),
        },
        Err(_) => path.into(),
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // The usual mode of a new file, reduced by umask(2).
    let mut file = Builder::new()
        .prefix(".rbloat")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_to_a_pipe_such_as_dev_stdout_is_written_to_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("stdout");
        let (mut reader, writer) = io::pipe().unwrap();
        symlink(format!("/proc/self/fd/{}", writer.as_raw_fd()), &link).unwrap();
        replace(&link, b"all of it").unwrap();
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
        replace(&link, b"all of it").unwrap();
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "all of it");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
