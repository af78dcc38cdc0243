#![doc = include_str!("../README.md")]

mod cause;
mod claims;
mod dump;
mod facts;
mod files;
mod finding;
mod interpreter;
mod ledger;
mod memory_map;
mod ownership;
mod pages;
mod pins;
mod places;
mod ractors;
mod read_depth;
mod root_uses;
mod sharing;
mod size;
mod stacks;
mod threads;
mod unknown;
mod writes;
pub use allocator::{
    ArenaProblem, Decay, Finding as MallocFinding, Libc, Thresholds, Tuning, is_glibc,
};
pub use cause::{Cause, CauseGroup, Causes};
pub use dump::{Dump, DumpedBlock, DumpedObject, DumpedPage, DumpedReferences, RetainedByObject};
pub use facts::Facts;
pub use files::FileAccount;
pub use finding::Finding;
pub use interpreter::{
    CodeFileAccount, Gem, GemAccount, InterpreterAccount, InterpreterKind, KindAccount, PartSize,
};
pub use ledger::{Analyses, ArenaAccount, GC_SETTINGS, Ledger, MallocAccount, RubyAccount};
pub use memory_map::{
    Area, AreaKind, Columns, InconsistentMap, MapBlock, MapRoot, MapRoots, MemoryMap, PageUse,
    RetainedBy, Use,
};
pub use ownership::{
    ANONYMOUS_CLASS, ARROW, CODE, CONTAINERS, ContentsAccounts, CopiesAccount, Dominator,
    DominatorKind, Explanation, FewAccount, FewKind, MAX_WASTE_GROUPS, MEMORY_OF_EXTENSIONS,
    NoExplanation, OwnerAccount, OwnerKind, Referrer, Retainer, SingletonClasses, SpareAccount,
    SpareKind, Subject, THREAD_LOCALS, TextAccount, WasteAccount, WasteAccounts, WasteKind,
    WasteSums,
};
pub use pins::{Pin, SizeClassAccount, SlabCounts};
pub use places::Place;
pub use ractors::RactorAccount;
pub use read_depth::ReadDepth;
pub use root_uses::RootUses;
pub use ruby::{Finding as RubyFinding, Frame, Ractor};
pub use sharing::{
    DistinctPages, FamilyPages, MemberAccounts, MemberPages, MemberParts, PartAccount, Sharing,
};
pub use size::{Count, Size, percent};
pub use stacks::KeptStacks;
pub use threads::{IN_C, ThreadGroup};
pub use unknown::UnknownMappings;
pub use writes::{Write, WriteAccount};
