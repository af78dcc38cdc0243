use std::sync::{Mutex, PoisonError};

use capture::{Address, Image, Memory, PAGE_SIZE, ProcessState, Source};

/// The bytes that are read at once: structures that belong together are often near each other.
const PIECE: u64 = 4 * PAGE_SIZE;
/// The pieces that are kept, 8 MiB.
const PIECES: u64 = 512;

/// A cache of an image's memory, for readers that follow many pointers to small structures near each
/// other.
struct PageCache<'a> {
    image: &'a Image<'a>,
    pieces: Mutex<Pieces>,
}

/// Pieces of memory, each at the place that the end of its number gives.
struct Pieces {
    /// The number of the piece at each place, and its bytes up to the first that cannot be read.
    places: Vec<(u64, usize)>,
    /// Zeros from the kernel: places that are never used take no memory.
    bytes: Vec<u8>,
}

impl Pieces {
    fn new() -> Self {
        const NONE: u64 = u64::MAX;
        let bytes = vec![0; (PIECES * PIECE) as usize];
        Self { places: vec![(NONE, 0); PIECES as usize], bytes }
    }

    /// The piece that begins at `base`, up to the first byte that cannot be read.
    fn at(&mut self, base: Address, image: &Image<'_>) -> &[u8] {
        let number = base.0 / PIECE;
        let place = (number % PIECES) as usize;
        let start = place * PIECE as usize;
        let (known, length) = &mut self.places[place];
        if *known != number {
            *length = image.read(base, &mut self.bytes[start..start + PIECE as usize]);
            *known = number;
        }
        &self.bytes[start..start + *length]
    }
}

/// The same image, read through a cache of pages. It has no page states, since the original image
/// already respects them.
pub(crate) fn cached<'a>(image: &'a Image<'a>) -> Image<'a> {
    let mappings = image.state.mappings.clone();
    let state = ProcessState { mappings, ..ProcessState::default() };
    Image::of_checked(state, PageCache { image, pieces: Mutex::new(Pieces::new()) })
}

impl Memory for PageCache<'_> {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < into.len() {
            let at = at.offset(done as u64);
            let base = at.align_down(PIECE);
            let piece = pieces.at(base, self.image);
            let Some(rest) = piece.get((at - base) as usize..).filter(|rest| !rest.is_empty())
            else {
                // It lies behind memory of the piece that cannot be read.
                return done + self.image.read(at, &mut into[done..]);
            };
            let bytes = rest.len().min(into.len() - done);
            into[done..done + bytes].copy_from_slice(&rest[..bytes]);
            done += bytes;
        }
        done
    }
}

impl Source for PageCache<'_> {}
