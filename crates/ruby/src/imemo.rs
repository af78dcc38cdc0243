//! The names of internal objects' types, verified by what such objects consist of.
//!
//! The numbers differ by release, and no symbol tells them. A table that is wrong would give one
//! kind's memory to another, so each table is held against objects of the process: those that it
//! calls methods must name their class, those that it calls bytecode must have a label, and so on.

use capture::{Address, Finding, Memory, Severity};

use crate::context::Context;
use crate::object::Object;
use crate::object_space::{Slot, SlotType};
use crate::slots;
use crate::territory::Place;
use crate::word::word;

/// There are so many types: the number has four bits.
pub(crate) const TYPES: usize = 16;
/// Objects of each type that are looked at ...
const MAX_SAMPLES: usize = 64;
/// ... fewer may all be garbage, and contradict nothing ...
const MIN_SAMPLES: usize = 8;
/// ... and the words of each.
const WORDS: usize = 5;
/// The bytes of an iseq's body that are looked at: its label and the iseq of its method are among
/// the first in all releases.
const BODY_BYTES: usize = 320;
/// Bytes of the slot of an object with variables that may name these.
const OWNER_BYTES: usize = 320;

/// `enum imemo_type` of internal/imemo.h, up to 3.4 ...
const UP_TO_3_4: [&str; TYPES] = [
    "env",
    "cref",
    "svar",
    "throw_data",
    "ifunc",
    "memo",
    "ment",
    "iseq",
    "tmpbuf",
    "ast",
    "parser_strterm",
    "callinfo",
    "callcache",
    "constcache",
    "14",
    "15",
];
/// ... and from 4.0 on.
const FROM_4_0: [&str; TYPES] = [
    "env",
    "cref",
    "svar",
    "throw_data",
    "ifunc",
    "memo",
    "ment",
    "iseq",
    "tmpbuf",
    "cvar_entry",
    "callinfo",
    "callcache",
    "constcache",
    "fields",
    "subclasses",
    "cdhash",
];
/// Instance variables of objects that have no room for them, from 4.0 on.
const FIELDS: &str = "fields";
/// Types that no other is like; every Ruby has objects of the first two.
const DISTINCT: [&str; 4] = ["iseq", "ment", "env", "callcache"];
const ALWAYS: &[&str] = DISTINCT.split_at(2).0;

/// An internal object: its slot, and its first words.
#[derive(Debug, Clone, Copy)]
struct Sample {
    slot: u32,
    words: [u64; WORDS],
}

/// Some internal objects of each type.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples([Vec<Sample>; TYPES]);

impl Samples {
    pub(crate) fn take(&mut self, slot: u32, object: &Object<'_>) {
        let samples = &mut self.0[usize::from(object.imemo_type()) % TYPES];
        if samples.len() < MAX_SAMPLES {
            samples.push(Sample { slot, words: std::array::from_fn(|number| object.word(number)) });
        }
    }
}

/// The names of internal objects' types by their numbers; a number stands for itself where its name
/// is not known.
#[derive(Debug, Clone)]
pub(crate) struct Names([Option<&'static str>; TYPES]);

impl Names {
    /// The names that the interpreter's release has, if what is known of internal objects holds for
    /// the `samples`.
    pub(crate) fn verify(
        context: &Context<'_>,
        slots: &[Slot],
        samples: &Samples,
    ) -> (Self, Option<Finding>) {
        let table = if context.interpreter.is_at_least(3, 5) { &FROM_4_0 } else { &UP_TO_3_4 };
        let facts = Facts { context, slots, table };
        if samples.0.iter().all(Vec::is_empty) || facts.hold(samples) {
            return (Self(table.map(Some)), None);
        }
        let fields = facts.find_fields(samples);
        let names = std::array::from_fn(|number| (Some(number) == fields).then_some(FIELDS));
        let what = "the types of Ruby's internal objects are not those of its version: they are \
                    shown by number, and what they hold is in ruby.vm";
        (Self(names), Some(Finding::general(Severity::Warning, what)))
    }

    /// The name of the type with this number, as classes without a name of their own have it.
    pub(crate) fn of(&self, number: u8) -> String {
        match self.0[usize::from(number) % TYPES] {
            Some(name) => format!("(imemo_{name})"),
            None => format!("(imemo_{number})"),
        }
    }
}

/// What is known of internal objects, under the names of `table`.
struct Facts<'a> {
    context: &'a Context<'a>,
    slots: &'a [Slot],
    table: &'a [&'static str; TYPES],
}

impl Facts<'_> {
    /// Whether objects are what the table calls them, no others are, and there are some that can be
    /// told.
    fn hold(&self, samples: &Samples) -> bool {
        let mut told = 0;
        for (number, name) in self.table.iter().enumerate() {
            let samples = &samples.0[number];
            match self.is_mostly(samples, number, name) {
                Some(false) => return false,
                Some(true) => told += usize::from(ALWAYS.contains(name)),
                None => {}
            }
            if self.is_like_another(samples, number, name) {
                return false;
            }
        }
        told == ALWAYS.len()
    }

    /// Whether objects of the type with this number are what another name than `name` says.
    fn is_like_another(&self, samples: &[Sample], number: usize, name: &str) -> bool {
        let others = DISTINCT.iter().filter(|other| **other != name);
        let are_enough = samples.len() >= MIN_SAMPLES;
        are_enough
            && others.into_iter().any(|other| self.is_mostly(samples, number, other) == Some(true))
    }

    /// Whether objects of the type with this number can be what `name` says; `None` where there are
    /// none, nothing is known of such objects, or it holds for some of them only.
    fn is_mostly(&self, samples: &[Sample], number: usize, name: &str) -> Option<bool> {
        let mut likes = 0;
        for sample in samples {
            likes += usize::from(self.is(sample, number, name)?);
        }
        // Garbage names what is gone already, and what is being made has nothing to name yet.
        match likes * 4 {
            _ if samples.is_empty() => None,
            likes if likes >= samples.len() * 3 => Some(true),
            likes if likes <= samples.len() && samples.len() >= MIN_SAMPLES => Some(false),
            _ => None,
        }
    }

    fn is(&self, sample: &Sample, number: usize, name: &str) -> Option<bool> {
        let [_, first, second, third, fourth] = sample.words;
        let is = |word, name| self.imemo_at(word).is_some_and(|it| self.table[it] == name);
        Some(match name {
            // The bytecode; where its variables are; these.
            "env" => is(first, "iseq") && self.is_private(third),
            // The class for which it was called; how, which malloc has; its name; its class.
            "ment" => self.is_private(second) && self.is_class(fourth),
            // What wraps it for programs, mostly nothing; its body.
            "iseq" => {
                let is_wrapper = |slot: Slot| slot.kind == SlotType::DATA;
                (first == 0 || self.slot_at(first).is_some_and(is_wrapper))
                    && self.is_private(second)
                    && self.is_body(second, number)
            }
            // A class; its method; the function that calls it.
            "callcache" => (second == 0 || is(second, "ment")) && self.is_code(third),
            // The object.
            FIELDS => self.may_have_fields(first),
            _ => return None,
        })
    }

    /// The type of instance variables, told without the table: objects of no other type that can be
    /// told, whose second word names an object that says the same.
    fn find_fields(&self, samples: &Samples) -> Option<usize> {
        let mut found = (0..TYPES).filter(|&number| {
            let samples = &samples.0[number];
            self.is_mostly(samples, number, FIELDS) == Some(true)
                && !self.is_like_another(samples, number, FIELDS)
                && samples.iter().any(|sample| self.has_owner(sample))
        });
        found.next().filter(|_| found.next().is_none())
    }

    /// Whether the object that the second word names has these variables: it names them, as a class
    /// does, or is of their shape, which is in the upper half of the flags.
    fn has_owner(&self, sample: &Sample) -> bool {
        let Some(own) = self.context.heap.slot_address(sample.slot) else { return false };
        let [flags, owner, ..] = sample.words;
        let bytes = self.read::<OWNER_BYTES>(Address(owner));
        let (shape, of_owner) = (flags >> 32, word(&bytes, 0) >> 32);
        shape != 0 && shape == of_owner || words(&bytes).any(|word| word == own.0)
    }

    fn may_have_fields(&self, word: u64) -> bool {
        self.slot_at(word).is_some_and(|it| it.is_live() && it.kind != SlotType::IMEMO)
    }

    /// Whether the body of an iseq is at `at`: it names strings, its labels, and another iseq or
    /// itself.
    fn is_body(&self, at: u64, number: usize) -> bool {
        let bytes = self.read::<BODY_BYTES>(Address(at));
        let names_text = words(&bytes)
            .any(|word| self.slot_at(word).is_some_and(|slot| slot.kind == SlotType::STRING));
        names_text && words(&bytes).any(|word| self.imemo_at(word) == Some(number))
    }

    fn read<const BYTES: usize>(&self, at: Address) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        let read = self.context.image.read(at, &mut bytes);
        bytes.truncate(read);
        bytes
    }

    fn slot_at(&self, word: u64) -> Option<Slot> {
        self.slots.get(self.context.territory.slot_at(word)? as usize).copied()
    }

    /// The number of the type of the internal object at this address.
    fn imemo_at(&self, word: u64) -> Option<usize> {
        let slot = self.slot_at(word).filter(|slot| slot.kind == SlotType::IMEMO)?;
        slots::as_internal(slot.class).map(|(_, number)| usize::from(number) % TYPES)
    }

    fn is_class(&self, word: u64) -> bool {
        let kinds = [SlotType::CLASS, SlotType::MODULE, SlotType::ICLASS];
        self.slot_at(word).is_some_and(|slot| kinds.contains(&slot.kind))
    }

    fn is_private(&self, word: u64) -> bool {
        self.context.territory.at(word) == Place::Private
    }

    fn is_code(&self, word: u64) -> bool {
        let mapping = self.context.image.state.mappings.find(Address(word));
        mapping.is_some_and(|mapping| mapping.executable)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    (0..bytes.len() / 8).map(|number| word(bytes, number * 8))
}
