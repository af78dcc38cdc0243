use ledger::ThreadGroup;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Threads that run the same line of the same method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct ThreadRow {
    pub method: String,
    pub path: Option<String>,
    pub line: Option<u64>,
    pub threads: u64,
    pub names: Vec<String>,
    #[serde(default)]
    pub started_path: Option<String>,
    #[serde(default)]
    pub started_line: Option<u64>,
}

impl From<&ThreadGroup> for ThreadRow {
    fn from(group: &ThreadGroup) -> Self {
        let started = group.started.as_ref();
        Self {
            started_path: started.map(|(path, _)| path.clone()),
            started_line: started.and_then(|(_, line)| line.map(u64::from)),
            method: group.frame.label.clone(),
            path: group.frame.path.clone(),
            line: group.frame.line.map(u64::from),
            threads: group.threads,
            names: group.names.clone(),
        }
    }
}
