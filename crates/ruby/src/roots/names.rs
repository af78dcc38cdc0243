//! The names of classes and IDs, and the objects of singleton classes.

use linux::Address;

use crate::interpreter::Landmark;
use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::layout::st_table::read_pairs;
use crate::model::slot::SlotType;
use crate::roots::symbols::Symbols;
use crate::word::word;

/// The word of an object's slot that is its class, in bytes.
const CLASS: usize = 8;
/// The variable of a singleton class that refers to its object (up to 3.1).
const ATTACHED: &str = "__attached__";
/// More class-level variables than a class has.
pub(crate) const MAX_VARIABLES: u64 = 1 << 16;

/// The places of names.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) class_names: ClassNames,
    pub(crate) symbols: Symbols,
    /// The offset of the word of a singleton class that refers to its object (from 3.2 on).
    attached_at: Option<usize>,
}

impl Names {
    pub(crate) fn derive(
        reader: ObjectReader<'_>,
        class_names: ClassNames,
        symbols: Symbols,
        landmarks: &[Landmark],
    ) -> Self {
        Self { class_names, symbols, attached_at: attached_at(reader, landmarks) }
    }

    /// The class or module whose singleton class this is.
    pub(crate) fn attached(&self, reader: ObjectReader<'_>, class: Address) -> Option<Address> {
        let object = match self.attached_at {
            Some(at) => word(&reader.class(class)?, at),
            None => {
                let table = self.class_names.variables(reader, class)?;
                let variables = read_pairs(reader.image, table, MAX_VARIABLES)?;
                let is_it = |id| self.symbols.name_of_id(reader, id).as_deref() == Some(ATTACHED);
                variables.into_iter().find(|(id, _)| is_it(*id))?.1
            }
        };
        let refers_back = word(&reader.class(Address(object))?, CLASS) == class.0;
        refers_back.then_some(Address(object))
    }
}

/// The offset of the word of singleton classes that refers to their object, derived from the singleton
/// classes of the landmarks.
fn attached_at(reader: ObjectReader<'_>, landmarks: &[Landmark]) -> Option<usize> {
    let singletons = landmarks.iter().filter_map(|landmark| {
        let singleton = Address(word(&reader.class(landmark.class)?, CLASS));
        Some((landmark.class, reader.class(singleton)?))
    });
    let is_class = |it: &(Address, _)| reader.type_at(it.0) == Some(SlotType::CLASS);
    let singletons: Vec<_> = singletons.filter(is_class).collect();
    let length = singletons.first()?.1.len();
    let mut places = (16..length).step_by(8);
    places.find(|&at| singletons.iter().all(|(class, slot)| word(slot, at) == class.0))
}
