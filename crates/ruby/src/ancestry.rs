//! How classes are tied to their superclasses, derived from those that always exist.

use capture::{Address, Image, Memory};

use crate::interpreter::Landmark;
use crate::object::Object;
use crate::object_space::{Slot, SlotType};
use crate::territory::Territory;

/// More ancestors than a class has.
pub(crate) const MOST_ANCESTORS: usize = 512;
/// The word of a class that points to its superclass stands within so many bytes.
const SEARCHED_FOR_SUPER: u64 = 128;
/// `FL_SINGLETON` is FL_USER0 up to 3.3, FL_USER1 from 3.4 on (include/ruby/internal/fl_type.h).
const SINGLETON_FLAGS: [u64; 2] = [1 << 12, 1 << 13];
/// The words of a moved object that say where it is now (`struct RMoved` in gc.c): the second in
/// 2.7, whose third is a list's; the third since, whose second is no address.
const DESTINATIONS: [usize; 2] = [1, 2];
/// What has no superclass.
const NO_CLASS: u32 = Slot::NO_CLASS;

/// How classes are tied to their superclasses, derived from those that always exist.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ancestry {
    /// The word of a class that points to its superclass.
    superclass: Option<usize>,
    /// The flag of singleton classes; 0 where it is not known.
    singleton: u64,
}

impl Ancestry {
    pub(crate) fn derive(image: &Image<'_>, landmarks: &[Landmark]) -> Self {
        let class = |name| landmarks.iter().find(|it| it.name == name).map(|it| it.class);
        let superclass = class("Class").zip(class("Module")).zip(class("Object")).and_then(
            |((class, module), object)| {
                (16..SEARCHED_FOR_SUPER).step_by(8).find(|&at| {
                    descends(image, at, class, module) && descends(image, at, module, object)
                })
            },
        );
        // Every class has a singleton class, which its slot names as its class.
        let ordinary =
            || landmarks.iter().filter(|it| kind_at(image, it.class) == Some(SlotType::CLASS));
        let has_flag = |at: Address, flag| image.read_u64(at).map(|flags| flags & flag != 0);
        let singleton = SINGLETON_FLAGS.into_iter().find(|&flag| {
            ordinary().count() > 0
                && ordinary().all(|it| {
                    let meta = image.read_address(it.class.offset(8));
                    has_flag(it.class, flag) == Ok(false)
                        && meta.and_then(|meta| has_flag(meta, flag)) == Ok(true)
                })
        });
        Self { superclass: superclass.map(|at| at as usize / 8), singleton: singleton.unwrap_or(0) }
    }

    /// Whether a class is what `Object#class` returns, and the slot of what comes after it among
    /// its ancestors; `None` for objects that are no classes.
    pub(crate) fn of(&self, object: &Object<'_>, territory: &Territory<'_>) -> Option<(bool, u32)> {
        let slot_at = |word| territory.slot_at(object.word(word));
        match object.kind {
            SlotType::CLASS => {
                let is_real = object.flags & self.singleton == 0;
                Some((is_real, self.superclass.and_then(slot_at).unwrap_or(NO_CLASS)))
            }
            SlotType::ICLASS => {
                Some((false, self.superclass.and_then(slot_at).unwrap_or(NO_CLASS)))
            }
            SlotType::MOVED => {
                Some((false, DESTINATIONS.into_iter().find_map(slot_at).unwrap_or(NO_CLASS)))
            }
            _ => None,
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.superclass.is_some() && self.singleton != 0
    }
}

fn kind_at(image: &Image<'_>, at: Address) -> Option<SlotType> {
    Some(SlotType(image.read_u64(at).ok()? as u8 & 31))
}

/// Whether one gets from the class `from` to `to` by superclasses that stand at `at`, past modules
/// that are included in between.
fn descends(image: &Image<'_>, at: u64, from: Address, to: Address) -> bool {
    let mut class = from;
    for _ in 0..MOST_ANCESTORS {
        let Ok(superclass) = image.read_address(class.offset(at)) else { return false };
        if superclass == to {
            return true;
        }
        if kind_at(image, superclass) != Some(SlotType::ICLASS) {
            return false;
        }
        class = superclass;
    }
    false
}
