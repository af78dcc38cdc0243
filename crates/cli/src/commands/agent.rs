use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent::{Log, Options};
use clap::Args;
use supervise::SHARE_OF_CAUSES;

use crate::arguments::{CaptureArguments, parse_size, parse_time};
use crate::failure::{Failure, Outcome};
use crate::remedy::explained;
use crate::terminal;

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
    /// The longest pause for such a snapshot, in place of 500 ms or --max-pause
    ///
    /// A process that is paused does not fill its group. The kernel lets it go if the agent is killed meanwhile
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "snapshots", hide_short_help = true)]
    hold: Option<Duration>,
    /// After such a snapshot, also record which lines allocate what stays, as `rbloat who --kept`
    ///
    /// Until the process ends, for an hour at most. The result so far is saved each minute. It needs CAP_BPF and CAP_PERFMON
    #[arg(long, requires = "snapshots", hide_short_help = true)]
    kept: bool,
    /// The number of snapshots to keep
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true)]
    max_snapshots: u32,
    /// The size of all files in that folder
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "200MiB", hide_short_help = true)]
    max_snapshot_bytes: u64,
    /// Add a snapshot of each process to an archive of Parquet files, as often as owners are found
    ///
    /// The files are written once an hour, and when the agent ends. `rbloat archive DIR` answers questions about them
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
    /// Push to a server, as pyroscope=URL, parca=URL, snapshots=URL, otlp=URL or otlp-profiles=URL; several times for several servers
    ///
    /// The first two and the last one get profiles of owners, after each capture with owners, and after growth by code was observed. The
    /// third gets each file of --snapshots by PUT URL/FILE; a query of the URL stays, and is not printed. An OpenTelemetry collector
    /// (otlp) gets the metrics each minute, and a log record for each snapshot and each kill
    #[arg(long, value_name = "SERVER=URL", value_parser = agent::parse_endpoint, hide_short_help = true)]
    push: Vec<agent::Endpoint>,
    /// The bearer token for these servers. Others may not read the file
    #[arg(long, value_name = "FILE", requires = "push", hide_short_help = true)]
    push_token_file: Option<PathBuf>,
    /// Certificates of authorities that vouch for these servers (PEM), in place of those of the system
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

impl AgentArguments {
    fn options(&self) -> Options {
        let certificate = self.tls_cert.clone().zip(self.tls_key.clone());
        Options {
            listen: self.listen,
            cgroup: self.cgroup.clone(),
            every: self.every,
            causes_every: self.causes_every,
            owners_every: self.owners_every,
            share: self.cpu_percent / 100.0,
            snapshots: self.snapshots.clone(),
            hold: self.hold,
            kept: self.kept,
            max_snapshots: self.max_snapshots as usize,
            max_snapshot_bytes: self.max_snapshot_bytes,
            archive: self.archive.clone(),
            max_archive_bytes: self.max_archive_bytes,
            max_memory: self.max_memory,
            treat: self.treat,
            treat_above: self.treat_above,
            token_file: self.token_file.clone(),
            certificate,
            push: self.push.clone(),
            push_token_file: self.push_token_file.clone(),
            push_ca: self.push_ca.clone(),
            capture: self.capture.options(),
        }
    }
}

pub(crate) fn run(arguments: &AgentArguments) -> Result<Outcome, Failure> {
    if arguments.print_dashboard || arguments.print_rules {
        let text = if arguments.print_rules { render::alert_rules() } else { render::dashboard() };
        terminal::print(&text)?;
        return Ok(Outcome::Done);
    }
    let log = Log {
        say: |line| terminal::print_error(&format!("{line}\n")),
        complain: |line| terminal::complain(line),
        explain: explained,
    };
    agent::run(&arguments.options(), log)?;
    Ok(Outcome::Done)
}
