//! Waits for the next event: a timeout, a signal, or the end of a program that rbloat started.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use linux::proc::signal_sets;
use linux::tracee::has_ended;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::Error;
use crate::orphans::Orphans;

/// Signals that end a recording or a comparison. If rbloat started the recorded program, they are passed on to it.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Further signals that are passed on, since the program may handle them.
const PASSED_ON: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];
/// The signals of a terminal to a program that draws on its whole screen.
const OF_A_SCREEN: [Signal; 5] =
    [Signal::SIGWINCH, Signal::SIGTSTP, Signal::SIGCONT, Signal::SIGTTIN, Signal::SIGTTOU];
/// SI_KERNEL, the `ssi_code` of a signal from the kernel, such as ^C in a terminal, which goes to the whole foreground.
const BY_KERNEL: i32 = 0x80;

/// Blocked signals. They interrupt nothing, so a paused target always continues before rbloat handles a signal.
pub struct Signals(SignalFd);

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The time has passed.
    Time,
    /// A signal to rbloat, or one to be passed on.
    Signal {
        /// The signal's number.
        number: i32,
        /// True if the kernel sent it, as the terminal does on ^C.
        by_kernel: bool,
    },
    /// A child has ended.
    ChildEnded,
}

impl Signals {
    /// Blocks the signals in this thread and in threads that are created later; with SIGCHLD and the passed-on signals
    /// if `with_child`.
    pub fn block(with_child: bool) -> Result<Self, Error> {
        let of_a_child = PASSED_ON.into_iter().chain([Signal::SIGCHLD]);
        Self::block_with(of_a_child.filter(|_| with_child))
    }

    /// Blocks the signals for a program that draws on the whole screen of a terminal, as [`block`](Self::block) does: also
    /// those by which the terminal stops it, so that it can restore the screen first.
    pub fn block_for_screen() -> Result<Self, Error> {
        Self::block_with(OF_A_SCREEN)
    }

    fn block_with(others: impl IntoIterator<Item = Signal>) -> Result<Self, Error> {
        // A signal that is blocked arrives even if it is ignored, as SIGHUP is under nohup(1). A shell script ignores SIGINT
        // and SIGQUIT for what it starts in the background, and ends that by these signals all the same.
        let own = std::process::id().cast_signed();
        let ignores_hangup =
            signal_sets(own, own).is_some_and(|it| it.ignores(Signal::SIGHUP as i32));
        let is_ignored = |signal: &Signal| *signal == Signal::SIGHUP && ignores_hangup;
        let ending = ENDING.into_iter().filter(|signal| !is_ignored(signal));
        let set: SigSet = ending.chain(others).collect();
        let failed = |error: Errno| Error::Signals(error.into());
        set.thread_block().map_err(failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&set, flags).map(Self).map_err(failed)
    }

    /// Lets the signals that ask to end arrive in the calling thread again, as if they had never been blocked.
    pub fn unblock() {
        let _ = ENDING.into_iter().collect::<SigSet>().thread_unblock();
    }

    /// Waits up to `time` for the next event.
    pub fn next(&self, time: Duration) -> Result<Event, Error> {
        let failed = |error: Errno| Error::Signals(error.into());
        if let Some(signal) = self.0.read_signal().map_err(failed)? {
            let number = signal.ssi_signo.cast_signed();
            return Ok(if number == Signal::SIGCHLD as i32 {
                Event::ChildEnded
            } else {
                Event::Signal { number, by_kernel: signal.ssi_code == BY_KERNEL }
            });
        }
        if time.is_zero() {
            return Ok(Event::Time);
        }
        // Rounded up: poll would wake too early again and again otherwise.
        let time = PollTimeout::try_from(time.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], time) {
            Ok(0) | Err(Errno::EINTR) => Ok(Event::Time),
            Ok(_) => self.next(Duration::ZERO),
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns true if a signal arrives within `time`.
    pub fn ask_to_end(&self, time: Duration) -> Result<bool, Error> {
        Ok(matches!(self.next(time)?, Event::Signal { .. }))
    }

    /// Waits for the end of a program, passes signals on to it meanwhile, and reaps its orphans.
    pub fn wait_for(&self, child: &mut Child, orphans: &Orphans) -> Result<ExitStatus, Error> {
        loop {
            orphans.look(&[child.id().cast_signed()]);
            if let Some(status) = exit_status(child)? {
                return Ok(status);
            }
            let event = self.next(Duration::from_secs(1))?;
            pass_on(event, child);
        }
    }
}

impl AsFd for Signals {
    /// A descriptor that can be read when a signal has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Stops this process and its process group, as a terminal does on ^Z, until it continues. SIGTSTP must be blocked in all
/// other threads, which could be in a capture.
pub fn stop_until_continued() {
    let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    let stop: SigSet = [Signal::SIGTSTP].into_iter().collect();
    let _ = stop.thread_unblock();
    let _ = stop.thread_block();
}

/// Ends this process by the signal `number`, which is blocked, or with the exit status that a shell gives it.
pub fn end_by(number: i32) -> ! {
    if let Ok(signal) = Signal::try_from(number) {
        // By tgkill(2), which the sandbox allows.
        let _ = raise(signal);
        let _ = SigSet::from(signal).thread_unblock();
    }
    std::process::exit(128 + number)
}

/// Returns the status of a program that rbloat started; `None` if it has not ended.
///
/// `Child::try_wait` alone would take a stop of a program that another thread traces for its end.
///
/// # Errors
/// If its status was lost: then it has ended.
pub fn exit_status(child: &mut Child) -> Result<Option<ExitStatus>, Error> {
    match has_ended(child.id().cast_signed()) {
        true => child.try_wait().map_err(Error::Signals),
        false => Ok(None),
    }
}

/// Asks a program to end: with SIGTERM, which a stopped program receives when it continues.
pub fn terminate(child: &Child) {
    for signal in [Signal::SIGTERM, Signal::SIGCONT] {
        // The program has not been waited for, so the id is still its own. If it has ended, that is no failure.
        let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
    }
}

/// Passes a signal on to a program that rbloat started; not a signal from the terminal, which the program has
/// received itself.
pub fn pass_on(event: Event, child: &Child) {
    if let Event::Signal { number, by_kernel: false } = event
        && let Ok(signal) = Signal::try_from(number)
    {
        // The program has not been waited for, so the id is still its own. If it ends meanwhile, that is no failure.
        let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
    }
}
