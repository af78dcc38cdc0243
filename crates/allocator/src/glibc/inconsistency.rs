use image::Unreadable;
use linux::Address;

/// A place in an arena that contradicts another one or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inconsistency {
    pub(crate) at: Address,
    /// The message: a clause without a full stop.
    pub(crate) message: String,
    /// True if the only problem is that memory cannot be read.
    pub(crate) is_unreadable: bool,
}

impl Inconsistency {
    pub(crate) fn new(at: Address, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), is_unreadable: false }
    }
}

impl From<Unreadable> for Inconsistency {
    fn from(error: Unreadable) -> Self {
        Self { is_unreadable: true, ..Self::new(error.at, error.to_string()) }
    }
}
