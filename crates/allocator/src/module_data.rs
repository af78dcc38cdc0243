use image::elf::Module;
use image::{Memory, Unreadable};
use linux::Address;

/// More bytes than the data of any C library or allocator has.
const MAX_DATA: u64 = 16 << 20;

/// The words in the writable data of a module.
pub(crate) struct ModuleData {
    ranges: Vec<(Address, Vec<u64>)>,
}

impl ModuleData {
    pub(crate) fn read(memory: &dyn Memory, module: &Module) -> Result<Self, Unreadable> {
        let mut ranges = Vec::new();
        for range in &module.writable {
            let start = range.start.align_up(8);
            let words = (range.end - start).min(MAX_DATA) / 8;
            let mut bytes = vec![0; words as usize * 8];
            memory.read_exact(start, &mut bytes)?;
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            ranges.push((start, words.collect()));
        }
        Ok(Self { ranges })
    }

    /// Each address of the data with the words from there on, if there are at least `min_words`.
    pub(crate) fn positions(&self, min_words: u64) -> impl Iterator<Item = (Address, &[u64])> {
        self.ranges.iter().flat_map(move |(start, words)| {
            let last = (words.len() + 1).saturating_sub(min_words as usize);
            (0..last).map(move |index| (start.offset(index as u64 * 8), &words[index..]))
        })
    }

    pub(crate) fn contains(&self, at: Address) -> bool {
        self.ranges
            .iter()
            .any(|(start, words)| at >= *start && at - *start < words.len() as u64 * 8)
    }
}
