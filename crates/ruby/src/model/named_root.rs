use std::sync::Arc;

/// The kind of a named root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RootKind {
    /// A constant: `Cache::STORE`.
    Constant,
    /// An instance variable of a class or module: `Cache.@items`.
    InstanceVariable,
    /// A class variable: `Cache@@items`.
    ClassVariable,
    /// A global variable: `$items`. Variables whose value Ruby's own code computes when it is asked
    /// are left out (`$~`), but for the standard streams and the lists of `require`.
    GlobalVariable,
    /// A variable of a thread, fiber or Ractor, as `Thread#[]`, `Fiber[]`, `Thread#thread_variable_get` or `Ractor#[]` returns it:
    /// `[:request]`, `[fiber storage :request]`, `[thread variable :request]`.
    Local,
    /// A hook of a global variable (`trace_var`).
    Hook,
    /// A table of the interpreter, or its main object: `(symbols)`, `(main object)`.
    Table,
}

/// A constant, variable or table that refers to an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedRoot {
    /// Its kind.
    pub kind: RootKind,
    /// Its name, with the name of its class or module: `Cache::STORE`, `Cache.@items`, `Cache@@items`, `$items`.
    /// Classes without a name appear as Ruby writes them: `#<Class:0x000...>`, and `#<Class:Cache>` for singleton
    /// classes.
    pub name: String,
    /// The object, an index into [`ObjectSpace::slots`](crate::ObjectSpace::slots).
    pub value: u32,
    /// The slot of its class, module, thread, fiber or Ractor; `None` for global variables, tables, and constants of Object.
    pub class: Option<u32>,
    /// The ID of the name of a variable, as bytecode has it; `None` for others than variables of classes and global ones.
    pub id: Option<u64>,
    /// The path of the file in which a constant was set, and the line; `None` for variables, and for Ruby's own constants.
    pub file: Option<(Arc<str>, u32)>,
}

impl NamedRoot {
    /// The owners of methods that use this variable of a class, as labels of methods begin; `None` for other roots.
    pub(crate) fn method_owners(&self) -> Option<Vec<String>> {
        match self.kind {
            RootKind::InstanceVariable => {
                Some(vec![format!("{}.", self.name.rsplit_once(".@")?.0)])
            }
            RootKind::ClassVariable => {
                let class = self.name.rsplit_once("@@")?.0;
                Some(vec![format!("{class}."), format!("{class}#")])
            }
            _ => None,
        }
    }
}
