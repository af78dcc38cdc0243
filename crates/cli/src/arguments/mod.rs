//! What was typed: nothing below sees it as text.

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
  rbloat report 4242            say where the memory of process 4242 is
  rbloat report 4242 --arenas   with a row for each of malloc's arenas
  rbloat report 4242 --json     the same for programs
  rbloat report --namespace-pid 7
                                say it of the process that its container calls 7
  rbloat map 4242 -o heap.html  draw it
  rbloat snapshot 4242 -o app.rbloat
                                keep it, to report, draw or compare elsewhere
  rbloat report app.rbloat      say it of what was kept
  rbloat report core.4242       say it of what gcore or the kernel left of a process
  rbloat diff a.rbloat b.rbloat say what grew from one to the other
  rbloat diff 4242 --every 60s  look three times, and say whether it leaks
  rbloat compare -- ruby job.rb run it under each allocator, and say which to take
  rbloat trim 4242 --dry-run    say what malloc_trim would bring
  rbloat trim 4242 --watch 60s  do it, and see whether it lasts
  rbloat record 4242            write down what it and its children take, until ^C
  rbloat record -- ruby app.rb  start a program, and write it down until it ends
  rbloat plot a.jsonl b.jsonl -o both.html
                                draw what was written down

Exit status:
  0  done
  1  rbloat itself failed
  2  the arguments make no sense
  3  there is nothing to report on: no such process or file, not a Ruby, a kernel thread, a zombie
  4  permission denied
  5  it did not work this time: the process ended, is being traced, or did not stop
  6  the report is incomplete: a part of the process could not be read; it says why";

/// Where a Ruby process's memory went, and how to get it back.
///
/// Looks at the live, unmodified process: no restart, nothing loaded into it, no debug symbols.
/// Without a command it lists the Ruby processes on this machine.
#[derive(Debug, Parser)]
#[command(name = "rbloat", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Arguments {
    /// What was typed.
    ///
    /// # Errors
    /// Where it makes no sense: for clap to print, and to exit by.
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

/// What stands behind `--owners`, where that is a number.
fn pid_taken_for_a_number(words: &[OsString]) -> Option<&str> {
    let behind = words.iter().skip_while(|word| *word != "--owners").nth(1)?.to_str()?;
    behind.parse::<usize>().is_ok().then_some(behind)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say where every resident byte of a process is, what caused it, and what to do
    ///
    /// Pauses the process for some milliseconds (the report says how many) to make a forked copy of it, and
    /// reads that; see --capture and --max-pause.
    #[command(after_help = EXAMPLES)]
    Report(ReportArguments),
    /// Draw every page of a process's memory: in use, free but kept, returned
    ///
    /// The picture is one HTML file that opens in any browser, without network: all arenas, mmapped chunks,
    /// Ruby's heap pages and stacks, by use or by owner; it zooms to single chunks and finds addresses.
    #[command(after_help = EXAMPLES)]
    Map(MapArguments),
    /// Keep what report, map and diff need of a process in a small file, without its data
    ///
    /// No byte of the process's memory is in it but names: of classes, types, constants, variables,
    /// and files, and its command line.
    #[command(after_help = EXAMPLES)]
    Snapshot(SnapshotArguments),
    /// Say what grew from one look at a process to the next, and whether it is a leak
    ///
    /// Compares snapshots, or takes them itself: `rbloat diff PID --every 60s --times 3`. Two tell what
    /// grew, three whether it goes on.
    #[command(after_help = EXAMPLES)]
    Diff(DiffArguments),
    /// Run the same work under each allocator and setting, and say which to take
    ///
    /// Runs COMMAND several times under each setting, in turns, each in a fresh process. Its work is done when it
    /// ends, or uses no processor for a second; with --load the load begins then, and the work is done when that
    /// ends. Its standard input stays open until it is asked to end.
    #[command(after_help = EXAMPLES)]
    Compare(CompareArguments),
    /// Let a process give its free memory back to the kernel, now
    ///
    /// Says first what that will bring. One thread of the process calls malloc_trim(0) (or what jemalloc
    /// or tcmalloc has instead) as if in a signal handler, while the others run on.
    #[command(after_help = EXAMPLES)]
    Trim(TrimArguments),
    /// Write down over time what a process and all that it starts take, and where it is
    ///
    /// Every second what the kernel counts (RSS, PSS, USS, swap, CPU time, page faults, the control group's
    /// use, limit and OOM kills), every 30 s the causes of `rbloat report` for each Ruby. Costs less than
    /// 1 % of a processor: what takes more time is read less often. The file is JSON Lines, and whole at every
    /// instant. Ends with the process, by ^C, or after --duration.
    #[command(after_help = EXAMPLES)]
    Record(RecordArguments),
    /// Draw recordings over each other, and say whether memory is stable
    ///
    /// Memory of all of them on one picture, with limits, OOM kills and falls; below it the causes of each. Without
    /// --output it only says what each comes to.
    #[command(after_help = EXAMPLES)]
    Plot(PlotArguments),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, in roff
    Manual,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show a row for each of malloc's arenas; JSON always has them
    #[arg(long)]
    pub(crate) arenas: bool,
    /// Name the N owners of malloc'ed memory that hold most [default: 10, in JSON 100; alone: 30];
    /// with 0 no owner is looked for, which makes the pause shorter
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "30")]
    owners: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct MapArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// The page to write: one HTML file that needs nothing else
    #[arg(short, long, value_name = "FILE", required_unless_present = "png")]
    pub(crate) output: Option<PathBuf>,
    /// Write the overview as a picture too
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
    /// Two or more processes or files, the oldest first; or one process, with --every
    #[arg(value_name = "PID|FILE", required = true)]
    sources: Vec<String>,
    /// Look at the process anew after each such time: 60s, 5m [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) every: Option<Duration>,
    /// So many looks in all [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100))]
    pub(crate) times: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// Where the files are that the processes of core files had mapped, as in `rbloat report`
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
    /// Only say what it would bring
    #[arg(long, conflicts_with = "watch")]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Watch for this long how much comes back, and say what follows: 60s, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) watch: Option<Duration>,
}

impl ReportArguments {
    /// How many owners are named at most; 0 where none is to be looked for.
    pub(crate) fn owners(&self) -> usize {
        self.owners.unwrap_or(if self.json { 100 } else { 10 })
    }
}

/// The completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "rbloat", &mut script);
    script
}

/// The manual page: all commands on one.
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
