//! `rbloat agent`. One thread reads the kernel's figures and captures processes ([`observer`]), another one answers scrapers
//! ([`server`]). This thread waits for signals.

mod observer;
mod server;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use formats::Node;
use supervise::{Event, Signals};

use crate::arguments::{CaptureArguments, parse_time};
use crate::attempts;
use crate::failure::{Failure, Outcome};
use crate::terminal;

use observer::Observer;

/// The longest wait for a signal, after which the threads are looked after.
const WAIT: Duration = Duration::from_secs(1);

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat agent                        serve http://127.0.0.1:9747/metrics
  rbloat agent --listen 0.0.0.0:9747  also for scrapers on other machines
  rbloat agent --causes-every 1m      capture each process every minute";

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// The address and port to listen on
    ///
    /// Whoever reaches it can read the metrics, which name containers, programs and classes of memory
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9747")]
    listen: SocketAddr,
    /// Time between two readings of the kernel's figures
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "15s")]
    every: Duration,
    /// Time between two captures of a process
    ///
    /// They are made less often if they would cost more than 0.3 % of a processor
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5m")]
    causes_every: Duration,
    #[command(flatten)]
    capture: CaptureArguments,
}

/// What the observer found last.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Node>>);

impl Shared {
    fn get(&self) -> Node {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, node: Node) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }
}

pub(super) fn run(arguments: &AgentArguments) -> Result<Outcome, Failure> {
    // Without the list of processes there would be nothing to serve.
    capture::proc::processes()?;
    let signals = Signals::block(false)?;
    let failed = |source| Failure::CannotListen { address: arguments.listen, source };
    let listener = TcpListener::bind(arguments.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let shared = Shared::default();
    let mut observer =
        Observer::new(arguments.every, arguments.causes_every, arguments.capture, shared.clone());
    // The first answer has figures.
    let wait = observer.read();
    let spawn = std::thread::Builder::new;
    let threads = [
        spawn().spawn(move || observer.run(wait))?,
        spawn().spawn(move || server::serve(&listener, &shared))?,
    ];
    terminal::print_error(&format!("serving http://{address}/metrics\n"));
    loop {
        if let Event::Signal { .. } = signals.next(WAIT)? {
            // A capture that is interrupted would leave a zombie of its forked copy.
            let _no_capture = attempts::one_at_a_time();
            return Ok(Outcome::Done);
        }
        assert!(!threads.iter().any(|thread| thread.is_finished()), "a thread has ended");
    }
}
