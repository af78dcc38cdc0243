use linux::Address;

use crate::model::imemo::ImemoType;
use crate::model::slot::SlotType;

/// A class that live slots name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Its kind.
    pub kind: ClassKind,
    /// Its name; `None` for anonymous classes and for classes that have no name yet. Kinds of
    /// objects without a class have theirs in parentheses: `(T_STRING)`, `(imemo_iseq)`. T_DATA objects of the class Object
    /// have the name of their type: `ENV`, `ObjectTracing/allocation_info_tracer`.
    pub name: Option<String>,
    /// The type of its T_DATA objects, an index into
    /// [`ObjectSpace::data_types`](crate::ObjectSpace::data_types); `None` if it has no such
    /// objects, or their type is unknown. If its objects differ, this is the type of most of them,
    /// and [`ObjectSpace::data_objects`](crate::ObjectSpace::data_objects) has the type of each.
    pub data_type: Option<u32>,
}

/// A class of the program, or the kind of objects that have no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassKind {
    /// A class that programs can see, with the address of its slot.
    Visible(Address),
    /// Objects of this type that have no class, such as T_ICLASS or strings that Ruby hides from
    /// programs.
    Hidden(SlotType),
    /// Internal objects of this type.
    Imemo(ImemoType),
}

impl Class {
    /// Where its slot is; `None` for kinds of objects without a class.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        match self.kind {
            ClassKind::Visible(address) => Some(address),
            ClassKind::Hidden(_) | ClassKind::Imemo(_) => None,
        }
    }

    /// Returns true for kinds of objects without a class, which programs never see.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.address().is_none()
    }
}

/// The class of a slot while slots are read, before classes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ClassReference {
    /// The slot with this index holds the class.
    Slot(u32),
    /// The object has no class: its type, and the number of its internal type for T_IMEMO.
    Classless(SlotType, u8),
}
