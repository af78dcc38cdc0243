#![doc = include_str!("../README.md")]
//!
//! One thread reads the kernel's figures and captures processes (`observer`), another one answers scrapers (`server`). The calling
//! thread waits for signals. `trigger` decides when a process near its memory limit is worth a snapshot, and `limits` takes it.
//! `archive_writer` and `snapshot_folder` write files, `push` hands profiles over to a server.

mod archive_writer;
mod autopsies;
mod error;
mod kills;
mod known;
mod limits;
mod log;
mod node_name;
mod observer;
mod options;
mod push;
mod roles;
mod rush;
mod server;
mod shared;
mod snapshot_folder;
mod tls;
mod token;
mod trigger;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use linux::proc::ControlGroup;
use supervise::{Event, Signals, unix_ms};

pub use archive_writer::add as add_to_archive;
pub use error::Error;
pub use log::Log;
pub use options::Options;
pub use push::{Endpoint, parse_endpoint};

use archive_writer::ArchiveWriter;
use limits::Limits;
use observer::{Observer, Outputs};
use push::Pusher;
use shared::Shared;
use snapshot_folder::SnapshotFolder;
use tls::Certificate;
use token::Token;

/// The longest wait for a signal, after which the threads are looked after.
const WAIT: Duration = Duration::from_secs(1);
/// The time between two pushes of metrics.
const PUSH_METRICS_EVERY: Duration = Duration::from_secs(60);

/// Serves until a signal asks rbloat to end.
///
/// # Errors
/// If a file, a folder or the address cannot be used, or a thread cannot be started.
///
/// # Panics
/// If a thread has ended by a panic.
pub fn run(options: &Options, log: Log) -> Result<(), Error> {
    // Without the list of processes there would be nothing to serve.
    linux::proc::processes().map_err(examine::Error::from)?;
    let signals = Signals::block(false)?;
    let failed = |source| Error::CannotListen { address: options.listen, source };
    let listener = TcpListener::bind(options.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let token = options.token_file.as_deref().map(Token::read).transpose()?;
    let pair = options.certificate.as_ref();
    let certificate = pair.map(|(chain, key)| Certificate::read(chain, key, log)).transpose()?;
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let push_token = options.push_token_file.as_deref().map(Token::read).transpose()?;
    let start = |to| Pusher::start(to, push_token.as_ref(), options.push_ca.as_deref(), log);
    if options.snapshots.is_none() && options.push.iter().any(Endpoint::needs_snapshots) {
        return Err(Error::NoSnapshots);
    }
    let pushers = options.push.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let folder = options.snapshots.as_deref().map(|folder| {
        SnapshotFolder::open(folder, options.max_snapshots, options.max_snapshot_bytes)
    });
    let new_limits = |folder| Limits::new(folder, options.kept, pushers.clone(), log);
    let limits = folder.transpose()?.map(new_limits);
    let open =
        |path| ArchiveWriter::open(path, options.max_archive_bytes, options.capture.sandbox, log);
    let archive = options.archive.as_deref().map(open).transpose()?;
    let shared = Shared::new(&server::STATUSES);
    let find = |path| {
        let group = ControlGroup::at(path);
        group.ok_or_else(|| examine::Error::NoGroup { path: path.into() })
    };
    let group = options.cgroup.as_deref().map(find).transpose()?;
    let outputs = Outputs { limits, archive: archive.clone(), pushers: pushers.clone() };
    let (since_ms, mut push_at) = (unix_ms(), Instant::now());
    let figures = shared.clone();
    let mut observer = Observer::new(options, group, outputs, shared.clone(), log);
    // The first answer has figures.
    let wait = observer.read();
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    let threads = [
        thread("observer").spawn(move || observer.run(wait))?,
        thread("server").spawn(move || {
            server::serve(&listener, &server::Service::new(shared, token, certificate).into())
        })?,
    ];
    (log.say)(&format!("serving {scheme}://{address}/metrics"));
    loop {
        if let Event::Signal { .. } = signals.next(WAIT)? {
            // A capture that is interrupted would leave a zombie of its forked copy.
            let _no_capture = examine::one_at_a_time();
            if let Some(archive) = &archive {
                archive.write();
            }
            return Ok(());
        }
        if Instant::now() >= push_at {
            push_at = Instant::now() + PUSH_METRICS_EVERY;
            pushers.iter().for_each(|it| it.push_metrics(&figures.get(), since_ms));
        }
        assert!(!threads.iter().any(|thread| thread.is_finished()), "a thread has ended");
    }
}
