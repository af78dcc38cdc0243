//! The files of a recording, line by line.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use formats::{CSV_HEAD, Line, csv_line};

use crate::Error;

/// The files of a recording. Each line is one write(2), so that if rbloat is killed, at most the last line is
/// incomplete.
pub struct Journal {
    lines: Output,
    csv: Option<Output>,
}

struct Output {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Returns a journal that writes the recording to the first file, and its samples as CSV to the second one. Errors name
    /// the paths. The head of the CSV is written at once.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn new(lines: (PathBuf, File), csv: Option<(PathBuf, File)>) -> Result<Self, Error> {
        let output = |(path, file)| Output { path, file };
        let lines = output(lines);
        let mut csv = csv.map(output);
        if let Some(csv) = &mut csv {
            csv.write(CSV_HEAD)?;
        }
        Ok(Self { lines, csv })
    }

    /// Writes a line.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&mut self, line: &Line) -> Result<(), Error> {
        self.lines.write(&line.to_json())?;
        match (line, &mut self.csv) {
            (Line::Sample(sample), Some(csv)) => csv.write(&csv_line(sample)),
            _ => Ok(()),
        }
    }
}

impl Output {
    fn write(&mut self, text: &str) -> Result<(), Error> {
        let written: io::Result<()> = self.file.write_all(text.as_bytes());
        written.map_err(|source| Error::Unwritable { path: self.path.clone(), source })
    }
}
