use image::{Image, Memory};
use linux::Address;

use crate::layout::object_layouts::OBJECT_NOT_EMBEDDED;
use crate::layout::shape_tree::{ShapeTree, Variables};
use crate::layout::st_table::read_pairs;
use crate::model::slot::SlotType;
use crate::roots::id_table::Budget;
use crate::roots::names::MAX_VARIABLES;
use crate::roots::program::Program;
use crate::word::word;

/// A variable of all classes that Struct creates; its value is an array.
const MEMBERS: &str = "__members__";
/// The classes with members that suffice to find the place of variables.
const ENOUGH_CLASSES: usize = 8;
/// The offset of the variables in an internal object that has them, or of a pointer to them.
const FIELDS: u64 = 16;

/// The place of a class's instance variables, which include its class variables.
pub(crate) enum VariablePlace {
    /// A table by their IDs (up to 3.1).
    Table,
    /// Behind the word of its slot at this offset, in the order of its shape (3.3, 3.4).
    Shape { at: usize, shape_tree: ShapeTree },
    /// In the internal object that the word of its slot at this offset refers to, in the order of the shape of that
    /// object (`imemo_fields`, from 4.0 on).
    Fields { at: usize, shape_tree: ShapeTree },
}

impl VariablePlace {
    /// The place at which all classes that Struct created have the names of their members.
    pub(crate) fn derive(program: &Program<'_>) -> Option<Self> {
        let reader = program.reader;
        if program.classes().any(|it| program.names.class_names.variables(reader, it).is_some()) {
            return Some(Self::Table);
        }
        let shape_tree = program.space.shape_tree?;
        // Wrong places cost as much as the right one.
        let budget = Budget::new();
        let is_members =
            |id| program.names.symbols.name_of_id(program.reader, id).as_deref() == Some(MEMBERS);
        let is_array = |value| reader.type_at(Address(value)) == Some(SlotType::ARRAY);
        if !shape_tree.has_memory_of_classes() {
            // The shapes of these objects show which classes have members.
            let classes = || program.classes().filter_map(|class| reader.class(class));
            let length = classes().next()?.len();
            let places = (16..length).step_by(8).map(|at| Self::Fields { at, shape_tree });
            return places.into_iter().find(|place| {
                let of_classes = classes().flat_map(|slot| place.of_slot(program, &slot, &budget));
                let mut members =
                    of_classes.filter(|(id, _)| is_members(*id)).take(ENOUGH_CLASSES).peekable();
                members.peek().is_some() && members.all(|(_, value)| is_array(value))
            });
        }
        let with_members = program.classes().filter_map(|class| {
            let slot = reader.class(class)?;
            let mut positions =
                shape_tree.positions(reader.image, word(&slot, 0), || budget.spend(1).is_some());
            let position = positions.find(|(id, _)| is_members(*id))?.1;
            Some((slot, position))
        });
        let with_members: Vec<_> = with_members.take(ENOUGH_CLASSES).collect();
        let length = with_members.first()?.0.len();
        let mut places = (16..length).step_by(8).map(|at| Self::Shape { at, shape_tree });
        places.find(|it| {
            with_members.iter().all(|(slot, position)| {
                it.value(reader.image, slot, *position).is_some_and(is_array)
            })
        })
    }

    /// The address of the variables of the class with this slot, and their number; `None` for other places.
    pub(crate) fn row(&self, image: &Image<'_>, slot: &[u8]) -> Option<(Address, u64)> {
        let Self::Shape { at, shape_tree } = self else { return None };
        match shape_tree.variables_of(image, word(slot, 0))? {
            Variables::Row(variables) => Some((Address(word(slot, *at)), variables)),
            Variables::Table => None,
        }
    }

    fn value(&self, image: &Image<'_>, slot: &[u8], position: u64) -> Option<u64> {
        let Self::Shape { at, .. } = self else { return None };
        let values = Address(word(slot, *at));
        image.read_u64(values.offset(position * 8)).ok().filter(|_| values.0 != 0)
    }

    /// The variables in the internal object that a class's slot refers to.
    fn of_slot(&self, program: &Program<'_>, slot: &[u8], budget: &Budget) -> Vec<(u64, u64)> {
        let Self::Fields { at, shape_tree } = self else { return Vec::new() };
        let (image, fields) = (program.reader.image, Address(word(slot, *at)));
        if program.reader.type_at(fields) != Some(SlotType::IMEMO) {
            return Vec::new();
        }
        let Ok(flags) = image.read_u64(fields) else { return Vec::new() };
        let inside = fields.offset(FIELDS);
        let values = match flags & OBJECT_NOT_EMBEDDED {
            0 => Some(inside),
            _ => image.read_address(inside).ok(),
        };
        let Some(values) = values else { return Vec::new() };
        let positions = shape_tree.positions(image, flags, || budget.spend(1).is_some());
        let value = |(id, at): (u64, u64)| Some((id, image.read_u64(values.offset(at * 8)).ok()?));
        positions.filter_map(value).collect()
    }

    /// The variables of a class: the IDs of their names, and their values.
    pub(crate) fn variables(
        &self,
        program: &Program<'_>,
        class: Address,
        slot: &[u8],
    ) -> Vec<(u64, u64)> {
        let image = program.reader.image;
        match self {
            Self::Table => program
                .names
                .class_names
                .variables(program.reader, class)
                .and_then(|table| read_pairs(image, table, MAX_VARIABLES))
                .filter(|pairs| program.budget.spend(pairs.len() as u64).is_some())
                .unwrap_or_default(),
            Self::Fields { .. } => self.of_slot(program, slot, &program.budget),
            Self::Shape { shape_tree, .. } => {
                let goes_on = || program.budget.spend(1).is_some();
                let positions = shape_tree.positions(image, word(slot, 0), goes_on);
                let value = |(id, position)| Some((id, self.value(image, slot, position)?));
                positions.filter_map(value).collect()
            }
        }
    }
}
