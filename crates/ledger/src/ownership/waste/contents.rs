//! Objects that equal others of their class, or have next to nothing in them. Only hashes of their contents are kept.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;
use image::{Memory, Window};
use linux::{Address, each, length};
use ruby::{BodyReader, ClassKind, Content, DELETED_HASH, ObjectSpace, SlotType, TextHome};

use crate::ownership::bits::Bits;
use crate::pages::pages_of;

use super::subject::{Object, Subject};

/// The bytes of strings that are read at a time.
const BLOCK: usize = 256 << 10;
/// The bytes of values that are read at a time.
const VALUES_BLOCK: usize = 32 << 10;
/// The words of the largest object, other than a string, that is compared. It fits in a half of [`VALUES_BLOCK`].
const MAX_WORDS: u64 = 2 << 10;
/// An object is mostly `nil` if at most one part in this many is not.
const FEW_PARTS: usize = 8;
/// Objects in others are compared down to this depth. What is deeper has to be the same object.
const MAX_DEPTH: usize = 2;
/// The number of texts of which some are listed.
const MAX_CANDIDATES: usize = 200;
/// The counters of strings by length, a power of two: there are few lengths of which many strings are read in vain.
const LENGTHS_LOG2: u32 = 16;
/// The places of objects by hash, a power of two.
const PLACES_LOG2: u32 = 22;
/// All strings together are read once, and no more than this many times the resident memory: absent pages are zeros without end.
const MAX_TIMES: u64 = 2;

/// The result of the comparison.
#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    /// Objects of one class with the same contents as others: the number of these and the slot, ascending by slot.
    pub(super) copies: Vec<(u32, u32)>,
    /// The numbers of contents are below this one.
    pub(super) contents: usize,
    /// Objects with next to nothing in them.
    pub(super) few: Vec<(u32, FewKind)>,
    /// The texts whose copies may have most memory.
    pub(super) texts: Vec<RepeatedText>,
    /// The number of strings whose text was not read, and so not compared.
    pub(super) left_out: u64,
}

/// A text that several strings have.
#[derive(Debug, Clone)]
pub(super) struct RepeatedText {
    /// The number of these contents.
    pub(super) number: u32,
    /// Its length in bytes.
    pub(super) length: u64,
    /// Its beginning; `None` unless it is wanted.
    pub(super) text: Option<String>,
}

/// The kinds of objects with next to nothing in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FewKind {
    /// No element, no text, or no variable.
    Nothing,
    /// One element.
    OneElement,
    /// Variables, members or several elements that are all `nil`.
    OnlyNil,
    /// Members, variables or elements, of which at least seven in eight are `nil`, but not all.
    MostlyNil,
}

/// The objects in a part of all slots that are to be compared.
#[derive(Debug, Default)]
pub(super) struct ContentsFinder {
    texts: Vec<Text>,
    values: Vec<Values>,
    few: Vec<(u32, FewKind)>,
    /// Empty objects, and a number that distinguishes them: the encoding of a string, or the default of a hash.
    empty: Vec<(u32, u64)>,
    /// The strings of which others are slices. Programs do not know most of them.
    sliced: Vec<u32>,
}

/// The text of a string.
#[derive(Debug, Clone, Copy)]
struct Text {
    at: Address,
    bytes: u64,
    slot: u32,
    encoding: u8,
    is_slice: bool,
}

impl Text {
    /// Slices come last, and others in the order of their addresses.
    fn order(&self) -> u64 {
        self.at.0 | u64::from(self.is_slice) << 63
    }
}

/// The words of another object.
#[derive(Debug, Clone, Copy)]
struct Values {
    at: Address,
    /// Distinguishes objects with the same words: by the names of their variables, or the default of a hash.
    key: u64,
    slot: u32,
    words: u16,
    entry: Entry,
}

/// The words that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// A value.
    Value,
    /// A key and a value.
    Pair,
    /// So many words, the first of which is the hash of the key in the second one.
    Hashed(u8),
}

impl Entry {
    /// The words of entries in use. Keys that are equal for a hash have one hash in it: for `compare_by_identity`, others are not.
    fn parts(self, words: &[u64]) -> impl Iterator<Item = &u64> {
        let words_of_entry = match self {
            Self::Value => 1,
            Self::Pair => 2,
            Self::Hashed(words) => words.into(),
        };
        // The words of deleted entries stay.
        let is_in_use = move |entry: &&[u64]| match self {
            Self::Value => true,
            Self::Pair => !Content::is_deleted_key(entry[0]),
            Self::Hashed(_) => entry[0] != DELETED_HASH && !Content::is_deleted_key(entry[1]),
        };
        words.chunks_exact(words_of_entry).filter(is_in_use).flatten()
    }
}

impl ContentsFinder {
    /// Reads the object in a slot.
    pub(super) fn read(
        &mut self,
        subject: &Subject<'_>,
        reader: &mut BodyReader<'_>,
        Object { slot, memory }: Object<'_>,
    ) {
        let its = subject.space.slots[slot as usize];
        let has_elements = match its.kind() {
            SlotType::STRING | SlotType::ARRAY | SlotType::HASH | SlotType::DATA => true,
            SlotType::STRUCT | SlotType::OBJECT => false,
            _ => return,
        };
        if !its.is_live() || is_hidden(subject.space, its.class()) {
            return;
        }
        let Some((contents, names)) = reader.contents(slot) else { return };
        let count = contents.count();
        let key = match contents {
            ruby::Contents::Text { encoding, .. } => encoding.into(),
            ruby::Contents::Pairs { default: [word, is_proc], .. } => word.rotate_left(1) ^ is_proc,
            ruby::Contents::Entries { functions, default: [word, is_proc], .. } => {
                functions.0.rotate_left(7) ^ word.rotate_left(1) ^ is_proc
            }
            ruby::Contents::Values { .. } => names,
        };
        match count {
            0 if has_elements || its.kind() == SlotType::OBJECT => {
                self.few.push((slot, FewKind::Nothing));
                self.empty.push((slot, key));
                return;
            }
            0 => return,
            1 if has_elements && its.kind() != SlotType::STRING => {
                self.few.push((slot, FewKind::OneElement));
            }
            _ => {}
        }
        match contents {
            ruby::Contents::Text { at, bytes, encoding, home } => {
                let fits = |it: Range<Address>| it.contains(&at) && bytes <= it.end - at;
                let is_read = match home {
                    TextHome::Slot => true,
                    TextHome::Own => memory.iter().any(|it| it.start == at && fits(it.clone())),
                    TextHome::Shared(owner) => {
                        self.sliced.push(owner);
                        // The owner may have the bytes in its slot.
                        let in_slot = subject.slot(owner);
                        subject.memory_of(owner).chain(in_slot).any(fits)
                    }
                };
                if is_read {
                    let is_slice = matches!(home, TextHome::Shared(_));
                    self.texts.push(Text { at, bytes, slot, encoding, is_slice });
                }
            }
            ruby::Contents::Values { at, words }
            | ruby::Contents::Pairs { at, words, .. }
            | ruby::Contents::Entries { at, words, .. }
                if words <= MAX_WORDS =>
            {
                let entry = match contents {
                    ruby::Contents::Pairs { .. } => Entry::Pair,
                    ruby::Contents::Entries { entry_words, .. } => Entry::Hashed(entry_words),
                    _ => Entry::Value,
                };
                let fits = |it: &Range<Address>| it.contains(&at) && 8 * words <= it.end - at;
                // Slices, and arrays of a literal, share the elements of a hidden array.
                let mut owners = subject.space.links.of(slot).iter();
                if reader.slot(slot).iter().any(fits)
                    || memory.iter().any(fits)
                    || subject.space.transient_heap.iter().any(fits)
                    || owners.any(|&owner| {
                        subject.space.is_hidden_array(owner)
                            && subject
                                .slot(owner)
                                .into_iter()
                                .chain(subject.memory_of(owner))
                                .any(|it| fits(&it))
                    })
                {
                    self.values.push(Values { at, key, slot, words: words as u16, entry });
                }
            }
            _ => {}
        }
    }
}

impl Contents {
    /// Compares the objects in all parts of the slots.
    pub(super) fn compare(
        subject: &Subject<'_>,
        parts: Vec<ContentsFinder>,
        with_texts: bool,
    ) -> Self {
        let (mut texts, mut values, mut few) = (Vec::new(), Vec::new(), Vec::new());
        let (mut empty, mut sliced) = (Vec::new(), Vec::new());
        for part in parts {
            texts.push(part.texts);
            values.push(part.values);
            few.extend(part.few);
            empty.extend(part.empty);
            sliced.extend(part.sliced);
        }
        let space = subject.space;
        // An object with methods of its own equals no other.
        if !space.singletons.is_empty() {
            let mut own = Bits::new(space.slots.len());
            space.singletons.iter().for_each(|(object, _)| _ = own.insert(*object));
            let is_alike = |slot: u32| !own.contains(slot);
            texts.iter_mut().for_each(|part| part.retain(|it| is_alike(it.slot)));
            values.iter_mut().for_each(|part| part.retain(|it| is_alike(it.slot)));
            empty.retain(|(slot, _)| is_alike(*slot));
        }
        let state = RandomState::new();
        // By slot; 0 for objects without a hash, which are like no others.
        let mut hashes = vec![0; space.slots.len()];
        let left_out = hash_texts(subject, &state, texts, &mut hashes);
        for (slot, key) in empty {
            hashes[slot as usize] = state.hash_one((type_of(space, slot), key));
        }
        sliced.into_iter().for_each(|slot| hashes[slot as usize] = 0);
        let mut are_compared = Bits::new(space.slots.len());
        values.iter().flatten().for_each(|it| _ = are_compared.insert(it.slot));
        // The hashes of objects depend on those of others that are compared, too.
        for depth in 0..MAX_DEPTH {
            let found = each(values.len(), |part| {
                hash_values(subject, &state, &values[part], &hashes, &are_compared)
            });
            for (part, found) in values.iter_mut().zip(found) {
                let known = part.iter().zip(found.hashes).filter(|(_, hash)| *hash != 0);
                known.for_each(|(object, hash)| hashes[object.slot as usize] = hash);
                if depth == 0 {
                    few.extend(found.nils);
                }
                let mut unsettled = found.unsettled.into_iter().peekable();
                let mut place = 0;
                part.retain(|_| {
                    place += 1;
                    unsettled.next_if_eq(&(place - 1)).is_some()
                });
            }
        }
        let (copies, groups) = equal_objects(&hashes, &state);
        let texts = repeated_texts(subject, &groups, with_texts);
        Self { copies, contents: groups.len(), few, texts, left_out }
    }
}

/// The texts whose copies have most memory, garbage included. The texts themselves are only read if they are wanted.
fn repeated_texts(subject: &Subject<'_>, groups: &[Equal], with_texts: bool) -> Vec<RepeatedText> {
    let space = subject.space;
    let is_string = |slot: u32| space.slots[slot as usize].kind() == SlotType::STRING;
    let is_text = |(_, group): &(u32, &Equal)| group.objects > 1 && is_string(group.first);
    let bytes = |group: &Equal| {
        let memory = subject.memory_of(group.first).map(|it| length(&it));
        let each = memory.fold(space.slot_bytes(group.first), u64::saturating_add);
        each.saturating_mul(group.objects.into())
    };
    let groups = (0..).zip(groups).filter(is_text);
    let mut groups: Vec<_> =
        groups.map(|(number, group)| (bytes(group), group.first, number)).collect();
    groups.sort_unstable_by_key(|&(bytes, slot, _)| (Reverse(bytes), slot));
    groups.truncate(MAX_CANDIDATES);
    let mut reader = BodyReader::new(subject.image, space);
    let text = |(_, slot, number)| {
        let length = reader.contents(slot).map_or(0, |it| it.0.count());
        let text = with_texts.then(|| space.text(subject.image, slot)).flatten();
        RepeatedText { number, length, text }
    };
    groups.into_iter().map(text).collect()
}

/// Returns true for the class of objects that Ruby hides from programs.
fn is_hidden(space: &ObjectSpace, class: u32) -> bool {
    let class = space.classes.get(class as usize);
    class.is_none_or(|class| matches!(class.kind, ClassKind::Hidden(_)))
}

/// The class and the type of the object in a slot.
fn type_of(space: &ObjectSpace, slot: u32) -> (u32, u8) {
    let slot = space.slots[slot as usize];
    (slot.class(), slot.kind().0)
}

/// Finds the hash of each string that may be a copy of another one. Returns the number of strings that were not read.
fn hash_texts(
    subject: &Subject<'_>,
    state: &RandomState,
    texts: Vec<Vec<Text>>,
    hashes: &mut [u64],
) -> u64 {
    let key = |text: &Text| (text.bytes, text.encoding, type_of(subject.space, text.slot));
    // Many strings have a length of their own, and need not be read. Lengths with the same place are no loss.
    let place = |text: &Text| {
        let (bytes, encoding, (class, _)) = key(text);
        let mixed = bytes ^ u64::from(class) << 40 ^ u64::from(encoding) << 56;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - LENGTHS_LOG2)) as usize
    };
    let mut counts = vec![0_u8; 1 << LENGTHS_LOG2];
    for text in texts.iter().flatten() {
        let count = &mut counts[place(text)];
        *count = count.saturating_add(1);
    }
    let all = Address(0)..Address(u64::MAX);
    let resident = pages_of(&subject.image.state).resident_bytes(&all);
    // Many slices may share the bytes of one string.
    let budgets = [(); 2].map(|()| AtomicU64::new(MAX_TIMES.saturating_mul(resident)));
    let take = |text: &Text| {
        let budget = &budgets[usize::from(text.is_slice)];
        let rest = |budget: u64| budget.checked_sub(text.bytes);
        budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
    };
    let texts: Vec<Mutex<Vec<Text>>> = texts.into_iter().map(Mutex::new).collect();
    let found = each(texts.len(), |part| {
        let mut texts =
            texts[part].lock().map(|mut it| std::mem::take(&mut *it)).unwrap_or_default();
        texts.retain(|it| counts[place(it)] > 1);
        texts.sort_unstable_by(|one, other| {
            let order = one.order().cmp(&other.order());
            order.then_with(|| (one.bytes, one.slot).cmp(&(other.bytes, other.slot)))
        });
        let mut window = Window::new(subject.image, BLOCK);
        let (mut end, mut last) = (Address(0), None);
        let hash = |text: Text| {
            let place = (text.at, key(&text));
            let known = last.filter(|(known, _)| *known == place).map(|(_, hash)| hash);
            // Each byte belongs to one string, and to its slices.
            let is_read = || (text.is_slice || text.at >= end) && take(&text);
            let hash = match known.filter(|_| text.is_slice) {
                Some(hash) => Some(hash),
                None => is_read().then(|| hash_of(&mut window, state, key(&text), &text)).flatten(),
            };
            // 0 stands for a text that was not read.
            let Some(hash) = hash else { return (text.slot, 0) };
            last = Some((place, hash));
            if !text.is_slice {
                end = text.at.offset(text.bytes);
            }
            (text.slot, hash)
        };
        texts.into_iter().map(hash).collect::<Vec<_>>()
    });
    let mut left_out = 0;
    for text in found.into_iter().flatten() {
        let (slot, hash) = text;
        hashes[slot as usize] = hash;
        left_out += u64::from(hash == 0);
    }
    left_out
}

/// The hash of a string's text; `None` if a part of it cannot be read.
fn hash_of(
    window: &mut Window<'_>,
    state: &RandomState,
    key: impl Hash,
    text: &Text,
) -> Option<u64> {
    let mut hasher = state.build_hasher();
    key.hash(&mut hasher);
    let mut done = 0;
    while done < text.bytes {
        let bytes = (text.bytes - done).min(BLOCK as u64 / 2);
        hasher.write(window.bytes(text.at.offset(done), bytes as usize).ok()?);
        done += bytes;
    }
    Some(hasher.finish())
}

/// Calls `each` with the place and the words of each object, as far as they can be read.
fn with_words(
    subject: &Subject<'_>,
    values: &[Values],
    mut each: impl FnMut(usize, &Values, &[u64]),
) {
    let mut window = Window::new(subject.image as &dyn Memory, VALUES_BLOCK);
    let mut words = Vec::with_capacity(MAX_WORDS as usize);
    for (place, object) in values.iter().enumerate() {
        let Ok(bytes) = window.bytes(object.at, 8 * usize::from(object.words)) else { continue };
        words.clear();
        words.extend(
            bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().expect("8 bytes"))),
        );
        each(place, object, &words);
    }
}

/// The hashes of objects.
struct HashedValues {
    /// Of each object; 0 if it could not be read.
    hashes: Vec<u64>,
    /// The objects all or most of whose variables, members or elements are `nil`.
    nils: Vec<(u32, FewKind)>,
    /// The places of the objects that contain others which are compared: their hashes change with those of these.
    unsettled: Vec<u32>,
}

/// Hashes these objects. What they contain counts by its hash or, without one, by its address.
fn hash_values(
    subject: &Subject<'_>,
    state: &RandomState,
    values: &[Values],
    hashes: &[u64],
    are_compared: &Bits,
) -> HashedValues {
    let space = subject.space;
    let nil = space.nil();
    let mut found =
        HashedValues { hashes: vec![0; values.len()], nils: Vec::new(), unsettled: Vec::new() };
    with_words(subject, values, |place, object, words| {
        let kind = space.slots[object.slot as usize].kind();
        let may_be = match kind {
            SlotType::ARRAY => words.len() > 1,
            SlotType::OBJECT | SlotType::STRUCT => true,
            _ => false,
        };
        if may_be {
            let others = words.iter().filter(|word| **word != nil).count();
            let kind = match others {
                0 => Some(FewKind::OnlyNil),
                _ if others <= words.len() / FEW_PARTS => Some(FewKind::MostlyNil),
                _ => None,
            };
            found.nils.extend(kind.map(|kind| (object.slot, kind)));
        }
        let mut is_settled = true;
        let mut value = |word: u64| {
            let Some(slot) = space.slot_at(Address(word)) else { return word };
            is_settled &= !are_compared.contains(slot);
            match hashes[slot as usize] {
                0 => word,
                hash => hash,
            }
        };
        let mut hasher = state.build_hasher();
        (type_of(space, object.slot), object.key).hash(&mut hasher);
        object.entry.parts(words).for_each(|&word| hasher.write_u64(value(word)));
        found.hashes[place] = hasher.finish();
        if !is_settled {
            found.unsettled.push(place as u32);
        }
    });
    found
}

/// Objects with the same contents.
struct Equal {
    objects: u32,
    first: u32,
}

/// Numbers the hashes that several slots may have, and returns these slots and the groups by number. Most other slots are left out, so that
/// the table of hashes is small. Nothing is sorted: the memory of neighbours is near, and so in the caches of the processor.
fn equal_objects(hashes: &[u64], state: &RandomState) -> (Vec<(u32, u32)>, Vec<Equal>) {
    let place = |hash: u64| (hash >> (u64::BITS - PLACES_LOG2)) as u32;
    let [mut once, mut twice] = [(); 2].map(|()| Bits::new(1 << PLACES_LOG2));
    for hash in hashes.iter().filter(|hash| **hash != 0) {
        if !once.insert(place(*hash)) {
            twice.insert(place(*hash));
        }
    }
    let (mut copies, mut groups) = (Vec::new(), Vec::<Equal>::new());
    let mut numbers = HashMap::with_hasher(state.clone());
    let slots = hashes.iter().copied().zip(0..);
    for (hash, slot) in slots.filter(|(hash, _)| *hash != 0 && twice.contains(place(*hash))) {
        let number = *numbers.entry(hash).or_insert_with(|| {
            groups.push(Equal { objects: 0, first: slot });
            groups.len() as u32 - 1
        });
        groups[number as usize].objects += 1;
        copies.push((number, slot));
    }
    copies.retain(|(number, _)| groups[*number as usize].objects > 1);
    (copies, groups)
}
