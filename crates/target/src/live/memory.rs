use std::collections::HashMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::{Address, Mapping, Memory, Source};

/// The memory of a running or stopped process, read by process_vm_readv(2).
pub(crate) struct LiveMemory {
    pid: i32,
    /// The files of mappings by their start; `None` where we may not open them.
    files: Mutex<HashMap<Address, Option<Arc<File>>>>,
}

impl LiveMemory {
    pub(crate) fn new(pid: i32) -> Self {
        Self { pid, files: Mutex::default() }
    }

    /// The file that `mapping` maps, the very one, whatever its path leads to by now.
    fn file(&self, mapping: &Mapping) -> Option<Arc<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || {
            let range = &mapping.range;
            let (start, end) = (range.start.0, range.end.0);
            File::open(format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid)).ok().map(Arc::new)
        };
        files.entry(mapping.range.start).or_insert_with(open).clone()
    }
}

impl Memory for LiveMemory {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let remote = [RemoteIoVec { base: at.0 as usize, len: into.len() }];
        process_vm_readv(Pid::from_raw(self.pid), &mut [IoSliceMut::new(into)], &remote)
            .unwrap_or(0)
    }
}

impl Source for LiveMemory {
    fn read_absent(&self, mapping: &Mapping, at: Address, into: &mut [u8]) -> usize {
        let offset = mapping.file_offset + (at - mapping.range.start);
        match self.file(mapping) {
            Some(file) => file.read_at(into, offset).unwrap_or(0),
            // Maps in a page of the file, shared with all who use it: harmless, if not nothing.
            None => self.read(at, into),
        }
    }

    fn read_forbidden(&self, at: Address, into: &mut [u8]) -> usize {
        // Unlike process_vm_readv this is for debuggers, to whom protections mean nothing.
        let memory = File::open(format!("/proc/{}/mem", self.pid));
        memory.and_then(|memory| memory.read_at(into, at.0)).unwrap_or(0)
    }
}
