use std::time::Duration;

use linux::proc::{self, Identity};
use linux::{Error, Machine, Mappings, PageScope, Pagemap, ProcessInfo, Stop};

use crate::ProcessState;

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
