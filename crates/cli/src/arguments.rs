use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  rbloat                        list the Ruby processes on this machine
  rbloat report 4242            say where the memory of process 4242 is
  rbloat report 4242 --arenas   with a row for each of malloc's arenas
  rbloat report 4242 --json     the same for programs
  rbloat report --namespace-pid 7
                                say it of the process that its container calls 7

Exit status:
  0  done
  1  rbloat itself failed
  2  the arguments make no sense
  3  there is nothing to report on: no such process, not a Ruby, a kernel thread, a zombie
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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say where every resident byte of a process is, what caused it, and what to do
    ///
    /// Stops the process for a moment (milliseconds; the report says how many), reads what it
    /// needs and lets it go on. Nothing is written to the process.
    #[command(after_help = EXAMPLES)]
    Report(ReportArguments),
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
    pub(crate) process: ProcessArguments,
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
    pub(crate) namespace_pid: Option<i32>,
}

impl ProcessArguments {
    /// The id that /proc shows; `None` where the process was given as its container calls it.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.source.or(self.pid)
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
    let report = command.find_subcommand("report").expect("there is a command report").clone();
    let report = clap_mangen::Man::new(report.name("rbloat report"));
    page.extend_from_slice(b".SH \"RBLOAT REPORT\"\n");
    report.render_synopsis_section(&mut page)?;
    report.render_description_section(&mut page)?;
    report.render_options_section(&mut page)?;
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
            assert_eq!(report.process.pid(), Some(42));
        }
        assert!(parse(&["rbloat", "report"]).is_err());
        assert!(parse(&["rbloat", "report", "1", "--namespace-pid", "2"]).is_err());
        assert!(parse(&["rbloat", "report", "1", "-p", "2"]).is_err());
        assert!(parse(&["rbloat", "report", "ruby"]).is_err());
    }
}
