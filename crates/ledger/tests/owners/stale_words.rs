//! Words of earlier owners in the memory of objects whose layout is known.

use ledger::{Ledger, OwnerKind};
use linux::{Address, Mapping};
use testkit::{RubyRelease, Word};

use super::{Draft, NOWHERE, bytes, held};

const OBJECT: u8 = 0x01;
const REGEXP: u8 = 0x06;
const HASH: u8 = 0x08;
const FILE: u8 = 0x0b;
const NIL: Word = Word::Value(8);
/// `ROBJECT_EMBED` and `RHASH_ST_TABLE_FLAG`.
const IN_SLOT: u64 = 1 << 13;
const HAS_TABLE: u64 = 1 << 15;
/// The shape of synthetic heaps of 3.2 for two variables, with room for more.
const TWO_VARIABLES: u64 = 5 << 32;

/// Asserts that only the words in use of an object's memory are read, not the words of an earlier owner in the slack
/// behind them. `draw` adds an object with both. Its arguments are the address of an object that a word in use may
/// refer to, and the addresses of an object and its chunk that stale words refer to.
fn assert_slack_is_not_read(
    release: RubyRelease,
    draw: impl Fn(&mut Draft, u64, [u64; 2]) -> u64,
) -> Ledger {
    let mut draft = Draft::of(release);
    let [used, stale] = [30, 40].map(|words| draft.chunk(words));
    let referred = draft.object("InUse", used);
    let victim = draft.object("Victim", stale);
    let object = draw(&mut draft, referred, [victim, stale]);
    let ledger = draft.draw_up(&[object]);
    assert_eq!(held(&ledger, "InUse"), (bytes(30), 0), "{release:?}");
    assert_eq!(held(&ledger, "Victim"), (bytes(40), 0), "{release:?}");
    assert_eq!(path(&ledger, "Victim"), None, "{release:?}");
    ledger
}

/// The path from the root that retains most objects of a class.
fn path(ledger: &Ledger, name: &str) -> Option<String> {
    let owner = ledger.owners.iter().find(|owner| owner.name == name).unwrap();
    owner.retainers.first().and_then(|retainer| retainer.path.clone())
}

/// An unused slot behind six variables contained an old pointer to a hash table of 12.6 MiB, so the retaining paths
/// were wrong.
#[test]
fn stale_words_behind_the_variables_in_a_slot_are_not_read() {
    let ledger = assert_slack_is_not_read(RubyRelease::V3_2, |draft, referred, [victim, stale]| {
        let class = draft.ruby.class("Holder", draft.ruby.object_class());
        let words = [Word::Value(referred), NIL, Word::Value(victim), Word::Pointer(stale)];
        draft.ruby.slot(OBJECT, IN_SLOT | TWO_VARIABLES, class, &words)
    });
    assert_eq!(path(&ledger, "InUse").as_deref(), Some("(stacks) → Holder → InUse"));
}

#[test]
fn stale_words_behind_the_variables_in_a_chunk_are_not_read() {
    for release in [RubyRelease::V3_1, RubyRelease::V3_2] {
        let ledger = assert_slack_is_not_read(release, |draft, referred, [victim, stale]| {
            let variables = draft.chunk(12);
            for (word, to) in (0..).zip([referred, 8, victim, stale]) {
                draft.point(variables, word, to);
            }
            let class = draft.ruby.class("Holder", draft.ruby.object_class());
            match release {
                RubyRelease::V3_1 => {
                    let words = [Word::Value(2), Word::Pointer(variables), Word::Value(0)];
                    draft.ruby.slot(OBJECT, 0, class, &words)
                }
                _ => draft.ruby.slot(OBJECT, TWO_VARIABLES, class, &[Word::Pointer(variables)]),
            }
        });
        assert_eq!(held(&ledger, "Holder"), (bytes(12), 0), "{release:?}");
        assert_eq!(path(&ledger, "InUse").as_deref(), Some("(stacks) → Holder → InUse"));
    }
}

#[test]
fn stale_entries_of_a_hash_table_are_not_read() {
    let ledger = assert_slack_is_not_read(RubyRelease::V3_1, |draft, referred, [victim, stale]| {
        let (table, entries) = (draft.chunk(7), draft.chunk(8 * 3));
        // The capacity as a power of two, the functions, the count, the bins, the first entry and the bound.
        for (word, value) in (0..).zip([3, NOWHERE, 1, 0, 0, 1, entries]) {
            draft.point(table, word, value);
        }
        // A hash, a key and a value each.
        for (word, value) in (0..).zip([77, referred, 8, 78, victim, stale, 79, stale, victim]) {
            draft.point(entries, word, value);
        }
        let class = draft.ruby.class("Table", draft.ruby.object_class());
        draft.ruby.slot(HASH, HAS_TABLE, class, &[Word::Pointer(table), NIL, NIL])
    });
    assert_eq!(held(&ledger, "Table"), (bytes(7) + bytes(8 * 3), 0));
    assert_eq!(path(&ledger, "InUse").as_deref(), Some("(stacks) → Table → InUse"));
}

/// 1,011 of the 1,024 words in the write buffer of an IO were old pointers, so 48 % of RSS was attributed to IO.
#[test]
fn the_buffer_of_an_io_is_not_read() {
    let ledger = assert_slack_is_not_read(RubyRelease::V3_1, |draft, _, [victim, stale]| {
        let (io, buffer) = (draft.chunk(30), draft.chunk(1024));
        // The pointer, the offset and length, the capacity.
        for (word, value) in (3..).zip([buffer, 0, 8192]) {
            draft.point(io, word, value);
        }
        for word in (0..1024).step_by(2) {
            draft.point(buffer, word, victim);
            draft.point(buffer, word + 1, stale);
        }
        let class = draft.ruby.class("IO", draft.ruby.object_class());
        draft.ruby.slot(FILE, 0, class, &[Word::Pointer(io)])
    });
    assert_eq!(held(&ledger, "IO"), (bytes(30) + bytes(1024), 0));
}

/// A compiled regular expression has a table of characters and two distances, which are set only for some ways to search.
#[test]
fn words_that_a_regexp_never_set_are_not_read() {
    let ledger = assert_slack_is_not_read(RubyRelease::V3_1, |draft, referred, [victim, stale]| {
        let (compiled, program) = (draft.chunk(57), draft.chunk(8));
        // The program, its length and capacity, and the way to search.
        for (word, value) in [(0, program), (1, 2 << 32 | 2), (12, 1 << 30)] {
            draft.point(compiled, word, value);
        }
        for (word, value) in [(18, stale), (19, victim), (50, stale), (53, stale), (54, victim)] {
            draft.point(compiled, word, value);
        }
        let class = draft.ruby.class("Regexp", draft.ruby.object_class());
        draft.ruby.slot(REGEXP, 0, class, &[Word::Pointer(compiled), Word::Pointer(referred)])
    });
    assert_eq!(held(&ledger, "Regexp"), (bytes(57) + bytes(8), 0));
}

#[test]
fn stale_words_behind_an_environment_are_not_read() {
    let ledger = assert_slack_is_not_read(RubyRelease::V3_1, |draft, referred, [victim, stale]| {
        // Six words of it are in use.
        let memory = draft.chunk(50);
        draft.point(memory, 1, referred);
        draft.point(memory, 6, victim);
        draft.point(memory, 7, stale);
        draft.ruby.imemo_as("env", 0, memory)
    });
    let owners = ledger.owners.iter().filter(|owner| owner.kind == OwnerKind::Internal);
    let held: Vec<_> = owners.map(|it| (it.exclusive_bytes, it.shared_bytes)).collect();
    assert!(held.contains(&(bytes(50), 0)), "{held:?}");
    assert_eq!(path(&ledger, "InUse").as_deref(), Some("(stacks) → InUse"));
}

/// Memory of many objects in one mapping had no owner, or a wrong one, if an old word of another object led to it first.
#[test]
fn a_mapping_is_of_the_class_with_most_pointers_to_it() {
    const MAPPED: u64 = 0x5556_0000_0000;
    let mut draft = Draft::new();
    let old = draft.chunk(20);
    draft.point(old, 3, MAPPED + 5 * 4096 + 8);
    let mut live = vec![draft.object("Old", old)];
    for page in 0..200 {
        let buffer = draft.chunk(6);
        draft.point(buffer, 0, MAPPED + page * 4096);
        live.push(draft.object("Buffer", buffer));
        draft.memory.write_u64(MAPPED + page * 4096, 1);
    }
    let range = Address(MAPPED)..Address(MAPPED + (1 << 20));
    draft.memory.mappings.push(Mapping::anonymous(range));
    let owner = |live: &[u64]| draft.draw_up(live).unknown[0].owner.clone();
    assert_eq!(owner(&live).as_deref(), Some("Buffer"));
    // Objects that were used to write there are garbage, and only those of extensions have pointers to mappings.
    assert_eq!(owner(&[]), None);
    let class = draft.ruby.class("Match", draft.ruby.object_class());
    let old = draft.chunk(20);
    draft.point(old, 3, MAPPED + 8);
    let live = [draft.ruby.object(class, &[Word::Pointer(old)])];
    assert_eq!(draft.draw_up(&live).unknown[0].owner, None);
}
