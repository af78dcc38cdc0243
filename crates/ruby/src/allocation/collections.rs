use image::{Image, Memory};
use linux::Address;

use crate::collector::CollectorLayout;
use crate::layout::page_finder::{words_around, words_around_start};
use crate::object_space::ObjectSpace;
use crate::word::word;

/// The words behind the numbers of minor and major collections among which their sum is.
const MAX_DISTANCE: usize = 26;
/// A thousand collections a second take 34 years to make this many. Larger words are addresses.
const MAX_COUNT: u64 = 1 << 40;
/// How often the numbers must grow if other places have grown, too.
const MIN_GROWTHS: u64 = 6;
/// The looks in succession at which numbers may not agree.
const MAX_MISSES: u32 = 3;
/// An offset of the first heap.
const ANY_HEAP: u64 = 1 << 10;
/// A process has one such place. If there are more candidates than this, none is accepted.
const MAX_PLACES: usize = 1 << 12;

/// The garbage collector's own numbers of collections, in a process that runs (`profile` in gc.c, from 3.4 on
/// gc/default/default.c): those of minor and major ones side by side, and a few words behind them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collections {
    minor: Address,
    all: Address,
    /// The place of the collector's flags; `None` if it is unknown for this release.
    flags: Option<Address>,
}

/// The numbers at one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectionCounts {
    /// All collections, as `GC.count`. It grows when one begins.
    pub all: u64,
    /// Those that looked at old objects, too, as `GC.stat(:major_gc_count)`.
    pub major: u64,
    /// Those that moved objects, as `GC.stat(:compact_count)`: the word behind that number from 3.0 on. In 2.7 it does not grow.
    pub compacting: u64,
}

/// Finds [`Collections`]: two words side by side whose sum is behind them all the time, while it grows. The numbers of pages of a
/// size of slots are such words, too, but grow less often.
#[derive(Debug, Clone)]
pub struct CollectionsSearch {
    start: Address,
    words: usize,
    /// Ascending.
    places: Vec<Numbers>,
    /// True once a place was added that was none at the beginning.
    has_later: bool,
    /// The layout of this release; `None` if it is unknown.
    layout: Option<CollectorLayout>,
}

/// A place that may be that of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    /// The indices of the number of minor collections and of the sum.
    minor: usize,
    all: usize,
    /// The latest sum, and how often it has grown between two looks.
    sum: u64,
    growths: u64,
    /// How often it was no sum in the latest looks.
    misses: u32,
}

impl Collections {
    /// The numbers at these places.
    pub(crate) fn at(minor: Address, all: Address) -> Self {
        Self { minor, all, flags: None }
    }

    /// Reads the numbers; `None` if they cannot be read, or do not agree, as for a moment when a collection begins.
    #[must_use]
    pub fn read(self, memory: &dyn Memory) -> Option<CollectionCounts> {
        let mut numbers = [0; 24];
        memory.read_exact(self.minor, &mut numbers).ok()?;
        let all = memory.read_u64(self.all).ok()?;
        let [minor, major, compacting] = [0, 8, 16].map(|at| word(&numbers, at));
        let counts = CollectionCounts { all, major, compacting };
        (minor.checked_add(major) == Some(all)).then_some(counts)
    }

    /// The place of the number of all collections.
    pub(crate) fn all(self) -> Address {
        self.all
    }

    /// Returns true if the collector marks objects; `None` if the place of its flags is unknown, or they cannot be read.
    #[must_use]
    pub fn is_marking(self, memory: &dyn Memory) -> Option<bool> {
        memory.read_u32(self.flags?).ok().map(CollectorLayout::is_marking)
    }

    /// The place of the flags that [`CollectorLayout::is_marking`] reads.
    pub(crate) fn flags(self) -> Option<Address> {
        self.flags
    }
}

impl CollectionsSearch {
    /// Begins with the words of a captured object space; `None` if there are several.
    #[must_use]
    pub fn begin(image: &Image<'_>, space: &ObjectSpace) -> Option<Self> {
        let head = space.collector_address?;
        let start = words_around_start(image, head)?;
        let words = words_around(image, head);
        // The distance between its fields is the same wherever the first heap is.
        let layout = space.interpreter.collector_layout(Some(ANY_HEAP));
        let (words, places) = (words.len(), places(&words));
        Some(Self { start, words, places, has_later: false, layout })
    }

    /// Looks at the words of the process again. Returns the place if its sum was right each time, and has grown, and no other one
    /// has, or much less often: after a minor and a major collection.
    pub fn look(&mut self, memory: &dyn Memory) -> Option<Collections> {
        let mut bytes = vec![0; self.words * 8];
        memory.read_exact(self.start, &mut bytes).ok()?;
        let at = |index: usize| word(&bytes, index * 8);
        for place in &mut self.places {
            let sum = at(place.minor).checked_add(at(place.minor + 1));
            if sum != Some(at(place.all)) || at(place.all) < place.sum {
                place.misses += 1;
                continue;
            }
            let growths = place.growths + u64::from(at(place.all) > place.sum);
            *place = Numbers { sum: at(place.all), growths, misses: 0, ..*place };
        }
        // For a moment when a collection begins, its numbers do not agree.
        self.places.retain(|it| it.misses <= MAX_MISSES);
        self.add_places(&bytes);
        let mut growths: Vec<Numbers> = self.places.clone();
        // Farther behind is the number at the last major collection (`last_major_gc`), which is the sum until a minor
        // one follows.
        growths.dedup_by(|it, nearer| it.minor == nearer.minor && it.growths <= nearer.growths);
        growths.sort_by_key(|it| it.growths);
        let best = growths.pop().filter(|it| it.growths > 0 && it.misses == 0)?;
        let other = growths.last().map_or(0, |it| it.growths);
        let is_alone = other == 0 && !self.has_later
            || best.growths >= MIN_GROWTHS && best.growths >= 2 * other;
        let place = |index: usize| self.start.offset(index as u64 * 8);
        is_alone.then(|| {
            let minor = place(best.minor);
            let flags = self.layout.and_then(|layout| layout.flags_by_count(memory, minor));
            Collections { minor, all: place(best.all), flags }
        })
    }

    /// Adds the places that were none so far: the number of major collections is 0 in a process that has run for a short time.
    fn add_places(&mut self, bytes: &[u8]) {
        let words: Vec<u64> = (0..self.words).map(|index| word(bytes, index * 8)).collect();
        let place = |it: &Numbers| (it.minor, it.all);
        let is_new =
            |found: &Numbers| self.places.binary_search_by_key(&place(found), place).is_err();
        let new: Vec<Numbers> = places(&words).into_iter().filter(is_new).collect();
        if !new.is_empty() && self.places.len() + new.len() <= MAX_PLACES {
            self.has_later = true;
            self.places.extend(new);
            self.places.sort_unstable_by_key(place);
        }
    }
}

/// The pairs of words whose sum is behind them.
fn places(words: &[u64]) -> Vec<Numbers> {
    let mut found = Vec::new();
    for (minor, pair) in words.windows(2).enumerate() {
        let sum = pair[0].saturating_add(pair[1]);
        if pair.contains(&0) || sum >= MAX_COUNT {
            continue;
        }
        let rest = words.iter().enumerate().take(minor + MAX_DISTANCE).skip(minor + 2);
        let sums = rest.filter(|it| *it.1 == sum).map(|it| it.0);
        found.extend(sums.map(|all| Numbers { minor, all, sum, growths: 0, misses: 0 }));
        if found.len() > MAX_PLACES {
            return Vec::new();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words(Vec<u64>);

    impl Memory for Words {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let bytes: Vec<u8> = self.0.iter().flat_map(|it| it.to_le_bytes()).collect();
            let from = (at.0 - 0x1000) as usize;
            into.copy_from_slice(&bytes[from..from + into.len()]);
            into.len()
        }
    }

    fn search(words: &[u64]) -> CollectionsSearch {
        let (start, words, places) = (Address(0x1000), words.len(), places(words));
        CollectionsSearch { start, words, places, has_later: false, layout: None }
    }

    #[test]
    fn only_numbers_that_grow_and_whose_sum_is_right_are_believed() {
        // 7 + 2 = 9 by chance, and 40 + 3 = 43 are the numbers of collections.
        let mut words = Words(vec![7, 2, 9, 0, 40, 3, 0, 0, 43, 0]);
        let mut search = search(&words.0);
        assert_eq!(search.look(&words), None, "nothing has grown");
        words.0[4] += 1;
        assert_eq!(search.look(&words), None, "a collection begins");
        words.0[8] += 1;
        let found = search.look(&words).unwrap();
        assert_eq!(found.read(&words), Some(CollectionCounts { all: 44, major: 3, compacting: 0 }));
        words.0[5] += 1;
        assert_eq!(found.read(&words), None);
    }

    #[test]
    fn of_two_places_that_both_grow_it_is_the_one_that_grows_much_more_often() {
        let mut words = Words(vec![40, 3, 43, 0, 7, 2, 9, 0]);
        let mut search = search(&words.0);
        (words.0[4], words.0[6]) = (8, 10);
        for growths in 1..=6 {
            (words.0[0], words.0[2]) = (40 + growths, 43 + growths);
            assert_eq!(search.look(&words).is_some(), growths == 6, "{growths}");
        }
        assert_eq!(search.look(&words).unwrap().all(), Address(0x1010));
    }

    /// The number at the last major collection, `last_major_gc`, lies behind the number of all.
    #[test]
    fn of_two_sums_of_the_same_numbers_it_is_the_nearer_one() {
        let mut words = Words(vec![40, 3, 43, 43]);
        let mut search = search(&words.0);
        words.0 = vec![40, 4, 44, 44];
        assert_eq!(search.look(&words).unwrap().all(), Address(0x1010));
    }

    /// "The number of its collections could not be derived": there had been no major collection yet.
    #[test]
    fn the_numbers_are_found_after_the_first_major_collection() {
        let mut words = Words(vec![7, 2, 9, 0, 200, 0, 0, 0, 200, 0]);
        let mut search = search(&words.0);
        for minor in 201..210 {
            (words.0[4], words.0[8]) = (minor, minor);
            assert_eq!(search.look(&words), None);
        }
        words.0[5] = 1;
        for minor in 210..217 {
            (words.0[4], words.0[8]) = (minor, minor + 1);
            assert_eq!(search.look(&words).is_some(), minor == 216, "{minor}");
        }
        let found = search.look(&words).unwrap();
        let counts = CollectionCounts { all: 217, major: 1, compacting: 0 };
        assert_eq!(found.read(&words), Some(counts));
    }

    #[test]
    fn hostile_words_are_no_places() {
        assert_eq!(places(&[u64::MAX, u64::MAX, u64::MAX]), []);
        assert_eq!(places(&[1 << 50, 1, (1 << 50) + 1]), []);
        assert_eq!(places(&[0, 5, 5, 5]), []);
        assert_eq!(places(&vec![1; 1 << 12]), []);
        // A program can write what it likes into its memory.
        let many: Vec<u64> = [1, 1, 2, 2].repeat(1 << 12);
        assert_eq!(places(&many), []);
    }
}
