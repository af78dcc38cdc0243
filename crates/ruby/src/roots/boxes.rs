//! The boxes of a program (`rb_box_t` of internal/box.h, from 4.0 on). Each has a main object, lists of `require`, global variables and
//! constants of its own. With `RUBY_BOX=1` there are several.
//!
//! The first box is a variable of the interpreter. The others are in malloc'ed memory, which objects wrap (`rb_box_data_type` in box.c).
//! A box begins with its object, a module, and its number. Those that `Ruby::Box.new` made are optional: their roots have the number
//! behind their names, as in `$items (box 4)`.

use std::collections::{HashMap, HashSet};

use image::Memory;
use linux::Address;

use crate::backtrace::structure;
use crate::body::BodyReader;
use crate::model::data_type::DataType;
use crate::model::named_root::{NamedRoot, RootKind};
use crate::model::slot::SlotType;
use crate::roots::locals;
use crate::roots::program::Program;
use crate::roots::virtual_machine::{self, Members};
use crate::word::words;

/// More boxes than programs have.
const MAX_BOXES: usize = 1 << 10;
/// The places of words of a box: its object, its number, and the main object, behind which are the lists.
const OBJECT: usize = 0;
const NUMBER: usize = 1;
const MAIN: usize = 2;
/// The words of a box, and those of them that may be its Hash of global variables (`gvar_tbl`), the last Hash. Behind it are a table
/// and the flags: one byte each for the root, for boxes of programs, and for optional ones.
const WORDS: usize = 18;
const HASHES: std::ops::Range<usize> = 9..16;
const FLAGS: usize = 2;
/// Modules in modules in boxes, at most.
const MAX_DEPTH: usize = 16;

/// A box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RubyBox {
    members: Members,
    /// The slot of its object; `None` for a box without one.
    object: Option<u32>,
    /// The slot of its Hash of global variables.
    globals: Option<u32>,
    /// Its number, if it is optional.
    number: Option<u64>,
}

/// The boxes of a program, each once; none up to 3.4.
pub(crate) fn find(program: &Program<'_>) -> Vec<RubyBox> {
    let (space, image) = (program.space, program.reader.image);
    if !space.interpreter.has_boxes() {
        return Vec::new();
    }
    let mut found: Vec<RubyBox> = Vec::new();
    let mut add = |words: &[u64]| {
        let it = RubyBox::of(program, words);
        let is_new = |it: &RubyBox| found.iter().all(|known| known.members != it.members);
        if let Some(it) = it.filter(|it| found.len() < MAX_BOXES && is_new(it)) {
            found.push(it);
        }
    };
    for (_, words) in space.interpreter.variables(image) {
        (0..words.len()).for_each(|place| add(&words[place..]));
    }
    let is_box = |slot: &u32| space.data_type_of(*slot).is_some_and(DataType::is_box);
    let objects = space.data_objects.iter().map(|it| it.0).filter(is_box);
    let wrapped = objects.filter_map(|slot| structure(image, space.slot_address(slot as usize)?));
    let candidates: Vec<Address> =
        program.memory_of_variables().into_iter().chain(wrapped).collect();
    for at in candidates {
        let mut bytes = [0; 8 * WORDS];
        let read = image.read(at, &mut bytes);
        add(&words(&bytes[..read]).collect::<Vec<_>>());
    }
    found
}

impl RubyBox {
    /// The box that begins with these words, if it has all members of one.
    fn of(program: &Program<'_>, words: &[u64]) -> Option<Self> {
        let members = virtual_machine::members(program, words.get(MAIN..)?)?;
        let kind = |slot: &u32| program.space.slots[*slot as usize].kind();
        let object = program.object(words[OBJECT]).filter(|slot| kind(slot) == SlotType::MODULE);
        let hash = |place: usize| {
            let slot = program.object(*words.get(place)?)?;
            (kind(&slot) == SlotType::HASH).then_some((place, slot))
        };
        let last = HASHES.rev().find_map(hash);
        let flags = last.and_then(|(place, _)| words.get(place + FLAGS)).map(|it| it.to_le_bytes());
        let is_optional = flags.is_some_and(|it| it[..3] == [0, 1, 1]);
        let number = is_optional.then_some(words[NUMBER]);
        Some(Self { members, object, globals: last.map(|it| it.1), number })
    }

    fn name(&self, name: &str) -> String {
        self.number.map_or_else(|| name.to_owned(), |number| format!("{name} (box {number})"))
    }
}

/// The main object, the lists of `require` and the global variables of each box.
pub(crate) fn read(program: &Program<'_>, boxes: &[RubyBox]) -> Vec<NamedRoot> {
    let mut bodies = BodyReader::new(program.reader.image, program.space);
    let mut found = Vec::new();
    for it in boxes {
        let globals = it.globals.map(|slot| locals::pairs(program, &mut bodies, slot));
        let globals = globals.into_iter().flatten().filter(|(name, _)| name.starts_with('$'));
        let globals = globals.filter_map(|(name, value)| {
            let (kind, value) = (RootKind::GlobalVariable, program.object(value)?);
            Some(NamedRoot { kind, name, value, class: None, id: None, file: None })
        });
        let roots = globals.chain(virtual_machine::roots(&it.members));
        found.extend(roots.map(|root| NamedRoot { name: it.name(&root.name), ..root }));
    }
    found
}

/// Gives constants of boxes their names, and those of optional boxes and of the modules in these the number of the box. The object of a
/// box has its constants, and those of all boxes, too.
pub(crate) fn name_constants(program: &Program<'_>, boxes: &[RubyBox], roots: &mut [NamedRoot]) {
    let by_object: HashMap<u32, &RubyBox> =
        boxes.iter().filter_map(|it| Some((it.object?, it))).collect();
    if by_object.is_empty() {
        return;
    }
    let owner = |root: &NamedRoot| {
        let is_constant = root.kind == RootKind::Constant;
        root.class.filter(|_| is_constant).and_then(|class| by_object.get(&class)).copied()
    };
    let mut owners: HashMap<u32, HashSet<Option<u64>>> = HashMap::new();
    for root in roots.iter().filter(|it| it.kind == RootKind::Constant) {
        if root.class.is_none() || owner(root).is_some() {
            let number = owner(root).and_then(|it| it.number);
            owners.entry(root.value).or_default().insert(number);
        }
    }
    let is_shared = |value: u32| owners.get(&value).is_some_and(|it| it.len() > 1);
    let mut boxes_of_modules: HashMap<u32, &RubyBox> = by_object.clone();
    for _ in 0..MAX_DEPTH {
        let is_module = |slot: u32| {
            let kind = program.space.slots.get(slot as usize).map(|it| it.kind());
            matches!(kind, Some(SlotType::CLASS | SlotType::MODULE))
        };
        let inner: Vec<(u32, &RubyBox)> = roots
            .iter()
            .filter(|it| it.kind == RootKind::Constant && is_module(it.value))
            .filter(|it| !is_shared(it.value) && !boxes_of_modules.contains_key(&it.value))
            .filter_map(|it| Some((it.value, *boxes_of_modules.get(&it.class?)?)))
            .collect();
        if inner.is_empty() {
            break;
        }
        boxes_of_modules.extend(inner);
    }
    for root in roots {
        let Some(&its) = root.class.as_ref().and_then(|class| boxes_of_modules.get(class)) else {
            continue;
        };
        if owner(root).is_none() {
            root.name = its.name(&root.name);
        } else if !is_shared(root.value) {
            let name = root.name.rsplit("::").next().unwrap_or_default();
            root.name = its.name(name);
            // Ruby's own classes have tables by box, so no box is released.
            root.class = None;
        }
    }
}
