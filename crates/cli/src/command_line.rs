//! The command line: the arguments of its first level, and the commands.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, ColorChoice, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::{
    agent, archive, compare, diff, dump, explain, list, map, record, report, snapshot, top, trim,
    who, why,
};
use crate::failure::{Failure, Outcome};
use crate::{progress, terminal};

/// The list of commands fills the rest of a screen of 24 lines.
const USAGE: &str = "rbloat [COMMAND] [OPTIONS], such as `rbloat report 4242`";

/// Clap's own, without the line between the usage and the commands.
const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}\n{all-args}{after-help}";

const EXAMPLES_AND_STATUSES: &str = "\
Examples:
  rbloat               list the Ruby processes on this machine
  rbloat report 4242   show where the memory of process 4242 is, and what to do
  rbloat dump 4242     save all its objects as data
  rbloat help report   options and examples of a command

Exit status:
  0         success
  1         rbloat failed
  2         invalid arguments
  3         nothing to examine: no such process or file, not a Ruby process,
            a kernel thread, a zombie
  4         permission denied
  5         temporary failure: the process ended, is being traced, did not stop,
            or lacks memory
  6         incomplete: a part of the process could not be read, or a run of a
            comparison failed
  7         RSS grew by more than --fail-over
  126, 127  the program of record, who, compare or archive cannot start,
            or was not found
  130       interrupted by ^C; by another signal, 128 and its number";

/// The place of the options of all commands in the help of each: behind its own.
const LAST: usize = 1000;

/// Find out where a Ruby process's memory went, and how to get it back
///
/// rbloat examines the live, unmodified process: no restart, no code loaded into it, no debug symbols.
/// Without a command it lists the Ruby processes on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "rbloat",
    version,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = USAGE,
    help_template = TEMPLATE,
    after_long_help = EXAMPLES_AND_STATUSES
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Without a command: print the list as a JSON document
    #[arg(long, hide_short_help = true)]
    pub(crate) json: bool,
    /// When to use colours
    ///
    /// `auto`: on a terminal, unless NO_COLOR is set, or if CLICOLOR_FORCE is.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_short_help = true,
        display_order = LAST
    )]
    pub(crate) color: ColorChoice,
    /// Show no progress
    #[arg(short, long, global = true, hide_short_help = true, display_order = LAST)]
    pub(crate) quiet: bool,
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::Help, hide_short_help = true, display_order = LAST)]
    help: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, hide_short_help = true)]
    version: Option<bool>,
}

impl Arguments {
    /// Parses the command line.
    ///
    /// # Errors
    /// If the arguments are invalid. clap prints the error and exits.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().collect();
        let arguments = Self::try_parse_from(&words).map_err(|mut error| {
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
        })?;
        if arguments.json && arguments.command.is_some() {
            let message = "write --json behind the command: `rbloat report 4242 --json`";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(arguments)
    }
}

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
    /// forked copy of it, which is then read. See --capture and --max-pause. Of recordings it shows if memory is stable.
    #[command(override_usage = report::USAGE, after_help = report::EXAMPLES)]
    Report(report::ReportArguments),
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
    /// per line. The recording ends with the process, by ^C, or after --for.
    #[command(after_help = record::EXAMPLES)]
    Record(record::RecordArguments),
    /// Show which code makes the memory of a process grow
    ///
    /// Memory grows by page faults. The kernel samples them, and copies the stack of the thread that faulted. The result names methods,
    /// lines of the application, threads, kinds of memory and native libraries. Nothing is loaded into the process. At the beginning it pauses for some milliseconds, as for a report.
    /// Processes that it forks are followed.
    #[command(after_help = who::EXAMPLES)]
    Who(who::WhoArguments),
    /// Explain why an object, or the objects of a class, are not freed
    ///
    /// Shows the shortest paths that retain it, the objects that refer to it, and what would be freed with it. A snapshot does
    /// not have the references between objects, so this needs a process or a core.
    #[command(after_help = why::EXAMPLES)]
    Why(why::WhyArguments),
    /// Save all objects of a process with their references, as data
    ///
    /// The file has the format of `ObjectSpace.dump_all`, for the tools that read it, and more fields. A folder gets Parquet
    /// tables, and questions about them in SQL for DuckDB. Nothing is loaded into the process, which pauses as for a report.
    #[command(after_help = dump::EXAMPLES, mut_arg("source", |it| it.help("A process, or a core file")))]
    Dump(dump::DumpArguments),
    /// Serve the memory of all Ruby processes on this machine as metrics
    ///
    /// Prometheus, or anything that reads its format, gets them from http://ADDRESS/metrics: the kernel's figures, the
    /// causes of each process's memory, the verdict, the limits of control groups, and the agent's own cost. Processes are
    /// named by container and role. They are captured one at a time, for 0.3 % of a processor in the long run, and not while
    /// memory is short.
    #[command(after_help = agent::EXAMPLES)]
    Agent(agent::AgentArguments),
    /// Keep snapshots of a fleet as Parquet files, ask about them by SQL
    ///
    /// DuckDB, Spark and other engines read the archive: a folder for each table, with folders for the days and services in it. Questions
    /// are answered by the program duckdb, which has to be installed; --print prints the SQL for other engines.
    #[command(after_help = archive::EXAMPLES)]
    Archive(archive::ArchiveArguments),
    /// Explain a cause in a report, or a term
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainArguments),
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page in roff: `rbloat manual report | man -l -`
    #[command(hide = true)]
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
        examine::handle_signals(|| {
            progress::abandon();
            terminal::complain("interrupted");
        })?;
    }
    match command {
        None => list::run(arguments.json),
        Some(Command::Top(arguments)) => top::run(arguments),
        Some(Command::Report(arguments)) => report::run(arguments),
        Some(Command::Map(arguments)) => map::run(arguments),
        Some(Command::Snapshot(arguments)) => snapshot::run(arguments),
        Some(Command::Diff(arguments)) => diff::run(arguments),
        Some(Command::Compare(arguments)) => compare::run(arguments),
        Some(Command::Trim(arguments)) => trim::run(arguments),
        Some(Command::Record(arguments)) => record::run(arguments),
        Some(Command::Why(arguments)) => why::run(arguments),
        Some(Command::Dump(arguments)) => dump::run(arguments),
        Some(Command::Who(arguments)) => who::run(arguments),
        Some(Command::Agent(arguments)) => agent::run(arguments),
        Some(Command::Archive(arguments)) => archive::run(arguments),
        Some(Command::Explain(arguments)) => explain::run(arguments),
        Some(Command::Completions { shell }) => print(&completions(*shell)),
        Some(Command::Manual { command }) => print(&manual(command.as_deref())?),
    }
}

impl Command {
    /// Returns true if the command does not handle the signals that ask it to end, and takes long.
    fn may_be_interrupted(&self) -> bool {
        match self {
            Self::Report(_) | Self::Map(_) | Self::Snapshot(_) | Self::Diff(_) => true,
            Self::Trim(_) | Self::Why(_) | Self::Dump(_) => true,
            Self::Top(_) | Self::Compare(_) | Self::Record(_) | Self::Who(_) => false,
            Self::Archive(arguments) => arguments.adds(),
            Self::Agent(_) => false,
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

/// Returns the word after `--owners` if it is a number.
fn pid_taken_for_a_number(words: &[OsString]) -> Option<&str> {
    let behind = words.iter().skip_while(|word| *word != "--owners").nth(1)?.to_str()?;
    behind.parse::<usize>().is_ok().then_some(behind)
}

/// Returns the completion script for a shell.
fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "rbloat", &mut script);
    script
}

/// Returns the manual page of a command, or one of all commands.
fn manual(of: Option<&str>) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let mut command = Arguments::command();
    // Options of all commands become those of each.
    command.build();
    if let Some(subcommand) = of.and_then(|name| command.find_subcommand(name)) {
        let name = format!("rbloat-{}", subcommand.get_name());
        let spelled = format!("rbloat {}", subcommand.get_name());
        let subcommand = subcommand.clone().name(name).bin_name(&spelled).display_name(spelled);
        clap_mangen::Man::new(subcommand).render(&mut page)?;
        return Ok(page);
    }
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for subcommand in command.get_subcommands() {
        let whole = format!("rbloat {}", subcommand.get_name());
        page.extend_from_slice(format!(".SH \"{}\"\n", whole.to_uppercase()).as_bytes());
        let section = clap_mangen::Man::new(subcommand.clone().name(whole));
        section.render_synopsis_section(&mut page)?;
        section.render_description_section(&mut page)?;
        section.render_options_section(&mut page)?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use examine::{ProcessName, SourceName};

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_option_is_a_flag_in_every_command_or_takes_a_value_in_every_command() {
        let mut command = Arguments::command();
        command.build();
        let mut forms = BTreeMap::new();
        for command in command.get_subcommands() {
            let options = command.get_arguments().filter_map(|it| Some((it.get_long()?, it)));
            for (name, option) in options {
                let form = (option.get_action().takes_values(), command.get_name());
                let (takes_value, other) = *forms.entry(name).or_insert(form);
                // `record --csv FILE` writes beside the recording; `archive --csv` is a form of the answer.
                assert!(
                    form.0 == takes_value || name == "csv",
                    "--{name} of {} and {other}",
                    form.1
                );
            }
        }
        assert_eq!(forms.get("who"), Some(&(true, "report")));
    }

    /// They were in the middle of the many options of the agent.
    #[test]
    fn the_options_of_all_commands_come_last_in_the_help_of_each() {
        let mut command = Arguments::command();
        command.build();
        for command in command.get_subcommands_mut().filter(|it| it.get_name() != "help") {
            let help = command.render_long_help().to_string();
            let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
            let lines: Vec<&str> = lines.collect();
            let last = lines[lines.len() - 3..].concat();
            let are_last = ["--color", "--quiet", "--help"].iter().all(|it| last.contains(it));
            assert!(are_last, "{}: {lines:?}", command.get_name());
        }
    }

    #[test]
    fn a_pid_is_taken_either_way_but_once() {
        let parse = |words: &[&str]| Arguments::try_parse_from(words);
        let named = [
            (["rbloat", "report", "42"], ProcessName::Pid(42)),
            (["rbloat", "report", "--namespace-pid=7"], ProcessName::NamespacePid(7)),
        ];
        for (words, name) in named {
            let Some(Command::Report(report)) = parse(&words).unwrap().command else { panic!() };
            assert_eq!(report.source.name().unwrap(), SourceName::Process(name));
        }
        assert!(parse(&["rbloat", "report"]).is_err());
        assert!(parse(&["rbloat", "report", "1", "--namespace-pid", "2"]).is_err());
        let process = |word: &str| SourceName::Process(ProcessName::Command(word.to_owned()));
        assert_eq!(SourceName::of("puma", None), process("puma"));
        for (word, sysroot) in [
            ("./42", None),
            ("Cargo.toml", None),
            ("core.7", None),
            ("a.rbloat", None),
            ("x", Some("root")),
        ] {
            let sysroot = sysroot.map(Path::new);
            let file = SourceName::File { path: word.into(), sysroot: sysroot.map(Path::to_owned) };
            assert_eq!(SourceName::of(word, sysroot), file);
        }
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
        assert_eq!(by_pid.recorded.process.as_deref(), Some("42"));
        assert_eq!(by_pid.every, Duration::from_millis(200));
        assert_eq!(by_pid.causes_every, Some(Duration::ZERO));
        let started = parse(&["-o", "a", "--", "ruby", "-e", "--every", "--"]).unwrap();
        assert_eq!(started.recorded.command, ["ruby", "-e", "--every", "--"]);
        for wrong in [&[][..], &["42", "--", "ruby"], &["42", "--every", "1ms"], &["--"]] {
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
