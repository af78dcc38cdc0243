use formats::to_json;
use render::TextOptions;

use crate::arguments::ReportArguments;
use crate::failure::{Failure, Outcome};
use crate::source::{Detail, Source};
use crate::terminal;

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let owners = arguments.owners();
    let source = Source::open(arguments.source.name()?)?;
    let detail = if owners > 0 { Detail::Owners } else { Detail::Causes };
    let mut report = source.report(arguments.source.capture, detail)?.brief(owners);
    if owners == 0 {
        report.owners = None;
    }
    if arguments.json {
        terminal::print(&to_json(&report, &render::words::verdict(&report).summary))?;
    } else {
        let options = TextOptions { width: terminal::width(), arenas: arguments.arenas };
        terminal::print(&render::report(&report, options))?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
