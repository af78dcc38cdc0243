//! Files that are there as a whole or not at all.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::Builder;

use crate::failure::Failure;

/// Writes `bytes` into the file at `path`: whatever happens meanwhile, a file of this name is the old one or the
/// new one as a whole. What is no regular file, such as a pipe, is written to as it is.
///
/// # Errors
/// With the path, where it cannot be written.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    replace(path, bytes).map_err(|source| Failure::Unwritable { path: path.into(), source })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Through a link the file that it leads to is replaced, not the link.
    let path: PathBuf = match fs::canonicalize(path) {
        Ok(real) if !fs::metadata(&real)?.is_file() => {
            return fs::OpenOptions::new().write(true).open(&real)?.write_all(bytes);
        }
        Ok(real) => real,
        Err(_) => path.into(),
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // As any program's new file: what umask(2) leaves of it.
    let mut file = Builder::new()
        .prefix(".rbloat")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    Ok(())
}
