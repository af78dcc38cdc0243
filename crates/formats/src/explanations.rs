use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Content;

/// The document of `rbloat explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Explanations {
    pub explanations: Vec<Explanation>,
}

impl Content for Explanations {
    const KIND: &'static str = "explanations";
}

/// The explanation of a cause, a verdict, a term or a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Explanations")]
pub struct Explanation {
    pub word: String,
    /// Paragraphs, with an empty line between two of them.
    pub text: String,
}
