use linux::Address;

/// A type of C structures that T_DATA objects wrap: the same for all that one piece of C code made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataType {
    /// Its identity, in the library that made it: the address of its `rb_data_type_t`. For objects
    /// without a type, the address of the function that frees them or else marks them; 0 if they
    /// have neither.
    pub address: Address,
    /// Its name, as the library's author chose it: `VM/thread`, `OpenSSL/X509`; `None` for objects
    /// without a type.
    pub name: Option<String>,
    /// True if it has a function that reports how much memory its objects hold (`dsize`). Without
    /// one, Ruby counts only their slots; with one, it may still not count everything.
    pub has_memsize: bool,
    /// True if something frees what its objects wrap when they are collected, be it the structure alone (`xfree`). Otherwise
    /// another object frees it, as far as anything does.
    pub frees: bool,
}

impl DataType {
    /// Returns true for threads (vm.c).
    #[must_use]
    pub fn is_thread(&self) -> bool {
        self.name.as_deref() == Some("VM/thread")
    }

    /// Returns true for the interpreter's objects for constants that are not loaded yet (`autoload_data_type` in variable.c).
    #[must_use]
    pub fn is_autoload(&self) -> bool {
        self.name.as_deref().is_some_and(|name| name.starts_with("autoload"))
    }

    /// Returns true for fibers (cont.c).
    #[must_use]
    pub fn is_fiber(&self) -> bool {
        self.name.as_deref() == Some("fiber")
    }

    /// Returns true for boxes (box.c, from 4.0 on).
    #[must_use]
    pub fn is_box(&self) -> bool {
        matches!(self.name.as_deref(), Some("Ruby::Box::Entry" | "Ruby::Box::Master"))
    }

    /// Returns true for Procs (proc.c).
    #[must_use]
    pub fn is_proc(&self) -> bool {
        self.name.as_deref() == Some("proc")
    }

    /// Returns true for Bindings (proc.c).
    #[must_use]
    pub fn is_binding(&self) -> bool {
        self.name.as_deref() == Some("binding")
    }

    /// Returns true for Methods and UnboundMethods (proc.c).
    #[must_use]
    pub fn is_method(&self) -> bool {
        self.name.as_deref() == Some("method")
    }

    /// Returns true for TracePoints (vm_trace.c).
    #[must_use]
    pub fn is_trace_point(&self) -> bool {
        self.name.as_deref() == Some("tracepoint")
    }

    /// Returns true for Ractors (ractor.c).
    #[must_use]
    pub fn is_ractor(&self) -> bool {
        self.name.as_deref() == Some("ractor")
    }

    /// Returns true for Sets that Ruby has written in C (set.c, from 4.0 on).
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.name.as_deref() == Some("set")
    }

    /// Returns true for queues that are rings in C (thread_sync.c, from 4.1 on). Older ones, which have an Array, have another name.
    #[must_use]
    pub fn is_ring(&self) -> bool {
        matches!(self.name.as_deref(), Some("Thread::Queue" | "Thread::SizedQueue"))
    }

    /// Returns true for mutexes (thread_sync.c).
    #[must_use]
    pub fn is_mutex(&self) -> bool {
        self.name.as_deref() == Some("mutex")
    }

    /// Returns true for the structure of the VM itself (vm.c).
    #[must_use]
    pub fn is_vm(&self) -> bool {
        self.name.as_deref() == Some("VM")
    }

    /// Returns true for sets of deduplicated strings and of symbols (concurrent_set.c, from 4.0 on). A symbol that is never
    /// freed has an entry in malloc'ed memory (`sym_set_static_sym_entry` in symbol.c), and bit 0 of the pointer to it is set.
    #[must_use]
    pub fn is_concurrent_set(&self) -> bool {
        self.name.as_deref() == Some("VM/concurrent_set")
    }

    /// Returns true if all references in the structure are weak, so that they retain nothing: WeakMap (weakmap.c), and from
    /// 4.0 on sets of deduplicated strings and symbols (concurrent_set.c) and the table of `ObjectSpace._id2ref` (gc.c).
    #[must_use]
    pub fn is_weak(&self) -> bool {
        const WEAK: [&str; 3] = ["weakmap", "VM/concurrent_set", "VM/_id2ref_table"];
        self.name.as_deref().is_some_and(|name| WEAK.contains(&name))
    }

    /// Returns true for WeakKeyMap (weakmap.c): it retains its values, but not its keys.
    #[must_use]
    pub fn has_weak_keys(&self) -> bool {
        self.name.as_deref() == Some("weakkeymap")
    }
}

/// The T_DATA objects, eight bytes for each.
#[derive(Debug, Clone, Default)]
pub struct DataObjects {
    pub(crate) slots: Vec<u32>,
    pub(crate) types: Vec<u32>,
}

impl DataObjects {
    /// Stands for an unknown type.
    pub(crate) const NO_TYPE: u32 = u32::MAX;

    /// The slot of each and its type, an index into
    /// [`ObjectSpace::data_types`](crate::ObjectSpace::data_types), ascending by slot; `None` if the
    /// type is unknown.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<u32>)> + '_ {
        let types = self.types.iter().map(|&it| (it != Self::NO_TYPE).then_some(it));
        self.slots.iter().copied().zip(types)
    }

    /// The type of the object in this slot; `None` if it is not T_DATA, or its type is unknown.
    #[must_use]
    pub fn type_of(&self, slot: u32) -> Option<u32> {
        let found = self.slots.binary_search(&slot).ok()?;
        Some(self.types[found]).filter(|&it| it != Self::NO_TYPE)
    }
}
