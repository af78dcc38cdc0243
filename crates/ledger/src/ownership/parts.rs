//! The parts of the interpreter's memory: a kind for each block, and a file for each block of bytecode.

use std::collections::HashMap;
use std::num::NonZero;

use allocator::HeapMap;
use linux::length;
use ruby::{ClassKind, CodePaths, DataType, ImemoType, Slot, SlotType};

use crate::Cause;
use crate::interpreter::{InterpreterAccount, InterpreterKind, PartSize};
use crate::ownership::block_files::BlockFiles;
use crate::ownership::edges::Edge;
use crate::ownership::graph::PointerGraph;
use crate::ownership::hash_tables::Keyed;
use crate::ownership::owner::Owner;
use crate::ownership::table::OwnerTable;
use crate::ownership::trace::Trace;

/// The least number of objects that a table refers to if it has their kind.
const MIN_REFERENCES: usize = 64;

/// The parts of the interpreter's memory: first the kinds, then the files of bytecode, then bytecode of unknown files.
pub(crate) struct Parts<'a> {
    table: &'a OwnerTable<'a>,
    trace: &'a Trace,
    paths: Option<&'a CodePaths>,
    files: BlockFiles,
    /// The kinds of the interpreter's tables.
    tables: HashMap<u32, InterpreterKind>,
}

impl<'a> Parts<'a> {
    /// Finds the part of each block. `paths` is `None` if files are unknown.
    pub(crate) fn find(
        heap: &HeapMap,
        graph: &PointerGraph,
        table: &'a OwnerTable<'a>,
        trace: &'a Trace,
        paths: Option<&'a CodePaths>,
    ) -> Self {
        let space = table.space;
        let mut classes = (0..).zip(&space.classes);
        let iseqs = classes.find(|(_, class)| class.kind == ClassKind::Imemo(ImemoType::Iseq));
        let files = match (paths, iseqs) {
            (Some(paths), Some((class, _))) => {
                let iseqs = Owner::Class(class);
                BlockFiles::find(heap, graph, trace, space, paths, iseqs)
            }
            _ => BlockFiles::default(),
        };
        Self { table, trace, paths, files, tables: kinds_of_tables(heap, graph, table, trace) }
    }

    /// The number of parts.
    pub(crate) fn count(&self) -> usize {
        self.part_of_file(None) as usize + 1
    }

    /// The number of the part, from 1, of the block in use with this number, whose memory is the interpreter's.
    pub(crate) fn of(&self, block: usize) -> Option<NonZero<u32>> {
        let owner = self.trace.owner_of(block);
        let kind = match owner {
            Owner::Variables(_) | Owner::Data(_) => self.tables.get(&(block as u32)).copied(),
            _ => None,
        };
        let kind = kind.unwrap_or_else(|| self.kind_of(owner));
        let index = match kind {
            InterpreterKind::Bytecode => self.part_of_file(self.files.of(block)),
            kind => kind as u32,
        };
        NonZero::new(index + 1)
    }

    /// The index of the part with the bytecode of this file.
    fn part_of_file(&self, file: Option<u32>) -> u32 {
        let files = self.paths.map_or(0, |paths| paths.paths.len() as u32);
        InterpreterKind::ALL.len() as u32 + file.map_or(files, |file| file.min(files))
    }

    /// The kind of an owner whose memory is the interpreter's.
    fn kind_of(&self, owner: Owner) -> InterpreterKind {
        match owner {
            Owner::Class(class) => {
                self.table.space.classes.get(class).map_or(InterpreterKind::Other, |class| {
                    match class.kind {
                        ClassKind::Imemo(imemo) => kind_of_imemo(imemo),
                        ClassKind::Hidden(_) | ClassKind::Visible(_) => InterpreterKind::Classes,
                    }
                })
            }
            Owner::Data(class) if self.table.type_of(class).is_some_and(DataType::is_autoload) => {
                InterpreterKind::Classes
            }
            Owner::VmStacks => InterpreterKind::VmStacks,
            _ => InterpreterKind::Other,
        }
    }

    /// The account of these parts, whose blocks have the `booked` resident bytes.
    pub(crate) fn account(&self, booked: &[u64]) -> InterpreterAccount {
        let mut parts: Vec<PartSize> = booked
            .iter()
            .map(|&resident_bytes| PartSize { resident_bytes, ..PartSize::default() })
            .collect();
        self.add_slots(&mut parts);
        let (kinds, files) = parts.split_at_mut(InterpreterKind::ALL.len().min(booked.len()));
        let bytecode = &mut kinds[InterpreterKind::Bytecode as usize];
        files.iter().for_each(|file| bytecode.add(*file));
        let of_paths = self.paths.map(|paths| {
            let paths = paths.paths.iter().cloned().map(Some).chain([None]);
            paths.zip(files.iter().copied())
        });
        InterpreterAccount::new(kinds, of_paths)
    }

    fn add_slots(&self, parts: &mut [PartSize]) {
        let space = self.table.space;
        let classes = space.classes.len();
        // The kinds of classes' objects, and then the kinds of the structures that their objects wrap.
        let owners = (0..classes).map(Owner::Class).chain((0..classes).map(Owner::Data));
        let kinds: Vec<Option<InterpreterKind>> = owners
            .map(|owner| (self.table.cause_of(owner) == Cause::RubyVm).then(|| self.kind_of(owner)))
            .collect();
        space.sized_slots().enumerate().for_each(|(index, (slot, slot_bytes))| {
            let class = slot.class() as usize;
            if class >= classes {
                return;
            }
            let is_data = slot.kind() == SlotType::DATA;
            let Some(kind) = kinds[class + if is_data { classes } else { 0 }] else { return };
            let part = match kind {
                InterpreterKind::Bytecode => {
                    self.part_of_file(self.paths.and_then(|paths| paths.of(index as u32)))
                }
                kind => kind as u32,
            };
            if let Some(part) = parts.get_mut(part as usize) {
                part.add(PartSize { objects: 1, slot_bytes, resident_bytes: 0 });
            }
        });
    }
}

fn kind_of_imemo(imemo: ImemoType) -> InterpreterKind {
    match imemo {
        ImemoType::Iseq => InterpreterKind::Bytecode,
        ImemoType::Ment | ImemoType::Cref => InterpreterKind::Methods,
        ImemoType::Callinfo
        | ImemoType::Callcache
        | ImemoType::Constcache
        | ImemoType::CvarEntry => InterpreterKind::Caches,
        ImemoType::Subclasses => InterpreterKind::Classes,
        _ => InterpreterKind::Other,
    }
}

/// The kinds of the tables that the interpreter's variables lead to. A block is a table of a kind if it refers to many
/// objects, and at least nine in ten are of this kind: strings and symbols (deduplicated strings, names), method
/// entries, or caches.
fn kinds_of_tables(
    heap: &HeapMap,
    graph: &PointerGraph,
    table: &OwnerTable<'_>,
    trace: &Trace,
) -> HashMap<u32, InterpreterKind> {
    let of_slot = |edge: &Edge| {
        let slot = table.space.slots.get(edge.to() as usize)?;
        kind_of_slot(table, *slot)
    };
    let is_interpreters = |node: u32| {
        let owner = trace.owner_of(node as usize);
        matches!(owner, Owner::Variables(_) | Owner::Data(_))
            && table.cause_of(owner) == Cause::RubyVm
    };
    let values = values_of_tables(graph, table);
    let head_bytes = table.space.interpreter.table_layout().bytes();
    let mut kinds = HashMap::new();
    let mut headers = Vec::new();
    for (number, block) in heap.all_blocks().filter(|(_, block)| block.state().is_in_use()) {
        let node = number as u32;
        if !is_interpreters(node) {
            continue;
        }
        if graph.concurrent_sets.contains(node) {
            kinds.insert(node, InterpreterKind::Symbols);
            let edges = graph.edges(node).iter();
            let entries = edges.map(|edge| edge.to()).filter(|&entry| is_interpreters(entry));
            kinds.extend(entries.map(|entry| (entry, InterpreterKind::Symbols)));
            continue;
        }
        let slots = graph.slots(node);
        if slots.len() >= MIN_REFERENCES {
            let values = values.get(&node);
            let kind = values
                .and_then(|values| values.kind(slots.len()))
                .or_else(|| most(slots.iter().map(of_slot)))
                .or_else(|| {
                    values
                        .filter(|it| it.are_numbers(slots, table))
                        .map(|_| InterpreterKind::ObjectIds)
                });
            kinds.extend(kind.map(|kind| (node, kind)));
        }
        if heap.fits(head_bytes, length(&heap.header.usable(block))) {
            headers.push(node);
        }
    }
    // The bins of a hash table refer to no objects.
    for header in headers {
        let parts = || graph.edges(header).iter().map(|edge| edge.to());
        let Some(kind) = parts().find_map(|part| kinds.get(&part).copied()) else { continue };
        for part in parts().filter(|&part| graph.is_part_of_table(part)) {
            kinds.entry(part).or_insert(kind);
        }
        kinds.insert(header, kind);
    }
    // Each object has a block with its variables.
    let is_of_table = |node: &u32| kinds.get(node) == Some(&InterpreterKind::GenericVariables);
    let blocks = graph.keyed_values.iter().filter(|value| is_of_table(&value.table));
    let blocks = blocks.filter_map(|value| match value.value {
        Keyed::Block(block) if is_interpreters(block) => Some(block),
        _ => None,
    });
    let of_objects: Vec<u32> = blocks.collect();
    kinds.extend(of_objects.into_iter().map(|block| (block, InterpreterKind::GenericVariables)));
    kinds.extend(graph.lists.gc_records.map(|block| (block, InterpreterKind::GcProfile)));
    kinds
}

/// The entries of a hash table whose values are referred to, by the kind of value.
#[derive(Debug, Clone, Copy, Default)]
struct Values {
    blocks: usize,
    arrays: usize,
    others: usize,
}

/// All hash tables with objects as keys or values.
fn values_of_tables(graph: &PointerGraph, table: &OwnerTable<'_>) -> HashMap<u32, Values> {
    let empty = |&node: &u32| (node, Values::default());
    let mut tables: HashMap<u32, Values> = graph.hash_tables.iter().map(empty).collect();
    for value in &graph.keyed_values {
        let Some(values) = tables.get_mut(&value.table) else { continue };
        match value.value {
            Keyed::Block(_) => values.blocks += 1,
            Keyed::Slot(slot) if table.space.is_hidden_array(slot) => values.arrays += 1,
            Keyed::Slot(_) => values.others += 1,
        }
    }
    tables
}

impl Values {
    /// The kind of a table that refers to `references` objects: the values of instance variables are blocks, and those of
    /// finalizers are hidden arrays, which are half of the references. `None` for other tables.
    fn kind(self, references: usize) -> Option<InterpreterKind> {
        match self {
            Self { blocks, arrays: 0, others: 0 } if blocks * 10 >= references * 9 => {
                Some(InterpreterKind::GenericVariables)
            }
            Self { blocks: 0, arrays, others: 0 } if arrays * 20 >= references * 9 => {
                Some(InterpreterKind::Finalizers)
            }
            _ => None,
        }
    }

    /// Returns true for a table of the program's objects with numbers: their ids.
    fn are_numbers(self, references: &[Edge], table: &OwnerTable<'_>) -> bool {
        let is_object = |edge: &&Edge| {
            let slot = table.space.slots.get(edge.to() as usize);
            let is_autoload =
                || table.space.data_type_of(edge.to()).is_some_and(DataType::is_autoload);
            slot.is_some_and(|it| !INTERPRETERS.contains(&it.kind())) && !is_autoload()
        };
        let objects = references.iter().filter(is_object).count();
        let Self { blocks, arrays, others } = self;
        blocks + arrays + others == 0 && objects * 10 >= references.len() * 9
    }
}

/// Types of objects that other tables of the interpreter refer to.
const INTERPRETERS: [SlotType; 4] =
    [SlotType::CLASS, SlotType::MODULE, SlotType::ICLASS, SlotType::IMEMO];

/// The kind of at least nine in ten.
fn most(kinds: impl ExactSizeIterator<Item = Option<InterpreterKind>>) -> Option<InterpreterKind> {
    let count = kinds.len();
    let mut by_kind = [0_usize; InterpreterKind::ALL.len()];
    kinds.flatten().for_each(|kind| by_kind[kind as usize] += 1);
    let mut kinds = InterpreterKind::ALL.into_iter().zip(by_kind);
    kinds.find(|(_, own)| own * 10 >= count * 9).map(|(kind, _)| kind)
}

/// The kind of a table that refers to objects like this one; `None` for objects that are in tables of all kinds.
fn kind_of_slot(table: &OwnerTable<'_>, slot: Slot) -> Option<InterpreterKind> {
    match slot.kind() {
        SlotType::STRING | SlotType::SYMBOL => Some(InterpreterKind::Symbols),
        SlotType::IMEMO => match table.space.classes.get(slot.class() as usize)?.kind {
            ClassKind::Imemo(imemo) => match kind_of_imemo(imemo) {
                kind @ (InterpreterKind::Methods | InterpreterKind::Caches) => Some(kind),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}
