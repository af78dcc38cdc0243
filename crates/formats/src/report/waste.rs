use ledger::{
    ContentsAccounts, CopiesAccount, FewAccount, FewKind, TextAccount, WasteAccount, WasteAccounts,
    WasteKind, WasteSums,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory of live objects that they do not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct Waste {
    pub kinds: Vec<WasteRow>,
    pub groups: Vec<WasteGroup>,
    pub contents: Option<WasteContents>,
}

/// The memory of one kind, or of a group of objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct WasteRow {
    #[serde(with = "crate::names::waste_kind")]
    #[schemars(schema_with = "crate::names::waste_kind::schema")]
    pub kind: WasteKind,
    pub objects: u64,
    pub bytes: u64,
    pub used_bytes: u64,
    pub unused_bytes: u64,
    pub saved_bytes: u64,
}

/// Objects of one class that one root retains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct WasteGroup {
    pub class: String,
    pub path: String,
    #[serde(flatten)]
    pub row: WasteRow,
}

/// Objects with the same contents as others, or with next to none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct WasteContents {
    pub copy_objects: u64,
    pub copy_bytes: u64,
    pub copies: Vec<CopiesRow>,
    pub texts: Vec<TextRow>,
    pub few: Vec<FewRow>,
    pub left_out: u64,
}

/// Objects with the same contents as others, without one of each contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct CopiesRow {
    pub class: String,
    pub path: String,
    pub objects: u64,
    pub contents: u64,
    pub bytes: u64,
}

/// The strings with one text, without one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct TextRow {
    pub length: u64,
    pub objects: u64,
    pub bytes: u64,
    pub path: String,
    /// Data of the process: it is in no document.
    #[serde(skip)]
    pub text: Option<String>,
}

/// The kinds of objects that are empty or nearly empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FewThings {
    /// No element, or no text.
    Nothing,
    /// One element.
    OneElement,
    /// Variables, members or several elements that are all `nil`.
    OnlyNil,
}

/// Objects with next to nothing in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct FewRow {
    pub class: String,
    pub path: String,
    pub has: FewThings,
    pub objects: u64,
    pub bytes: u64,
}

impl Waste {
    /// The resident bytes that objects have and do not use.
    #[must_use]
    pub fn unused_bytes(&self) -> u64 {
        self.kinds.iter().map(|row| row.unused_bytes).fold(0, u64::saturating_add)
    }

    /// The resident bytes that would be saved if each object had only the memory that it needs.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        self.kinds.iter().map(|row| row.saved_bytes).fold(0, u64::saturating_add)
    }
}

impl From<&WasteAccounts> for Waste {
    fn from(waste: &WasteAccounts) -> Self {
        Self {
            kinds: waste.sums.iter().map(|(kind, sums)| WasteRow::new(*kind, sums)).collect(),
            groups: waste.groups.iter().map(WasteGroup::from).collect(),
            contents: waste.contents.as_ref().map(WasteContents::from),
        }
    }
}

impl WasteRow {
    fn new(kind: WasteKind, sums: &WasteSums) -> Self {
        let WasteSums { objects, bytes, used_bytes, unused_bytes, saved_bytes } = *sums;
        Self { kind, objects, bytes, used_bytes, unused_bytes, saved_bytes }
    }
}

impl From<&WasteAccount> for WasteGroup {
    fn from(account: &WasteAccount) -> Self {
        Self {
            class: account.class.clone(),
            path: account.path.clone(),
            row: WasteRow::new(account.kind, &account.sums),
        }
    }
}

impl From<&ContentsAccounts> for WasteContents {
    fn from(contents: &ContentsAccounts) -> Self {
        Self {
            copy_objects: contents.copy_objects,
            copy_bytes: contents.copy_bytes,
            copies: contents.copies.iter().map(CopiesRow::from).collect(),
            texts: contents.texts.iter().map(TextRow::from).collect(),
            few: contents.few.iter().map(FewRow::from).collect(),
            left_out: contents.left_out,
        }
    }
}

impl From<&CopiesAccount> for CopiesRow {
    fn from(account: &CopiesAccount) -> Self {
        let CopiesAccount { class, path, objects, contents, bytes } = account.clone();
        Self { class, path, objects, contents, bytes }
    }
}

impl From<&TextAccount> for TextRow {
    fn from(account: &TextAccount) -> Self {
        let TextAccount { length, text, objects, bytes, path } = account.clone();
        Self { length, objects, bytes, path, text }
    }
}

impl From<&FewAccount> for FewRow {
    fn from(account: &FewAccount) -> Self {
        let FewAccount { class, kind, path, objects, bytes } = account.clone();
        let has = match kind {
            FewKind::Nothing => FewThings::Nothing,
            FewKind::OneElement => FewThings::OneElement,
            FewKind::OnlyNil => FewThings::OnlyNil,
        };
        Self { class, path, has, objects, bytes }
    }
}
