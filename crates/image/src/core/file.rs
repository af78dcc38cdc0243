//! A core file, read by offset: it may be larger than memory, sparse, cut short or forged.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use object::pod::{Pod, from_bytes};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::error::CoreError;

/// An open core file, of which any part can be read.
pub struct CoreFile {
    pub(crate) path: PathBuf,
    /// The length of the file.
    pub(crate) bytes: u64,
    /// The time of the last write.
    pub(crate) written: SystemTime,
    /// The size of the smallest hole in the file.
    pub(crate) hole_bytes: u64,
    file: File,
}

impl CoreFile {
    /// Takes a file that was opened by its `path`.
    ///
    /// # Errors
    /// If it is not a regular file.
    pub fn new(path: &Path, file: File) -> Result<Self, CoreError> {
        let error = |source| CoreError::Unreadable { path: path.to_owned(), source };
        let metadata = file.metadata().map_err(error)?;
        if !metadata.is_file() {
            let what =
                if metadata.is_dir() { "it is a folder" } else { "it is not a regular file" };
            return Err(CoreError::NoCore { path: path.to_owned(), what: what.into() });
        }
        Ok(Self {
            path: path.to_owned(),
            bytes: metadata.len(),
            written: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            hole_bytes: metadata.blksize(),
            file,
        })
    }

    /// Reads from `offset` on, up to the end of the file. Returns the number of bytes read.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        read_fully(&self.file, offset, into)
    }

    /// Reads a structure of the ELF format; `None` if the file ends before it does.
    pub(crate) fn read_pod<T: Pod + Copy>(&self, offset: u64) -> Option<T> {
        // No structure is larger.
        let mut bytes = [0; 64];
        let bytes = bytes.get_mut(..size_of::<T>())?;
        (self.read(offset, bytes) == bytes.len()).then_some(())?;
        from_bytes::<T>(bytes).ok().map(|(value, _)| *value)
    }

    /// Returns the parts of `range` that are not holes, ascending; all of it if the file system does not report holes.
    pub(crate) fn data_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            // The offset that a seek sets is unused, since all reads are by offset.
            let start = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => range.end,
                Err(_) => at,
            };
            let start = start.clamp(at, range.end);
            let end = seek(&self.file, SeekFrom::Hole(start)).unwrap_or(range.end);
            at = end.clamp(start, range.end).max(start + 1);
            (start < range.end).then_some(start..at)
        })
    }
}

/// Reads from `offset` on until `into` is full, the file ends, or an error occurs. Returns the number of bytes read.
pub(crate) fn read_fully(file: &File, offset: u64, into: &mut [u8]) -> usize {
    let mut done = 0;
    while done < into.len() {
        let Some(at) = offset.checked_add(done as u64) else { break };
        match file.read_at(&mut into[done..], at) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}
