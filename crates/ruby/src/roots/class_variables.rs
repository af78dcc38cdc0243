use capture::{Address, Image, Memory};

use crate::layout::shape_tree::{ShapeHome, ShapeTree};
use crate::layout::st_table::read_pairs;
use crate::model::slot::SlotType;
use crate::roots::program::{MAX_VARIABLES, Program};
use crate::word::word;

/// A variable of all classes that Struct creates; its value is an array.
const MEMBERS: &str = "__members__";
/// The classes with members that suffice to find the place of variables.
const ENOUGH_CLASSES: usize = 8;

/// The place of a class's instance variables, which include its class variables.
pub(crate) enum VariablePlace {
    /// A table by their IDs (up to 3.1).
    Table,
    /// Behind the word of its slot at this offset, in the order of its shape (3.3, 3.4).
    Shape { at: usize, shape_tree: ShapeTree },
}

impl VariablePlace {
    /// The place at which all classes that Struct created have the names of their members.
    pub(crate) fn derive(program: &Program<'_>) -> Option<Self> {
        let reader = program.reader;
        if program.classes().any(|it| program.class_names.variables(reader, it).is_some()) {
            return Some(Self::Table);
        }
        let shape_tree = program.space.shape_tree.filter(|it| it.home == ShapeHome::Tree)?;
        let with_members = program.classes().filter_map(|class| {
            let slot = reader.class(class)?;
            let mut positions = shape_tree.positions(reader.image, word(&slot, 0));
            let is_it = |id| program.symbols.name_of_id(id).as_deref() == Some(MEMBERS);
            let position = positions.find(|(id, _)| is_it(*id))?.1;
            Some((slot, position))
        });
        let with_members: Vec<_> = with_members.take(ENOUGH_CLASSES).collect();
        let length = with_members.first()?.0.len();
        let mut places = (16..length).step_by(8).map(|at| Self::Shape { at, shape_tree });
        places.find(|it| {
            with_members.iter().all(|(slot, position)| {
                let value = it.value(reader.image, slot, *position);
                value.and_then(|value| reader.type_at(Address(value))) == Some(SlotType::ARRAY)
            })
        })
    }

    fn value(&self, image: &Image<'_>, slot: &[u8], position: u64) -> Option<u64> {
        let Self::Shape { at, .. } = self else { return None };
        let values = Address(word(slot, *at));
        image.read_u64(values.offset(position * 8)).ok().filter(|_| values.0 != 0)
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
                .class_names
                .variables(program.reader, class)
                .and_then(|table| read_pairs(image, table, MAX_VARIABLES))
                .unwrap_or_default(),
            Self::Shape { shape_tree, .. } => {
                let positions = shape_tree.positions(image, word(slot, 0));
                let value = |(id, position)| Some((id, self.value(image, slot, position)?));
                positions.filter_map(value).collect()
            }
        }
    }
}
