//! Live processes: stopping them, and reading them while they are stopped or run.
//!
//! A [`Target`] is a process that is examined, and [`freeze_target`] captures it. The other items are the parts that the crate `inferior`
//! makes its calls and forked copies of: stopping threads ([`Stop`], [`StoppedProcess`]), tracing one of them
//! ([`tracee`]), page states ([`Pagemap`]) and memory ([`LiveMemory`]).

mod blocked_signals;
pub mod bpf;
mod end_watch;
mod frames;
mod frozen;
mod mapping_query;
mod memory;
mod page_entry;
pub mod page_faults;
mod pagemap;
mod pause;
mod priority;
mod stop;
mod target;
pub mod tracee;
mod zero_pages;

use std::time::Duration;

use crate::proc::{self, Identity};
use crate::{Error, Machine, Mappings, ProcessInfo, ProcessState};

pub use blocked_signals::{BlockedSignals, unblock_signals};
pub use frames::{PageFrame, groups_of_frames, map_counts, page_frames};
pub use frozen::{Frozen, Thawed, freeze, freeze_target};
pub use mapping_query::MappingQuery;
pub use memory::LiveMemory;
pub use pagemap::{PageScope, Pagemap};
pub use pause::PauseFactors;
pub use priority::{ReadingPriority, RealTimePriority};
pub use stop::{Stop, ThreadStop};
pub use target::{Target, look};

/// A limit for pauses that nearly every process meets: for callers who would rather wait than fail.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose threads are all stopped, and the kernel's account of it.
pub struct StoppedProcess {
    /// The stopped threads.
    pub stop: Stop,
    /// The kernel's account, with page states of `scope`.
    pub state: ProcessState,
    /// The mappings whose page states were read: more than asked for on kernels without PAGEMAP_SCAN.
    pub scope: PageScope,
    /// The open pagemap of the process.
    pub pagemap: Pagemap,
}

impl StoppedProcess {
    /// Stops every thread of the process of `program`, described by `process`, within `max_pause`, and reads its mappings, the
    /// page states of `scope`, and its registers. `before` are its mappings with the kernel's flags from shortly before, if they have been read.
    ///
    /// # Errors
    /// If there is no such process, the kernel refuses, a thread does not stop in time, or the process ends or becomes another
    /// program.
    pub fn stop(
        program: &Identity,
        process: &ProcessInfo,
        max_pause: Duration,
        scope: PageScope,
        before: Option<Mappings>,
    ) -> Result<Self, Error> {
        let pid = program.pid();
        // Everything that need not be of the very instant is read before.
        let before = before.map_or_else(|| proc::mappings(pid, true), Ok)?;
        let thread_names = proc::thread_names(pid);
        let rss_error = proc::RssError::of_this_kernel();
        let pagemap = Pagemap::open(pid)?;
        let stop = Stop::all_threads(pid, max_pause)?;
        // An open file of /proc keeps the memory that the process had before an exec.
        program.verify()?;
        let (mappings, pages, scope) = pagemap.read(&before, scope)?;
        let threads = stop.threads()?;
        let rss = proc::resident_bytes(pid)?;
        let rss_error = rss_error.bytes(threads.len(), rss);
        let threads_count = threads.len() as u64;
        let process =
            ProcessInfo { threads: threads_count, thread_names, rss_bytes: rss, ..process.clone() };
        let rss_bounds = Some(rss.saturating_sub(rss_error)..=rss.saturating_add(rss_error));
        let state = ProcessState {
            program: program.clone(),
            process,
            machine: Machine::own(),
            mappings,
            pages: Some(pages),
            rss_bounds,
            threads,
            ..ProcessState::default()
        };
        Ok(Self { stop, state, scope, pagemap })
    }
}

/// Runs `capture`, which stops processes, on a thread of its own, and returns its result.
///
/// A thread of the target that does not stop in time cannot be detached by its tracer. The kernel detaches it when
/// the tracer ends, so the tracer is a thread that does nothing else. SIGINT, SIGTERM and SIGHUP wait meanwhile,
/// since they would leave a forked copy behind.
///
/// # Panics
/// If `capture` panics.
pub fn on_a_thread_of_its_own<T: Send>(capture: impl FnOnce() -> T + Send) -> T {
    let _ends = BlockedSignals::requests_to_end();
    let _stops = BlockedSignals::job_control();
    std::thread::scope(|scope| {
        let thread = scope.spawn(capture);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Checks that `pid` is a process that can be captured, without touching it.
///
/// # Errors
/// If there is no such process, it has no memory, it is traced already, or it is rbloat itself.
pub fn check(pid: i32) -> Result<(), Error> {
    proc::check_has_memory(pid)
}
