use std::num::NonZero;
use std::ops::Range;

use linux::Address;

use crate::Cause;

/// A claim: bytes with one cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) range: Range<Address>,
    pub(crate) cause: Cause,
    /// The arena that they lie in, if any.
    pub(crate) arena: Option<u32>,
    /// The number of the part of the interpreter's memory that they belong to, if any. `NonZero` keeps a span at 32
    /// bytes: there are millions of them.
    pub(crate) part: Option<NonZero<u32>>,
}

impl Span {
    pub(crate) fn new(range: Range<Address>, cause: Cause) -> Self {
        Self { range, cause, arena: None, part: None }
    }
}
