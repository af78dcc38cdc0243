//! The list of Ruby processes.

use ledger::Count;

use crate::text::{align_right, mebibytes, table, trimmed};

/// Columns of a process's other cells in the list.
const BEFORE_COMMAND: usize = 70;

/// A Ruby process in the list that bare `rbloat` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedProcess {
    /// Its process id.
    pub pid: i32,
    /// Its process id within its container, if it is in one.
    pub namespace_pid: Option<i32>,
    /// Its resident bytes, as ps(1) shows them.
    pub rss_bytes: u64,
    /// Ruby's version.
    pub ruby_version: String,
    /// The C library.
    pub libc: String,
    /// The allocator that serves malloc.
    pub allocator: String,
    /// The number of threads.
    pub threads: u64,
    /// Its command line.
    pub command: String,
}

/// The list of Ruby processes as text, in the order given, for a terminal of `width` columns. `refused` further
/// processes could not be examined for lack of permission.
#[must_use]
pub fn processes(processes: &[ListedProcess], refused: usize, width: usize) -> String {
    let mut text = if processes.is_empty() {
        "No Ruby processes found.\n".to_owned()
    } else {
        list(processes, width)
    };
    if refused > 0 {
        let processes = if refused == 1 { "process" } else { "processes" };
        text += &format!(
            "Skipped {refused} {processes}: permission denied. Run as root to see all of them.\n"
        );
    }
    text
}

fn list(processes: &[ListedProcess], width: usize) -> String {
    let mut table =
        table(["PID", "IN CONTAINER", "RSS, MiB", "RUBY", "LIBC", "MALLOC", "THREADS", "COMMAND"]);
    for process in processes {
        table.add_row([
            process.pid.to_string(),
            process.namespace_pid.map_or_else(String::new, |pid| pid.to_string()),
            mebibytes(process.rss_bytes),
            process.ruby_version.clone(),
            process.libc.clone(),
            process.allocator.clone(),
            Count(process.threads).to_string(),
            process.command.chars().take(width.saturating_sub(BEFORE_COMMAND)).collect(),
        ]);
    }
    align_right(&mut table, [0, 1, 2, 6]);
    trimmed(&table) + "\n"
}
