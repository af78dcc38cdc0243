use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use compare::Setting;

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
  4  not permitted
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
    /// Stops the process for a moment (milliseconds; the report says how many), reads what it
    /// needs and lets it go on. Of a large process it reads a clone; see --capture.
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
    /// How to hold a process still, as in `rbloat report`
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub(crate) capture: CaptureMode,
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
pub(crate) struct CompareArguments {
    /// What to compare, with commas: default, arena2, jemalloc, tcmalloc, mimalloc, trim, gem. The first is what the
    /// others are held against. [default: all that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_setting)]
    pub(crate) with: Vec<Setting>,
    /// How often each runs: with three a difference can be told from noise, with five for sure
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// A load on COMMAND: a line of shell that prints what wrk prints (--latency), or a line of JSON
    #[arg(long, value_name = "LINE")]
    pub(crate) load: Option<String>,
    /// How long to wait after the work before what is left is measured: jemalloc needs 10 s to give back
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_time)]
    pub(crate) settle: Duration,
    /// The folder of rbloat's gem, for the setting gem
    #[arg(long, value_name = "FOLDER")]
    pub(crate) gem: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write comparison.json, comparison.md and comparison.svg into this folder
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// The work
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

fn parse_setting(name: &str) -> Result<Setting, String> {
    Setting::by_name(name).ok_or_else(|| {
        let names = Setting::ALL.map(Setting::name);
        format!("there is no such setting; there are {}", names.join(", "))
    })
}

/// What is to be looked at.
#[derive(Debug, Args)]
pub(crate) struct SourceArguments {
    #[command(flatten)]
    which: WhichArguments,
    /// How to hold the process still
    ///
    /// `freeze`: it stands while it is read, and nothing is written to it. `fork`: it stands while it
    /// makes a clone of itself, which is read instead; one of its threads runs clone(2) as if in a signal
    /// handler. `auto`: freeze where that takes less than 50 ms, above that fork where it is safe.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub(crate) capture: CaptureMode,
    /// Where the files are that the process of a core file had mapped (libruby, libc ...), as below its
    /// root: for a core of another machine or a container
    #[arg(long, value_name = "DIR", conflicts_with_all = ["pid", "namespace_pid"])]
    sysroot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WhichArguments {
    /// A process, a file that `rbloat snapshot` wrote, or a core file
    #[arg(value_name = "PID|FILE")]
    source: Option<String>,
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: Option<i32>,
    /// The process by the id that it has inside its container, seen from outside of that
    #[arg(long, value_name = "PID")]
    namespace_pid: Option<i32>,
}

/// How a process is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessName {
    /// By the id that /proc shows.
    Pid(i32),
    /// As its container calls it.
    NamespacePid(i32),
}

/// How that is called which is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceName {
    Process(ProcessName),
    File {
        path: PathBuf,
        /// The folder below which the files are that the process of a core had mapped.
        sysroot: Option<PathBuf>,
    },
}

impl From<&str> for SourceName {
    /// A number is a process; a file of such a name is written `./4242`.
    fn from(source: &str) -> Self {
        match source.parse() {
            Ok(pid) => Self::Process(ProcessName::Pid(pid)),
            Err(_) => Self::File { path: source.into(), sysroot: None },
        }
    }
}

impl SourceName {
    /// The same, with the folder below which the files are that the process of a core had mapped.
    fn below(self, folder: Option<&Path>) -> Self {
        match self {
            Self::File { path, .. } => Self::File { path, sysroot: folder.map(Path::to_owned) },
            process => process,
        }
    }
}

impl SourceArguments {
    pub(crate) fn name(&self) -> SourceName {
        let WhichArguments { source, pid, namespace_pid } = &self.which;
        match (source, pid, namespace_pid) {
            (Some(source), ..) => SourceName::from(source.as_str()).below(self.sysroot.as_deref()),
            (_, Some(pid), _) => SourceName::Process(ProcessName::Pid(*pid)),
            (.., namespace_pid) => {
                let pid = namespace_pid.expect("clap requires one of them");
                SourceName::Process(ProcessName::NamespacePid(pid))
            }
        }
    }
}

/// How a process is held still.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaptureMode {
    #[default]
    Auto,
    Fork,
    Freeze,
}

#[derive(Debug, Args)]
pub(crate) struct TrimArguments {
    #[command(flatten)]
    pub(crate) process: ProcessArguments,
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

/// What is recorded.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct RecordedArguments {
    /// The process
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<i32>,
    /// A program to start, with its arguments; signals and its exit status are passed on
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    pub(crate) recorded: RecordedArguments,
    /// The file to write [default: rbloat-PID-TIME.jsonl]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write the samples as comma-separated values too
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Stop recording after this time: 60s, 5m, 1h; a program that was started runs on
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Count after each such time: 200ms, 1s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_short_time, default_value = "1s")]
    pub(crate) every: Duration,
    /// Look for the causes after each such time; with 0 never
    #[arg(long, value_name = "TIME", value_parser = parse_time_or_never, default_value = "30s")]
    pub(crate) causes_every: Duration,
    /// How to hold a Ruby still for its causes, as in `rbloat report`
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub(crate) capture: CaptureMode,
}

#[derive(Debug, Args)]
pub(crate) struct PlotArguments {
    /// Files that `rbloat record` wrote, or still writes
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The picture to write; the end of its name says as what: .html, .svg or .png
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// A time as [`parse_time`] takes it, or in milliseconds: as short as makes sense for RSS.
fn parse_short_time(text: &str) -> Result<Duration, String> {
    let Some(number) = text.strip_suffix("ms") else { return parse_time(text) };
    match number.parse::<u64>().ok().filter(|number| (10..=86_400_000).contains(number)) {
        Some(number) => Ok(Duration::from_millis(number)),
        None => Err("a time is written 200ms, 60s, 5m or 1h, and is 10ms at least".into()),
    }
}

/// A time as [`parse_time`] takes it, or 0.
fn parse_time_or_never(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_time(text) }
}

/// A time in seconds or, with a unit, in seconds, minutes or hours.
fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| "a time is written 60s, 5m or 1h".to_owned())?;
    match number.checked_mul(unit).filter(|seconds| (1..=86_400).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("a time is between a second and a day".into()),
    }
}

impl ReportArguments {
    /// How many owners are named at most; 0 where none is to be looked for.
    pub(crate) fn owners(&self) -> usize {
        self.owners.unwrap_or(if self.json { 100 } else { 10 })
    }
}

/// The process, in one of three ways.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ProcessArguments {
    /// The process
    #[arg(value_name = "PID")]
    source: Option<i32>,
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: Option<i32>,
    /// The process by the id that it has inside its container, seen from outside of that
    #[arg(long, value_name = "PID")]
    namespace_pid: Option<i32>,
}

impl ProcessArguments {
    pub(crate) fn name(&self) -> ProcessName {
        match (self.source.or(self.pid), self.namespace_pid) {
            (Some(pid), _) => ProcessName::Pid(pid),
            (None, namespace_pid) => {
                ProcessName::NamespacePid(namespace_pid.expect("clap requires one of them"))
            }
        }
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
            assert_eq!(report.source.name(), SourceName::Process(ProcessName::Pid(42)));
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
