//! The place in the body of bytecode that refers to its path.
//!
//! `rb_iseq_location_t` in vm_core.h begins with the path, `base_label` and `label`, from 2.7 to 4.1.
//! The path is a string, or an array of the path and the real path; the labels are strings. No other
//! three words of a body are like that, so their place is derived from the bodies of a process.

use linux::Address;

use crate::layout::array::element;
use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::model::slot::SlotType;
use crate::word::word;

/// The bytes of a body that are searched.
pub(crate) const BODY_BYTES: usize = 320;
/// The bytes of a location that are read: the path and the labels.
pub(crate) const LOCATION_BYTES: usize = 24;
/// The bytes of a location and of the first lines behind it, which [`FirstLine::read`] reads.
pub(crate) const SOURCE_BYTES: usize = 48;
/// `RUBY_FL_FREEZE`, the same from 2.7 to 4.1. Ruby freezes all paths.
const FROZEN: u64 = 1 << 11;

/// The offset of the location in the body of an iseq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IseqLocation(pub(crate) usize);

impl IseqLocation {
    /// The only place at which at least nine in ten of these bodies have a location. (The others may
    /// be garbage, or not compiled yet.)
    pub(crate) fn derive(reader: ObjectReader<'_>, bodies: &[Vec<u8>]) -> Option<Self> {
        let mut places = (0..=BODY_BYTES - LOCATION_BYTES).step_by(8).filter(|&at| {
            let is_location = |body: &&Vec<u8>| {
                body.get(at..at + LOCATION_BYTES).is_some_and(|it| path(reader, it).is_some())
            };
            bodies.iter().filter(is_location).count() * 10 >= bodies.len() * 9
        });
        places.next().filter(|_| !bodies.is_empty() && places.next().is_none()).map(Self)
    }
}

/// The form of the first line in a location (`first_lineno`): an Integer of Ruby's up to 3.1, a C `int` from 3.2 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstLine {
    Integer,
    Int,
}

impl FirstLine {
    /// The form in which at least nine in ten of these bodies have the line with which the position of their code begins
    /// (`code_location`), too.
    pub(crate) fn derive(location: IseqLocation, bodies: &[Vec<u8>]) -> Option<Self> {
        [Self::Integer, Self::Int].into_iter().find(|form| {
            let is_it = |body: &&Vec<u8>| form.read(location, body).is_some();
            bodies.iter().filter(is_it).count() * 10 >= bodies.len() * 9
        })
    }

    /// The first line of the code with this body.
    pub(crate) fn read(self, location: IseqLocation, body: &[u8]) -> Option<u32> {
        const LINE: usize = 24;
        // Between the two is the number of a node.
        let (line, position) = match self {
            Self::Integer => (word(body, location.0 + LINE) >> 1, LINE + 12),
            Self::Int => (word(body, location.0 + LINE) & u64::from(u32::MAX), LINE + 8),
        };
        let begins_at = word(body, location.0 + position) & u64::from(u32::MAX);
        u32::try_from(line).ok().filter(|_| line == begins_at)
    }
}

/// The object that is the path of this location; `None` if it is no location.
pub(crate) fn path(reader: ObjectReader<'_>, location: &[u8]) -> Option<Address> {
    let [path, base_label, label] =
        [0, 8, 16].map(|at| reader.current_place(Address(word(location, at))));
    let is = |at, kind| reader.type_at(at) == Some(kind);
    let has_labels = is(base_label, SlotType::STRING) && is(label, SlotType::STRING);
    let is_path = is(path, SlotType::STRING) || is(path, SlotType::ARRAY);
    (has_labels && is_path).then_some(path)
}

/// The text of the path in this object.
pub(crate) fn path_text(
    reader: ObjectReader<'_>,
    class_names: ClassNames,
    path: Address,
) -> Option<String> {
    let text = |at| class_names.text(reader, at).filter(|text| !text.is_empty());
    if reader.type_at(path) == Some(SlotType::STRING) {
        return text(path.0);
    }
    let at = |index| text(element(reader.image, path, index)?);
    let given = at(0);
    let is_absolute = given.as_ref().is_some_and(|given| given.starts_with('/'));
    preferred(given, is_absolute, || at(1))
}

/// The path as the program gave it if that is absolute, and else the real path if it is a file's.
pub(crate) fn preferred<T>(
    given: Option<T>,
    is_absolute: bool,
    real: impl FnOnce() -> Option<T>,
) -> Option<T> {
    if is_absolute { given } else { real().or(given) }
}

/// Returns true for the flags of a frozen object.
pub(crate) fn is_frozen(flags: u64) -> bool {
    flags & FROZEN != 0
}
