use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use clap::Args;
use examine::Sandbox;
use formats::Recording;
use output::Output;
use render::Plot;

use crate::arguments::SandboxArguments;
use crate::failure::{Failure, Outcome};
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat plot a.jsonl                       is memory stable?
  rbloat plot a.jsonl b.jsonl -o both.html  draw two recordings in one picture
  rbloat plot a.jsonl -o a.png              as a picture";

#[derive(Debug, Args)]
pub(crate) struct PlotArguments {
    /// Recordings, finished or not
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The picture to write, as .html, .svg or .png
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}

pub(crate) fn run(arguments: &PlotArguments) -> Result<Outcome, Failure> {
    let format = arguments.output.as_deref().map(Format::of).transpose()?;
    let open = |path: &PathBuf| Input::new(path.clone(), File::open(path));
    let inputs = arguments.files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let output = arguments.output.as_deref().map(Output::open).transpose()?;
    Sandbox::new(arguments.sandbox.options(), &output).begin();
    let mut plot = Plot::default();
    // One after the other, since a long recording takes far more memory than its drawing.
    for input in inputs {
        plot.add(&input.name(), &input.read()?);
    }
    if let (Some(output), Some(format)) = (output, format) {
        output.write(&match format {
            Format::Html => plot.render_html().into_bytes(),
            Format::Svg => plot.render_svg().into_bytes(),
            Format::Png => plot.render_png(),
        })?;
    }
    terminal::print(&plot.render_text())?;
    let shown = |path: &Path| path.display().to_string();
    match &arguments.output {
        Some(path) => terminal::suggest(&["xdg-open", &shown(path)])?,
        None => {
            let files: Vec<String> = arguments.files.iter().map(|path| shown(path)).collect();
            let picture = shown(&arguments.files[0].with_extension("html"));
            let files = files.iter().map(String::as_str);
            let command = ["rbloat", "plot"].into_iter().chain(files).chain(["-o", &picture]);
            terminal::suggest(&command.collect::<Vec<_>>())?;
        }
    }
    Ok(Outcome::Done)
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

/// The file of a recording.
pub(crate) struct Input {
    path: PathBuf,
    file: File,
}

impl Input {
    /// Takes a file that was opened by its path.
    ///
    /// # Errors
    /// If that failed, or it is a folder.
    pub(crate) fn new(path: PathBuf, file: io::Result<File>) -> Result<Self, Failure> {
        let is_folder = |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_dir());
        match file {
            Ok(file) if !is_folder(&file) => Ok(Self { path, file }),
            Ok(_) => {
                Err(Failure::UnreadableRecording { path, source: ErrorKind::IsADirectory.into() })
            }
            Err(source) => Err(Failure::UnreadableRecording { path, source }),
        }
    }

    /// Returns the name of the recording in a picture.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_stem().unwrap_or(self.path.as_os_str()).to_string_lossy();
        linux::one_line(&name)
    }

    /// Reads the recording.
    ///
    /// # Errors
    /// If it cannot be read, or is not a recording.
    pub(crate) fn read(self) -> Result<Recording, Failure> {
        let Self { path, file } = self;
        let read = Recording::read(BufReader::new(file));
        read.map_err(|error| Failure::NotARecording { path, error })
    }
}
