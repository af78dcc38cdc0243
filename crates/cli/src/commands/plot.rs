use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use formats::Recording;
use render::Plot;

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::terminal;

/// The maximum size of a recording's file. The recording of ten processes over a week is smaller.
const MAX_BYTES: u64 = 2 << 30;

#[derive(Debug, Args)]
pub(crate) struct PlotArguments {
    /// Recordings, finished or not
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The picture to write, as .html, .svg or .png
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also print the confidence intervals of the growth rate
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

pub(crate) fn run(arguments: &PlotArguments) -> Result<Outcome, Failure> {
    let format = arguments.output.as_deref().map(Format::of).transpose()?;
    let plot = plot(&arguments.files, arguments.verbose)?;
    if let (Some(path), Some(format)) = (&arguments.output, format) {
        let bytes = match format {
            Format::Html => plot.render_html().into_bytes(),
            Format::Svg => plot.render_svg().into_bytes(),
            Format::Png => plot.render_png(),
        };
        output::write(path, &bytes)?;
    }
    terminal::print(&plot.render_text())?;
    Ok(Outcome::Done)
}

/// Draws recordings. They are read one after the other, since a long one takes far more memory than its drawing.
/// With `is_verbose` their stable points have confidence intervals.
///
/// # Errors
/// If a file cannot be read, or is not a recording.
pub(crate) fn plot(files: &[impl AsRef<Path>], is_verbose: bool) -> Result<Plot, Failure> {
    let mut plot = Plot::new(is_verbose);
    for path in files {
        plot.add(&name(path.as_ref()), &read(path.as_ref())?);
    }
    Ok(plot)
}

/// The format of a picture.
enum Format {
    Html,
    Svg,
    Png,
}

impl Format {
    /// Returns the format by the extension of a file's name.
    fn of(path: &Path) -> Result<Self, Failure> {
        match path.extension().and_then(OsStr::to_str) {
            Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(Failure::NoFormat { path: path.into() }),
        }
    }
}

/// Returns the name of a recording in a picture.
fn name(path: &Path) -> String {
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
    name.replace(char::is_control, " ")
}

fn read(path: &Path) -> Result<Recording, Failure> {
    let unreadable = |source| Failure::UnreadableRecording { path: path.into(), source };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Recording::from_bytes(&bytes)
        .map_err(|error| Failure::NotARecording { path: path.into(), error })
}
