//! The list of Ruby processes.

use std::cmp::Reverse;

use anstyle::Style;
use formats::{ListedProcess, Processes};
use ledger::{Count, Size};

use crate::rows::{Heads, Row, write_rows};
use crate::text::{clipped, end_with_a_line, mebibytes};
use crate::tree::trees;

/// Characters of a command line on a narrow terminal, at most.
const MAX_COMMAND: usize = 80;

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
    let has_containers = processes.iter().any(|(process, _)| process.namespace_pid.is_some());
    let in_container = has_containers.then_some("IN CON-\nTAINER");
    let others = ["RSS,\nMiB", "PSS,\nMiB", "RUBY", "MALLOC", "THREADS"];
    let heads: Vec<_> = ["PID"].into_iter().chain(in_container).chain(others).collect();
    let container_of = |pid: Option<i32>| {
        let (process, _) = processes.iter().find(|(process, _)| Some(process.pid) == pid)?;
        process.container.as_ref()
    };
    let row = |(process, branch): &(&ListedProcess, &str)| {
        let pid_there = process.namespace_pid.map_or_else(String::new, |pid| pid.to_string());
        let others = [
            mebibytes(process.rss_bytes),
            process.pss_bytes.map_or_else(|| "?".into(), mebibytes),
            process.ruby_version.clone(),
            malloc_of(process).to_owned(),
            Count(process.threads).to_string(),
        ];
        let figures = [process.pid.to_string()].into_iter();
        let figures = figures.chain(has_containers.then_some(pid_there)).chain(others).collect();
        let command = clipped(&process.command, width.max(MAX_COMMAND));
        // A family is usually in one container.
        let container = process.container.as_ref();
        let container = container.filter(|_| container != container_of(process.parent));
        let container = container.map_or_else(String::new, |container| format!("[{container}] "));
        let note = vec![(Style::new(), format!("{branch}{container}{command}"))];
        Row { figures, note, ..Row::default() }
    };
    let rows: Vec<_> = processes.iter().map(row).collect();
    let mut text = String::new();
    write_rows(
        &mut text,
        &Heads { name: "", figures: &heads, note: "COMMAND", lead: Some("") },
        &rows,
        width,
    )
    .expect("a string takes all text");
    // Other lines follow.
    end_with_a_line(&mut text);
    text
}

/// The allocator; the one of the C library has its release.
fn malloc_of(process: &ListedProcess) -> &str {
    let ListedProcess { libc, allocator, .. } = process;
    if libc.starts_with(allocator) { libc } else { allocator }
}
