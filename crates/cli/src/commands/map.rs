use std::path::PathBuf;

use clap::Args;
use examine::{FamilyMembers, Sandbox, Source};
use output::{Output, default_path};
use render::PageColours;

use crate::arguments::{RetainedArguments, SamplesArguments, SourceArguments};
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
    /// A name that ends in .png gets the overview as a picture, as --png
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write the overview as a PNG picture
    ///
    /// With --who it has the colours of the code. The map is written only if --output is given, too
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,
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

pub(crate) fn run(arguments: &MapArguments) -> Result<Outcome, Failure> {
    if arguments.output.is_some() && arguments.output == arguments.png {
        return Err(Failure::OneFile);
    }
    let source = naming::source(arguments.source.name()?)?;
    let argument = source.argument();
    let shared = match (arguments.tree, &source) {
        (false, _) => None,
        (true, Source::Process(target)) => Some(FamilyMembers::shared_pages(target.pid())?),
        (true, _) => return Err(Failure::MapOfFamilyFile),
    };
    let samples = arguments.samples.read()?;
    let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
    let (path, picture) = match (&arguments.output, &arguments.png) {
        (None, None) => (Some(default_path(&source.name(), "html")), None),
        (Some(path), None) if path.extension().is_some_and(|it| it == "png") => {
            (None, Some(path.clone()))
        }
        (path, picture) => (path.clone(), picture.clone()),
    };
    let (page, picture) = (open(&path)?, open(&picture)?);
    let how = arguments.source.capture.options();
    let sandbox = Sandbox::new(how.sandbox, page.iter().chain(&picture));
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
    if let Some(page) = page {
        let is_file = page.is_file();
        page.write(render::map_html(&snapshot, colours).as_bytes())?;
        if is_file && let Some(path) = &path {
            terminal::print(&render::written_map(path))?;
        }
    }
    if let Some(picture) = picture {
        picture.write(&render::map_png(&snapshot, colours))?;
    }
    terminal::suggest(&["rbloat", "report", &argument])?;
    Ok(if snapshot.report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
