use std::sync::{Mutex, PoisonError, TryLockError};

use linux::{Address, MIN_PAGE_SIZE};

/// The pages that are kept: 1 MiB.
const PAGES: u64 = 256;
/// The pages that a [widened](PageCache::widen) cache keeps: 8 MiB.
const MORE_PAGES: u64 = 2048;
/// The parts of the cache, each with a lock of its own.
const PARTS: u64 = 64;

/// A cache of memory that does not change, for the small reads of walks that follow pointers: without it, each would be a
/// system call.
pub(crate) struct PageCache {
    parts: Vec<Mutex<Part>>,
}

/// Pages, each at the place that its number gives.
struct Part {
    /// The number of the page at each place, and its bytes up to the first that cannot be read.
    places: Vec<(u64, usize)>,
    /// Zeros from the kernel: places that are never used take no memory.
    bytes: Vec<u8>,
}

impl Part {
    /// A part of a cache that keeps this many pages.
    fn of(pages: u64) -> Self {
        const NONE: u64 = u64::MAX;
        let places = (pages / PARTS) as usize;
        Self { places: vec![(NONE, 0); places], bytes: vec![0; places * MIN_PAGE_SIZE as usize] }
    }
}

impl PageCache {
    /// Larger reads gain nothing from a cache.
    pub(crate) const MAX_READ: usize = 512;

    pub(crate) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| Mutex::new(Part::of(PAGES))).collect() }
    }

    /// Makes room for more pages. Those that are kept are forgotten.
    pub(crate) fn widen(&self) {
        for part in &self.parts {
            *part.lock().unwrap_or_else(PoisonError::into_inner) = Part::of(MORE_PAGES);
        }
    }

    /// Reads memory at `at` into `into`, up to the first byte that `read` cannot read. Returns the number of bytes read.
    pub(crate) fn read(
        &self,
        at: Address,
        into: &mut [u8],
        read: impl Fn(Address, &mut [u8]) -> usize,
    ) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = at.offset(done as u64);
            let base = at.align_down(MIN_PAGE_SIZE);
            let number = base.0 / MIN_PAGE_SIZE;
            let mut part = match self.parts[(number % PARTS) as usize].try_lock() {
                Ok(part) => part,
                Err(TryLockError::Poisoned(part)) => part.into_inner(),
                // Another thread uses it, perhaps to read a page. To wait would take longer than to read.
                Err(TryLockError::WouldBlock) => return done + read(at, &mut into[done..]),
            };
            let Part { places, bytes } = &mut *part;
            let place = (number / PARTS) as usize % places.len();
            let bytes = &mut bytes[place * MIN_PAGE_SIZE as usize..][..MIN_PAGE_SIZE as usize];
            let (known, length) = &mut places[place];
            if *known != number {
                *length = read(base, bytes);
                *known = number;
            }
            let Some(rest) =
                bytes[..*length].get((at - base) as usize..).filter(|it| !it.is_empty())
            else {
                // It lies behind memory of the page that cannot be read.
                return done + read(at, &mut into[done..]);
            };
            let bytes = rest.len().min(into.len() - done);
            into[done..done + bytes].copy_from_slice(&rest[..bytes]);
            done += bytes;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use proptest::prelude::*;

    /// Two runs of readable memory.
    const READABLE: [(u64, u64); 2] = [(0x1234, 0x4_5678), (0x5_0000, 0x5_8000)];

    fn read_plain(at: Address, into: &mut [u8]) -> usize {
        let end = READABLE.iter().find(|it| (it.0..it.1).contains(&at.0)).map_or(at.0, |it| it.1);
        let length = into.len().min((end - at.0) as usize);
        for (byte, at) in into[..length].iter_mut().zip(at.0..) {
            *byte = (at ^ at >> 8) as u8;
        }
        length
    }

    proptest! {
        #[test]
        fn a_read_is_the_same_with_and_without_a_cache(
            reads in prop::collection::vec((0_u64..0x6_0000, 0_usize..PageCache::MAX_READ), 1..40),
        ) {
            let cache = PageCache::new();
            for (number, (at, length)) in reads.into_iter().enumerate() {
                if number == 20 {
                    cache.widen();
                }
                let (mut cached, mut plain) = (vec![0; length], vec![0; length]);
                let read = cache.read(Address(at), &mut cached, read_plain);
                prop_assert_eq!(read, read_plain(Address(at), &mut plain), "{:#x}", at);
                prop_assert_eq!(&cached[..read], &plain[..read]);
            }
        }
    }

    #[test]
    fn neighbours_are_read_once() {
        let (cache, reads) = (PageCache::new(), AtomicUsize::new(0));
        let read = |at, into: &mut [u8]| {
            reads.fetch_add(1, Ordering::Relaxed);
            read_plain(at, into)
        };
        for at in (MIN_PAGE_SIZE * 8..MIN_PAGE_SIZE * 18).step_by(40) {
            assert_eq!(cache.read(Address(at), &mut [0; 40], read), 40);
        }
        assert_eq!(reads.into_inner(), 10);
    }
}
