//! The words that all objects begin with (`struct RBasic`): flags and class.

use crate::model::slot::SlotType;

/// The flags that the garbage collector changes as an object ages (`FL_PROMOTED0` and `FL_PROMOTED1`, later `FL_PROMOTED`).
const AGE: u64 = 3 << 5;

/// The first two words of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHead {
    /// The flags, which include the type.
    pub flags: u64,
    /// The second word, mostly the address of the class; `None` if it is not known.
    pub class: Option<u64>,
}

impl ObjectHead {
    /// Returns true unless another object was in the slot before: its type or its class differ.
    #[must_use]
    pub fn is_same_object(self, before: Self) -> bool {
        let [kind, kind_before] = [self, before].map(|head| SlotType::of_flags(head.flags));
        kind == kind_before && (kind.has_no_class() || self.class == before.class)
    }

    /// Returns true if the flags differ in the age of the object alone.
    #[must_use]
    pub fn has_only_aged(self, before: Self) -> bool {
        (self.flags ^ before.flags) & !AGE == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_ages_and_a_slot_gets_another_one() {
        let head = |flags, class| ObjectHead { flags, class: Some(class) };
        let string = head(0x05, 0x1000);
        assert!(head(0x65, 0x1000).has_only_aged(string) && string.has_only_aged(string));
        assert!(!head(0x2005, 0x1000).has_only_aged(string), "another flag");
        assert!(head(0x2065, 0x1000).is_same_object(string), "the same type and class");
        assert!(!head(0x07, 0x1000).is_same_object(string), "an array");
        assert!(!head(0x05, 0x2000).is_same_object(string), "of another class");
        // The second word of internal objects is not a class.
        assert!(head(0x1a, 1).is_same_object(head(0x1a, 2)));
        let without_class = ObjectHead { class: None, ..string };
        assert!(without_class.is_same_object(without_class));
    }
}
