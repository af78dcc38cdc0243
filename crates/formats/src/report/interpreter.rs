use ledger::{CodeFileAccount, GemAccount, InterpreterAccount, InterpreterKind, KindAccount};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The interpreter's own memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Interpreter {
    pub kinds: Vec<InterpreterPart>,
    pub gems: Option<Vec<GemCode>>,
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
#[expect(missing_docs, reason = "see Report")]
pub struct InterpreterPart {
    #[serde(with = "crate::names::interpreter_kind")]
    #[schemars(schema_with = "crate::names::interpreter_kind::schema")]
    pub kind: InterpreterKind,
    pub objects: u64,
    pub slot_bytes: u64,
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
#[expect(missing_docs, reason = "see Report")]
pub struct GemCode {
    pub gem: String,
    pub version: Option<String>,
    pub files: u64,
    pub iseqs: u64,
    pub slot_bytes: u64,
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
#[expect(missing_docs, reason = "see Report")]
pub struct FileCode {
    pub path: Option<String>,
    pub gem: String,
    pub iseqs: u64,
    pub slot_bytes: u64,
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
