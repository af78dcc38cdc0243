//! The list of Ruby processes.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use ledger::Count;

use crate::text::{align_right, mebibytes, table, trimmed};

/// Columns of a process's other cells in the list.
const BEFORE_COMMAND: usize = 68;
/// Deeper branches of a tree are drawn like this one.
const MAX_DEPTH: usize = 8;

/// A Ruby process in the list that bare `rbloat` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedProcess {
    /// Its process id.
    pub pid: i32,
    /// Its process id within its container, if it is in one.
    pub namespace_pid: Option<i32>,
    /// The process that it was forked from, if that is a Ruby process with the same program.
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
        let mut ordered = Vec::new();
        add_trees(&children(processes), None, 0, &mut ordered);
        list(&ordered, width)
    };
    if refused > 0 {
        let processes = if refused == 1 { "process" } else { "processes" };
        text += &format!(
            "Skipped {refused} {processes}: permission denied. Run as root to see all of them.\n"
        );
    }
    text
}

/// The processes by their parents; `None` has those whose parents are not listed.
type Children<'a> = HashMap<Option<i32>, Vec<&'a ListedProcess>>;

fn children(processes: &[ListedProcess]) -> Children<'_> {
    let listed: HashSet<i32> = processes.iter().map(|process| process.pid).collect();
    let mut children = Children::new();
    for process in processes {
        let parent = process.parent.filter(|pid| listed.contains(pid));
        children.entry(parent).or_default().push(process);
    }
    children
}

/// Adds the children of a process, the largest first, each with its depth and followed by its own children.
fn add_trees<'a>(
    children: &Children<'a>,
    parent: Option<i32>,
    depth: usize,
    ordered: &mut Vec<(usize, &'a ListedProcess)>,
) {
    let mut own = children.get(&parent).cloned().unwrap_or_default();
    own.sort_by_key(|process| (Reverse(tree_bytes(children, process)), process.pid));
    for child in own {
        ordered.push((depth, child));
        add_trees(children, Some(child.pid), depth + 1, ordered);
    }
}

/// Returns the proportional bytes of a process and its descendants.
fn tree_bytes(children: &Children<'_>, root: &ListedProcess) -> u64 {
    let own = root.pss_bytes.unwrap_or(root.rss_bytes);
    let others = children.get(&Some(root.pid)).into_iter().flatten();
    others.fold(own, |sum, child| sum.saturating_add(tree_bytes(children, child)))
}

fn list(processes: &[(usize, &ListedProcess)], width: usize) -> String {
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
    for (depth, process) in processes {
        let branch = match depth {
            0 => String::new(),
            depth => " ".repeat(2 * (depth - 1).min(MAX_DEPTH)) + "└ ",
        };
        let command = branch + &process.command;
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
