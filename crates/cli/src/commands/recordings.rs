//! A report on recordings: the memory of all of them over time, as text or in one picture.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use diagnosis::MemorySeries;
use examine::{Sandbox, SandboxOptions};
use formats::{Recording, Stability, to_json};
use output::Output;
use render::Plot;

use crate::arguments::format_of;
use crate::failure::{Failure, Outcome};
use crate::terminal;

/// Prints whether the memory of each recording is stable, and draws them to `output` if it is given.
pub(crate) fn run(
    files: &[PathBuf],
    output: Option<&Path>,
    is_json: bool,
    sandbox: SandboxOptions,
) -> Result<Outcome, Failure> {
    let format = output.map(|path| format_of(path, &FORMATS)).transpose()?;
    let open = |path: &PathBuf| Input::new(path.clone(), File::open(path));
    let inputs = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let opened = output.map(Output::open).transpose()?;
    let is_taken = opened.as_ref().is_some_and(Output::is_standard_output);
    Sandbox::new(sandbox, &opened).begin();
    let (mut plot, mut stability, mut summary) =
        (Plot::default(), Stability::default(), Vec::new());
    // One after the other, since a long recording takes far more memory than its drawing.
    for input in inputs {
        let name = input.name();
        let recording = input.read()?;
        plot.add(&name, &recording);
        let series = MemorySeries::of(&recording);
        summary.push(format!("{name}: {}", render::stable_point(&series)));
        stability.recordings.push(diagnosis::stability(name, &series));
    }
    let json = || to_json(&stability, &summary.join(" "));
    if let (Some(opened), Some(format)) = (opened, format) {
        opened.write(&match format {
            Format::Html => plot.render_html().into_bytes(),
            Format::Svg => plot.render_svg().into_bytes(),
            Format::Png => plot.render_png(),
            Format::Json => json().into_bytes(),
        })?;
    }
    if is_json {
        terminal::print_beside(is_taken, &json())?;
        return Ok(Outcome::Done);
    }
    terminal::print_beside(is_taken, &plot.render_text(terminal::width()))?;
    let shown = |path: &Path| path.display().to_string();
    match output {
        Some(_) if is_taken => {}
        Some(path) => {
            terminal::print(&render::written(path))?;
            if !matches!(format, Some(Format::Json)) {
                terminal::suggest(&["xdg-open", &shown(path)])?;
            }
        }
        None => {
            let picture = shown(&files[0].with_extension("html"));
            let files: Vec<String> = files.iter().map(|path| shown(path)).collect();
            let files = files.iter().map(String::as_str);
            let command = ["rbloat", "report"].into_iter().chain(files).chain(["-o", &picture]);
            terminal::suggest(&command.collect::<Vec<_>>())?;
        }
    }
    Ok(Outcome::Done)
}

/// The format of a file: a picture, or the judgement on the memory.
#[derive(Clone, Copy)]
enum Format {
    Html,
    Svg,
    Png,
    Json,
}

/// The formats by the extensions of file names.
const FORMATS: [(&str, Format); 4] =
    [("html", Format::Html), ("svg", Format::Svg), ("png", Format::Png), ("json", Format::Json)];

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
