#![doc = include_str!("../README.md")]
//!
//! The calling thread draws and reads keys. One thread reads the kernel's figures ([`Rubies`]), another one captures processes
//! (`work`), so that the keyboard works while a capture takes long.

mod error;
mod news;
mod screen;
mod view;
mod work;

use std::io::Read;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use examine::{CaptureOptions, Intervals, Rubies};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use render::TopOrder;
use supervise::{Event, Signals};

pub use error::Error;
pub use screen::{is_taken, restore};

use news::{News, NewsSender};
use screen::{Key, Screen, take_keys};
use view::{Action, View};
use work::Worker;

const EVERY: Intervals = Intervals {
    search: Duration::from_secs(2),
    sample: Duration::from_secs(1),
    exact: Duration::from_secs(1),
};
/// The longest time between two drawings: ages of figures are shown in seconds.
const REDRAW: Duration = Duration::from_secs(1);
/// The longest wait for the rest of a key's sequence.
const REST_OF_KEY: Duration = Duration::from_millis(50);

/// The first view, and the way to capture processes.
#[derive(Debug)]
pub struct Options {
    /// The order of the processes.
    pub order: TopOrder,
    /// Only processes with this text in their command lines are shown.
    pub filter: String,
    /// The way to capture processes.
    pub capture: CaptureOptions,
    /// True if the terminal gets colours.
    pub has_colours: bool,
    /// Returns the sentence on an error, with what the user can do about it.
    pub explain: fn(&examine::Error) -> String,
}

/// Shows the Ruby processes of this machine until a key or a signal ends that. Returns the exit status.
///
/// # Errors
/// If there is no terminal, or it is gone, or a thread cannot be started.
///
/// # Panics
/// If a thread has ended by a panic.
pub fn run(options: &Options) -> Result<u8, Error> {
    // Errors that concern all processes belong on the usual screen.
    linux::proc::processes().map_err(examine::Error::from)?;
    let signals = Signals::block_for_screen()?;
    let mut screen = Screen::take(options.has_colours)?;
    let (sender, mut wake, news) = news::channel()?;
    let mut worker = Worker::start(options.capture, options.explain, &sender)?;
    let sampler = start_reading(sender)?;
    let mut view = View::new(options.order, &options.filter);
    let mut keyboard = Vec::new();
    let status = loop {
        receive(&news, &mut view, &worker);
        screen.draw(|size| view.lines(size.width.into(), size.height.into()))?;
        let [keys, has_news] = wait(&screen, &signals, &wake)?;
        if has_news {
            let _ = wake.read(&mut [0; 4096])?;
        }
        if let Some(status) = take_signals(&signals, &mut screen)? {
            break status;
        }
        if keys {
            let Some(keys) = read_keys(&mut screen, &mut keyboard)? else { break 0 };
            if !keys.into_iter().all(|key| act(view.press(key), &mut screen, &mut worker)) {
                break 0;
            }
        }
        rethrow(&sampler, worker.thread());
    };
    drop(screen);
    // A capture that is interrupted would leave a zombie of its forked copy.
    let _no_capture = examine::one_at_a_time();
    Ok(status)
}

/// Begins to read the kernel's figures, on a thread of its own.
fn start_reading(news: NewsSender) -> std::io::Result<JoinHandle<()>> {
    let mut rubies = Rubies::new(EVERY, None, |_, _| {});
    std::thread::Builder::new().name("top".into()).spawn(move || {
        loop {
            let wait = rubies.read();
            news.send(News::Processes(rubies.listed(), rubies.refused()));
            std::thread::sleep(wait);
        }
    })
}

fn receive(news: &Receiver<News>, view: &mut View, worker: &Worker) {
    news.try_iter().for_each(|news| view.receive(news));
    worker.follow(view.ids(), view.selected());
}

/// Waits until something was typed, a signal or news arrived, or it is time to draw. Returns whether something was typed, and
/// whether there are news.
fn wait(
    screen: &Screen,
    signals: &Signals,
    wake: &impl std::os::fd::AsFd,
) -> Result<[bool; 2], Error> {
    use std::os::fd::AsFd;
    let descriptors = [screen.as_fd(), wake.as_fd(), signals.as_fd()];
    let mut polled = descriptors.map(|it| PollFd::new(it, PollFlags::POLLIN));
    let time = PollTimeout::try_from(REDRAW).unwrap_or(PollTimeout::ZERO);
    match poll(&mut polled, time) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(std::io::Error::from(error).into()),
    }
    let is_ready = |at: usize| polled[at].any().unwrap_or(false);
    Ok([is_ready(0), is_ready(1)])
}

/// Handles the signals that have arrived. Returns the exit status if one of them ends rbloat.
fn take_signals(signals: &Signals, screen: &mut Screen) -> Result<Option<u8>, Error> {
    while let Event::Signal { number, .. } = signals.next(Duration::ZERO)? {
        match Signal::try_from(number) {
            Ok(Signal::SIGTSTP) => stop(screen, signals)?,
            Ok(Signal::SIGCONT) => screen.redraw()?,
            Ok(Signal::SIGWINCH | Signal::SIGTTIN | Signal::SIGTTOU) => {}
            // As in a shell.
            _ => return Ok(Some(u8::try_from(128 + number).unwrap_or(u8::MAX))),
        }
    }
    Ok(None)
}

/// Stops rbloat as ^Z does, until it continues in the foreground.
fn stop(screen: &mut Screen, signals: &Signals) -> Result<(), Error> {
    screen.leave_for(|is_in_foreground| {
        // A process must not stay paused while rbloat is stopped.
        let _no_capture = examine::one_at_a_time();
        loop {
            supervise::stop_until_continued();
            if is_in_foreground() {
                break;
            }
        }
    })?;
    // The signal that continued rbloat.
    while matches!(
        signals.next(Duration::ZERO)?,
        Event::Signal { number, .. } if number == Signal::SIGCONT as i32
    ) {}
    Ok(())
}

/// Returns the keys that were pressed. `None` if the terminal is gone.
fn read_keys(screen: &mut Screen, typed: &mut Vec<u8>) -> Result<Option<Vec<Key>>, Error> {
    let Some(bytes) = screen.read() else { return Ok(None) };
    typed.extend(bytes);
    let mut keys = take_keys(typed, false);
    if !typed.is_empty() {
        use std::os::fd::AsFd;
        let time = PollTimeout::try_from(REST_OF_KEY).unwrap_or(PollTimeout::ZERO);
        let more = poll(&mut [PollFd::new(screen.as_fd(), PollFlags::POLLIN)], time);
        if more == Ok(0) {
            keys.extend(take_keys(typed, true));
        }
    }
    Ok(Some(keys))
}

/// Does what a key asks for. Returns false at the end.
fn act(action: Action, screen: &mut Screen, worker: &mut Worker) -> bool {
    match action {
        Action::None => {}
        Action::Quit => return false,
        Action::Redraw => return screen.redraw().is_ok(),
        // As the terminal would do it in its usual mode.
        Action::Stop => return nix::sys::signal::raise(Signal::SIGTSTP).is_ok(),
        Action::Start(job) => worker.start_job(job),
    }
    true
}

/// Ends with the panic of a thread that has ended.
fn rethrow(sampler: &JoinHandle<()>, worker: &JoinHandle<()>) {
    assert!(!sampler.is_finished() && !worker.is_finished(), "a thread has ended");
}
