use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The confidence in a statement.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// It may well be wrong: something could not be read, or there is too little data.
    Low,
    /// It is probably right.
    Medium,
    /// It is right unless rbloat has a defect.
    High,
}
