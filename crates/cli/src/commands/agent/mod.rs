//! `rbloat agent`. One thread reads the kernel's figures and captures processes ([`observer`]), another one answers scrapers
//! ([`server`]). This thread waits for signals.

mod archive;
mod limits;
mod observer;
mod push;
mod server;
mod snapshot_folder;
mod tls;
mod token;
mod trigger;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use formats::Node;
use linux::proc::ControlGroup;
use supervise::{Event, SHARE_OF_CAUSES, Signals};

use crate::arguments::{CaptureArguments, parse_size, parse_time};
use crate::failure::{Failure, Outcome};
use crate::terminal;
use archive::Archive;
use limits::Limits;
use observer::{Observer, Outputs};
use push::Pusher;
use snapshot_folder::SnapshotFolder;
use tls::Certificate;
use token::Token;

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
    /// Only processes of this control group and those below it
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    cgroup: Option<PathBuf>,
    /// Time between two readings of the kernel's figures
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "15s")]
    every: Duration,
    /// Time between two captures of a process
    ///
    /// They are made less often if they would cost more than --cpu-percent allows
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5m")]
    causes_every: Duration,
    /// Time between two captures of a process with the owners of its memory
    ///
    /// They take more time and memory than causes alone
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1h", hide_short_help = true)]
    owners_every: Duration,
    /// The part of a processor that captures may take, in percent
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value_t = SHARE_OF_CAUSES * 100.0, hide_short_help = true)]
    cpu_percent: f64,
    /// Save a snapshot of a process before the kernel kills it at its memory limit, and the code that made it grow
    ///
    /// It is taken when the control group uses 85 % of its limit and grows, meets its limit, or would meet it within 30 s
    #[arg(long, value_name = "DIR")]
    snapshots: Option<PathBuf>,
    /// The number of snapshots to keep
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true)]
    max_snapshots: u32,
    /// The size of all files in that folder
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "200MiB", hide_short_help = true)]
    max_snapshot_bytes: u64,
    /// Add a snapshot of each process to an archive of Parquet files, as often as owners are found
    ///
    /// The files are written once an hour, and when the agent ends. `rbloat fleet DIR` answers questions about them
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    archive: Option<PathBuf>,
    /// The size of the archive. The oldest days make room
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GiB", hide_short_help = true)]
    max_archive_bytes: u64,
    /// The memory that the agent may use to find owners
    ///
    /// A process with so much memory that this would not do is captured without owners
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "150MiB", hide_short_help = true)]
    max_memory: u64,
    /// Trim processes if that returns much memory
    ///
    /// Each at most once an hour, and one a minute on the machine. Without this option, the metric rbloat_treatable_bytes has the
    /// memory that these trims would return.
    #[arg(long)]
    treat: bool,
    /// The memory that a trim has to return
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB", hide_short_help = true)]
    treat_above: u64,
    /// Answer only requests with this bearer token, except for /healthz
    ///
    /// The file has the token on its only line. Others may not read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Encrypt connections by TLS, with this certificate and its chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key", hide_short_help = true)]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM). Others may not read it
    #[arg(long, value_name = "FILE", requires = "tls_cert", hide_short_help = true)]
    tls_key: Option<PathBuf>,
    /// Push profiles of owners to a server, as pyroscope=URL or parca=URL
    ///
    /// A profile is pushed after each capture with owners, and after growth by code was observed
    #[arg(long, value_name = "SERVER=URL", value_parser = push::parse_endpoint, hide_short_help = true)]
    push: Option<push::Endpoint>,
    /// The bearer token for that server. Others may not read the file
    #[arg(long, value_name = "FILE", requires = "push", hide_short_help = true)]
    push_token_file: Option<PathBuf>,
    /// Certificates of authorities that vouch for that server (PEM), in place of those of the system
    #[arg(long, value_name = "FILE", requires = "push", hide_short_help = true)]
    push_ca: Option<PathBuf>,
    #[command(flatten)]
    capture: CaptureArguments,
    /// Print a dashboard for Grafana, and exit
    #[arg(long, exclusive = true, hide_short_help = true)]
    print_dashboard: bool,
    /// Print alert rules for Prometheus, and exit
    #[arg(long, exclusive = true, hide_short_help = true)]
    print_rules: bool,
}

/// Reads a part of a processor.
fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').trim_end().parse().ok();
    let percent = percent.filter(|percent| (0.01..=100.0).contains(percent));
    percent.ok_or_else(|| "must be from 0.01 to 100, such as 0.3".to_owned())
}

/// The latest figures of the observer, and their time.
#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<(Arc<Node>, Instant)>>);

impl Shared {
    fn new() -> Self {
        Self(Arc::new(Mutex::new((Arc::default(), Instant::now()))))
    }

    fn get(&self) -> Arc<Node> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner).0)
    }

    fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.elapsed()
    }

    fn set(&self, node: Node) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (Arc::new(node), Instant::now());
    }

    /// Notes that there is nothing new.
    fn confirm(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Instant::now();
    }
}

/// The name of the node. In a container, the name of the host is that of the pod.
fn node_name() -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(host)
}

pub(crate) fn run(arguments: &AgentArguments) -> Result<Outcome, Failure> {
    if arguments.print_dashboard || arguments.print_rules {
        let text = if arguments.print_rules { render::alert_rules() } else { render::dashboard() };
        terminal::print(&text)?;
        return Ok(Outcome::Done);
    }
    // Without the list of processes there would be nothing to serve.
    linux::proc::processes()?;
    let signals = Signals::block(false)?;
    let failed = |source| Failure::CannotListen { address: arguments.listen, source };
    let listener = TcpListener::bind(arguments.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let token = arguments.token_file.as_deref().map(Token::read).transpose()?;
    let pair = arguments.tls_cert.as_deref().zip(arguments.tls_key.as_deref());
    let certificate = pair.map(|(chain, key)| Certificate::read(chain, key)).transpose()?;
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let folder = arguments.snapshots.as_deref().map(|folder| {
        SnapshotFolder::open(folder, arguments.max_snapshots as usize, arguments.max_snapshot_bytes)
    });
    let limits = folder.transpose()?.map(Limits::new);
    let push_token = arguments.push_token_file.as_deref().map(Token::read).transpose()?;
    let pusher = arguments
        .push
        .as_ref()
        .map(|target| Pusher::start(target, push_token.as_ref(), arguments.push_ca.as_deref()));
    let archive = arguments.archive.as_deref().map(|path| {
        Archive::open(path, arguments.max_archive_bytes, arguments.capture.sandbox.options())
    });
    let archive = archive.transpose()?;
    let shared = Shared::new();
    let group = arguments.cgroup.as_deref().map(|path| {
        ControlGroup::at(path).ok_or_else(|| examine::Error::NoGroup { path: path.into() })
    });
    let outputs = Outputs { limits, archive: archive.clone(), pusher: pusher.transpose()? };
    let mut observer = Observer::new(arguments, group.transpose()?, outputs, shared.clone());
    // The first answer has figures.
    let wait = observer.read();
    let spawn = std::thread::Builder::new;
    let threads = [
        spawn().spawn(move || observer.run(wait))?,
        spawn().spawn(move || {
            server::serve(&listener, &server::Service { shared, token, certificate }.into())
        })?,
    ];
    terminal::print_error(&format!("serving {scheme}://{address}/metrics\n"));
    loop {
        if let Event::Signal { .. } = signals.next(WAIT)? {
            // A capture that is interrupted would leave a zombie of its forked copy.
            let _no_capture = examine::one_at_a_time();
            if let Some(archive) = &archive {
                archive.write();
            }
            return Ok(Outcome::Done);
        }
        assert!(!threads.iter().any(|thread| thread.is_finished()), "a thread has ended");
    }
}
