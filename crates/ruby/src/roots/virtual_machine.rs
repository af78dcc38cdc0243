//! The main object and the lists of `require`, which are members of `rb_vm_t`.
//!
//! Their order in vm_core.h is the same from 2.7 to 3.4: `top_self`, `load_path`, `load_path_snapshot`, `load_path_check_cache`,
//! `expanded_load_path`, `loaded_features`, `loaded_features_snapshot`. Later releases have them in structures of other kinds, and none is found.

use image::Memory;
use linux::Address;

use crate::model::named_root::{NamedRoot, RootKind};
use crate::model::slot::SlotType;
use crate::roots::program::Program;
use crate::word::word;

/// `rb_vm_t` has them within this many bytes.
const SEARCHED: usize = 4 << 10;
/// The members, beginning with the main object: an array, or something else.
const IS_ARRAY: [bool; 6] = [true, true, false, true, true, true];
/// The members that have a name.
const NAMES: [(usize, &str, RootKind); 3] = [
    (0, "(main object)", RootKind::Table),
    (1, "$LOAD_PATH", RootKind::GlobalVariable),
    (5, "$LOADED_FEATURES", RootKind::GlobalVariable),
];

/// The roots that are members of the virtual machine; none if it was not found.
pub(crate) fn read(program: &Program<'_>) -> Vec<NamedRoot> {
    let image = program.reader.image;
    let mappings = &image.state.mappings;
    let is_memory = |at: Address| {
        at.is_aligned(8) && mappings.find(at).is_some_and(|it| it.is_private_anonymous())
    };
    let words = program.space.interpreter.variable_words(image).map(|(_, word)| Address(word));
    let found = words.filter(|&at| is_memory(at)).find_map(|at| {
        let mut bytes = vec![0; SEARCHED];
        let read = image.read(at, &mut bytes);
        members(program, bytes.get(..read)?)
    });
    let root = |(place, name, kind): (usize, &str, RootKind), members: &[u32]| NamedRoot {
        kind,
        name: name.to_owned(),
        value: members[place],
        class: None,
        file: None,
    };
    found.map_or_else(Vec::new, |members| NAMES.map(|it| root(it, &members)).to_vec())
}

/// The slots of the members in these bytes, if they have all of them. The third one may be no object.
fn members(program: &Program<'_>, bytes: &[u8]) -> Option<Vec<u32>> {
    let object = |place: usize, kind: SlotType| {
        let slot = program.object(word(bytes, place))?;
        (program.space.slots[slot as usize].kind() == kind).then_some(slot)
    };
    let last = bytes.len().checked_sub(8 * (IS_ARRAY.len() + 1))?;
    (0..=last).step_by(8).find_map(|place| {
        let main = object(place, SlotType::OBJECT)?;
        let class = program.space.slots[main as usize].class() as usize;
        program.space.classes.get(class).filter(|it| it.name.as_deref() == Some("Object"))?;
        let mut found = vec![main];
        for (number, is_array) in (1..).zip(IS_ARRAY) {
            let array = object(place + 8 * number, SlotType::ARRAY);
            found.push(if is_array { array? } else { array.unwrap_or(main) });
        }
        Some(found)
    })
}
