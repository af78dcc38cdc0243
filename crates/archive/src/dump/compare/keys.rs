//! Which objects of two dumps are the same.

use std::hash::{BuildHasher, RandomState};

use super::lines::{DumpError, Ignored, Input, Line, read};

/// The most objects of a dump: that of a process with more has some 30 GiB.
pub(super) const MAX_OBJECTS: usize = 200_000_000;

/// Makes a number of what stays the same while an object lives. Nobody who writes a dump knows two objects with the same number.
#[derive(Default)]
pub(super) struct Hasher(RandomState);

impl Hasher {
    pub(super) fn key<R>(&self, object: &Line<'_, R>) -> u64 {
        // Up to 3.1, the second word of an internal object stands there as its class, which changes.
        let class = if object.kind.is("IMEMO") { 0 } else { object.class.0 };
        let Line { address, kind, imemo_type, .. } = object;
        self.0.hash_one((address.0, kind.bytes(), class, imemo_type.bytes()))
    }
}

/// Some of the objects of a dump.
#[derive(Default)]
pub(super) struct Keys {
    keys: Vec<u64>,
    /// The last collection before an object of the dump was allocated, if the process traced that.
    newest: Option<u64>,
    /// All of its objects.
    pub(super) objects: u64,
    pub(super) unreadable_lines: u64,
}

impl Keys {
    /// Reads the objects of a dump for which `wanted` is true, by their numbers and traced generations.
    pub(super) fn read(
        file: &mut dyn Input,
        hasher: &Hasher,
        wanted: impl Fn(u64, Option<u64>) -> bool,
    ) -> Result<Self, DumpError> {
        let mut all = Self::default();
        all.unreadable_lines = read(file, |line: Line<'_, Ignored>| {
            if line.is_object() {
                all.objects += 1;
                all.newest = all.newest.max(line.generation);
                let key = hasher.key(&line);
                if !line.is_garbage() && wanted(key, line.generation) {
                    all.keys.push(key);
                }
            }
            if all.keys.len() > MAX_OBJECTS { Err(DumpError::TooMuch) } else { Ok(()) }
        })?;
        if all.objects == 0 {
            return Err(DumpError::NoDump);
        }
        all.keys.sort_unstable();
        Ok(all)
    }

    /// Returns true if an object of a later or earlier dump is among them.
    pub(super) fn has(&self, key: u64, generation: Option<u64>) -> bool {
        let is_younger = self.newest.is_some() && generation > self.newest;
        !is_younger && self.keys.binary_search(&key).is_ok()
    }
}
