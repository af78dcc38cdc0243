//! Archives: snapshots of many processes as Parquet tables, and questions about them in SQL.
//!
//! An archive is a folder: `TABLE/dt=YYYY-MM-DD/service=NAME/FILE.parquet`. docs/archive.md describes it for users. This
//! crate returns files as bytes; its callers write them.

mod file;
mod questions;
mod rows;
mod schema;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use formats::{Place, Report};

pub use parquet::errors::ParquetError as Error;
pub use questions::{QUESTIONS, Question, Settings, VIEWS, duckdb_views};
use rows::Value;
pub use schema::{Column, KEYS, Kind, SCHEMA, TABLES, Table};

/// The last second that has a date of four digits.
const MAX_SECONDS: u64 = 253_402_300_799;
/// The maximum length of a folder's name, in bytes; the limit of file systems is 255.
const MAX_NAME: usize = 200;

/// A snapshot of a process, with the names that its report does not have.
#[derive(Debug, Clone)]
pub struct Look {
    /// The service: processes that run the same program for the same purpose.
    pub service: String,
    /// The machine; empty if unknown.
    pub node: String,
    /// The place of the process.
    pub place: Place,
    /// PSS in bytes, if it is known.
    pub pss_bytes: Option<u64>,
    /// The memory limit of the container in bytes, if there is one.
    pub limit_bytes: Option<u64>,
    /// The report, with all owners.
    pub report: Report,
}

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

impl Look {
    /// A number for the snapshot, by its content: the same under any name.
    fn id(&self) -> i64 {
        let Report { process, capture, .. } = &self.report;
        let numbers = [
            u64::from(process.pid.unsigned_abs()),
            process.started_ticks.unwrap_or(0),
            process.rss_bytes,
            capture.unix_ms,
            capture.pause_ms.to_bits(),
            capture.elapsed_ms.to_bits(),
        ];
        positive(hash(numbers.map(u64::to_le_bytes)))
    }

    /// A number for the process. Process ids begin anew on each machine, so it takes the names, too.
    fn process_id(&self) -> i64 {
        let process = &self.report.process;
        let container = &self.place.container;
        let started = process.started_ticks.unwrap_or(0).to_string();
        let pid = process.pid.to_string();
        let parts =
            [&self.node, &container.namespace, &container.pod, &container.name, &pid, &started];
        positive(hash(parts.map(|part| format!("{part}\n"))))
    }

    /// The folder of its day, in UTC.
    fn day(&self) -> String {
        let seconds = (self.report.capture.unix_ms / 1000).min(MAX_SECONDS);
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds));
        format!("dt={}", &time.to_string()[.."2026-11-23".len()])
    }
}

/// Escapes a value for the name of a folder, as Hive does: readers decode it.
fn folder_name(value: &str) -> String {
    let mut name = String::new();
    for char in value.chars() {
        match char {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => name.push(char),
            _ => name.extend(char.to_string().bytes().map(|byte| format!("%{byte:02X}"))),
        }
        if name.len() > MAX_NAME {
            break;
        }
    }
    // Hive's name for a missing value.
    if name.is_empty() { "__HIVE_DEFAULT_PARTITION__".to_owned() } else { name }
}

/// FNV-1a of 64 bits. Names of files depend on it, so it must never change.
fn hash(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for &byte in part.as_ref() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

fn positive(hash: u64) -> i64 {
    (hash >> 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders_are_escaped() {
        for (service, name) in [
            ("shop", "shop"),
            ("a b/../c=d%", "a%20b%2F..%2Fc%3Dd%25"),
            ("häuser", "h%C3%A4user"),
            ("", "__HIVE_DEFAULT_PARTITION__"),
        ] {
            assert_eq!(folder_name(service), name);
        }
        assert!(folder_name(&"ä".repeat(1000)).len() < 210);
    }

    #[test]
    fn hashes_never_change() {
        assert_eq!(hash(["a", "b"]), 0x089c_4407_b545_986a);
        assert_eq!(hash([""; 0]), 0xcbf2_9ce4_8422_2325);
    }
}
