//! Named roots, compared with the program's own report.

use std::collections::BTreeMap;

use image::freeze;
use linux::{Address, PATIENCE};
use ruby::{NamedRoot, ObjectSpace, RootKind, SlotType};
use testkit::Target;

/// Reports the addresses of the values of constants and variables, by name. `dump` has no address for numbers, symbols
/// and similar values.
const TELL: &str = r##"
  require "objspace"; require "json"
  address = lambda do |it|
    json = ObjectSpace.dump(it)
    json.is_a?(String) && json.start_with?("{") ? JSON.parse(json)["address"]&.hex : nil
  end
  truth = { constants: {}, files: {}, instance_variables: {}, class_variables: {}, global_variables: {}, known: global_variables }
  $VERBOSE = nil
  $tell = lambda do
    ObjectSpace.each_object(Module).to_a.each do |owner|
      name = Module.instance_method(:name).bind(owner).call or next
      prefix = owner == Object ? "" : "#{name}::"
      Module.instance_method(:constants).bind(owner).call(false).each do |it|
        next if Module.instance_method(:autoload?).bind(owner).call(it)
        truth[:files]["#{prefix}#{it}"] = owner.const_source_location(it, false)&.first
        truth[:constants]["#{prefix}#{it}"] = address.(owner.const_get(it, false))
      end
      Kernel.instance_method(:instance_variables).bind(owner).call.each do |it|
        truth[:instance_variables]["#{name}.#{it}"] = address.(owner.instance_variable_get(it))
      end
      Module.instance_method(:class_variables).bind(owner).call(false).each do |it|
        truth[:class_variables]["#{name}#{it}"] = address.(owner.class_variable_get(it))
      end
    end
    global_variables.each { |it| truth[:global_variables][it.to_s] = address.(eval(it.to_s)) }
    truth
  end
"##;

/// The object space of a target that ran `body`, its named roots, and its own report.
fn reported(body: &str) -> (ObjectSpace, Vec<NamedRoot>, serde_json::Value) {
    let target = Target::ruby(&format!(
        "{TELL}\n{body}\nGC.start; GC.disable\n$tell.()
         puts 'ready ' + JSON.dump($tell.()); $stdout.flush; $stdin.read"
    ));
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let space = ruby::read(frozen.image()).unwrap();
    let (named_roots, findings) = ruby::named_roots(frozen.image(), &space);
    frozen.thaw().unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    let truth = target.truth.clone();
    assert!(target.finish());
    (space, named_roots, truth)
}

/// The addresses of the values of named roots of a kind, by name.
fn addresses(
    space: &ObjectSpace,
    named_roots: &[NamedRoot],
    kind: RootKind,
) -> BTreeMap<String, u64> {
    let own = named_roots.iter().filter(|named_root| named_root.kind == kind);
    own.map(|it| (it.name.clone(), space.slot_address(it.value as usize).unwrap().0)).collect()
}

fn truth_of(truth: &serde_json::Value, kind: &str) -> BTreeMap<String, u64> {
    let all = truth[kind].as_object().unwrap().iter();
    all.filter_map(|(name, it)| Some((name.clone(), it.as_u64()?))).collect()
}

const CACHE: &str = "module Cache; STORE = {}; @items = []; @number = 7; @more = 'more'; @@all = []; NUMBER = 5
     class Deep; LIST = [1]; @one = Object.new; private_constant :LIST; class << self; INNER = 'inner'; end; end; end
   $items = []; $nothing = nil; $same = $items; alias $other $items
   Pair = Struct.new(:left); class Pair; @own = Pair.new(1); end
   Late = Class.new { const_set(:HELD, +'held') }
   100.times { |it| Cache.const_set(\"GENERATED_#{it}\", it.to_s * 50); Cache.instance_variable_set(\"@generated_#{it}\", [it]) }
   require 'set'; require 'time'; require 'optparse'; require 'erb'";

#[test]
fn objects_have_the_roots_that_the_program_gave_them() {
    let (space, named_roots, truth) = reported(CACHE);
    let all: BTreeMap<&str, u32> =
        named_roots.iter().map(|it| (it.name.as_str(), it.value)).collect();
    assert_eq!(all.len(), named_roots.len(), "each name once");
    for (kind, name) in [
        ("constants", "Cache::STORE"),
        ("constants", "Cache::Deep"),
        ("constants", "Cache::GENERATED_99"),
        ("constants", "Late::HELD"),
        ("instance_variables", "Cache.@items"),
        ("instance_variables", "Cache.@more"),
        ("instance_variables", "Cache.@generated_99"),
        ("instance_variables", "Cache::Deep.@one"),
        ("instance_variables", "Pair.@own"),
        ("class_variables", "Cache@@all"),
        ("global_variables", "$items"),
        ("global_variables", "$same"),
        ("global_variables", "$other"),
    ] {
        let slot = all.get(name).unwrap_or_else(|| panic!("{name} holds something"));
        let expected = truth[kind][name].as_u64().map(Address);
        assert_eq!(space.slot_address(*slot as usize), expected, "{name}");
    }
    let mut files = 0;
    for root in named_roots.iter().filter(|it| it.kind == RootKind::Constant) {
        if let Some(expected) = truth["files"].get(&root.name) {
            let file = root.file.as_ref().map(|(file, _)| &file[..]);
            assert_eq!(file, expected.as_str(), "{}", root.name);
            files += usize::from(root.file.is_some());
        }
    }
    assert!(files > 200, "{files}");
    for name in ["Cache::Deep::LIST", "#<Class:Cache::Deep>::INNER"] {
        assert!(all.contains_key(name), "{name}: private ones and those of singleton classes too");
    }
    for name in ["Cache::NUMBER", "Cache.@number", "$nothing"] {
        assert!(!all.contains_key(name), "{name} holds no object");
    }
}

#[test]
fn all_constants_and_variables_are_named_as_the_program_names_them() {
    let (space, named_roots, truth) = reported(CACHE);
    let known: Vec<&str> =
        truth["known"].as_array().unwrap().iter().filter_map(|it| it.as_str()).collect();
    for (kind, name, fewest) in [
        (RootKind::Constant, "constants", 900),
        (RootKind::InstanceVariable, "instance_variables", 105),
        (RootKind::ClassVariable, "class_variables", 1),
        (RootKind::GlobalVariable, "global_variables", 5),
    ] {
        let own = addresses(&space, &named_roots, kind);
        let truth = truth_of(&truth, name);
        for (name, at) in &own {
            if let Some(expected) = truth.get(name) {
                assert_eq!(at, expected, "{name}");
            }
        }
        // Ruby keeps the values of some of its own global variables elsewhere.
        let rubys_own = |name: &String| known.contains(&name.as_str());
        let missing: Vec<&String> =
            truth.keys().filter(|it| !own.contains_key(*it) && !rubys_own(it)).collect();
        assert!(missing.is_empty(), "{kind:?}: {missing:?}");
        assert!(own.len() >= fewest, "{kind:?}: {}", own.len());
    }
}

/// malloc does not clear the room behind the variables of a class, whose words seemed to be references.
#[test]
fn memory_of_classes_is_in_use_up_to_their_variables() {
    const CLASSES: usize = 300;
    const VARIABLES: u64 = 7;
    let target = Target::ruby(&format!(
        "KEPT = Array.new({CLASSES}) {{ Class.new }}
         KEPT.each {{ |it| {VARIABLES}.times {{ |number| it.instance_variable_set(\"@v#{{number}}\", number) }} }}
         puts 'ready {{}}'; $stdout.flush; $stdin.read"
    ));
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let space = ruby::read(frozen.image()).unwrap();
    let memory = ruby::memory_of_classes(frozen.image(), &space);
    frozen.thaw().unwrap();
    let with_seven =
        memory.iter().filter(|(at, content)| at.0 != 0 && content.used_words() == Some(VARIABLES));
    let count = with_seven.count();
    assert!(target.finish());
    let version = &space.interpreter.version;
    if !["3.2.", "3.3.", "3.4."].iter().any(|it| version.starts_with(it)) {
        return testkit::skip("the variables of classes are in tables or objects of their own");
    }
    // Those of the interpreter have fewer.
    assert!((CLASSES..CLASSES + 50).contains(&count), "{count}");
}

/// Tables grow and shrink, and the stops come at any point. Names are right or left out.
#[test]
fn a_busy_program_has_no_wrong_names() {
    let target = Target::ruby(
        "module Cache; end
         3.times { |thread| Thread.new { loop {
           500.times { |it| Cache.const_set(\"OF_#{thread}_#{it}\", \"constant #{thread} #{it}\") }
           500.times { |it| Cache.instance_variable_set(\"@of_#{thread}_#{it % 20}\", [thread, it]) }
           500.times { |it| Cache.send(:remove_const, \"OF_#{thread}_#{it}\") } } } }
         Thread.new { loop { sleep 0.02; GC.start } }
         sleep 0.01 until GC.count > 10; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (mut read, mut named) = (0, 0);
    for round in 0..30 {
        std::thread::sleep(std::time::Duration::from_millis(1 + round * 7 % 20));
        let frozen = freeze(target.pid(), PATIENCE).unwrap();
        if let Ok(space) = ruby::read(frozen.image()) {
            let (named_roots, findings) = ruby::named_roots(frozen.image(), &space);
            read += 1;
            named += usize::from(findings.is_empty());
            for named_root in &named_roots {
                let kind = space.slots[named_root.value as usize].kind();
                let Some(name) = named_root.name.strip_prefix("Cache") else { continue };
                let (prefix, expected) = match named_root.kind {
                    RootKind::Constant if name.is_empty() => ("", SlotType::MODULE),
                    RootKind::Constant => ("::OF_", SlotType::STRING),
                    _ => (".@of_", SlotType::ARRAY),
                };
                assert!(name.starts_with(prefix) && kind == expected, "{named_root:?}: {kind}");
            }
        }
        frozen.thaw().unwrap();
    }
    assert!(named >= 5, "{named} of {read}");
    assert!(target.finish());
}
