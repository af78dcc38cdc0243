use image::{Finding, Severity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// Good to know.
    Note,
    /// A part of the report may be incomplete.
    Warning,
    /// A part of the report is missing.
    Error,
}

/// An observation about the capture or the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct FindingRow {
    pub severity: FindingSeverity,
    pub what: String,
    pub address: Option<String>,
}

impl From<&Finding> for FindingRow {
    fn from(finding: &Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Note => FindingSeverity::Note,
                Severity::Warning => FindingSeverity::Warning,
                Severity::Error => FindingSeverity::Error,
            },
            what: finding.what.clone(),
            address: finding.address.map(|address| address.to_string()),
        }
    }
}
