use std::collections::BTreeMap;

use ledger::{Ledger, RubyAccount};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The totals of Ruby's heap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Ruby {
    pub heap_pages: u64,
    pub slots_live: u64,
    pub slots_unmarked: u64,
    pub slots_free: u64,
    pub slot_bytes_live: u64,
    pub slot_bytes_free: u64,
    /// 0 in older documents.
    #[serde(default)]
    pub slot_bytes_empty: u64,
    #[serde(default)]
    pub page_bytes_free: u64,
    #[serde(default)]
    pub gc: Gc,
    pub objects: BTreeMap<String, u64>,
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

/// The memory of the objects of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Class {
    pub name: String,
    pub objects: u64,
    pub slot_bytes: u64,
    pub malloc_bytes: u64,
}

/// The state of the garbage collector, and its settings in the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Gc {
    /// `None` in documents of earlier releases, too.
    #[serde(default)]
    pub marking: Option<bool>,
    pub disabled: Option<bool>,
    pub stress: Option<bool>,
    pub allow_full_mark: Option<bool>,
    /// `None` in documents of earlier releases, too.
    #[serde(default)]
    pub collections: Option<u64>,
    #[serde(default)]
    pub major_collections: Option<u64>,
    pub initial_slots: BTreeMap<String, u64>,
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
