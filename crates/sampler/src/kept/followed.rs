//! Whether the object in a slot is still the same one.
//!
//! Slots are used again within milliseconds, mostly by objects of the same class, so only ages tell. A collection marks what is
//! reachable, which makes it older, and then frees the rest. An object that takes a freed slot has the age 0 until the next
//! collection, which may make it old at once (if an old object refers to it). So each object must be looked at after each collection that can
//! have freed it, before the next one begins. Minor collections do not free old objects.
//!
//! A major collection marks while the program runs, and frees what became garbage meanwhile, also objects that are younger than its
//! beginning. Whatever takes their slots then ages with the next collection. So an object that was seen while it marked must be seen to
//! age before the next collection; if the state of the collector is not known, an object that was seen after a major collection, too.

use std::collections::VecDeque;

use linux::Address;
use ruby::{CollectionCounts, OLD_AGE};

/// Further numbers of major collections are merged with the latest.
const MAX_MAJORS: usize = 256;

/// The contents of a slot at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The type of the object; 0 for none.
    pub(crate) kind: u8,
    pub(crate) class: u64,
    pub(crate) age: u64,
    /// The words behind the class.
    pub(crate) words: [u64; 3],
    /// True if minor collections keep it. A major collection begins by clearing that for all objects.
    pub(crate) is_kept: bool,
    /// True if it has no write barrier. It has no age until minor collections keep it, and while a major one has not reached it.
    pub(crate) is_unprotected: bool,
}

#[cfg(test)]
impl Contents {
    pub(crate) const NEW_STRING: Self = Self {
        kind: 5,
        class: 0x7000,
        age: 0,
        words: [1, 2, 3],
        is_kept: false,
        is_unprotected: false,
    };
}

/// A new object that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Followed {
    pub(crate) slot: Address,
    class: u64,
    kind: u8,
    /// Its age and words when it was last seen to be the same beyond doubt.
    age: u64,
    words: [u64; 3],
    /// The number of the last collection that it has survived, and of the latest one at a look.
    survived: u64,
    looked: u64,
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the same object, or the latest collection has not decided yet.
    Same,
    /// It is gone: the slot is free, or another object has it.
    Gone,
    /// A collection that can have freed it was not looked at.
    Ambiguous,
}

/// The number of the last collection that an object has survived which was seen when it was new, after `collections` of them: the one that
/// marks then can free it.
pub(crate) fn survived_when_new(collections: u64, is_marking: bool) -> u64 {
    collections.saturating_sub(is_marking.into())
}

impl Followed {
    /// The object in a slot that a tick saw as a new one, which had survived so many collections. There have been `now` of them; `None` if
    /// it was not new then, or another one may have the slot by now.
    pub(crate) fn begin(
        slot: Address,
        survived: u64,
        now: u64,
        contents: Contents,
    ) -> Option<Self> {
        let Contents { kind, class, age, words, .. } = contents;
        let is_new =
            kind != 0 && age == 0 && (survived..=survived.saturating_add(1)).contains(&now);
        is_new.then_some(Self { slot, class, kind, age, words, survived, looked: now })
    }

    /// Looks at the slot after `now` collections. `major` is the number of the first major one that it is not known to have
    /// survived, or a lower number if that is not certain.
    pub(crate) fn look(&mut self, now: u64, major: Option<u64>, contents: Contents) -> Verdict {
        let is_other = (contents.kind, contents.class) != (self.kind, self.class);
        let is_unreached =
            self.is_old() && contents.is_unprotected && major.is_some_and(|major| major >= now);
        let is_younger = contents.age < self.age && !is_unreached;
        if is_other || is_younger || now < self.survived {
            return Verdict::Gone;
        }
        let has_survived = if self.is_old() {
            match major {
                None => true,
                // While that one is the latest, an object that has taken the slot is not old.
                Some(major) if major >= now => contents.is_kept,
                Some(_) if contents.words == self.words => contents.is_kept,
                Some(_) => return Verdict::Ambiguous,
            }
        } else {
            match now - self.survived {
                0 => true,
                // An object that has taken the slot since has not aged.
                1 => contents.age > self.age,
                // The collection before had not marked it when it was looked at.
                _ if self.looked > self.survived => return Verdict::Gone,
                _ => return Verdict::Ambiguous,
            }
        };
        self.looked = now;
        if has_survived {
            (self.age, self.words, self.survived) = (contents.age, contents.words, now);
        }
        Verdict::Same
    }

    /// An old object has survived `now` collections if there was no major one meanwhile.
    pub(crate) fn pass(&mut self, now: u64) {
        if self.is_old() {
            self.survived = self.survived.max(now);
        }
    }

    /// Returns true if it has become old.
    pub(crate) fn is_old(&self) -> bool {
        self.age >= OLD_AGE
    }

    /// Returns true if the collection of the last look had not made it older, or is a major one that had not kept it.
    pub(crate) fn is_undecided(&self) -> bool {
        self.looked > self.survived
    }

    /// The number of the last collection that it has survived.
    pub(crate) fn survived(&self) -> u64 {
        self.survived
    }
}

/// The numbers of the latest major collections, as far as they are known from looks at their count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Majors {
    before: Option<CollectionCounts>,
    /// The lowest and the highest number that each group can have.
    bounds: VecDeque<(u64, u64)>,
    /// Those of the latest group, which are never forgotten.
    latest: (u64, u64),
}

impl Majors {
    /// Takes the counts of a look.
    pub(crate) fn add(&mut self, now: CollectionCounts) {
        let before = self.before.replace(now);
        if before.is_none() {
            // It may be a major one.
            self.latest = (now.all, now.all);
        }
        if let Some(before) = before
            && now.major > before.major
        {
            let bounds = (before.all.saturating_add(1), now.all);
            self.latest = bounds;
            let is_full = self.bounds.len() >= MAX_MAJORS;
            match self.bounds.back_mut().filter(|_| is_full) {
                Some(last) => last.1 = bounds.1,
                None => self.bounds.push_back(bounds),
            }
        }
    }

    /// The lowest number that the first major collection after `survived` can have.
    pub(crate) fn first_after(&self, survived: u64) -> Option<u64> {
        let later = self.bounds.iter().filter(|it| it.1 > survived);
        later.map(|it| it.0.max(survived.saturating_add(1))).min()
    }

    /// Returns true if the collection with this number may be the latest major one, or one of its group.
    pub(crate) fn may_be_latest(&self, number: u64) -> bool {
        (self.latest.0..=self.latest.1).contains(&number)
    }

    /// Forgets those up to this collection: it is known of all old objects that they have survived them.
    pub(crate) fn forget_until(&mut self, survived: u64) {
        self.bounds.retain(|it| it.1 > survived);
    }

    /// Returns true if old objects must be looked at now.
    pub(crate) fn any(&self) -> bool {
        !self.bounds.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRING: Contents = Contents::NEW_STRING;

    fn aged(age: u64) -> Contents {
        Contents { age, is_kept: age == OLD_AGE, ..STRING }
    }

    fn young() -> Followed {
        Followed::begin(Address(8), 10, 10, STRING).unwrap()
    }

    fn old() -> Followed {
        let mut followed = young();
        assert_eq!(followed.look(11, None, aged(3)), Verdict::Same);
        followed
    }

    #[test]
    fn a_second_look_at_a_collection_decides() {
        let mut followed = young();
        assert!(!followed.is_undecided());
        assert_eq!(followed.look(11, None, aged(0)), Verdict::Same);
        assert!(followed.is_undecided(), "the collection may be marking still");
        assert_eq!(followed.look(11, None, aged(1)), Verdict::Same);
        assert!(!followed.is_undecided());
        assert_eq!(followed.look(12, None, aged(2)), Verdict::Same);
    }

    #[test]
    fn an_object_that_ages_with_each_collection_is_the_same() {
        let mut followed = young();
        for (now, age) in [(10, 0), (11, 0), (11, 1), (12, 1), (12, 2), (13, 3)] {
            assert_eq!(followed.look(now, None, aged(age)), Verdict::Same, "{now} {age}");
        }
        assert!(followed.is_old());
        for now in 14..40 {
            assert_eq!(followed.look(now, None, aged(3)), Verdict::Same);
        }
        assert_eq!(followed.survived(), 39);
    }

    /// Objects to which old ones refer become old in one collection, so an age of 3 did not prove that an object was there three
    /// collections ago.
    #[test]
    fn another_object_in_the_slot_is_never_taken_for_it() {
        // Every collection that can have freed it, every age that the next object can have, and every pattern of looks; also of an
        // object that was made while the first of these collections marked.
        for looks in 0_u32..1 << 9 {
            for made in [9, 10] {
                for freed in made + 1..19_u64 {
                    for steps in [[1, 2, 3], [1, 3, 3], [3, 3, 3]] {
                        let mut followed = Followed::begin(Address(8), made, 10, STRING).unwrap();
                        for now in (10..19_u64).filter(|now| looks >> (now - 10) & 1 == 1) {
                            let is_other = now >= freed;
                            let marks = if is_other { now - freed } else { now - made };
                            let age = match marks {
                                0 => 0,
                                marks => steps[(marks as usize - 1).min(2)],
                            };
                            let contents =
                                Contents { words: [freed * u64::from(is_other); 3], ..aged(age) };
                            // Only major collections free old objects.
                            let major =
                                Some(freed).filter(|&it| it > followed.survived() && it <= now);
                            if followed.look(now, major, contents) != Verdict::Same {
                                break;
                            }
                            let is_sure = followed.survived() == now && now >= freed;
                            assert!(!is_sure, "{looks:b} {made} {freed} {now}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_object_of_another_class_or_a_free_slot_is_another() {
        for other in [Contents { kind: 0, ..STRING }, Contents { class: 1, ..STRING }] {
            assert_eq!(young().look(10, None, other), Verdict::Gone);
        }
        assert_eq!(young().look(9, None, STRING), Verdict::Gone, "numbers do not fall");
    }

    #[test]
    fn an_object_that_was_not_new_at_the_tick_is_not_followed() {
        let begin = |now, contents| Followed::begin(Address(8), 10, now, contents).is_some();
        assert!(begin(10, aged(0)) && begin(11, aged(0)));
        // It had survived collections before the tick, or may have.
        assert!(!begin(10, aged(1)) && !begin(11, aged(1)));
        // Another one may have the slot.
        assert!(!begin(12, aged(0)) && !begin(9, aged(0)));
        assert!(!begin(10, Contents { kind: 0, ..STRING }));
        // Numbers of a hostile process.
        assert!(Followed::begin(Address(8), u64::MAX, u64::MAX, STRING).is_some());
        assert!(Followed::begin(Address(8), u64::MAX, 0, STRING).is_none());
    }

    #[test]
    fn young_objects_are_ambiguous_if_a_collection_was_missed() {
        assert_eq!(young().look(12, None, aged(2)), Verdict::Ambiguous);
        // The collection had not reached it yet at the last look.
        let mut followed = young();
        assert_eq!(followed.look(11, None, aged(0)), Verdict::Same);
        assert_eq!((followed.look(12, None, aged(1)), followed.survived()), (Verdict::Gone, 10));
    }

    #[test]
    fn old_objects_are_seen_to_survive_each_major_collection() {
        assert_eq!(old().look(40, None, aged(3)), Verdict::Same);
        // It runs, and has not reached the object.
        let mut followed = old();
        let unmarked = Contents { is_kept: false, ..aged(3) };
        assert_eq!(
            (followed.look(12, Some(12), unmarked), followed.survived()),
            (Verdict::Same, 11)
        );
        assert_eq!(
            (followed.look(12, Some(12), aged(3)), followed.survived()),
            (Verdict::Same, 12)
        );
        // Nobody looked before the next one: then only the contents tell.
        let other = Contents { words: [7; 3], ..aged(3) };
        assert_eq!(old().look(13, Some(12), aged(3)), Verdict::Same);
        assert_eq!(old().look(13, Some(12), other), Verdict::Ambiguous);
        assert_eq!(old().look(13, Some(12), aged(2)), Verdict::Gone);
    }

    /// "147 of 151 new objects are gone": each MatchData of Ruby 3.1 was still there.
    #[test]
    fn objects_without_a_write_barrier_are_old_when_minor_collections_keep_them() {
        let unprotected = |is_kept| Contents {
            age: if is_kept { OLD_AGE } else { 0 },
            is_kept,
            is_unprotected: true,
            ..STRING
        };
        let new = || Followed::begin(Address(8), 10, 10, unprotected(false)).unwrap();
        let mut followed = new();
        assert_eq!(followed.look(11, None, unprotected(true)), Verdict::Same);
        assert!(followed.is_old() && followed.survived() == 11);
        assert_eq!(followed.look(20, None, unprotected(true)), Verdict::Same);
        // A major collection marks, and has not reached it. Then it has.
        assert_eq!(followed.look(21, Some(21), unprotected(false)), Verdict::Same);
        assert_eq!(followed.survived(), 20);
        let mut lost = followed;
        assert_eq!(followed.look(21, Some(21), unprotected(true)), Verdict::Same);
        assert_eq!(followed.survived(), 21);
        // It was freed.
        assert_eq!(lost.look(22, Some(21), unprotected(false)), Verdict::Gone);
        assert_eq!(followed.look(22, None, unprotected(false)), Verdict::Gone);
        // No old object refers to it, or another one has its slot.
        let mut followed = new();
        assert_eq!(followed.look(11, None, unprotected(false)), Verdict::Same);
        assert_eq!(followed.look(12, None, unprotected(true)), Verdict::Gone);
    }

    #[test]
    fn major_collections_are_known_within_bounds() {
        let counts = |all, major| CollectionCounts { all, major, compacting: 0 };
        let mut majors = Majors::default();
        for (all, major) in [(10, 2), (11, 2), (12, 3), (15, 3), (20, 4)] {
            majors.add(counts(all, major));
        }
        assert_eq!(majors.first_after(9), Some(12));
        assert_eq!(majors.first_after(12), Some(16));
        assert_eq!(majors.first_after(17), Some(18));
        assert_eq!(majors.first_after(20), None);
        majors.forget_until(12);
        assert_eq!(majors.first_after(9), Some(16));
    }

    /// Arrays were "made in Shop#deep", which had dropped others in their slots while a major collection marked: that one freed them, and
    /// the next one made the kept arrays as old as they would be. Then nothing was followed that was made while one marks, which was a
    /// third of all in a program with a thread for each request.
    #[test]
    fn an_object_of_the_time_of_a_major_collection_may_be_freed_by_it() {
        let made_while_10_marks =
            || Followed::begin(Address(8), survived_when_new(10, true), 10, STRING).unwrap();
        let mut followed = made_while_10_marks();
        assert_eq!(followed.look(11, None, aged(1)), Verdict::Gone, "this is another object");
        let mut followed = made_while_10_marks();
        assert_eq!(followed.look(10, None, aged(1)), Verdict::Same);
        assert_eq!(followed.look(11, None, aged(2)), Verdict::Same);
        assert_eq!(followed.survived(), 11);
        let counts = |all, major| CollectionCounts { all, major, compacting: 0 };
        let mut majors = Majors::default();
        let mut may_be = |all, major| {
            majors.add(counts(all, major));
            majors.forget_until(all);
            [9, 10, 11, 12, 13].map(|number| majors.may_be_latest(number))
        };
        assert_eq!(may_be(9, 3), [true, false, false, false, false], "the first one is not known");
        assert_eq!(may_be(10, 4), [false, true, false, false, false]);
        assert_eq!(may_be(11, 4), [false, true, false, false, false]);
        assert_eq!(may_be(13, 5), [false, false, false, true, true]);
    }
}
