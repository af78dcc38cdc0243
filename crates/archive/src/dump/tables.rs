//! The tables of a dump. docs/formats.md has the same lists; a test compares them.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use ledger::{Dump, DumpedBlock, DumpedObject};
use linux::Address;
use parquet::errors::ParquetError;
use ruby::{Fact, SlotType};

use crate::questions::Question;
use crate::schema::{Table, flag, integer, optional, text};
use crate::table_writer::TableWriter;

use super::ndjson::{Counts, type_name};

/// The version of the tables. It changes when a column is removed, renamed, or gets another meaning, but not when one is added.
pub const DUMP_SCHEMA: u32 = 1;

/// The tables of a dump: each is a file, such as `objects.parquet`. They have no [`KEYS`](crate::KEYS).
pub const DUMP_TABLES: [Table; 6] = [DUMP, OBJECTS, REFERENCES, ROOTS, BLOCKS, PAGES];

const DUMP: Table = Table {
    name: "dump",
    row: "the dump itself",
    columns: &[
        integer("schema", "the version of these tables"),
        integer("unix_ms", "the time at which it was written, in ms since 1970"),
        integer("pid", "the process id"),
        text("ruby", "the version of Ruby"),
        integer("rss_bytes", "RSS"),
        integer("unread_slots", "the slots that could not be read because they are swapped out"),
    ],
};

const OBJECTS: Table = Table {
    name: "objects",
    row: "a live object, or garbage that is not swept yet",
    columns: &[
        integer("address", "the address of its slot"),
        text("type", "its type, as `ObjectSpace.dump_all` names it"),
        text("owner", "the name of its class, or of its kind in parentheses"),
        optional(integer("class", "the address of its class, which may be a singleton class")),
        optional(text("name", "the name of a class or module, or the structure of a DATA object")),
        integer("slot_bytes", "the bytes of its slot"),
        integer("memsize", "the bytes of the slot and its memory, as Ruby counts them"),
        integer("resident_bytes", "the resident bytes of its slot and its blocks"),
        optional(integer(
            "length",
            "the bytes of a string, elements of an array, entries of a hash, variables of an object",
        )),
        optional(integer("capacity", "the bytes that a string has room for outside its slot")),
        optional(integer("shape", "the number of its shape")),
        flag("frozen", "true if it is frozen"),
        flag("embedded", "true if its contents are in its slot"),
        flag("shared", "true if its contents are those of another object"),
        flag("wb_protected", "true if it has a write barrier"),
        flag("old", "true if it is old"),
        flag("marked", "true if the last mark found it"),
        optional(text("root", "the root that retains it; NULL for garbage")),
        optional(integer("parent", "the object before it on the shortest path from the root")),
        optional(integer("retained_bytes", "what would be freed with it, with `--retained`")),
        optional(integer("retained_objects", "the number of these objects, with itself")),
        optional(integer("dominator", "the object without which it would be freed")),
        optional(text("dominating_root", "the root instead, if there is no such object")),
        optional(text("file", "the file that allocated it, if the process traces allocations")),
        optional(integer("line", "the line")),
        optional(text("method", "the method")),
        optional(integer("generation", "the number of collections before")),
        optional(text("value", "the text of a string or symbol, or a float, with `--values`")),
    ],
};

const REFERENCES: Table = Table {
    name: "references",
    row: "a reference of an object",
    columns: &[
        integer("from_address", "the object"),
        integer("to_address", "the object or block that it refers to"),
        flag("block", "true for a block, false for an object"),
    ],
};

const ROOTS: Table = Table {
    name: "roots",
    row: "a reference of a root",
    columns: &[text("root", "the kind of root"), integer("address", "the object")],
};

const BLOCKS: Table = Table {
    name: "blocks",
    row: "a block of malloc, in use or free",
    columns: &[
        integer("address", "the address that malloc returned"),
        integer("bytes", "its bytes, header included"),
        integer("resident_bytes", "the resident part"),
        text("state", "`in_use`, `mmapped`, `free`, `fastbin`, `tcache`, `top` or `overhead`"),
        optional(integer("arena", "the number of its arena")),
        optional(text(
            "owner",
            "the class, library, thread or part of the interpreter that has it",
        )),
        optional(text("cause", "the cause of its memory")),
        flag("shared", "true if other owners reach it, too"),
    ],
};

const PAGES: Table = Table {
    name: "pages",
    row: "a heap page of Ruby",
    columns: &[
        integer("address", "its address"),
        integer("bytes", "its bytes"),
        integer("resident_bytes", "the resident part"),
        integer("slot_bytes", "the size of its slots; 0 if it has none"),
        integer("slots", "the number of slots"),
        integer("live", "the slots with an object"),
        integer("unmarked", "those of them whose object the last mark did not find"),
    ],
};

macro_rules! question {
    ($name:literal) => {
        Question { name: $name, sql: include_str!(concat!("../../sql/dump/", $name, ".sql")) }
    };
}

/// Questions about dumps, for DuckDB. A folder with a dump gets them, too.
pub const DUMP_QUESTIONS: [Question; 6] = [
    question!("largest"),
    question!("dominators"),
    question!("paths"),
    question!("fill"),
    question!("diff"),
    question!("leak"),
];

/// Writes the tables. `out` returns the file of each, by its name.
///
/// # Errors
/// If a file cannot be written to.
pub fn write_tables<W: Write + Send>(
    dump: &Dump<'_>,
    mut out: impl FnMut(&'static str) -> W,
) -> Result<Counts, ParquetError> {
    let mut table = |table: &Table| {
        let columns = table.columns.iter().copied();
        TableWriter::new(out(table.name), table.name, columns, ("rbloat.dump", DUMP_SCHEMA))
    };
    let mut about = table(&DUMP)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let process = &dump.state().process;
    about.integer(Some(DUMP_SCHEMA.into()))?;
    about.integer(Some(since.as_millis() as i64))?;
    about.integer(Some(process.pid.into()))?;
    about.text(Some(dump.ruby_version()))?;
    about.integer(Some(number(process.rss_bytes)))?;
    about.integer(Some(number(dump.unread_slots())))?;
    about.finish()?;

    let mut roots = table(&ROOTS)?;
    dump.roots(|name, addresses| {
        addresses.iter().try_for_each(|it| {
            roots.text(Some(name))?;
            roots.integer(Some(number(it.0)))
        })
    })?;
    roots.finish()?;

    let (mut objects, mut references) = (table(&OBJECTS)?, table(&REFERENCES)?);
    let mut counts = Counts::default();
    dump.objects(|object| {
        counts.objects += 1;
        counts.references += object.references.len() as u64;
        write_object(&mut objects, object)?;
        let objects = object.references.addresses().map(|it| (it, false));
        for (to, is_block) in objects.chain(object.blocks.iter().map(|it| (*it, true))) {
            references.integer(Some(number(object.address.0)))?;
            references.integer(Some(number(to.0)))?;
            references.flag(is_block)?;
        }
        Ok::<_, ParquetError>(())
    })?;
    objects.finish()?;
    references.finish()?;

    let mut blocks = table(&BLOCKS)?;
    dump.blocks(|block| write_block(&mut blocks, block))?;
    blocks.finish()?;

    let mut pages = table(&PAGES)?;
    dump.pages(|page| {
        let figures = [page.bytes, page.resident_bytes, page.slot_bytes, page.slots];
        let figures = [page.address.0].into_iter().chain(figures).chain([page.live, page.unmarked]);
        figures.map(number).map(Some).try_for_each(|it| pages.integer(it))
    })?;
    pages.finish()?;
    Ok(counts)
}

/// The numbers of a process are far smaller, also in a hostile core.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn write_object<W: Write + Send>(
    to: &mut TableWriter<W>,
    object: &DumpedObject<'_>,
) -> Result<(), ParquetError> {
    let DumpedObject { kind, detail, site, retained, .. } = *object;
    let address = |it: Option<Address>| it.map(|it| number(it.0));
    let words = |it: Option<&[u8]>| it.and_then(|it| str::from_utf8(it).ok().map(str::to_owned));
    let is_class = matches!(kind, SlotType::CLASS | SlotType::MODULE);
    let text = words(detail.text.as_deref());
    to.integer(Some(number(object.address.0)))?;
    to.text(Some(type_name(kind)))?;
    to.text(Some(object.owner))?;
    to.integer(address(object.class))?;
    to.text(text.as_deref().filter(|_| is_class).or(object.data_type))?;
    to.integer(Some(number(object.slot_bytes)))?;
    to.integer(Some(number(object.memsize)))?;
    to.integer(Some(number(object.resident_bytes)))?;
    to.integer(detail.count.filter(|_| kind != SlotType::FILE).map(number))?;
    to.integer(detail.capacity(kind).map(number))?;
    to.integer(detail.shape.map(i64::from))?;
    for fact in [Fact::Frozen, Fact::Embedded, Fact::Shared, Fact::WriteBarrier, Fact::Old] {
        to.flag(detail.is(fact))?;
    }
    to.flag(object.is_marked)?;
    to.text(object.root)?;
    to.integer(address(object.parent))?;
    to.integer(retained.map(|it| number(it.bytes)))?;
    to.integer(retained.map(|it| number(it.objects)))?;
    to.integer(address(retained.and_then(|it| it.dominator)))?;
    to.text(retained.and_then(|it| it.dominating_root))?;
    to.text(site.and_then(|it| it.path))?;
    to.integer(site.map(|it| it.line.into()))?;
    to.text(site.and_then(|it| it.method))?;
    to.integer(site.map(|it| it.generation.into()))?;
    to.text(text.as_deref().filter(|_| !is_class))
}

fn write_block<W: Write + Send>(
    to: &mut TableWriter<W>,
    block: &DumpedBlock<'_>,
) -> Result<(), ParquetError> {
    to.integer(Some(number(block.address.0)))?;
    to.integer(Some(number(block.bytes)))?;
    to.integer(Some(number(block.resident_bytes)))?;
    to.text(Some(block.state))?;
    to.integer(block.arena.map(i64::from))?;
    to.text(block.owner)?;
    to.text(block.cause)?;
    to.flag(block.is_shared)
}
