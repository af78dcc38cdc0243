//! The command line. No other module sees it as text.

mod over_time;
mod source;
mod time;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use over_time::{CompareArguments, PlotArguments, RecordArguments, Variable};
pub(crate) use source::{
    CaptureArguments, CaptureMode, ProcessArguments, ProcessName, SourceArguments, SourceName,
};
use time::parse_time;

const EXAMPLES: &str = "\
Examples:
  rbloat                        list the Ruby processes on this machine
  rbloat report 4242            show where the memory of process 4242 is
  rbloat report 4242 --arenas   also show a row for each of malloc's arenas
  rbloat report 4242 --json     print the same as JSON
  rbloat report --namespace-pid 7
                                report on the process that has pid 7 in its container
  rbloat map 4242 -o heap.html  draw every page of its memory
  rbloat snapshot 4242 -o app.rbloat
                                save its state, for report, map and diff
  rbloat report app.rbloat      report on a snapshot, on any machine
  rbloat report core.4242       report on a core file of gcore or the kernel
  rbloat diff a.rbloat b.rbloat show what grew between two snapshots
  rbloat diff 4242 --every 60s  take three snapshots, and find out whether it leaks
  rbloat compare -- ruby job.rb run a program under each allocator, and recommend one
  rbloat trim 4242 --dry-run    predict how much memory malloc_trim would free
  rbloat trim 4242 --watch 60s  free it, and see whether that lasts
  rbloat record 4242            record the memory of a process and its children, until ^C
  rbloat record -- ruby app.rb  start a program, and record it until it ends
  rbloat plot a.jsonl b.jsonl -o both.html
                                draw recordings

Exit status:
  0  success
  1  rbloat failed
  2  invalid arguments
  3  nothing to examine: no such process or file, not a Ruby process, a kernel thread, a zombie
  4  permission denied
  5  temporary failure: the process ended, is being traced, did not stop, or lacks memory
  6  incomplete: a part of the process could not be read, or a run of a comparison failed";

/// Find out where a Ruby process's memory went, and how to get it back
///
/// rbloat examines the live, unmodified process: no restart, no code loaded into it, no debug symbols.
/// Without a command it lists the Ruby processes on this machine.
#[derive(Debug, Parser)]
#[command(name = "rbloat", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Arguments {
    /// Parses the command line.
    ///
    /// # Errors
    /// If the arguments are invalid. clap prints the error and exits.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().collect();
        Self::try_parse_from(&words).map_err(|mut error| {
            if error.kind() == ErrorKind::MissingRequiredArgument
                && let Some(pid) = pid_taken_for_a_number(&words)
            {
                let tip = format!(
                    "--owners took {pid} as its number; write --owners=10 {pid}, or {pid} --owners"
                );
                let tips = ContextValue::StyledStrs(vec![tip.into()]);
                error.insert(ContextKind::Suggested, tips);
            }
            error
        })
    }
}

/// Returns the word after `--owners` if it is a number.
fn pid_taken_for_a_number(words: &[OsString]) -> Option<&str> {
    let behind = words.iter().skip_while(|word| *word != "--owners").nth(1)?.to_str()?;
    behind.parse::<usize>().is_ok().then_some(behind)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show where the memory of a process is, what causes it, and what to do
    ///
    /// Every resident byte has exactly one cause. The process pauses for some milliseconds, while the kernel makes a
    /// forked copy of it, which is then read. See --capture and --max-pause.
    #[command(after_help = EXAMPLES)]
    Report(ReportArguments),
    /// Draw every page of a process's memory: in use, free but kept, or returned
    ///
    /// The map is one HTML file that opens in any browser without network. It shows all arenas, mmapped chunks, Ruby's
    /// heap pages and stacks, by use or by owner. It zooms to single chunks, and finds addresses.
    #[command(after_help = EXAMPLES)]
    Map(MapArguments),
    /// Save the state of a process in a small file, for report, map and diff
    ///
    /// The file has no data of the process. It has only names (of classes, types, constants, variables and files), and
    /// the command line.
    #[command(after_help = EXAMPLES)]
    Snapshot(SnapshotArguments),
    /// Show what grew between snapshots of a process, and whether it is a leak
    ///
    /// Compares snapshots, or takes them itself: `rbloat diff PID --every 60s --times 3`. Two snapshots show what grew,
    /// three show whether the growth continues.
    #[command(after_help = EXAMPLES)]
    Diff(DiffArguments),
    /// Run a program under each allocator and setting, and recommend one
    ///
    /// Runs COMMAND several times under each setting, in turns, each time as a new process. The work is done when
    /// COMMAND ends or has used no CPU time for a second. With --load, the load starts then, and the work is done when
    /// the load ends. The standard input of COMMAND stays open until rbloat asks it to end.
    #[command(after_help = EXAMPLES)]
    Compare(CompareArguments),
    /// Return the free memory of a process to the kernel now
    ///
    /// Prints a prediction first. Then one thread of the process calls malloc_trim(0), or the equivalent of jemalloc or
    /// tcmalloc, in a signal handler. The other threads keep running.
    #[command(after_help = EXAMPLES)]
    Trim(TrimArguments),
    /// Record the memory use of a process and its children over time
    ///
    /// Every second it records the kernel's figures: RSS, PSS, USS, swap, CPU time, page faults, and the usage, limit
    /// and OOM kills of the control group. Every 30 s it records the causes of each Ruby process, as in `rbloat report`.
    /// Readings that cost more than 1 % of a processor in total are made less often. The file has one JSON object
    /// per line. The recording ends with the process, by ^C, or after --duration.
    #[command(after_help = EXAMPLES)]
    Record(RecordArguments),
    /// Draw recordings in one picture, and find out whether memory is stable
    ///
    /// The picture shows the memory of all recordings with limits, OOM kills and falls, and below it the causes of each.
    /// Without --output it only prints a summary of each recording.
    #[command(after_help = EXAMPLES)]
    Plot(PlotArguments),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page in roff
    Manual,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show a row for each of malloc's arenas. JSON always has them
    #[arg(long)]
    pub(crate) arenas: bool,
    /// Show the N owners that hold most malloc'ed memory [default: 10, in JSON 100; without N: 30].
    /// With 0, owners are not searched for, which is faster
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "30")]
    owners: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct MapArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// The HTML file to write
    #[arg(short, long, value_name = "FILE", required_unless_present = "png")]
    pub(crate) output: Option<PathBuf>,
    /// Also write the overview as a PNG picture
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// Two or more snapshots, core files or processes, oldest first; or one process, with --every
    #[arg(value_name = "PID|FILE", required = true)]
    sources: Vec<String>,
    /// Time between two snapshots of one process: 60s, 5m [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) every: Option<Duration>,
    /// Number of snapshots [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100))]
    pub(crate) times: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// For core files: the folder with the files that the processes had mapped, as in `rbloat report`
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

impl DiffArguments {
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, SourceName)> {
        let name = |source: &str| SourceName::from(source).below(self.sysroot.as_deref());
        self.sources.iter().map(move |source| (source.as_str(), name(source)))
    }
}

#[derive(Debug, Args)]
pub(crate) struct TrimArguments {
    #[command(flatten)]
    pub(crate) process: ProcessArguments,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// Only print the prediction
    #[arg(long, conflicts_with = "watch")]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Then watch RSS for this time, and report how much memory comes back: 60s, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) watch: Option<Duration>,
}

impl ReportArguments {
    /// Returns the number of owners to show. 0 means that owners are not searched for.
    pub(crate) fn owners(&self) -> usize {
        self.owners.unwrap_or(if self.json { 100 } else { 10 })
    }
}

/// Returns the completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "rbloat", &mut script);
    script
}

/// Returns the manual page of all commands.
pub(crate) fn manual() -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let command = Arguments::command();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for (name, whole) in [
        ("report", "rbloat report"),
        ("map", "rbloat map"),
        ("snapshot", "rbloat snapshot"),
        ("diff", "rbloat diff"),
        ("compare", "rbloat compare"),
        ("trim", "rbloat trim"),
        ("record", "rbloat record"),
        ("plot", "rbloat plot"),
    ] {
        let command = command.find_subcommand(name).expect("there is such a command").clone();
        let section = clap_mangen::Man::new(command.name(whole));
        page.extend_from_slice(format!(".SH \"{}\"\n", whole.to_uppercase()).as_bytes());
        section.render_synopsis_section(&mut page)?;
        section.render_description_section(&mut page)?;
        section.render_options_section(&mut page)?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_pid_is_taken_either_way_but_once() {
        let parse = |words: &[&str]| Arguments::try_parse_from(words);
        for words in [["rbloat", "report", "42", "--json"], ["rbloat", "report", "-p42", "--json"]]
        {
            let Some(Command::Report(report)) = parse(&words).unwrap().command else { panic!() };
            assert_eq!(report.source.name().unwrap(), SourceName::Process(ProcessName::Pid(42)));
        }
        assert!(parse(&["rbloat", "report"]).is_err());
        assert!(parse(&["rbloat", "report", "1", "--namespace-pid", "2"]).is_err());
        assert!(parse(&["rbloat", "report", "1", "-p", "2"]).is_err());
        assert!(parse(&["rbloat", "trim", "ruby"]).is_err());
        let file = SourceName::File { path: "./42".into(), sysroot: None };
        assert_eq!(SourceName::from("./42"), file);
    }

    #[test]
    fn a_recording_is_of_a_process_or_of_a_program_that_is_started() {
        let parse = |words: &[&str]| {
            let words = ["rbloat", "record"].iter().chain(words);
            Arguments::try_parse_from(words).map(|arguments| match arguments.command {
                Some(Command::Record(record)) => record,
                _ => panic!("not a recording"),
            })
        };
        let by_pid = parse(&["42", "--every", "200ms", "--causes-every", "0"]).unwrap();
        assert_eq!((by_pid.recorded.pid, by_pid.every), (Some(42), Duration::from_millis(200)));
        assert_eq!(by_pid.causes_every, Duration::ZERO);
        let started = parse(&["-o", "a", "--", "ruby", "-e", "--every", "--"]).unwrap();
        assert_eq!(started.recorded.command, ["ruby", "-e", "--every", "--"]);
        for wrong in [&[][..], &["42", "--", "ruby"], &["42", "--every", "1ms"], &["--"], &["ruby"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_pid_that_owners_took_as_its_number_is_told_so() {
        let complaint = |words: &[&str]| {
            let words = ["rbloat", "report"].iter().chain(words).map(OsString::from);
            Arguments::read(words).map(drop).map_err(|error| error.to_string())
        };
        let complaint_of_one = complaint(&["--json", "--owners", "4242"]).unwrap_err();
        let tip = "tip: --owners took 4242 as its number; write --owners=10 4242, or 4242 --owners";
        assert!(complaint_of_one.contains(tip), "{complaint_of_one}");
        for words in [&["--owners"][..], &["--owners", "--json"], &["--owners=4242"]] {
            assert!(!complaint(words).unwrap_err().contains("took"), "{words:?}");
        }
        for words in
            [&["4242", "--owners"][..], &["--owners=10", "4242"], &["--owners", "10", "4242"]]
        {
            assert_eq!(complaint(words), Ok(()));
        }
    }
}
