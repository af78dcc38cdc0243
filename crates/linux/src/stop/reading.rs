//! More processor time for the threads that read a forked copy.
//!
//! While a forked copy exists, the kernel copies each page that the target changes. So the sooner the copy is read, the less is
//! copied. The processor time that reading takes stays the same.
//!
//! A nice value counts only among the threads of one session (`CONFIG_SCHED_AUTOGROUP`) and one control group, and the target is
//! rarely in ours. A real-time priority counts everywhere, but leaves no time to others. So threads that read have one for half of
//! the time, in short turns: a thread of ours gives it to all of them, and takes it back. However rbloat ends, it ends with them.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};

use super::priority::{ABOVE_READING, READING, lower, raise};
use crate::Companion;

/// The nice value of threads that read: each gets about three times the processor time of an ordinary thread of our session.
const READING_NICE: i32 = -5;
/// The time for which threads that read have a real-time priority, and the time until they have it again. Others wait no longer
/// than that.
const TURN: Duration = Duration::from_millis(5);

thread_local! {
    /// The threads that this one reads with.
    static READERS: RefCell<Option<Arc<Readers>>> = const { RefCell::new(None) };
}

/// More processor time for the calling thread, and for its helpers in [`both`](crate::both) and [`each`](crate::each), than ordinary
/// threads get, until this value is dropped on the same thread. Without the right to it (CAP_SYS_NICE) nothing changes.
pub struct ReadingPriority {
    readers: Option<Arc<Readers>>,
    turns: Option<Companion>,
    /// A priority belongs to one thread.
    not_send: PhantomData<*const ()>,
}

impl ReadingPriority {
    /// Raises the priority of the calling thread, unless the user has set one (nice(1)).
    #[must_use]
    pub fn raise() -> Self {
        let is_ordinary = getpriority_process(None) == Ok(0);
        let is_raised = is_ordinary && setpriority_process(None, READING_NICE).is_ok();
        let readers = is_raised.then(Arc::<Readers>::default);
        let turns = readers.as_ref().and_then(|readers| {
            readers.add(own_tid());
            READERS.set(Some(Arc::clone(readers)));
            turns(Arc::clone(readers))
        });
        Self { readers, turns, not_send: PhantomData }
    }
}

impl Drop for ReadingPriority {
    fn drop(&mut self) {
        drop(self.turns.take());
        if let Some(readers) = self.readers.take() {
            readers.remove(own_tid());
            READERS.set(None);
            let _ = setpriority_process(None, 0);
        }
    }
}

/// The priority that the helpers of a thread are to have.
pub(crate) struct HelperPriority(Option<Arc<Readers>>);

impl HelperPriority {
    /// The priority for helpers of the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        Self(READERS.with_borrow(Option::clone))
    }

    /// Gives it to the calling thread, which ends soon after the returned value is dropped.
    pub(crate) fn take(&self) -> HelperTurn {
        if let Some(readers) = &self.0 {
            // A thread that is started during a turn has an ordinary nice value.
            let _ = setpriority_process(None, READING_NICE);
            readers.add(own_tid());
            READERS.set(Some(Arc::clone(readers)));
        }
        HelperTurn(self.0.clone())
    }
}

/// The time for which a helper is among the threads that read.
pub(crate) struct HelperTurn(Option<Arc<Readers>>);

impl Drop for HelperTurn {
    fn drop(&mut self) {
        if let Some(readers) = &self.0 {
            readers.remove(own_tid());
        }
    }
}

fn own_tid() -> i32 {
    // SAFETY: gettid takes nothing.
    unsafe { libc::gettid() }
}

/// Threads that read the same copy.
#[derive(Default)]
struct Readers(Mutex<State>);

#[derive(Default)]
struct State {
    tids: Vec<i32>,
    /// True during a turn.
    is_turn: bool,
}

impl Readers {
    /// While this is locked, no thread among them ends, so no other thread has its id.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, tid: i32) {
        let mut state = self.lock();
        state.tids.push(tid);
        if state.is_turn {
            let _ = raise(tid, READING);
        }
    }

    fn remove(&self, tid: i32) {
        let mut state = self.lock();
        state.tids.retain(|&it| it != tid);
        if state.is_turn {
            lower(tid);
        }
    }

    fn set_turn(&self, is_turn: bool) {
        let mut state = self.lock();
        state.is_turn = is_turn;
        for &tid in &state.tids {
            if is_turn {
                let _ = raise(tid, READING);
            } else {
                lower(tid);
            }
        }
    }
}

/// Starts a thread of ours that begins and ends the turns. It ends the last turn before it ends itself.
fn turns(readers: Arc<Readers>) -> Option<Companion> {
    Companion::start(move |stop| {
        if raise(0, ABOVE_READING).is_err() {
            return;
        }
        let mut is_turn = true;
        loop {
            readers.set_turn(is_turn);
            if stop.comes_within(TURN) {
                break;
            }
            is_turn = !is_turn;
        }
        readers.set_turn(false);
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;
    use crate::stop::priority::may_be_raised;
    use crate::{both, each};

    fn is_real_time() -> bool {
        // SAFETY: the call takes a number alone.
        let policy = unsafe { libc::sched_getscheduler(0) };
        policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO
    }

    /// Waits until the calling thread has a real-time priority, and until it has none again.
    fn has_turns() -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        let mut waits = [true, false].into_iter().map(|expected| {
            while is_real_time() != expected {
                if Instant::now() > until {
                    return false;
                }
                std::thread::yield_now();
            }
            true
        });
        waits.all(|seen| seen)
    }

    /// Runs `test` on a thread of its own, if reading threads may have a higher priority.
    fn with_priority(test: impl FnOnce(ReadingPriority) + Send + 'static) {
        let run = || {
            let raised = ReadingPriority::raise();
            if raised.readers.is_none() || !may_be_raised() {
                testkit::skip("this user may have no higher priority, or was given another one");
                return;
            }
            test(raised);
            assert!(!is_real_time());
            assert_eq!(getpriority_process(None), Ok(0));
        };
        std::thread::spawn(run).join().unwrap();
    }

    /// A nice value alone did nothing beside the programs of other sessions: a copy was read for 9 s instead of 2 s.
    #[test]
    fn threads_that_read_have_a_real_time_priority_in_turns() {
        with_priority(|raised| {
            assert_eq!(both(has_turns, has_turns), (true, true));
            // A helper is often started during a turn.
            let nice = |_| has_turns().then(|| getpriority_process(None));
            assert!(each(8, nice).into_iter().all(|it| it == Some(Ok(READING_NICE))));
            let readers = raised.readers.clone().unwrap();
            assert_eq!(readers.lock().tids, [own_tid()]);
            drop(raised);
            assert!(readers.lock().tids.is_empty());
        });
    }

    #[test]
    fn a_helper_that_works_on_after_the_reading_is_an_ordinary_thread() {
        with_priority(|raised| {
            let (begun, begins) = channel();
            let (end, ended) = channel();
            let ((), ()) = both(
                || {
                    begins.recv().unwrap();
                    drop(raised);
                    end.send(()).unwrap();
                },
                move || {
                    begun.send(()).unwrap();
                    ended.recv().unwrap();
                    assert!(!is_real_time());
                },
            );
        });
    }

    #[test]
    fn other_threads_of_a_reading_thread_have_no_turns() {
        with_priority(|raised| {
            while !is_real_time() {
                std::thread::yield_now();
            }
            let other = std::thread::spawn(is_real_time).join().unwrap();
            drop(raised);
            assert!(!other);
        });
    }

    #[test]
    fn a_nice_value_that_the_user_set_is_kept() {
        let run = || {
            setpriority_process(None, 1).unwrap();
            let raised = ReadingPriority::raise();
            assert!(raised.turns.is_none());
            drop(raised);
            assert_eq!(getpriority_process(None), Ok(1));
        };
        std::thread::spawn(run).join().unwrap();
    }
}
