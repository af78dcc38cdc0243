use capture::Address;

use crate::interpreter::Landmark;
use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::layout::st_table::read_pairs;
use crate::model::slot::SlotType;
use crate::object_space::ObjectSpace;
use crate::roots::constants::ConstantPlace;
use crate::roots::id_table::Budget;
use crate::roots::symbols::Symbols;
use crate::word::word;

/// The word of an object's slot that is its class, in bytes.
const CLASS: usize = 8;
/// The variable of a singleton class that refers to its object (up to 3.1).
const ATTACHED: &str = "__attached__";
/// More class-level variables than a class has.
pub(crate) const MAX_VARIABLES: u64 = 1 << 16;

/// Everything that is derived of a program before its roots are read.
pub(crate) struct Program<'a> {
    pub(crate) space: &'a ObjectSpace,
    pub(crate) reader: ObjectReader<'a>,
    pub(crate) class_names: ClassNames,
    pub(crate) symbols: Symbols<'a>,
    pub(crate) constants: ConstantPlace,
    /// The offset of the word of a singleton class that refers to its object (from 3.2 on).
    attached_at: Option<usize>,
    pub(crate) budget: Budget,
}

impl<'a> Program<'a> {
    pub(crate) fn read(space: &'a ObjectSpace, reader: ObjectReader<'a>) -> Option<Self> {
        let landmarks = space.interpreter.landmarks(reader.image);
        let class_names = space.class_names?;
        let budget = Budget::new();
        let constants = ConstantPlace::derive(reader, &landmarks, &budget)?;
        let object = landmarks.iter().find(|it| it.name == "Object")?;
        let own = constants.read(reader.image, &reader.class(object.class)?, &budget);
        // A class may have several names, as Integer has in 2.7.
        let known = landmarks.iter().map(|landmark| {
            let of_it = own.iter().filter(|it| it.value == landmark.class.0);
            (landmark.name, of_it.map(|it| it.serial).collect())
        });
        let symbols = Symbols::find(space, reader, class_names, &known.collect::<Vec<_>>())?;
        let attached_at = attached_at(reader, &landmarks);
        Some(Self { space, reader, class_names, symbols, constants, attached_at, budget })
    }

    /// All classes and modules.
    pub(crate) fn classes(&self) -> impl Iterator<Item = Address> + '_ {
        (0..self.space.slots.len() as u32).filter_map(|slot| self.class(slot))
    }

    /// The class or module in this slot.
    fn class(&self, slot: u32) -> Option<Address> {
        let it = self.space.slots.get(slot as usize)?;
        let is_class = it.is_live() && matches!(it.kind(), SlotType::CLASS | SlotType::MODULE);
        is_class.then(|| self.space.slot_address(slot as usize)).flatten()
    }

    /// The live object that a value refers to; `None` for numbers, symbols and the like.
    pub(crate) fn object(&self, value: u64) -> Option<u32> {
        let slot = self.space.slot_at(Address(value))?;
        self.space.slots.get(slot as usize)?.is_live().then_some(slot)
    }

    /// A class's name; without one, as Ruby writes it: with the name of its object if it is a
    /// singleton class, or else with its address.
    pub(crate) fn class_name(&self, class: Address) -> String {
        let name = |class| self.class_names.name(self.reader, class);
        name(class).unwrap_or_else(|| {
            let is_class = self.reader.type_at(class) == Some(SlotType::CLASS);
            let kind = if is_class { "Class" } else { "Module" };
            match self.attached(class).and_then(name) {
                Some(name) => format!("#<{kind}:{name}>"),
                None => format!("#<{kind}:{:#018x}>", class.0),
            }
        })
    }

    /// The class or module whose singleton class this is.
    pub(crate) fn attached(&self, class: Address) -> Option<Address> {
        let object = match self.attached_at {
            Some(at) => word(&self.reader.class(class)?, at),
            None => {
                let table = self.class_names.variables(self.reader, class)?;
                let variables = read_pairs(self.reader.image, table, MAX_VARIABLES)?;
                let is_it = |id| self.symbols.name_of_id(id).as_deref() == Some(ATTACHED);
                variables.into_iter().find(|(id, _)| is_it(*id))?.1
            }
        };
        let refers_back = word(&self.reader.class(Address(object))?, CLASS) == class.0;
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
