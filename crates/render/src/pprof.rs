//! Profiles in pprof's format (profile.proto), which `go tool pprof`, Pyroscope and Parca read. Written by hand: it takes six kinds
//! of messages.

use std::collections::HashMap;

use formats::{Container, Node, NodeProcess, Owned, Owner};
use linux::one_line;

use crate::stacks::{Stacks, UNKNOWN, Weight, name};

/// The longest name of a frame. Names come from foreign processes.
const MAX_NAME: usize = 200;
/// Separates the parts of a retaining path.
const ARROW: &str = " → ";

/// Returns the owners of all processes of a node as a profile: the stack of an object is its retaining path, from the root on.
///
/// The values are numbers of objects and bytes. The sum of the bytes is that of the owners.
#[must_use]
pub fn owners_pprof(node: &Node, unix_ns: u64) -> Vec<u8> {
    let mut profile = Profile::of_owners(unix_ns);
    for NodeProcess { place, owned, .. } in &node.processes {
        let Container { namespace, pod, name } = &place.container;
        let labels = [
            ("namespace", namespace.as_str()),
            ("pod", pod),
            ("container", name),
            ("role", &place.role),
        ];
        for owner in owned.iter().flat_map(|Owned { owners, .. }| owners) {
            profile.add_owner(&labels, owner);
        }
    }
    profile.pprof()
}

/// Returns the owners of one process as a profile of the time at which it was captured.
#[must_use]
pub fn owners_profile(owned: &Owned) -> Profile {
    let mut profile = Profile::of_owners(owned.unix_ms.saturating_mul(1_000_000));
    owned.owners.iter().for_each(|owner| profile.add_owner(&[], owner));
    profile
}

impl Stacks {
    /// Returns the stacks as a profile of the time `unix_ns`.
    #[must_use]
    pub fn profile(&self, unix_ns: u64) -> Profile {
        let kind = match self.weight {
            Weight::GrownBytes => ("growth", "bytes"),
            Weight::KeptObjects => ("kept", "count"),
        };
        let mut profile = Profile::new(&[kind], unix_ns, (self.elapsed_ms * 1e6) as u64);
        for (frames, weight) in self.stacks() {
            let frames: Vec<String> = frames.into_iter().map(name).collect();
            let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
            profile.add(&frames, &[weight], &[]);
        }
        profile.add(&[UNKNOWN], &[self.unknown], &[]);
        profile
    }
}

/// Stacks with values, as profilers and their servers read them.
#[derive(Debug)]
pub struct Profile {
    /// The strings; the first one is empty.
    pub(crate) strings: Vec<String>,
    numbers: HashMap<String, u64>,
    /// The names of functions by their ids, which begin with 1. Each has one location, with the same id.
    ids: HashMap<u64, u64>,
    pub(crate) functions: Vec<u64>,
    /// The kind and unit of each value.
    pub(crate) values: Vec<(u64, u64)>,
    /// The kind of the profile, the same as that of memory in Go, by which servers find it.
    pub(crate) period: (u64, u64),
    pub(crate) samples: Vec<Sample>,
    pub(crate) unix_ns: u64,
    pub(crate) duration_ns: u64,
}

/// A stack: its locations, the innermost one first, the values, and labels.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) stack: Vec<u64>,
    pub(crate) values: Vec<u64>,
    pub(crate) labels: Vec<(u64, u64)>,
}

/// The name in a step of a path: of `String × 2`, each of which retains the next one, `String`. A frame with the number would be a
/// function of its own beside those of other paths.
fn without_count(step: &str) -> &str {
    step.split_once(" × ").map_or(step, |(name, _)| name)
}

impl Profile {
    /// An empty profile with so many kinds of values.
    fn new(values: &[(&str, &str)], unix_ns: u64, duration_ns: u64) -> Self {
        let mut profile = Self {
            strings: vec![String::new()],
            numbers: [(String::new(), 0)].into(),
            ids: HashMap::new(),
            functions: Vec::new(),
            values: Vec::new(),
            period: (0, 0),
            samples: Vec::new(),
            unix_ns,
            duration_ns,
        };
        profile.values = values
            .iter()
            .map(|(kind, unit)| (profile.string(kind), profile.string(unit)))
            .collect();
        profile.period = (profile.string("space"), profile.string("bytes"));
        profile
    }

    fn of_owners(unix_ns: u64) -> Self {
        Self::new(&[("inuse_objects", "count"), ("inuse_space", "bytes")], unix_ns, 0)
    }

    /// Adds the objects of an owner, by their retaining paths.
    fn add_owner<'a>(&mut self, labels: &[(&'a str, &'a str)], owner: &'a Owner) {
        let cause = ("cause", owner.cause.map_or("", ledger::Cause::name));
        let labels = &[labels, &[cause]].concat();
        let (mut objects, mut bytes) = (owner.objects, owner.bytes());
        for kept in &owner.kept_by {
            let frames: Vec<&str> = match &kept.path {
                Some(path) => path.split(ARROW).map(without_count).collect(),
                None => vec!["(garbage)", &owner.owner],
            };
            // Bytes of a path may be of pages that are not resident.
            let part = (kept.objects.min(objects), kept.bytes.min(bytes));
            (objects, bytes) = (objects - part.0, bytes - part.1);
            self.add(&frames, &[part.0, part.1], labels);
        }
        self.add(&[&owner.owner], &[objects, bytes], labels);
    }

    fn string(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.strings.len() as u64;
        self.strings.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The location with this name.
    fn location(&mut self, name: &str) -> u64 {
        let name: String = one_line(name).chars().take(MAX_NAME).collect();
        let name = self.string(&name);
        let next = self.functions.len() as u64 + 1;
        let id = *self.ids.entry(name).or_insert(next);
        if id == next {
            self.functions.push(name);
        }
        id
    }

    /// Adds a stack; its outermost frame comes first.
    fn add(&mut self, frames: &[&str], values: &[u64], labels: &[(&str, &str)]) {
        if values.iter().all(|value| *value == 0) {
            return;
        }
        let stack = frames.iter().rev().map(|frame| self.location(frame)).collect();
        let labels = labels.iter().filter(|(_, value)| !value.is_empty());
        let labels =
            labels.map(|(key, value)| (self.string(key), self.string(&one_line(value)))).collect();
        self.samples.push(Sample { stack, values: values.to_vec(), labels });
    }

    /// Returns it in pprof's format.
    #[must_use]
    pub fn pprof(&self) -> Vec<u8> {
        let mut all = Message::default();
        let value_type = |(kind, unit): (u64, u64)| {
            let mut message = Message::default();
            message.number(1, kind);
            message.number(2, unit);
            message
        };
        self.values.iter().for_each(|value| all.message(1, &value_type(*value)));
        for Sample { stack, values, labels } in &self.samples {
            let mut sample = Message::default();
            sample.packed(1, stack);
            sample.packed(2, values);
            for (key, value) in labels {
                let mut label = Message::default();
                label.number(1, *key);
                label.number(2, *value);
                sample.message(3, &label);
            }
            all.message(2, &sample);
        }
        for (id, name) in (1..).zip(&self.functions) {
            let mut line = Message::default();
            line.number(1, id);
            let mut location = Message::default();
            location.number(1, id);
            location.message(4, &line);
            all.message(4, &location);
            let mut function = Message::default();
            function.number(1, id);
            function.number(2, *name);
            function.number(3, *name);
            all.message(5, &function);
        }
        for text in &self.strings {
            all.bytes(6, text.as_bytes());
        }
        all.number(9, self.unix_ns);
        all.number(10, self.duration_ns);
        all.message(11, &value_type(self.period));
        all.number(12, 1);
        all.number(14, self.values.last().map_or(0, |(kind, _)| *kind));
        formats::gzip(&all.0)
    }
}

/// A message of Protocol Buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }

    fn packed(&mut self, field: u64, values: &[u64]) {
        let mut packed = Self::default();
        values.iter().for_each(|value| packed.varint(*value));
        self.message(field, &packed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_variable_and_zero_is_left_out() {
        let mut message = Message::default();
        message.number(1, 300);
        message.number(2, 0);
        message.packed(3, &[1, u64::MAX]);
        let most = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(message.0, [&[8, 0xac, 2, 0x1a, 11, 1][..], &most].concat());
    }

    #[test]
    fn a_name_is_kept_once_and_is_one_short_line() {
        let mut profile = Profile::new(&[("space", "bytes")], 0, 0);
        let first = profile.location("String");
        assert_eq!(profile.location("String"), first);
        profile.location(&format!("a\n\u{1b}[31m{}", "x".repeat(5000)));
        let name = profile.strings.last().unwrap();
        assert!(name.starts_with("a  [31mxx") && name.chars().count() == MAX_NAME, "{name}");
    }
}
