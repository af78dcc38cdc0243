//! The room that objects have, and what they use of it.

use std::collections::HashMap;
use std::ops::Range;

use linux::{Address, length};
use ruby::{Body, BodyReader, ObjectSpace, Room, SlotType, StTable, Unit};

use super::subject::{Object, Subject};

/// The least memory of an object whose slices are examined, in bytes.
const MIN_SLICED_BYTES: u64 = 64;
/// All sliced strings together count if they leave this many bytes unused: to find out which of them are also used as a whole takes long.
const MIN_UNUSED_BYTES: u64 = 1 << 20;

/// The objects with memory that they do not use.
#[derive(Debug, Clone, Default)]
pub(super) struct Rooms {
    /// Objects that use less than all of their memory, ascending by slot.
    pub(super) own: Vec<(u32, Room)>,
    /// The strings and arrays of which other objects are slices, ascending by slot.
    pub(super) sliced: Vec<(u32, Sliced)>,
    /// The bytes that malloc added to what objects requested.
    pub(super) rounded_bytes: u64,
    /// The bytes that sizes of slots added to what objects need.
    pub(super) slack_bytes: u64,
}

/// The use of memory of which other objects are slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sliced {
    /// The number of slices.
    pub(super) slices: u64,
    /// Their bytes. Of slices that overlap, all count.
    pub(super) used_bytes: u64,
    /// The bytes that the slices could use.
    pub(super) bytes: u64,
    /// True if programs know one of the slices: a Queue has an array that they do not know (up to 4.0).
    pub(super) are_of_programs: bool,
}

impl Sliced {
    fn add(&mut self, more: &Self) {
        self.slices += more.slices;
        self.used_bytes = self.used_bytes.saturating_add(more.used_bytes);
        self.are_of_programs |= more.are_of_programs;
        // The same in all parts.
        self.bytes = more.bytes;
    }
}

/// The objects in a part of all slots, while they are read.
#[derive(Debug, Default)]
pub(super) struct RoomsFinder {
    own: Vec<(u32, Room)>,
    sliced: HashMap<u32, Sliced>,
    rounded_bytes: u64,
    slack_bytes: u64,
}

impl Rooms {
    /// Joins what was found in all parts of the slots, which are in their order.
    pub(super) fn of(space: &ObjectSpace, parts: Vec<RoomsFinder>) -> Self {
        let (mut own, mut sliced) = (Vec::new(), HashMap::<u32, Sliced>::new());
        let (mut rounded_bytes, mut slack_bytes) = (0_u64, 0_u64);
        for part in parts {
            own.extend(part.own);
            slack_bytes = slack_bytes.saturating_add(part.slack_bytes);
            rounded_bytes = rounded_bytes.saturating_add(part.rounded_bytes);
            for (owner, its) in part.sliced {
                sliced.entry(owner).or_default().add(&its);
            }
        }
        // Of an array that others share, the word for the capacity has another meaning.
        own.retain(|(slot, _)| !sliced.contains_key(slot) || !space.is_hidden_array(*slot));
        let mut sliced: Vec<_> = sliced.into_iter().collect();
        sliced.retain(|(_, it)| it.used_bytes < it.bytes);
        let is_string = |slot: u32| space.slots[slot as usize].kind() == SlotType::STRING;
        let of_strings = sliced.iter().filter(|(slot, _)| is_string(*slot));
        let unused = of_strings.map(|(_, it)| it.bytes - it.used_bytes);
        if unused.fold(0, u64::saturating_add) < MIN_UNUSED_BYTES {
            sliced.retain(|(slot, _)| !is_string(*slot));
        }
        sliced.sort_unstable_by_key(|(slot, _)| *slot);
        Self { own, sliced, rounded_bytes, slack_bytes }
    }
}

impl RoomsFinder {
    /// The end of a part of the slots, all of which were read with this reader.
    pub(super) fn end(&mut self, reader: &BodyReader<'_>) {
        self.slack_bytes = reader.slack_of_slots();
    }

    /// Reads the object in a slot.
    pub(super) fn read(
        &mut self,
        subject: &Subject<'_>,
        reader: &mut BodyReader<'_>,
        object: Object<'_>,
    ) {
        let (space, slot) = (subject.space, object.slot);
        let kind = space.slots[slot as usize].kind();
        match kind {
            SlotType::STRING | SlotType::ARRAY => {}
            SlotType::FILE => {
                let rooms = reader.buffers_of_io(slot).into_iter();
                let is_its = |room: &Room| {
                    room.used < room.capacity
                        && object.memory.iter().any(|it| has_room_in(it, room))
                };
                self.own.extend(rooms.filter(is_its).map(|room| (slot, room)));
                return;
            }
            SlotType::HASH | SlotType::OBJECT | SlotType::DATA | SlotType::STRUCT => {
                self.read_room(subject, reader, object);
                return;
            }
            _ => return,
        }
        self.read_room(subject, reader, object);
        let is_owner = |owner: &&u32| {
            let its = space.slots.get(**owner as usize).map(|it| it.kind());
            its == Some(kind) && (kind == SlotType::STRING || space.is_hidden_array(**owner))
        };
        for &owner in space.links.of(slot).iter().filter(is_owner) {
            let is_examined = |memory: &Range<Address>| length(memory) >= MIN_SLICED_BYTES;
            let Some(memory) = subject.memory_of(owner).next().filter(is_examined) else {
                continue;
            };
            let Some(Body::Slice(slice)) = reader.body(slot) else { continue };
            let is_within = memory.contains(&slice.start)
                && slice.bytes <= memory.end - slice.start
                && space.slot_address(owner as usize) == Some(slice.owner);
            // Of a slice that is elsewhere, all is in use, as far as is known.
            let used_bytes = if is_within { slice.bytes } else { u64::MAX };
            let its = self.sliced.entry(owner).or_insert_with(|| {
                // What malloc rounded up is no part of it.
                let unit = if kind == SlotType::ARRAY { 8 } else { 1 };
                let all = reader.contents(owner).map_or(0, |it| it.0.count().saturating_mul(unit));
                Sliced { bytes: all.min(length(&memory)), ..Sliced::default() }
            });
            its.slices += 1;
            its.are_of_programs |= !space.is_hidden_array(slot);
            its.used_bytes = its.used_bytes.saturating_add(used_bytes);
        }
    }

    /// Reads the room of an object in its slot, or with memory of its own.
    fn read_room(
        &mut self,
        subject: &Subject<'_>,
        reader: &mut BodyReader<'_>,
        Object { slot, memory }: Object<'_>,
    ) {
        if memory.is_empty() && !reader.has_room_in_slots() {
            return;
        }
        let Some(Body::Own(room)) = reader.body(slot) else { return };
        let block = match room.unit {
            Unit::Slot | Unit::Shape => None,
            // The slot refers to a structure, and that to the elements.
            Unit::Queued => subject.block_at(room.start).filter(|it| has_room_in(it, &room)),
            _ => memory.iter().find(|it| has_room_in(it, &room)).cloned(),
        };
        let is_in_slot = matches!(room.unit, Unit::Slot | Unit::Shape);
        if (is_in_slot || block.is_some()) && room.used_bytes() < room.bytes() {
            self.own.push((slot, room));
        }
        let requested = match room.unit {
            // With the terminator.
            Unit::Byte => room.bytes().saturating_add(1),
            Unit::Element | Unit::Queued | Unit::Variable => room.bytes(),
            // A table may have its bins elsewhere.
            _ => return,
        };
        // Of a hidden array that others share, the word for the capacity has another meaning.
        if let Some(block) = block.filter(|_| !subject.space.is_hidden_array(slot)) {
            let added = length(&block).saturating_sub(requested);
            self.rounded_bytes = self.rounded_bytes.saturating_add(added);
        }
    }
}

/// Returns true if the room is at the start of this memory and fits into it. A table may have its bins elsewhere.
fn has_room_in(memory: &Range<Address>, room: &Room) -> bool {
    let bytes = match room.unit {
        Unit::Entry | Unit::Named => room.capacity.saturating_mul(StTable::ENTRY_BYTES),
        _ => room.bytes(),
    };
    memory.start == room.start && bytes <= length(memory)
}
