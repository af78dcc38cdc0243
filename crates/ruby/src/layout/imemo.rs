//! The types of internal objects by their numbers, verified by the contents of such objects.
//!
//! The numbers differ by release, and no symbol reveals them. A wrong table would attribute the memory of one type to
//! another, so each table is checked against objects of the process: methods must refer to their class, bytecode must
//! have a label, and so on.

use image::Memory;
use linux::Address;

use crate::address_classifier::Place;
use crate::finding::Finding;
use crate::interpreter::Interpreter;
use crate::layout::class_names::ObjectReader;
use crate::layout::context::Context;
use crate::layout::object::Object;
use crate::model::class::ClassReference;
use crate::model::imemo::ImemoType::{
    self, Ast, Callcache, Callinfo, Cdhash, Constcache, Cref, CvarEntry, Env, Fields, Ifunc, Iseq,
    Memo, Ment, Number, ParserStrterm, Subclasses, Svar, ThrowData, Tmpbuf,
};
use crate::model::slot::{Slot, SlotType};
use crate::word::{word, words};

/// The number of types: it has four bits.
const TYPES: usize = 16;
/// The objects of each type that are examined.
const MAX_SAMPLES: usize = 64;
/// Fewer samples than these may all be garbage, and refute nothing.
const MIN_SAMPLES: usize = 8;
/// The words of a sample.
const WORDS: usize = 5;
/// The bytes of an iseq's body that are examined: in all releases its label and the iseq of its
/// method are among the first.
const BODY_BYTES: usize = 320;
/// The bytes of an object with instance variables that may point to these.
const OWNER_BYTES: usize = 320;

type Table = [ImemoType; TYPES];

/// `enum imemo_type` in internal/imemo.h, up to 3.4 ...
#[rustfmt::skip]
const UP_TO_3_4: Table = [
    Env, Cref, Svar, ThrowData, Ifunc, Memo, Ment, Iseq, Tmpbuf,
    Ast, ParserStrterm, Callinfo, Callcache, Constcache, Number(14), Number(15),
];
/// ... and from 4.0 on.
#[rustfmt::skip]
const FROM_4_0: Table = [
    Env, Cref, Svar, ThrowData, Ifunc, Memo, Ment, Iseq, Tmpbuf,
    CvarEntry, Callinfo, Callcache, Constcache, Fields, Subclasses, Cdhash,
];
/// Types that can be told from all others.
const DISTINCT: [ImemoType; 4] = [Iseq, Ment, Env, Callcache];
/// Types of which every Ruby has objects.
const ALWAYS: [ImemoType; 2] = [Iseq, Ment];

/// The numbers of these types. No object has that of a type that this Ruby does not have.
pub(crate) fn numbers_of<const N: usize>(
    interpreter: &Interpreter,
    types: [ImemoType; N],
) -> [u8; N] {
    let table = table_of(interpreter);
    types.map(|of| table.iter().position(|it| *it == of).unwrap_or(TYPES) as u8)
}

fn table_of(interpreter: &Interpreter) -> Table {
    if interpreter.has_late_imemo_types() { FROM_4_0 } else { UP_TO_3_4 }
}

/// An internal object: its slot, and its first words.
#[derive(Debug, Clone, Copy)]
struct Sample {
    slot: u32,
    words: [u64; WORDS],
}

/// Some internal objects of each number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    by_number: [Vec<Sample>; TYPES],
    /// The number of marked samples, which come first.
    marked: [usize; TYPES],
}

impl Samples {
    pub(crate) fn take(&mut self, slot: u32, object: &Object<'_>, is_marked: bool) {
        let number = usize::from(object.imemo_number()) % TYPES;
        let sample = Sample { slot, words: std::array::from_fn(|number| object.word(number)) };
        self.add(number, sample, is_marked);
    }

    /// Takes the samples of later slots.
    pub(crate) fn append(&mut self, more: &Self) {
        for (number, samples) in more.by_number.iter().enumerate() {
            for (index, &sample) in samples.iter().enumerate() {
                self.add(number, sample, index < more.marked[number]);
            }
        }
    }

    fn add(&mut self, number: usize, sample: Sample, is_marked: bool) {
        let (samples, marked) = (&mut self.by_number[number], &mut self.marked[number]);
        let has_room = samples.len() < MAX_SAMPLES;
        if has_room {
            samples.push(sample);
        }
        if is_marked && *marked < MAX_SAMPLES {
            if has_room {
                let last = samples.len() - 1;
                samples.swap(*marked, last);
            } else {
                samples[*marked] = sample;
            }
            *marked += 1;
        }
    }

    /// The samples of a number: marked ones if there are enough of them, since others may be garbage.
    fn of(&self, number: usize) -> &[Sample] {
        let (samples, marked) = (&self.by_number[number], self.marked[number]);
        if marked < MIN_SAMPLES { samples } else { &samples[..marked] }
    }
}

/// The types of internal objects by their numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImemoTypes(Table);

impl ImemoTypes {
    /// The types of the interpreter's release, if the `samples` agree with them. If a number has another type's objects, the table is
    /// that of another release, so only types that samples confirm keep their names; the others are numbers. If objects look like no
    /// known type, only their number has no name: a new form of one type casts no doubt on the others.
    pub(crate) fn verify(
        context: &Context<'_>,
        slots: &[Slot],
        classes: &[ClassReference],
        samples: &Samples,
    ) -> (Self, Option<Finding>) {
        let table = table_of(context.basics.interpreter);
        if samples.by_number.iter().all(Vec::is_empty) {
            return (Self(table), None);
        }
        let verifier = Verifier { context, slots, classes, table };
        let agreements: [_; TYPES] =
            std::array::from_fn(|number| verifier.agreement(samples, number));
        let is_confirmed = |number: usize| agreements[number] == Some(true);
        let is_of_release = (0..TYPES).all(|number| {
            let it = table[number];
            !verifier.look_like_another(samples.of(number), number, it)
                && (!ALWAYS.contains(&it) || is_confirmed(number))
        });
        if is_of_release {
            let types = std::array::from_fn(|number| match agreements[number] {
                Some(false) => Number(number as u8),
                _ => table[number],
            });
            return (Self(types), (types != table).then_some(Finding::InternalTypesUnknown));
        }
        let fields = verifier.find_fields(samples);
        let types = std::array::from_fn(|number| match table[number] {
            _ if Some(number) == fields => Fields,
            it if is_confirmed(number) => it,
            _ => Number(number as u8),
        });
        (Self(types), Some(Finding::InternalTypesUnknown))
    }

    pub(crate) fn of(self, number: u8) -> ImemoType {
        self.0[usize::from(number) % TYPES]
    }

    /// The type of the internal object at `at`; `None` for other objects.
    pub(crate) fn at(self, reader: ObjectReader<'_>, at: Address) -> Option<ImemoType> {
        Some(self.of(reader.imemo_number_at(at)?))
    }
}

/// Checks a table of types.
struct Verifier<'a> {
    context: &'a Context<'a>,
    slots: &'a [Slot],
    /// The classes that slots name.
    classes: &'a [ClassReference],
    table: Table,
}

impl Verifier<'_> {
    /// Returns true if objects of this number look like their type in the table and like no other, false if they do not,
    /// and `None` if that is unknown.
    fn agreement(&self, samples: &Samples, number: usize) -> Option<bool> {
        let it = self.table[number];
        let (all, samples) = (&samples.by_number[number], samples.of(number));
        if self.look_like_another(samples, number, it) {
            return Some(false);
        }
        self.look_like(samples, number, it).or_else(|| self.look_like(all, number, it))
    }

    /// Returns true if objects of this number look like another type than `than`.
    fn look_like_another(&self, samples: &[Sample], number: usize, than: ImemoType) -> bool {
        let mut others = DISTINCT.into_iter().filter(|other| *other != than);
        samples.len() >= MIN_SAMPLES
            && others.any(|other| self.look_like(samples, number, other) == Some(true))
    }

    /// Returns true if objects of this number look like type `it`, and `None` if there are too few,
    /// only some of them do, or nothing is known of the type.
    fn look_like(&self, samples: &[Sample], number: usize, it: ImemoType) -> Option<bool> {
        let (mut likes, mut count) = (0, 0);
        // A cached failure to find a method is a method entry without a definition, and looks like nothing. Nor does bytecode without
        // instructions: newer releases make such a dummy for each file that they load (`rb_iseq_alloc_with_dummy_path` in iseq.c).
        let is_empty = |sample: &&Sample| match it {
            Ment => sample.words[2] == 0,
            Iseq => {
                let head = self.read::<8>(Address(sample.words[2]));
                head.len() == 8 && word(&head, 0) >> 32 == 0
            }
            _ => false,
        };
        for sample in samples.iter().filter(|sample| !is_empty(sample)) {
            likes += usize::from(self.looks_like(sample, number, it)?);
            count += 1;
        }
        // Garbage may refer to objects that are gone, and new objects have no references yet.
        match likes * 4 {
            _ if count == 0 => None,
            likes if likes >= count * 3 => Some(true),
            likes if likes <= count && count >= MIN_SAMPLES => Some(false),
            _ => None,
        }
    }

    fn looks_like(&self, sample: &Sample, number: usize, it: ImemoType) -> Option<bool> {
        let [_, first, second, third, fourth] = sample.words;
        let is = |word, it| self.number_at(word).is_some_and(|number| self.table[number] == it);
        Some(match it {
            // The bytecode (frames of functions in C have none), the end of the variables, these, and their number.
            Env => {
                let before_end = second.wrapping_sub(third);
                (first == 0 || is(first, Iseq))
                    && self.is_private(third)
                    && (8..8 * u64::from(fourth as u32)).contains(&before_end)
            }
            // The defining class, the definition (malloc'ed), the name, the owner.
            Ment => self.is_private(second) && self.is_class(fourth),
            // The object that wraps it for programs, usually 0, and its body.
            Iseq => {
                let is_wrapper = |slot: Slot| slot.kind() == SlotType::DATA;
                (first == 0 || self.slot_at(first).is_some_and(is_wrapper))
                    && self.is_private(second)
                    && self.is_body(second, number)
            }
            // A class, its method, and the function that calls it.
            Callcache => (second == 0 || is(second, Ment)) && self.is_code(third),
            // The object that has the variables.
            Fields => self.may_have_fields(first),
            _ => return None,
        })
    }

    /// The number of `imemo_fields`, found without the table: its objects do not look like another
    /// type, and their second word refers to an object that agrees.
    fn find_fields(&self, samples: &Samples) -> Option<usize> {
        let mut found = (0..TYPES).filter(|&number| {
            let samples = samples.of(number);
            self.look_like(samples, number, Fields) == Some(true)
                && !self.look_like_another(samples, number, Fields)
                && samples.iter().any(|sample| self.has_owner(sample))
        });
        found.next().filter(|_| found.next().is_none())
    }

    /// Returns true if the object that the second word refers to has these variables: it points to
    /// them, as a class does, or has the same shape, in the upper half of its flags.
    fn has_owner(&self, sample: &Sample) -> bool {
        let Some(own) = self.context.heap.slot_address(sample.slot) else { return false };
        let [flags, owner, ..] = sample.words;
        let bytes = self.read::<OWNER_BYTES>(Address(owner));
        let (shape, of_owner) = (flags >> 32, word(&bytes, 0) >> 32);
        shape != 0 && shape == of_owner || words(&bytes).any(|word| word == own.0)
    }

    fn may_have_fields(&self, word: u64) -> bool {
        self.slot_at(word).is_some_and(|it| it.is_live() && it.kind() != SlotType::IMEMO)
    }

    /// Returns true if there may be the body of an iseq at `at`: it refers to strings, its labels, and
    /// to another iseq or itself.
    fn is_body(&self, at: u64, number: usize) -> bool {
        let bytes = self.read::<BODY_BYTES>(Address(at));
        let has_label = words(&bytes)
            .any(|word| self.slot_at(word).is_some_and(|slot| slot.kind() == SlotType::STRING));
        has_label && words(&bytes).any(|word| self.number_at(word) == Some(number))
    }

    fn read<const BYTES: usize>(&self, at: Address) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        let read = self.context.basics.image.read(at, &mut bytes);
        bytes.truncate(read);
        bytes
    }

    fn slot_at(&self, word: u64) -> Option<Slot> {
        self.slots.get(self.context.classifier.slot_at(word)? as usize).copied()
    }

    /// The number of the type of the internal object at this address.
    fn number_at(&self, word: u64) -> Option<usize> {
        let slot = self.slot_at(word).filter(|slot| slot.kind() == SlotType::IMEMO)?;
        match self.classes.get(slot.class() as usize) {
            Some(&ClassReference::Classless(_, number)) => Some(usize::from(number) % TYPES),
            _ => None,
        }
    }

    fn is_class(&self, word: u64) -> bool {
        let kinds = [SlotType::CLASS, SlotType::MODULE, SlotType::ICLASS];
        self.slot_at(word).is_some_and(|slot| kinds.contains(&slot.kind()))
    }

    fn is_private(&self, word: u64) -> bool {
        self.context.classifier.at(word) == Place::Private
    }

    fn is_code(&self, word: u64) -> bool {
        let mapping = self.context.basics.image.state.mappings.find(Address(word));
        mapping.is_some_and(|mapping| mapping.executable)
    }
}
