use std::path::{Path, PathBuf};

use archive::{
    Counts, DUMP_QUESTIONS, DUMP_TABLES, write_compressed_lines, write_lines, write_tables,
};
use clap::Args;
use examine::{Detail, Sandbox, Source};
use ledger::Dump;
use output::{Folder, Output, default_path};

use crate::arguments::{RetainedArguments, SourceArguments, format_of};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat dump 4242 -o heap.ndjson.gz     a file as of ObjectSpace.dump_all
  rbloat dump 4242 -o heap/ --retained   Parquet tables, and questions in SQL
  rbloat dump core.4242 -o heap.ndjson   the heap of a core file";

#[derive(Debug, Args)]
pub(crate) struct DumpArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// The file to write, or a folder for Parquet tables if it ends in / or .parquet
    ///
    /// A file whose name ends in .ndjson.gz is compressed. `-` is standard output [default: rbloat-PID-TIME.ndjson.gz]
    #[arg(short, long, value_name = "FILE|DIR/")]
    output: Option<PathBuf>,
    /// Include the texts of strings and symbols, and floats
    ///
    /// They may be passwords and personal data. Without this option a dump has the names of classes, constants, variables, methods
    /// and files, but no values. The texts are kept in rbloat's memory until they are written.
    #[arg(long)]
    values: bool,
    #[command(flatten)]
    retained: RetainedArguments,
}

/// The forms of a file by the extensions of file names: true for a compressed one.
const FORMATS: [(&str, bool); 2] = [("ndjson", false), ("ndjson.gz", true)];

/// The files of a dump.
enum Files {
    /// A file with a JSON object in each line.
    Lines(Box<Output>),
    /// A folder of tables.
    Tables(Vec<(&'static str, Output)>),
}

/// The figures of a dump that was written.
struct Written {
    counts: Counts,
    unread_slots: u64,
}

pub(crate) fn run(arguments: &DumpArguments) -> Result<Outcome, Failure> {
    let file = arguments.output.as_deref().filter(|path| !is_folder(path));
    let is_compressed = file.map_or(Ok(true), |path| format_of(path, &FORMATS))?;
    let source = naming::source(arguments.source.name()?)?;
    if let Source::Snapshot(_) = source {
        return Err(examine::Error::SnapshotWithoutObjects.into());
    }
    let path =
        arguments.output.clone().unwrap_or_else(|| default_path(&source.name(), "ndjson.gz"));
    let files = Files::open(&path)?;
    let is_taken = files.outputs().any(Output::is_standard_output);
    let how = arguments.source.capture.options();
    let sandbox = Sandbox::new(how.sandbox, files.outputs());
    let detail = Detail::dump(arguments.retained.retained, arguments.values);
    let write = |dump: &Dump<'_>| {
        let counts = files.write(&path, is_compressed, dump)?;
        Ok::<_, Failure>(Written { counts, unread_slots: dump.unread_slots() })
    };
    let written = source.dump(how, detail, &sandbox, &Progress::new(), write)??;
    let Written { counts: Counts { objects, references }, unread_slots } = written;
    let counts = [objects, references, unread_slots];
    let summary = render::saved_dump(counts, &path, arguments.values);
    terminal::print_beside(is_taken, &terminal::wrapped(&summary))?;
    Ok(if unread_slots == 0 { Outcome::Done } else { Outcome::Incomplete })
}

/// Returns true if tables are to be written, in a folder with this path.
fn is_folder(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
        || path.extension().is_some_and(|it| it == "parquet")
        || path.is_dir()
}

impl Files {
    /// Opens the files for writing, before the process is captured.
    fn open(path: &Path) -> Result<Self, Failure> {
        if !is_folder(path) {
            return Ok(Self::Lines(Box::new(Output::open(path)?)));
        }
        let folder = Folder::create(path)?;
        for question in &DUMP_QUESTIONS {
            let output = folder.output(&format!("{}.sql", question.name))?;
            output.write(question.sql.as_bytes())?;
        }
        let output = |name| Ok((name, folder.output(&format!("{name}.parquet"))?));
        let outputs = DUMP_TABLES.iter().map(|table| output(table.name));
        Ok(Self::Tables(outputs.collect::<Result<_, output::Error>>()?))
    }

    fn outputs(&self) -> impl Iterator<Item = &Output> {
        let (file, tables) = match self {
            Self::Lines(output) => (Some(&**output), &[][..]),
            Self::Tables(outputs) => (None, &outputs[..]),
        };
        file.into_iter().chain(tables.iter().map(|(_, output)| output))
    }

    fn write(self, path: &Path, is_compressed: bool, dump: &Dump<'_>) -> Result<Counts, Failure> {
        match self {
            Self::Lines(mut output) => {
                let file = output.writer()?;
                let written = match is_compressed {
                    true => write_compressed_lines(dump, file),
                    false => write_lines(dump, file),
                };
                let unwritable = |source| output::Error { path: path.into(), source };
                let counts = written.map_err(unwritable)?;
                output.complete()?;
                Ok(counts)
            }
            Self::Tables(mut outputs) => {
                let mut files = Vec::new();
                for (name, output) in &mut outputs {
                    files.push((*name, Some(output.writer()?)));
                }
                let counts = write_tables(dump, |name| {
                    let found = files.iter_mut().find(|(its, _)| *its == name);
                    found.and_then(|(_, file)| file.take()).expect("each table has a file")
                });
                let undumped = |error| Failure::NotDumped { path: path.into(), error };
                let counts = counts.map_err(undumped)?;
                for (_, output) in outputs {
                    output.complete()?;
                }
                Ok(counts)
            }
        }
    }
}
