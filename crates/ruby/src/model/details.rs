use crate::model::slot::SlotType;

/// A fact about an object that is true or false.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// It has a write barrier.
    WriteBarrier,
    /// Minor collections do not collect it.
    Uncollectible,
    /// It is old.
    Old,
    /// It is frozen.
    Frozen,
    /// Its contents are in its slot.
    Embedded,
    /// Its contents are those of another object.
    Shared,
    /// It is a deduplicated string.
    Fstring,
    /// Its class is the one that [`Slot::class`](crate::Slot::class) names.
    NamedClass,
    /// It is a singleton class.
    Singleton = 15,
    /// Ractors may share it.
    Shareable = 16,
    /// It is a string that will be frozen: changing it warns.
    Chilled = 17,
    /// Its variables are in a table, since its class has objects of too many shapes.
    TooComplex = 18,
    /// The last collection found that it must not move.
    Pinned = 19,
    /// A collection has found it, and not searched it yet. Up to 3.2 also an old object that may refer to young ones.
    Marking = 20,
    /// It is old and may refer to young objects (from 3.3 on).
    Remembered = 21,
}

/// What is known of an object besides its type, its class and its references.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    facts: u32,
    /// The slot that the object has as its class, unless that is its [named class](Fact::NamedClass): mostly a singleton class.
    pub class: Option<u32>,
    /// The slot of the superclass of a class, which may be an included module, or of a hash's Proc for missing keys.
    pub related: Option<u32>,
    /// The bytes of a string, the elements of an array, the entries of a hash, the variables of an object, or the number of an
    /// IO's file: 32 bits with a sign, -1 if it is closed.
    pub count: Option<u64>,
    /// The bytes of its memory outside the slot, as Ruby counts them; `None` if that is unknown.
    pub outside: Option<u64>,
    /// The number of its shape (from 3.2 on).
    pub shape: Option<u32>,
    /// The number of a string's encoding.
    pub encoding: Option<u8>,
    /// What is known of the characters of a string: nothing, only ASCII, valid, or broken.
    pub code_range: u8,
    /// The name of a class, and if texts are wanted, the bytes of a string, or the digits of a number.
    pub text: Option<Vec<u8>>,
}

/// The details of all live objects, in the order of their slots: some bytes for each.
#[derive(Debug, Clone, Default)]
pub struct Details {
    parts: Vec<DetailsPart>,
    has_ages: bool,
}

/// The details of the objects in consecutive slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct DetailsPart {
    bytes: Vec<u8>,
    /// The slot of the last object.
    last: u32,
}

/// The facts of a packed detail, and the bits for the parts that follow. Those of few objects come last: the lowest 14 take two bytes.
const FACTS: u64 = 0xff_80ff;
/// The bits of an age, for objects whose age does not follow from [`Fact::Old`]: those of that and of the age that differ.
const AGE_SHIFT: u32 = 22;
const OLD_AGE: u32 = 3;
const HAS_CLASS: u64 = 1 << 8;
const HAS_RELATED: u64 = 1 << 9;
const HAS_COUNT: u64 = 1 << 10;
const HAS_OUTSIDE: u64 = 1 << 11;
const HAS_SHAPE: u64 = 1 << 12;
const IS_STRING: u64 = 1 << 13;
const HAS_TEXT: u64 = 1 << 14;

impl Detail {
    /// Returns true if it is so.
    #[must_use]
    pub fn is(&self, fact: Fact) -> bool {
        self.facts >> fact as u16 & 1 == 1
    }

    pub(crate) fn set(&mut self, fact: Fact, is_so: bool) {
        self.facts |= u32::from(is_so) << fact as u16;
    }

    /// The number of collections that it has survived, up to 3. See [`Details::has_ages`].
    #[must_use]
    pub fn age(&self) -> u8 {
        ((self.facts >> AGE_SHIFT ^ self.usual_age()) & OLD_AGE) as u8
    }

    /// Sets the age, behind [`Fact::Old`].
    pub(crate) fn set_age(&mut self, age: u8) {
        self.facts |= (u32::from(age) & OLD_AGE ^ self.usual_age()) << AGE_SHIFT;
    }

    fn usual_age(&self) -> u32 {
        if self.is(Fact::Old) { OLD_AGE } else { 0 }
    }

    /// The bytes behind the text of a string: as many as its smallest character has. The numbers are those of Ruby's own encodings
    /// (encindex.h).
    #[must_use]
    pub fn terminator_bytes(&self) -> u64 {
        match self.encoding {
            Some(3 | 4 | 7) => 2,
            Some(5 | 6 | 8) => 4,
            _ => 1,
        }
    }

    /// The name of a string's encoding, if it is one of Ruby's own, which have the same number in all versions (encindex.h).
    #[must_use]
    pub fn encoding_name(&self) -> Option<&'static str> {
        const NAMES: [&str; 12] = [
            "BINARY",
            "UTF-8",
            "US-ASCII",
            "UTF-16BE",
            "UTF-16LE",
            "UTF-32BE",
            "UTF-32LE",
            "UTF-16",
            "UTF-32",
            "UTF8-MAC",
            "EUC-JP",
            "Windows-31J",
        ];
        NAMES.get(usize::from(self.encoding?)).copied()
    }

    /// The bytes that a string has room for, without the terminator; `None` for other objects, and without memory of its own.
    #[must_use]
    pub fn capacity(&self, kind: SlotType) -> Option<u64> {
        let outside = self.outside.filter(|bytes| kind == SlotType::STRING && *bytes > 0)?;
        Some(outside - self.terminator_bytes().min(outside))
    }
}

impl DetailsPart {
    pub(crate) fn push(&mut self, slot: u32, detail: &Detail) {
        let Detail { facts, class, related, count, outside, shape, encoding, code_range, text } =
            detail;
        let bit = |is_there: bool, bit: u64| if is_there { bit } else { 0 };
        let head = u64::from(*facts)
            | bit(class.is_some(), HAS_CLASS)
            | bit(related.is_some(), HAS_RELATED)
            | bit(count.is_some(), HAS_COUNT)
            | bit(outside.is_some(), HAS_OUTSIDE)
            | bit(shape.is_some(), HAS_SHAPE)
            | bit(encoding.is_some(), IS_STRING)
            | bit(text.is_some(), HAS_TEXT);
        // Slots are mostly neighbours.
        self.number(u64::from(slot - self.last));
        self.last = slot;
        self.number(head);
        [class, related].into_iter().flatten().for_each(|it| self.number(u64::from(*it)));
        [count, outside].into_iter().flatten().for_each(|it| self.number(*it));
        shape.iter().for_each(|it| self.number(u64::from(*it)));
        if let Some(encoding) = encoding {
            self.number(u64::from(*encoding) << 2 | u64::from(*code_range & 3));
        }
        if let Some(text) = text {
            self.number(text.len() as u64);
            self.bytes.extend(text);
        }
    }

    /// Adds a number: seven bits in each byte, the lowest first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

impl Details {
    pub(crate) fn new(mut parts: Vec<DetailsPart>, has_ages: bool) -> Self {
        parts.iter_mut().for_each(|part| part.bytes.shrink_to_fit());
        Self { parts, has_ages }
    }

    /// Returns true if the ages of objects are known, and whether they are [pinned](Fact::Pinned), [marking](Fact::Marking) and
    /// [remembered](Fact::Remembered).
    #[must_use]
    pub fn has_ages(&self) -> bool {
        self.has_ages
    }

    /// The slot and the details of each live object.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Detail)> + '_ {
        self.parts.iter().flat_map(|part| {
            let mut reader = Reader(&part.bytes);
            let mut slot = 0;
            std::iter::from_fn(move || {
                if reader.0.is_empty() {
                    return None;
                }
                slot += reader.number() as u32;
                Some((slot, reader.detail()))
            })
        })
    }
}

/// Reads what [`DetailsPart::push`] has written.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 || shift > 63 {
                return number;
            }
        }
    }

    fn detail(&mut self) -> Detail {
        let head = self.number();
        let has = |bit: u64| head & bit != 0;
        let mut detail = Detail { facts: (head & FACTS) as u32, ..Detail::default() };
        detail.class = has(HAS_CLASS).then(|| self.number() as u32);
        detail.related = has(HAS_RELATED).then(|| self.number() as u32);
        detail.count = has(HAS_COUNT).then(|| self.number());
        detail.outside = has(HAS_OUTSIDE).then(|| self.number());
        detail.shape = has(HAS_SHAPE).then(|| self.number() as u32);
        if has(IS_STRING) {
            let number = self.number();
            (detail.encoding, detail.code_range) = (Some((number >> 2) as u8), (number & 3) as u8);
        }
        if has(HAS_TEXT) {
            let length = (self.number() as usize).min(self.0.len());
            let (text, rest) = self.0.split_at(length);
            (detail.text, self.0) = (Some(text.to_vec()), rest);
        }
        detail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_packed_and_unpacked() {
        let mut string = Detail {
            class: Some(70_000),
            count: Some(u64::MAX),
            outside: Some(300),
            encoding: Some(4),
            code_range: 2,
            text: Some(b"a\0b".to_vec()),
            ..Detail::default()
        };
        string.set(Fact::Singleton, true);
        string.set(Fact::Chilled, true);
        string.set(Fact::WriteBarrier, true);
        string.set(Fact::Remembered, true);
        string.set_age(2);
        let class =
            Detail { related: Some(3), shape: Some(u32::MAX), text: None, ..Detail::default() };
        let all = [(5, string.clone()), (6, Detail::default()), (900_000, class)];
        let mut parts = [DetailsPart::default(), DetailsPart::default()];
        all.iter().take(2).for_each(|(slot, detail)| parts[0].push(*slot, detail));
        all.iter().skip(2).for_each(|(slot, detail)| parts[1].push(*slot, detail));
        assert_eq!(Details::new(parts.into(), true).iter().collect::<Vec<_>>(), all);
        let facts = [Fact::Singleton, Fact::Chilled, Fact::Old, Fact::Shared, Fact::Shareable];
        assert_eq!(facts.map(|it| string.is(it)), [true, true, false, false, false]);
        for (is_old, age) in [(true, 3), (false, 3), (true, 1), (false, 0)] {
            let mut detail = Detail::default();
            detail.set(Fact::Old, is_old);
            detail.set_age(age);
            assert_eq!((detail.age(), detail.facts >> AGE_SHIFT == 0), (age, is_old == (age == 3)));
        }
        assert_eq!((string.age(), string.is(Fact::Remembered)), (2, true));
        assert_eq!(string.capacity(SlotType::STRING), Some(298));
        assert_eq!(string.encoding_name(), Some("UTF-16LE"));
    }
}
