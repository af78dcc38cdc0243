//! A live process as the source of an image.

mod blocked;
mod call;
mod cgroup;
mod fork;
mod frozen;
mod memory;
mod pagemap;
mod pause;
mod priority;
mod proc;
mod room;
mod safe_point;
mod seccomp;
mod stop;
mod touch;
mod tracee;
mod tree;

use std::fs::File;
use std::time::Duration;

use crate::{Error, Image, ProcessState};
use blocked::Blocked;
use memory::LiveMemory;
use pagemap::{Part, States};

pub(crate) use proc::{allocation_variables, one_line};

pub use call::{Argument, Called, call, find_function};
pub use cgroup::{GroupMemory, group_memory};
pub use fork::{Ended, ForkPlan, Forked, fork};
pub use frozen::{Frozen, Thawed, freeze};
pub use pause::PauseFactors;
use stop::Stop;
pub use touch::Refusal;
pub use tree::{Member, Rollup, Tree, children, command_line, own_cpu_time, rollup};

/// A pause that is long enough for nearly everything: for callers who would rather wait than fail.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A target whose threads are stopped, and what the kernel says of it.
struct Stopped {
    stop: Stop,
    state: ProcessState,
    part: Part,
    /// The open pagemap of the process.
    pagemap: File,
}

/// Stops every thread of `pid` within `max_pause` and reads its mappings, a part of its page states, and
/// registers.
fn stop_and_look(pid: i32, max_pause: Duration, part: Part) -> Result<Stopped, Error> {
    // All that need not be of the very instant is read before.
    let before = proc::mappings(pid, true)?;
    let mut process = proc::process(pid)?;
    let rss_error = proc::rss_error_bytes();
    let pagemap = proc::open(pid, "pagemap")?;
    let stop = Stop::all_threads(pid, max_pause)?;
    let States { mappings, pages, part } = pagemap::read(pid, &pagemap, &before, part)?;
    let threads = stop.threads()?;
    process.rss_bytes = proc::resident_bytes(pid)?;
    if process.started_ticks != Some(stop.start_time()) {
        return Err(Error::Ended { pid, how: "ended" });
    }
    let rss = process.rss_bytes;
    let rss_bounds = Some(rss.saturating_sub(rss_error)..=rss.saturating_add(rss_error));
    let pages = Some(pages);
    let state =
        ProcessState { process, mappings, pages, rss_bounds, threads, ..ProcessState::default() };
    Ok(Stopped { stop, state, part, pagemap })
}

/// Runs `capture`, which stops processes, on a thread of its own, and returns what it returns.
///
/// A thread of the target that does not stop in time cannot be let go by its tracer. The kernel lets it go when
/// the tracer ends, so that is a thread which does nothing else. SIGINT, SIGTERM and SIGHUP wait meanwhile: a
/// forked copy would be left behind.
///
/// # Panics
/// Where `capture` does.
pub fn on_a_thread_of_its_own<T: Send>(capture: impl FnOnce() -> T + Send) -> T {
    let _ends = Blocked::requests_to_end();
    let _stops = Blocked::job_control();
    std::thread::scope(|scope| {
        let thread = scope.spawn(capture);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Fails where `pid` is nothing that could be looked at, without touching it.
///
/// # Errors
/// Where there is no such process, it has no memory, or it is traced already.
pub fn check(pid: i32) -> Result<(), Error> {
    proc::check_has_memory(pid)
}

/// An image of a running process, without stopping it, without page states and threads: good for
/// what does not change, such as the modules that it has loaded.
///
/// # Errors
/// Where there is no such process, it has no memory, or the kernel refuses.
pub fn look(pid: i32) -> Result<Image<'static>, Error> {
    let process = proc::process(pid)?;
    let mappings = proc::mappings(pid, false)?;
    let state = ProcessState { process, mappings, ..ProcessState::default() };
    Ok(Image::new(state, LiveMemory::open_unscanned(pid)?))
}

/// The resident bytes of a running process as `smaps_rollup` counts them: exactly, at one instant.
///
/// # Errors
/// Where there is no such process, it has no memory, or the kernel refuses.
pub fn rss_bytes(pid: i32) -> Result<u64, Error> {
    tree::rollup(pid).map(|rollup| rollup.rss_bytes)
}

/// The ids of all processes, ascending. They may have ended by the time they are looked at.
///
/// # Errors
/// Where /proc is not that of our pid namespace.
pub fn processes() -> Result<Vec<i32>, Error> {
    proc::check_namespace()?;
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let mut pids: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The processes that have the id `own` in the pid namespace that they run in, where that is another
/// than ours: those that a container calls by it. Ascending.
///
/// # Errors
/// Where /proc is not that of our pid namespace.
pub fn processes_by_namespace_pid(own: i32) -> Result<Vec<i32>, Error> {
    let mut pids = processes()?;
    pids.retain(|&pid| {
        proc::status(pid).is_ok_and(|status| proc::namespace_pid(&status) == Some(own))
    });
    Ok(pids)
}

/// What the length of a pause of the running process of `image` depends on.
#[must_use]
pub fn pause_factors(image: &Image<'_>) -> PauseFactors {
    let ProcessState { process, mappings, .. } = &image.state;
    PauseFactors::of(process.pid, mappings.iter().count())
}

/// Bytes that the limits of process `pid` leave when rbloat itself has taken `own_bytes`; `None` where none is
/// known.
#[must_use]
pub fn room_bytes(pid: i32, own_bytes: u64) -> Option<u64> {
    room::Limits::of(pid).room_bytes(own_bytes)
}
