use std::fmt;

use linux::Address;

/// The severity of a [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// All figures are right.
    Note,
    /// Some bytes could not be classified; their rows are named accordingly.
    Warning,
    /// A whole part could not be read.
    Error,
}

/// An observation during the reading of foreign memory that the user should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The text: one sentence without a full stop.
    pub what: String,
    /// The address that it concerns, if it is one.
    pub address: Option<Address>,
}

impl Finding {
    /// Creates a finding about one address.
    pub fn at(severity: Severity, address: Address, what: impl Into<String>) -> Self {
        Self { severity, what: what.into(), address: Some(address) }
    }

    /// Creates a finding about the whole process.
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
