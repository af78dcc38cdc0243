//! The memory that live objects do not use, compared with what the objects themselves report.

use formats::{Action, FewThings, Report, Waste, WasteGroup};
use testkit::Target;

mod places;
mod stacks;
mod steps;

use crate::{bytes, document, rbloat, report_of, run};

/// The account of a process's objects.
fn waste(target: &Target) -> Waste {
    report_of(&run(target.pid(), &["--json", "--waste"])).waste.unwrap()
}

/// The group of objects that this path retains.
fn group<'a>(waste: &'a Waste, kind: &str, path: &str) -> &'a WasteGroup {
    let mut groups = waste.groups.iter();
    let is_it = |it: &&WasteGroup| it.row.kind.name() == kind && it.path == path;
    groups.find(is_it).unwrap_or_else(|| panic!("no {kind} of {path}: {:#?}", waste.groups))
}

/// Objects with room, and what `memsize_of` says of them without their slots. A copy, or a Hash after `rehash`, has none.
#[test]
fn room_and_its_use_are_what_memsize_of_says() {
    let target = Target::bare_ruby(
        "require 'objspace'
         require 'json'
         BUFFERS = Array.new(400) { |i| String.new(capacity: 4_000) << 'x' * (i % 50 + 1) }
         # As arrays and hashes grow, they get more room than they need.
         ARRAYS = Array.new(300) { |i| list = []; (100 + i).times { |at| list << at }; list }
         HASHES = Array.new(40) { |i| table = {}; (200 + 50 * i).times { |at| table[at] = i }; table }
         EMPTIED = { 7 => 7 }
         30_000.times { |at| EMPTIED[at] = at }
         29_000.times { |at| EMPTIED.delete(at) }
         # Their class soon has too many shapes, so they have tables (from 3.3 on; from 4.1 on internal objects have them).
         class Mixed; def initialize(i); 3.times { |at| instance_variable_set(\"@v#{i}_#{at}\", i) }; end; end
         MIXED = Array.new(1_000) { |i| Mixed.new(i) }
         SLOT = ObjectSpace.memsize_of([])
         # Up to 3.2 the structure of a table has memory of its own.
         HASH = ObjectSpace.memsize_of({}) + (RUBY_VERSION < '3.3' ? 56 : 0)
         def room(objects, rest)
           objects.sum { |it| ObjectSpace.memsize_of(it) - rest }
         end
         # Some have no more than they need.
         LOOSE = ARRAYS.select { |it| room([it], SLOT) > 8 * it.size }
         # What the bins of a table for so many entries take.
         def bins(hash)
           entries = 1 << hash.size.bit_length
           room([hash.dup.rehash], HASH) - 24 * entries
         end
         def table(hashes)
           { bytes: room(hashes, HASH), used: hashes.sum { |it| 24 * it.size + bins(it) } }
         end
         truth = {
           # The terminator is no room.
           strings: { bytes: room(BUFFERS, SLOT + 1), used: BUFFERS.sum(&:bytesize) },
           arrays: { bytes: room(LOOSE, SLOT), used: LOOSE.sum { |it| 8 * it.size } },
           hashes: table(HASHES), emptied: table([EMPTIED]),
           # The structure of a table, and four entries of which three are in use.
           mixed: { objects: MIXED.count { |it| room([it], SLOT) == 56 + 4 * 24 } }
         }
         4.times { GC.start }
         puts \"ready #{JSON.generate(truth)}\"; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = report_of(&run(target.pid(), &["--json", "--retained"]));
    let waste = report.waste.unwrap();
    let rows = [
        ("strings", "strings", "BUFFERS → Array → String"),
        ("arrays", "arrays", "ARRAYS → Array × 2"),
        ("hashes", "hashes", "HASHES → Array → Hash"),
        ("emptied", "hashes", "EMPTIED → Hash"),
    ];
    for (name, kind, path) in rows {
        let truth = |figure: &str| target.truth[name][figure].as_u64().unwrap();
        let row = &group(&waste, kind, path).row;
        assert_eq!((row.bytes, row.used_bytes), (truth("bytes"), truth("used")), "{row:?}");
        assert!(row.unused_bytes <= row.bytes - row.used_bytes, "{row:?}");
        assert!(row.saved_bytes <= row.unused_bytes, "{row:?}");
    }
    let mixed = target.truth["mixed"]["objects"].as_u64().unwrap();
    if mixed > 0 {
        let row = &group(&waste, "variables", "MIXED → Array → Mixed").row;
        let figures = (row.objects, row.bytes, row.used_bytes, row.saved_bytes);
        assert_eq!(figures, (mixed, mixed * 4 * 24, mixed * 3 * 24, 0));
    }
    // All of it was written once, and a new table is smaller.
    let emptied = &group(&waste, "hashes", "EMPTIED → Hash").row;
    assert!(emptied.saved_bytes * 10 > (emptied.bytes - emptied.used_bytes) * 8, "{emptied:?}");
    let mut dominators = report.dominators.iter().flatten();
    let retained = dominators.find(|it| it.name == "EMPTIED").map(|it| it.unused_bytes);
    assert_eq!(retained, Some(emptied.unused_bytes));
    assert!(target.finish());
}

/// The root has 2 MB, of which one slice has 1 kB. A string that is also used as a whole has no unused part.
#[test]
fn the_part_of_a_string_that_no_slice_has_is_unused() {
    let target = Target::bare_ruby(
        "text = 'abcdefgh' * 250_000
         SLICE = text[-1_000..]
         text = nil
         WHOLE = 'ijklmnop' * 250_000
         PART = WHOLE[-1_000..]
         def clear(depth); depth.zero? ? 0 : clear(depth - 1) + 1; end
         clear(100)
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let waste = waste(&target);
    let row = &group(&waste, "sliced_strings", "SLICE → String × 2").row;
    assert_eq!((row.objects, row.used_bytes), (1, 1_000));
    assert!((1_990_000..2_010_000).contains(&row.unused_bytes), "{row:?}");
    let is_of_whole =
        |it: &&WasteGroup| it.path.starts_with("WHOLE") || it.path.starts_with("PART");
    assert_eq!(waste.groups.iter().find(is_of_whole), None);
    assert!(target.finish());
}

/// Nested objects are equal if what they contain is. The objects that are left over count, not the one of each that stays.
#[test]
fn objects_with_the_same_contents_are_counted_by_path() {
    let target = Target::bare_ruby(
        "require 'set'
         class Money; def initialize(amount, unit); @amount, @unit = amount, unit; end; end
         class Blank; def initialize; @a = @b = nil; end; end
         Point = Struct.new(:x, :y)
         STATES = Array.new(5_000) { |i| \"the state of an order that is number #{i % 4}\" }
         SHORT = Array.new(4_000) { |i| \"s#{i % 3}\" }
         UNIQUE = Array.new(4_000) { |i| format('a text of its own, %08d', i) }
         BINARY = Array.new(500) { |i| \"the state of an order that is number #{i / 500}\".force_encoding('BINARY') }
         PRICES = Array.new(3_000) { |i| Money.new(i % 5, +'EUR') }
         POINTS = Array.new(3_000) { |i| Point.new(i % 2, 'y' * 50) }
         NESTED = Array.new(2_000) { |i| [[i % 3, +'deep'], { 'kind' => \"value #{i % 3}\" }] }
         BLANKS = Array.new(1_500) { Blank.new }
         EMPTY = Array.new(1_200) { [] }
         SINGLE = Array.new(1_100) { |i| { i => i } }
         SHEETS = Array.new(1_000) { Array.new(1_500) }
         # The arrays of a literal share its elements until they are changed.
         class Bare; end
         BARE = Array.new(1_600) { Bare.new }
         LITERALS = Array.new(1_400) { [nil, nil, nil, nil, nil, nil] }
         Wide = Struct.new(*Array.new(100) { |i| :\"field#{i}\" })
         ROWS = Array.new(1_300) { Wide.new }
         # Some had one key more.
         TABLES = Array.new(1_000) do |i|
           table = {}
           20.times { |at| table[\"key #{at}\"] = \"value #{i % 2}\" if at != 3 || i % 4 < 2 }
           table.delete('key 3')
           table
         end
         SETS = Array.new(900) { |i| Set.new((0...15).map { |at| \"member #{at} of #{i % 3}\" }) }
         # Their keys look equal, but are not for them.
         IDENTITY = Array.new(800) { 12.times.each_with_object({}.compare_by_identity) { |at, table| table[\"key #{at}\"] = at } }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let contents = waste(&target).contents.unwrap();
    assert_eq!(contents.left_out, 0);
    let copies = |class: &str, path: &str| {
        let mut rows = contents.copies.iter();
        let row = rows.find(|it| it.class == class && it.path.starts_with(path));
        row.map(|it| (it.objects, it.contents))
    };
    assert_eq!(copies("String", "STATES → Array → String"), Some((4_996, 4)));
    assert_eq!(copies("String", "SHORT → Array → String"), Some((3_997, 3)));
    assert_eq!(copies("String", "UNIQUE → Array → String"), None);
    // Another encoding is another text.
    assert_eq!(copies("String", "BINARY → Array → String"), Some((499, 1)));
    assert_eq!(copies("Money", "PRICES → Array → Money"), Some((2_995, 5)));
    assert_eq!(copies("Point", "POINTS → Array → Point"), Some((2_998, 2)));
    // Those in the outer arrays and those inside them.
    assert_eq!(copies("Array", "NESTED → Array × "), Some((2 * 1_997, 6)));
    assert_eq!(copies("Hash", "NESTED → Array × 2 → Hash"), Some((1_997, 3)));
    assert_eq!(copies("Hash", "TABLES → Array → Hash"), Some((998, 2)));
    assert_eq!(copies("Set", "SETS → Array → Set"), Some((897, 3)));
    assert_eq!(copies("Hash", "IDENTITY → Array → Hash"), None);
    let few = |class: &str, has: FewThings, path: &str| {
        let mut rows = contents.few.iter();
        let row = rows.find(|it| (it.class.as_str(), it.has) == (class, has) && it.path == path);
        row.map(|it| it.objects)
    };
    assert_eq!(few("Blank", FewThings::OnlyNil, "BLANKS → Array → Blank"), Some(1_500));
    // Of objects with more than 64 words nothing was told.
    assert_eq!(few("Array", FewThings::OnlyNil, "SHEETS → Array × 2"), Some(1_000));
    assert_eq!(copies("Array", "SHEETS → Array × 2"), Some((999, 1)));
    assert_eq!(few("Bare", FewThings::Nothing, "BARE → Array → Bare"), Some(1_600));
    assert_eq!(copies("Bare", "BARE → Array → Bare"), Some((1_599, 1)));
    assert_eq!(few("Array", FewThings::OnlyNil, "LITERALS → Array × 2"), Some(1_400));
    assert_eq!(copies("Array", "LITERALS → Array × 2"), Some((1_399, 1)));
    assert_eq!(few("Wide", FewThings::OnlyNil, "ROWS → Array → Wide"), Some(1_300));
    assert_eq!(few("Array", FewThings::Nothing, "EMPTY → Array × 2"), Some(1_200));
    assert_eq!(few("Hash", FewThings::OneElement, "SINGLE → Array → Hash"), Some(1_100));
    assert!(target.finish());
}

/// Objects that nothing retains are garbage, not waste.
#[test]
fn garbage_is_no_waste() {
    let target = Target::bare_ruby(
        "GC.start
         GC.disable
         def fill(depth)
           depth.zero? ? 2_000.times { String.new(capacity: 9_000) << 'garbage' } : fill(depth - 1)
         end
         def clear(depth); depth.zero? ? 0 : clear(depth - 1) + 1; end
         fill(50)
         clear(100)
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let waste = waste(&target);
    let strings = waste.kinds.iter().find(|row| row.kind.name() == "strings");
    assert!(strings.is_none_or(|row| row.bytes < 9_000 * 100), "{strings:?}");
    let copies = &waste.contents.as_ref().unwrap().copies;
    assert!(copies.iter().all(|row| row.objects < 1_000), "{copies:#?}");
    assert!(target.finish());
}

/// A snapshot has the account if it was wanted, and a report says if a snapshot lacks a part of it. Reports have no text of a string.
#[test]
fn a_snapshot_has_the_account_and_no_contents() {
    let target = Target::bare_ruby(
        "# The command line must not have the text either.
         SECRETS = Array.new(1_000) { |i| ['pass', 'word'].join + \"-that-nobody-may-see-#{i % 2}\" }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let folder = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let snapshot = |name: &str, options: &[&str]| {
        let path = folder.path().join(name);
        let arguments = ["snapshot", &pid, "--max-pause", "10s", "-o", path.to_str().unwrap()];
        let output = rbloat().args(arguments).args(options).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        path.to_str().unwrap().to_owned()
    };
    let text = |path: &str| {
        let output = rbloat().args(["report", path, "--waste"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (without, with) = (snapshot("without.rbloat", &[]), snapshot("with.rbloat", &["--waste"]));
    assert!(
        text(&without)
            .contains("Contents were not compared: the snapshot was taken without --waste.")
    );
    let text = text(&with);
    assert!(text.contains("SECRETS → Array → String"), "{text}");
    let json = rbloat().args(["report", &with, "--json"]).output().unwrap();
    let report: Report = report_of(&json);
    assert!(report.waste.unwrap().contents.unwrap().copies[0].objects >= 998);
    for text in [text.as_bytes(), &json.stdout] {
        let text = String::from_utf8_lossy(text);
        assert!(!text.contains("password"), "{text}");
    }
    assert!(target.finish());
}

/// The strings stay the same while the room around them grows: that is no growth of data.
#[test]
fn room_that_grows_around_the_same_contents_is_a_row_of_a_diff() {
    let mut target = Target::bare_ruby(
        "BUFFERS = Array.new(500) { |i| +\"kept #{i}\" }
         STABLE = Array.new(500) { String.new(capacity: 2_000) << 'x' }
         require 'objspace'
         2.times do
           4.times { GC.start }
           puts \"ready {\\\"bytes\\\": #{ObjectSpace.memsize_of(BUFFERS[0])}}\"; $stdout.flush
           $stdin.gets or exit!(true)
           # All of the room was written once.
           BUFFERS.each { |it| it << 'y' * 20_000; it[9..] = '' }
         end",
    );
    let folder = tempfile::tempdir().unwrap();
    let snapshot = |name: &str, pid: i32| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let pid = pid.to_string();
        let output = rbloat().args(["snapshot", &pid, "--max-pause", "10s", "-o", &path]).output();
        assert!(output.unwrap().status.success());
        path
    };
    let first = snapshot("first.rbloat", target.pid());
    target.tell("grow");
    if target.next_truth()["bytes"].as_u64().unwrap() < 19_000 {
        return testkit::skip("this Ruby makes the room smaller by itself");
    }
    let last = snapshot("last.rbloat", target.pid());
    let diff = |options: &[&str]| {
        rbloat().args(["diff", &first, &last]).args(options).output().unwrap().stdout
    };
    let document: formats::Diff = document(&diff(&["--json"]));
    let row = &document.waste[0];
    let path = "BUFFERS → Array → String";
    assert_eq!((row.kind.name(), row.path.as_str()), ("strings", path));
    assert!(row.is_room_only(), "{row:?}");
    assert!(row.unused_bytes.change > 500 * 19_000, "{row:?}");
    assert!(document.waste.iter().all(|it| !it.path.starts_with("STABLE")), "{document:?}");
    let text = String::from_utf8(diff(&[])).unwrap();
    assert!(text.contains("the room grew, not what is in it"), "{text}");
    assert!(target.finish());
}

/// The step is taken, and objects hold less by as much as it says.
#[test]
fn strings_that_share_their_text_save_what_the_step_says() {
    let mut target = Target::bare_ruby(
        "COPIES = Array.new(200_000) { |i| \"a text that is longer than a slot, number #{i % 10}: #{'x' * 60}\" }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush
         $stdin.gets or exit!(true)
         COPIES.map!(&:-@)
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = |target: &Target| report_of(&run(target.pid(), &["--json", "--waste"]));
    let held = |report: &Report| bytes(report, "ruby.malloc") + bytes(report, "ruby.live_slots");
    let before = report(&target);
    let step = before.advice.iter().find_map(|step| match &step.action {
        Action::ShareStrings { strings, texts, bytes, path } => {
            Some((*strings, *texts, *bytes, path.as_str()))
        }
        _ => None,
    });
    let (strings, texts, expected, path) = step.unwrap();
    assert_eq!((strings, texts, path), (199_990, 10, "COPIES → Array → String"));
    let text = String::from_utf8(run(target.pid(), &["--waste"]).stdout).unwrap();
    let sentence =
        "Let Strings with the same text share one: 199,990 Strings repeat those of 10 texts.";
    assert!(text.replace('\n', " ").replace("    ", "").contains(sentence), "{text}");
    target.tell("share");
    target.next_truth();
    let saved = held(&before).saturating_sub(held(&report(&target)));
    assert!(saved * 10 > expected * 9, "{saved} of {expected}");
    assert!(target.finish());
}

/// Texts are data of the process: only a terminal gets them, and only on request.
#[test]
fn texts_are_shown_on_request_only() {
    let target = Target::bare_ruby(
        "TOWNS = Array.new(3_000) { |i| ['Wup', 'pertal'].join + \" is a town on the river, number #{i % 2}\\e[2J\" }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let text = |arguments: &[&str]| String::from_utf8(run(target.pid(), arguments).stdout).unwrap();
    let shown = text(&["--waste", "--show-strings"]);
    assert!(shown.contains("\"Wuppertal is a town on the river, number"), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    assert!(!text(&["--waste"]).contains("Wuppertal"));
    let json = text(&["--waste", "--json"]);
    assert!(!json.contains("Wuppertal"));
    let report: Report = document(json.as_bytes());
    let texts = report.waste.unwrap().contents.unwrap().texts;
    assert_eq!((texts[0].objects, texts[0].path.as_str()), (1_499, "TOWNS → Array → String"));
    let refused = run(target.pid(), &["--waste", "--show-strings", "--json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(target.finish());
}

/// Objects whose variables have other names, hashes with other defaults, and strings with variables of their own were called equal. Slices
/// were compared with nothing, but the strings that they were cut from were; and objects with many variables were left out. Objects with
/// methods of their own were equal to others, as ranges with and without their ends were on 4.1.
#[test]
fn objects_that_differ_in_more_than_their_words_are_not_equal() {
    let target = Target::bare_ruby(
        "class Named; def initialize(even); instance_variable_set(even ? :@a : :@b, 1); end; end
         class Wide; def initialize; 20.times { |i| instance_variable_set(\"@v#{i}\", nil) }; end; end
         NAMED = Array.new(2_000) { |i| Named.new(i.even?) }
         DEFAULTS = Array.new(1_500) { |i| Hash.new(i) }
         CLEARED = Array.new(1_500) { |i| table = Hash.new(i); 20.times { |at| table[at] = at }; table.clear }
         MARKED = Array.new(1_500) { |i| text = +'a text'; text.instance_variable_set(:@i, i); text }
         SLICES = Array.new(1_500) { |i| ('head' * 50 + \"tail #{i % 3}\" * 40)[200..] }
         WIDE = Array.new(1_000) { Wide.new }
         OWN = Array.new(1_500) { text = +'own text'; text.define_singleton_method(:own) { 1 }; text }
         RANGES = Array.new(2_000) { |i| Range.new(7, 9, i.even?) }
         def clear(depth); depth.zero? ? 0 : clear(depth - 1) + 1; end
         clear(100)
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let contents = waste(&target).contents.unwrap();
    let copies = |path: &str| {
        let row = contents.copies.iter().find(|it| it.path == path);
        row.map(|it| (it.class.as_str(), it.objects, it.contents))
    };
    assert_eq!(copies("NAMED → Array → Named"), Some(("Named", 1_998, 2)));
    assert_eq!(copies("DEFAULTS → Array → Hash"), None);
    assert_eq!(copies("CLEARED → Array → Hash"), None);
    assert_eq!(copies("MARKED → Array → String"), None);
    assert_eq!(copies("OWN → Array → String"), None);
    assert_eq!(copies("RANGES → Array → Range"), Some(("Range", 1_998, 2)));
    // Those that the slices were cut from are no copies.
    let of_slices = contents.copies.iter().filter(|it| it.path.starts_with("SLICES"));
    let of_slices: Vec<_> = of_slices.map(|it| (it.objects, it.contents)).collect();
    assert_eq!(of_slices, [(1_497, 3)]);
    let nils = contents.few.iter().find(|it| it.class == "Wide").map(|it| (it.has, it.objects));
    // From 4.1 on an internal object has the variables of the first one, whose class had none yet.
    let is_all = |(has, objects)| has == FewThings::OnlyNil && (999..=1_000).contains(&objects);
    assert!(nils.is_some_and(is_all), "{nils:?}");
    assert!(target.finish());
}

/// Slots of 640 bytes with a few bytes in use looked full.
#[test]
fn slots_that_are_larger_than_needed_are_room() {
    let target = Target::bare_ruby(
        "require 'objspace'
         require 'json'
         # Strings and arrays that were large when they were made, in the slot.
         TEXTS = Array.new(3_000) { |i| text = 'x' * 400; text[5..] = ''; text }
         sizes = TEXTS.map { |it| ObjectSpace.memsize_of(it) }
         # Their class has had objects with more variables.
         class Wide; def initialize(count); count.times { |i| instance_variable_set(\"@v#{i}\", i) }; end; end
         Wide.new(9)
         WIDE = Array.new(2_000) { Wide.new(1) }
         wide = WIDE.sum { |it| ObjectSpace.memsize_of(it) }
         truth = { slots: sizes.sum, small: ObjectSpace.memsize_of('x' * 5), wide: wide, version: RUBY_VERSION }
         4.times { GC.start }
         puts \"ready #{JSON.generate(truth)}\"; $stdout.flush; $stdin.read; exit!(true)",
    );
    let waste = waste(&target);
    let (slots, small) = (target.number("slots"), target.number("small"));
    let is_it =
        |it: &&WasteGroup| it.path == "TEXTS → Array → String" && it.row.kind.name() == "slots";
    let version = target.truth["version"].as_str().unwrap();
    if version < "3.2" || slots < 3_000 * 2 * small {
        return testkit::skip("this Ruby has slots of one size, or makes them smaller");
    }
    let group = waste.groups.iter().find(is_it).unwrap();
    let row = &group.row;
    assert_eq!((row.bytes, row.used_bytes), (slots, 3_000 * small), "{row:?}");
    assert_eq!((row.unused_bytes, row.saved_bytes), (slots - 3_000 * small, slots - 3_000 * small));
    let wide = target.number("wide");
    if wide < 2_000 * 2 * small {
        return testkit::skip("this Ruby has no large slots for objects with few variables");
    }
    let row = &self::group(&waste, "slots", "WIDE → Array → Wide").row;
    assert_eq!((row.objects, row.bytes, row.saved_bytes), (2_000, wide, 0), "{row:?}");
    let unused = row.bytes - row.used_bytes;
    assert!(row.unused_bytes == unused && unused >= wide / 2, "{row:?}");
    assert!(target.finish());
}

/// "The program itself uses this memory": it had room for thousands of variables in each object, or strings of a few bytes in large slots.
#[test]
fn a_verdict_says_if_most_memory_of_objects_is_room() {
    let target = Target::bare_ruby(
        "# Up to 3.1 an object has room for all variables of its class before the one that it has.
         class Sparse; def initialize(number); instance_variable_set(\"@v#{number}\", 1); end; end
         KEPT = Array.new(RUBY_VERSION < '3.2' ? 3_000 : 100_000) do |i|
           next Sparse.new(i) if RUBY_VERSION < '3.2'
           text = 'x' * 550
           text[5..] = ''
           text
         end
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let output = run(target.pid(), &[]);
    let text = String::from_utf8(output.stdout).unwrap().replace('\n', " ");
    let sentence = " of it are room that live objects have and do not use: `rbloat report ";
    assert!(text.contains(sentence), "{text}");
    assert!(!text.contains("The program itself uses this memory"), "{text}");
    assert!(target.finish());
}

/// The room of a Queue was in no figure: up to 4.0 it has an Array that programs do not know, and later a ring. The step is taken.
#[test]
fn a_queue_keeps_the_room_of_its_largest_backlog() {
    let mut target = Target::bare_ruby(
        "JOBS = [Queue.new]
         def fill
           3_000_000.times { |i| JOBS[0] << i }
           2_999_990.times { JOBS[0].pop }
         end
         def clear(depth); depth.zero? ? 0 : clear(depth - 1) + 1; end
         # The stack of another thread keeps nothing.
         Thread.new { fill }.join
         2.times do
           clear(100)
           4.times { GC.start }
           puts 'ready {}'; $stdout.flush
           $stdin.gets or exit!(true)
           Thread.new do
             copy = Queue.new
             copy << JOBS[0].pop until JOBS[0].empty?
             JOBS[0] = copy
           end.join
         end",
    );
    let report = |target: &Target| report_of(&run(target.pid(), &["--json", "--waste"]));
    let before = report(&target);
    let groups = &before.waste.as_ref().unwrap().groups;
    let row = &groups.iter().find(|it| it.path == "JOBS → Array → Thread::Queue").unwrap().row;
    assert_eq!(row.used_bytes, 10 * 8, "{row:?}");
    assert!(row.unused_bytes > 8 * 2_900_000, "{row:?}");
    let step = before.advice.iter().find_map(|step| match &step.action {
        Action::CopyBuffers { class, objects: 1, used_bytes: 80, bytes, .. }
            if class == "Queue" =>
        {
            Some(*bytes)
        }
        _ => None,
    });
    assert_eq!(step, Some(row.saved_bytes), "{:#?}", before.advice);
    let text = String::from_utf8(run(target.pid(), &[]).stdout).unwrap();
    assert!(text.contains("copy << queue.pop until queue.empty?"), "{text}");
    assert!(!text.contains("Release the objects of class Thread::Queue"), "{text}");
    target.tell("copy");
    target.next_truth();
    let malloc = |report: &Report| bytes(report, "ruby.malloc");
    let saved = malloc(&before).saturating_sub(malloc(&report(&target)));
    assert!(saved.abs_diff(row.saved_bytes) < row.saved_bytes / 50, "{saved} {row:?}");
    assert!(target.finish());
}

/// A socket keeps the buffer that it read a line into.
#[test]
fn buffers_of_ios_are_room_until_they_are_closed() {
    let target = Target::bare_ruby(
        "require 'objspace'
         require 'socket'
         ENDS = Array.new(50) { UNIXSocket.pair }
         READERS = ENDS.map(&:last)
         before = READERS.sum { |it| ObjectSpace.memsize_of(it) }
         ENDS.each { |writer, reader| writer.write(\"a line\\nabc\"); reader.gets }
         bytes = READERS.sum { |it| ObjectSpace.memsize_of(it) } - before
         4.times { GC.start }
         puts \"ready {\\\"bytes\\\": #{bytes}}\"; $stdout.flush; $stdin.read; exit!(true)",
    );
    let waste = waste(&target);
    let rows = waste.groups.iter().filter(|it| it.row.kind.name() == "io_buffers");
    let row = &rows.clone().find(|it| it.class == "UNIXSocket").unwrap().row;
    assert_eq!((row.objects, row.bytes, row.used_bytes), (50, target.number("bytes"), 50 * 3));
    assert!((1..=row.bytes - row.used_bytes).contains(&row.unused_bytes), "{row:?}");
    assert_eq!(row.saved_bytes, 0);
    assert!(target.finish());
}
