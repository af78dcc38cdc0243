//! A forked copy: a process with the target's memory at one instant, which is read while the target runs on.
//!
//! A thread of the target makes the copy by clone(2). The kernel shares all pages until one of both writes. The copy
//! never runs.
//!
//! - CLONE_FILES: the copy keeps no file open that the target closes meanwhile, and no lock.
//! - No signal at its end: the target is not told, and does not see the copy when it waits for its children.
//! - A bare system call: no hook of the program runs.
//!
//! The copy ends however rbloat ends. It starts stopped, since it is traced from its birth; with PTRACE_O_EXITKILL it
//! dies with rbloat; and until that is set, its stack contains only the address of `_exit`. What remains is a zombie,
//! some bytes in the kernel, which only its parent, the target, can reap. So rbloat makes the target wait for it: at the
//! end, also if a signal asks rbloat to end meanwhile, or else in the next run, if rbloat was killed.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use image::{Image, ProcessState, Target};
use image::{LiveMemory, StoppedProcess};
use linux::arch::Registers;
use linux::proc::{self, Rollup};
use linux::tracee::{Wait, wait, wait_for_stop};
use linux::{Address, Identity, Mappings, Pages, PauseFactors, SystemCall, both};
use linux::{BlockedSignals, PageScope, Pagemap, ReadingPriority, Stop};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::handle::ProcessHandle;
use crate::handler::{BorrowedHandler, Functions, at_a_safe_point};
use crate::room::{MemoryGuard, MemoryLimits, MemoryNeed};
use crate::{Error, Refusal, TraceFailure, safe_point, seccomp};

/// The flags of clone(2), as described above.
const CLONE_FLAGS: u64 = libc::CLONE_FILES as u64;
/// The time in which a killed copy must end: the kernel frees its pages meanwhile.
const DYING: Duration = Duration::from_secs(10);
/// The time for which a thread is sought that can reap an ended copy.
const REAPING: Duration = Duration::from_millis(500);
/// The time between tries.
const POLL: Duration = Duration::from_millis(1);

/// The facts that must be known before the target is stopped to be copied.
#[derive(Debug)]
pub struct ForkPlan {
    /// The signal whose handler is borrowed.
    signal: i32,
    functions: Functions,
    factors: PauseFactors,
    /// The limits to be watched while the copy is read, and their room before; `None` if there is room for everything
    /// that the target can write.
    scarce: Option<(MemoryLimits, u64)>,
    /// The mappings with the kernel's flags, for the first copy that is made soon.
    before: Mutex<Option<Mappings>>,
}

/// A copy of a process that runs on, and its image at the instant of the fork.
///
/// The copy ends when this value is dropped, or when rbloat ends, however it ends. Until then SIGINT, SIGTERM and SIGHUP
/// wait, since they would leave the target with a zombie.
pub struct ForkedCopy {
    image: Image<'static>,
    /// Present if memory is scarce. Dropped before the copy is ended.
    guard: Option<MemoryGuard>,
    copy: CopyProcess,
    stack: Address,
    pause: Duration,
    /// The copied bytes before the copy was first made to run something, which copies pages, too.
    copied_bytes: Option<u64>,
    priority: ReadingPriority,
    /// Dropped last, after the copy has ended.
    _blocked: BlockedSignals,
}

/// The remains of a [`ForkedCopy`] that has ended.
#[derive(Debug)]
pub struct EndedCopy {
    /// The kernel's account of the target at the fork.
    pub state: ProcessState,
    /// The pause of the target.
    pub pause: Duration,
    /// Bytes that the kernel copied while the copy existed, since either process wrote to a page; `None` if unknown.
    pub copied_bytes: Option<u64>,
    /// The reason why the copy is still in the process table, as a zombie, if it is.
    pub left: Option<Refusal>,
}

impl ForkPlan {
    /// Plans a forked copy of the target, which is not touched; `factors` and `limits` are its own. A handler of `signal` that does
    /// nothing is borrowed; rbloat itself will allocate `own_bytes` of memory.
    ///
    /// # Errors
    /// The reason why no copy can be made.
    pub fn make(
        target: &Target,
        factors: PauseFactors,
        limits: &MemoryLimits,
        signal: i32,
        own_bytes: u64,
    ) -> Result<Self, Refusal> {
        // The kernel walks the page tables for the flags.
        let (plan, before) = both(
            || Self::without_flags(target, factors, limits, signal, own_bytes),
            || proc::mappings(target.pid(), true).ok(),
        );
        let plan = plan?;
        if before.as_ref().is_some_and(copies_huge_pages) {
            return Err(Refusal::HugePages);
        }
        Ok(Self { before: Mutex::new(before), ..plan })
    }

    fn without_flags(
        target: &Target,
        factors: PauseFactors,
        limits: &MemoryLimits,
        signal: i32,
        own_bytes: u64,
    ) -> Result<Self, Refusal> {
        let mut scarce = None;
        if let Some(room_bytes) = limits.room_bytes(own_bytes) {
            let need = MemoryNeed::of(&target.counts, factors.mappings);
            if room_bytes < need.fixed_bytes + need.anonymous_bytes {
                let needed_bytes = need.measured_bytes(target.pid());
                if room_bytes < needed_bytes {
                    return Err(Refusal::NoRoom { room_bytes, needed_bytes });
                }
                scarce = Some((limits.clone(), room_bytes));
            }
        }
        let functions = Functions::find(target)?;
        let before = Mutex::default();
        Ok(Self { signal, functions, factors, scarce, before })
    }

    /// The system calls of the target and its copy.
    fn system_calls(&self) -> [SystemCall; 4] {
        let clone = self.functions.clone_call(CLONE_FLAGS);
        let [wait, sigreturn] = reaping_calls(&self.functions);
        [clone, wait, SystemCall::any(libc::SYS_exit_group), sigreturn]
    }
}

/// Returns true if a fork copies pages of hugetlbfs.
fn copies_huge_pages(mappings: &Mappings) -> bool {
    mappings.iter().any(|it| it.is_hugetlb && !it.shared && !it.not_inherited)
}

/// The system calls that reap an ended copy.
fn reaping_calls(functions: &Functions) -> [SystemCall; 2] {
    [functions.system_call(libc::SYS_wait4), SystemCall::any(libc::SYS_rt_sigreturn)]
}

/// Stops every thread of the target that `plan` is for, lets one of them make the copy, and releases them.
///
/// During the pause, only those page states are read that the page tables of the copy lack. The calling thread traces
/// the copy until that ends. After a [`Refusal`] the target continues without a copy. It is unchanged then, except
/// perhaps for [`Refusal::TraceFailed`].
///
/// # Errors
/// If there is no such process, it has no memory, it is traced already, the kernel refuses, or a thread does not stop
/// within `max_pause`; if it has ended, or become another program, since it was planned.
pub fn fork(
    target: &Target,
    max_pause: Duration,
    plan: &ForkPlan,
) -> Result<Result<ForkedCopy, Refusal>, Error> {
    let (pid, program) = (target.pid(), target.program());
    let process = &target.image().state.process;
    let blocked = BlockedSignals::requests_to_end();
    linux::check(pid)?;
    let before = plan.before.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut stopped =
        StoppedProcess::stop(program, process, max_pause, PageScope::NotCopiedByFork, before)?;
    if copies_huge_pages(&stopped.state.mappings) {
        return Ok(Err(Refusal::HugePages));
    }
    let since = stopped.stop.since();
    let expected = since.elapsed() + plan.factors.copy();
    if expected > max_pause {
        return Ok(Err(Refusal::Slow { expected, max_pause }));
    }
    let made = copy_in(&mut stopped, plan, since + max_pause);
    let StoppedProcess { stop, mut state, scope, .. } = stopped;
    let released = stop.release();
    let (child, stack) = match made {
        Ok(made) => made,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let functions = plan.functions;
    let handle = Arc::new(ProcessHandle::open(child));
    let copy = CopyProcess {
        pid: child,
        handle,
        program: program.clone(),
        signal: plan.signal,
        functions,
        ended: false,
    };
    let pause = released?;
    copy.tie_to_us();
    {
        let mut present = present();
        present.copy = Some(Arc::clone(&copy.handle));
        present.end_if_wanted();
    }
    let guard = plan.scarce.as_ref().and_then(|(limits, room)| {
        MemoryGuard::start(limits.clone(), *room, Arc::clone(&copy.handle))
    });
    let priority = ReadingPriority::raise();
    let (pages, memory) = match open_copy(child, &state, scope) {
        Ok(opened) => opened,
        Err(error) => return Err(copy.loss(guard.as_ref()).unwrap_or_else(|| error.into())),
    };
    state.pages = pages;
    let image = Image::new(state, memory);
    let copied_bytes = None;
    let forked =
        ForkedCopy { image, copy, stack, pause, copied_bytes, guard, priority, _blocked: blocked };
    Ok(Ok(forked))
}

/// The copy that exists. Each copy is ended under this lock.
static PRESENT: Mutex<Present> = Mutex::new(Present { copy: None, ends_early: false });

struct Present {
    copy: Option<Arc<ProcessHandle>>,
    /// True if no copy is wanted any more.
    ends_early: bool,
}

impl Present {
    fn end_if_wanted(&self) {
        if let Some(copy) = self.copy.as_ref().filter(|_| self.ends_early) {
            copy.kill();
        }
    }
}

/// Ends the forked copy that another thread reads, and each one that is made later: its reads fail from now on, and it is
/// lost.
pub fn end_copy_early() {
    let mut present = present();
    present.ends_early = true;
    present.end_if_wanted();
}

fn present() -> MutexGuard<'static, Present> {
    PRESENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns all page states of the copy `pid`, and its memory. `state` has the page states of `scope`.
fn open_copy(
    pid: i32,
    state: &ProcessState,
    scope: PageScope,
) -> Result<(Option<Pages>, LiveMemory), linux::Error> {
    let pages = match &state.pages {
        Some(pages) if scope == PageScope::NotCopiedByFork => {
            Some(Pagemap::open(pid)?.complete(&state.mappings, pages)?)
        }
        pages => pages.clone(),
    };
    Ok((pages, LiveMemory::open(pid)?))
}

impl ForkedCopy {
    /// The target's image at the instant of the fork.
    ///
    /// Mappings that a fork does not copy (MADV_DONTFORK) cannot be read, and mappings that it empties
    /// (MADV_WIPEONFORK) read as zeros.
    #[must_use]
    pub fn image(&self) -> &Image<'static> {
        &self.image
    }

    /// Returns the resident bytes of the copy that no file backs. Until the copy is made to run a function, they equal
    /// the target's at the fork.
    ///
    /// # Errors
    /// If the copy was killed.
    pub fn anonymous_bytes(&self) -> Result<u64, Error> {
        self.copy.rollup().map(|rollup| rollup.anonymous_bytes).ok_or_else(|| self.killed())
    }

    pub(crate) fn count_copied(&mut self) {
        if let (None, Some(pages)) = (self.copied_bytes, &self.image.state.pages) {
            // The copy shares a page with no other process if the page was copied for any reason.
            let pagemap = Pagemap::open(self.copy.pid).ok();
            self.copied_bytes = pagemap.and_then(|pagemap| pagemap.exclusive_bytes(pages));
        }
    }

    /// The copy's process id, and the stack that it would have run on.
    pub(crate) fn pid_and_stack(&self) -> (i32, Address) {
        (self.copy.pid, self.stack)
    }

    fn killed(&self) -> Error {
        Error::CopyKilled { pid: self.copy.program.pid() }
    }

    /// Returns the error for a function that the copy was not made to run.
    pub(crate) fn not_run(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::TraceFailed { why: TraceFailure::Kernel(Errno::ESRCH), .. } => self.killed(),
            refusal => Error::CopyNotRun { pid: self.copy.program.pid(), refusal },
        }
    }

    /// Ends the copy, and lets the target reap it, without the target noticing.
    ///
    /// # Errors
    /// If the copy was killed, by another process or by us since memory got scarce. Then all memory that was read from
    /// it is worthless.
    pub fn end(mut self) -> Result<EndedCopy, Error> {
        self.count_copied();
        let copied_bytes = self.copied_bytes;
        if let Some(loss) = self.copy.loss(self.guard.take().as_ref()) {
            return Err(loss);
        }
        let left = self.copy.end().err();
        drop(self.priority);
        Ok(EndedCopy { state: self.image.state, pause: self.pause, copied_bytes, left })
    }
}

/// The process of a forked copy, traced by us.
struct CopyProcess {
    pid: i32,
    handle: Arc<ProcessHandle>,
    /// The program that it was copied from.
    program: Identity,
    signal: i32,
    functions: Functions,
    ended: bool,
}

impl CopyProcess {
    /// Makes sure that it dies with us, and before any other process if memory runs out.
    fn tie_to_us(&self) {
        let child = Pid::from_raw(self.pid);
        if matches!(wait_for_stop(self.pid, DYING), Wait::Stopped(_)) {
            let _ = ptrace::setoptions(child, ptrace::Options::PTRACE_O_EXITKILL);
        }
        let _ = fs::write(format!("/proc/{}/oom_score_adj", self.pid), "1000");
    }

    /// Returns the reason why it cannot be read any more; `None` if it can.
    fn loss(&self, guard: Option<&MemoryGuard>) -> Option<Error> {
        let pid = self.program.pid();
        if guard.is_some_and(MemoryGuard::has_ended_copy) {
            return Some(Error::CopyEndedForRoom { pid });
        }
        if !matches!(wait(self.pid), Wait::Running) {
            return Some(Error::CopyKilled { pid });
        }
        match proc::readable_state(self.pid, self.pid) {
            Ok(Some('t')) => None,
            Ok(_) => Some(Error::CopyKilled { pid }),
            Err(error) => Some(error.into()),
        }
    }

    /// Returns the sums over its mappings; `None` if it was killed.
    fn rollup(&self) -> Option<Rollup> {
        proc::rollup(self.pid).ok()
    }

    fn end(&mut self) -> Result<(), Refusal> {
        self.ended = true;
        present().copy = None;
        self.handle.kill();
        let deadline = Instant::now() + DYING;
        while !matches!(wait_for_stop(self.pid, DYING), Wait::Gone) && Instant::now() < deadline {}
        reap(&self.program, self.signal, &self.functions)
    }
}

impl Drop for CopyProcess {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.end();
        }
    }
}

/// Lets one of the stopped threads make the copy, and begin before `deadline`. Returns the copy's process id in our namespace, and its stack.
fn copy_in(
    stopped: &mut StoppedProcess,
    plan: &ForkPlan,
    deadline: Instant,
) -> Result<(i32, Address), Refusal> {
    let StoppedProcess { stop, state, pagemap, .. } = stopped;
    let pid = state.process.pid;
    let mut refusal = Refusal::NoSafePoint;
    for (tid, stack_pointer) in safe_threads(stop, pagemap)? {
        let mappings = &state.mappings;
        match safe_point::check_handler(pid, tid, plan.signal, mappings, stack_pointer) {
            Ok(()) => {}
            Err(reason) => {
                refusal = reason;
                continue;
            }
        }
        if !seccomp::allows(pid, tid, &plan.system_calls()) {
            refusal = Refusal::Seccomp;
            continue;
        }
        stop.hurry(tid);
        let mut pending = 0;
        let made = BorrowedHandler::take(pid, tid, plan.signal, true, deadline, &mut pending)
            .and_then(|thread| thread.make_process(&plan.functions, CLONE_FLAGS, &mut pending));
        stop.set_pending_signal(tid, pending);
        return made;
    }
    Err(refusal)
}

/// Returns the stopped threads at safe points, with their stack pointers, in the order in which to try them.
fn safe_threads(stop: &Stop, pagemap: &Pagemap) -> Result<Vec<(i32, Address)>, Refusal> {
    let mut threads = Vec::new();
    for (tid, state) in stop.stopped() {
        if state.group_stop {
            return Err(Refusal::Suspended);
        }
        let Ok(registers) = Registers::read(tid) else { continue };
        if state.signal == 0
            && let Some(rank) = safe_point::rank(&registers)
        {
            threads.push((rank, tid, registers.stack_pointer()));
        }
    }
    safe_point::sort(&mut threads, pagemap);
    Ok(threads.into_iter().map(|(_, tid, stack_pointer)| (tid, stack_pointer)).collect())
}

/// Lets the target reap ended copies, including those that a killed rbloat left.
///
/// # Errors
/// The reason, if some could not be reaped.
fn reap(program: &Identity, signal: i32, functions: &Functions) -> Result<(), Refusal> {
    let deadline = Instant::now() + REAPING;
    let step = "let the process remove all ended copies";
    let still_there = Refusal::failed(step)(Errno::ETIMEDOUT);
    // Only clone(2) as it is used here creates children whose end sends no signal.
    let ended_copies = || proc::ended_without_signal(program.pid());
    loop {
        let zombies = ended_copies();
        if zombies.is_empty() {
            return Ok(());
        }
        match reap_these(program, signal, functions, &zombies) {
            Err(refusal) if Instant::now() >= deadline => return Err(refusal),
            Ok(()) if ended_copies().is_empty() => return Ok(()),
            Ok(()) if Instant::now() >= deadline => return Err(still_there),
            _ => std::thread::sleep(POLL),
        }
    }
}

/// Lets the target reap these ended copies.
fn reap_these(
    program: &Identity,
    signal: i32,
    functions: &Functions,
    zombies: &[i32],
) -> Result<(), Refusal> {
    let system_calls = reaping_calls(functions);
    at_a_safe_point(program, signal, true, &system_calls, |thread, pending| {
        for &zombie in zombies {
            // Only a child whose end sends no signal. Another rbloat may have let the copy be reaped since, and a child of the
            // program's own may have its number now, for which the program waits.
            let options = (libc::WNOHANG | libc::__WCLONE) as u64;
            let arguments = [zombie as u64, 0, options, 0, 0, 0];
            match thread.system_call(functions, ("wait4", libc::SYS_wait4), arguments, pending) {
                Ok(_) | Err(Refusal::Kernel { errno: Errno::ECHILD, .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child of the target's own that had got the number of a copy was reaped, and the target waited for it in vain (ECHILD).
    #[test]
    fn a_child_of_the_targets_own_is_left_to_it() {
        let mut target = testkit::Target::bare_ruby(
            "Thread.new { sleep }
             child = fork { exit!(7) }
             sleep 0.01 until File.read(\"/proc/#{child}/stat\").include?(') Z ')
             puts \"ready {\\\"child\\\": #{child}}\"; $stdout.flush; $stdin.gets
             Process.wait(child)
             puts \"ready {\\\"status\\\": #{$?.exitstatus}}\"; $stdout.flush; $stdin.read",
        );
        let child = i32::try_from(target.number("child")).unwrap();
        testkit::wait_until_asleep(target.pid());
        let examined = Target::open(target.pid(), linux::WantedVariables::default()).unwrap();
        let functions = Functions::find(&examined).unwrap();
        let reaped = reap_these(examined.program(), libc::SIGVTALRM, &functions, &[child]);
        assert!(reaped.is_ok(), "{reaped:?}");
        target.tell("");
        assert_eq!(target.next_truth()["status"], 7);
        assert!(target.finish());
    }

    /// The guard may end a copy before its memory was opened. That was reported as an unreadable file of /proc.
    #[test]
    fn a_copy_that_ends_before_it_is_read_is_lost() {
        let own = std::process::id().cast_signed();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let pid = child.id().cast_signed();
        assert!(open_copy(pid, &ProcessState::default(), PageScope::All).is_err());
        let target = Target::open(own, linux::WantedVariables::default()).unwrap();
        let (functions, program) = (Functions::find(&target).unwrap(), target.program().clone());
        let handle = Arc::new(ProcessHandle::open(pid));
        let copy = CopyProcess { pid, handle, program, signal: 0, functions, ended: true };
        assert!(matches!(copy.loss(None), Some(Error::CopyKilled { pid }) if pid == own));
    }
}
