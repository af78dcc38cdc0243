use formats::{ReportGroup, TmpfsFile};
use ledger::{Size, percent};

use crate::family::processes;

/// Returns the memory of the control group of a process that is in no process, as sentences.
#[must_use]
pub fn group(group: &ReportGroup) -> String {
    let limit = group.limit_bytes.map_or_else(String::new, |limit| {
        let share = percent(group.usage_bytes, limit);
        format!(" ({share:.0} % of its limit of {})", Size(limit))
    });
    let mut parts = [
        (
            group.unmapped_shmem_bytes,
            "files in tmpfs and shared memory (which stay until they are deleted and closed)",
        ),
        (
            group.unmapped_cache_bytes,
            "page cache (which the kernel takes back when memory is short)",
        ),
        (group.kernel_bytes, "the kernel (page tables, stacks, buffers, sockets)"),
    ];
    parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let parts: Vec<_> = parts
        .iter()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, place)| format!(", {} in {place}", Size(*bytes)))
        .collect();
    format!(
        "The control group of this process uses {}{limit}. Of that, {} are in {}{}.",
        Size(group.usage_bytes),
        Size(group.processes_bytes),
        processes(group.processes),
        parts.concat()
    )
}

/// Returns a file in memory as a line.
#[must_use]
pub fn tmpfs_file(file: &TmpfsFile) -> String {
    let deleted = if file.is_deleted { ", deleted but" } else { "," };
    format!("{} {}{deleted} open in process {}", Size(file.bytes), file.path, file.pid)
}
