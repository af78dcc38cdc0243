use crate::arguments::MapArguments;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::source::Source;

pub(crate) fn run(arguments: &MapArguments) -> Result<Outcome, Failure> {
    if arguments.output.is_some() && arguments.output == arguments.png {
        return Err(Failure::OneFile);
    }
    let source = Source::open(arguments.source.name()?)?;
    let snapshot = source.snapshot(arguments.source.capture)?;
    if let Some(path) = &arguments.output {
        output::write(path, render::map_html(&snapshot).as_bytes())?;
    }
    if let Some(path) = &arguments.png {
        output::write(path, &render::map_png(&snapshot))?;
    }
    Ok(if snapshot.report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
