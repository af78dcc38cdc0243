use formats::{Action, Advice, Report, ReportGroup, TmpfsFile};
use ledger::percent;
use linux::proc::{self, GroupMemory, KernelMemory, Rollup};

use crate::verdict::MIN_WASTE_BYTES;
use crate::{MIN_BYTES, MIN_SHARE};

/// Smaller files are not listed, in bytes, and the maximum number of files.
const MIN_FILE: u64 = 1 << 20;
const MAX_FILES: usize = 10;

/// Returns true if so much of the memory of a control group is in no process that a report on a process explains it. Page
/// cache counts only if it counts towards a limit.
#[must_use]
pub fn is_much_in_no_process(group: GroupMemory, kernel: KernelMemory) -> bool {
    let KernelMemory { unmapped_cache_bytes, unmapped_shmem_bytes, kernel_bytes } = kernel;
    let cache = group.limit_bytes.map_or(0, |_| unmapped_cache_bytes);
    let bytes = cache + unmapped_shmem_bytes + kernel_bytes;
    bytes >= MIN_BYTES && percent(bytes, group.usage_bytes) >= MIN_SHARE
}

/// Returns the account of a control group. `files` are the files in memory that its processes have open, the largest first.
#[must_use]
pub fn report_group(
    group: GroupMemory,
    kernel: KernelMemory,
    processes: &[Rollup],
    files: Vec<proc::TmpfsFile>,
) -> ReportGroup {
    // A process chooses its files, but their memory is not more than the group's.
    let is_shown = |file: &proc::TmpfsFile| (MIN_FILE..=group.usage_bytes).contains(&file.bytes);
    let files = files.into_iter().filter(is_shown).take(MAX_FILES);
    let file = |it: proc::TmpfsFile| {
        let proc::TmpfsFile { path, bytes, is_deleted, pid } = it;
        TmpfsFile { path, bytes, is_deleted, pid }
    };
    ReportGroup {
        usage_bytes: group.usage_bytes,
        limit_bytes: group.limit_bytes,
        processes: processes.len() as u64,
        processes_bytes: processes.iter().map(|it| it.pss_bytes).sum(),
        unmapped_shmem_bytes: kernel.unmapped_shmem_bytes,
        unmapped_cache_bytes: kernel.unmapped_cache_bytes,
        kernel_bytes: kernel.kernel_bytes,
        files: files.map(file).collect(),
    }
}

/// Adds the account of the process's control group to a report, and the step against files in memory, which are in no cause.
pub fn add_group(report: &mut Report, group: Option<ReportGroup>) {
    let step = group.as_ref().and_then(close_files);
    // It explains more than a process that is healthy. Only a GC that is disabled comes first.
    let is_first = |step: &Advice| matches!(step.action, Action::EnableGc { .. });
    let at = match report.verdict.cause {
        None => report.advice.iter().take_while(|step| is_first(step)).count(),
        Some(_) => report.advice.len(),
    };
    report.advice.splice(at..at, step);
    report.group = group;
}

fn close_files(group: &ReportGroup) -> Option<Advice> {
    let bytes = group.unmapped_shmem_bytes;
    let is_much = bytes >= MIN_WASTE_BYTES
        || bytes >= MIN_BYTES && percent(bytes, group.usage_bytes) >= MIN_SHARE;
    let largest = group.files.first().filter(|_| is_much)?;
    let action = Action::CloseFilesInMemory {
        bytes,
        path: largest.path.clone(),
        path_bytes: largest.bytes,
        is_deleted: largest.is_deleted,
        pid: largest.pid,
    };
    // RSS does not have them.
    Some(Advice { action, saves_bytes: None })
}
