//! The list of Ruby processes.

use std::cmp::Reverse;

use ledger::Count;

use crate::text::{align_right, mebibytes, table, trimmed};
use crate::tree::trees;

/// Columns of a process's other cells in the list.
const BEFORE_COMMAND: usize = 68;

/// A Ruby process in the list that bare `rbloat` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedProcess {
    /// Its process id.
    pub pid: i32,
    /// Its process id within its container, if it is in one.
    pub namespace_pid: Option<i32>,
    /// The Ruby process that started it, or started its parent.
    pub parent: Option<i32>,
    /// Its resident bytes, as ps(1) shows them.
    pub rss_bytes: u64,
    /// Its proportional bytes: a page that four processes share counts for a quarter. `None` if the kernel does not tell.
    pub pss_bytes: Option<u64>,
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

/// The list of Ruby processes as text: families as trees, the largest first, for a terminal of `width` columns. `refused` further
/// processes could not be examined for lack of permission.
#[must_use]
pub fn processes(processes: &[ListedProcess], refused: usize, width: usize) -> String {
    let mut text = if processes.is_empty() {
        "No Ruby processes found.\n".to_owned()
    } else {
        let ids: Vec<_> = processes.iter().map(|process| (process.pid, process.parent)).collect();
        let size = |process: &ListedProcess| process.pss_bytes.unwrap_or(process.rss_bytes);
        let lines = trees(&ids, |family| {
            let sizes = family.iter().map(|&index| size(&processes[index]));
            (Reverse(sizes.fold(0, u64::saturating_add)), processes[family[0]].pid)
        });
        let lines: Vec<_> =
            lines.iter().map(|(index, branch)| (&processes[*index], branch.as_str())).collect();
        list(&lines, width)
    };
    if refused > 0 {
        let processes = if refused == 1 { "process" } else { "processes" };
        text += &format!(
            "Skipped {refused} {processes}: permission denied. Root with CAP_SYS_PTRACE sees all of them.\n"
        );
    }
    text
}

fn list(processes: &[(&ListedProcess, &str)], width: usize) -> String {
    let mut table = table([
        "PID",
        "IN CON-\nTAINER",
        "RSS,\nMiB",
        "PSS,\nMiB",
        "RUBY",
        "LIBC",
        "MALLOC",
        "THREADS",
        "COMMAND",
    ]);
    for (process, branch) in processes {
        let command = format!("{branch}{}", process.command);
        table.add_row([
            process.pid.to_string(),
            process.namespace_pid.map_or_else(String::new, |pid| pid.to_string()),
            mebibytes(process.rss_bytes),
            process.pss_bytes.map_or_else(|| "?".into(), mebibytes),
            process.ruby_version.clone(),
            process.libc.clone(),
            process.allocator.clone(),
            Count(process.threads).to_string(),
            command.chars().take(width.saturating_sub(BEFORE_COMMAND)).collect(),
        ]);
    }
    align_right(&mut table, [0, 1, 2, 3, 7]);
    trimmed(&table) + "\n"
}
