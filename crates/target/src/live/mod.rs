//! A live process as the source of an image.

mod blocked;
mod call;
mod cgroup;
mod fork;
mod memory;
mod pagemap;
mod proc;
mod room;
mod safe_point;
mod seccomp;
mod stop;
mod touch;
mod tracee;
mod tree;

use std::time::{Duration, Instant};

use crate::{Error, Image, Mappings, Outline};
use memory::LiveMemory;
use pagemap::{Part, States};

pub(crate) use proc::{allocation_variables, one_line};

pub use call::{Argument, Called, call, find_function};
pub use cgroup::{GroupMemory, group_memory};
pub use fork::{Ended, Fork, ForkPlan, Forked, fork};
use stop::Stop;
pub use touch::Refusal;
pub use tree::{Member, Rollup, Tree, children, command_line, own_cpu_time, rollup};

/// How long [`freeze`] waits for the threads of a target to stop, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A target that stands still, and its image.
///
/// It goes on when this value is dropped, or rbloat ends in whatever way.
pub struct Frozen {
    image: Image<'static>,
    stop: Stop,
    since: Instant,
}

/// What is left of a [`Frozen`] target when it goes on.
#[derive(Debug)]
pub struct Thawed {
    /// What the kernel said of it.
    pub outline: Outline,
    /// How long it stood: from the first thread's stop to the last one's going on.
    pub pause: Duration,
}

/// Stops every thread of `pid` and reads what the kernel says of it, page states before anything
/// else. Nothing is written to the target.
///
/// Where the kernel keeps the page states from us (to another user they need CAP_DAC_READ_SEARCH
/// beside CAP_SYS_PTRACE), the image has none: then a walk may map pages of zeros into the target.
///
/// # Errors
/// Where there is no such process, it has no memory, it is traced already, the kernel refuses, or
/// a thread does not stop within `patience`. The target goes on then.
pub fn freeze(pid: i32, patience: Duration) -> Result<Frozen, Error> {
    stop_and_look(pid, patience, Part::All)?.complete()
}

/// A target that stands still, with a part of its page states.
struct Looked {
    pid: i32,
    before: Mappings,
    outline: Outline,
    part: Part,
    stop: Stop,
    since: Instant,
}

fn stop_and_look(pid: i32, patience: Duration, part: Part) -> Result<Looked, Error> {
    proc::check_has_memory(pid)?;
    let before = proc::mappings(pid, true)?;
    let since = Instant::now();
    let stop = Stop::all_threads(pid, patience)?;
    let States { mappings, pages, part } = pagemap::read(pid, &before, part)?;
    let threads = stop.threads()?;
    let process = proc::process(pid)?;
    let outline = Outline { process, mappings, pages, threads, ..Outline::default() };
    Ok(Looked { pid, before, outline, part, stop, since })
}

impl Looked {
    /// With the states of all its pages.
    fn complete(self) -> Result<Frozen, Error> {
        let Self { pid, before, mut outline, part, stop, since } = self;
        if part != Part::All {
            let States { mappings, pages, .. } = pagemap::read(pid, &before, Part::All)?;
            (outline.mappings, outline.pages) = (mappings, pages);
        }
        Ok(Frozen { image: Image::new(outline, LiveMemory::new(pid)), stop, since })
    }
}

impl Frozen {
    /// The target's image. It is of one instant as long as this value lives.
    #[must_use]
    pub fn image(&self) -> &Image<'static> {
        &self.image
    }

    /// Lets the target go on.
    ///
    /// # Errors
    /// Where it ended, or became another program, while it stood: what was read is worth nothing.
    pub fn thaw(self) -> Result<Thawed, Error> {
        self.stop.check_intact()?;
        drop(self.stop);
        Ok(Thawed { outline: self.image.outline, pause: self.since.elapsed() })
    }
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
    let outline = Outline { process, mappings, ..Outline::default() };
    Ok(Image::new(outline, LiveMemory::new(pid)))
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
