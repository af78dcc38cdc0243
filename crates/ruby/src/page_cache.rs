use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use capture::{Address, Image, Memory, PAGE_SIZE, ProcessState, Source};

/// The pages that are kept, 16 MiB.
const MAX_PAGES: usize = 4096;

type Page = [u8; PAGE_SIZE as usize];

/// A cache of an image's pages, for readers that follow many pointers to small structures near each
/// other.
struct PageCache<'a> {
    image: &'a Image<'a>,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    /// The place of each page in `bytes`, by its number; `None` if it could not be read.
    places: HashMap<u64, Option<usize>>,
    /// One allocation: glibc calls mprotect(2) for each small one of a thread that is not the first.
    bytes: Vec<Page>,
}

impl Pages {
    /// The page that begins at `base`; `None` if it cannot be read.
    fn at(&mut self, base: Address, image: &Image<'_>) -> Option<&Page> {
        let number = base.0 / PAGE_SIZE;
        if self.bytes.len() >= MAX_PAGES && !self.places.contains_key(&number) {
            self.places.clear();
            self.bytes.clear();
        }
        let bytes = &mut self.bytes;
        let place = *self.places.entry(number).or_insert_with(|| {
            let mut page = [0; PAGE_SIZE as usize];
            image.read_exact(base, &mut page).ok()?;
            bytes.push(page);
            Some(bytes.len() - 1)
        });
        place.and_then(|place| self.bytes.get(place))
    }
}

/// The same image, read through a cache of pages. It has no page states, since the original image
/// already respects them.
pub(crate) fn cached<'a>(image: &'a Image<'a>) -> Image<'a> {
    let mappings = image.state.mappings.clone();
    let state = ProcessState { mappings, ..ProcessState::default() };
    Image::new(state, PageCache { image, pages: Mutex::default() })
}

impl Memory for PageCache<'_> {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < into.len() {
            let at = at.offset(done as u64);
            let base = at.align_down(PAGE_SIZE);
            let within = (at - base) as usize;
            let bytes = (into.len() - done).min(PAGE_SIZE as usize - within);
            match pages.at(base, self.image) {
                Some(page) => into[done..done + bytes].copy_from_slice(&page[within..][..bytes]),
                None => break,
            }
            done += bytes;
        }
        done
    }
}

impl Source for PageCache<'_> {}
