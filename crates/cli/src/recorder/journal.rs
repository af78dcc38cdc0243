//! The files of a recording, line by line.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use record::{CSV_HEAD, Line, csv_line};

use crate::failure::Failure;

/// What was recorded, in files. Each line is written at once, by one write(2), so that whatever kills us
/// leaves all lines but maybe the last as a whole.
pub(crate) struct Journal {
    lines: Output,
    csv: Option<Output>,
}

struct Output {
    path: PathBuf,
    file: File,
}

impl Journal {
    pub(crate) fn create(path: &Path, csv: Option<&Path>) -> Result<Self, Failure> {
        let lines = Output::create(path)?;
        let mut csv = csv.map(Output::create).transpose()?;
        if let Some(csv) = &mut csv {
            csv.write(CSV_HEAD)?;
        }
        Ok(Self { lines, csv })
    }

    pub(crate) fn write(&mut self, line: &Line) -> Result<(), Failure> {
        self.lines.write(&line.to_json())?;
        match (line, &mut self.csv) {
            (Line::Sample(sample), Some(csv)) => csv.write(&csv_line(sample)),
            _ => Ok(()),
        }
    }
}

impl Output {
    fn create(path: &Path) -> Result<Self, Failure> {
        let path = path.to_owned();
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(Failure::Unwritable { path, source }),
        }
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written: io::Result<()> = self.file.write_all(text.as_bytes());
        written.map_err(|source| Failure::Unwritable { path: self.path.clone(), source })
    }
}
