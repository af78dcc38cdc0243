//! A report on recordings: the memory of all of them over time, or how many workers fit, as text or in one picture.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use diagnosis::{MemorySeries, RecordedWorkers};
use examine::{Sandbox, SandboxOptions};
use formats::{Fit, Recording, Stability, to_json};
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
    let (mut plot, mut stability, mut summary) =
        (Plot::default(), Stability::default(), Vec::new());
    let mut has_workers = false;
    let inputs = opened(files)?;
    let target = Target::open(output)?;
    each(inputs, &target, sandbox, |name, recording| {
        plot.add(name, recording);
        let series = MemorySeries::of(recording);
        has_workers |= series.max_processes() > 2;
        summary.push(format!("{name}: {}", render::stable_point(&series)));
        stability.recordings.push(diagnosis::stability(name.to_owned(), &series));
    })?;
    let forms = Forms {
        html: &|| plot.render_html(),
        svg: &|| plot.render_svg(),
        png: &|| plot.render_png(),
        json: &|| to_json(&stability, &summary.join(" ")),
        text: &|| plot.render_text(terminal::width()),
    };
    let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let picture = files[0].with_extension("html").display().to_string();
    let mut next = vec!["rbloat", "report"];
    next.extend(names.iter().map(String::as_str));
    match has_workers {
        true => next.push("--fit"),
        false => next.extend(["-o", &picture]),
    }
    target.write(&forms, is_json, &next)
}

/// The time for which limits hold if none is given, in seconds.
const DAY_SECONDS: f64 = 86_400.0;

/// Prints how many workers fit into a limit for a time, by their recordings, and draws it to `output` if it is given.
pub(crate) fn fit(
    files: &[PathBuf],
    (limit, time): (Option<u64>, Option<Duration>),
    output: Option<&Path>,
    is_json: bool,
    sandbox: SandboxOptions,
) -> Result<Outcome, Failure> {
    let inputs = opened(files)?;
    let target = Target::open(output)?;
    let mut workers = Vec::new();
    each(inputs, &target, sandbox, |_, recording| workers.push(RecordedWorkers::of(recording)))?;
    let seconds = time.map_or(DAY_SECONDS, |time| time.as_secs_f64());
    write_fit(&diagnosis::fit(&workers, limit, seconds), target, is_json, &[])
}

/// Prints the workers that fit, as far as one look at the family of a process shows it.
pub(crate) fn fit_now(
    process: &image::Target,
    limit: Option<u64>,
    output: Option<&Path>,
    is_json: bool,
    sandbox: SandboxOptions,
) -> Result<Outcome, Failure> {
    let target = Target::open(output)?;
    let look = supervise::look(process.pid())?;
    Sandbox::new(sandbox, &target.opened).begin();
    let fit = diagnosis::fit(&[RecordedWorkers::of(&look)], limit, DAY_SECONDS);
    let minutes = format!("{:.0}m", (fit.record_seconds.unwrap_or_default() / 60.0).ceil());
    let pid = look.start.pid.to_string();
    let record = ["rbloat", "record", "--for", &minutes, &pid, "-o", "fit.jsonl"];
    let next = if fit.record_seconds.is_some() { &record[..] } else { &[] };
    write_fit(&fit, target, is_json, next)
}

fn write_fit(
    fit: &Fit,
    target: Target<'_>,
    is_json: bool,
    next: &[&str],
) -> Result<Outcome, Failure> {
    let forms = Forms {
        html: &|| render::fit_html(fit),
        svg: &|| render::fit_svg(fit),
        png: &|| render::fit_png(fit),
        json: &|| to_json(fit, &render::fit_summary(fit)),
        text: &|| render::fit(fit, terminal::width()),
    };
    target.write(&forms, is_json, next)
}

fn opened(files: &[PathBuf]) -> Result<Vec<Input>, Failure> {
    files.iter().map(|path| Input::new(path.clone(), File::open(path))).collect()
}

/// Reads the recordings in a sandbox, one after the other, since a long one takes far more memory than its results.
fn each(
    inputs: Vec<Input>,
    target: &Target<'_>,
    sandbox: SandboxOptions,
    mut read: impl FnMut(&str, &Recording),
) -> Result<(), Failure> {
    Sandbox::new(sandbox, &target.opened).begin();
    for input in inputs {
        let name = input.name();
        read(&name, &input.read()?);
    }
    Ok(())
}

/// The forms of a result.
struct Forms<'a> {
    html: &'a dyn Fn() -> String,
    svg: &'a dyn Fn() -> String,
    png: &'a dyn Fn() -> Vec<u8>,
    json: &'a dyn Fn() -> String,
    text: &'a dyn Fn() -> String,
}

/// The place for a result: a file, or only the terminal.
struct Target<'a> {
    path: Option<&'a Path>,
    opened: Option<Output>,
    format: Option<Format>,
    /// True if the file is standard output. The sandbox hides that.
    is_taken: bool,
}

impl<'a> Target<'a> {
    fn open(path: Option<&'a Path>) -> Result<Self, Failure> {
        let format = path.map(|path| format_of(path, &FORMATS)).transpose()?;
        let opened = path.map(Output::open).transpose()?;
        let is_taken = opened.as_ref().is_some_and(Output::is_standard_output);
        Ok(Self { path, opened, format, is_taken })
    }

    /// Writes a result to the file, if there is one, and to the terminal. `next` is a command to suggest.
    fn write(self, forms: &Forms<'_>, is_json: bool, next: &[&str]) -> Result<Outcome, Failure> {
        let is_taken = self.is_taken;
        if let (Some(opened), Some(format)) = (self.opened, self.format) {
            opened.write(&match format {
                Format::Html => (forms.html)().into_bytes(),
                Format::Svg => (forms.svg)().into_bytes(),
                Format::Png => (forms.png)(),
                Format::Json => (forms.json)().into_bytes(),
            })?;
        }
        if is_json {
            terminal::print_beside(is_taken, &(forms.json)())?;
            return Ok(Outcome::Done);
        }
        terminal::print_beside(is_taken, &(forms.text)())?;
        match self.path {
            Some(_) if is_taken => {}
            Some(path) => {
                terminal::print(&render::written(path))?;
                if !matches!(self.format, Some(Format::Json)) {
                    terminal::suggest(&["xdg-open", &path.display().to_string()])?;
                }
            }
            None if next.is_empty() => {}
            None => terminal::suggest(next)?,
        }
        Ok(Outcome::Done)
    }
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
