//! Owners of memory in synthetic processes: the test places each object and each pointer between chunks, so it knows
//! the owners.

#[path = "owners/interpreter.rs"]
mod interpreter;
#[path = "owners/stale_words.rs"]
mod stale_words;

use std::collections::{BTreeMap, BTreeSet};

use image::Image;
use ledger::{Cause, Facts, Finding, Ledger, OwnerAccount, OwnerKind, ReadDepth};
use linux::{Address, Backing, Mapping};
use proptest::prelude::*;
use testkit::{ElfModule, GlibcRelease, MallocHeap, RubyHeap, RubyRelease, SyntheticMemory, Word};

/// An address without memory.
const NOWHERE: u64 = 0x10_0000_0010;

/// A draft of a process: chunks, the words in them, and Ruby objects.
#[derive(Clone)]
struct Draft {
    /// All other memory.
    memory: SyntheticMemory,
    heap: MallocHeap,
    ruby: RubyHeap,
    words: Vec<(u64, u64)>,
    types: BTreeMap<String, (u64, u64)>,
    has_compiled: bool,
}

impl Draft {
    fn new() -> Self {
        Self::of(RubyRelease::V3_1)
    }

    fn of(release: RubyRelease) -> Self {
        let heap = MallocHeap::new(GlibcRelease::V2_36, 2);
        let mut ruby = RubyHeap::new(release);
        // The types of Ruby's own objects are found by its threads.
        let thread = ruby.class("Thread", ruby.object_class());
        let data_type = ruby.data_type("VM/thread", true);
        ruby.data(thread, data_type, NOWHERE);
        let memory = SyntheticMemory::default();
        let words = Vec::new();
        Self { memory, heap, ruby, words, types: BTreeMap::new(), has_compiled: false }
    }

    /// A chunk with room for `words` words.
    fn chunk(&mut self, words: u64) -> u64 {
        self.heap.malloc(0, words * 8)
    }

    /// Sets a word of the chunk at `from` to `to`.
    fn point(&mut self, from: u64, word: u64, to: u64) {
        self.words.push((from + word * 8, to));
    }

    /// Adds an object of an extension's class that wraps the memory at `pointer`, and returns its address.
    fn object(&mut self, class: &str, pointer: u64) -> u64 {
        let (class, data_type) = match self.types.get(class) {
            Some(known) => *known,
            None => {
                let object = self.ruby.object_class();
                let new = (self.ruby.class(class, object), self.ruby.data_type(class, false));
                self.types.insert(class.to_owned(), new);
                new
            }
        };
        self.ruby.data(class, data_type, pointer)
    }

    fn draw_up(&self, on_stack: &[u64]) -> Ledger {
        let mut memory = self.memory.clone();
        let truth = self.heap.write(&mut memory);
        for &(at, word) in &self.words {
            memory.write_u64(at, word);
        }
        self.ruby.write(&mut memory);
        if self.has_compiled {
            let code = Address(0x7f10_1000_0000)..Address(0x7f10_1010_0000);
            // YJIT of 3.1 fills its memory with the instruction PUSH DS.
            memory.write_u64(code.end.0 - 8, 0x1e1e_1e1e_1e1e_1e1e);
            let code = Mapping { writable: false, executable: true, ..Mapping::anonymous(code) };
            memory.mappings.push(code);
        }
        let mut threads = truth.threads;
        threads[0].registers = on_stack.to_vec();
        let mut state = memory.state();
        state.process.pid = threads[0].tid;
        state.threads = threads;
        let image = Image::new(state, memory);
        let ledger = Ledger::draw_up(&image.state, &Facts::read(&image, ReadDepth::Owners));
        assert_adds_up(&ledger);
        ledger
    }
}

/// Each byte in use has exactly one owner.
fn assert_adds_up(ledger: &Ledger) {
    let malloc = ledger.malloc.as_ref().unwrap();
    let held: u64 = ledger.owners.iter().map(OwnerAccount::held_bytes).sum();
    assert_eq!(held, malloc.totals.in_use_bytes + malloc.totals.mmapped_bytes);
    let chunks: u64 = ledger.owners.iter().map(|owner| owner.chunks).sum();
    assert_eq!(chunks, malloc.totals.in_use_chunks + malloc.totals.mmapped_chunks);
}

/// The bytes of a chunk with room for `words` words.
fn bytes(words: u64) -> u64 {
    ((words * 8 + 8 + 15) & !15).max(32)
}

/// The exclusive and the shared bytes of an owner; zeros if it does not exist.
fn held(ledger: &Ledger, name: &str) -> (u64, u64) {
    let owner = ledger.owners.iter().find(|owner| owner.name == name);
    owner.map_or((0, 0), |owner| (owner.exclusive_bytes, owner.shared_bytes))
}

#[test]
fn what_lies_behind_an_object_is_its_own_and_the_rest_nobodys() {
    let mut draft = Draft::new();
    let [first, second, third] = [6, 10, 20].map(|words| draft.chunk(words));
    draft.point(first, 2, second);
    draft.point(second, 9, third);
    // A loop, once with and once without a path to it.
    draft.point(third, 0, first);
    let [lost, other] = [8, 12].map(|words| draft.chunk(words));
    draft.point(lost, 1, other);
    draft.point(other, 1, lost);
    draft.object("PG::Result", first);

    let ledger = draft.draw_up(&[]);
    assert_eq!(held(&ledger, "PG::Result"), (bytes(6) + bytes(10) + bytes(20), 0));
    let before = Draft::new().draw_up(&[]);
    let (nobodys, shared) = held(&ledger, "(nobody)");
    assert_eq!((nobodys - held(&before, "(nobody)").0, shared), (bytes(8) + bytes(12), 0));
    let owner = ledger.owners.iter().find(|owner| owner.name == "PG::Result").unwrap();
    assert_eq!((owner.kind, owner.cause), (OwnerKind::Class, Cause::NativeHeld));
    assert_eq!((owner.objects, owner.chunks, owner.has_memsize), (1, 3, Some(false)));
}

/// With another release's table of types, bytecode used to count as `ruby.malloc`, and instance variables as `ruby.vm`.
#[test]
fn a_wrong_number_of_an_internal_type_gives_no_memory_to_another() {
    for (fields, iseq) in [(13, 7), (14, 13)] {
        let mut draft = Draft::of(RubyRelease::V4_0);
        let of = |ledger: &Ledger, cause| -> u64 {
            let owners = ledger.owners.iter().filter(|owner| owner.cause == cause);
            owners.map(OwnerAccount::held_bytes).sum()
        };
        let (mut bytecode, mut variables) = (0, 0);
        for _ in 0..8 {
            draft.ruby.imemo("ment");
            for (name, number, words, held) in
                [("iseq", iseq, 60, &mut bytecode), ("fields", fields, 90, &mut variables)]
            {
                let chunk = draft.chunk(words);
                draft.ruby.imemo_as(name, number, chunk);
                *held += bytes(words);
            }
        }
        let ledger = draft.draw_up(&[]);
        assert_eq!(held(&ledger, "(imemo_fields)"), (variables, 0), "{fields}");
        assert_eq!(
            (of(&ledger, Cause::RubyMalloc), of(&ledger, Cause::RubyVm)),
            (variables, bytecode)
        );
        let finding = Finding::Ruby(ruby::Finding::InternalTypesUnknown);
        assert_eq!(ledger.findings.contains(&finding), fields != 13);
    }
}

/// YJIT's tables used to count as bytecode: 92 MiB in one process.
#[test]
fn what_a_compiler_knows_of_its_code_is_not_bytecode() {
    for has_compiled in [false, true] {
        let mut draft = Draft::of(RubyRelease::V3_1);
        draft.has_compiled = has_compiled;
        let (mut bytecode, mut tables) = (0, 0);
        for number in 0..20 {
            draft.ruby.imemo("ment");
            let [body, plain, other] = [60, 20, 10].map(|words| draft.chunk(words));
            let iseq = draft.ruby.imemo_as("iseq", 7, body);
            draft.point(body, 30, plain);
            draft.point(plain, 2, other);
            bytecode += bytes(60) + bytes(20) + bytes(10);
            // Every other one was compiled.
            if number % 2 == 0 {
                let chain = [12, 7, 9, 33, 14, 25, 16, 11].map(|words| draft.chunk(words));
                draft.point(body, 41, chain[0]);
                for pair in chain.windows(2) {
                    draft.point(pair[0], 3, pair[1]);
                }
                // The fourth chunk is a block. It refers to its bytecode, and the next chunk refers to it.
                draft.point(chain[3], 0, iseq);
                draft.point(chain[4], 5, chain[3]);
                tables += [12, 7, 9, 33, 14, 25, 16, 11].map(bytes).iter().sum::<u64>();
            }
        }
        let ledger = draft.draw_up(&[]);
        let expected = if has_compiled {
            [(tables, 0), (bytecode, 0)]
        } else {
            [(0, 0), (bytecode + tables, 0)]
        };
        assert_eq!([held(&ledger, "(JIT)"), held(&ledger, "(imemo_iseq)")], expected);
        let owner = ledger.owners.iter().find(|owner| owner.name == "(JIT)");
        assert!(owner.is_none_or(|owner| owner.cause == Cause::RubyJit));
    }
}

/// Beyond 64 GiB of chunks, the map of addresses was full, and further chunks used to count as unreachable.
#[test]
fn chunks_beyond_64_gib_of_addresses_have_owners() {
    const BYTES: u64 = 14 << 20;
    let mut draft = Draft::new();
    let chunks: Vec<u64> = (0..5000).map(|_| draft.chunk(BYTES / 8)).collect();
    assert!(chunks.last().unwrap() - chunks[0] > 66 << 30);
    for pair in chunks.windows(2) {
        draft.point(pair[0], 1, pair[1]);
    }
    draft.object("PG::Result", chunks[0]);
    let ledger = draft.draw_up(&[]);
    let owner = ledger.owners.iter().find(|owner| owner.name == "PG::Result").unwrap();
    assert_eq!(owner.chunks, 5000);
    assert!(held(&ledger, "(nobody)").0 < BYTES);
}

#[test]
fn what_two_classes_reach_stands_once_and_is_called_shared() {
    let mut draft = Draft::new();
    let [mine, yours, ours, behind] = [4, 5, 6, 30].map(|words| draft.chunk(words));
    draft.point(mine, 0, ours);
    draft.point(yours, 0, ours);
    draft.point(ours, 0, behind);
    draft.object("Certificate", mine);
    draft.object("Key", yours);

    let ledger = draft.draw_up(&[]);
    let (certificate, key) = (held(&ledger, "Certificate"), held(&ledger, "Key"));
    assert_eq!((certificate.0, key.0), (bytes(4), bytes(5)));
    assert_eq!(certificate.1 + key.1, bytes(6) + bytes(30));
}

#[test]
fn a_variable_that_the_executable_copied_is_its_librarys() {
    const EXECUTABLE: u64 = 0x40_0000;
    const LIBRARY: u64 = 0x7f80_0000_0000;
    const LIST: u64 = 0x50_0000;
    let mut draft = Draft::new();
    let [copied, own] = [40, 50].map(|words| draft.chunk(words));
    let mut executable = ElfModule::new("/usr/bin/program", EXECUTABLE, 4096);
    executable.variables(None, &[own]);
    executable.copy("environ", copied);
    draft.memory.map(LIST, 4096);
    executable.link(&mut draft.memory, LIST, &[EXECUTABLE, LIBRARY], false);
    executable.write(&mut draft.memory);
    let mut library = ElfModule::new("/usr/lib/library.so", LIBRARY, 4096);
    library.variables(Some("environ"), &[0]);
    library.write(&mut draft.memory);

    let ledger = draft.draw_up(&[]);
    assert_eq!(held(&ledger, "library.so"), (bytes(40), 0));
    assert_eq!(held(&ledger, "program"), (bytes(50), 0));
}

#[test]
fn objects_of_one_class_do_not_share_with_each_other() {
    let mut draft = Draft::new();
    let [first, second, common] = [4, 4, 50].map(|words| draft.chunk(words));
    draft.point(first, 0, common);
    draft.point(second, 0, common);
    draft.object("Statement", first);
    draft.object("Statement", second);
    assert_eq!(held(&draft.draw_up(&[]), "Statement"), (2 * bytes(4) + bytes(50), 0));
}

/// From sparklemotion/nokogiri#1703: 150,000 elements were named, but only the end of their document frees their nodes.
#[test]
fn objects_that_free_nothing_own_what_no_other_does() {
    let mut draft = Draft::new();
    let [document, list, node, text, lonely] = [4, 8, 6, 20, 10].map(|words| draft.chunk(words));
    for (from, word, to) in [(document, 1, list), (list, 3, node), (node, 2, text)] {
        draft.point(from, word, to);
    }
    draft.object("Document", document);
    let class = draft.ruby.class("Element", draft.ruby.object_class());
    let borrowed = draft.ruby.borrowed_data_type("xmlNode");
    for memory in [node, lonely] {
        draft.ruby.data(class, borrowed, memory);
    }
    let ledger = draft.draw_up(&[]);
    let chain = bytes(4) + bytes(8) + bytes(6) + bytes(20);
    assert_eq!(held(&ledger, "Document"), (chain, 0));
    assert_eq!(held(&ledger, "Element"), (bytes(10), 0));
}

/// The sessions of a TLS context are a list. A socket on a stack, which refers to one of them, owned those that were nearer to it
/// (puma/puma#2846). Nodes of a document on a stack still belong to the document.
#[test]
fn temporary_objects_own_what_lasting_ones_do_not_reach() {
    const VARIABLES: u64 = 0x7f40_0000_0000;
    let mut draft = Draft::new();
    let [context, socket, buffer, document, node] = [4, 6, 50, 8, 12].map(|it| draft.chunk(it));
    let sessions = [20; 9].map(|words| draft.chunk(words));
    for pair in sessions.windows(2) {
        draft.point(pair[0], 0, pair[1]);
        draft.point(pair[1], 1, pair[0]);
    }
    for (from, word, to) in [
        (context, 0, sessions[0]),
        (socket, 0, sessions[7]),
        (socket, 1, buffer),
        (document, 0, node),
    ] {
        draft.point(from, word, to);
    }
    let lasting = draft.object("Context", context);
    let on_stack = [draft.object("Socket", socket), draft.object("Document", document)];
    let class = draft.ruby.class("Element", draft.ruby.object_class());
    let borrowed = draft.ruby.borrowed_data_type("xmlNode");
    let element = draft.ruby.data(class, borrowed, node);
    let mut library = ElfModule::new("/usr/lib/library.so", VARIABLES, 4096);
    library.variables(None, &[lasting]);
    library.write(&mut draft.memory);
    let ledger = draft.draw_up(&[on_stack[0], on_stack[1], element]);
    let sum = |name| held(&ledger, name).0 + held(&ledger, name).1;
    assert_eq!(sum("Context"), bytes(4) + 9 * bytes(20));
    assert_eq!(sum("Socket"), bytes(6) + bytes(50));
    assert_eq!((sum("Document"), sum("Element")), (bytes(8) + bytes(12), 0));
}

/// Native memory had no owner, and objects were garbage, if only such a table refers to them.
#[test]
fn tables_in_mapped_files_and_in_shared_memory_hold_what_they_refer_to() {
    const VARIABLES: u64 = 0x7f40_0000_0000;
    const TABLE: u64 = 0x5556_0000_0000;
    let file = || Backing::File("/srv/table".into());
    // mmap(2) of anonymous shared memory has this path.
    let memory = || Backing::File("/dev/zero (deleted)".into());
    for (shared, backing) in
        [(false, Backing::Anonymous), (false, file()), (true, file()), (true, memory())]
    {
        let mut draft = Draft::new();
        let [index, entry] = [4, 30].map(|words| draft.chunk(words));
        draft.point(index, 0, TABLE);
        let index = draft.object("Index", index);
        let text = draft.object("Text", NOWHERE);
        draft.memory.write_u64(TABLE, entry);
        draft.memory.write_u64(TABLE + 8, text);
        let range = Address(TABLE)..Address(TABLE + (1 << 20));
        let table = Mapping { shared, backing, ..Mapping::anonymous(range) };
        draft.memory.mappings.push(table.clone());
        let mut library = ElfModule::new("/usr/lib/library.so", VARIABLES, 4096);
        library.variables(None, &[index]);
        library.write(&mut draft.memory);
        let ledger = draft.draw_up(&[]);
        assert_eq!(held(&ledger, "Index"), (bytes(4) + bytes(30), 0), "{table:?}");
        let text = ledger.owners.iter().find(|owner| owner.name == "Text").unwrap();
        let path = text.retainers[0].path.as_deref();
        assert_eq!(path, Some("(memory of C extensions) → Text"), "{table:?}");
    }
}

#[test]
fn classes_of_one_name_have_one_account() {
    let mut draft = Draft::new();
    for (words, has_memsize) in [(6, true), (10, false)] {
        let chunk = draft.chunk(words);
        let class = draft.ruby.class("Reloaded", draft.ruby.object_class());
        let data_type = draft.ruby.data_type("reloaded", has_memsize);
        draft.ruby.data(class, data_type, chunk);
    }
    let ledger = draft.draw_up(&[]);
    let of_name = ledger.owners.iter().filter(|owner| owner.name == "Reloaded");
    let [owner] = of_name.collect::<Vec<_>>()[..] else { panic!("{:?}", ledger.owners) };
    assert_eq!((owner.objects, owner.chunks, owner.has_memsize), (2, 2, Some(false)));
    assert_eq!((owner.exclusive_bytes, owner.shared_bytes), (bytes(6) + bytes(10), 0));
}

/// The prototype of this tracer charged OpenSSL::Digest with 33.8 MiB instead of 192 KiB: a word in it that looked like
/// a pointer into the middle of a buffer took precedence over the pointer of the buffer's owner.
#[test]
fn a_word_that_points_into_the_middle_takes_nothing_from_whose_it_is() {
    let mut draft = Draft::new();
    let [digest, far, farther, buffer] = [4, 4, 4, 4000].map(|words| draft.chunk(words));
    draft.point(digest, 1, buffer + 800);
    draft.object("OpenSSL::Digest", digest);
    draft.point(far, 0, farther);
    draft.point(farther, 0, buffer);
    draft.object("Zlib::Deflate", far);

    let ledger = draft.draw_up(&[]);
    assert_eq!(held(&ledger, "OpenSSL::Digest"), (bytes(4), 0));
    assert_eq!(held(&ledger, "Zlib::Deflate"), (2 * bytes(4) + bytes(4000), 0));
}

/// The slack behind the text of an environment variable took a list of 600 buffers: buffers used to be followed after
/// words that point into the middle.
#[test]
fn a_word_that_points_into_the_middle_takes_nothing_from_a_list_of_buffers() {
    let mut draft = Draft::new();
    let [digest, head, first, second] = [4, 4, 4000, 4000].map(|words| draft.chunk(words));
    draft.point(digest, 1, second + 800);
    draft.object("OpenSSL::Digest", digest);
    draft.point(head, 0, first);
    draft.point(first, 0, second);
    draft.object("Chain", head);

    let ledger = draft.draw_up(&[]);
    assert_eq!(held(&ledger, "OpenSSL::Digest"), (bytes(4), 0));
    assert_eq!(held(&ledger, "Chain"), (bytes(4) + 2 * bytes(4000), 0));
}

/// malloc rounds sizes up: half of all chunks have a last word that the program never wrote.
#[test]
fn an_old_word_at_the_end_of_a_chunk_takes_nothing_from_whose_it_is() {
    let mut draft = Draft::new();
    let [digest, far, farther, node] = [5, 4, 4, 40].map(|words| draft.chunk(words));
    draft.point(digest, 4, node);
    draft.object("OpenSSL::Digest", digest);
    draft.point(far, 0, farther);
    draft.point(farther, 0, node);
    draft.object("Zlib::Deflate", far);

    let ledger = draft.draw_up(&[]);
    assert_eq!(held(&ledger, "OpenSSL::Digest"), (bytes(5), 0));
    assert_eq!(held(&ledger, "Zlib::Deflate"), (2 * bytes(4) + bytes(40), 0));
}

/// A window of zlib is recycled memory. Through its old words it used to get the rest of a long list.
#[test]
fn an_old_word_in_a_large_buffer_takes_nothing_from_whose_it_is() {
    let mut draft = Draft::new();
    let nodes: Vec<u64> = (0..20).map(|_| draft.chunk(6)).collect();
    for pair in nodes.windows(2) {
        draft.point(pair[0], 0, pair[1]);
    }
    draft.object("Nokogiri::XML::Document", nodes[0]);
    let [state, window, own] = [6, 4000, 8].map(|words| draft.chunk(words));
    draft.point(state, 0, window);
    draft.point(window, 700, nodes[10]);
    draft.point(window, 800, own);
    draft.object("Zlib::Deflate", state);

    let ledger = draft.draw_up(&[]);
    assert_eq!(held(&ledger, "Nokogiri::XML::Document"), (20 * bytes(6), 0));
    assert_eq!(held(&ledger, "Zlib::Deflate"), (bytes(6) + bytes(4000) + bytes(8), 0));
}

#[test]
fn what_is_known_by_its_middle_only_is_held_all_the_same() {
    let mut draft = Draft::new();
    let [object, pool, inside] = [4, 100, 7].map(|words| draft.chunk(words));
    draft.point(object, 0, pool + 16);
    draft.point(pool, 90, inside);
    draft.object("Pool", object);
    assert_eq!(held(&draft.draw_up(&[]), "Pool"), (bytes(4) + bytes(100) + bytes(7), 0));
}

/// malloc's own structures point to the headers of chunks, which overlap the ends of the chunks before them.
#[test]
fn the_header_of_the_next_chunk_is_no_part_of_a_chunk() {
    let mut draft = Draft::new();
    let [object, lost, _next] = [4, 10, 10].map(|words| draft.chunk(words));
    draft.point(object, 0, lost + bytes(10) - 16);
    draft.object("NamedRoot", object);
    assert_eq!(held(&draft.draw_up(&[]), "NamedRoot"), (bytes(4), 0));
}

/// Many libraries keep a number in the lowest bits of a pointer, such as the colour of a node of a tree: what only such pointers
/// led to was a leak.
#[test]
fn bits_in_a_pointer_to_the_start_of_a_chunk_hide_nothing() {
    let mut draft = Draft::new();
    let [object, middle, negated, integer, in_middle, boxed, number] =
        [14, 20, 40, 50, 60, 70, 80].map(|words| draft.chunk(words));
    let tagged: Vec<u64> = (1..8).map(|_| draft.chunk(30)).collect();
    for (tag, chunk) in (1..8).zip(&tagged) {
        draft.point(object, tag, chunk | tag);
    }
    draft.point(object, 8, (middle + 16) | 1);
    draft.point(object, 9, !negated);
    // Fiddle.malloc returns an Integer.
    draft.point(object, 10, 2 * integer + 1);
    draft.point(object, 11, 2 * (in_middle + 16) + 1);
    // Engines of scripts keep pointers in numbers that are none.
    draft.point(object, 12, 0xfff9 << 48 | boxed);
    draft.point(object, 13, 0x7fe9 << 48 | number);
    draft.object("Tree", object);
    let ledger = draft.draw_up(&[]);
    let held_bytes = bytes(14) + 7 * bytes(30) + bytes(50) + bytes(70);
    assert_eq!(held(&ledger, "Tree"), (held_bytes, 0));
    let lost = [20, 40, 60, 80].map(bytes).iter().sum();
    assert!(held(&ledger, "(nobody)").0 >= lost);
}

#[test]
fn a_register_holds_what_nobody_else_does_and_shares_nothing() {
    let mut draft = Draft::new();
    let [object, temporary, behind] = [4, 10, 20].map(|words| draft.chunk(words));
    draft.point(temporary, 3, behind);
    draft.object("Connection", object);
    let ledger = draft.draw_up(&[object, temporary]);
    assert_eq!(held(&ledger, "Connection"), (bytes(4), 0));
    let none = draft.draw_up(&[]);
    let (alone, shared) = held(&ledger, "(stacks)");
    assert_eq!((alone - held(&none, "(stacks)").0, shared), (bytes(10) + bytes(20), 0));
}

#[test]
fn text_that_looks_like_a_pointer_holds_nothing() {
    let mut draft = Draft::new();
    let [text, other] = [8, 16].map(|words| draft.chunk(words));
    draft.point(text, 0, other);
    draft.ruby.string_at(text, 60);
    let ledger = draft.draw_up(&[]);
    assert_eq!(held(&ledger, "String"), (bytes(8), 0));
    assert!(held(&ledger, "(nobody)").0 >= bytes(16));
}

/// The class of an unmarked object was swept before the object. rbloat used to panic if a path led to such an object.
#[test]
fn garbage_without_a_class_is_no_extensions() {
    const T_DATA: u8 = 0x0c;
    let mut draft = Draft::new();
    let chunk = draft.chunk(10);
    let gone = 0x7f00_dead_0000;
    let slot =
        draft.ruby.slot(T_DATA, 0, gone, &[Word::Value(0), Word::Value(0), Word::Pointer(chunk)]);
    let ledger = draft.draw_up(&[slot]);
    assert_eq!(held(&ledger, "PG::Result"), (0, 0));
}

#[test]
fn without_owners_only_what_objects_name_is_theirs() {
    let mut draft = Draft::new();
    let [first, second] = [6, 10].map(|words| draft.chunk(words));
    draft.point(first, 2, second);
    draft.object("PG::Result", first);
    let mut memory = SyntheticMemory::default();
    draft.heap.write(&mut memory);
    draft.ruby.write(&mut memory);
    let image = memory.image();
    let ledger = Ledger::draw_up(&image.state, &Facts::read(&image, ReadDepth::Causes));
    assert!(!ledger.is_traced);
    assert_eq!(held(&ledger, "PG::Result"), (bytes(6), 0));
    assert_eq!(ledger.causes[Cause::NativeUnreachable], 0);
    assert!(ledger.causes[Cause::MallocInUse] >= bytes(10) - 8);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(testkit::cases(15)) })]

    /// Any pointers between any chunks, compared with the sets of chunks that each class reaches.
    #[test]
    fn a_chunk_is_exclusive_where_one_class_alone_reaches_it(
        sizes in prop::collection::vec(4_u64..40, 1..40),
        pointers in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..4, any::<prop::sample::Index>()), 0..80),
        objects in prop::collection::vec((0_usize..4, any::<prop::sample::Index>()), 0..8),
    ) {
        let mut draft = Draft::new();
        let chunks: Vec<u64> = sizes.iter().map(|&words| draft.chunk(words)).collect();
        // If a word is written twice, the last pointer counts.
        let mut words = BTreeMap::new();
        for (from, word, to) in &pointers {
            words.insert((from.index(chunks.len()), *word), to.index(chunks.len()));
        }
        for (&(from, word), &to) in &words {
            draft.point(chunks[from], word, chunks[to]);
        }
        let mut reached: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); 4];
        for (class, to) in &objects {
            draft.object(&format!("Class{class}"), chunks[to.index(chunks.len())]);
            let mut ahead = vec![to.index(chunks.len())];
            while let Some(chunk) = ahead.pop() {
                if reached[*class].insert(chunk) {
                    let next = words.range((chunk, 0)..(chunk + 1, 0));
                    ahead.extend(next.map(|(_, &to)| to));
                }
            }
        }
        let ledger = draft.draw_up(&[]);
        let mut shared = 0;
        for (class, own) in reached.iter().enumerate() {
            let others = |chunk: usize| {
                reached.iter().enumerate().filter(|(other, set)| *other != class && set.contains(&chunk)).count()
            };
            let alone: u64 = own.iter().filter(|&&it| others(it) == 0).map(|&it| bytes(sizes[it])).sum();
            let found = held(&ledger, &format!("Class{class}"));
            prop_assert_eq!(found.0, alone);
            shared += found.1;
        }
        let by_several = |chunk: &usize| reached.iter().filter(|set| set.contains(chunk)).count() > 1;
        let expected: u64 = (0..chunks.len()).filter(by_several).map(|it| bytes(sizes[it])).sum();
        prop_assert_eq!(shared, expected);
    }
}
