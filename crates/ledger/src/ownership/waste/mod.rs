//! Memory of live objects that nobody uses: room that objects keep and do not fill ([`rooms`]), the part of it against which there is a
//! step ([`spare`]), and objects that equal others, or have next to nothing in them ([`contents`]).

mod accounts;
mod contents;
mod rooms;
mod spare;
mod subject;

use std::collections::HashSet;

use allocator::HeapMap;
use image::{Image, SparseRows};
use linux::{Pages, each};
use ruby::{BodyReader, ObjectSpace, SlotType};

use crate::ownership::bits::Bits;
use crate::ownership::edges::Edge;
use crate::ownership::object_graph::{Node, ObjectGraph, Paths};
use crate::read_depth::ReadDepth;

pub use accounts::{
    ContentsAccounts, CopiesAccount, FewAccount, MAX_WASTE_GROUPS, TextAccount, WasteAccount,
    WasteAccounts, WasteKind, WasteSums,
};
pub use contents::FewKind;
use contents::{Contents, ContentsFinder};
use rooms::{Rooms, RoomsFinder};
pub use spare::{SpareAccount, SpareKind};
use subject::{Object, PORTIONS, Subject, portion};

/// Returns true for types of objects that have room, or contents to compare.
fn may_have_contents(kind: SlotType) -> bool {
    let kinds = [SlotType::STRING, SlotType::ARRAY, SlotType::HASH, SlotType::DATA, SlotType::FILE];
    kinds.contains(&kind) || [SlotType::STRUCT, SlotType::OBJECT].contains(&kind)
}

/// The facts on it that are read during the capture.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waste {
    rooms: Rooms,
    /// `None` unless it is wanted.
    contents: Option<Contents>,
}

impl Waste {
    /// Reads the room of objects and, if `read` has them, their contents. `of_slots` are the blocks that they refer to.
    pub(crate) fn read(
        image: &Image<'_>,
        heap: &HeapMap,
        space: &ObjectSpace,
        of_slots: &SparseRows<Edge>,
        read: ReadDepth,
    ) -> Self {
        let subject = Subject { image, heap, space, of_slots };
        let found = each(PORTIONS, |number| {
            let mut reader = BodyReader::new(image, space);
            let mut rooms = RoomsFinder::default();
            let mut contents = (read >= ReadDepth::Contents).then(ContentsFinder::default);
            let mut memory = Vec::new();
            for slot in portion(space.slots.len(), number) {
                if !may_have_contents(space.slots[slot as usize].kind()) {
                    continue;
                }
                memory.clear();
                memory.extend(subject.memory_of(slot));
                let object = Object { slot, memory: &memory };
                rooms.read(&subject, &mut reader, object);
                if let Some(contents) = &mut contents {
                    contents.read(&subject, &mut reader, object);
                }
            }
            rooms.end(&reader);
            (rooms, contents)
        });
        let (rooms, contents): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let contents: Option<Vec<_>> = contents.into_iter().collect();
        Self {
            rooms: Rooms::of(space, rooms),
            contents: contents
                .map(|parts| Contents::compare(&subject, parts, read == ReadDepth::Texts)),
        }
    }

    /// The objects that do not use all of their own memory, and the resident bytes that they do not use.
    pub(crate) fn unused(
        &self,
        graph: &ObjectGraph<'_>,
        pages: &Pages,
    ) -> impl Iterator<Item = (u32, u64)> {
        self.rooms.own.iter().map(|(slot, room)| {
            let sums = accounts::sums_of_room(graph, pages, *slot, room);
            (*slot, sums.unused_bytes)
        })
    }

    /// The memory of which objects do not need a quarter, and all that they do not use.
    pub(crate) fn accounts(
        &self,
        pages: &Pages,
        paths: &(ObjectGraph<'_>, Paths),
    ) -> (Vec<SpareAccount>, WasteAccounts) {
        let whole = self.used_as_a_whole(paths);
        (
            spare::accounts(&self.rooms, pages, paths, &whole),
            accounts::accounts(&self.rooms, self.contents.as_ref(), pages, paths, &whole),
        )
    }

    /// The strings with slices to which others than strings refer: they are used as a whole.
    fn used_as_a_whole(&self, (graph, paths): &(ObjectGraph<'_>, Paths)) -> HashSet<u32> {
        let is_string = |slot: u32| graph.kind(slot) == Some(SlotType::STRING);
        let strings = self.rooms.sliced.iter().map(|(slot, _)| *slot);
        let mut strings = strings.filter(|slot| is_string(*slot)).peekable();
        if strings.peek().is_none() {
            return HashSet::new();
        }
        let mut nodes = Bits::new(graph.len());
        strings.for_each(|slot| _ = nodes.insert(graph.slot(slot)));
        let is_string = |number: u32| match graph.node(number) {
            Node::Slot(slot) => is_string(slot),
            _ => false,
        };
        let whole = graph.referrers(paths, &nodes, |from, _| !is_string(from));
        let slot = |number: u32| match graph.node(number) {
            Node::Slot(slot) => Some(slot),
            _ => None,
        };
        whole.into_keys().filter_map(slot).collect()
    }
}
