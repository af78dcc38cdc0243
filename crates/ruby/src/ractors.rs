//! The Ractors of a process, and the object space that each has (from 4.1 on).
//!
//! A Ractor's structure (`rb_ractor_t` in ractor_core.h) refers to the beginning of its object space, at the same place in all of them. An
//! object space is known by the list of pages that was found in it, one of its several lists. The place that leads from most Ractors to
//! the nearest list behind it is taken.

use std::collections::BTreeSet;

use image::{Image, Memory};
use linux::Address;

use crate::areas::page_pool::MAX_LISTS_BYTES;
use crate::backtrace::{object_in_variables, structure};
use crate::layout::heap_layout::SpaceMembers;
use crate::model::data_type::DataType;
use crate::model::ractor::Ractor;
use crate::object_space::ObjectSpace;
use crate::word::words;

/// The part of a Ractor's structure that is read.
const RACTOR_BYTES: usize = 4 << 10;
/// The Ractors that are looked at.
const MAX_RACTORS: usize = 1 << 12;
/// A structure begins with its object and its number (`struct rb_ractor_pub`). The main Ractor has the first number.
const NUMBER_WORD: usize = 1;
const MAIN: u32 = 1;

/// The structure of a Ractor.
pub(crate) struct Structure {
    /// The slot of its object.
    pub(crate) slot: u32,
    object: Address,
    /// Its words, and others behind it.
    pub(crate) words: Vec<u64>,
}

/// The object space of each Ractor that has one, by the Ractor's index.
type Pairs = Vec<(usize, u32)>;

/// The Ractors that have one of several object spaces; empty if not even the main one's was recognized.
pub(crate) fn find(image: &Image<'_>, space: &ObjectSpace, spaces: &[SpaceMembers]) -> Vec<Ractor> {
    if spaces.len() < 2 {
        return Vec::new();
    }
    let structures = structures(image, space);
    let heads: Vec<Address> = spaces.iter().map(|it| it.list_head).collect();
    let pairs = pairs(&structures, &heads);
    let names = names(image, space, &structures, &pairs);
    let numbers = pairs.iter().map(|(ractor, _)| structures[*ractor].number());
    let numbers: Option<Vec<u32>> = numbers.collect();
    let numbers = numbers.filter(|it| are_numbers(it, &pairs));
    let ractors = pairs.iter().zip(names).enumerate();
    ractors
        .map(|(index, (&(_, space), (name, place)))| {
            let number = numbers.as_ref().map(|it| it[index]);
            Ractor { number, name, place, space }
        })
        .collect()
}

impl Structure {
    fn number(&self) -> Option<u32> {
        let is_known = self.words.first() == Some(&self.object.0);
        self.words.get(NUMBER_WORD).map(|it| *it as u32).filter(|_| is_known)
    }
}

/// The structures of all Ractors.
pub(crate) fn structures(image: &Image<'_>, space: &ObjectSpace) -> Vec<Structure> {
    let main = object_in_variables(image, space, DataType::is_ractor);
    let slots = space.data_objects.iter().map(|it| it.0);
    let ractors = slots.filter(|&slot| space.data_type_of(slot).is_some_and(DataType::is_ractor));
    let structure = |slot: u32| {
        let object = space.slot_address(slot as usize)?;
        let at = match main {
            Some((of_main, at)) if of_main == slot => at,
            _ => structure(image, object)?,
        };
        let mut bytes = vec![0; RACTOR_BYTES];
        let read = image.read(at, &mut bytes);
        Some(Structure { slot, object, words: words(&bytes[..read / 8 * 8]).collect() })
    };
    ractors.take(MAX_RACTORS).filter_map(structure).collect()
}

/// The pairs by the place that has most. Each space has one Ractor at most, and the first one has the main Ractor. Nothing if another place
/// has as many, but others.
fn pairs(structures: &[Structure], heads: &[Address]) -> Pairs {
    let mut sorted: Vec<(Address, u32)> = heads.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    let space_of = |word: u64| {
        let (head, space) = sorted.get(sorted.partition_point(|it| it.0.0 < word))?;
        (word.is_multiple_of(8) && head.0 - word < MAX_LISTS_BYTES).then_some(*space)
    };
    let at = |offset: usize| -> Pairs {
        let words = structures.iter().map(|it| it.words.get(offset));
        let spaces = words.enumerate().map(|(ractor, word)| Some((ractor, space_of(*word?)?)));
        spaces.flatten().collect()
    };
    let is_possible = |pairs: &Pairs| {
        let spaces: BTreeSet<u32> = pairs.iter().map(|it| it.1).collect();
        pairs.len() > 1 && spaces.len() == pairs.len() && spaces.contains(&0)
    };
    let possible: Vec<Pairs> = (0..RACTOR_BYTES / 8).map(at).filter(is_possible).collect();
    let most = possible.iter().map(Vec::len).max().unwrap_or_default();
    let mut best: Vec<Pairs> = possible.into_iter().filter(|it| it.len() == most).collect();
    best.sort_unstable();
    best.dedup();
    match <[Pairs; 1]>::try_from(best) {
        Ok([pairs]) => pairs,
        Err(_) => Vec::new(),
    }
}

/// Returns true if each Ractor has another number, and the main one the first.
fn are_numbers(numbers: &[u32], pairs: &Pairs) -> bool {
    let different: BTreeSet<&u32> = numbers.iter().collect();
    let is_as_main = |(number, pair): (&u32, &(usize, u32))| (*number == MAIN) == (pair.1 == 0);
    different.len() == numbers.len() && numbers.iter().zip(pairs).all(is_as_main)
}

/// The name and the place of each of these Ractors: two words of which the second refers to a file and line for all but the main one.
fn names(
    image: &Image<'_>,
    space: &ObjectSpace,
    structures: &[Structure],
    pairs: &Pairs,
) -> Vec<(Option<String>, Option<String>)> {
    let text = |ractor: usize, offset: usize| {
        let word = structures[ractor].words.get(offset)?;
        space.text(image, space.slot_at(Address(*word))?)
    };
    let others: Vec<usize> = pairs.iter().filter(|it| it.1 != 0).map(|it| it.0).collect();
    let is_place = |&offset: &usize| {
        let place = |&ractor: &usize| text(ractor, offset).is_some_and(|it| ends_with_line(&it));
        !others.is_empty() && others.iter().all(place)
    };
    let place_at = (1..RACTOR_BYTES / 8).find(is_place);
    let of = |&(ractor, of_main): &(usize, u32)| {
        let at = place_at.filter(|_| of_main != 0);
        (at.and_then(|at| text(ractor, at - 1)), at.and_then(|at| text(ractor, at)))
    };
    pairs.iter().map(of).collect()
}

fn ends_with_line(text: &str) -> bool {
    let is_line = |line: &str| !line.is_empty() && line.bytes().all(|it| it.is_ascii_digit());
    text.rsplit_once(':').is_some_and(|(file, line)| !file.is_empty() && is_line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Ractor with the number, a pointer to its object space in the fourth word, and others.
    fn ractor(number: u64, space: u64, other: u64) -> Structure {
        let object = Address(0x10_0000 + number * 0x100);
        Structure {
            slot: number as u32,
            object,
            words: vec![object.0, number, other, space, other],
        }
    }

    /// Found lists of the second, the first and the last size of slots.
    const HEADS: [Address; 3] = [Address(0x5_0178), Address(0x7_00c8), Address(0x6_04e8)];

    #[test]
    fn each_ractor_has_the_space_that_it_refers_to_as_the_others_do() {
        let ractors =
            [ractor(1, 0x5_0000, 0x5_0008), ractor(3, 0x6_0000, 0), ractor(4, 0x7_0000, 1)];
        assert_eq!(pairs(&ractors, &HEADS), [(0, 0), (1, 2), (2, 1)]);
        // A Ractor that has ended has none.
        let ractors = [ractor(1, 0x5_0000, 0), ractor(3, 0, 0), ractor(4, 0x7_0000, 1)];
        assert_eq!(pairs(&ractors, &HEADS), [(0, 0), (2, 1)]);
    }

    #[test]
    fn words_that_do_not_agree_connect_nothing() {
        let far = [ractor(1, 0x5_0000, 0), ractor(3, 0x5_f000, 0), ractor(4, 0x6_f000, 0)];
        assert_eq!(pairs(&far, &HEADS), []);
        let crossed = [ractor(1, 0x5_0000, 0x5_0000), ractor(3, 0x6_0000, 0x7_0000)];
        assert_eq!(pairs(&crossed, &HEADS), []);
        let without_main = [ractor(1, 0, 0), ractor(3, 0x6_0000, 0), ractor(4, 0x7_0000, 0)];
        assert_eq!(pairs(&without_main, &HEADS), []);
        let shared = [ractor(1, 0x5_0000, 0), ractor(3, 0x6_0000, 0), ractor(4, 0x6_0000, 0)];
        assert_eq!(pairs(&shared, &HEADS), []);
    }

    #[test]
    fn numbers_are_believed_if_the_main_ractor_has_the_first() {
        let pairs = vec![(0, 0), (1, 2), (2, 1)];
        assert!(are_numbers(&[1, 3, 4], &pairs));
        assert!(!are_numbers(&[3, 1, 4], &pairs));
        assert!(!are_numbers(&[1, 3, 3], &pairs));
    }

    #[test]
    fn a_place_has_a_file_and_a_line() {
        assert!(ends_with_line("/app/jobs.rb:12"));
        for text in ["worker-1", "worker:", ":12", "12:30pm"] {
            assert!(!ends_with_line(text), "{text}");
        }
    }
}
