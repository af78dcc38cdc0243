use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Content;

/// The document of `rbloat explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Explanations {
    /// The explanation of the word that was given, or of all words.
    pub explanations: Vec<Explanation>,
}

impl Content for Explanations {
    const KIND: &'static str = "explanations";
}

/// The explanation of a cause, a verdict, a term or a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The word.
    pub word: String,
    /// Paragraphs, with an empty line between two of them.
    pub text: String,
}
