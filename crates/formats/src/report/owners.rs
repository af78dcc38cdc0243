use ledger::{Cause, Dominator, OwnerAccount, Retainer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A type's way to tell Ruby's GC about its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Memsize {
    /// It has a function that returns the size.
    Function,
    /// It has none, so the GC counts slots only.
    None,
}

/// An owner of malloc'ed memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Owner {
    pub owner: String,
    pub kind: String,
    #[serde(with = "crate::names::cause_or_none")]
    #[schemars(schema_with = "crate::names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    pub objects: u64,
    pub slot_bytes: u64,
    pub chunks: u64,
    pub exclusive_bytes: u64,
    pub shared_bytes: u64,
    pub resident_bytes: Option<u64>,
    pub memsize: Option<Memsize>,
    pub retained_bytes: Option<u64>,
    #[serde(default)]
    pub singleton_objects: u64,
    #[serde(default)]
    pub singleton_bytes: u64,
    pub kept_by: Vec<KeptBy>,
}

impl Owner {
    /// The resident bytes of the blocks that it holds. Early snapshots have the allocated ones only.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let allocated = self.exclusive_bytes.saturating_add(self.shared_bytes);
        self.resident_bytes.unwrap_or(allocated)
    }

    /// These, and the slots of its objects.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.held_bytes().saturating_add(self.slot_bytes)
    }

    /// These, and the memory of its objects' singleton classes.
    pub(super) fn bytes_with_singletons(&self) -> u64 {
        self.bytes().saturating_add(self.singleton_bytes)
    }

    /// Sums up owners in one row.
    pub(super) fn sum(owners: &[Self]) -> Self {
        // A snapshot may have sizes that no process has.
        let sum = |of: fn(&Self) -> u64| owners.iter().map(of).fold(0, u64::saturating_add);
        Self {
            owner: format!("({} others)", owners.len()),
            kind: "others".into(),
            cause: None,
            objects: sum(|owner| owner.objects),
            slot_bytes: sum(|owner| owner.slot_bytes),
            chunks: sum(|owner| owner.chunks),
            exclusive_bytes: sum(|owner| owner.exclusive_bytes),
            shared_bytes: sum(|owner| owner.shared_bytes),
            resident_bytes: owners
                .iter()
                .try_fold(0, |sum: u64, owner| Some(sum.saturating_add(owner.resident_bytes?))),
            memsize: None,
            retained_bytes: None,
            singleton_objects: sum(|owner| owner.singleton_objects),
            singleton_bytes: sum(|owner| owner.singleton_bytes),
            kept_by: vec![],
        }
    }
}

impl From<&OwnerAccount> for Owner {
    fn from(account: &OwnerAccount) -> Self {
        Self {
            owner: account.name.clone(),
            kind: account.kind.name().into(),
            cause: Some(account.cause),
            objects: account.objects,
            slot_bytes: account.slot_bytes,
            chunks: account.chunks,
            exclusive_bytes: account.exclusive_bytes,
            shared_bytes: account.shared_bytes,
            resident_bytes: Some(account.resident_bytes),
            memsize: account
                .has_memsize
                .map(|has| if has { Memsize::Function } else { Memsize::None }),
            retained_bytes: account.retained_bytes,
            singleton_objects: account.singleton_classes.objects,
            singleton_bytes: account.singleton_classes.bytes,
            kept_by: account.retainers.iter().map(KeptBy::from).collect(),
        }
    }
}

/// A path that retains objects of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct KeptBy {
    pub path: Option<String>,
    pub objects: u64,
    pub bytes: u64,
    #[serde(default)]
    pub other_path: Option<String>,
    #[serde(default)]
    pub shared: Option<String>,
}

impl From<&Retainer> for KeptBy {
    fn from(retainer: &Retainer) -> Self {
        Self {
            path: retainer.path.clone(),
            objects: retainer.objects,
            bytes: retainer.bytes,
            other_path: retainer.other_path.clone(),
            shared: retainer.shared.clone(),
        }
    }
}

/// A constant, thread or object, or several like it, and the memory that would be freed if they went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct DominatorRow {
    pub kind: String,
    pub name: String,
    pub method: Option<String>,
    pub address: Option<String>,
    pub count: u64,
    pub objects: u64,
    pub retained_bytes: u64,
    /// 0 in older documents.
    #[serde(default)]
    pub unused_bytes: u64,
    pub path: Option<String>,
    pub parts: Vec<DominatorRow>,
}

impl From<&Dominator> for DominatorRow {
    fn from(dominator: &Dominator) -> Self {
        Self {
            kind: dominator.kind.name().into(),
            name: dominator.name.clone(),
            method: dominator.method.clone(),
            address: dominator.address.map(|address| address.to_string()),
            count: dominator.count,
            objects: dominator.objects,
            retained_bytes: dominator.retained_bytes,
            unused_bytes: dominator.unused_bytes,
            path: dominator.path.clone(),
            parts: dominator.parts.iter().map(Self::from).collect(),
        }
    }
}
