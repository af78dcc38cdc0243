use std::path::{Path, PathBuf};

use clap::Args;
use examine::{FamilyMembers, Sandbox, Source};
use output::{Output, default_path};
use render::PageColours;

use crate::arguments::{RetainedArguments, SamplesArguments, SourceArguments, format_of};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat map 4242                     draw it into rbloat-4242-TIME.html
  rbloat map app.rbloat -o heap.html  draw a snapshot
  rbloat map 4242 -o heap.png         draw the overview as a picture";

#[derive(Debug, Args)]
pub(crate) struct MapArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// The file to write [default: rbloat-PID-TIME.html]
    ///
    /// `-` is standard output. A name that ends in .png gets the overview as a picture. With --who it has the colours of the code
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Colour pages by who shares them in the family of forked processes
    ///
    /// Shared by all of its processes, by some, private as a copy of a page of the parent, or private and new. Needs a live process.
    #[arg(long, conflicts_with_all = ["who", "sysroot"])]
    pub(crate) tree: bool,
    #[command(flatten)]
    pub(crate) retained: RetainedArguments,
    #[command(flatten)]
    pub(crate) samples: SamplesArguments,
}

/// The format of a map.
#[derive(Clone, Copy)]
enum Format {
    Page,
    Picture,
}

/// The formats by the extensions of file names.
const FORMATS: [(&str, Format); 2] = [("html", Format::Page), ("png", Format::Picture)];

pub(crate) fn run(arguments: &MapArguments) -> Result<Outcome, Failure> {
    let named = arguments.output.as_deref();
    let format = named.map_or(Ok(Format::Page), |path| format_of(path, &FORMATS))?;
    let source = naming::source(arguments.source.name()?)?;
    let argument = source.argument();
    let shared = match (arguments.tree, &source) {
        (false, _) => None,
        (true, Source::Process(target)) => Some(FamilyMembers::shared_pages(target.pid())?),
        (true, _) => return Err(Failure::MapOfFamilyFile),
    };
    let samples = arguments.samples.read()?;
    let path = named.map_or_else(|| default_path(&source.name(), "html"), Path::to_owned);
    let output = Output::open(&path)?;
    let how = arguments.source.capture.options();
    let sandbox = Sandbox::new(how.sandbox, [&output]);
    let retained = arguments.retained.retained;
    let mut snapshot = source.snapshot(how, retained, &sandbox, &Progress::new())?;
    let who = samples.map(|samples| samples.of(&snapshot)).transpose()?;
    let made = who.map(|who| {
        diagnosis::name_code(&mut snapshot, &who);
        diagnosis::made_pages(&snapshot, &who)
    });
    let colours = match (&made, &shared) {
        (Some(made), _) => PageColours::Code(made),
        (None, Some(shared)) => PageColours::Sharing(shared),
        (None, None) => PageColours::Use,
    };
    let is_taken = output.is_standard_output();
    output.write(&match format {
        Format::Page => render::map_html(&snapshot, colours).into_bytes(),
        Format::Picture => render::map_png(&snapshot, colours),
    })?;
    if !is_taken {
        terminal::print(&render::written(&path))?;
        terminal::suggest(&["rbloat", "report", &argument])?;
    }
    Ok(if snapshot.report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
