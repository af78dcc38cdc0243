//! What owners are: their names, their kinds, and the causes under which stands what they hold.

use capture::elf::Module;
use ruby::{Class, DataType, ObjectSpace};

use crate::Cause;
use crate::owners::accounts::{OwnerAccount, OwnerKind};

/// Who holds memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// The objects of the class with this index, but for those that wrap a structure.
    Class(usize),
    /// The objects of the class with this index that wrap a structure of an extension's, or of
    /// Ruby's own (T_DATA).
    Data(usize),
    /// The variables of the module with this index.
    Variables(usize),
    /// Thread-local variables.
    Locals,
    /// The stacks and registers of threads and fibers, and nothing else.
    Stacks,
    /// The JIT compiler: what it knows of the code that it made.
    Jit,
    /// Ruby's object space, which had its heap pages from malloc up to 2.7.
    HeapPages,
    /// Nothing that is known.
    Nobody,
}

/// What classes without a name are called.
pub(crate) const ANONYMOUS: &str = "(anonymous class)";

/// All that may be an owner.
pub(crate) struct Roster<'a> {
    pub(crate) space: &'a ObjectSpace,
    pub(crate) modules: &'a [Module],
    /// Whether owners were looked for beyond what objects name themselves.
    pub(crate) is_traced: bool,
}

impl Roster<'_> {
    /// Whether this is Ruby or one of its own objects, and no extension or library.
    pub(crate) fn is_rubys(&self, owner: Owner) -> bool {
        matches!(self.cause_of(owner), Cause::RubyMalloc | Cause::RubyVm | Cause::RubyJit)
    }

    /// The cause under which stands what `owner` holds.
    pub(crate) fn cause_of(&self, owner: Owner) -> Cause {
        match owner {
            Owner::Class(class) if self.is_of_vm(class) => Cause::RubyVm,
            Owner::Class(_) => Cause::RubyMalloc,
            Owner::Data(class) => self.cause_of_data(class),
            Owner::Jit => Cause::RubyJit,
            Owner::HeapPages => Cause::RubyVm,
            Owner::Variables(module) if self.is_interpreter(module) => Cause::RubyVm,
            Owner::Variables(_) | Owner::Locals | Owner::Stacks => Cause::NativeGlobal,
            Owner::Nobody if self.is_traced => Cause::NativeUnreachable,
            Owner::Nobody => Cause::MallocInUse,
        }
    }

    /// Whether the objects of a class are parts of the interpreter: classes, methods, bytecode.
    fn is_of_vm(&self, class: usize) -> bool {
        let name = self.class(class).and_then(|class| class.name.as_deref()).unwrap_or_default();
        // Instance variables, where objects have them elsewhere (4.0).
        let is_internal = name.starts_with("(imemo_") && name != "(imemo_fields)";
        is_internal
            || matches!(name, "Class" | "Module" | "(T_ICLASS)" | "(T_CLASS)" | "(T_MODULE)")
    }

    /// The same for objects of the class with this index that wrap a structure.
    pub(crate) fn cause_of_data(&self, class: usize) -> Cause {
        // Garbage may be without a class.
        let Some(class) = self.class(class) else { return Cause::RubyMalloc };
        let name = class.name.as_deref().unwrap_or_default();
        let is_core = self
            .data_type(class)
            .is_some_and(|it| self.space.interpreter.range.contains(&it.address));
        match is_core {
            _ if class.is_internal() => Cause::RubyVm,
            true if name == "RubyVM" || name.starts_with("RubyVM::") => Cause::RubyVm,
            true => Cause::RubyMalloc,
            false => Cause::NativeHeld,
        }
    }

    fn class(&self, class: usize) -> Option<&Class> {
        self.space.classes.get(class)
    }

    /// What the objects of a class wrap.
    fn data_type(&self, class: &Class) -> Option<&DataType> {
        self.space.data_types.get(class.data_type? as usize)
    }

    fn is_interpreter(&self, module: usize) -> bool {
        self.modules[module].range.start == self.space.interpreter.range.start
    }

    /// An account for `owner` with nothing in it yet.
    pub(crate) fn new_account(&self, owner: Owner) -> OwnerAccount {
        let (name, kind) = match owner {
            Owner::Class(class) | Owner::Data(class) => match &self.space.classes[class].name {
                Some(name) if name.starts_with('(') => (name.as_str(), OwnerKind::Internal),
                Some(name) => (name.as_str(), OwnerKind::Class),
                None => (ANONYMOUS, OwnerKind::Class),
            },
            Owner::Variables(module) => (self.modules[module].name.as_str(), OwnerKind::Library),
            Owner::Locals => ("(thread-local variables)", OwnerKind::Thread),
            Owner::Stacks => ("(stacks)", OwnerKind::Thread),
            Owner::Jit => ("(JIT)", OwnerKind::Internal),
            Owner::HeapPages => ("(heap pages)", OwnerKind::Internal),
            Owner::Nobody => ("(nobody)", OwnerKind::None),
        };
        OwnerAccount {
            name: name.to_owned(),
            kind,
            cause: self.cause_of(owner),
            objects: 0,
            slot_bytes: 0,
            chunks: 0,
            exclusive_bytes: 0,
            shared_bytes: 0,
            resident_bytes: None,
            retainers: Vec::new(),
            has_memsize: match owner {
                Owner::Data(class) => {
                    self.data_type(&self.space.classes[class]).map(|it| it.has_memsize)
                }
                _ => None,
            },
        }
    }
}
