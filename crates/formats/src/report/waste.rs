use ledger::{
    ContentsAccounts, CopiesAccount, FewAccount, FewKind, TextAccount, WasteAccount, WasteAccounts,
    WasteKind, WasteSums,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory of live objects that they do not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waste {
    /// The sums by kind.
    pub kinds: Vec<WasteRow>,
    /// The 50 groups of such objects with most unused memory. Beside `class` and `path` they have the fields of `waste.kinds[]`.
    pub groups: Vec<WasteGroup>,
    /// The bytes that malloc added to what strings, arrays, queues and variables of objects requested, because its blocks have certain
    /// sizes. Garbage counts. 0 in older documents.
    #[serde(default)]
    pub rounded_bytes: u64,
    /// The bytes that sizes of slots added to what their strings, arrays, structs and objects need, from Ruby 3.2 on. Garbage
    /// counts. Objects in larger slots than they need are in `kinds`. 0 in older documents.
    #[serde(default)]
    pub slack_bytes: u64,
    /// Objects with the same contents as another one of their class. One of each does not count. `null` without `--waste`.
    pub contents: Option<WasteContents>,
}

/// The memory of one kind, or of a group of objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WasteRow {
    /// `"strings"`, `"arrays"`, `"hashes"`, `"io_buffers"` (of IOs, until they are closed), `"sets"` (written in C, from Ruby 4.0 on), `"variables"` (of objects, outside their
    /// slots), `"slots"` (that are larger than their strings, arrays and variables need, from Ruby 3.2 on; the smallest slot that
    /// would do counts as used), `"sliced_strings"` and `"sliced_arrays"` (of which other objects are slices).
    #[serde(with = "crate::names::waste_kind")]
    #[schemars(schema_with = "crate::names::waste_kind::schema")]
    pub kind: WasteKind,
    /// The number of objects that do not use all of their memory.
    pub objects: u64,
    /// The bytes that they requested from malloc (or their slots).
    pub bytes: u64,
    /// The part in use.
    pub used_bytes: u64,
    /// The resident part of the rest.
    pub unused_bytes: u64,
    /// The resident bytes that would be freed if each object had only the memory that it needs.
    pub saved_bytes: u64,
}

/// Objects of one class that one root retains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WasteGroup {
    /// Their class.
    pub class: String,
    /// The path that retains most of it.
    pub path: String,
    /// Their sums.
    #[serde(flatten)]
    pub row: WasteRow,
}

/// Objects with the same contents as others, or with next to none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WasteContents {
    /// The number of such objects.
    pub copy_objects: u64,
    /// Their resident bytes.
    pub copy_bytes: u64,
    /// The 50 groups with most memory.
    pub copies: Vec<CopiesRow>,
    /// The 20 texts whose copies have most memory, without the text itself.
    pub texts: Vec<TextRow>,
    /// The 50 largest groups of objects that are empty or nearly empty.
    pub few: Vec<FewRow>,
    /// The number of strings whose text was not read.
    pub left_out: u64,
}

/// Objects with the same contents as others, without one of each contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CopiesRow {
    /// Their class.
    pub class: String,
    /// A path that retains them.
    pub path: String,
    /// The number of objects.
    pub objects: u64,
    /// The number of different contents.
    pub contents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The part of them that is room which the objects do not need.
    #[serde(default)]
    pub room_bytes: u64,
}

/// The strings with one text, without one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextRow {
    /// The length in bytes.
    pub length: u64,
    /// The number of strings.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// A path that retains the largest.
    pub path: String,
    /// Data of the process: it is in no document.
    #[serde(skip)]
    pub text: Option<String>,
}

/// The kinds of objects that are empty or nearly empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FewThings {
    /// No element, no text, or no variable.
    Nothing,
    /// One element.
    OneElement,
    /// Variables, members or elements that are all `nil`.
    OnlyNil,
    /// The same, of which at least seven in eight are `nil`, but not all.
    MostlyNil,
}

/// Objects with next to nothing in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FewRow {
    /// Their class.
    pub class: String,
    /// A path that retains them.
    pub path: String,
    /// Their contents.
    pub has: FewThings,
    /// The number of objects.
    pub objects: u64,
    /// Their bytes.
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
            rounded_bytes: waste.rounded_bytes,
            slack_bytes: waste.slack_bytes,
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
        let CopiesAccount { class, path, objects, contents, bytes, room_bytes } = account.clone();
        Self { class, path, objects, contents, bytes, room_bytes }
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
            FewKind::MostlyNil => FewThings::MostlyNil,
        };
        Self { class, path, has, objects, bytes }
    }
}
