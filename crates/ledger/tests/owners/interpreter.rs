//! The interpreter's own memory by kind, and its bytecode by file.

use ledger::{Cause, Finding, InterpreterAccount, InterpreterKind, Ledger, OwnerAccount, PartSize};
use testkit::{RubyHeap, RubyRelease, Word};

use super::{Draft, bytes, held};

const T_ICLASS: u8 = 0x1c;
const BODY_WORDS: u64 = 60;

/// The resident bytes of a chunk with room for `words` words, without its header.
fn usable(words: u64) -> u64 {
    bytes(words) - 8
}

/// The account, which must agree with the ledger.
fn account(ledger: &Ledger) -> &InterpreterAccount {
    let account = ledger.interpreter.as_ref().unwrap();
    let sum =
        |of: fn(&PartSize) -> u64| -> u64 { account.kinds.iter().map(|kind| of(&kind.size)).sum() };
    assert_eq!(sum(|size| size.resident_bytes), ledger.causes[Cause::RubyVm]);
    let owners = ledger.owners.iter().filter(|owner| owner.cause == Cause::RubyVm);
    let owners: Vec<&OwnerAccount> = owners.collect();
    let slot_bytes: u64 = owners.iter().map(|owner| owner.slot_bytes).sum();
    let objects: u64 = owners.iter().map(|owner| owner.objects).sum();
    assert_eq!((sum(|size| size.slot_bytes), sum(|size| size.objects)), (slot_bytes, objects));
    let of_files: Option<[u64; 3]> = account.files.as_ref().map(|files| {
        let sum = |of: fn(&PartSize) -> u64| files.iter().map(|file| of(&file.size)).sum();
        [sum(|it| it.objects), sum(|it| it.slot_bytes), sum(|it| it.resident_bytes)]
    });
    let bytecode = size(account, InterpreterKind::Bytecode);
    let bytecode = [bytecode.objects, bytecode.slot_bytes, bytecode.resident_bytes];
    assert!(of_files.is_none_or(|files| files == bytecode), "{of_files:?}, {bytecode:?}");
    account
}

fn size(account: &InterpreterAccount, kind: InterpreterKind) -> PartSize {
    account.kinds.iter().find(|it| it.kind == kind).unwrap().size
}

fn of_file(account: &InterpreterAccount, path: &str) -> PartSize {
    let files = account.files.as_ref().unwrap();
    files.iter().find(|file| file.path.as_deref() == Some(path)).unwrap().size
}

impl Draft {
    /// Adds an iseq of this path, and returns its body.
    fn iseq(&mut self, path: u64) -> u64 {
        let body = self.chunk(BODY_WORDS);
        let iseq = self.ruby.iseq(path, body, RubyHeap::ISEQ_LOCATION);
        self.ruby.mark(iseq, false);
        body
    }
}

#[test]
fn blocks_of_bytecode_belong_to_the_file_of_their_iseq() {
    let mut draft = Draft::of(RubyRelease::V3_1);
    // Without entries of methods the types of internal objects are not trusted.
    draft.ruby.imemo("ment");
    let kernel = draft.ruby.path("<internal:kernel>");
    let big = draft.ruby.path("/x/gems/big-1.0/lib/big.rb");
    let small = draft.ruby.path("/x/gems/small-2.0/lib/small.rb");
    let mut expected = [0; 3];
    for number in 0..40 {
        let body = draft.iseq(kernel);
        expected[0] += usable(BODY_WORDS);
        let which = if number % 4 == 0 { 2 } else { 1 };
        let own = draft.iseq(if which == 1 { big } else { small });
        let [code, table, within] = [100 + number, 8, 20].map(|words| draft.chunk(words));
        draft.point(own, 1, code);
        draft.point(own, 25, table);
        // Only a pointer into its middle leads to the last one.
        draft.point(code, 7, within + 32);
        expected[which] += usable(BODY_WORDS) + usable(100 + number) + usable(8) + usable(20);
        // A chunk that two iseqs lead to belongs to the nearer one.
        draft.point(table, 3, body);
    }
    let ledger = draft.draw_up(&[]);
    let account = account(&ledger);
    let paths =
        ["<internal:kernel>", "/x/gems/big-1.0/lib/big.rb", "/x/gems/small-2.0/lib/small.rb"];
    assert_eq!(paths.map(|path| of_file(account, path).resident_bytes), expected);
    assert_eq!(paths.map(|path| of_file(account, path).objects), [40, 30, 10]);
    let gems = account.gems().unwrap();
    let gems: Vec<(&str, u64)> =
        gems.iter().map(|gem| (gem.gem.name.as_str(), gem.size.resident_bytes)).collect();
    let [internal, big, small] = expected;
    assert_eq!(gems, [("big", big), ("(internal)", internal), ("small", small)]);
}

#[test]
fn kinds_go_by_the_owner_and_tables_by_the_objects_in_them() {
    let mut draft = Draft::of(RubyRelease::V3_1);
    let path = draft.ruby.path("<internal:kernel>");
    let before = draft.clone().draw_up(&[]);
    for _ in 0..8 {
        draft.iseq(path);
        for (name, number, words) in [("ment", 6, 10), ("callinfo", 11, 12), ("memo", 5, 14)] {
            let chunk = draft.chunk(words.max(50));
            draft.ruby.imemo_as(name, number, chunk);
        }
        let chunk = draft.chunk(70);
        draft.ruby.slot(T_ICLASS, 0, 0, &[Word::Pointer(chunk)]);
    }
    // A hash table of strings: its header, its bins and its entries.
    let [header, bins, entries] = [7, 32, 128 * 3].map(|words| draft.chunk(words));
    for (word, value) in (0..).zip([7 | 8 << 8, RubyHeap::FUNCTION, 100, bins, 0, 100, entries]) {
        draft.point(header, word, value);
    }
    for number in 0..100 {
        let text = draft.ruby.string("text");
        for (word, value) in (0..).zip([77, text, 8]) {
            draft.point(entries, 3 * number + word, value);
        }
    }
    draft.ruby.refer(header);
    // A table of objects of two kinds.
    let mixed = draft.chunk(200);
    for number in 0..100 {
        let text = draft.ruby.string("text");
        let other = draft.ruby.slot(T_ICLASS, 0, 0, &[]);
        draft.point(mixed, 2 * number, text);
        draft.point(mixed, 2 * number + 1, other);
    }
    draft.ruby.refer(mixed);

    let ledger = draft.draw_up(&[]);
    let [account, before] = [&ledger, &before].map(account);
    let gained = |kind| size(account, kind).resident_bytes - size(before, kind).resident_bytes;
    assert_eq!(gained(InterpreterKind::Bytecode), 8 * usable(BODY_WORDS));
    assert_eq!(gained(InterpreterKind::Methods), 8 * usable(50));
    assert_eq!(gained(InterpreterKind::Caches), 8 * usable(50));
    assert_eq!(gained(InterpreterKind::Classes), 8 * usable(70));
    assert_eq!(gained(InterpreterKind::Symbols), usable(7) + usable(32) + usable(128 * 3));
    assert_eq!(gained(InterpreterKind::Other), 8 * usable(50) + usable(200));
    assert_eq!(size(account, InterpreterKind::Bytecode).objects, 8);
}

/// From 4.0 on, bit 0 of the pointers to symbols is set. 3,800 chunks of each process used to seem unreachable.
#[test]
fn the_symbols_of_4_0_belong_to_their_set() {
    for release in [RubyRelease::V4_0, RubyRelease::V4_1] {
        let mut draft = Draft::of(release);
        draft.ruby.imemo("ment");
        let path = draft.ruby.path("<internal:kernel>");
        draft.iseq(path);
        let before = draft.clone().draw_up(&[]);
        let entries = draft.chunk(2 * 100);
        for number in 0..90 {
            let symbol = draft.chunk(2);
            let text = draft.ruby.string("text");
            draft.point(symbol, 1, text);
            for (word, value) in [(0, 0x7777_7777_7777_7777), (1, symbol | 1)] {
                draft.point(entries, 2 * number + word, value);
            }
        }
        let data_type = draft.ruby.data_type("VM/concurrent_set", true);
        draft.ruby.data(0, data_type, entries);
        let ledger = draft.draw_up(&[]);
        assert_eq!(held(&ledger, "(nobody)"), held(&before, "(nobody)"), "{release:?}");
        assert_eq!(held(&ledger, "(T_DATA)").0, bytes(200) + 90 * bytes(2), "{release:?}");
        let symbols = |ledger| size(account(ledger), InterpreterKind::Symbols).resident_bytes;
        assert_eq!(symbols(&ledger) - symbols(&before), usable(200) + 90 * usable(2));
    }
}

/// Garbage bytecode still counts as bytecode after its path is gone.
#[test]
fn without_paths_there_are_kinds_but_no_files() {
    let mut draft = Draft::of(RubyRelease::V3_1);
    draft.ruby.imemo("ment");
    let path = draft.ruby.path("/srv/app.rb");
    for _ in 0..8 {
        draft.iseq(path);
    }
    let ledger = draft.draw_up(&[]);
    let account = account(&ledger);
    assert_eq!((&account.files, account.gems()), (&None, None));
    let bytecode = size(account, InterpreterKind::Bytecode);
    assert_eq!((bytecode.objects, bytecode.resident_bytes), (8, 8 * usable(BODY_WORDS)));
    assert!(ledger.findings.contains(&Finding::Ruby(ruby::Finding::CodeFilesUnknown)));
}

/// Heap pages are malloc'ed up to 2.7, so slots lie within blocks of the interpreter.
#[test]
fn the_parts_add_up_in_all_releases() {
    for release in RubyRelease::ALL {
        let mut draft = Draft::of(release);
        draft.ruby.imemo("ment");
        let path = draft.ruby.path("<internal:kernel>");
        (0..8).for_each(|_| {
            draft.iseq(path);
        });
        let ledger = draft.draw_up(&[]);
        assert_eq!(of_file(account(&ledger), "<internal:kernel>").objects, 8, "{release:?}");
    }
}
