//! The memory that limits leave to a process, and the memory that a forked copy of it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use image::Target;
use linux::proc::{self, ControlGroup, MemoryCounts};
use linux::{Companion, RealTimePriority};

use crate::Refusal;
use crate::handle::ProcessHandle;

/// Kernel memory for a forked copy beside its page tables: a task, its stack, lists.
const COPY_BYTES: u64 = 1 << 20;
/// Kernel memory for each mapping of a forked copy: `vm_area_struct`, its lists and its place in the
/// tree of mappings.
const COPY_BYTES_PER_MAPPING: u64 = 512;
/// The assumed write rate of a thread that uses a whole processor, in bytes that the kernel must copy. A guard
/// watches the room, in case a program writes faster.
const WRITTEN_BYTES_PER_SECOND: u64 = 1 << 30;
/// The time to read a forked copy, with a reserve for busy machines.
const READING: Duration = Duration::from_millis(100);
const READING_PER_GIB: Duration = Duration::from_millis(1500);
/// The time for which the target's CPU time is watched.
const WATCHED: Duration = Duration::from_millis(20);
/// The time between checks of the room while a forked copy is read.
const BETWEEN_CHECKS: Duration = Duration::from_millis(2);
/// The copy is ended when less than this part of the initial room is left.
const RESERVE: u64 = 4;

/// The limits that the memory of a process counts against. The default is the machine's memory alone.
#[derive(Debug, Clone, Default)]
pub struct MemoryLimits {
    /// Its control groups; true if rbloat's own memory may count against the group, too.
    groups: Vec<(ControlGroup, bool)>,
}

impl MemoryLimits {
    /// The limits of the target.
    ///
    /// # Errors
    /// If its control groups are unknown.
    pub fn of(target: &Target) -> Result<Self, Refusal> {
        let groups = target.control_groups().map_err(|error| match error {
            linux::Error::UnknownGroup { .. } => Refusal::UnknownLimit,
            error => Refusal::capture_failed("find the control group of the process")(error),
        })?;
        Ok(Self::of_groups(groups))
    }

    fn of_groups(groups: &[ControlGroup]) -> Self {
        let own = proc::control_groups(std::process::id().cast_signed());
        let with_us = |group: &ControlGroup| {
            let is_ours = own.as_ref().map_or(true, |own| own.contains(group));
            (group.clone(), is_ours)
        };
        Self { groups: groups.iter().map(with_us).collect() }
    }

    /// Returns the bytes that the process can still allocate when rbloat itself has allocated `own_bytes`: the minimum
    /// over its control groups and the machine. `None` if neither is known. Caches of files that the kernel would give
    /// up count as room.
    pub(crate) fn room_bytes(&self, own_bytes: u64) -> Option<u64> {
        let on_machine = proc::available_bytes().map(|room| room.saturating_sub(own_bytes));
        self.rooms(own_bytes).into_iter().chain(on_machine).min()
    }

    /// The same for each control group with a limit.
    fn rooms(&self, own_bytes: u64) -> Vec<u64> {
        let in_groups = self.groups.iter().filter_map(|(group, is_ours)| {
            let room = group.room_bytes()?;
            Some(if *is_ours { room.saturating_sub(own_bytes) } else { room })
        });
        in_groups.collect()
    }

    /// Returns the number of control groups whose memory can be read.
    fn readable(&self) -> usize {
        self.groups.iter().filter(|(group, _)| group.memory().is_some()).count()
    }

    /// Returns the bytes that rbloat itself can allocate before the kernel kills a process: the minimum over the control groups that
    /// it shares with the process, and the machine. `None` if neither is known.
    #[must_use]
    pub fn own_room_bytes(&self) -> Option<u64> {
        let shared = self.groups.iter().filter(|(_, is_ours)| *is_ours);
        let in_groups = shared.filter_map(|(group, _)| group.room_before_kill_bytes());
        in_groups.chain(proc::available_bytes()).min()
    }
}

/// The memory that a forked copy of a process is expected to need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryNeed {
    /// Needed by the copy itself, at once.
    pub(crate) fixed_bytes: u64,
    /// The maximum that the process can write meanwhile, so that the kernel must copy it.
    pub(crate) anonymous_bytes: u64,
}

impl MemoryNeed {
    /// Returns the need of a process with these counts, and with `mappings` mappings.
    pub(crate) fn of(counts: &MemoryCounts, mappings: u64) -> Self {
        Self {
            fixed_bytes: COPY_BYTES + counts.page_table_bytes + mappings * COPY_BYTES_PER_MAPPING,
            anonymous_bytes: counts.anonymous_bytes,
        }
    }

    /// Returns the bytes that are needed if the process `pid` continues to write at its current rate. Its CPU time is
    /// watched for a moment, since the kernel does not count writes.
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

/// The number of control groups with a limit at the latest reading, and of those that could be read at first.
struct GroupCounts {
    limited: usize,
    readable: usize,
}

impl GroupCounts {
    fn of(limits: &MemoryLimits) -> Self {
        Self { limited: limits.rooms(0).len(), readable: limits.readable() }
    }

    /// Returns true if less than `least_bytes` are left, or if a group cannot be read any more: it may be full.
    fn are_nearly_full(&mut self, limits: &MemoryLimits, least_bytes: u64) -> bool {
        let rooms = limits.rooms(0);
        // A limit may also have been lifted.
        let is_blind = rooms.len() < self.limited && limits.readable() < self.readable;
        self.limited = rooms.len();
        let left = rooms.into_iter().chain(proc::available_bytes()).min();
        is_blind || left.is_some_and(|left| left < least_bytes)
    }
}

/// A thread that ends a forked copy before the original process meets a memory limit.
pub(crate) struct MemoryGuard {
    ended_copy: Arc<AtomicBool>,
    _thread: Companion,
}

impl MemoryGuard {
    /// Watches the room, initially `room_bytes`, until this value is dropped. Kills the process `copy` if little is left.
    pub(crate) fn start(
        limits: MemoryLimits,
        room_bytes: u64,
        copy: Arc<ProcessHandle>,
    ) -> Option<Self> {
        let ended_copy = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ended_copy);
        let thread = Companion::start(move |stop| {
            // Else it would wait for a turn of the threads that read, on each processor.
            let _priority = RealTimePriority::raise_above_reading();
            let mut groups = GroupCounts::of(&limits);
            while !stop.comes_within(BETWEEN_CHECKS) {
                if groups.are_nearly_full(&limits, room_bytes / RESERVE) {
                    ended.store(true, Ordering::SeqCst);
                    copy.kill();
                    return;
                }
            }
        });
        Some(Self { ended_copy, _thread: thread? })
    }

    /// Returns true if the guard ended the copy.
    pub(crate) fn has_ended_copy(&self) -> bool {
        self.ended_copy.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_on_the_machine_is_reduced_by_our_own_memory() {
        let limits = MemoryLimits::default();
        assert!(limits.room_bytes(0).unwrap() > 0);
        assert_eq!(limits.room_bytes(u64::MAX), Some(0));
    }

    #[test]
    fn a_limit_may_be_lifted_but_a_group_that_is_gone_may_have_been_full() {
        let Some(group) = testkit::ControlGroup::make() else { return };
        group.limit(64 << 20);
        let limits = MemoryLimits::of_groups(ControlGroup::at(group.folder()).as_slice());
        let mut groups = GroupCounts::of(&limits);
        assert!(!groups.are_nearly_full(&limits, 1) && groups.are_nearly_full(&limits, 65 << 20));
        group.lift_limit();
        assert!(!groups.are_nearly_full(&limits, 1));
        group.limit(64 << 20);
        assert!(!groups.are_nearly_full(&limits, 1));
        drop(group);
        assert!(groups.are_nearly_full(&limits, 1));
    }

    #[test]
    fn a_copy_of_an_idle_process_needs_its_page_tables_and_that_of_a_busy_one_more() {
        let need = MemoryNeed { fixed_bytes: 3 << 20, anonymous_bytes: 100 << 20 };
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
