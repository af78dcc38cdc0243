#![doc = include_str!("../README.md")]

mod dump;
mod file;
mod look;
mod questions;
mod rows;
mod schema;
mod table_writer;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use look::hash;

pub use dump::{
    Counts, DUMP_QUESTIONS, DUMP_SCHEMA, DUMP_TABLES, DumpError, Input, OpenDump, compare_dumps,
    write_compressed_lines, write_lines, write_tables,
};
pub use look::Look;
pub use parquet::errors::ParquetError as Error;
pub use questions::{FUTURE, QUESTIONS, Question, Settings, VIEWS, duckdb_views};
use rows::Value;
pub use schema::{Column, KEYS, Kind, SCHEMA, TABLES, Table};

/// The maximum length of a folder's name, in bytes; the limit of file systems is 255.
const MAX_NAME: usize = 200;

/// A file of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The table.
    pub table: &'static str,
    /// The folder of the day: `dt=2026-11-23`.
    pub day: String,
    /// The folder of the service: `service=shop`.
    pub service: String,
    /// The name. The same looks always have the same name, whatever their service.
    pub name: String,
    /// The content.
    pub bytes: Vec<u8>,
}

impl File {
    /// Returns the path of the file in the archive.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        [self.table, &self.day, &self.service, &self.name].iter().collect()
    }
}

/// Returns the files of looks: one for each table, day and service that they have rows of. They may be written in any order,
/// but each must appear at once with its name: a reader of the archive would take a part of a file for a damaged one.
///
/// # Errors
/// If the looks have more rows than a Parquet file can have.
pub fn files(looks: &[Look]) -> Result<Vec<File>, Error> {
    let mut groups: BTreeMap<(String, String), Vec<&Look>> = BTreeMap::new();
    for look in looks {
        let folders = (look.day(), format!("service={}", folder_name(&look.service)));
        groups.entry(folders).or_default().push(look);
    }
    let mut files = Vec::new();
    for ((day, service), mut looks) in groups {
        // Readers skip more if the rows of a process are adjacent.
        looks.sort_by_cached_key(|look| (look.process_id(), look.report.capture.unix_ms));
        let ids = looks.iter().map(|look| look.id());
        let name = format!("{:016x}.parquet", hash(ids.map(i64::to_le_bytes)));
        for table in &TABLES {
            let mut rows = Vec::new();
            for look in &looks {
                let keys = [look.id(), look.process_id()].map(Value::Integer);
                let keys = keys.into_iter().chain([look.report.capture.unix_ms.into()]);
                let with_keys = |row| keys.clone().chain(row).collect::<Vec<_>>();
                rows.extend(rows::of(look, table.name).into_iter().map(with_keys));
            }
            if !rows.is_empty() {
                let (day, service, name) = (day.clone(), service.clone(), name.clone());
                let bytes = file::of(table, &rows)?;
                files.push(File { table: table.name, day, service, name, bytes });
            }
        }
    }
    Ok(files)
}

/// Escapes a value for the name of a folder, as Hive does: readers decode it. Spark decodes bytes to characters, one by one, so only
/// those of ASCII can be escaped.
fn folder_name(value: &str) -> String {
    let mut name = String::new();
    for char in value.chars() {
        match char {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => name.push(char),
            _ if char.is_ascii() => {
                let _ = write!(name, "%{:02X}", u32::from(char));
            }
            _ if char.is_alphanumeric() => name.push(char),
            _ => name.push('_'),
        }
        if name.len() > MAX_NAME {
            break;
        }
    }
    // Hive's name for a missing value.
    if name.is_empty() { "__HIVE_DEFAULT_PARTITION__".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders_are_escaped() {
        for (service, name) in [
            ("shop", "shop"),
            ("a b/../c=d%", "a%20b%2F..%2Fc%3Dd%25"),
            ("häuser", "häuser"),
            ("\u{202e}\u{9b}", "__"),
            ("", "__HIVE_DEFAULT_PARTITION__"),
        ] {
            assert_eq!(folder_name(service), name);
        }
        assert!(folder_name(&"ä".repeat(1000)).len() < 210);
    }
}
