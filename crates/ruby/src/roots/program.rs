use std::collections::BTreeSet;

use linux::Address;

use crate::layout::class_names::ObjectReader;
use crate::model::slot::SlotType;
use crate::object_space::ObjectSpace;
use crate::roots::constants::ConstantPlace;
use crate::roots::id_table::Budget;
use crate::roots::names::Names;
use crate::roots::symbols::Symbols;

/// Everything that is derived of a program before its roots are read.
pub(crate) struct Program<'a> {
    pub(crate) space: &'a ObjectSpace,
    pub(crate) reader: ObjectReader<'a>,
    pub(crate) names: Names,
    pub(crate) constants: ConstantPlace,
    pub(crate) budget: Budget,
}

impl<'a> Program<'a> {
    /// The addresses of private memory to which variables of the interpreter refer, each once.
    pub(crate) fn memory_of_variables(&self) -> BTreeSet<Address> {
        let image = self.reader.image;
        let mappings = &image.state.mappings;
        let is_memory = |at: &Address| {
            at.is_aligned(8) && mappings.find(*at).is_some_and(|it| it.is_private_anonymous())
        };
        let words = self.space.interpreter.variable_words(image);
        words.map(|(_, word)| Address(word)).filter(is_memory).collect()
    }

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
        let names = Names::derive(reader, class_names, symbols, &landmarks);
        Some(Self { space, reader, names, constants, budget })
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
        let name = |class| self.names.class_names.name(self.reader, class);
        name(class).unwrap_or_else(|| {
            let is_class = self.reader.type_at(class) == Some(SlotType::CLASS);
            let kind = if is_class { "Class" } else { "Module" };
            match self.names.attached(self.reader, class).and_then(name) {
                Some(name) => format!("#<{kind}:{name}>"),
                None => format!("#<{kind}:{:#018x}>", class.0),
            }
        })
    }
}
