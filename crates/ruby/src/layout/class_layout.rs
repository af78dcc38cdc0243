//! Where classes have their superclass, and which flag singleton classes have, derived from classes
//! that every Ruby has.

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::AddressClassifier;
use crate::interpreter::Landmark;
use crate::layout::object::Object;
use crate::model::slot::{Slot, SlotType};
use crate::word::words;

/// More ancestors than a class has.
pub(crate) const MAX_ANCESTORS: usize = 512;
/// The first bytes of a class, among which the pointer to its superclass is searched for.
const SEARCHED_BYTES: u64 = 128;
/// The size of slots that have the whole structure of a class (from 3.3 on). Of larger ones it is not known which words are in use.
pub(crate) const CLASS_BYTES: usize = 160;
/// The words of the smallest structure of a class that is in its slot.
const MIN_WORDS: usize = 18;
/// With fewer classes it is not known which words classes use.
const MIN_LANDMARKS: usize = 8;
/// `FL_SINGLETON` is FL_USER0 up to 3.3, FL_USER1 from 3.4 on (include/ruby/internal/fl_type.h).
const SINGLETON_FLAGS: [u64; 2] = [1 << 12, 1 << 13];
/// The words of a moved object that may have its new address (`struct RMoved` in gc.c): the second
/// in 2.7, whose third word belongs to a list; the third since, whose second word is no address.
pub(crate) const DESTINATIONS: [usize; 2] = [1, 2];

/// The layout of classes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassLayout {
    /// The word of a class that points to its superclass.
    superclass: Option<usize>,
    /// The flag of singleton classes; 0 if it is unknown.
    singleton: u64,
    /// The words of a class that may refer to objects.
    pub(crate) words: usize,
}

/// A class, or an entry in the list of a class's ancestors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ancestor {
    /// Its slot.
    pub(crate) slot: u32,
    /// True if `Object#class` may return it: it is neither a singleton class nor an included module.
    pub(crate) is_real: bool,
    /// The slot of its superclass, or of its new place if it was moved; [`Slot::NO_CLASS`] if it has no superclass.
    pub(crate) next: u32,
}

impl ClassLayout {
    pub(crate) fn derive(image: &Image<'_>, landmarks: &[Landmark]) -> Self {
        let class = |name| landmarks.iter().find(|it| it.name == name).map(|it| it.class);
        let superclass = class("Class").zip(class("Module")).zip(class("Object")).and_then(
            |((class, module), object)| {
                (16..SEARCHED_BYTES).step_by(8).find(|&at| {
                    descends(image, at, class, module) && descends(image, at, module, object)
                })
            },
        );
        // Every class has a singleton class, which is its class in turn.
        let classes =
            || landmarks.iter().filter(|it| type_at(image, it.class) == Some(SlotType::CLASS));
        let has_flag = |at: Address, flag| image.read_u64(at).map(|flags| flags & flag != 0);
        let singleton = SINGLETON_FLAGS.into_iter().find(|&flag| {
            classes().count() > 0
                && classes().all(|it| {
                    let singleton = image.read_address(it.class.offset(8));
                    has_flag(it.class, flag) == Ok(false)
                        && singleton.and_then(|singleton| has_flag(singleton, flag)) == Ok(true)
                })
        });
        Self {
            superclass: superclass.map(|at| at as usize / 8),
            singleton: singleton.unwrap_or(0),
            words: words_in_use(image, landmarks).unwrap_or(usize::MAX),
        }
    }

    /// The ancestor that an object in `slot` is; `None` for objects that are not classes.
    pub(crate) fn ancestor(
        &self,
        slot: u32,
        object: &Object<'_>,
        classifier: &AddressClassifier<'_>,
    ) -> Option<Ancestor> {
        let slot_at = |word| classifier.slot_at(object.word(word));
        let superclass = || self.superclass.and_then(slot_at);
        let (is_real, next) = match object.kind {
            SlotType::CLASS => (object.flags & self.singleton == 0, superclass()),
            SlotType::ICLASS => (false, superclass()),
            SlotType::MOVED => (false, DESTINATIONS.into_iter().find_map(slot_at)),
            _ => return None,
        };
        Some(Ancestor { slot, is_real, next: next.unwrap_or(Slot::NO_CLASS) })
    }

    /// The address of the superclass of a class with these words, which may be an included module.
    pub(crate) fn superclass_of(&self, word: impl Fn(usize) -> u64) -> Option<Address> {
        self.superclass.map(|number| Address(word(number)))
    }

    /// Returns true for a singleton class with these flags.
    pub(crate) fn is_singleton(&self, kind: SlotType, flags: u64) -> bool {
        kind == SlotType::CLASS && flags & self.singleton != 0
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.superclass.is_some() && self.singleton != 0
    }
}

/// The words of a class up to the last one that any of the `landmarks` uses. Ruby makes these first, in memory that nothing has used
/// before. In the slots of later classes the words behind their structure may be left over from other objects (from 4.1 on, where the
/// structure is smaller than its slot).
fn words_in_use(image: &impl Memory, landmarks: &[Landmark]) -> Option<usize> {
    let (mut most, mut count) = (MIN_WORDS, 0);
    for landmark in landmarks {
        let mut bytes = [0; CLASS_BYTES];
        if image.read_exact(landmark.class, &mut bytes).is_ok() {
            let used = words(&bytes).collect::<Vec<_>>().iter().rposition(|word| *word != 0);
            most = most.max(used.map_or(0, |last| last + 1));
            count += 1;
        }
    }
    (count >= MIN_LANDMARKS).then_some(most)
}

fn type_at(image: &Image<'_>, at: Address) -> Option<SlotType> {
    Some(SlotType::of_flags(image.read_u64(at).ok()?))
}

/// Returns true if the pointers to superclasses at offset `at` lead from the class `from` to `to`,
/// past modules that are included in between.
fn descends(image: &Image<'_>, at: u64, from: Address, to: Address) -> bool {
    let mut class = from;
    for _ in 0..MAX_ANCESTORS {
        let Ok(superclass) = image.read_address(class.offset(at)) else { return false };
        if superclass == to {
            return true;
        }
        if type_at(image, superclass) != Some(SlotType::ICLASS) {
            return false;
        }
        class = superclass;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Classes of 160 bytes, one after another.
    struct Classes(Vec<u8>);

    impl Memory for Classes {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let from = self.0.get(at.0 as usize..).unwrap_or_default();
            let bytes = from.len().min(into.len());
            into[..bytes].copy_from_slice(&from[..bytes]);
            bytes
        }
    }

    fn landmarks(count: usize) -> Vec<Landmark> {
        let at = |number| Address((number * CLASS_BYTES) as u64);
        (0..count).map(|number| Landmark { class: at(number), name: "Object" }).collect()
    }

    /// A later class, in the slot of an object that has gone, had words behind its structure: "String → Class → Proc → Worker".
    #[test]
    fn words_that_no_class_of_ruby_itself_uses_are_behind_the_structure() {
        let mut bytes = vec![0; 10 * CLASS_BYTES];
        bytes[8..9].fill(1);
        bytes[3 * CLASS_BYTES + 18 * 8] = 1;
        let classes = Classes(bytes);
        assert_eq!(words_in_use(&classes, &landmarks(10)), Some(19));
        assert_eq!(words_in_use(&classes, &landmarks(7)), None, "the interpreter is starting");
        assert_eq!(words_in_use(&classes, &landmarks(11)), Some(19), "one cannot be read");
    }
}
