use std::fmt;

/// The type of an internal object (T_IMEMO): `enum imemo_type` in internal/imemo.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImemoType {
    /// The variables of a block that outlived its method.
    Env,
    /// A class reference: where constants and methods are looked up and defined.
    Cref,
    /// Special variables such as `$~`.
    Svar,
    /// A `throw`, `break` or `return` on its way.
    ThrowData,
    /// A block in C.
    Ifunc,
    /// Scratch memory of `Enumerable`'s methods.
    Memo,
    /// A method entry.
    Ment,
    /// An instruction sequence: bytecode.
    Iseq,
    /// A temporary buffer.
    Tmpbuf,
    /// A syntax tree (up to 3.4).
    Ast,
    /// The parser's state within a string literal (up to 3.4).
    ParserStrterm,
    /// The class that a class variable was found in (from 4.0 on).
    CvarEntry,
    /// The arguments of a call site.
    Callinfo,
    /// The method that a call site called last.
    Callcache,
    /// A constant that was looked up.
    Constcache,
    /// Instance variables of objects that have no room for them (from 4.0 on).
    Fields,
    /// The subclasses of a class (from 4.0 on).
    Subclasses,
    /// The jump table of a `case` statement (from 4.0 on).
    Cdhash,
    /// A type known by its number only.
    Number(u8),
}

impl ImemoType {
    /// The types with a name.
    pub const ALL: [Self; 18] = [
        Self::Env,
        Self::Cref,
        Self::Svar,
        Self::ThrowData,
        Self::Ifunc,
        Self::Memo,
        Self::Ment,
        Self::Iseq,
        Self::Tmpbuf,
        Self::Ast,
        Self::ParserStrterm,
        Self::CvarEntry,
        Self::Callinfo,
        Self::Callcache,
        Self::Constcache,
        Self::Fields,
        Self::Subclasses,
        Self::Cdhash,
    ];

    /// Returns true if all references of these objects are weak, so that they retain nothing: method caches (from 3.3 on), and lists
    /// of subclasses.
    #[must_use]
    pub fn is_weak(self) -> bool {
        matches!(self, Self::Callcache | Self::Subclasses)
    }
}

impl fmt::Display for ImemoType {
    /// Writes the name that `ObjectSpace.count_imemo_objects` has: `imemo_iseq`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Env => "env",
            Self::Cref => "cref",
            Self::Svar => "svar",
            Self::ThrowData => "throw_data",
            Self::Ifunc => "ifunc",
            Self::Memo => "memo",
            Self::Ment => "ment",
            Self::Iseq => "iseq",
            Self::Tmpbuf => "tmpbuf",
            Self::Ast => "ast",
            Self::ParserStrterm => "parser_strterm",
            Self::CvarEntry => "cvar_entry",
            Self::Callinfo => "callinfo",
            Self::Callcache => "callcache",
            Self::Constcache => "constcache",
            Self::Fields => "fields",
            Self::Subclasses => "subclasses",
            Self::Cdhash => "cdhash",
            Self::Number(number) => return write!(f, "imemo_{number}"),
        };
        write!(f, "imemo_{name}")
    }
}
