//! The kernel's counts of the memory of a process and of the machine.

use std::fs;
use std::time::Duration;

use super::read;
use super::stat::Status;
use crate::Error;
use crate::arch::page_size;

/// The kernel's fast counts of a process's memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Resident bytes.
    pub resident_bytes: u64,
    /// Resident bytes without a file behind them; all resident bytes if the kernel does not report these.
    pub anonymous_bytes: u64,
    /// Bytes of its page tables, estimated if the kernel does not report them.
    pub page_table_bytes: u64,
    /// The number of its threads.
    pub threads: u64,
}

impl MemoryCounts {
    pub(crate) fn of(status: &Status) -> Self {
        let resident_bytes = status.vmrss.unwrap_or(0);
        Self {
            resident_bytes,
            anonymous_bytes: status.rssanon.unwrap_or(resident_bytes),
            // An entry of 8 bytes for each page.
            page_table_bytes: status.vmpte.unwrap_or(resident_bytes / (page_size() / 8)),
            threads: status.threads,
        }
    }
}

/// Sums over the mappings of a process, in bytes (/proc/PID/smaps_rollup). They are exact, but the kernel walks the
/// page tables for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Resident memory, including pages shared with other processes.
    pub rss_bytes: u64,
    /// Proportional memory: a page that four processes share counts for a quarter.
    pub pss_bytes: u64,
    /// Memory of this process alone.
    pub uss_bytes: u64,
    /// Resident memory that no file backs.
    pub anonymous_bytes: u64,
    /// Proportional memory of shared memory and files in memory that it maps.
    pub shmem_bytes: u64,
    /// Swapped memory.
    pub swap_bytes: u64,
}

/// Returns the exact sums over the mappings of process `pid`.
///
/// # Errors
/// If there is no such process, it has no memory, or the kernel refuses.
pub fn rollup(pid: i32) -> Result<Rollup, Error> {
    let text = read(pid, "smaps_rollup")?;
    let text = String::from_utf8_lossy(&text);
    let row = |key: &str| number_after(&text, key).map(|kilobytes| kilobytes * 1024);
    let bytes = |key: &str| row(key).unwrap_or(0);
    Ok(Rollup {
        rss_bytes: row("Rss:").ok_or(Error::Ended { pid, how: "ended" })?,
        pss_bytes: bytes("Pss:"),
        uss_bytes: bytes("Private_Clean:") + bytes("Private_Dirty:") + bytes("Private_Hugetlb:"),
        anonymous_bytes: bytes("Anonymous:"),
        shmem_bytes: bytes("Pss_Shmem:"),
        swap_bytes: bytes("Swap:"),
    })
}

/// Returns the share of the last 10 s in which some process waited for memory, in percent (/proc/pressure/memory); `None` if
/// the kernel does not tell.
#[must_use]
pub fn memory_pressure() -> Option<f64> {
    pressure(&std::fs::read_to_string("/proc/pressure/memory").ok()?)
}

/// Reads the first line: `some avg10=1.53 avg60=0.87 avg300=0.20 total=345`.
fn pressure(text: &str) -> Option<f64> {
    text.strip_prefix("some avg10=")?.split(' ').next()?.parse().ok()
}

/// Reads the sum in the first line, in microseconds.
pub(super) fn stalled(text: &str) -> Option<Duration> {
    let total = text.strip_prefix("some ")?.lines().next()?.rsplit_once("total=")?.1;
    total.parse().ok().map(Duration::from_micros)
}

/// Returns true if process `pid` has transparent huge pages.
#[must_use]
pub fn has_huge_pages(pid: i32) -> bool {
    let text = read(pid, "smaps_rollup").unwrap_or_default();
    number_after(&String::from_utf8_lossy(&text), "AnonHugePages:").is_some_and(|it| it > 0)
}

/// Returns the exact resident bytes of process `pid`.
///
/// # Errors
/// If there is no such process, it has no memory, or the kernel refuses.
pub fn rss_bytes(pid: i32) -> Result<u64, Error> {
    rollup(pid).map(|rollup| rollup.rss_bytes)
}

/// Returns the highest resident bytes that process `pid` ever had, by the kernel's fast count. That of a forked process begins with
/// its first resident bytes. `None` if there is no such process, or the kernel does not report it.
#[must_use]
pub fn peak_rss_bytes(pid: i32) -> Option<u64> {
    let text = read(pid, "status").ok()?;
    let kilobytes = number_after(&String::from_utf8_lossy(&text), "VmHWM:")?;
    kilobytes.checked_mul(1024)
}

/// Returns the resident bytes of a process by the kernel's fast count, as in its status.
///
/// # Errors
/// If there is no such process.
pub fn resident_bytes(pid: i32) -> Result<u64, Error> {
    let pages = |name: &str| {
        let text = read(pid, name)?;
        let text = std::str::from_utf8(&text).ok();
        Ok(text.and_then(|it| it.split(' ').nth(1)?.parse().ok()).unwrap_or(0_u64))
    };
    let mut found = pages("statm")?;
    // If the main thread has ended, the process's own file has zeros.
    if found == 0
        && let Some(&tid) = super::threads(pid)?.first()
    {
        found = pages(&format!("task/{tid}/statm"))?;
    }
    Ok(found * page_size())
}

/// Returns the version of the running kernel: the first two numbers of its release.
pub(crate) fn kernel_version() -> (u32, u32) {
    version_of(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
}

fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    number().zip(number()).unwrap_or((0, 0))
}

/// The maximum difference between the kernel's fast count of resident memory and the pages of a stopped process.
pub struct RssError {
    /// The bytes for any process.
    fixed_bytes: u64,
    /// The further bytes for each of its threads.
    bytes_per_thread: u64,
}

impl RssError {
    /// The error of the running kernel.
    #[must_use]
    pub fn of_this_kernel() -> Self {
        // SAFETY: sysconf takes a number alone.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let processors = u64::try_from(processors).unwrap_or(1);
        Self::of(kernel_version(), processors)
    }

    /// The error of a kernel of this version on a machine with so many processors.
    ///
    /// The kernel counts the pages of files, anonymous pages and pages of shared memory on each processor separately, and adds a
    /// count to the sum when it reaches a batch (lib/percpu_counter.c, `compute_batch_value`). Since Linux 6.16 it sums up
    /// exactly for /proc (`get_mm_counter_sum`). Before Linux 6.2, each thread counted, and added its counts after so many page
    /// faults (`check_sync_rss_stat` in mm/memory.c), each of which maps up to 64 KiB of a file.
    fn of(version: (u32, u32), processors: u64) -> Self {
        const COUNTERS: u64 = 3;
        const MIN_BATCH: u64 = 32;
        const FAULTS: u64 = 66;
        const BYTES_PER_FAULT: u64 = 64 << 10;
        let processors = processors.max(1);
        let batches = COUNTERS * processors * MIN_BATCH.max(2 * processors) * page_size();
        Self {
            fixed_bytes: if version < (6, 16) { batches } else { 0 },
            bytes_per_thread: if version < (6, 2) { FAULTS * BYTES_PER_FAULT } else { 0 },
        }
    }

    /// The bytes for a process with so many threads and a count of `rss_bytes`.
    ///
    /// On large machines the maximum exceeds whole processes, but the parts of a count are not all at their maximum, and
    /// have either sign. A check with more than this part of RSS could not fail.
    #[must_use]
    pub fn bytes(&self, threads: usize, rss_bytes: u64) -> u64 {
        /// The pages that the kernel may reclaim between two looks at a stopped process.
        const RECLAIMED_PAGES: u64 = 256;
        const PART_OF_RSS: u64 = 8;
        const PAGES: u64 = 4096;
        let error = self.fixed_bytes + self.bytes_per_thread * threads as u64;
        RECLAIMED_PAGES * page_size() + error.min(rss_bytes / PART_OF_RSS + PAGES * page_size())
    }
}

/// Returns the bytes that the machine has available without swapping; `None` if unknown.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    number_after(&text, "MemAvailable:").map(|kilobytes| kilobytes * 1024)
}

/// Returns the first number of the line that begins with `key`.
pub(super) fn number_after(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of many threads on Linux 6.1 was reported on with the finding that its rows do not add up.
    #[test]
    fn kernels_that_count_in_threads_are_less_exact() {
        let error = |release| RssError::of(version_of(release), 2).bytes(32, 4 << 30);
        for exact in ["6.16.0", "6.18.44-fc-v657", "7.0"] {
            assert_eq!(error(exact), 256 * page_size(), "{exact}");
        }
        for on_processors in ["6.2.0", "6.12.48+deb13-amd64"] {
            assert_eq!(error(on_processors), error("7.0") + 3 * 2 * 32 * page_size());
        }
        for coarse in ["6.1.0-50-arm64", "5.10.0", "4.18.0-553.el8_10.x86_64", ""] {
            assert_eq!(error(coarse), error("6.2") + 32 * 66 * (64 << 10), "{coarse}");
        }
    }

    /// With 128 processors the bounds were 384 MiB wide on either side, so no process could fail the check.
    #[test]
    fn the_error_is_a_part_of_rss_on_any_machine() {
        for processors in [1, 128, 4096] {
            for release in ["5.10.0", "6.12.0", "6.18.0"] {
                let rss_bytes = 65536 * page_size();
                let error = RssError::of(version_of(release), processors).bytes(1000, rss_bytes);
                assert!(
                    error < rss_bytes / 5,
                    "{release}: {error} bytes on {processors} processors"
                );
            }
        }
    }

    #[test]
    fn pressure_is_the_share_of_time_in_which_some_process_waited() {
        let text = "some avg10=12.53 avg60=0.87 avg300=0.20 total=345\nfull avg10=0.10 avg60=0.00";
        assert_eq!(pressure(text), Some(12.53));
        assert_eq!(pressure(""), None);
        assert_eq!(pressure("full avg10=1"), None);
    }
}
