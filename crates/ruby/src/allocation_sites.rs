//! The lines that allocated objects, if the process traces that (`ObjectSpace.trace_object_allocations`): the extension objspace keeps
//! them in a table (object_tracing.c).

use std::collections::HashMap;

use image::elf::Module;
use image::{Image, Memory, Window};
use linux::{Address, length};

use crate::layout::class_names::ObjectReader;
use crate::layout::st_table::{StTable, TableLayout};
use crate::model::allocation_sites::{AllocationSites, Site};
use crate::object_space::ObjectSpace;
use crate::roots::program::Program;
use crate::word::word;

/// The library, and more bytes than its variables have.
const LIBRARY: &str = "objspace.so";
const MAX_VARIABLES: u64 = 1 << 16;
/// The words of its structure (`struct traceobj_arg`): a flag, one or two TracePoints, and the table. From 4.0 on there is one.
const STRUCTURE_BYTES: usize = 5 * 8;
const TABLE_WORDS: [usize; 2] = [2, 3];
/// `struct allocation_info`.
const INFO_BYTES: usize = 64;
const LIVING: usize = 0;
const PATH: usize = 24;
const LINE: usize = 32;
const METHOD: usize = 48;
const GENERATION: usize = 56;
/// The bytes of the table that are read at a time, and the most of one path.
const BLOCK: usize = 64 << 10;
const MAX_PATH: usize = 4096;
/// The most bytes of all names.
const MAX_NAMES: usize = 64 << 20;
/// The lowest byte of a symbol that is never freed: its number is in the others.
const STATIC_SYMBOL: u64 = 0x0c;

/// The lines that allocated the objects; none if the process does not trace them. `modules` are its libraries.
#[must_use]
pub fn allocation_sites(
    image: &Image<'_>,
    space: &ObjectSpace,
    modules: &[Module],
) -> AllocationSites {
    let table = table_of(image, space, modules);
    table.map(|table| read(image, space, table)).unwrap_or_default()
}

/// Where the entries of the table of traced objects are, which it does not retain; `None` if the process does not trace them.
#[must_use]
pub fn traced_objects(
    image: &Image<'_>,
    space: &ObjectSpace,
    modules: &[Module],
) -> Option<Address> {
    table_of(image, space, modules).map(|table| table.entries)
}

/// The table that a variable of the library leads to.
fn table_of(image: &Image<'_>, space: &ObjectSpace, modules: &[Module]) -> Option<StTable> {
    let module = modules.iter().find(|module| module.name.starts_with(LIBRARY))?;
    let layout = space.interpreter.table_layout();
    let of_structure = |at: Address| {
        let mut bytes = [0; STRUCTURE_BYTES];
        image.read_exact(at, &mut bytes).ok()?;
        let is_object = |number: usize| space.slot_at(Address(word(&bytes, 8 * number))).is_some();
        let number = TABLE_WORDS.into_iter().find(|number| !is_object(*number))?;
        is_object(1).then(|| table_at(image, layout, Address(word(&bytes, 8 * number)))).flatten()
    };
    let ranges = module.variables.iter().filter(|range| length(range) <= MAX_VARIABLES);
    let mut words = ranges.flat_map(|range| {
        (0..length(range) / 8)
            .filter_map(|number| image.read_address(range.start.offset(8 * number)).ok())
    });
    let is_memory = |at: &Address| {
        at.is_aligned(8)
            && image.state.mappings.find(*at).is_some_and(|it| it.is_private_anonymous())
    };
    words.by_ref().filter(is_memory).find_map(of_structure)
}

fn table_at(image: &Image<'_>, layout: TableLayout, at: Address) -> Option<StTable> {
    let mut bytes = [0; 56];
    let bytes = &mut bytes[..layout.bytes() as usize];
    image.read_exact(at, bytes).ok()?;
    layout.table(bytes)
}

fn read(image: &Image<'_>, space: &ObjectSpace, table: StTable) -> AllocationSites {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let program = Program::read(space, reader);
    let method = |symbol: u64| {
        let id = (symbol & 0xff == STATIC_SYMBOL).then_some(symbol >> 8)?;
        program.as_ref()?.names.symbols.name_of_any_id(reader, id)
    };
    let mut names = Names::default();
    let mut window = Window::new(image, BLOCK);
    let mut sites = Vec::new();
    for number in 0..table.bound().min(space.slots.len() as u64 * 2) {
        let at = table.entries.offset(number * StTable::ENTRY_BYTES);
        let Ok(entry) = window.bytes(at, StTable::ENTRY_BYTES as usize) else { break };
        // Deleted.
        if word(entry, 0) == u64::MAX {
            continue;
        }
        let (object, info) = (Address(word(entry, 8)), Address(word(entry, 16)));
        let Some(slot) = space.slot_at(object) else { continue };
        let mut bytes = [0; INFO_BYTES];
        if image.read_exact(info, &mut bytes).is_err() || bytes[LIVING] == 0 {
            continue;
        }
        let path = names.number(word(&bytes, PATH), |at| {
            let path = image.read_c_string(Address(at), MAX_PATH).ok()?;
            Some(linux::one_line(&String::from_utf8_lossy(&path)))
        });
        sites.push(Site {
            slot,
            path,
            line: word(&bytes, LINE) as u32,
            method: names.number(word(&bytes, METHOD), method),
            generation: word(&bytes, GENERATION) as u32,
        });
    }
    AllocationSites::new(sites, names.all)
}

/// Paths and methods, each once.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    /// By the word that stands for it: a pointer or a symbol.
    known: HashMap<u64, Option<u32>>,
    bytes: usize,
}

impl Names {
    fn number(&mut self, word: u64, read: impl FnOnce(u64) -> Option<String>) -> Option<u32> {
        let Self { all, known, bytes } = self;
        *known.entry(word).or_insert_with(|| {
            if *bytes > MAX_NAMES {
                return None;
            }
            let name = read(word)?;
            *bytes += name.len();
            all.push(name);
            u32::try_from(all.len() - 1).ok()
        })
    }
}
