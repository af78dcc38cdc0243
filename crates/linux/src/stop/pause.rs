//! The expected length of a pause, estimated before anything is stopped.

use std::fs;
use std::time::Duration;

use super::priority;
use crate::proc::MemoryCounts;

/// Time to stop the threads of a process and release them: a constant part, and a part for each thread.
const STOP: Duration = Duration::from_micros(700);
const STOP_PER_THREAD: Duration = Duration::from_micros(35);
/// Time to read the kernel's record of a mapping.
const LOOK_PER_MAPPING: Duration = Duration::from_nanos(1000);
/// Time to walk the page tables of a GiB of resident memory.
const LOOK_PER_GIB: Duration = Duration::from_millis(10);
/// Time to make a forked copy: for each mapping, and for each GiB of resident anonymous memory.
const COPY_PER_MAPPING: Duration = Duration::from_nanos(1000);
const COPY_PER_GIB: Duration = Duration::from_millis(16);

const GIB: f64 = (1_u64 << 30) as f64;

/// The facts about a process that the length of a pause depends on.
#[derive(Debug, Clone, Copy)]
pub struct PauseFactors {
    /// The threads of the process.
    pub threads: u64,
    /// Its mappings.
    pub mappings: u64,
    /// Its resident bytes.
    pub resident_bytes: u64,
    /// The part of them that no file backs.
    pub anonymous_bytes: u64,
    /// Runnable threads for each processor of the machine, at least 1.
    pub load: f64,
    /// True if rbloat may have real-time priority during a pause, so that the load does not matter.
    pub urgent: bool,
}

impl PauseFactors {
    /// The factors of a process with these counts and this number of mappings.
    #[must_use]
    pub fn new(counts: MemoryCounts, mappings: usize) -> Self {
        Self {
            threads: counts.threads.max(1),
            mappings: mappings as u64,
            resident_bytes: counts.resident_bytes,
            anonymous_bytes: counts.anonymous_bytes,
            load: load(),
            urgent: priority::may_be_raised(),
        }
    }

    /// The time to stop all threads and to release them.
    fn stop(&self) -> Duration {
        STOP + scaled(STOP_PER_THREAD, self.threads as f64)
    }

    /// The expected pause of a fork capture.
    #[must_use]
    pub fn fork(&self) -> Duration {
        let look = scaled(LOOK_PER_MAPPING, self.mappings as f64);
        (self.stop() + look + self.copy()).mul_f64(self.slowdown())
    }

    /// The factor by which the load of the machine prolongs a pause.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        if self.urgent { 1.0 } else { self.load }
    }

    /// The expected time of clone(2), which makes the forked copy.
    #[must_use]
    pub fn copy(&self) -> Duration {
        scaled(COPY_PER_MAPPING, self.mappings as f64)
            + scaled(COPY_PER_GIB, self.anonymous_bytes as f64 / GIB)
    }

    /// The expected pause of a freeze until memory can be read; the caller adds the time of its walks.
    #[must_use]
    pub fn freeze(&self) -> Duration {
        let look = scaled(LOOK_PER_MAPPING, self.mappings as f64)
            + scaled(LOOK_PER_GIB, self.resident_bytes as f64 / GIB);
        (self.stop() + look).mul_f64(self.slowdown())
    }
}

fn scaled(each: Duration, times: f64) -> Duration {
    each.mul_f64(times.max(0.0))
}

/// Returns the number of runnable threads for each processor, at least 1.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = text.split(' ').nth(3).and_then(|field| field.split_once('/'));
    let running = running.and_then(|(running, _)| running.parse::<f64>().ok()).unwrap_or(1.0);
    let processors = std::thread::available_parallelism().map_or(1.0, |it| it.get() as f64);
    (running / processors).max(1.0)
}
