//! The command line: its first level, and the arguments that several commands share.

mod size;
mod source;
mod time;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, ColorChoice, CommandFactory, Parser};
use clap_complete::Shell;

pub(crate) use size::parse_size;
pub(crate) use source::{
    CaptureArguments, CaptureMode, ProcessArguments, ProcessName, RetainedArguments,
    SourceArguments, SourceName,
};
pub(crate) use time::{
    parse_date, parse_long_time, parse_short_time, parse_time, parse_time_or_never,
};

use crate::commands::Command;

/// The list of commands fills the rest of a screen of 24 lines.
const USAGE: &str = "rbloat [COMMAND] [OPTIONS], such as `rbloat report 4242`";

const EXAMPLES_AND_STATUSES: &str = "\
Examples:
  rbloat               list the Ruby processes on this machine
  rbloat report 4242   show where the memory of process 4242 is, and what to do
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
  126, 127  the program of record, who, compare or fleet cannot be started,
            or was not found
  130       interrupted by ^C; by another signal, 128 and its number";

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
        hide_short_help = true
    )]
    pub(crate) color: ColorChoice,
    /// Show no progress
    #[arg(short, long, global = true, hide_short_help = true)]
    pub(crate) quiet: bool,
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::Help, hide_short_help = true)]
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

/// Returns the word after `--owners` if it is a number.
fn pid_taken_for_a_number(words: &[OsString]) -> Option<&str> {
    let behind = words.iter().skip_while(|word| *word != "--owners").nth(1)?.to_str()?;
    behind.parse::<usize>().is_ok().then_some(behind)
}

/// Returns the completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "rbloat", &mut script);
    script
}

/// Returns the manual page of a command, or one of all commands.
pub(crate) fn manual(of: Option<&str>) -> std::io::Result<Vec<u8>> {
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
    use std::path::Path;
    use std::time::Duration;

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
