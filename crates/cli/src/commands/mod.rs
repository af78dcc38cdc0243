//! The commands, one file for each, with its arguments. A command calls the other crates, and prints what they return.

pub(crate) mod agent;
pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod export;
mod family;
mod family_diff;
pub(crate) mod fix;
pub(crate) mod fleet;
mod list;
pub(crate) mod map;
pub(crate) mod plot;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod top;
pub(crate) mod trim;
pub(crate) mod who;
pub(crate) mod why;

use clap::Subcommand;
use clap_complete::Shell;

use crate::arguments::{self, Arguments};
use crate::failure::{Failure, Outcome};
use crate::{interruption, terminal};

/// A command with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch the Ruby processes on this machine, examine them by keys
    ///
    /// Shows a list that is updated every second: master processes with their workers, RSS, PSS, the use of the memory limit,
    /// the growth, and the causes of the memory. Keys open the report on a process, trim it, save a snapshot, or find the code
    /// that makes it grow. Processes are captured one at a time, for at most 0.3 % of a processor.
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopArguments),
    /// Show where the memory of a process is, why, and what to do
    ///
    /// Every resident byte has exactly one cause. The process pauses for some milliseconds, while the kernel makes a
    /// forked copy of it, which is then read. See --capture and --max-pause.
    #[command(override_usage = report::USAGE, after_help = report::EXAMPLES)]
    Report(report::ReportArguments),
    /// Print the advice on a process as changes that can be pasted
    ///
    /// Finds out how the process was started (Dockerfile, Kubernetes, systemd, Heroku, Procfile or shell) and configured
    /// (Puma, Sidekiq, Rails, Bundler). For each step it prints the saving if that is known, the costs, the lines to
    /// paste, and a way to check the effect. Nothing is changed.
    #[command(after_help = fix::EXAMPLES)]
    Fix(fix::FixArguments),
    /// Draw every page of a process: in use, free but kept, or returned
    ///
    /// The map is one HTML file that opens in any browser without network. It shows all arenas, mmapped chunks, Ruby's
    /// heap pages and stacks, by use or by owner. It zooms to single chunks, and finds addresses.
    #[command(after_help = map::EXAMPLES)]
    Map(map::MapArguments),
    /// Save the state of a process in a file, for report, map and diff
    ///
    /// The file is small, and has no data of the process. It has only names (of classes, types, constants, variables and files), and
    /// the command line.
    #[command(after_help = snapshot::EXAMPLES)]
    Snapshot(snapshot::SnapshotArguments),
    /// Show what grew between snapshots, and whether it is a leak
    ///
    /// Compares snapshots, or takes them itself: `rbloat diff PID`. Two snapshots show what grew,
    /// three show whether the growth continues.
    #[command(after_help = diff::EXAMPLES)]
    Diff(diff::DiffArguments),
    /// Run a program under each allocator and setting, and recommend one
    ///
    /// Runs COMMAND several times under each setting, in turns, each time as a new process. The work is done when
    /// COMMAND ends or has used no CPU time for a second. With --load, the load starts then, and the work is done when
    /// the load ends. The standard input of COMMAND stays open until rbloat asks it to end.
    #[command(after_help = compare::EXAMPLES)]
    Compare(compare::CompareArguments),
    /// Return the free memory of a process to the kernel now
    ///
    /// Prints a prediction first. Then one thread of the process calls malloc_trim(0), or the equivalent of jemalloc or
    /// tcmalloc, in a signal handler. The other threads keep running.
    #[command(after_help = trim::EXAMPLES)]
    Trim(trim::TrimArguments),
    /// Record the memory use of a process and its children over time
    ///
    /// Every second it records the kernel's figures: RSS, PSS, USS, swap, CPU time, page faults, and the usage, limit
    /// and OOM kills of the control group. Every 30 s it records the causes of each Ruby process, as in `rbloat report`.
    /// Readings that cost more than 1 % of a processor in total are made less often. The file has one JSON object
    /// per line. The recording ends with the process, by ^C, or after --duration.
    #[command(after_help = record::EXAMPLES)]
    Record(record::RecordArguments),
    /// Draw recordings in one picture, find out if memory is stable
    ///
    /// The picture shows the memory of all recordings with limits, OOM kills and falls, and below it the causes of each.
    /// Without --output it only prints a summary of each recording.
    #[command(after_help = plot::EXAMPLES)]
    Plot(plot::PlotArguments),
    /// Show which code makes the memory of a process grow
    ///
    /// Memory grows by page faults. The kernel samples them, and right afterwards rbloat reads the stack of the thread that
    /// faulted, while it runs. The result names methods, lines of the application, threads, kinds of memory and native
    /// libraries. Nothing is loaded into the process. At the beginning it pauses for some milliseconds, as for a report.
    /// Processes that it forks are followed.
    #[command(after_help = who::EXAMPLES)]
    Who(who::WhoArguments),
    /// Explain why an object, or the objects of a class, are not freed
    ///
    /// Shows the shortest paths that retain it, the objects that refer to it, and what would be freed with it. A snapshot does
    /// not have the references between objects, so this needs a process or a core.
    #[command(after_help = why::EXAMPLES)]
    Why(why::WhyArguments),
    /// Serve the memory of all Ruby processes on this machine as metrics
    ///
    /// Prometheus, or anything that reads its format, gets them from http://ADDRESS/metrics: the kernel's figures, the
    /// causes of each process's memory, the verdict, the limits of control groups, and the agent's own cost. Processes are
    /// named by container and role. They are captured one at a time, for 0.3 % of a processor in the long run, and not while
    /// memory is short.
    #[command(after_help = agent::EXAMPLES)]
    Agent(agent::AgentArguments),
    /// Add snapshots to an archive: Parquet files, for SQL
    ///
    /// DuckDB, Spark and other engines read the archive: a folder for each table, with folders for the days and services in it.
    /// A snapshot that is exported again replaces its former rows.
    #[command(after_help = export::EXAMPLES)]
    Export(export::ExportArguments),
    /// Answer questions about an archive, by SQL
    ///
    /// Runs SQL by the program duckdb, which has to be installed. --print prints the SQL for Spark and other engines.
    #[command(after_help = fleet::EXAMPLES)]
    Fleet(fleet::FleetArguments),
    /// Explain a cause in a report, or a term
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainArguments),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page in roff: `rbloat manual report | man -l -`
    Manual {
        /// The command [default: one page for all commands]
        #[arg(value_parser = command_name)]
        command: Option<String>,
    },
}

/// Runs a command; without one, lists the Ruby processes on this machine.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Failure> {
    let command = arguments.command.as_ref();
    if command.is_some_and(Command::may_be_interrupted) {
        interruption::handle()?;
    }
    match command {
        None => list::run(arguments.json),
        Some(Command::Top(arguments)) => top::run(arguments),
        Some(Command::Report(arguments)) => report::run(arguments),
        Some(Command::Fix(arguments)) => fix::run(arguments),
        Some(Command::Map(arguments)) => map::run(arguments),
        Some(Command::Snapshot(arguments)) => snapshot::run(arguments),
        Some(Command::Diff(arguments)) => diff::run(arguments),
        Some(Command::Compare(arguments)) => compare::run(arguments),
        Some(Command::Trim(arguments)) => trim::run(arguments),
        Some(Command::Record(arguments)) => record::run(arguments),
        Some(Command::Plot(arguments)) => plot::run(arguments),
        Some(Command::Why(arguments)) => why::run(arguments),
        Some(Command::Who(arguments)) => who::run(arguments),
        Some(Command::Agent(arguments)) => agent::run(arguments),
        Some(Command::Export(arguments)) => export::run(arguments),
        Some(Command::Fleet(arguments)) => fleet::run(arguments),
        Some(Command::Explain(arguments)) => explain::run(arguments),
        Some(Command::Completions { shell }) => print(&arguments::completions(*shell)),
        Some(Command::Manual { command }) => print(&arguments::manual(command.as_deref())?),
    }
}

impl Command {
    /// Returns true if the command does not handle the signals that ask it to end, and takes long.
    fn may_be_interrupted(&self) -> bool {
        match self {
            Self::Report(_) | Self::Fix(_) | Self::Map(_) | Self::Snapshot(_) | Self::Diff(_) => {
                true
            }
            Self::Trim(_) | Self::Plot(_) | Self::Why(_) | Self::Export(_) => true,
            Self::Top(_) | Self::Compare(_) | Self::Record(_) | Self::Who(_) => false,
            Self::Agent(_) | Self::Fleet(_) => false,
            Self::Explain(_) | Self::Completions { .. } | Self::Manual { .. } => false,
        }
    }
}

fn command_name(name: &str) -> Result<String, String> {
    let is_known = Command::has_subcommand(name);
    is_known.then(|| name.to_owned()).ok_or_else(|| "there is no such command".to_owned())
}

fn print(bytes: &[u8]) -> Result<Outcome, Failure> {
    terminal::print_generated(bytes)?;
    Ok(Outcome::Done)
}
