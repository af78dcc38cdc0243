//! Safe points: places where a thread of the target may be made to run another function.

use std::ops::Range;
use std::time::{Duration, Instant};

use linux::Pagemap;
use linux::arch::{Cpu, Registers, SIGNAL_FRAME_BYTES, system_calls};
use linux::{Address, Backing, Mappings, proc};

use crate::Refusal;

/// Bytes that must be free below a thread's stack pointer: for the kernel's frame (11 KiB on a CPU with AMX), for the
/// frame of another signal on top of it, and for the function.
const STACK_ROOM: u64 = 64 << 10;

/// Bytes that are written below a signal frame or lost by aligning it.
const BELOW_FRAME: u64 = 128;
/// The number of threads among which one with a stack of exclusive pages is sought.
const MAX_STACKS: usize = 64;

/// The number of threads that [`wait_for_safe_point`] looks at, and the time between two looks.
const MAX_POLLED: usize = 64;
const POLL: Duration = Duration::from_millis(1);

/// System calls that wait and that no allocator makes. First those that go on after a signal
/// ([`Registers::at_restart`]), then those that return EINTR. futex(2) has a rule of its own.
const WAITING_CALLS: [Option<i64>; 18] = [
    Some(libc::SYS_wait4),
    Some(libc::SYS_waitid),
    Some(libc::SYS_accept),
    Some(libc::SYS_accept4),
    Some(libc::SYS_read),
    Some(libc::SYS_recvfrom),
    Some(libc::SYS_recvmsg),
    Some(libc::SYS_nanosleep),
    Some(libc::SYS_clock_nanosleep),
    system_calls::POLL,
    Some(libc::SYS_ppoll),
    system_calls::SELECT,
    Some(libc::SYS_pselect6),
    system_calls::EPOLL_WAIT,
    Some(libc::SYS_epoll_pwait),
    system_calls::PAUSE,
    Some(libc::SYS_rt_sigsuspend),
    // A thread that was stopped in poll(2) or in a wait with a timeout, such as by an earlier freeze, goes on with it in this call. Its
    // arguments are those of the wait.
    Some(libc::SYS_restart_syscall),
];

/// FUTEX_WAIT and FUTEX_WAIT_BITSET of linux/futex.h, without their flags.
const FUTEX_WAIT: u64 = 0;
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_COMMAND: u64 = 0x7f;
/// The value of a lock that is held and waited for, in glibc's lowlevellock.h and in the locks of other allocators. A
/// thread that waits for it may be inside an allocator. A thread that waits for an event (a condition, a semaphore,
/// a thread's end) waits for another value, and holds no allocator's lock.
const LOCKED_AND_WAITED_FOR: u64 = 2;

/// Returns the extent to which a stopped thread with these registers would notice a signal, 0 being the least; `None`
/// if it is not at a safe point.
pub(crate) fn rank(registers: &Registers) -> Option<usize> {
    let (call, [_, second, third]) = registers.interrupted_call()?;
    rank_of_call(call, second, third)
}

/// Like [`rank`], by the number of the system call and its second and third argument.
fn rank_of_call(call: i64, second: u64, third: u64) -> Option<usize> {
    let is_futex_wait = matches!(second & FUTEX_COMMAND, FUTEX_WAIT | FUTEX_WAIT_BITSET);
    let waits_for_lock = is_futex_wait && third & 0xffff_ffff == LOCKED_AND_WAITED_FOR;
    if call == libc::SYS_futex {
        return (is_futex_wait && !waits_for_lock).then_some(0);
    }
    // It may be futex(2) that goes on.
    if call == libc::SYS_restart_syscall && waits_for_lock {
        return None;
    }
    WAITING_CALLS.iter().position(|&waiting| waiting == Some(call)).map(|rank| rank + 1)
}

/// Returns the [`rank`] of a thread that is not stopped, and its stack pointer, from /proc.
pub(crate) fn rank_running(pid: i32, tid: i32) -> Option<(usize, Address)> {
    let line = proc::read(pid, &format!("task/{tid}/syscall")).ok()?;
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split_ascii_whitespace();
    let call = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (_first, second, third) = (argument()?, argument()?, argument()?);
    let _others = (argument()?, argument()?, argument()?);
    Some((rank_of_call(call, second, third)?, Address(argument()?)))
}

/// Waits at most the time `longest` until a thread of process `pid` is at a safe point and would notice `signal`, and returns true then.
/// The process runs on meanwhile.
#[must_use]
pub fn wait_for_safe_point(pid: i32, signal: i32, longest: Duration) -> bool {
    let since = Instant::now();
    loop {
        let tids = proc::thread_ids(pid).unwrap_or_default();
        if tids.iter().take(MAX_POLLED).any(|&tid| would_notice(pid, tid, signal)) {
            return true;
        }
        if tids.is_empty() || since.elapsed() >= longest {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Returns true if the thread, which is not stopped, is at a safe point and does not block `signal`.
fn would_notice(pid: i32, tid: i32, signal: i32) -> bool {
    rank_running(pid, tid).is_some()
        && proc::signal_sets(pid, tid).is_some_and(|signals| !signals.blocks(signal))
}

/// A thread that may be interrupted: its rank, its id, and its stack pointer.
pub(crate) type Candidate = (usize, i32, Address);

/// Sorts candidates by rank, then moves one to the front whose signal frame copies no page, if there is one among the
/// first [`MAX_STACKS`]: then the process shares as much memory with others as before.
pub(crate) fn sort(candidates: &mut [Candidate], pagemap: &Pagemap) {
    candidates.sort_unstable();
    let is_own = |&(_, _, at): &Candidate| pagemap.are_exclusive(&frame_below(at));
    if let Some(own) = candidates.iter().take(MAX_STACKS).position(is_own) {
        candidates[..=own].rotate_right(1);
    }
}

/// Returns the memory that is written for a thread with this stack pointer: the frame of a signal handler, and the
/// bytes below it.
fn frame_below(stack_pointer: Address) -> Range<Address> {
    // SAFETY: getauxval takes a number and returns one.
    let size = match unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } {
        0 => SIGNAL_FRAME_BYTES,
        size => size,
    };
    let end = stack_pointer.before(Cpu::OWN.red_zone());
    end.before(size + BELOW_FRAME)..end
}

/// Fails if `signal` would not reach the target's own handler in the thread `tid`, or if the thread's stack has no
/// room for its frame.
pub(crate) fn check_handler(
    pid: i32,
    tid: i32,
    signal: i32,
    mappings: &Mappings,
    stack_pointer: Address,
) -> Result<(), Refusal> {
    let signals = proc::signal_sets(pid, tid).ok_or(Refusal::NoSafePoint)?;
    if !signals.catches(signal) {
        return Err(Refusal::NoHandler { signal });
    }
    if signals.blocks(signal) || room_below(mappings, stack_pointer) < STACK_ROOM {
        return Err(Refusal::NoSafePoint);
    }
    Ok(())
}

/// Returns the bytes of the stack's mapping below the stack pointer; 0 if it is not in a stack.
fn room_below(mappings: &Mappings, stack_pointer: Address) -> u64 {
    let is_stack = |range: &Range<Address>| range.contains(&stack_pointer);
    mappings
        .find(stack_pointer)
        .filter(|mapping| {
            let is_memory = matches!(mapping.backing, Backing::Anonymous | Backing::Stack);
            mapping.writable && is_memory && is_stack(&mapping.range)
        })
        .map_or(0, |mapping| stack_pointer - mapping.range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(call: i64, second: u64, third: u64) -> Registers {
        Registers::waiting_in(call, [0, second, third])
    }

    #[test]
    fn a_thread_that_waits_for_an_event_is_at_a_safe_point_and_one_that_waits_for_a_lock_is_not() {
        let private = 0x80;
        let realtime = 0x100;
        let wait = |operation, value| rank(&waiting(libc::SYS_futex, operation, value));
        assert_eq!(wait(FUTEX_WAIT | private, 0), Some(0));
        assert_eq!(wait(FUTEX_WAIT_BITSET | private | realtime, 4242), Some(0));
        assert_eq!(wait(FUTEX_WAIT | private, 2), None, "a lock");
        assert_eq!(wait(FUTEX_WAIT | private, 0xdead_0000_0002), None, "only 32 bits count");
        assert_eq!(wait(1 | private, 1), None, "FUTEX_WAKE does not wait");
    }

    #[test]
    fn a_wait_that_goes_on_after_a_stop_is_a_safe_point_unless_it_may_be_for_a_lock() {
        let goes_on = |second, third| rank(&waiting(libc::SYS_restart_syscall, second, third));
        assert!(goes_on(1, 0xffff_ffff).is_some(), "poll(2) of one descriptor");
        assert!(goes_on(FUTEX_WAIT_BITSET, 0).is_some(), "an event, for a time");
        assert_eq!(goes_on(FUTEX_WAIT, 2), None, "a lock, for a time");
    }

    #[test]
    fn calls_of_allocators_and_running_threads_are_no_safe_points() {
        for call in [libc::SYS_mmap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_write, -1] {
            assert_eq!(rank(&waiting(call, 0, 0)), None, "{call}");
        }
        assert!(rank(&waiting(libc::SYS_read, 0, 0)).is_some());
        let done = waiting(libc::SYS_read, 0, 0).with_return_value(17);
        assert_eq!(rank(&done), None, "a call that has returned");
    }

    #[test]
    fn a_stack_near_its_end_has_no_room() {
        let stack = linux::Mapping::anonymous(Address(0x10_0000)..Address(0x20_0000));
        let mappings = Mappings::new(vec![stack]);
        assert_eq!(room_below(&mappings, Address(0x10_1000)), 0x1000);
        assert_eq!(room_below(&mappings, Address(0x30_0000)), 0);
    }

    /// A process that computed 80 % of its time was mostly met while it computed. That a thread sleeps is not enough: the one that
    /// jemalloc has in the background sleeps all the time, and blocks all signals.
    #[test]
    fn a_thread_that_would_notice_the_signal_is_told_from_others() {
        let pid = std::process::id() as i32;
        let sleeper = |blocks: bool| {
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // SAFETY: the set is on this stack, and gettid takes nothing.
                unsafe {
                    let mut signals = std::mem::zeroed();
                    libc::sigemptyset(&raw mut signals);
                    libc::sigaddset(&raw mut signals, libc::SIGVTALRM);
                    let how = if blocks { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
                    libc::pthread_sigmask(how, &raw const signals, std::ptr::null_mut());
                    tell.send(libc::gettid()).unwrap();
                }
                std::thread::sleep(Duration::MAX);
            });
            let tid = told.recv().unwrap();
            while rank_running(pid, tid).is_none() {
                std::thread::yield_now();
            }
            would_notice(pid, tid, libc::SIGVTALRM)
        };
        assert!(sleeper(false) && !sleeper(true));
        assert!(wait_for_safe_point(pid, libc::SIGVTALRM, Duration::MAX));
        let mut computes =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let other = computes.id() as i32;
        assert!(!wait_for_safe_point(other, libc::SIGVTALRM, Duration::ZERO));
        computes.kill().unwrap();
        computes.wait().unwrap();
        assert!(!wait_for_safe_point(other, libc::SIGVTALRM, Duration::ZERO));
    }
}
