use ledger::{CodeFileAccount, GemAccount, InterpreterAccount, InterpreterKind, KindAccount};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The interpreter's own memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interpreter {
    /// The memory by kind. All kinds in a fixed order. Their `resident_bytes` add up to the cause `ruby.vm`. Their `objects` and
    /// `slot_bytes` add up to those of all owners with this cause.
    pub kinds: Vec<InterpreterPart>,
    /// The bytecode by gem. The largest come first. `null` if the files of bytecode could not be read; then a finding says so.
    pub gems: Option<Vec<GemCode>>,
    /// The bytecode by file. A report has the 100 largest, and a row with `path` `null` that is the sum of the others; a snapshot
    /// has all. `null` as for `gems`.
    pub files: Option<Vec<FileCode>>,
}

impl From<&InterpreterAccount> for Interpreter {
    fn from(account: &InterpreterAccount) -> Self {
        Self {
            kinds: account.kinds.iter().map(InterpreterPart::from).collect(),
            gems: account.gems().map(|gems| gems.into_iter().map(GemCode::from).collect()),
            files: account.files.as_ref().map(|files| files.iter().map(FileCode::from).collect()),
        }
    }
}

/// The interpreter's memory of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterpreterPart {
    /// The kind (docs/names.md#kinds-of-the-interpreters-memory): `bytecode`, `methods`, `caches`, `classes`, `symbols`,
    /// `object_ids` (up to Ruby 3.4), `generic_variables`, `finalizers`, `gc_profile`, `vm_stacks`, `other`.
    #[serde(with = "crate::names::interpreter_kind")]
    #[schemars(schema_with = "crate::names::interpreter_kind::schema")]
    pub kind: InterpreterKind,
    /// The number of its objects.
    pub objects: u64,
    /// The bytes of their slots, resident or not.
    pub slot_bytes: u64,
    /// The resident bytes of its malloc'ed memory, without malloc's headers.
    pub resident_bytes: u64,
}

impl From<&KindAccount> for InterpreterPart {
    fn from(account: &KindAccount) -> Self {
        Self {
            kind: account.kind,
            objects: account.size.objects,
            slot_bytes: account.size.slot_bytes,
            resident_bytes: account.size.resident_bytes,
        }
    }
}

/// The bytecode of one gem, or of another group of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GemCode {
    /// The gem, or a group of other files.
    pub gem: String,
    /// Its version. `null` if the path does not have it.
    pub version: Option<String>,
    /// The number of its files.
    pub files: u64,
    /// The number of its iseqs.
    pub iseqs: u64,
    /// The bytes of their slots, resident or not.
    pub slot_bytes: u64,
    /// The resident bytes of their malloc'ed memory, without malloc's headers.
    pub resident_bytes: u64,
}

impl From<GemAccount> for GemCode {
    fn from(account: GemAccount) -> Self {
        Self {
            gem: account.gem.name,
            version: account.gem.version,
            files: account.files,
            iseqs: account.size.objects,
            slot_bytes: account.size.slot_bytes,
            resident_bytes: account.size.resident_bytes,
        }
    }
}

/// The bytecode of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileCode {
    /// The file. `null` for the sum of the others.
    pub path: Option<String>,
    /// Its gem.
    pub gem: String,
    /// The number of its iseqs.
    pub iseqs: u64,
    /// The bytes of their slots, resident or not.
    pub slot_bytes: u64,
    /// The resident bytes of their malloc'ed memory, without malloc's headers.
    pub resident_bytes: u64,
}

impl From<&CodeFileAccount> for FileCode {
    fn from(account: &CodeFileAccount) -> Self {
        Self {
            path: account.path.clone(),
            gem: account.gem.name.clone(),
            iseqs: account.size.objects,
            slot_bytes: account.size.slot_bytes,
            resident_bytes: account.size.resident_bytes,
        }
    }
}

impl FileCode {
    /// Sums up files in one row.
    pub(super) fn sum(files: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
        Self {
            path: None,
            gem: format!("({} others)", files.len()),
            iseqs: sum(|file| file.iseqs),
            slot_bytes: sum(|file| file.slot_bytes),
            resident_bytes: sum(|file| file.resident_bytes),
        }
    }
}
