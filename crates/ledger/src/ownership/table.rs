use image::elf::Module;
use ruby::{Class, ClassKind, DataType, ImemoType, ObjectSpace, SlotType};

use crate::Cause;
use crate::ownership::object_graph::SingletonClasses;
use crate::ownership::owner::{Owner, OwnerAccount, OwnerKind, THREAD_LOCALS};

/// The name that classes without a name share.
pub const ANONYMOUS_CLASS: &str = "(anonymous class)";

/// All possible owners: their names, their kinds, and the causes of the memory that they hold.
pub(crate) struct OwnerTable<'a> {
    pub(crate) space: &'a ObjectSpace,
    pub(crate) modules: &'a [Module],
    /// True if owners were traced; otherwise objects own only the blocks that they refer to themselves.
    pub(crate) is_traced: bool,
}

impl OwnerTable<'_> {
    /// The cause of the memory that `owner` holds.
    pub(crate) fn cause_of(&self, owner: Owner) -> Cause {
        match owner {
            Owner::Class(class) if self.is_of_vm(class) => Cause::RubyVm,
            Owner::Class(_) => Cause::RubyMalloc,
            Owner::Data(class) => self.cause_of_data(class),
            Owner::Jit => Cause::RubyJit,
            Owner::HeapPages | Owner::VmStacks => Cause::RubyVm,
            Owner::Variables(module) if self.is_interpreter(module) => Cause::RubyVm,
            Owner::Variables(_) | Owner::Locals | Owner::Stacks => Cause::NativeGlobal,
            Owner::Nobody if self.is_traced => Cause::NativeUnreachable,
            Owner::Nobody => Cause::MallocInUse,
        }
    }

    /// Returns true if the objects of a class are parts of the interpreter: classes, methods, bytecode.
    fn is_of_vm(&self, class: usize) -> bool {
        let Some(class) = self.class(class) else { return false };
        match class.kind {
            // Instance variables of objects that do not have them in their slots (4.0).
            ClassKind::Imemo(ImemoType::Fields) => false,
            ClassKind::Imemo(_) => true,
            ClassKind::Hidden(kind) => {
                matches!(kind, SlotType::ICLASS | SlotType::CLASS | SlotType::MODULE)
            }
            ClassKind::Visible(_) => matches!(class.name.as_deref(), Some("Class" | "Module")),
        }
    }

    /// Returns true if memory of `part` may belong to `owner`, too: classes, modules and inclusions of modules share tables
    /// of methods and constants, which may seem to be an internal object's because of a stale word. Up to 3.2, nodes of syntax trees refer
    /// to memory of buffers (`rb_args_info`), and so retain the buffers, to which that memory refers.
    pub(crate) fn may_share(&self, owner: Owner, part: Owner) -> bool {
        let is_imemo = |owner: Owner, imemo: ImemoType| {
            let Owner::Class(index) = owner else { return false };
            self.class(index).is_some_and(|class| class.kind == ClassKind::Imemo(imemo))
        };
        self.is_classes(owner) && self.is_of_interpreter(part)
            || is_imemo(owner, ImemoType::Ast) && is_imemo(part, ImemoType::Tmpbuf)
    }

    /// Returns true for classes, methods and bytecode as owners.
    pub(crate) fn is_of_interpreter(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Class(class) if self.is_of_vm(class))
    }

    /// Returns true for classes and modules as owners.
    pub(crate) fn is_classes(&self, owner: Owner) -> bool {
        let Owner::Class(index) = owner else { return false };
        let is_imemo = |class: &Class| matches!(class.kind, ClassKind::Imemo(_));
        self.is_of_vm(index) && !self.class(index).is_some_and(is_imemo)
    }

    /// The cause of the memory that objects of this class hold if they wrap a structure.
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

    /// Returns true if programs see the objects of this class, and the class has a name.
    pub(crate) fn is_visible(&self, class: usize) -> bool {
        self.class(class).is_some_and(|class| class.name.is_some() && !class.is_internal())
    }

    /// Returns true if the class contains objects that are hidden from programs.
    pub(crate) fn is_internal(&self, class: usize) -> bool {
        self.class(class).is_some_and(Class::is_internal)
    }

    fn class(&self, class: usize) -> Option<&Class> {
        self.space.classes.get(class)
    }

    /// The type of the structures that objects of a class wrap.
    fn data_type(&self, class: &Class) -> Option<&DataType> {
        self.space.data_types.get(class.data_type? as usize)
    }

    /// The type of the structures that objects of a class wrap, by the class's index.
    pub(crate) fn type_of(&self, class: usize) -> Option<&DataType> {
        self.data_type(self.class(class)?)
    }

    /// Returns true for the module of the interpreter.
    pub(crate) fn is_interpreter(&self, module: usize) -> bool {
        self.modules[module].range.start == self.space.interpreter.range.start
    }

    /// An empty account for `owner`.
    pub(crate) fn new_account(&self, owner: Owner) -> OwnerAccount {
        let (name, kind) = match owner {
            Owner::Class(index) | Owner::Data(index) => {
                let class = &self.space.classes[index];
                let kind = if class.is_internal() { OwnerKind::Internal } else { OwnerKind::Class };
                (class.name.as_deref().unwrap_or(ANONYMOUS_CLASS), kind)
            }
            Owner::Variables(module) => (self.modules[module].name.as_str(), OwnerKind::Library),
            Owner::Locals => (THREAD_LOCALS, OwnerKind::Thread),
            Owner::Stacks => ("(stacks)", OwnerKind::Thread),
            Owner::Jit => ("(JIT)", OwnerKind::Internal),
            Owner::HeapPages => ("(heap pages)", OwnerKind::Internal),
            Owner::VmStacks => ("(VM stacks)", OwnerKind::Internal),
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
            resident_bytes: 0,
            retainers: Vec::new(),
            singleton_classes: SingletonClasses::default(),
            retained_bytes: None,
            has_memsize: match owner {
                Owner::Data(class) => {
                    self.data_type(&self.space.classes[class]).map(|it| it.has_memsize)
                }
                _ => None,
            },
        }
    }
}
