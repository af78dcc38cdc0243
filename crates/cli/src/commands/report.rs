use report::TextOptions;

use crate::arguments::ReportArguments;
use crate::failure::{Failure, Outcome};
use crate::source::Source;

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let owners = arguments.owners();
    let source = Source::open(arguments.source.name()?)?;
    let mut report = source.report(arguments.source.capture, owners > 0)?.brief(owners);
    if owners == 0 {
        report.owners = None;
    }
    if arguments.json {
        crate::print(&report.render_json())?;
    } else {
        let options = TextOptions { width: crate::width(), arenas: arguments.arenas };
        crate::print(&report.render_text(options))?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
