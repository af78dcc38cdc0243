//! `rbloat dump`: the objects, compared with what `ObjectSpace.dump_all` of the process itself has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;
use testkit::{Target, outside};

use crate::cores::core_by_gdb;
use crate::{complaint, rbloat};

/// Objects of all types, and the file with the process's own dump.
const PROGRAM: &str = r##"
    require "json"
    require "objspace"
    require "set"
    Few = Struct.new(:a)
    Many = Struct.new(:a, :b, :c, :d, :e, :f)
    class Plain; def initialize; @number = 1; @text = "x" * 100; @list = [1, "y" * 30, nil] * 5; @hash = { a: "v" }; end; end
    class Wide; def initialize(count); count.times { |i| instance_variable_set("@v#{i}", "v#{i}") }; end; end
    module Store
      CACHE = {}
      @items = []
      class << self; attr_reader :items; end
    end
    ObjectSpace.trace_object_allocations_start
    300.times { |i| Store::CACHE["key #{i}"] = Plain.new; Store.items << Many.new("a#{i}", "b", "c" * 40, nil, i) << Few.new("#{i}") }
    EXAMPLES = [{ 1 => "2" }, "abc", "k" * 1000, 2**80, 2**4000, 1.0e300, "a b".to_sym, /re#{1}/, "a".match(/a/)]
    EXAMPLES.push(Wide.new(12), Wide.new(3), Complex("1+2i"), Rational(1, 3), Set.new(("1".."99").to_a), Class.new(Plain), Module.new)
    EXAMPLES << "shared" * 99; EXAMPLES << EXAMPLES.last[10..-1]; EXAMPLES << ("1".."99").to_a; EXAMPLES << EXAMPLES.last[5..-1]
    EXAMPLES << Hash.new { |_, key| key }.merge("q" => "r") << ("1".."50").to_h { |i| [i, i] } << "wide".encode("UTF-16LE") * 30
    EXAMPLES << "\xff".b * 40 << "häß" * 20 << [] << "" << {} << proc { EXAMPLES } << method(:puts)
    single = Object.new
    def single.x; end
    $single = single
    # Each has variables of its own, so their class soon has too many shapes.
    class Mixed; def initialize(i); 3.times { |at| instance_variable_set("@v#{i}_#{at}", "#{i}") }; end; end
    CLOSED = Array.new(30) { File.open("/dev/null").tap(&:close) }
    EXAMPLES.push(*Array.new(60) { |i| Mixed.new(i) }, *Array.new(30) { Wide.new(20).tap { |it| def it.x; end } })
    EXAMPLES.push(*Array.new(30) { Module.new { include Comparable } })
    EXAMPLES.push(*Array.new(60) { |i| [i].tap { |it| it.instance_variable_set(:@more, "m#{i}") } })
    # Subclasses of Module have other names.
    class Methods < Module; end
    EXAMPLES.push(*Array.new(30) { |i| Methods.new { define_method("m#{i}") { i } }.tap { |it| Class.new.include(it) } })
    4.times { GC.start }
    # Objects that cannot move have a flag afterwards.
    GC.compact rescue NotImplementedError
    GC.disable
    path = "/tmp/rbloat-dump-#{$$}.json"
    File.open(path, "w") { |file| ObjectSpace.dump_all(output: file) }
    puts "ready #{JSON.generate(path: path)}"
    $stdout.flush
    $stdin.gets
"##;

/// The types of which a dump has exactly the sizes that Ruby counts, and the references up to those of [`has_more`].
const EXACT: [&str; 10] = [
    "STRING", "ARRAY", "HASH", "OBJECT", "STRUCT", "FLOAT", "BIGNUM", "COMPLEX", "RATIONAL",
    "SYMBOL",
];
/// The fields that are the same, if the process's own dump has them.
const FIELDS: [&str; 25] = [
    "type",
    "class",
    "slot_size",
    "shape_id",
    "frozen",
    "embedded",
    "fstring",
    "chilled",
    "shared",
    "bytesize",
    "capacity",
    "encoding",
    "coderange",
    "size",
    "length",
    "ivars",
    "too_complex_shape",
    "complex_shape",
    "default",
    "fd",
    "superclass",
    "real_class_name",
    "name",
    "struct",
    "imemo_type",
];
const FLAGS: [&str; 6] = ["wb_protected", "old", "uncollectible", "marked", "marking", "pinned"];
/// Those that a program's own dump has from 4.0 on.
const LATE_FLAGS: [&str; 3] = ["age", "remembered", "shareable"];
/// The objects that the process changes or replaces between its own dump and ours: the open file, and what its end runs.
const MAX_CHANGED: usize = 12;

/// The objects of a dump by their addresses, and the references of its roots.
type Objects = (BTreeMap<String, Value>, BTreeSet<String>);

/// The shapes of a dump, by their numbers. Their size is without their tables of edges, and 3.4 prints numbers of parents that are none.
fn shapes(lines: &str) -> BTreeMap<u64, Value> {
    let shapes = lines.lines().filter(|it| it.contains(r#""type":"SHAPE""#));
    let mut shapes = shapes.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let number = |mut shape: Value| {
        shape.as_object_mut().unwrap().remove("memsize");
        if shape["parent_id"] == u32::MAX {
            shape.as_object_mut().unwrap().remove("parent_id");
        }
        (shape["id"].as_u64().unwrap(), shape)
    };
    shapes.by_ref().map(number).collect()
}

fn read(lines: &str) -> Objects {
    let (mut objects, mut roots) = (BTreeMap::new(), BTreeSet::new());
    for line in lines.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|it| panic!("{it}: {line}"));
        match value["type"].as_str().unwrap() {
            // Registers and stacks differ by the time.
            "ROOT" if value["root"] == "machine_context" => {}
            "ROOT" => roots.extend(references(&value)),
            "SHAPE" => {}
            _ => _ = objects.insert(value["address"].as_str().unwrap().to_owned(), value),
        }
    }
    (objects, roots)
}

/// The references of an object, without one to itself.
fn references(object: &Value) -> BTreeSet<String> {
    let all = object["references"].as_array().into_iter().flatten();
    let texts = all.map(|it| it.as_str().unwrap().to_owned());
    texts.filter(|it| *it != object["address"]).collect()
}

fn dump(source: &str, to: &Path, arguments: &[&str]) -> std::process::Output {
    let output = rbloat()
        .args(["dump", source, "--max-pause", "10s", "-o"])
        .arg(to)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The target, and its own dump.
fn target() -> (Target, String) {
    let target = Target::ruby(PROGRAM);
    let path = outside(Path::new(target.truth["path"].as_str().unwrap()));
    let text = fs::read(&path).unwrap();
    fs::remove_file(path).unwrap();
    // Texts of strings may be in any encoding.
    (target, String::from_utf8_lossy(&text).into_owned())
}

/// The type of an object, and that of an internal object or the name of a structure.
fn what(object: &Value) -> String {
    let inner = object["imemo_type"].as_str().or(object["struct"].as_str()).unwrap_or_default();
    format!("{} {inner}", object["type"].as_str().unwrap_or_default())
}

/// Returns true if a dump may have a reference that the process's own dump does not have: see docs/dump.md.
fn has_more(from: &Value, to: &Value) -> bool {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let [from_type, to_type] = [from, to].map(|it| text(it, "type"));
    match (from_type.as_str(), to_type.as_str()) {
        // A symbol and its string are in a table.
        ("STRING", "SYMBOL") | ("SYMBOL", "STRING") => true,
        // The ancestors, the methods of a module, and caches.
        ("CLASS" | "ICLASS", _) => true,
        // What the structure has, which C code marks, or a thread.
        ("DATA" | "FILE", _) => !["time", "JSON/Generator/State"].contains(&&*text(from, "struct")),
        // Up to 3.1 the second word of an internal object counts as its class. Caches of bytecode are weak.
        ("IMEMO", _) => {
            let has_class = !from["class"].is_null();
            has_class || ["iseq", "env", "svar"].contains(&&*text(from, "imemo_type"))
        }
        _ => false,
    }
}

/// Returns true for what an internal object refers to over a cache: a class (3.0 and 3.1), or under jemalloc the cache of a call.
fn is_cached(from: &Value, to: &Value) -> bool {
    let is_class = matches!(to["type"].as_str(), Some("CLASS" | "MODULE"));
    from["imemo_type"] == "iseq" && is_class
        || from["type"] == "IMEMO" && to["imemo_type"] == "callcache"
}

#[test]
fn a_dump_has_the_objects_classes_references_and_sizes_of_dump_all() {
    let (target, own_dump) = target();
    let (theirs, their_roots) = read(&own_dump);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heap.ndjson");
    let output = dump(&target.pid().to_string(), &file, &["--values"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("as secret as the memory"));
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let our_dump = fs::read_to_string(&file).unwrap();
    let (ours, roots) = read(&our_dump);
    let (own_shapes, our_shapes) = (shapes(&own_dump), shapes(&our_dump));
    for (number, shape) in &own_shapes {
        assert_eq!(our_shapes.get(number), Some(shape));
    }
    assert!(our_shapes.len() - own_shapes.len() < 50, "{} shapes", our_shapes.len());

    let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut compared = BTreeMap::new();
    let (mut lacking_in_exact, mut pinned) = (Vec::new(), 0);
    for (address, their) in &theirs {
        let kind = their["type"].as_str().unwrap();
        let mut note = |what: &str, detail: String| {
            wrong.entry(format!("{kind} {what}")).or_default().push(format!("{address}: {detail}"));
        };
        let Some(our) = ours.get(address) else {
            note("is missing", String::new());
            continue;
        };
        *compared.entry(kind).or_insert(0) += 1;
        let is_exact = EXACT.contains(&kind);
        for field in FIELDS {
            // Dead objects, and internal ones whose second word is no class, have other fields.
            let counts =
                !matches!(kind, "IMEMO" | "ZOMBIE") || matches!(field, "type" | "imemo_type");
            // In 2.7, a singleton class has the name of the class of its objects.
            let is_made_up = their[field].as_str().is_some_and(|it| it.starts_with("#<"));
            let is_name = field == "name" && (is_made_up || their[field] == our["real_class_name"]);
            if counts && !is_name && !their[field].is_null() && their[field] != our[field] {
                note(field, format!("{} and not {}", our[field], their[field]));
            }
        }
        let is_chilled = &our["chilled"];
        if !is_chilled.is_null() && *is_chilled != their["chilled"] {
            note("chilled", is_chilled.to_string());
        }
        pinned += usize::from(!their["flags"]["pinned"].is_null());
        let late = LATE_FLAGS.into_iter().filter(|_| !their["flags"]["age"].is_null());
        for flag in FLAGS.into_iter().chain(late) {
            if their["flags"][flag] != our["flags"][flag] && kind != "ZOMBIE" {
                note(flag, format!("{} and not {}", our["flags"][flag], their["flags"][flag]));
            }
        }
        let traced = ["file", "line", "generation"].into_iter().filter(|_| is_exact);
        traced.filter(|it| their[it] != our[it]).for_each(|it| note(it, our[it].to_string()));
        let [own_bytes, their_bytes] = [our, their].map(|it| it["memsize"].as_u64().unwrap_or(0));
        // Up to 3.4, the variables of a string or array are in a table of all objects, which a dump does not count.
        let of_variables = their_bytes.saturating_sub(own_bytes);
        let has_variables =
            ["STRING", "ARRAY"].contains(&kind) && of_variables % 8 == 0 && of_variables <= 64;
        if is_exact && own_bytes != their_bytes && !has_variables {
            note("memsize", format!("{own_bytes} and not {their_bytes}"));
        }
        let [own, its] = [our, their].map(references);
        // Threads and other structures change meanwhile.
        let mut lacking = its.difference(&own).filter_map(|to| theirs.get(to));
        if let Some(to) = lacking.find(|to| kind != "DATA" && !is_cached(their, to)) {
            let what = format!("{} to {}", what(their), what(to));
            if is_exact || kind == "MODULE" {
                lacking_in_exact.push(format!("{address}: {what}"));
            }
            note("lacks a reference", what);
        }
        let mut more = own.difference(&its).filter_map(|to| theirs.get(to));
        if let Some(to) = more.find(|to| !has_more(their, to)) {
            note("has a reference", format!("to {}", what(to)));
        }
        let is_text = our["value"].is_string() && their["value"].is_string() && kind != "FLOAT";
        if is_text && our["value"] != their["value"] {
            note("value", format!("{} and not {}", our["value"], their["value"]));
        }
    }
    for kind in ["STRING", "ARRAY", "HASH", "OBJECT", "STRUCT", "CLASS", "MODULE", "DATA", "IMEMO"]
    {
        assert!(compared.get(kind).is_some_and(|count| *count >= 5), "{kind}: {compared:?}");
    }
    assert!(pinned > 100, "{pinned} objects are pinned");
    // The process changes a list of its own at most.
    assert!(lacking_in_exact.len() <= 2, "{lacking_in_exact:#?}");
    wrong.retain(|_, cases| cases.len() > MAX_CHANGED);
    let shown: Vec<_> = wrong.iter().map(|(what, them)| (what, them.len(), &them[..2])).collect();
    assert!(wrong.is_empty(), "{shown:#?}");
    // Tools look up what an object refers to.
    let all = ours.values().flat_map(references).chain(roots.iter().cloned());
    let unknown: BTreeSet<_> = all.filter(|it| !ours.contains_key(it)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let new = ours.keys().filter(|it| !theirs.contains_key(*it)).count();
    // In 2.7, the names of modules without a name are among them.
    assert!(new <= 100, "{new} objects that the process does not have");
    // Objects that C code registered are in an array, which is the root.
    let behind = roots.iter().filter_map(|it| ours.get(it)).flat_map(references);
    let reached: BTreeSet<String> = roots.iter().cloned().chain(behind).collect();
    let both = reached.intersection(&their_roots).count();
    // The words behind 8 KiB of the VM's structure may be left over under jemalloc, whose blocks have 10 KiB: some caches of calls.
    assert!(both * 100 >= their_roots.len() * 90, "{both} of {}", their_roots.len());

    // The fields of our own. The process has done next to nothing since its last collection.
    let without_root = ours.values().filter(|it| it["rbloat"]["retaining_root"].is_null()).count();
    assert!(without_root * 200 < ours.len(), "{without_root} of {} are garbage", ours.len());
    // harb, which looks at keys only, read the root's name as an address.
    let keys = |it: &Value| {
        it.as_object().into_iter().flat_map(|it| it.keys().cloned()).collect::<BTreeSet<_>>()
    };
    let of_objects: BTreeSet<String> =
        theirs.values().flat_map(keys).chain(["root".to_owned()]).collect();
    let own: BTreeSet<String> = ours.values().flat_map(|it| keys(&it["rbloat"])).collect();
    assert_eq!(own.intersection(&of_objects).count(), 0, "{own:?}");
    let store = ours.values().find(|it| it["rbloat"]["owner"] == "Plain").unwrap();
    assert_eq!(store["rbloat"]["retaining_root"], "Store::CACHE");
    let parent = &ours[store["rbloat"]["parent"].as_str().unwrap()];
    assert_eq!(parent["type"], "HASH");
    assert!(store["rbloat"]["resident_bytes"].as_u64() >= store["memsize"].as_u64());
}

#[test]
fn a_dump_has_texts_only_if_they_are_wanted() {
    let target = Target::ruby(
        "SECRET = ['tell nobody'.dup, 'also %d' % 7, :\"no #{1}\", 0.5e300] * 3
         puts 'ready {}'
         $stdout.flush
         $stdin.gets",
    );
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments, has_texts) in
        [("a.ndjson.gz", &[][..], false), ("b.ndjson.gz", &["--values"], true)]
    {
        let file = folder.path().join(name);
        dump(&target.pid().to_string(), &file, arguments);
        let mut lines = String::new();
        let mut decoder = GzDecoder::new(fs::File::open(&file).unwrap());
        std::io::Read::read_to_string(&mut decoder, &mut lines).unwrap();
        assert_eq!(lines.contains("tell nobody"), has_texts);
        assert_eq!(lines.contains("also 7"), has_texts);
        assert!(lines.contains("\"retaining_root\":\"SECRET\""), "names are there");
    }
}

/// The rows of a table, as values by the names of columns.
fn rows(folder: &Path, table: &str) -> Vec<BTreeMap<String, Field>> {
    let file = fs::File::open(folder.join(format!("{table}.parquet"))).unwrap();
    let file = SerializedFileReader::new(file).unwrap();
    let rows = file.get_row_iter(None).unwrap().map(Result::unwrap);
    let by_name = |row: parquet::record::Row| {
        row.get_column_iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    rows.map(by_name).collect()
}

fn number(field: &Field) -> u64 {
    match field {
        Field::Long(number) => *number as u64,
        _ => panic!("{field:?}"),
    }
}

#[test]
fn tables_have_the_objects_of_the_lines_and_retained_sizes() {
    let (target, _) = target();
    let folder = tempfile::tempdir().unwrap();
    let (file, tables) = (folder.path().join("heap.ndjson"), folder.path().join("heap"));
    let pid = target.pid().to_string();
    target.stop();
    dump(&pid, &file, &["--retained"]);
    dump(&pid, &PathBuf::from(format!("{}/", tables.display())), &["--retained"]);
    let (lines, _) = read(&fs::read_to_string(&file).unwrap());
    let objects = rows(&tables, "objects");
    assert_eq!(objects.len(), lines.len());
    let mut retained = 0;
    for row in &objects {
        let line = &lines[&format!("{:#x}", number(&row["address"]))];
        let own = &line["rbloat"];
        assert_eq!(row["type"], Field::Str(line["type"].as_str().unwrap().into()));
        assert_eq!(
            Some(number(&row["memsize"])),
            line["memsize"].as_u64().or(Some(number(&row["slot_bytes"])))
        );
        if line["type"] != "ZOMBIE" {
            assert_eq!(row["owner"], Field::Str(own["owner"].as_str().unwrap().into()));
            assert_eq!(Some(number(&row["retained_bytes"])), own["retained_bytes"].as_u64());
            retained += u64::from(own["retained_bytes"].as_u64() > own["resident_bytes"].as_u64());
        }
        assert_eq!(row["value"], Field::Null);
    }
    assert!(retained >= 300, "{retained}");
    let references = rows(&tables, "references");
    let of_objects = references.iter().filter(|it| it["block"] == Field::Bool(false));
    let in_lines: usize =
        lines.values().map(|it| it["references"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(of_objects.count(), in_lines);
    // Each block that an object refers to is in the table.
    let blocks: BTreeSet<u64> =
        rows(&tables, "blocks").iter().map(|it| number(&it["address"])).collect();
    let to_blocks = references.iter().filter(|it| it["block"] == Field::Bool(true));
    assert!(to_blocks.clone().count() > 1_000);
    assert!(to_blocks.map(|it| number(&it["to_address"])).all(|at| blocks.contains(&at)));
    let live: u64 = rows(&tables, "pages").iter().map(|it| number(&it["live"])).sum();
    assert_eq!(live, objects.len() as u64);
    assert_eq!(rows(&tables, "dump")[0]["pid"], Field::Long(target.pid().into()));
    assert_eq!(fs::metadata(&tables).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(tables.join("objects.parquet")).unwrap().mode() & 0o777, 0o600);
    target.go_on();
}

#[test]
fn the_questions_find_a_leak_and_what_retains_it() {
    if std::process::Command::new("duckdb").arg("-version").output().is_err() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    let mut target = Target::ruby(
        "class Entry; def initialize(text) = @text = text; end
         module Cache; LEAK = []; @recent = []; class << self; attr_accessor :recent; end; end
         loop do
           Cache.recent = Array.new(200) { |i| Entry.new('recent %d' % i) }
           300.times { |i| Cache::LEAK << Entry.new('leaked %d' % i * 9) }
           GC.start
           puts 'ready {}'
           $stdout.flush
           $stdin.gets or break
         end"
        .replace(" = @text = text; end", "; @text = text; end; end")
        .as_str(),
    );
    let folder = tempfile::tempdir().unwrap();
    let heap = |number: usize| folder.path().join(format!("heap-{number}"));
    for number in 1..=3 {
        dump(
            &target.pid().to_string(),
            &PathBuf::from(format!("{}/", heap(number).display())),
            &["--retained"],
        );
        target.tell("go on");
        target.next_truth();
    }
    let ask = |at: &Path, settings: &str, question: &str| -> Vec<Value> {
        let read = format!(".read {}", heap(1).join(question).display());
        let mut command = std::process::Command::new("duckdb");
        command.current_dir(at).args(["-json", "-c", settings, "-c", &read]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{question}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    let leak = ask(
        folder.path(),
        "SET VARIABLE first = 'heap-1'; SET VARIABLE second = 'heap-2'; SET VARIABLE third = 'heap-3';",
        "leak.sql",
    );
    let entry = leak.iter().find(|row| row["owner"] == "Entry").unwrap();
    assert_eq!(
        (entry["root"].as_str(), entry["objects"].as_u64()),
        (Some("Cache::LEAK"), Some(300))
    );
    let apart = ask(
        folder.path(),
        "SET VARIABLE first = 'heap-1'; SET VARIABLE second = 'heap-2';",
        "diff.sql",
    );
    let entry = apart.iter().find(|row| row["owner"] == "Entry").unwrap();
    assert_eq!(entry["more_objects"].as_i64(), Some(300));
    let ways = ask(
        &heap(1),
        "SET VARIABLE from_class = 'Entry'; SET VARIABLE to_class = 'String';",
        "paths.sql",
    );
    assert_eq!(ways[0]["path"], "Entry → String");
    assert!(ways[0]["objects"].as_u64() >= Some(500), "{ways:?}");
    let largest = ask(&heap(3), "SET VARIABLE nothing = 0", "largest.sql");
    assert!(
        largest.iter().any(|row| row["owner"] == "Array" && row["root"] == "Cache::LEAK"),
        "{largest:?}"
    );
    let dominators = ask(&heap(3), "SET VARIABLE nothing = 0", "dominators.sql");
    let leaked = dominators
        .iter()
        .find(|row| row["dominator"] == "Array" && row["owner"] == "Entry")
        .unwrap();
    assert!(leaked["objects"].as_u64() >= Some(900), "{leaked}");
    let fill = ask(&heap(1), "SET VARIABLE nothing = 0", "fill.sql");
    assert!(
        ["heap pages", "malloc", "strings"]
            .iter()
            .all(|part| fill.iter().any(|row| row["part"] == *part))
    );
}

#[test]
fn three_dumps_show_a_leak_whoever_wrote_them() {
    let mut target = Target::ruby(
        r##"
        require "json"
        require "objspace"
        class Entry; def initialize(text); @text = text; end; end
        module Cache; LEAK = []; @recent = []; class << self; attr_accessor :recent; end; end
        ObjectSpace.trace_object_allocations_start
        loop do
          Cache.recent = Array.new(200) { |i| Entry.new("recent #{i}") }
          300.times { |i| Cache::LEAK << Entry.new("leaked #{i}" * 9) }
          GC.start
          path = "/tmp/rbloat-leak-#{$$}-#{Cache::LEAK.size}.json"
          File.open(path, "w") { |file| ObjectSpace.dump_all(output: file) }
          puts "ready #{JSON.generate(path: path)}"
          $stdout.flush
          $stdin.gets or break
        end
        "##,
    );
    let folder = tempfile::tempdir().unwrap();
    let at = |name: String| folder.path().join(name).display().to_string();
    let [mut own, mut ours] = [Vec::new(), Vec::new()];
    let mut truth = target.truth.clone();
    for number in 1..=3 {
        let written = outside(Path::new(truth["path"].as_str().unwrap()));
        own.push(at(format!("own-{number}.json")));
        fs::copy(&written, &own[number - 1]).unwrap();
        fs::remove_file(written).unwrap();
        ours.push(at(format!("ours-{number}.ndjson.gz")));
        dump(&target.pid().to_string(), Path::new(&ours[number - 1]), &[]);
        if number < 3 {
            target.tell("go on");
            truth = target.next_truth();
        }
    }
    let diff = |dumps: &[String]| {
        let output = rbloat().arg("diff").args(dumps).arg("--json").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    for (dumps, root) in [(&own, "Cache"), (&ours, "Cache::LEAK")] {
        let leak = diff(dumps);
        let groups = leak["groups"].as_array().unwrap();
        for class in ["Entry", "String"] {
            let its = groups.iter().find(|it| it["class"] == class && it["root"] == root).unwrap();
            assert_eq!(its["new"]["objects"], 300, "{groups:?}");
            assert!(its["line"].as_str().unwrap().ends_with(":9"), "{its}");
            assert!(its["path"].to_string().contains(r#""Array","Entry""#), "{its}");
        }
        let apart = diff(&dumps[..2]);
        let entries =
            apart["groups"].as_array().unwrap().iter().filter(|it| it["class"] == "Entry");
        let counts =
            entries.map(|it| ["new", "gone"].map(|part| it[part]["objects"].as_i64().unwrap()));
        let [new, gone] = counts.fold([0, 0], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
        assert_eq!((new, gone), (500, 200));
        let text = rbloat().arg("diff").args(dumps).output().unwrap();
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(text.contains("Array → Entry"), "{text}");
    }
    let fails = |arguments: &[&str], status: i32, reason: &str| {
        let output = rbloat().arg("diff").args(arguments).output().unwrap();
        let (code, text) = complaint(&output);
        assert!(code == status && text.contains(reason), "{code}: {text}");
    };
    let cut = at("cut.ndjson.gz".to_owned());
    let bytes = fs::read(&ours[1]).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    fails(&[&ours[0], &cut, &ours[2]], 3, "cut.ndjson.gz: it ends too early");
    fails(&[&ours[0]], 2, "not 1");
    fails(&[&ours[0], &ours[1], "--kept"], 2, "leave out the options");
    fails(&[&ours[0], &target.pid().to_string()], 2, "dumps only");
}

#[test]
fn a_snapshot_is_no_dump_and_a_process_that_has_ended_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let (snapshot, file) = (folder.path().join("a.rbloat"), folder.path().join("heap.ndjson"));
    let target = Target::scenario("pin", &["--scale", "0.01"]);
    let pid = target.pid().to_string();
    assert!(rbloat().args(["snapshot", &pid, "-o"]).arg(&snapshot).status().unwrap().success());
    let output = rbloat().arg("dump").arg(&snapshot).arg("-o").arg(&file).output().unwrap();
    let (status, text) = complaint(&output);
    assert_eq!(status, 2);
    assert!(
        text.contains("a snapshot is not a dump") && text.contains("use the process or a core"),
        "{text}"
    );
    drop(target);
    let output = rbloat().args(["dump", &pid, "-o"]).arg(&file).output().unwrap();
    assert_eq!(complaint(&output).0, 3);
    assert!(!file.exists());
}

#[test]
fn a_core_has_the_objects_and_references_of_the_process() {
    let (target, _) = target();
    let folder = tempfile::tempdir().unwrap();
    let [of_process, of_core] = ["a.ndjson", "b.ndjson"].map(|name| folder.path().join(name));
    target.stop_asleep();
    let core = core_by_gdb(&target, folder.path());
    dump(&target.pid().to_string(), &of_process, &[]);
    // gcore, which runs outside, has written the paths of files as they are outside.
    dump(core.to_str().unwrap(), &of_core, &[]);
    let [of_process, of_core] =
        [of_process, of_core].map(|file| read(&fs::read_to_string(file).unwrap()).0);
    assert_eq!(of_process.len(), of_core.len());
    for (address, object) in &of_process {
        for field in FIELDS.iter().chain(&["memsize", "flags"]) {
            assert_eq!(object[field], of_core[address][field], "{field} of {address}");
        }
        // Stacks may be missing in a core.
        if EXACT.contains(&object["type"].as_str().unwrap()) {
            assert_eq!(references(object), references(&of_core[address]), "{address}");
        }
    }
    target.go_on();
}
