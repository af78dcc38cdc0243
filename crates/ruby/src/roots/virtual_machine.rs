//! The main object and the lists of `require`: members of `rb_vm_t` up to 3.4, and of the boxes (`rb_box_t`) since.
//!
//! Their order in vm_core.h, and in internal/box.h, is the same: `top_self`, `load_path`, `load_path_snapshot`, `load_path_check_cache`,
//! `expanded_load_path`, from 4.1 on the length of the longest of these paths, `loaded_features`, `loaded_features_snapshot`. The VM is in
//! malloc'ed memory. [Boxes](super::boxes) have them otherwise.

use image::Memory;

use crate::model::named_root::{NamedRoot, RootKind};
use crate::model::slot::SlotType;
use crate::roots::program::Program;
use crate::word::words;

/// `rb_vm_t` has them within this many bytes.
const SEARCHED: usize = 4 << 10;
/// More memory than the variables of an interpreter refer to.
const MAX_CANDIDATES: usize = 1 << 12;
/// The members, beginning with the main object: an array, or something else.
const IS_ARRAY: [bool; 6] = [true, true, false, true, true, true];
/// The number of lists in front of the length of the longest path.
const LENGTH: usize = 4;
/// The slots of the main object and of the lists.
pub(super) type Members = [u32; IS_ARRAY.len() + 1];
/// The members that have a name.
const NAMES: [(usize, &str, RootKind); 3] = [
    (0, "(main object)", RootKind::Table),
    (1, "$LOAD_PATH", RootKind::GlobalVariable),
    (5, "$LOADED_FEATURES", RootKind::GlobalVariable),
];

/// The roots that are members of the virtual machine; none if they were not found, or if boxes have them.
pub(crate) fn read(program: &Program<'_>) -> Vec<NamedRoot> {
    let has_boxes = program.space.interpreter.has_boxes();
    let found = if has_boxes { None } else { of_vm(program) };
    found.iter().flat_map(roots).collect()
}

/// The roots that are these members.
pub(super) fn roots(members: &Members) -> [NamedRoot; NAMES.len()] {
    NAMES.map(|it| root(it, members))
}

/// The members of the virtual machine, to which a variable refers. In most builds it has a name.
fn of_vm(program: &Program<'_>) -> Option<Members> {
    let image = program.reader.image;
    let named = program.space.interpreter.vm(image);
    let others = || program.memory_of_variables().into_iter().take(MAX_CANDIDATES);
    named.into_iter().chain(others()).find_map(|at| {
        let mut bytes = vec![0; SEARCHED];
        let read = image.read(at, &mut bytes);
        let words: Vec<u64> = words(bytes.get(..read)?).collect();
        (0..words.len()).find_map(|place| members(program, &words[place..]))
    })
}

fn root((place, name, kind): (usize, &str, RootKind), members: &Members) -> NamedRoot {
    NamedRoot {
        kind,
        name: name.to_owned(),
        value: members[place],
        class: None,
        id: None,
        file: None,
    }
}

/// The slots of the members that begin with these words, if they have all of them.
pub(super) fn members(program: &Program<'_>, words: &[u64]) -> Option<Members> {
    let slots = &program.space.slots;
    let has_length = program.space.interpreter.has_length_of_load_path();
    let found = members_of(words, has_length, |address| {
        let slot = program.object(address)?;
        Some((slot, slots[slot as usize].kind()))
    })?;
    let class = slots[found[0] as usize].class() as usize;
    let class = program.space.classes.get(class)?;
    (class.name.as_deref() == Some("Object")).then_some(found)
}

/// The slots of the members that begin with these words, if they have all of them. The third list may be no object. `object` has the
/// slot at an address and its type.
fn members_of(
    words: &[u64],
    has_length: bool,
    object: impl Fn(u64) -> Option<(u32, SlotType)>,
) -> Option<Members> {
    let (main, _) = object(*words.first()?).filter(|it| it.1 == SlotType::OBJECT)?;
    let mut found = [main; IS_ARRAY.len() + 1];
    for (number, (is_array, slot)) in IS_ARRAY.iter().zip(&mut found[1..]).enumerate() {
        let behind_length = usize::from(has_length && number >= LENGTH);
        let member = object(*words.get(1 + number + behind_length)?);
        let array = member.filter(|it| it.1 == SlotType::ARRAY).map(|it| it.0);
        *slot = if *is_array { array? } else { array.unwrap_or(main) };
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The main object is at 8, lists are at 16, 24 …, and a Hash is at 80.
    fn object(address: u64) -> Option<(u32, SlotType)> {
        let kind = match address {
            8 => SlotType::OBJECT,
            80 => SlotType::HASH,
            16..80 if address.is_multiple_of(8) => SlotType::ARRAY,
            _ => return None,
        };
        Some((address as u32 / 8, kind))
    }

    #[test]
    fn boxes_have_the_length_of_a_path_among_their_lists() {
        let of_40 = [8, 16, 24, 80, 32, 40, 48, 56];
        let of_41 = [8, 16, 24, 80, 32, 1234, 40, 48, 56];
        let members = Some([1, 2, 3, 1, 4, 5, 6]);
        assert_eq!(members_of(&of_40, false, object), members);
        assert_eq!(members_of(&of_41, true, object), members);
        assert_eq!(members_of(&of_40[1..], false, object), None);
        assert_eq!(members_of(&of_41, false, object), None);
        for end in 0..7 {
            assert_eq!(members_of(&of_40[..end], false, object), None);
        }
    }
}
