//! Real-time priority for the length of a pause, so that a busy machine does not lengthen it.
//!
//! A thread that waits for a processor while others compute waits for some of their time slices, again each
//! time it has used up its own. Both sides of a pause suffer from that: our thread, and the thread of the
//! target that makes the forked copy. We raise our own thread where we may (CAP_SYS_NICE, and a control group
//! with a real-time budget); without that right nothing here has any effect.
//!
//! The target's thread gets our priority by *priority inheritance*: a helper thread of ours waits for a PI
//! futex that names the target's thread as its owner, so the kernel runs the owner at the waiter's priority
//! (`attach_to_pi_owner` in kernel/futex/pi.c). Nothing of the target is changed: when the helper ends, however
//! rbloat ends, the kernel takes the priority back.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::ClockId;

use crate::proc::time_of;

/// The lowest real-time priority: above all that compute, below all that were given one on purpose.
const LOWEST: i32 = 1;
/// The priority of threads that read a forked copy, in their turns.
pub(super) const READING: i32 = LOWEST;
/// The priority of threads that must run while others read.
pub(super) const ABOVE_READING: i32 = READING + 1;
/// Bytes of a helper's stack.
const STACK: usize = 64 << 10;
/// The longest time for which a thread of the target keeps a raised priority.
const MAX_BOOST: Duration = Duration::from_millis(100);

/// Sets the scheduling policy of a thread of ours. By the system call: musl's function refuses.
fn set_scheduler(tid: i32, policy: i32, parameters: libc::sched_param) -> Result<(), Errno> {
    // SAFETY: the parameters outlive the call.
    let set =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const parameters) };
    Errno::result(set).map(drop)
}

/// Sets a real-time priority, if the kernel allows it. Threads that this thread starts are ordinary ones.
pub(super) fn raise(tid: i32, sched_priority: i32) -> Result<(), Errno> {
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    set_scheduler(tid, policy, libc::sched_param { sched_priority })
}

pub(super) fn lower(tid: i32) {
    let _ = set_scheduler(tid, libc::SCHED_OTHER, libc::sched_param { sched_priority: 0 });
}

/// Returns true if our threads may have a real-time priority.
pub(crate) fn may_be_raised() -> bool {
    let raised = raise(0, LOWEST).is_ok();
    if raised {
        lower(0);
    }
    raised
}

/// Real-time priority of the calling thread, if it may have one, until this value is dropped.
pub struct RealTimePriority {
    raised: bool,
    /// A priority belongs to one thread.
    not_send: PhantomData<*const ()>,
}

impl RealTimePriority {
    /// Returns a value that changes nothing.
    pub(crate) fn none() -> Self {
        Self { raised: false, not_send: PhantomData }
    }

    /// Raises the priority of the calling thread.
    #[must_use]
    pub fn raise() -> Self {
        Self { raised: raise(0, LOWEST).is_ok(), not_send: PhantomData }
    }

    /// Raises the priority of the calling thread above that of threads with a [`ReadingPriority`](crate::ReadingPriority), which may
    /// use all processors.
    #[must_use]
    pub fn raise_above_reading() -> Self {
        Self { raised: raise(0, ABOVE_READING).is_ok(), not_send: PhantomData }
    }
}

impl Drop for RealTimePriority {
    fn drop(&mut self) {
        if self.raised {
            lower(0);
        }
    }
}

/// Threads of ours that boost threads of the target to their real-time priority, each one of them.
#[derive(Default)]
pub(crate) struct PiBoosters {
    all: Vec<PiBooster>,
    /// The number of boosters in use.
    used: usize,
}

impl PiBoosters {
    /// Starts `count` boosters; none if we may not have a real-time priority. To be done before a pause.
    pub(crate) fn start(count: usize) -> Self {
        // All are started before the first one is asked if its priority was raised.
        let mut all: Vec<PiBooster> = (0..count).map_while(|_| PiBooster::start()).collect();
        all.retain(|booster| booster.raised.recv() == Ok(true));
        Self { all, used: 0 }
    }

    /// Boosts the thread `tid` of another process to the priority of one booster, if one is left.
    pub(crate) fn boost(&mut self, tid: i32) {
        if let Some(booster) = self.all.get(self.used) {
            let _ = booster.boosted.try_send(tid);
            self.used += 1;
        }
    }

    /// Takes all priorities back at once.
    pub(crate) fn take_back(&self) {
        self.all[..self.used].iter().for_each(PiBooster::take_back);
    }
}

/// A thread of ours that boosts another one to its real-time priority. It ends by itself: when this value is dropped, or
/// [`MAX_BOOST`] after the boost, since nothing else wakes a thread that waits for a PI futex.
struct PiBooster {
    boosted: SyncSender<i32>,
    raised: Receiver<bool>,
    helper: Arc<Helper>,
}

#[derive(Default)]
struct Helper {
    tid: AtomicI32,
    ended: AtomicBool,
    /// The PI futex: the id of the thread that owns it.
    owner: AtomicU32,
}

impl PiBooster {
    fn start() -> Option<Self> {
        let (boosted, receiver) = sync_channel(1);
        let (started, raised) = sync_channel(1);
        let helper = Arc::new(Helper::default());
        let own = Arc::clone(&helper);
        let spawned = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            // SAFETY: gettid takes nothing.
            own.tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let raised = raise(0, LOWEST).is_ok();
            let _ = started.send(raised);
            if raised && let Ok(tid) = receiver.recv() {
                own.wait_for(tid);
            }
            own.ended.store(true, Ordering::SeqCst);
        });
        spawned.ok().map(|_| Self { boosted, raised, helper })
    }

    fn take_back(&self) {
        if !self.helper.ended.load(Ordering::SeqCst) {
            lower(self.helper.tid.load(Ordering::SeqCst));
        }
    }
}

impl Helper {
    /// Waits for the futex whose owner is, by its value, the thread `tid`, which never releases it.
    fn wait_for(&self, tid: i32) {
        self.owner.store(tid.cast_unsigned(), Ordering::SeqCst);
        // FUTEX_LOCK_PI's time-out is a time of this clock.
        let until = TimeSpec::from(time_of(ClockId::CLOCK_REALTIME) + MAX_BOOST);
        // SAFETY: the futex and the time-out live as long as the call. Without FUTEX_PRIVATE_FLAG, since the
        // owner is a thread of another process.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.owner.as_ptr(),
                libc::FUTEX_LOCK_PI,
                0,
                &raw const until,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The priority that the kernel runs a thread at, by the 18th field of its stat: -2 at real-time priority 1.
    fn priority(tid: i32) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1;
        fields.split(' ').nth(15).unwrap().parse().unwrap()
    }

    #[test]
    fn threads_of_another_process_are_boosted_and_the_boost_is_taken_back() {
        if !may_be_raised() {
            testkit::skip("this user or control group may have no real-time priority");
            return;
        }
        let start = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut sleepers = [start(), start()];
        let pids = [0, 1].map(|at: usize| sleepers[at].id().cast_signed());
        let before = pids.map(priority);
        // A third thread is not boosted.
        let mut boosters = PiBoosters::start(2);
        [pids[0], pids[1], pids[0]].into_iter().for_each(|pid| boosters.boost(pid));
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut boosted = false;
        while !boosted && Instant::now() < deadline {
            boosted = pids.map(priority) == [-2, -2];
            let have_ended = boosters.all.iter().all(|it| it.helper.ended.load(Ordering::SeqCst));
            if have_ended {
                // This thread did not run for so long that they gave up.
                boosters = PiBoosters::start(2);
                pids.into_iter().for_each(|pid| boosters.boost(pid));
            }
        }
        boosters.take_back();
        let after = pids.map(priority);
        sleepers.iter_mut().for_each(|sleeper| sleeper.kill().unwrap());
        sleepers.iter_mut().for_each(|sleeper| drop(sleeper.wait()));
        assert!(boosted, "no thread was boosted");
        assert_eq!(after, before);
    }

    #[test]
    fn a_thread_with_real_time_priority_is_an_ordinary_one_afterwards() {
        // SAFETY: gettid takes nothing.
        let own = unsafe { libc::gettid() };
        let before = priority(own);
        drop(RealTimePriority::raise());
        assert_eq!(priority(own), before);
    }

    #[test]
    fn boosters_without_a_thread_to_boost_end() {
        let boosters = PiBoosters::start(3);
        let helpers: Vec<_> = boosters.all.iter().map(|it| Arc::clone(&it.helper)).collect();
        drop(boosters);
        while !helpers.iter().all(|helper| helper.ended.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
    }
}
