/// A part of the object space that could not be read, or is not exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The names of classes could not be derived.
    ClassNamesUnknown,
    /// The layout of classes could not be derived, so a singleton class may count as the class of an object.
    ClassLayoutUnknown,
    /// Some types of internal objects differ from those of Ruby's version, and are shown by number.
    InternalTypesUnknown,
    /// The types of T_DATA objects could not be derived.
    DataTypesUnknown,
    /// The layouts of these types of objects could not be derived, so all of their words are read.
    ObjectLayoutsUnknown {
        /// The types, such as `T_ARRAY`.
        types: Vec<&'static str>,
    },
    /// The names of constants and variables could not be derived.
    RootNamesUnknown,
    /// The variables of classes could not be derived.
    ClassVariablesUnknown,
    /// Global variables could not be derived.
    GlobalVariablesUnknown,
    /// There are more constants and variables than rbloat reads.
    RootsLeftOut,
    /// The files of bytecode could not be derived.
    CodeFilesUnknown,
    /// A part of the transient heap could not be read.
    TransientHeapUnread {
        /// The bytes of it.
        bytes: u64,
    },
    /// Slots are swapped out.
    SlotsUnread {
        /// Their number.
        slots: u64,
    },
    /// No object is marked.
    NoMarks,
    /// There are no page states, so memory was not searched for further heap pages.
    NotSearched,
}
