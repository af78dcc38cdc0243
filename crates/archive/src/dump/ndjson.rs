//! The format of `ObjectSpace.dump_all`: a JSON object in each line. Fields of ours are in the object `rbloat`.

use std::io::{self, Write};

use ledger::{Dump, DumpedObject};
use linux::Address;
use ruby::{Detail, Fact, ListedShape, SlotType};

use super::line::Line;

/// The numbers of what was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The objects.
    pub objects: u64,
    /// Their references.
    pub references: u64,
}

/// Writes the roots and the objects of a heap.
///
/// # Errors
/// If `out` cannot be written to.
pub fn write_lines(dump: &Dump<'_>, out: &mut dyn Write) -> io::Result<Counts> {
    let mut line = Line::new(out);
    dump.roots(|name, references| {
        line.begin();
        line.text("type", "ROOT");
        line.text("root", name);
        line.addresses("references", references.iter().copied());
        line.end()
    })?;
    for (number, shape) in (0..).zip(dump.shapes().iter()) {
        line.begin();
        write_shape(&mut line, number, &shape);
        line.end()?;
    }
    let mut counts = Counts::default();
    let style = Style {
        has_shapes: dump.has_shapes(),
        has_ages: dump.has_ages(),
        complex_shape: dump.name_of_complex_shapes(),
    };
    dump.objects(|object| {
        counts.objects += 1;
        counts.references += object.references.len() as u64;
        line.begin();
        write_object(&mut line, object, style);
        line.end()
    })?;
    line.finish()?;
    Ok(counts)
}

fn write_shape(line: &mut Line<'_>, number: u64, shape: &ListedShape<'_>) {
    line.address("address", shape.address);
    line.text("type", "SHAPE");
    line.number("id", number);
    shape.parent.iter().for_each(|it| line.number("parent_id", (*it).into()));
    line.number("depth", shape.depth.into());
    shape.kind.iter().for_each(|kind| line.text("shape_type", kind));
    shape.name.iter().for_each(|name| line.text("edge_name", name));
    line.number("edges", shape.edges.into());
    line.number("memsize", shape.bytes);
}

/// What differs between the versions of Ruby.
#[derive(Clone, Copy)]
struct Style {
    has_shapes: bool,
    has_ages: bool,
    complex_shape: &'static str,
}

fn write_object(line: &mut Line<'_>, object: &DumpedObject<'_>, style: Style) {
    let DumpedObject { kind, detail, .. } = object;
    line.address("address", object.address);
    line.text("type", type_name(*kind));
    if *kind == SlotType::ZOMBIE {
        return;
    }
    detail.shape.iter().for_each(|shape| line.number("shape_id", (*shape).into()));
    // Without shapes, all slots have one size, which dump_all does not print.
    if style.has_shapes {
        line.number("slot_size", object.slot_bytes);
    }
    let address = |line: &mut Line<'_>, key, address: Option<Address>| {
        address.into_iter().for_each(|it| line.address(key, it));
    };
    address(line, "class", object.class);
    line.flag("frozen", detail.is(Fact::Frozen));
    match *kind {
        SlotType::IMEMO => {
            let name = object.imemo.map(|it| it.to_string()).unwrap_or_default();
            line.text("imemo_type", name.strip_prefix("imemo_").unwrap_or(&name));
        }
        SlotType::STRING => write_string(line, detail),
        SlotType::SYMBOL => {
            detail.count.iter().for_each(|bytes| line.number("bytesize", *bytes));
            write_value(line, detail);
        }
        SlotType::HASH => {
            detail.count.iter().for_each(|size| line.number("size", *size));
            address(line, "default", object.related);
        }
        SlotType::ARRAY => {
            detail.count.iter().for_each(|length| line.number("length", *length));
            line.flag("shared", detail.is(Fact::Shared) && detail.count > Some(0));
            // Up to 3.1, empty arrays are not called embedded.
            let is_empty = !style.has_shapes && detail.count == Some(0);
            line.flag("embedded", detail.is(Fact::Embedded) && !is_empty);
        }
        SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS => {
            address(line, "superclass", object.related);
            if *kind != SlotType::ICLASS {
                let name = detail.text.as_deref().and_then(|it| str::from_utf8(it).ok());
                match name {
                    Some(name) => line.text("name", name),
                    None => {
                        object.real_class.iter().for_each(|it| line.text("real_class_name", it))
                    }
                }
                line.flag("singleton", detail.is(Fact::Singleton));
            }
        }
        SlotType::DATA => object.data_type.iter().for_each(|name| line.text("struct", name)),
        SlotType::FLOAT => write_value(line, detail),
        SlotType::OBJECT => {
            line.flag("embedded", detail.is(Fact::Embedded));
            detail.count.iter().for_each(|count| line.number("ivars", *count));
            line.flag(style.complex_shape, detail.is(Fact::TooComplex));
        }
        SlotType::FILE => detail.count.iter().for_each(|it| line.signed("fd", *it as u32 as i32)),
        _ => {}
    }
    if !object.references.is_empty() {
        line.addresses("references", object.references.addresses());
    }
    if let Some(site) = object.site {
        site.path.iter().for_each(|path| line.text("file", path));
        if site.line > 0 {
            line.number("line", site.line.into());
        }
        site.method.iter().for_each(|method| line.text("method", method));
        line.number("generation", site.generation.into());
    }
    line.number("memsize", object.memsize);
    line.object("flags", |line| {
        line.flag("wb_protected", detail.is(Fact::WriteBarrier));
        if style.has_ages {
            line.number("age", detail.age().into());
        }
        line.flag("old", detail.is(Fact::Old));
        line.flag("uncollectible", detail.is(Fact::Uncollectible));
        line.flag("marking", detail.is(Fact::Marking));
        line.flag("marked", object.is_marked);
        line.flag("pinned", detail.is(Fact::Pinned));
        line.flag("remembered", detail.is(Fact::Remembered));
        line.flag("shareable", detail.is(Fact::Shareable));
    });
    line.object("rbloat", |line| write_own(line, object));
}

/// The fields that `dump_all` does not have. No key is one of its own: harb takes a `root` for the address of the object.
fn write_own(line: &mut Line<'_>, object: &DumpedObject<'_>) {
    line.text("owner", object.owner);
    object.root.iter().for_each(|root| line.text("retaining_root", root));
    object.parent.iter().for_each(|parent| line.address("parent", *parent));
    line.number("resident_bytes", object.resident_bytes);
    if let Some(retained) = object.retained {
        line.number("retained_bytes", retained.bytes);
        line.number("retained_objects", retained.objects);
        retained.dominator.iter().for_each(|it| line.address("dominator", *it));
        retained.dominating_root.iter().for_each(|root| line.text("dominating_root", root));
    }
}

fn write_string(line: &mut Line<'_>, detail: &Detail) {
    let is_shared = detail.is(Fact::Shared);
    line.flag("embedded", detail.is(Fact::Embedded));
    line.flag("chilled", detail.is(Fact::Chilled));
    line.flag("fstring", detail.is(Fact::Fstring));
    line.flag("shared", is_shared);
    if !is_shared {
        detail.count.iter().for_each(|bytes| line.number("bytesize", *bytes));
        let capacity = detail.capacity(SlotType::STRING).filter(|it| Some(*it) != detail.count);
        capacity.iter().for_each(|bytes| line.number("capacity", *bytes));
    }
    write_value(line, detail);
    let encoding = detail.encoding_name().filter(|name| *name != "BINARY");
    encoding.iter().for_each(|name| line.text("encoding", name));
    line.text("coderange", CODE_RANGES[usize::from(detail.code_range & 3)]);
    line.flag("broken", detail.code_range == 3);
}

const CODE_RANGES: [&str; 4] = ["unknown", "7bit", "valid", "broken"];

/// The value, if it was read and is a text.
fn write_value(line: &mut Line<'_>, detail: &Detail) {
    let text = detail.text.as_deref().and_then(|text| str::from_utf8(text).ok());
    text.iter().filter(|it| !it.is_empty()).for_each(|text| line.text("value", text));
}

/// The name of a type, as `dump_all` has it.
pub(super) fn type_name(kind: SlotType) -> &'static str {
    match kind {
        SlotType::MOVED => "UNKNOWN",
        kind => kind.name().trim_start_matches("T_"),
    }
}
