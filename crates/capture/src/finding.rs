use std::fmt;

use crate::Address;

/// How much a [`Finding`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; every figure stands.
    Note,
    /// Some bytes could not be told apart; the rows that they are in say so.
    Warning,
    /// A whole part could not be read.
    Error,
}

/// Something that a reader of foreign memory noticed and that the user should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is, in one sentence without a full stop.
    pub what: String,
    /// Where it is, if it is at one place.
    pub address: Option<Address>,
}

impl Finding {
    /// A finding about one place.
    pub fn at(severity: Severity, address: Address, what: impl Into<String>) -> Self {
        Self { severity, what: what.into(), address: Some(address) }
    }

    /// A finding about the whole.
    pub fn general(severity: Severity, what: impl Into<String>) -> Self {
        Self { severity, what: what.into(), address: None }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.address {
            Some(address) => write!(f, " (at {address})"),
            None => Ok(()),
        }
    }
}
