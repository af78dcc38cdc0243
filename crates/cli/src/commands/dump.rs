use std::path::PathBuf;

use archive::Counts;
use clap::Args;
use examine::{Detail, DumpFiles, Dumps, NotDumped, Sandbox, Source, read_kept};
use formats::to_json;
use ledger::Dump;
use output::{Output, default_path};

use super::diff::DiffArguments;
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

/// The figures of a dump that was written.
struct Written {
    counts: Counts,
    unread_slots: u64,
}

pub(crate) fn run(arguments: &DumpArguments) -> Result<Outcome, Failure> {
    let file = arguments.output.as_deref().filter(|path| !DumpFiles::is_folder(path));
    let is_compressed = file.map_or(Ok(true), |path| format_of(path, &FORMATS))?;
    let source = naming::source(arguments.source.name()?)?;
    if let Source::Snapshot(_) = source {
        return Err(examine::Error::SnapshotWithoutObjects.into());
    }
    let path =
        arguments.output.clone().unwrap_or_else(|| default_path(&source.name(), "ndjson.gz"));
    let files = DumpFiles::open(&path)?;
    let is_taken = files.outputs().any(Output::is_standard_output);
    let how = arguments.source.capture.options();
    let sandbox = Sandbox::new(how.sandbox, files.outputs());
    let detail = Detail::dump(arguments.retained.retained, arguments.values);
    let write = |dump: &Dump<'_>| {
        let counts = files.write(&path, is_compressed, dump).map_err(|error| match error {
            NotDumped::Lines(error) => Failure::Unwritable(error),
            NotDumped::Tables(error) => Failure::NotDumped { path: path.clone(), error },
        })?;
        Ok::<_, Failure>(Written { counts, unread_slots: dump.unread_slots() })
    };
    let written = source.dump(how, detail, &sandbox, &Progress::new(), write)??;
    let Written { counts: Counts { objects, references }, unread_slots } = written;
    let counts = [objects, references, unread_slots];
    let summary = render::saved_dump(counts, &path, arguments.values);
    terminal::print_beside(is_taken, &terminal::wrapped(&summary))?;
    Ok(if unread_slots == 0 { Outcome::Done } else { Outcome::Incomplete })
}

/// Compares dumps.
pub(super) fn diff(dumps: Dumps, arguments: &DiffArguments) -> Result<Outcome, Failure> {
    if arguments.is_of_process() {
        return Err(Failure::NeedlessOfDumps);
    }
    let kept = arguments.samples.who.as_deref().map(read_kept).transpose()?;
    let sandbox = Sandbox::new(arguments.capture.options().sandbox, []);
    let mut diff = dumps.compare(&sandbox)?;
    kept.iter().for_each(|kept| diagnosis::add_lines_to_dumps(&mut diff, kept));
    let text = match arguments.json {
        true => to_json(&diff, &render::dump_diff_summary(&diff)),
        false => render::dump_diff(&diff, terminal::width()),
    };
    terminal::print(&text)?;
    let is_complete = diff.dumps.iter().all(|it| it.unreadable_lines == 0);
    Ok(if is_complete { Outcome::Done } else { Outcome::Incomplete })
}
