use clap::Args;
use formats::to_json;
use ledger::Extent;
use render::TextOptions;

use crate::arguments::{RetainedArguments, SourceArguments};
use crate::failure::{Failure, Outcome};
use crate::samples::SamplesArguments;
use crate::sandbox::Sandbox;
use crate::source::{Detail, Source};
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat report 4242                 where the memory of process 4242 is
  rbloat report puma                 of the only Ruby process with puma in its command line
  rbloat report app.rbloat --arenas  of a snapshot, with a row for each of malloc's arenas";

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
    /// Show the interpreter's own memory: by kind, and its bytecode by gem and file
    ///
    /// JSON always has it. Without this option, kinds and gems are shown if the interpreter is a large part of the
    /// process
    #[arg(long)]
    pub(crate) code: bool,
    /// Show the N owners that hold most malloc'ed memory [default: 10, in JSON 100; without N: 30]
    ///
    /// With 0, owners are not searched for, which is faster
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "30")]
    owners: Option<usize>,
    /// Report on the whole family of the process, as one account in which shared memory counts once
    ///
    /// The family are the processes that were forked from each other: a Puma master and its workers. The report shows the
    /// memory that they share, the memory of each, and which memory was copied since the fork
    #[arg(long, conflicts_with_all = ["arenas", "code", "retained", "who", "sysroot"])]
    tree: bool,
    #[command(flatten)]
    pub(crate) retained: RetainedArguments,
    #[command(flatten)]
    pub(crate) samples: SamplesArguments,
}

impl ReportArguments {
    /// Returns the number of owners to show. 0 means that owners are not searched for.
    pub(crate) fn owners(&self) -> usize {
        self.owners.unwrap_or(if self.json { 100 } else { 10 })
    }
}

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    if arguments.tree {
        return super::family::run(arguments);
    }
    let owners = arguments.owners();
    let source = Source::open(arguments.source.name()?)?;
    if owners == 0 && arguments.retained.retained {
        return Err(Failure::RetainedWithoutOwners);
    }
    let samples = arguments.samples.read()?;
    let extent = Extent { memory_map: samples.is_some(), ..arguments.retained.extent() };
    let detail = Detail { owners: owners > 0 || arguments.code, extent };
    let sandbox = Sandbox::new(arguments.source.capture.sandbox, []);
    let mut snapshot = source.account(arguments.source.capture, detail, &sandbox)?;
    if let Some(samples) = samples {
        let who = samples.of(&snapshot)?;
        diagnosis::name_code(&mut snapshot, &who);
    }
    let mut report = snapshot.report.brief(owners);
    if owners == 0 {
        report.owners = None;
    }
    if arguments.json {
        terminal::print(&to_json(&report, &render::words::verdict(&report).summary))?;
    } else {
        let (arenas, code) = (arguments.arenas, arguments.code);
        let options = TextOptions { width: terminal::width(), arenas, code };
        terminal::print(&render::report(&report, options))?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
