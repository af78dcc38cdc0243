//! Files of dumps: those that are written, and those that are compared.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use archive::{
    Counts, DUMP_QUESTIONS, DUMP_TABLES, OpenDump, compare_dumps, write_compressed_lines,
    write_lines, write_tables,
};
use formats::DumpDiff;
use ledger::Dump;
use linux::one_line;
use output::{Folder, Output};

use crate::error::Error;
use crate::name::SourceName;
use crate::sandbox::Sandbox;

/// The beginnings of dumps: the first field of a line, or gzip's.
const HEADS: [&[u8]; 3] = [b"{\"address\"", b"{\"type\"", &[0x1f, 0x8b]];

/// The files of a dump that is being written.
pub enum DumpFiles {
    /// A file with a JSON object in each line.
    Lines(Box<Output>),
    /// A folder of tables.
    Tables(Vec<(&'static str, Output)>),
}

/// The reason why a dump was not written.
#[derive(Debug)]
pub enum NotDumped {
    /// The file cannot be written.
    Lines(output::Error),
    /// The tables cannot be written.
    Tables(archive::Error),
}

impl From<output::Error> for NotDumped {
    fn from(error: output::Error) -> Self {
        Self::Lines(error)
    }
}

impl DumpFiles {
    /// Returns true if tables are to be written, in a folder with this path.
    #[must_use]
    pub fn is_folder(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().ends_with(b"/")
            || path.extension().is_some_and(|it| it == "parquet")
            || path.is_dir()
    }

    /// Opens the files for writing, before the process is captured.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub fn open(path: &Path) -> Result<Self, output::Error> {
        if !Self::is_folder(path) {
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

    /// The files.
    pub fn outputs(&self) -> impl Iterator<Item = &Output> {
        let (file, tables) = match self {
            Self::Lines(output) => (Some(&**output), &[][..]),
            Self::Tables(outputs) => (None, &outputs[..]),
        };
        file.into_iter().chain(tables.iter().map(|(_, output)| output))
    }

    /// Writes the heap, and gives the files their names.
    ///
    /// # Errors
    /// If that fails.
    pub fn write(
        self,
        path: &Path,
        is_compressed: bool,
        dump: &Dump<'_>,
    ) -> Result<Counts, NotDumped> {
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
                let counts = counts.map_err(NotDumped::Tables)?;
                for (_, output) in outputs {
                    output.complete()?;
                }
                Ok(counts)
            }
        }
    }
}

/// Two or three dumps of a process, oldest first.
pub struct Dumps(Vec<(PathBuf, File)>);

impl Dumps {
    /// Opens these sources if one of them is a dump.
    ///
    /// # Errors
    /// If another one is not, or they are fewer than two or more than three.
    pub fn open<'a>(
        sources: impl IntoIterator<Item = (&'a str, SourceName)>,
    ) -> Result<Option<Self>, Error> {
        let (mut files, mut other) = (Vec::new(), None);
        for (word, source) in sources {
            if Path::new(word).join("objects.parquet").is_file() {
                return Err(Error::DumpOfTables { path: word.into() });
            }
            let file = match source {
                SourceName::File { path, .. } => dump_at(&path).map(|file| (path, file)),
                SourceName::Process(_) => None,
            };
            match file {
                Some(file) => files.push(file),
                None => other = Some(word),
            }
        }
        match (files.len(), other) {
            (0, _) => Ok(None),
            (_, Some(other)) => Err(Error::NotADump { other: other.to_owned() }),
            (2 | 3, None) => Ok(Some(Self(files))),
            (number, None) => Err(Error::OtherNumberOfDumps(number)),
        }
    }

    /// Returns what they have apart, in the sandbox.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn compare(self, sandbox: &Sandbox) -> Result<DumpDiff, Error> {
        let paths: Vec<PathBuf> = self.0.iter().map(|it| it.0.clone()).collect();
        let open = |(path, file): (PathBuf, File)| OpenDump {
            name: one_line(&path.display().to_string()),
            file: Box::new(file),
        };
        let mut dumps: Vec<OpenDump> = self.0.into_iter().map(open).collect();
        let compared = sandbox.run(|| compare_dumps(&mut dumps));
        compared.map_err(|(number, error)| Error::Dump { path: paths[number].clone(), error })
    }
}

/// Opens a file if it begins as a dump.
fn dump_at(path: &Path) -> Option<File> {
    // A dump is read several times, and a pipe only once.
    let file = path.is_file().then(|| File::open(path).ok()).flatten()?;
    let mut head = Vec::new();
    (&file).take(16).read_to_end(&mut head).ok()?;
    HEADS.iter().any(|it| head.starts_with(it)).then_some(file)
}
