//! Capture by a clone: the target makes a process that shares nothing with it but its pages, as they
//! stood, copied where either writes. The clone never runs: it is read while the target goes on.
//!
//! It is made with CLONE_FILES, so that it holds no file open that the target closes meanwhile, and no
//! lock; with no signal for its end, so that the target hears nothing of it and its own waiting for
//! children does not see it; by a bare system call, so that no hook of the program runs.
//!
//! Whatever happens to us, it ends: born traced it stands, with PTRACE_O_EXITKILL it dies with us, and
//! before that is set its stack holds nothing but the address of `_exit`. What then is left is a zombie,
//! some bytes of the kernel's, that the target must be made to wait for: by us in the end, also where we
//! are asked to end by a signal meanwhile, or by the next rbloat where we are killed.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::unistd::Pid;
use procfs_core::process::Stat;

use crate::{Address, Error, Image, Mapping, ProcessState};

use super::blocked::Blocked;
use super::memory::LiveMemory;
use super::pagemap::{self, Part};
use super::pause::PauseFactors;
use super::room::{Guard, Limits, Need};
use super::safe_point;
use super::seccomp::{self, Call};
use super::stop::Stop;
use super::touch::{Borrowed, Called, Functions, Refusal};
use super::tracee::{Wait, wait, wait_for_stop};
use super::{Stopped, proc};

/// How it is made: see above.
const CLONE_FLAGS: u64 = libc::CLONE_FILES as u64;
/// How long a clone may take to die: the kernel frees its pages meanwhile.
const DYING: Duration = Duration::from_secs(10);
/// How long we look for a thread that may wait for a dead clone.
const REAPING: Duration = Duration::from_millis(500);
/// Between two looks.
const POLL: Duration = Duration::from_millis(1);

/// What must be known of a target before it is stopped to be cloned.
#[derive(Debug)]
pub struct ForkPlan {
    functions: Functions,
    /// The mappings of those functions: were they others by then, it would be another program.
    code: Vec<Mapping>,
    factors: PauseFactors,
    /// The limits that are to be watched while the clone is read, where what they leave may not be enough, and
    /// what they left.
    scarce: Option<(Limits, u64)>,
}

/// A target that runs on, and its image at the instant when it was cloned.
///
/// The clone ends when this value is dropped, or rbloat ends in whatever way. Until then SIGINT, SIGTERM and
/// SIGHUP wait: the target would be left with a zombie.
pub struct Forked {
    image: Image<'static>,
    /// Where memory is scarce; ended before the clone is.
    guard: Option<Guard>,
    clone: Standin,
    stack: Address,
    pause: Duration,
    /// What the target had changed when the clone was first made to run something, which changes it too.
    copied_bytes: Option<u64>,
    /// Dropped last, when the clone has ended.
    _blocked: Blocked,
}

/// What is left of a [`Forked`] target when its clone has ended.
#[derive(Debug)]
pub struct Ended {
    /// What the kernel said of the target when it was cloned.
    pub state: ProcessState,
    /// How long it stood.
    pub pause: Duration,
    /// Bytes that the kernel copied while the clone was there, for whatever reason; `None` where the kernel
    /// did not tell.
    pub copied_bytes: Option<u64>,
    /// Why the clone's entry in the process table is still there, if it is.
    pub left: Option<Refusal>,
}

impl ForkPlan {
    /// Looks whether the running process of `image` could be cloned, when rbloat itself will take `own_bytes` of
    /// memory; the process is not touched.
    ///
    /// # Errors
    /// Why not.
    pub fn make(image: &Image<'_>, own_bytes: u64) -> Result<Self, Refusal> {
        let pid = image.state.process.pid;
        let mappings = &image.state.mappings;
        let limits = Limits::of(pid);
        let mut scarce = None;
        if let Some(room_bytes) = limits.room_bytes(own_bytes)
            && let Ok(status) = proc::status(pid)
        {
            let need = Need::of(&status, mappings.iter().count() as u64);
            if room_bytes < need.fixed_bytes + need.anonymous_bytes {
                let needed_bytes = need.measured_bytes(pid);
                if room_bytes < needed_bytes {
                    return Err(Refusal::NoRoom { room_bytes, needed_bytes });
                }
                scarce = Some((limits, room_bytes));
            }
        }
        let functions = Functions::find(image)?;
        let code = functions.addresses().into_iter().filter_map(|at| mappings.find(at).cloned());
        let factors = PauseFactors::of(pid, mappings.iter().count());
        Ok(Self { functions, code: code.collect(), factors, scarce })
    }

    /// What the length of the pause depends on.
    #[must_use]
    pub fn factors(&self) -> PauseFactors {
        self.factors
    }

    /// What the target and its clone will ask of the kernel.
    fn calls(&self) -> [Call; 4] {
        let mut clone = self.functions.made(libc::SYS_clone);
        clone.arguments = [Some(CLONE_FLAGS), None, Some(0), Some(0), Some(0), Some(0)];
        let wait = self.functions.made(libc::SYS_wait4);
        [clone, wait, Call::any(libc::SYS_exit_group), Call::any(libc::SYS_rt_sigreturn)]
    }

    fn is_of(&self, state: &ProcessState) -> bool {
        self.code.iter().all(|code| {
            let now = state.mappings.find(code.range.start);
            now.is_some_and(|now| now.range == code.range && now.backing == code.backing)
        })
    }
}

/// Stops every thread of `pid`, lets one make a clone, and lets them go on.
///
/// Of the page states only those are read while it stands that the clone's page tables do not tell. The
/// calling thread traces the clone until that ends. If there is a [`Refusal`], the target goes on without a clone,
/// and nothing was changed in it, unless a thread was [`Refusal::Lost`].
///
/// # Errors
/// Where there is no such process, it has no memory, it is traced already, the kernel refuses, or a thread does
/// not stop within `max_pause`; where it ended, or became another program, while it stood.
pub fn fork(
    pid: i32,
    max_pause: Duration,
    plan: &ForkPlan,
) -> Result<Result<Forked, Refusal>, Error> {
    let blocked = Blocked::requests_to_end();
    proc::check_has_memory(pid)?;
    let mut stopped = super::stop_and_look(pid, max_pause, Part::Uncloned)?;
    let since = stopped.stop.since();
    let expected = since.elapsed() + plan.factors.copy();
    if expected > max_pause {
        return Ok(Err(Refusal::Slow { expected, max_pause }));
    }
    let made = clone_in(&mut stopped, plan);
    let Stopped { stop, mut state, part, .. } = stopped;
    let released = stop.release();
    let (child, stack) = match made {
        Ok(made) => made,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let clone = Standin { pid: child, parent: pid, functions: plan.functions, ended: false };
    let pause = released?;
    clone.hold();
    let guard =
        plan.scarce.as_ref().and_then(|(limits, room)| Guard::start(limits.clone(), *room, child));
    if let Some(pages) = &state.pages
        && part == Part::Uncloned
    {
        state.pages = Some(pagemap::read_clone(child, &state.mappings, pages)?);
    }
    let image = Image::new(state, LiveMemory::open(child)?);
    let copied_bytes = None;
    let forked = Forked { image, clone, stack, pause, copied_bytes, guard, _blocked: blocked };
    Ok(Ok(forked))
}

impl Forked {
    /// The target's image at the instant when it was cloned.
    ///
    /// Of mappings that a clone does not get (MADV_DONTFORK) nothing can be read, and those that it gets
    /// empty (MADV_WIPEONFORK) read as zeros.
    #[must_use]
    pub fn image(&self) -> &Image<'static> {
        &self.image
    }

    /// The resident bytes of the clone that no file backs. Before it is made to run anything they are the
    /// target's as it was cloned.
    ///
    /// # Errors
    /// Where the clone was killed by another.
    pub fn anonymous_bytes(&self) -> Result<u64, Error> {
        let killed = Error::CloneEnded { pid: self.clone.parent };
        self.clone.rollup("Anonymous:").ok_or(killed)
    }

    pub(crate) fn count_copied(&mut self) {
        if self.copied_bytes.is_none() {
            // Whatever the reason, a page that was copied is one that the clone shares with nobody any more.
            let alone = |key| self.clone.rollup(key);
            self.copied_bytes = alone("Private_Dirty:")
                .zip(alone("Private_Clean:"))
                .map(|(dirty, clean)| dirty + clean);
        }
    }

    /// The clone's process id, and the stack that it would have run on.
    pub(crate) fn clone_and_stack(&self) -> (i32, Address) {
        (self.clone.pid, self.stack)
    }

    /// Ends the clone, and lets the target take note of its end, which it does not see.
    ///
    /// # Errors
    /// Where the clone was killed: by another, or by us since memory got scarce. What was read is worth nothing.
    pub fn end(mut self) -> Result<Ended, Error> {
        let pid = self.clone.parent;
        self.count_copied();
        let copied_bytes = self.copied_bytes;
        let was_ended = self.guard.take().is_some_and(|guard| guard.has_ended_copy());
        if was_ended {
            return Err(Error::CloneEndedForRoom { pid });
        }
        if !self.clone.stands() {
            return Err(Error::CloneEnded { pid });
        }
        let left = self.clone.end().err();
        Ok(Ended { state: self.image.state, pause: self.pause, copied_bytes, left })
    }
}

/// A clone that stands in for the target, traced by us.
struct Standin {
    pid: i32,
    parent: i32,
    functions: Functions,
    ended: bool,
}

impl Standin {
    /// Makes sure that it dies with us, and before any other process where memory gets short.
    fn hold(&self) {
        let child = Pid::from_raw(self.pid);
        if matches!(wait_for_stop(self.pid, DYING), Wait::Stopped(_)) {
            let _ = ptrace::setoptions(child, ptrace::Options::PTRACE_O_EXITKILL);
        }
        let _ = fs::write(format!("/proc/{}/oom_score_adj", self.pid), "1000");
    }

    fn stands(&self) -> bool {
        matches!(wait(self.pid), Wait::Running)
            && proc::thread_state(self.pid, self.pid) == Some('t')
    }

    /// A sum over its mappings, in bytes.
    fn rollup(&self, key: &str) -> Option<u64> {
        proc::Rollup::read(self.pid).ok()?.bytes(key)
    }

    fn end(&mut self) -> Result<(), Refusal> {
        self.ended = true;
        // SAFETY: kill takes numbers alone. The process is our tracee: its id is no other's.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let deadline = Instant::now() + DYING;
        while !matches!(wait_for_stop(self.pid, DYING), Wait::Gone) && Instant::now() < deadline {}
        reap(self.parent, &self.functions)
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.end();
        }
    }
}

/// Lets one of the stopped threads make the clone. Returns its process id in our namespace, and its stack.
fn clone_in(stopped: &mut Stopped, plan: &ForkPlan) -> Result<(i32, Address), Refusal> {
    let Stopped { stop, state, pagemap, .. } = stopped;
    if !plan.is_of(state) {
        return Err(Refusal::Lost);
    }
    let pid = state.process.pid;
    let mut refusal = Refusal::NoSafePoint;
    for (tid, stack_pointer) in safe_threads(stop, pagemap)? {
        match safe_point::check_handler(pid, tid, &state.mappings, stack_pointer) {
            Ok(()) => {}
            Err(reason) => {
                refusal = reason;
                continue;
            }
        }
        if !seccomp::allows(pid, tid, &plan.calls()) {
            refusal = Refusal::Seccomp;
            continue;
        }
        stop.hurry(tid);
        let mut pending = 0;
        let cloned = Borrowed::take(pid, tid, &mut pending)
            .and_then(|thread| make_clone(&thread, plan, &mut pending));
        stop.stands_before(tid, pending);
        return cloned;
    }
    Err(refusal)
}

/// The threads that stand at a safe point, with their stack pointers, in the order in which to try them.
fn safe_threads(stop: &Stop, pagemap: &File) -> Result<Vec<(i32, Address)>, Refusal> {
    let mut threads = Vec::new();
    for (tid, standing) in stop.standing() {
        if standing.by_job_control {
            return Err(Refusal::Suspended);
        }
        let Ok(registers) = super::touch::registers(tid) else { continue };
        if standing.signal == 0
            && let Some(rank) = safe_point::rank(&registers)
        {
            threads.push((rank, tid, registers.stack_pointer()));
        }
    }
    safe_point::sort(&mut threads, pagemap);
    Ok(threads.into_iter().map(|(_, tid, stack_pointer)| (tid, stack_pointer)).collect())
}

fn make_clone(
    thread: &Borrowed,
    plan: &ForkPlan,
    pending: &mut i32,
) -> Result<(i32, Address), Refusal> {
    // All that the clone would ever do by itself: return to _exit, whose argument is the flags.
    let (stack, bytes) = thread.copy_stack(plan.functions.exit);
    super::call::write(thread.pid(), stack, &bytes)?;
    let arguments = [CLONE_FLAGS, stack.0, 0, 0, 0, 0];
    let call = ("clone", libc::SYS_clone);
    match thread.system_call(&plan.functions, call, arguments, pending)? {
        Called::Cloned(child) => Ok((child, stack)),
        Called::Returned => Err(Refusal::Lost),
    }
}

/// Lets the target wait for clones that are dead, also such as an rbloat left that was killed.
///
/// Fails where some are left, with the reason.
pub(crate) fn reap(pid: i32, functions: &Functions) -> Result<(), Refusal> {
    let deadline = Instant::now() + REAPING;
    let calls = [functions.made(libc::SYS_wait4), Call::any(libc::SYS_rt_sigreturn)];
    loop {
        let zombies = dead_clones(pid);
        if zombies.is_empty() {
            return Ok(());
        }
        match super::touch::at_a_safe_point(pid, &calls, |thread, pending| {
            for &zombie in &zombies {
                let options = (libc::WNOHANG | libc::__WALL) as u64;
                let arguments = [zombie as u64, 0, options, 0, 0, 0];
                match thread.system_call(functions, ("wait4", libc::SYS_wait4), arguments, pending)
                {
                    // Another rbloat had it wait meanwhile.
                    Ok(_) | Err(Refusal::Kernel { errno: nix::errno::Errno::ECHILD, .. }) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            Ok(())
        }) {
            Err(refusal) if Instant::now() >= deadline => return Err(refusal),
            _ => std::thread::sleep(POLL),
        }
        if Instant::now() >= deadline && !dead_clones(pid).is_empty() {
            return Err(Refusal::Lost);
        }
    }
}

/// The children of `pid` that have ended and whose end sends no signal, by their ids in its own
/// namespace. fork(2) and its like make none of this kind.
fn dead_clones(pid: i32) -> Vec<i32> {
    let is_dead_clone = |child: &i32| {
        proc::parse::<Stat>(*child, "stat")
            .is_ok_and(|stat| stat.state == 'Z' && stat.ppid == pid && stat.exit_signal == Some(0))
    };
    let depth = |pid: i32| proc::status(pid).ok()?.nspid.map(|pids| pids.len());
    let Some(level) = depth(pid) else { return Vec::new() };
    let own_id = |child: i32| proc::status(child).ok()?.nspid?.get(level - 1).copied();
    children(pid).into_iter().filter(is_dead_clone).filter_map(own_id).collect()
}

/// The children of a process, or all processes where the kernel does not keep lists of them.
fn children(pid: i32) -> Vec<i32> {
    let Ok(tids) = proc::threads(pid) else { return Vec::new() };
    let mut all = Vec::new();
    for tid in tids {
        match fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")) {
            Ok(text) => all
                .extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<i32>().ok())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return super::processes().unwrap_or_default();
            }
            Err(_) => {}
        }
    }
    all
}
