//! The memory that limits leave to a process, and the memory that a forked copy of it needs.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use procfs_core::process::Status;

use super::cgroup::{self, Level};
use super::proc;

/// Kernel memory for a forked copy beside its page tables: a task, its stack, lists.
const COPY_BYTES: u64 = 1 << 20;
/// Kernel memory for each mapping of a forked copy: `vm_area_struct`, its lists and its place in the
/// tree of mappings.
const COPY_BYTES_PER_MAPPING: u64 = 512;
/// The assumed write rate of a thread that uses a whole processor, in bytes that the kernel must copy. A guard
/// watches the room, in case a program writes faster.
const WRITTEN_BYTES_PER_SECOND: u64 = 1 << 30;
/// Time to read a forked copy: longer than on a machine that is not busy.
const READING: Duration = Duration::from_millis(100);
const READING_PER_GIB: Duration = Duration::from_millis(1500);
/// For how long the target's CPU time is watched.
const WATCHED: Duration = Duration::from_millis(20);
/// Between two looks at the room while a forked copy is read.
const LOOKS: Duration = Duration::from_millis(2);
/// The copy is ended when less than this part of the initial room is left.
const RESERVE: u64 = 4;

/// The limits that the memory of a process counts against.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Its control groups, and whether rbloat's own memory counts against them too.
    levels: Vec<(Level, bool)>,
}

impl Limits {
    pub(crate) fn of(pid: i32) -> Self {
        let own = cgroup::levels(std::process::id().cast_signed());
        let with_us = |level: Level| {
            let is_ours = own.contains(&level);
            (level, is_ours)
        };
        Self { levels: cgroup::levels(pid).into_iter().map(with_us).collect() }
    }

    /// Bytes that the process may still take when rbloat itself has taken `own_bytes`: the least of what its
    /// control groups and the machine leave. `None` where nothing could be learned. Caches of files that the
    /// kernel would give up count as room.
    pub(crate) fn room_bytes(&self, own_bytes: u64) -> Option<u64> {
        let in_groups = self.levels.iter().filter_map(|(level, is_ours)| {
            let room = level.memory()?.room_bytes()?;
            Some(if *is_ours { room.saturating_sub(own_bytes) } else { room })
        });
        let on_machine = on_machine().map(|room| room.saturating_sub(own_bytes));
        in_groups.chain(on_machine).min()
    }
}

fn on_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    cgroup::number_after(&text, "MemAvailable:").map(|kb| kb * 1024)
}

/// The memory that a forked copy of a process is expected to need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// By itself, at once.
    pub(crate) fixed_bytes: u64,
    /// The most that the process can change meanwhile, so that the kernel copies it.
    pub(crate) anonymous_bytes: u64,
}

impl Need {
    /// By the status of a process that has so many mappings.
    pub(crate) fn of(status: &Status, mappings: u64) -> Self {
        let bytes = |kilobytes: Option<u64>| kilobytes.unwrap_or(0) * 1024;
        let resident = bytes(status.vmrss);
        // Where the kernel does not tell: an entry of 8 bytes for each page.
        let tables = status.vmpte.map_or(resident / 512, |kilobytes| kilobytes * 1024);
        let mappings = mappings * COPY_BYTES_PER_MAPPING;
        Self {
            fixed_bytes: COPY_BYTES + tables + mappings,
            anonymous_bytes: status.rssanon.map_or(resident, |kilobytes| kilobytes * 1024),
        }
    }

    /// With what the process changes while it is read, if it goes on as it does now: its CPU time is watched
    /// for a moment, since the kernel does not count what is written.
    pub(crate) fn measured_bytes(&self, pid: i32) -> u64 {
        let (before, since) = (proc::cpu_time(pid), Instant::now());
        std::thread::sleep(WATCHED);
        let busy = proc::cpu_time(pid).saturating_sub(before).as_secs_f64();
        let processors = busy / since.elapsed().as_secs_f64();
        let gib = self.anonymous_bytes as f64 / (1_u64 << 30) as f64;
        let reading = READING.as_secs_f64() + gib * READING_PER_GIB.as_secs_f64();
        let written = processors * reading * WRITTEN_BYTES_PER_SECOND as f64;
        self.fixed_bytes + (written as u64).min(self.anonymous_bytes)
    }
}

/// A thread that ends a forked copy before the process that it was made of meets a limit.
pub(crate) struct Guard {
    stop: Option<Sender<()>>,
    ended_copy: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Watches the room that is left, of which there were `room_bytes`, until this value is dropped; ends the
    /// process `copy` by SIGKILL where it gets scarce.
    pub(crate) fn start(limits: Limits, room_bytes: u64, copy: i32) -> Option<Self> {
        let (stop, stopped) = channel();
        let ended_copy = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ended_copy);
        let thread = std::thread::Builder::new().spawn(move || {
            while stopped.recv_timeout(LOOKS) == Err(RecvTimeoutError::Timeout) {
                let is_scarce = |left| left < room_bytes / RESERVE;
                if limits.room_bytes(0).is_some_and(is_scarce) {
                    ended.store(true, Ordering::SeqCst);
                    // SAFETY: kill takes numbers alone. The copy is our tracee and not reaped before this
                    // thread has ended: its id is no other's.
                    unsafe { libc::kill(copy, libc::SIGKILL) };
                    return;
                }
            }
        });
        Some(Self { stop: Some(stop), ended_copy, thread: Some(thread.ok()?) })
    }

    /// Returns true if the guard ended the copy.
    pub(crate) fn has_ended_copy(&self) -> bool {
        self.ended_copy.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_leaves_some_room_less_what_we_take_ourselves() {
        let limits = Limits { levels: Vec::new() };
        assert!(limits.room_bytes(0).unwrap() > 0);
        assert_eq!(limits.room_bytes(u64::MAX), Some(0));
    }

    #[test]
    fn a_copy_of_an_idle_process_needs_its_page_tables_and_that_of_a_busy_one_more() {
        let need = Need { fixed_bytes: 3 << 20, anonymous_bytes: 100 << 20 };
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id().cast_signed();
        // It computes while it starts.
        let is_idle = (0..1000).any(|_| need.measured_bytes(pid) == 3 << 20);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(is_idle);
        let mut busy =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = busy.id().cast_signed();
        while proc::cpu_time(pid) < Duration::from_millis(100) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // On a machine that is busy otherwise it may not run for a moment.
        let is_busy = (0..1000).any(|_| need.measured_bytes(pid) > 3 << 20);
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(is_busy);
    }
}
