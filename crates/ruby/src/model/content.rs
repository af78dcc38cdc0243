/// The part of malloc'ed memory that its object uses, and the use. Words behind that part, and words of memory without
/// references, are left over from earlier owners.
///
/// Four bytes, since there are millions: the three highest bits are the form, the others a number of
/// words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content(u32);

/// The meaning of the words in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Pointers, references to objects, or anything else.
    Words,
    /// References to objects, or values that are not objects (`VALUE`): no pointers to malloc'ed
    /// memory.
    Values,
    /// Entries of a hash table (`st_table_entry`): each a hash, a key and a value. Entries whose
    /// hash is all ones were deleted (`RESERVED_HASH_VAL` in st.c).
    Entries,
    /// Entries of a Set (`set_table_entry` in st.c, from 4.0 on): each a hash and a key, deleted ones as above.
    Members,
    /// The variables of a block that outlived its method (`rb_env_t`). The word at [`Form::OUTER`] before the end is the
    /// tagged address of the outer block's variables, if there is an outer block.
    Environment,
}

impl Form {
    /// The place, counted from the end, of the reference to the outer variables: `VM_ENV_DATA_INDEX_SPECVAL` is one word
    /// before the flags, and the object that has the environment one word behind them (vm_core.h).
    pub const OUTER: u64 = 3;
    /// The tag of that reference (`VM_GUARDED_PREV_EP`).
    pub const OUTER_TAG: u64 = 1;
}

/// The marks of a deleted key: `Qundef` of all versions. No object has such an address.
const DELETED_KEYS: [u64; 2] = [0x24, 0x34];
/// The most pairs of a small hash (`RHASH_AR_TABLE_MAX_SIZE`).
const MAX_PAIRS: u64 = 8;
const PAIRS: u32 = u32::MAX - 100;
const FORM_SHIFT: u32 = 29;
const MAX_WORDS: u64 = (1 << FORM_SHIFT) - 1;

impl Content {
    /// Nothing is known of it.
    pub const UNKNOWN: Self = Self(u32::MAX);
    /// Unknown too, but neither its words nor memory behind them refer to objects: the offsets of matches.
    pub const NO_OBJECTS: Self = Self(u32::MAX - 1);
    /// A chunk of the mark stack, whose objects are left over: only its last word, the pointer to the next chunk, counts.
    pub const MARK_STACK: Self = Self(u32::MAX - 2);
    /// The offset of that pointer, in bytes.
    pub const MARK_STACK_LINK: u64 = 8 * crate::areas::mark_stack::CHUNK_OBJECTS;
    /// A compiled regular expression, of which only some words are in use ([`pointers_of_regexp`](crate::pointers_of_regexp)).
    /// It refers to no objects either.
    pub const REGEXP: Self = Self(u32::MAX - 3);
    /// Unknown too, at an address that is an Integer of Ruby's.
    pub const AT_INTEGER: Self = Self(u32::MAX - 4);
    /// Text and numbers.
    pub const BYTES: Self = Self(0);

    /// The content with this [number](Self::number).
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// A number for the content.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// `words` words of a form; unknown if there are too many to count.
    #[must_use]
    pub fn new(form: Form, words: u64) -> Self {
        if words > MAX_WORDS {
            return Self::UNKNOWN;
        }
        let form = match form {
            Form::Words => 0,
            Form::Values => 1,
            Form::Entries => 2,
            Form::Environment => 3,
            Form::Members => 4,
        };
        Self(form << FORM_SHIFT | words as u32)
    }

    /// The pairs of a small hash, without those whose key was deleted: keys and values in turns (`ar_table`).
    #[must_use]
    pub fn of_pairs(pairs: u64) -> Self {
        if pairs > MAX_PAIRS { Self::UNKNOWN } else { Self(PAIRS + pairs as u32) }
    }

    /// The words of these pairs; `None` for other content.
    #[must_use]
    pub fn words_of_pairs(self) -> Option<u64> {
        self.pairs().map(|pairs| 2 * pairs)
    }

    /// Returns true for the mark of a key that was deleted.
    #[must_use]
    pub fn is_deleted_key(word: u64) -> bool {
        DELETED_KEYS.contains(&word)
    }

    fn pairs(self) -> Option<u64> {
        u64::from(self.0).checked_sub(PAIRS.into()).filter(|pairs| *pairs <= MAX_PAIRS)
    }

    /// Returns the words among these, which are its memory, that may be references to objects. Of unknown content these are
    /// all.
    pub fn references(self, words: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
        let used = self.used_words().unwrap_or(u64::MAX);
        let has_pairs = self.pairs().is_some();
        let mut is_deleted = false;
        words.zip(0..used).filter_map(move |(word, index)| {
            is_deleted &= index % 2 == 1;
            is_deleted |= has_pairs && index % 2 == 0 && Self::is_deleted_key(word);
            (!is_deleted).then_some(word)
        })
    }

    /// The number of words in use, and their form; `None` if that is unknown.
    #[must_use]
    pub fn known(self) -> Option<(Form, u64)> {
        let form = match self.0 >> FORM_SHIFT {
            0 => Form::Words,
            1 => Form::Values,
            2 => Form::Entries,
            3 => Form::Environment,
            4 => Form::Members,
            _ => return None,
        };
        Some((form, u64::from(self.0) & MAX_WORDS))
    }

    /// The words up to the last one in use; `None` if that is unknown.
    #[must_use]
    pub fn used_words(self) -> Option<u64> {
        match self {
            Self::MARK_STACK => Some(Self::MARK_STACK_LINK / 8 + 1),
            it if it.pairs().is_some() => it.words_of_pairs(),
            Self::REGEXP => Some(crate::layout::regexp::POINTERS[1].end / 8),
            _ => self.known().map(|(_, words)| words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_packed_and_unpacked() {
        assert_eq!([Content::UNKNOWN, Content::NO_OBJECTS].map(Content::known), [None; 2]);
        assert_eq!(Content::BYTES.known(), Some((Form::Words, 0)));
        let pairs: Vec<_> = [8, 9].map(Content::of_pairs).map(Content::used_words).into();
        assert_eq!(pairs, [Some(16), None]);
        let kept = |content: Content| content.references([1, 10, 0x34, 20, 2, 30, 3].into_iter());
        assert_eq!(kept(Content::of_pairs(3)).collect::<Vec<_>>(), [1, 10, 2, 30]);
        assert_eq!(kept(Content::new(Form::Values, 4)).collect::<Vec<_>>(), [1, 10, 0x34, 20]);
        assert_eq!(kept(Content::UNKNOWN).count(), 7);
        assert_eq!([Content::UNKNOWN, Content::NO_OBJECTS].map(Content::used_words), [None; 2]);
        let used = [Content::MARK_STACK, Content::REGEXP, Content::BYTES];
        assert_eq!(used.map(Content::used_words), [Some(501), Some(53), Some(0)]);
        for form in [Form::Words, Form::Values, Form::Entries, Form::Environment, Form::Members] {
            for words in [0, 1, 7, MAX_WORDS] {
                assert_eq!(Content::new(form, words).known(), Some((form, words)));
            }
            for words in [MAX_WORDS + 1, u64::MAX] {
                assert_eq!(Content::new(form, words), Content::UNKNOWN);
            }
        }
    }
}
