//! Types and references, compared with a dump of the same process by `objspace`.

use std::collections::BTreeMap;

use image::freeze;
use linux::{Address, PATIENCE};
use ruby::{ObjectSpace, SlotType};
use serde_json::Value;
use testkit::Target;

/// A target that ran `body`, its object space, and its dump of all objects. Nothing is freed or moved
/// after the dump.
fn dumped(body: &str) -> (Target, ObjectSpace, Vec<Value>) {
    let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let target = Target::ruby(&format!(
        "require 'objspace'
         {body}
         GC.start; GC.disable
         File.open('{}', 'w') {{ |file| ObjectSpace.dump_all(output: file) }}
         puts 'ready {{}}'; $stdout.flush; $stdin.read",
        file.path().display()
    ));
    let space = super::space_of(&target).unwrap_or_else(|error| panic!("{error}"));
    let lines = std::fs::read(file.path()).unwrap();
    // It contains strings of any encoding.
    let lines = String::from_utf8_lossy(&lines).into_owned();
    let objects = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    (target, space, objects)
}

/// The slot of a dumped object.
fn slot_of(space: &ObjectSpace, object: &Value) -> Option<u32> {
    space.slot_at(address_of(object)?)
}

fn address_of(object: &Value) -> Option<Address> {
    let digits = object["address"].as_str()?.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().map(Address)
}

#[test]
fn slots_are_found_by_their_addresses() {
    let (target, space, objects) = dumped("");
    assert!(objects.len() > 10_000);
    let mut met = 0;
    let others = ["ROOT", "SHAPE"];
    for object in objects.iter().filter(|it| !others.iter().any(|other| it["type"] == *other)) {
        let slot = slot_of(&space, object).unwrap_or_else(|| panic!("{object} is in a slot"));
        assert!(space.slots[slot as usize].is_live(), "{object}");
        assert_eq!(space.slot_address(slot as usize), address_of(object));
        met += 1;
    }
    assert!(met > 10_000);
    for slot in 0..space.slots.len() {
        let at = space.slot_address(slot).unwrap();
        assert_eq!(space.slot_at(at), Some(slot as u32));
        assert_eq!(space.slot_at(at.offset(8)), None);
    }
    assert!(target.finish());
}

#[test]
fn types_of_extensions_objects_are_those_that_the_process_says() {
    let (target, space, objects) = dumped(
        "require 'stringio'; require 'zlib'; require 'openssl'
         class Worker < Thread; end
         $kept = [Zlib::Deflate.new, StringIO.new, Mutex.new, Enumerator.new { }, proc { }, method(:puts),
           OpenSSL::Digest.new('SHA256'), Worker.new { sleep }, Class.new(Thread).new { sleep }, Random.new]
         Thread.pass until $kept.grep(Thread).all?(&:stop?)",
    );
    let mut names = BTreeMap::new();
    for object in objects.iter().filter(|object| object["type"] == "DATA") {
        let slot = slot_of(&space, object).unwrap();
        let data_type = space.data_objects.type_of(slot).map(|it| &space.data_types[it as usize]);
        let name = data_type.and_then(|it| it.name.as_deref());
        assert_eq!(name, object["struct"].as_str(), "{object}");
        *names.entry(name.unwrap_or_default().to_owned()).or_insert(0) += 1;
        // Without such a function, memsize_of covers the slot and instance variables.
        let page = space.pages.iter().find(|page| page.slots.contains(&(slot as usize))).unwrap();
        let counts_more = object["memsize"].as_u64().unwrap() > u64::from(page.slot_bytes);
        let has_variables = name.is_some_and(|name| name.starts_with("OpenSSL/"));
        let has_memsize = data_type.is_some_and(|it| it.has_memsize);
        assert!(has_memsize || has_variables || !counts_more, "{object}");
    }
    for name in
        ["VM/thread", "encoding", "binding", "zstream", "strio", "mutex", "proc", "OpenSSL/Digest"]
    {
        assert!(names.contains_key(name), "{name} of {names:?}");
    }
    assert!(names["VM/thread"] >= 3);
    let of_class = |name: &str| {
        let class = space.classes.iter().find(|class| class.name.as_deref() == Some(name));
        let data_type = class?.data_type?;
        Some(space.data_types[data_type as usize].name.as_deref()?.to_owned())
    };
    for (class, data_type) in [
        ("Thread", "VM/thread"),
        ("Worker", "VM/thread"),
        ("Zlib::Deflate", "zstream"),
        ("StringIO", "strio"),
        ("OpenSSL::Digest", "OpenSSL/Digest"),
        ("Encoding", "encoding"),
    ] {
        assert_eq!(of_class(class).as_deref(), Some(data_type), "{class}");
    }
    for class in ["String", "Array", "Class"] {
        assert_eq!(of_class(class), None, "{class}");
    }
    let counted = space
        .data_objects
        .iter()
        .all(|(slot, _)| space.slots[slot as usize].kind() == SlotType::DATA);
    assert!(counted && space.data_objects.iter().count() as u64 == space.counts()["T_DATA"]);
    assert!(space.findings.is_empty(), "{:?}", space.findings);
    assert!(target.finish());
}

#[test]
fn types_lie_in_the_library_that_made_them() {
    let target = Target::ruby(
        "require 'zlib'; require 'fiddle'
         $kept = [Zlib::Deflate.new]
         class Untyped; end
         free = Fiddle::Handle::DEFAULT['free'].to_i
         address = Fiddle::Handle::DEFAULT['rb_data_object_wrap'] rescue (puts \"ready {}\"; $stdout.flush; $stdin.read; exit)
         wrap = Fiddle::Function.new(address, [Fiddle::TYPE_VOIDP] * 4, Fiddle::TYPE_VOIDP)
         $kept << Fiddle.dlunwrap(wrap.call(Fiddle.dlwrap(Untyped), Fiddle.malloc(99), 0, free).to_i)
         $kept << Fiddle.dlunwrap(wrap.call(Fiddle.dlwrap(Untyped), 0, 0, free).to_i)
         puts \"ready {\\\"free\\\": #{free}}\"; $stdout.flush; $stdin.read",
    );
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let space = ruby::read(frozen.image()).unwrap();
    let of_class = |name: &str| {
        let class = space.classes.iter().find(|class| class.name.as_deref() == Some(name)).unwrap();
        &space.data_types[class.data_type.unwrap() as usize]
    };
    let file_of = |data_type: &ruby::DataType| {
        let mapping = frozen.image().state.mappings.find(data_type.address).unwrap();
        mapping.file_name().unwrap_or_default().into_owned()
    };
    assert!(file_of(of_class("Zlib::Deflate")).starts_with("zlib"));
    let ruby = ruby::find(frozen.image()).unwrap().module;
    assert_eq!(file_of(of_class("Thread")).split('.').next(), ruby.split('.').next());
    if target.truth.get("free").is_none() {
        frozen.thaw().unwrap();
        return testkit::skip("this Ruby exports no function for objects without a type");
    }
    let untyped = of_class("Untyped");
    assert_eq!((untyped.name.as_deref(), untyped.has_memsize), (None, false));
    assert_eq!(untyped.address, Address(target.number("free")));
    frozen.thaw().unwrap();
    assert!(target.finish());
}

#[test]
fn links_are_references_that_the_process_dumps_too() {
    let (target, space, objects) = dumped(
        "Pair = Struct.new(:left, :right); Chain = Struct.new(:next)
         $last = nil; 1000.times { $last = Chain.new($last) }
         $pairs = Array.new(100) { |it| Pair.new([it.to_s], 'text' * it) }
         $texts = ['x' * 5000].map { |it| [it, it[10..-1]] }",
    );
    let address = |slot: u32| space.slot_address(slot as usize).unwrap();
    let (mut chained, mut named, mut linked) = (0, 0, 0);
    for object in &objects {
        let Some(slot) = slot_of(&space, object) else { continue };
        let own = space.links.of(slot);
        assert!(own.iter().all(|&to| to != slot && space.slots[to as usize].is_live()));
        let references: Vec<Address> = object["references"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|it| {
                u64::from_str_radix(it.as_str()?.strip_prefix("0x")?, 16).ok().map(Address)
            })
            .collect();
        linked += own.len();
        // These structs fit into their slots, so their words have all references and no others.
        let class = space.classes[space.slots[slot as usize].class() as usize].name.as_deref();
        if class == Some("Pair") || class == Some("Chain") {
            let own: Vec<Address> = own.iter().map(|&to| address(to)).collect();
            let class = address_of(&serde_json::json!({ "address": object["class"] })).unwrap();
            let expected: Vec<Address> =
                references.iter().copied().filter(|it| *it != class).collect();
            assert_eq!(own, expected, "{object}");
            chained += 1;
        }
        named += references.len();
    }
    assert_eq!(chained, 1100);
    assert!(linked > 5_000 && named > linked, "{linked} of {named}");
    assert!(target.finish());
}

/// On Ruby 3.3 and 3.4 the flags of such an object still say that its variables are in the slot, so these were garbage.
#[test]
fn objects_of_too_many_shapes_refer_to_their_tables() {
    let target = Target::ruby(
        "class Order
           def initialize(names)
             names.each { |name| instance_variable_set(\"@#{name}\", [name]) }
           end
         end
         random = Random.new(1)
         $orders = Array.new(300) { Order.new(('a'..'f').to_a.shuffle(random: random)) }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let space = super::space_of(&target).unwrap();
    let class = space.classes.iter().position(|class| class.name.as_deref() == Some("Order"));
    let is_order = |slot: &u32| Some(space.slots[*slot as usize].class() as usize) == class;
    let orders: Vec<u32> = (0..space.slots.len() as u32).filter(is_order).collect();
    assert_eq!(orders.len(), 300);
    for slot in orders {
        let has_table = space.references.of(slot).next().is_some();
        assert!(has_table || !space.links.of(slot).is_empty(), "{slot}");
    }
    assert!(target.finish());
}
