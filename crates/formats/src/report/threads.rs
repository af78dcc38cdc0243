use ledger::ThreadGroup;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Threads that run the same line of the same method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadRow {
    /// The innermost method of the application; without one, of Ruby code; else the function in C.
    pub method: String,
    /// Its file. `null` for functions in C.
    pub path: Option<String>,
    /// The line. `null` for functions in C.
    pub line: Option<u64>,
    /// The number of threads.
    pub threads: u64,
    /// The names that the program gave to them.
    pub names: Vec<String>,
    /// The file of the block that started them. `null` if it is unknown or differs.
    #[serde(default)]
    pub started_path: Option<String>,
    /// Its line. `null` if it is unknown or differs.
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
