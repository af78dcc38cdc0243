use std::collections::BTreeMap;

use ledger::{Ledger, RactorAccount, RubyAccount};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The totals of Ruby's heap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ruby {
    /// The number of heap pages.
    pub heap_pages: u64,
    /// The number of live slots.
    pub slots_live: u64,
    /// Live slots without a mark: young objects, or garbage that has not been swept.
    pub slots_unmarked: u64,
    /// The number of free slots.
    pub slots_free: u64,
    /// The bytes of live slots.
    pub slot_bytes_live: u64,
    /// The bytes of free slots.
    pub slot_bytes_free: u64,
    /// The bytes of free slots on heap pages without an object. 0 in older documents.
    #[serde(default)]
    pub slot_bytes_empty: u64,
    /// The bytes of heap pages that have no slots now, resident or not: Ruby keeps them for slots of any size (from 3.4 on;
    /// mostly 4.1, where `ruby.heap_pages` does not count those in the pool). 0 in older documents.
    #[serde(default)]
    pub page_bytes_free: u64,
    /// The state of the garbage collector, and its settings in the environment.
    #[serde(default)]
    pub gc: Gc,
    /// The object spaces of Ractors, that of the main one first (from Ruby 4.1 on). Empty if there is one space only, in older Rubies, if
    /// that of the main Ractor was not recognized, and in older documents.
    #[serde(default)]
    pub ractors: Vec<Ractor>,
    /// The number of slots by type, equal to `ObjectSpace.count_objects`.
    pub objects: BTreeMap<String, u64>,
    /// The 30 classes whose objects hold most memory.
    pub classes: Vec<Class>,
}

impl Ruby {
    pub(super) fn new(account: &RubyAccount, ledger: &Ledger) -> Self {
        Self {
            heap_pages: account.heap_pages,
            slots_live: account.slots_live,
            slots_unmarked: account.slots_unmarked,
            slots_free: account.slots_free,
            slot_bytes_live: account.slot_bytes_live,
            slot_bytes_free: account.slot_bytes_free,
            slot_bytes_empty: account.slot_bytes_empty,
            page_bytes_free: account.page_bytes_free,
            gc: Gc::new(account, ledger),
            ractors: account.ractor_memory.iter().map(Ractor::new).collect(),
            objects: account.objects.iter().map(|(name, count)| ((*name).into(), *count)).collect(),
            classes: ledger
                .classes()
                .map(|class| Class {
                    name: class.name.clone(),
                    objects: class.objects,
                    slot_bytes: class.slot_bytes,
                    malloc_bytes: class.held_bytes(),
                })
                .collect(),
        }
    }
}

/// The object space of one Ractor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ractor {
    /// True if no Ractor has this space any more.
    pub ended: bool,
    /// Its number, as `Ractor#inspect` shows it. `null` if it has ended or could not be read.
    pub number: Option<u32>,
    /// The name that the program gave to it, or `null`.
    pub name: Option<String>,
    /// The file and line of its block, or `null`.
    pub place: Option<String>,
    /// The number of its heap pages.
    pub heap_pages: u64,
    /// The resident bytes of these pages.
    pub resident_bytes: u64,
    /// The number of its live slots.
    pub slots_live: u64,
    /// Their bytes, resident or not.
    pub slot_bytes_live: u64,
    /// The number of its free slots.
    pub slots_free: u64,
    /// Their bytes.
    pub slot_bytes_free: u64,
    /// The number of its objects that nothing retains. `null` if owners were not searched for.
    pub garbage_objects: Option<u64>,
    /// The bytes of their slots. `null` if owners were not searched for.
    pub garbage_slot_bytes: Option<u64>,
}

impl Ractor {
    fn new(account: &RactorAccount) -> Self {
        let ractor = account.ractor.as_ref();
        Self {
            ended: ractor.is_none(),
            number: ractor.and_then(|it| it.number),
            name: ractor.and_then(|it| it.name.clone()),
            place: ractor.and_then(|it| it.place.clone()),
            heap_pages: account.heap_pages,
            resident_bytes: account.resident_bytes,
            slots_live: account.slots_live,
            slot_bytes_live: account.slot_bytes_live,
            slots_free: account.slots_free,
            slot_bytes_free: account.slot_bytes_free,
            garbage_objects: account.garbage.map(|it| it.0),
            garbage_slot_bytes: account.garbage.map(|it| it.1),
        }
    }
}

/// The memory of the objects of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Class {
    /// The class.
    pub name: String,
    /// The number of its objects.
    pub objects: u64,
    /// The bytes of their slots.
    pub slot_bytes: u64,
    /// The malloc'ed memory that they hold. If owners were not searched for, only the chunks that the slots refer to.
    pub malloc_bytes: u64,
}

/// The state of the garbage collector, and its settings in the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gc {
    /// True if a major collection was marking, so it is not known which objects are old. `null` if unknown.
    #[serde(default)]
    pub marking: Option<bool>,
    /// `GC.disable`. `null` if unknown, also while a collection runs.
    pub disabled: Option<bool>,
    /// `GC.stress`. `null` if unknown, up to 4.0 also while a collection runs.
    pub stress: Option<bool>,
    /// `GC.config[:rgengc_allow_full_mark]`, from Ruby 3.4 on. `null` if unknown.
    pub allow_full_mark: Option<bool>,
    /// Garbage collections so far, as `GC.count`. `null` before the first one, and if unknown, as in Ruby 3.0, 3.2 and 4.0.
    #[serde(default)]
    pub collections: Option<u64>,
    /// The major ones, as `GC.stat(:major_gc_count)`. `null` as `collections`.
    #[serde(default)]
    pub major_collections: Option<u64>,
    /// Those of the `variables` that make Ruby keep slots even if they are free, and the number of slots.
    pub initial_slots: BTreeMap<String, u64>,
    /// The variables `RUBY_GC_*` that the process was started with, and their values.
    pub variables: BTreeMap<String, String>,
}

impl Gc {
    fn new(account: &RubyAccount, ledger: &Ledger) -> Self {
        let variables = ledger.process.environment.iter().flatten();
        let is_setting = |(name, _): &&(String, String)| name.starts_with(ledger::GC_SETTINGS);
        let counts = account.collector.and_then(|it| it.counts);
        Self {
            marking: account.collector.and_then(|it| it.is_marking),
            disabled: account.collector.and_then(|it| it.is_disabled),
            stress: account.collector.and_then(|it| it.is_stressed),
            allow_full_mark: account.collector.and_then(|it| it.allows_full_mark),
            collections: counts.map(|it| it.all),
            major_collections: counts.map(|it| it.major),
            initial_slots: account.initial_slots.iter().cloned().collect(),
            variables: variables.filter(is_setting).cloned().collect(),
        }
    }
}
