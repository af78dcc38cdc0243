use std::path::PathBuf;

use clap::Args;
use examine::{Sandbox, SourceName};
use formats::to_json;
use ledger::Subject;
use linux::Address;

use crate::arguments::CaptureArguments;
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat why 4242 Cache::Entry    what retains the objects of a class
  rbloat why 4242 0x7f12deadbeef  what retains the object at an address
  rbloat why core.4242 String     in a core file";

#[derive(Debug, Args)]
pub(crate) struct WhyArguments {
    /// A process, or a core file
    #[arg(value_name = "PID|FILE")]
    source: String,
    /// An address (0x7f12...), as the map, the report or ObjectSpace.dump shows it, or the name of a class
    #[arg(value_name = "ADDRESS|CLASS")]
    subject: String,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    capture: CaptureArguments,
    /// For a core file: the folder with the files that the process had mapped, as in `rbloat report`
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    sysroot: Option<PathBuf>,
}

pub(crate) fn run(arguments: &WhyArguments) -> Result<Outcome, Failure> {
    let subject = subject(&arguments.subject)?;
    let name = SourceName::of(&arguments.source, arguments.sysroot.as_deref());
    let how = arguments.capture.options();
    let sandbox = Sandbox::new(how.sandbox, []);
    let source = naming::source(name)?;
    let argument = source.argument();
    let why = source.explain(how, &subject, &sandbox, &Progress::new())?;
    let text = if arguments.json {
        to_json(&why, &render::why_summary(&why))
    } else {
        render::why(&why, terminal::width())
    };
    terminal::print(&text)?;
    if !arguments.json {
        terminal::suggest(&["rbloat", "report", &argument, "--retained"])?;
    }
    Ok(Outcome::Done)
}

/// Returns an address for words that begin with a digit, and a class for all others.
fn subject(word: &str) -> Result<Subject, Failure> {
    if !word.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(Subject::Class(word.to_owned()));
    }
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    address
        .map(|address| Subject::Address(Address(address)))
        .ok_or_else(|| Failure::NoAddress(word.to_owned()))
}
