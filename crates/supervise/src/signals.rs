//! Waiting for what happens next: a time, a signal, the end of a program that we started.

use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::Error;
use crate::orphans::Orphans;

/// Signals that end a recording or a comparison or, of a program that is recorded, are passed on to it.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Others that a program may be waiting for.
const PASSED_ON: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];
/// How signalfd(2) says that the kernel sent a signal: as the terminal does on ^C, to all of the foreground.
const BY_KERNEL: i32 = 0x80;

/// The signals that we wait for, which interrupt nothing else: a target that stands is let go first.
pub struct Signals(SignalFd);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The time is over.
    Time,
    /// Someone asks us to end, or a program that we started to do something.
    Signal {
        /// Its number.
        number: i32,
        /// True if the kernel sent it, as the terminal does on ^C.
        by_kernel: bool,
    },
    /// A child has ended.
    ChildEnded,
}

impl Signals {
    /// From now on signals wait until they are asked for; for threads that are made later too.
    pub fn block(with_child: bool) -> Result<Self, Error> {
        let mut set = SigSet::empty();
        ENDING.iter().for_each(|&signal| set.add(signal));
        if with_child {
            PASSED_ON.iter().for_each(|&signal| set.add(signal));
            set.add(Signal::SIGCHLD);
        }
        let failed = |error: Errno| Error::Signals(error.into());
        set.thread_block().map_err(failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&set, flags).map(Self).map_err(failed)
    }

    /// The next that happens within `time`.
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
        // A ms more than less: we are not to wake too early again and again.
        let time = PollTimeout::try_from(time.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], time) {
            Ok(0) | Err(Errno::EINTR) => Ok(Event::Time),
            Ok(_) => self.next(Duration::ZERO),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether someone asks us to end within `time`.
    pub fn ask_to_end(&self, time: Duration) -> Result<bool, Error> {
        Ok(matches!(self.next(time)?, Event::Signal { .. }))
    }

    /// Waits for the end of a program, passes signals on to it meanwhile, and reaps its orphans.
    pub fn wait_for(&self, child: &mut Child, orphans: &Orphans) -> Result<ExitStatus, Error> {
        loop {
            orphans.look(&[child.id().cast_signed()]);
            if let Some(status) = child.try_wait().map_err(Error::Signals)? {
                return Ok(status);
            }
            let event = self.next(Duration::from_secs(1))?;
            pass_on(event, child);
        }
    }
}

/// Sends a program that we started the signal that we were sent; not what the terminal sent to all of the
/// foreground, since the program has that already.
pub(crate) fn pass_on(event: Event, child: &Child) {
    if let Event::Signal { number, by_kernel: false } = event
        && let Ok(signal) = Signal::try_from(number)
    {
        // It has not been waited for yet: its id is no other's. That it may end meanwhile is no failure.
        let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
    }
}
