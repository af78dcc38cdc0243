//! The interpreter's own memory: by kind, and its bytecode by file and gem.

mod gem;

use std::cmp::Reverse;
use std::collections::BTreeMap;

pub use gem::Gem;

/// A kind of the interpreter's own memory ([`Cause::RubyVm`](crate::Cause::RubyVm)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterpreterKind {
    /// Iseqs: compiled code with its inline caches, and the tables of each iseq.
    Bytecode,
    /// Method entries with their definitions, and lexical scopes.
    Methods,
    /// Call sites, and the methods and constants that were found there.
    Caches,
    /// Classes and modules with their tables of methods, constants and variables.
    Classes,
    /// The interpreter's tables of symbols and of deduplicated strings.
    Symbols,
    /// The tables of object ids (`object_id`).
    ObjectIds,
    /// The table of instance variables of strings, arrays, classes of C extensions and the like.
    GenericVariables,
    /// The table of finalizers.
    Finalizers,
    /// The records of GC::Profiler, one for each collection.
    GcProfile,
    /// VM stacks from malloc: that of the main thread.
    VmStacks,
    /// All other memory of the interpreter.
    Other,
}

impl InterpreterKind {
    /// All kinds, in display order.
    pub const ALL: [Self; 11] = [
        Self::Bytecode,
        Self::Methods,
        Self::Caches,
        Self::Classes,
        Self::Symbols,
        Self::ObjectIds,
        Self::GenericVariables,
        Self::Finalizers,
        Self::GcProfile,
        Self::VmStacks,
        Self::Other,
    ];

    /// Its name, part of the stable interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytecode => "bytecode",
            Self::Methods => "methods",
            Self::Caches => "caches",
            Self::Classes => "classes",
            Self::Symbols => "symbols",
            Self::ObjectIds => "object_ids",
            Self::GenericVariables => "generic_variables",
            Self::Finalizers => "finalizers",
            Self::GcProfile => "gc_profile",
            Self::VmStacks => "vm_stacks",
            Self::Other => "other",
        }
    }
}

/// The interpreter's own memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpreterAccount {
    /// Each kind, in display order. Their resident bytes add up to [`Cause::RubyVm`](crate::Cause::RubyVm).
    pub kinds: Vec<KindAccount>,
    /// The bytecode by file, largest first; adds up to [`InterpreterKind::Bytecode`]. `None` if files are unknown.
    pub files: Option<Vec<CodeFileAccount>>,
}

/// The memory of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindAccount {
    /// The kind.
    pub kind: InterpreterKind,
    /// Its size.
    pub size: PartSize,
}

/// The bytecode of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeFileAccount {
    /// The path as Ruby has it; `None` for bytecode whose path could not be read.
    pub path: Option<String>,
    /// The gem that it belongs to.
    pub gem: Gem,
    /// The size of its bytecode.
    pub size: PartSize,
}

/// The bytecode of one gem, or of another group of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemAccount {
    /// The gem.
    pub gem: Gem,
    /// The number of its files.
    pub files: u64,
    /// The size of their bytecode.
    pub size: PartSize,
}

/// The size of a part of the interpreter's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartSize {
    /// The number of its objects.
    pub objects: u64,
    /// The bytes of their slots, which belong to [`Cause::RubyLiveSlots`](crate::Cause::RubyLiveSlots).
    pub slot_bytes: u64,
    /// The resident bytes of its blocks, without malloc's headers.
    pub resident_bytes: u64,
}

impl PartSize {
    /// Its part of RSS.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.slot_bytes + self.resident_bytes
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.slot_bytes += other.slot_bytes;
        self.resident_bytes += other.resident_bytes;
    }
}

impl InterpreterAccount {
    /// The account of these kinds and files, each with its size.
    pub(crate) fn new(
        kinds: &[PartSize],
        files: Option<impl Iterator<Item = (Option<String>, PartSize)>>,
    ) -> Self {
        let kinds = InterpreterKind::ALL.into_iter().zip(kinds);
        let files = files.map(|files| {
            let files = files.filter(|(_, size)| *size != PartSize::default());
            let mut files: Vec<_> = files
                .map(|(path, size)| CodeFileAccount { gem: Gem::of(path.as_deref()), path, size })
                .collect();
            files.sort_by(|a, b| {
                let weight = |file: &CodeFileAccount| Reverse(file.size.weight_bytes());
                (weight(a), &a.path).cmp(&(weight(b), &b.path))
            });
            files
        });
        Self { kinds: kinds.map(|(kind, &size)| KindAccount { kind, size }).collect(), files }
    }

    /// The resident bytes of one kind.
    #[must_use]
    pub fn resident_bytes(&self, kind: InterpreterKind) -> u64 {
        let parts = self.kinds.iter().filter(|part| part.kind == kind);
        parts.map(|part| part.size.resident_bytes).sum()
    }

    /// The bytecode by gem, largest first; `None` if files are unknown.
    #[must_use]
    pub fn gems(&self) -> Option<Vec<GemAccount>> {
        let mut gems: BTreeMap<&Gem, (u64, PartSize)> = BTreeMap::new();
        for file in self.files.as_ref()? {
            let (files, size) = gems.entry(&file.gem).or_default();
            *files += 1;
            size.add(file.size);
        }
        let mut gems: Vec<_> = gems
            .into_iter()
            .map(|(gem, (files, size))| GemAccount { gem: gem.clone(), files, size })
            .collect();
        gems.sort_by_key(|gem| Reverse(gem.size.weight_bytes()));
        Some(gems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_are_in_the_order_of_their_numbers() {
        for (index, kind) in InterpreterKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn files_and_gems_are_sorted_and_add_up() {
        let size = |bytes| PartSize { objects: 1, slot_bytes: 40, resident_bytes: bytes };
        let files = [
            (Some("/x/gems/big-1.0/lib/big.rb".to_owned()), size(1000)),
            (Some("/x/gems/wide-2.0/lib/a.rb".to_owned()), size(900)),
            (Some("/x/gems/wide-2.0/lib/b.rb".to_owned()), size(900)),
            (Some("/x/gems/unused-1.0/lib/unused.rb".to_owned()), PartSize::default()),
            (None, size(10)),
        ];
        let account = InterpreterAccount::new(&[], Some(files.into_iter()));
        let files = account.files.as_ref().unwrap();
        let sizes: Vec<u64> = files.iter().map(|file| file.size.resident_bytes).collect();
        assert_eq!(sizes, [1000, 900, 900, 10]);
        let gems = account.gems().unwrap();
        let gems: Vec<_> = gems
            .iter()
            .map(|gem| {
                (gem.gem.name.as_str(), gem.files, gem.size.objects, gem.size.weight_bytes())
            })
            .collect();
        let expected = [("wide", 2, 2, 1880), ("big", 1, 1, 1040), ("(unknown)", 1, 1, 50)];
        assert_eq!(gems, expected);
    }
}
