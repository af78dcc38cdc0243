//! The names of nodes, in paths and tables.

use ruby::SlotType;

use crate::ownership::names::{ObjectName, PARTS};
use crate::ownership::owner::{MEMORY_OF_EXTENSIONS, THREAD_LOCALS};
use crate::ownership::root_memory::Root;

use super::lasting::without_anonymous_class;
use super::{Family, LISTS, Node, ObjectGraph, UNKNOWN, class_name};

impl ObjectGraph<'_> {
    /// The name of a root: `Cache::STORE`, `(variables of libpq.so.5)`, `(threads)`.
    pub(crate) fn root_name(&self, number: u32) -> &str {
        match self.node(number) {
            Node::Named(root) => {
                self.named_roots.get(root as usize).map_or(UNKNOWN, |root| root.name.as_str())
            }
            Node::Threads => "(threads)",
            Node::List(list) => LISTS.get(list as usize).copied().unwrap_or(UNKNOWN),
            Node::ExtensionMemory => MEMORY_OF_EXTENSIONS,
            Node::Memory(node) => match self.root_at(node) {
                Some(Root::Variables(module)) => {
                    self.variables_of.get(module).map_or(UNKNOWN, String::as_str)
                }
                Some(Root::Locals) => THREAD_LOCALS,
                Some(Root::Stacks | Root::Values) => "(stacks)",
                None => UNKNOWN,
            },
            Node::Everything | Node::Slot(_) => UNKNOWN,
        }
    }

    /// The parts of the name of a step of paths at a node that is no root and no object; `None` for most blocks. The names of
    /// variables of threads may differ, as the lines of code do.
    pub(crate) fn parts_of_step(&self, number: u32) -> Option<[&str; PARTS]> {
        match self.node(number) {
            Node::Named(_) => {
                let name = self.root_name(number);
                let local = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
                Some(local.map_or([without_anonymous_class(name), "", ""], |it| ["[", it, "]"]))
            }
            Node::Slot(slot) if self.cached_method(slot).is_some() => {
                Some(["(method cache)", "", ""])
            }
            Node::Memory(node) if self.is_message(node) => Some(["(queue)", "", ""]),
            _ => None,
        }
    }

    /// The parts of the name of a root. Roots of one family differ in the second one.
    pub(crate) fn parts_of_root(&self, number: u32) -> [&str; PARTS] {
        let name = self.root_name(number);
        match self.family_of(number) {
            Some(Family::ConstantsOf(_)) => {
                let (module, constant) = name.split_at(name.rfind("::").map_or(0, |end| end + 2));
                [module, constant, ""]
            }
            Some(Family::VariablesNamed(variable)) => {
                [variable, &name[..name.len() - variable.len()], ""]
            }
            Some(Family::Numbered(begin)) => {
                let (begin, number) = name.split_at(begin.len().min(name.len()));
                [begin, number, ""]
            }
            None => [name, "", ""],
        }
    }

    /// The name of the object in a slot: of its class, of a thread and its method, or of a Proc's or Method's code.
    pub(crate) fn object_name(&self, slot: u32) -> &str {
        self.own_name(slot).map_or_else(|| class_name(self.space, slot), |name| &name.whole)
    }

    /// The parts of this name.
    pub(crate) fn parts_of_name(&self, slot: u32) -> [&str; PARTS] {
        let of_class = || [class_name(self.space, slot), "", ""];
        self.own_name(slot).map_or_else(of_class, ObjectName::parts)
    }

    /// The parts of the name of the method in a slot that a Proc defines; `None` for other objects.
    pub(crate) fn defined_method(&self, slot: u32) -> Option<[&str; PARTS]> {
        self.names.of_method(slot).map(ObjectName::parts)
    }

    /// The parts of the name of the bytecode in a slot; `None` for other objects.
    pub(crate) fn bytecode(&self, slot: u32) -> Option<[&str; PARTS]> {
        self.names.of_bytecode(slot).map(ObjectName::parts)
    }

    fn own_name(&self, slot: u32) -> Option<&ObjectName> {
        let is_data = self.space.slots.get(slot as usize)?.kind() == SlotType::DATA;
        is_data.then(|| self.names.of(slot)).flatten()
    }

    /// The name of the thread in a slot; `None` for other objects, and for threads that have none.
    pub(crate) fn thread_name(&self, slot: u32) -> Option<&ObjectName> {
        self.names.of_thread(slot)
    }
}
