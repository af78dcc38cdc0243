use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use capture::{Address, Image, Memory, PAGE_SIZE, ProcessState, Source};

/// More pages than these are not kept: 16 MiB.
const MOST_PAGES: usize = 4096;

type Page = [u8; PAGE_SIZE as usize];

/// The memory of an image, by whole pages that are kept: for readers that follow many pointers to
/// small structures, which lie near each other.
struct PageCache<'a> {
    image: &'a Image<'a>,
    pages: Mutex<HashMap<u64, Option<Box<Page>>>>,
}

/// The same image, read through a cache of pages. Its page states are not asked again: the image
/// itself heeds them.
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
            if pages.len() >= MOST_PAGES && !pages.contains_key(&base.0) {
                pages.clear();
            }
            let page = pages.entry(base.0).or_insert_with(|| {
                let mut page = Box::new([0; PAGE_SIZE as usize]);
                self.image.read_exact(base, &mut page[..]).is_ok().then_some(page)
            });
            match page {
                Some(page) => into[done..done + bytes].copy_from_slice(&page[within..][..bytes]),
                None => break,
            }
            done += bytes;
        }
        done
    }
}

impl Source for PageCache<'_> {}
