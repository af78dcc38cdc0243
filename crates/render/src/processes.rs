//! The list of Ruby processes.

use std::cmp::Reverse;

use formats::{ListedProcess, Processes};
use ledger::{Count, Size};

use crate::text::{align_right, mebibytes, table, trimmed};
use crate::tree::trees;

/// Columns of a process's other cells in the list.
const BEFORE_COMMAND: usize = 68;

/// The list of Ruby processes as text: families as trees, the largest first, for a terminal of `width` columns.
#[must_use]
pub fn processes(list: &Processes, width: usize) -> String {
    let Processes { processes, refused } = list;
    let mut text = if processes.is_empty() {
        "No Ruby processes found.\n".to_owned()
    } else {
        let ids: Vec<_> = processes.iter().map(|process| (process.pid, process.parent)).collect();
        let lines = trees(&ids, |family| {
            let sizes = family.iter().map(|&index| size(&processes[index]));
            (Reverse(sizes.fold(0, u64::saturating_add)), processes[family[0]].pid)
        });
        let lines: Vec<_> =
            lines.iter().map(|(index, branch)| (&processes[*index], branch.as_str())).collect();
        table_of(&lines, width)
    };
    if *refused > 0 {
        let processes = if *refused == 1 { "process" } else { "processes" };
        text += &format!(
            "Skipped {refused} {processes}: permission denied. Root with CAP_SYS_PTRACE sees all of them.\n"
        );
    }
    text
}

/// Returns the list in one sentence.
#[must_use]
pub fn processes_summary(list: &Processes) -> String {
    match &list.processes[..] {
        [] => "No Ruby processes found.".into(),
        [only] => format!("1 Ruby process with {}.", Size(size(only))),
        many => {
            let memory = crate::words::total(many.iter().map(size));
            format!("{} Ruby processes with {} together.", many.len(), Size(memory))
        }
    }
}

/// Its share of the memory, if the kernel shows it.
fn size(process: &ListedProcess) -> u64 {
    process.pss_bytes.unwrap_or(process.rss_bytes)
}

fn table_of(processes: &[(&ListedProcess, &str)], width: usize) -> String {
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
