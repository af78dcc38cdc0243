//! The ring into which programs write.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{bpf, descriptor};
use crate::arch::page_size;

/// A command of bpf(2).
const CREATE_MAP: i64 = 0;
/// `BPF_MAP_TYPE_RINGBUF`.
const RING: u32 = 27;
/// The header of a record of the ring, and its flags.
const HEADER_BYTES: usize = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// How often we look at a record that another processor is writing.
const MAX_LOOKS: usize = 100_000;

/// A ring into which programs of all processors write, mapped twice behind each other.
pub(super) struct Ring {
    pub(super) map: OwnedFd,
    bytes: usize,
    consumer: Mapping,
    producer: Mapping,
}

impl Ring {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let map = descriptor(bpf(CREATE_MAP, &[RING.into(), (bytes as u64) << 32])?)?;
        let page = page_size() as usize;
        let consumer = Mapping::new(&map, page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = Mapping::new(&map, page + 2 * bytes, libc::PROT_READ, page_size())?;
        Ok(Self { map, bytes, consumer, producer })
    }

    /// Takes all records that are complete.
    pub(super) fn take(&mut self, mut each: impl FnMut(&[u8])) {
        // SAFETY: both pages are mapped as long as `self`, and begin with the position.
        let [consumer, producer] =
            [&self.consumer, &self.producer].map(|it| unsafe { &*it.start.cast::<AtomicU64>() });
        let mut position = consumer.load(Ordering::Relaxed);
        while position < producer.load(Ordering::Acquire) {
            let at = page_size() as usize + (position as usize & (self.bytes - 1));
            // SAFETY: the ring is mapped twice, so a record lies within the mapping. Headers are aligned to 8 bytes.
            let header = unsafe { &*self.producer.start.add(at).cast::<AtomicU32>() };
            let mut length = header.load(Ordering::Acquire);
            for _ in 0..MAX_LOOKS {
                if length & BUSY == 0 {
                    break;
                }
                std::hint::spin_loop();
                length = header.load(Ordering::Acquire);
            }
            let bytes = (length & !(BUSY | DISCARDED)) as usize;
            if length & BUSY != 0 || bytes + HEADER_BYTES > self.bytes {
                break;
            }
            if length & DISCARDED == 0 {
                // SAFETY: the record is complete, is not written any more before the position is behind it, and lies within
                // the mapping.
                each(unsafe {
                    std::slice::from_raw_parts(self.producer.start.add(at + HEADER_BYTES), bytes)
                });
            }
            position += (bytes + HEADER_BYTES).next_multiple_of(8) as u64;
            consumer.store(position, Ordering::Release);
        }
    }
}

/// A part of a ring that is mapped.
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is used by one thread at a time, through `&mut Ring`, and by the kernel.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(map: &OwnedFd, bytes: usize, protection: i32, offset: u64) -> io::Result<Self> {
        // SAFETY: a new mapping, which `drop` removes.
        let start = unsafe {
            let offset = offset.cast_signed() as libc::off_t;
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                offset,
            )
        };
        match start {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            start => Ok(Self { start: start.cast(), bytes }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which nothing refers any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}
