//! The memory of a live process.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linux::{Address, Error, Mapping, PageState, Pagemap, open_behind_proc, proc};

use crate::{Memory, Source};

/// The memory of a running or stopped process, read through `/proc/PID/mem`.
///
/// rbloat reads memory in no other way. process_vm_readv(2) pins the pages that it reads, and
/// since Linux 5.19 the kernel copies an anonymous page that several processes share before it pins it
/// (`gup_must_unshare` in mm/internal.h): reading a forked process would double its memory, for good.
pub struct LiveMemory {
    pid: i32,
    memory: File,
    /// Set if pages are looked up as they are read; see [`LiveMemory::open_unscanned`].
    pagemap: Option<Pagemap>,
    /// Becomes true when the process continues, and its memory changes.
    expired: Option<Arc<AtomicBool>>,
    /// The files of mappings, by the start of the mapping; `None` if we may not open the file.
    files: Mutex<HashMap<Address, Option<Arc<File>>>>,
}

impl LiveMemory {
    /// Opens the memory of `pid` for images whose page states are known.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub fn open(pid: i32) -> Result<Self, Error> {
        let memory = proc::open(pid, "mem")?;
        Ok(Self { pid, memory, pagemap: None, expired: None, files: Mutex::default() })
    }

    /// Opens the memory of `pid` for images without page states: each read asks the kernel first which
    /// pages are resident, since reading an absent page would map it into the process.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub(crate) fn open_unscanned(pid: i32) -> Result<Self, Error> {
        let pagemap = Some(Pagemap::open(pid)?);
        Ok(Self { pagemap, ..Self::open(pid)? })
    }

    /// Lets all reads fail once `expired` is set.
    pub(crate) fn until(self, expired: Arc<AtomicBool>) -> Self {
        Self { expired: Some(expired), ..self }
    }

    fn is_expired(&self) -> bool {
        self.expired.as_ref().is_some_and(|expired| expired.load(Ordering::SeqCst))
    }

    /// Opens the file that `mapping` maps: the very file, even if its path leads to another one by now. Devices are not
    /// opened.
    fn file(&self, mapping: &Mapping) -> Option<Arc<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || {
            let range = &mapping.range;
            let (start, end) = (range.start.0, range.end.0);
            let path = format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid);
            open_behind_proc(&path).ok().map(Arc::new)
        };
        files.entry(mapping.range.start).or_insert_with(open).clone()
    }
}

impl Memory for LiveMemory {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let read = self.memory.read_at(into, at.0).unwrap_or(0);
        // Checked after the read, since the process may have gone on meanwhile.
        if self.is_expired() { 0 } else { read }
    }
}

impl Source for LiveMemory {
    fn read_absent(&self, mapping: &Mapping, at: Address, into: &mut [u8]) -> usize {
        let offset = mapping.file_offset + (at - mapping.range.start);
        match self.file(mapping) {
            Some(file) => file.read_at(into, offset).unwrap_or(0),
            // Maps a page of the file into the process, shared with all others that map it: harmless.
            None => self.read(at, into),
        }
    }

    /// A running process maps more memory. Only pages of its own are read: reading a device may have effects.
    fn read_unmapped(&self, at: Address, into: &mut [u8]) -> usize {
        let Some(pagemap) = &self.pagemap else { return 0 };
        let own = pagemap.own_bytes_at(at, into.len() as u64) as usize;
        if own == 0 { 0 } else { self.read(at, &mut into[..own]) }
    }

    fn state_at(&self, at: Address, bytes: u64) -> (Option<PageState>, u64) {
        match &self.pagemap {
            Some(pagemap) => pagemap.state_at(at, bytes),
            None => (Some(PageState::Anonymous), bytes),
        }
    }
}
