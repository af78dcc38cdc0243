/// The ids of the target, and some facts about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// The process id in rbloat's own pid namespace.
    pub pid: i32,
    /// The start time, in clock ticks since boot; `None` if unknown. Together with the id it identifies the process.
    pub started_ticks: Option<u64>,
    /// The time since the start, in ms; `None` if unknown.
    pub uptime_ms: Option<u64>,
    /// The command line, words joined by blanks; the name in brackets if it has none.
    pub command: String,
    /// The wanted variables ([`WantedVariables`](super::WantedVariables)) as of the start of the process, some with an empty value.
    /// `None` if the environment could not be read.
    pub environment: Option<Vec<(String, String)>>,
    /// The path of its control group; `None` if it is unknown or the root.
    pub control_group: Option<String>,
    /// True if it runs in a pid namespace of its own, or below a root that Docker or Podman made.
    pub is_contained: bool,
    /// The process id in its own pid namespace, if that differs.
    pub namespace_pid: Option<i32>,
    /// The number of threads.
    pub threads: u64,
    /// The names of the threads, each once; empty if they were not read.
    pub thread_names: Vec<String>,
    /// Resident bytes as ps(1) shows them: the kernel's fast count, which may be off by some pages for each processor.
    pub rss_bytes: u64,
}

impl ProcessInfo {
    /// The value of an environment variable that is kept; `None` if it is not set.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment
            .iter()
            .flatten()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}
