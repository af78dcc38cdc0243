//! The caches of threads (`ThreadCache`, src/thread_cache.h): a list of free objects for each class, and a list of all caches.

use std::collections::BTreeSet;

use image::elf::Module;
use image::{Image, Memory};
use linux::Address;

use super::classes::Classes;
use super::objects::Objects;
use crate::BlockState;
use crate::module_data::ModuleData;
use crate::structures::Structures;

/// The bytes of the list of a class: its first object, its length, three limits, and the size of objects.
const LIST_BYTES: u64 = 32;
const LENGTH: u64 = 8;
const SIZE: u64 = 24;
/// The bytes from the lists to the pointers to the next and to the last cache, at most.
const LISTS_BYTES: u64 = 128 * LIST_BYTES;
const MAX_BYTES: u64 = LISTS_BYTES + 512;

/// The caches that were found.
#[derive(Debug, Default)]
pub(super) struct ThreadCaches {
    pub(super) caches: Vec<Address>,
    /// Lists that were being changed.
    pub(super) changing: u64,
    /// The bytes in caches of threads that a forked process does not have.
    pub(super) abandoned_bytes: u64,
}

impl ThreadCaches {
    /// Finds the caches of at most `most` threads, and takes their objects.
    pub(super) fn read(
        structures: &mut Structures<'_>,
        module: &Module,
        data: &ModuleData,
        objects: &mut Objects<'_>,
        most: usize,
    ) -> Self {
        let mut all = Self::default();
        let mut seen = BTreeSet::new();
        for (_, words) in data.positions(1) {
            let at = Address(words[0]);
            if at.0 != 0 && seen.insert(at) && is_cache(structures, &objects.classes, at) {
                for link in (LISTS_BYTES..MAX_BYTES).step_by(8) {
                    let caches = list(structures, &objects.classes, at, link, most);
                    if caches.len() > all.caches.len() {
                        all.caches = caches;
                    }
                }
            }
        }
        let classes: Vec<(u8, u64)> = objects.classes.iter().collect();
        let living = living(structures.image, module, &all.caches);
        for cache in &all.caches {
            let is_abandoned = !living.is_empty() && !living.contains(cache);
            for &(class, bytes) in &classes {
                let at = cache.offset(u64::from(class) * LIST_BYTES);
                let first = structures.pointer(at).unwrap_or(Address(0));
                let length = structures.half(at.offset(LENGTH)).map_or(0, u64::from);
                let list = objects.take(structures, first, class, BlockState::Tcache, u64::MAX);
                all.changing += u64::from(!list.is_sane || list.objects != length);
                all.abandoned_bytes += if is_abandoned { list.objects * bytes } else { 0 };
            }
        }
        all
    }
}

/// The caches that thread-local variables of threads lead to. Those of threads that have ended are not in the list, but fork(2) leaves those
/// of threads that only the parent has.
fn living(image: &Image<'_>, module: &Module, caches: &[Address]) -> BTreeSet<Address> {
    let caches: BTreeSet<Address> = caches.iter().copied().collect();
    let offsets = module.tls_offsets(image).unwrap_or_default();
    let variables = offsets.iter().flat_map(|offset| {
        let threads = image.state.threads.iter();
        threads.map(|it| Address(it.thread_pointer.0.wrapping_add_signed(*offset)))
    });
    let values = variables.filter_map(|at| image.read_address(at).ok());
    values.filter(|at| caches.contains(at)).collect()
}

/// Returns true if there is a cache at `at`: each list has the size of its objects.
fn is_cache(structures: &mut Structures<'_>, classes: &Classes, at: Address) -> bool {
    structures.is_structure(at, 8)
        && classes.iter().all(|(class, bytes)| {
            let size = at.offset(u64::from(class) * LIST_BYTES + SIZE);
            structures.half(size).is_ok_and(|size| u64::from(size) == bytes)
        })
}

/// The caches of a list that begins with the one at `first`, whose pointers to the next and to the last one are at `link`. Empty if it
/// is no list.
fn list(
    structures: &mut Structures<'_>,
    classes: &Classes,
    first: Address,
    link: u64,
    most: usize,
) -> Vec<Address> {
    let mut caches = Vec::new();
    let (mut at, mut last) = (first, Address(0));
    while at.0 != 0 {
        let is_next = caches.len() < most
            && is_cache(structures, classes, at)
            && structures.pointer(at.offset(link + 8)).is_ok_and(|it| it == last);
        let next = structures.pointer(at.offset(link)).ok().filter(|_| is_next);
        let Some(next) = next else { return Vec::new() };
        caches.push(at);
        (last, at) = (at, next);
    }
    caches
}
