//! The central list of each class (`CentralFreeList`, src/central_freelist.h): its spans, and lists of objects on their way to or from
//! caches of threads.

use std::collections::HashMap;
use std::ops::Range;

use linux::Address;

use super::objects::Objects;
use super::span::{SPAN_BYTES, Span, Use};
use crate::BlockState;
use crate::module_data::ModuleData;
use crate::structures::Structures;

/// The words of a span's structure, which heads a list of spans, and those of its pointers to the next and the last span.
const SPAN_WORDS: usize = SPAN_BYTES as usize / 8;
const NEXT: usize = 2;
const PREVIOUS: usize = 3;
/// The lists of objects that a class keeps at most (`kMaxNumTransferEntries`).
const MAX_ENTRIES: usize = 64;
/// The words of the structure behind its lock, and the parts of it: the number of the class, the heads of two lists of spans, the number
/// of these spans and of their free objects, and lists of objects with three counts.
const WORDS: usize = ENTRIES + 2 * MAX_ENTRIES + 2;
const EMPTY: usize = 1;
const NONEMPTY: usize = EMPTY + SPAN_WORDS;
const SPANS: usize = NONEMPTY + SPAN_WORDS;
const FREE: usize = SPANS + 1;
const ENTRIES: usize = FREE + 1;
const USED: usize = ENTRIES + 2 * MAX_ENTRIES;

/// The lists that were found.
#[derive(Debug, Default)]
pub(super) struct Central {
    /// The memory of the lists of all classes. Words behind the lists in use are left over from earlier lists.
    pub(super) ranges: Vec<Range<Address>>,
    /// The classes with spans whose central list does not count them, or was not found.
    pub(super) disagreeing: usize,
    /// Lists of objects that were being changed.
    pub(super) changing: u64,
}

impl Central {
    /// Compares the counts of all classes that have spans, and takes the objects that are on their way.
    pub(super) fn read(
        structures: &mut Structures<'_>,
        data: &ModuleData,
        spans: &[Span],
        objects: &mut Objects<'_>,
    ) -> Self {
        let by_address: HashMap<Address, Use> =
            spans.iter().map(|span| (span.at, span.usage)).collect();
        let mut central = Self::default();
        let mut found = HashMap::new();
        for (at, words) in data.positions(WORDS as u64) {
            if let Some((class, list)) = is_list(at, words, &by_address) {
                found.entry(class).or_insert_with(Vec::new).push(list);
                central.ranges.push(at..at.offset(WORDS as u64 * 8));
            }
        }
        let classes: Vec<u8> = objects.classes.iter().map(|(class, _)| class).collect();
        for class in classes {
            let (count, free) = objects.count(class);
            if count == 0 {
                continue;
            }
            let lists = found.get(&class).map_or(&[][..], Vec::as_slice);
            let own = lists.iter().find(|words| words[SPANS] == count && words[FREE] == free);
            central.disagreeing += usize::from(own.is_none());
            // While it is being changed, its counts are not those of its spans.
            let Some(words) = own.or(lists.first()) else { continue };
            central.take(structures, words, class, objects);
        }
        central
    }

    fn take(
        &mut self,
        structures: &mut Structures<'_>,
        words: &[u64],
        class: u8,
        objects: &mut Objects<'_>,
    ) {
        // All of a class have the same length.
        let mut length = None;
        let used = words[USED] as u32 as usize;
        for entry in words[ENTRIES..].chunks(2).take(used) {
            let first = Address(entry[0]);
            let most = length.unwrap_or(u64::MAX);
            let list = objects.take(structures, first, class, BlockState::Tcache, most);
            let is_whole = list.is_sane
                && list.last.0 == entry[1]
                && *length.get_or_insert(list.objects) == list.objects;
            self.changing += u64::from(!is_whole);
        }
    }
}

/// The class and the words of the central list at `at`; `None` if there is none.
fn is_list<'w>(
    at: Address,
    words: &'w [u64],
    spans: &HashMap<Address, Use>,
) -> Option<(u8, &'w [u64])> {
    let class = u8::try_from(words[0]).ok().filter(|class| *class > 0)?;
    // A list of no spans leads to its own head.
    let leads = |head: usize| {
        let own = at.offset(head as u64 * 8);
        let ends = [words[head + NEXT], words[head + PREVIOUS]].map(Address);
        ends == [own, own]
            || ends.iter().all(|at| spans.get(at).is_some_and(|it| *it == Use::Objects(class)))
    };
    let [used, size] = [words[USED] as u32, (words[USED] >> 32) as u32];
    let most = words[USED + 1] as u32;
    let is_list = leads(EMPTY)
        && leads(NONEMPTY)
        && used <= size
        && size <= most
        && most as usize <= MAX_ENTRIES;
    is_list.then(|| (class, &words[..WORDS]))
}
