/// The code of a Proc, Binding, Method or UnboundMethod, or of the entry of a method that a Proc defines.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Closure {
    /// The name of a method: `Billing::Export#run`; `None` for Procs and Bindings.
    pub method: Option<String>,
    /// The path of its file, as [`CodePaths`](crate::CodePaths) has it; `None` for functions in C.
    pub path: Option<String>,
    /// The line with which it begins, as `source_location` returns it.
    pub line: Option<u32>,
}

/// The code of the Procs, Bindings, Methods and UnboundMethods of a process, and of the methods that Procs define.
#[derive(Debug, Clone, Default)]
pub struct Closures {
    /// The slots of these objects, ascending, and the index of each one's code.
    pub(crate) slots: Vec<(u32, u32)>,
    pub(crate) all: Vec<Closure>,
}

impl Closures {
    /// The code of the object in this slot; `None` for other objects, and if it could not be read.
    #[must_use]
    pub fn of(&self, slot: u32) -> Option<&Closure> {
        let found = self.slots.binary_search_by_key(&slot, |it| it.0).ok()?;
        self.all.get(self.slots[found].1 as usize)
    }

    /// The slot of each object and the index of its code, ascending by slot.
    #[must_use]
    pub fn slots(&self) -> &[(u32, u32)] {
        &self.slots
    }

    /// All code, by index.
    #[must_use]
    pub fn all(&self) -> &[Closure] {
        &self.all
    }
}
