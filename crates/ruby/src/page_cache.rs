use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use capture::{Address, Image, Memory, PAGE_SIZE, ProcessState, Source};

/// The bytes that are read at once: structures that belong together are often near each other.
const PIECE: u64 = 4 * PAGE_SIZE;
/// The pieces that are kept, 16 MiB.
const MAX_PIECES: usize = 1024;

/// A cache of an image's memory, for readers that follow many pointers to small structures near each
/// other.
struct PageCache<'a> {
    image: &'a Image<'a>,
    pieces: Mutex<Pieces>,
}

struct Pieces {
    /// The place of each piece in `bytes`, by its number, and its bytes up to the first that cannot be read.
    places: HashMap<u64, (usize, usize)>,
    /// One allocation: glibc calls mprotect(2) for each small one of a thread that is not the first. Its pages take memory
    /// when they are used.
    bytes: Vec<u8>,
}

impl Pieces {
    fn new() -> Self {
        Self { places: HashMap::new(), bytes: Vec::with_capacity(MAX_PIECES * PIECE as usize) }
    }

    /// The piece that begins at `base`, up to the first byte that cannot be read.
    fn at(&mut self, base: Address, image: &Image<'_>) -> &[u8] {
        let number = base.0 / PIECE;
        if self.places.len() >= MAX_PIECES && !self.places.contains_key(&number) {
            self.places.clear();
            self.bytes.clear();
        }
        let bytes = &mut self.bytes;
        let (start, length) = *self.places.entry(number).or_insert_with(|| {
            let start = bytes.len();
            bytes.resize(start + PIECE as usize, 0);
            let length = image.read(base, &mut bytes[start..]);
            bytes.truncate(start + length);
            (start, length)
        });
        &self.bytes[start..start + length]
    }
}

/// The same image, read through a cache of pages. It has no page states, since the original image
/// already respects them.
pub(crate) fn cached<'a>(image: &'a Image<'a>) -> Image<'a> {
    let mappings = image.state.mappings.clone();
    let state = ProcessState { mappings, ..ProcessState::default() };
    Image::new(state, PageCache { image, pieces: Mutex::new(Pieces::new()) })
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
