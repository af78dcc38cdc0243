//! `rbloat archive`: snapshots of many processes as Parquet files, and questions about them.

mod add;
mod ask;

use std::path::PathBuf;

use archive::QUESTIONS;
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::failure::{Failure, Outcome};
use add::AddArguments;
use ask::{AskArguments, Inquiry};

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat archive DIR --add *.rbloat              add snapshots to the archive in DIR
  rbloat archive DIR                             answer all questions about it
  rbloat archive DIR growth --since 2026-11-20   what grew since a deploy";

#[derive(Debug, Args)]
pub(crate) struct ArchiveArguments {
    /// The folder of the archive
    #[arg(value_name = "DIR")]
    archive: PathBuf,
    /// The questions [default: all]
    #[arg(value_name = "QUESTION", value_parser = PossibleValuesParser::new(QUESTIONS.map(|it| it.name)))]
    questions: Vec<String>,
    #[command(flatten)]
    add: AddArguments,
    #[command(flatten)]
    ask: AskArguments,
}

impl ArchiveArguments {
    /// Returns true if snapshots are added, and nothing is asked.
    pub(crate) fn adds(&self) -> bool {
        !self.add.add.is_empty()
    }
}

pub(crate) fn run(arguments: &ArchiveArguments) -> Result<Outcome, Failure> {
    let ArchiveArguments { archive, questions, add, ask } = arguments;
    match arguments.adds() {
        true => add::run(archive, add),
        false => ask::run(&Inquiry { archive, questions, arguments: ask }),
    }
}
