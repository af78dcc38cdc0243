use super::span::Span;
use crate::module_data::ModuleData;

/// More classes than a release has (`kClassSizesMax`).
const MAX_CLASSES: usize = 128;
/// Fewer classes than one has.
const MIN_CLASSES: usize = 16;
/// The smallest object, in builds for either alignment.
const SMALLEST: [u32; 2] = [8, 16];
/// More bytes than an object of any class has.
const MAX_BYTES: u32 = 1 << 20;

/// The bytes of the objects of each size class (`SizeMap::class_to_size_`, src/common.h). Settings may change the classes, so they are
/// read. Class 0 has no objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Classes(Vec<u64>);

impl Classes {
    /// Everything in the library's data that may be the table.
    pub(super) fn candidates(data: &ModuleData) -> impl Iterator<Item = Self> {
        data.positions(MIN_CLASSES as u64).flat_map(|(_, words)| {
            // Most positions are no table, so the first three elements decide at once.
            let [first, second] =
                [words[0], words[1]].map(|word| [word as u32, (word >> 32) as u32]);
            let begins = |elements: [u32; 3]| {
                elements[0] == 0 && SMALLEST.contains(&elements[1]) && elements[1] < elements[2]
            };
            let starts = [
                begins([first[0], first[1], second[0]]).then_some(0),
                begins([first[1], second[0], second[1]]).then_some(1),
            ];
            starts.into_iter().flatten().filter_map(|skipped| Self::decode(words, skipped))
        })
    }

    fn decode(words: &[u64], skipped: usize) -> Option<Self> {
        let halves = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        let elements = halves.skip(skipped + 1).take(MAX_CLASSES - 1).take_while(|it| *it != 0);
        let mut sizes = vec![0];
        sizes.extend(elements.map(u64::from));
        let fits = sizes.is_sorted_by(|a, b| a < b)
            && sizes.iter().all(|size| size.is_multiple_of(8) && *size <= u64::from(MAX_BYTES));
        (fits && sizes.len() >= MIN_CLASSES).then_some(Self(sizes))
    }

    /// The bytes of the objects of a class.
    pub(super) fn bytes(&self, class: u8) -> Option<u64> {
        self.0.get(usize::from(class)).copied().filter(|bytes| *bytes > 0)
    }

    /// The bytes of the objects of a class, and the number of them that a span has.
    pub(super) fn objects(&self, span: &Span, class: u8, shift: u32) -> Option<(u64, u64)> {
        let bytes = self.bytes(class)?;
        let objects = (span.pages << shift) / bytes;
        (objects > 0).then_some((bytes, objects))
    }

    /// The classes that have objects, with their bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, u64)> {
        (0..).zip(self.0.iter().copied()).skip(1)
    }
}
