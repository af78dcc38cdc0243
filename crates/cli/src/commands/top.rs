use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use render::TopOrder;

use crate::arguments::CaptureArguments;
use crate::failure::{Failure, Outcome};
use crate::remedy::explained;
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat top                watch all Ruby processes; ? shows the keys
  rbloat top puma           only those with puma in their command lines
  rbloat top --sort growth  the one that grows fastest first";

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// Show only processes with this word in their command lines
    #[arg(value_name = "WORD", default_value = "", hide_default_value = true)]
    filter: String,
    /// The order of the processes at first
    #[arg(long, value_parser = order(), default_value = TopOrder::default().column(), value_name = "COLUMN")]
    sort: TopOrder,
    #[command(flatten)]
    capture: CaptureArguments,
}

/// Reads the order of processes.
fn order() -> impl TypedValueParser<Value = TopOrder> {
    PossibleValuesParser::new(TopOrder::ALL.map(TopOrder::column)).map(|column| {
        let order = TopOrder::ALL.into_iter().find(|order| order.column() == column);
        order.expect("it is one of these columns")
    })
}

pub(crate) fn run(arguments: &TopArguments) -> Result<Outcome, Failure> {
    let options = ::top::Options {
        order: arguments.sort,
        filter: arguments.filter.clone(),
        capture: arguments.capture.options(),
        has_colours: terminal::has_colours(),
        explain: explained,
    };
    Ok(match ::top::run(&options)? {
        0 => Outcome::Done,
        status => Outcome::Ended(status),
    })
}
