use std::path::PathBuf;

use clap::Args;
use examine::{Detail, Sandbox};
use output::{Output, default_path};

use super::family;
use crate::arguments::{RetainedArguments, SourceArguments, WasteArguments, check_extension};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat snapshot 4242                save it in rbloat-4242-TIME.rbloat
  rbloat snapshot 4242 -o app.rbloat  save it in this file
  rbloat report app.rbloat            report on it, on any machine";

#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// The file to write [default: rbloat-PID-TIME.rbloat]
    ///
    /// `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Save the account of the whole family of forked processes
    ///
    /// The file has what `rbloat report --tree` prints. `report --tree` and `diff --tree` read it.
    #[arg(long, conflicts_with_all = ["retained", "waste", "sysroot"])]
    pub(crate) tree: bool,
    #[command(flatten)]
    pub(crate) retained: RetainedArguments,
    #[command(flatten)]
    waste: WasteArguments,
}

pub(crate) fn run(arguments: &SnapshotArguments) -> Result<Outcome, Failure> {
    check_extension(arguments.output.as_deref(), "rbloat")?;
    if arguments.tree {
        return save_family(arguments);
    }
    let source = naming::source(arguments.source.name()?)?;
    let path = arguments.output.clone().unwrap_or_else(|| default_path(&source.name(), "rbloat"));
    let output = Output::open(&path)?;
    let is_taken = output.is_standard_output();
    let how = arguments.source.capture.options();
    let sandbox = Sandbox::new(how.sandbox, [&output]);
    let mut detail = Detail::snapshot(arguments.retained.retained);
    detail.analyses.contents = arguments.waste.waste;
    let snapshot = source.account(how, detail, &sandbox, &Progress::new())?;
    let bytes = snapshot.to_bytes();
    output.write(&bytes)?;
    let report = &snapshot.report;
    let summary = render::saved_snapshot(report, &path, bytes.len() as u64);
    terminal::print_beside(is_taken, &terminal::wrapped(&summary))?;
    if !is_taken {
        terminal::suggest(&["rbloat", "report", &path.display().to_string()])?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}

/// Saves the account of a family.
fn save_family(arguments: &SnapshotArguments) -> Result<Outcome, Failure> {
    let members = family::members_of(&[arguments.source.name()?])?;
    let name = members.oldest().to_string();
    let path = arguments.output.clone().unwrap_or_else(|| default_path(&name, "rbloat"));
    let output = Output::open(&path)?;
    let is_taken = output.is_standard_output();
    let how = arguments.source.capture.options();
    let family = family::account(members, how, Detail::OWNERS, false)?;
    let bytes = family.to_bytes();
    output.write(&bytes)?;
    let summary = render::saved_family(&family, &path, bytes.len() as u64);
    terminal::print_beside(is_taken, &terminal::wrapped(&summary))?;
    if !is_taken {
        terminal::suggest(&["rbloat", "report", "--tree", &path.display().to_string()])?;
    }
    Ok(family::outcome(&family))
}
