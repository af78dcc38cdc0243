//! `rbloat archive --add`: the files of an archive, read by another reader than the one that wrote them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use parquet::basic::Compression;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use testkit::Target;

use crate::snapshots::Kept;
use crate::{complaint, limited, rbloat};

/// The files of an archive, below its folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// The files of an archive with their content.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(folder).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// The rows of a table, as values by the names of columns.
pub(crate) fn rows(archive: &Path, table: &str) -> Vec<BTreeMap<String, Field>> {
    let mut rows = Vec::new();
    for path in files(&archive.join(table)) {
        let file = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
        let by_name = |row: Row| {
            row.get_column_iter().map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        rows.extend(file.get_row_iter(None).unwrap().map(|row| by_name(row.unwrap())));
    }
    rows
}

pub(crate) fn number(row: &BTreeMap<String, Field>, column: &str) -> Option<u64> {
    match &row[column] {
        Field::Long(number) => Some(u64::try_from(*number).unwrap()),
        Field::Null => None,
        other => panic!("{column}: {other}"),
    }
}

pub(crate) fn text<'a>(row: &'a BTreeMap<String, Field>, column: &str) -> &'a str {
    let Field::Str(text) = &row[column] else { panic!("{column}: {}", row[column]) };
    text
}

fn export(archive: &Path, kept: &Kept, arguments: &[&str]) {
    let mut command = rbloat();
    command.arg("archive").arg(archive).arg("--add").arg(kept.path()).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("1 snapshot added to "), "{stdout}");
}

#[test]
fn the_tables_have_what_the_report_has() {
    let target = Target::scenario("pin", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let report = kept.read().report;
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    export(&archive, &kept, &["--label", "pod=web-1", "--label", "node=n1", "--limit", "2GiB"]);
    let sum = |table: &str, column: &str| -> u64 {
        rows(&archive, table).iter().filter_map(|row| number(row, column)).sum()
    };

    let [look] = &rows(&archive, "looks")[..] else { panic!("one row a snapshot") };
    assert_eq!(text(look, "pod"), "web-1");
    assert_eq!(text(look, "node"), "n1");
    assert_eq!(text(look, "role"), "pin.rb");
    assert_eq!(text(look, "ruby"), report.process.ruby_version.clone().unwrap());
    assert_eq!(number(look, "pid"), Some(target.pid().unsigned_abs().into()));
    assert_eq!(number(look, "limit_bytes"), Some(2 << 30));
    assert_eq!(number(look, "pss_bytes"), None);
    assert_eq!(number(look, "unix_ms"), Some(report.capture.unix_ms));
    assert_eq!(number(look, "rss_bytes"), Some(report.process.rss_bytes));
    let malloc = report.malloc.as_ref().unwrap();
    assert_eq!(number(look, "trim_yield_bytes"), Some(malloc.trim_yield_bytes));

    assert_eq!(sum("causes", "bytes"), report.process.rss_bytes);
    for cause in &report.causes {
        let found = rows(&archive, "causes")
            .into_iter()
            .find(|row| text(row, "cause") == cause.cause.name());
        assert_eq!(number(&found.unwrap(), "bytes"), Some(cause.bytes));
    }
    let owners = report.owners.as_ref().unwrap();
    assert_eq!(rows(&archive, "owners").len(), owners.len());
    assert_eq!(sum("owners", "slot_bytes"), owners.iter().map(|it| it.slot_bytes).sum::<u64>());
    let resident = owners.iter().filter_map(|it| it.resident_bytes).sum::<u64>();
    assert_eq!(sum("owners", "resident_bytes"), resident);
    let path = owners.iter().find_map(|it| it.kept_by.first()?.path.as_deref()).unwrap();
    assert!(rows(&archive, "owners").iter().any(|row| row["path"] == Field::Str(path.into())));
    let arenas = report.arenas.as_ref().unwrap();
    assert_eq!(
        sum("arenas", "unreturned_bytes"),
        arenas.iter().map(|it| it.unreturned_bytes).sum::<u64>()
    );
    assert_eq!(sum("arenas", "system_bytes"), arenas.iter().map(|it| it.system_bytes).sum::<u64>());
    let gems = report.interpreter.unwrap().gems.unwrap();
    assert_eq!(sum("gems", "iseqs"), gems.iter().map(|it| it.iseqs).sum::<u64>());
    let remedies: Vec<String> =
        rows(&archive, "remedies").iter().map(|row| text(row, "remedy").into()).collect();
    assert_eq!(remedies.len(), report.advice.len());
    assert!(remedies.contains(&"preload_jemalloc".to_owned()), "{remedies:?}");
}

#[test]
fn files_are_compressed_in_folders_of_days_and_services_and_name_their_schema() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let folder = tempfile::tempdir().unwrap();
    export(folder.path(), &kept, &["--service", "a shop"]);
    let day = kept.read().report.capture.unix_ms / 1000;
    let day = std::time::UNIX_EPOCH + std::time::Duration::from_secs(day);
    let day = format!("dt={}", &humantime::format_rfc3339(day).to_string()[..10]);
    let tables: Vec<String> = files(folder.path())
        .iter()
        .map(|path| {
            let path = path.strip_prefix(folder.path()).unwrap();
            let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
            assert_eq!(parts[1..3], [&day[..], "service=a%20shop"]);
            parts[0].to_owned()
        })
        .collect();
    assert_eq!(tables, ["arenas", "causes", "gems", "looks", "owners"]);
    for path in files(folder.path()) {
        let file = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
        let metadata = file.metadata();
        let pairs = metadata.file_metadata().key_value_metadata().unwrap();
        let version = pairs.iter().find(|pair| pair.key == "rbloat.schema").unwrap();
        assert_eq!(version.value, Some(archive::SCHEMA.to_string()));
        let column = metadata.row_group(0).column(0);
        assert!(matches!(column.compression(), Compression::ZSTD(_)));
    }
}

#[test]
fn a_snapshot_that_is_exported_again_counts_once_also_under_another_service() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let folder = tempfile::tempdir().unwrap();
    export(folder.path(), &kept, &[]);
    let first = contents(folder.path());
    export(folder.path(), &kept, &[]);
    assert!(first == contents(folder.path()), "the same files");
    export(folder.path(), &kept, &["--service", "shop"]);
    let renamed = files(folder.path());
    assert_eq!(renamed.len(), first.len());
    assert!(renamed.iter().all(|path| path.to_str().unwrap().contains("/service=shop/")));
    // Another snapshot of the process is another look.
    export(folder.path(), &Kept::of(target.pid()), &["--service", "shop"]);
    let looks = rows(folder.path(), "looks");
    assert_eq!(looks.len(), 2);
    assert_eq!(looks[0]["process"], looks[1]["process"]);
    assert_ne!(looks[0]["look"], looks[1]["look"]);
}

#[test]
fn a_file_that_is_no_snapshot_is_an_error_and_the_others_are_exported() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    let damaged = folder.path().join("damaged.rbloat");
    let mut bytes = fs::read(kept.path()).unwrap();
    bytes.truncate(bytes.len() / 2);
    fs::write(&damaged, bytes).unwrap();
    let missing = folder.path().join("missing.rbloat");
    let output = rbloat()
        .arg("archive")
        .arg(&archive)
        .arg("--add")
        .args([&missing, &damaged, &kept.path()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("missing.rbloat") && message.contains("damaged.rbloat"), "{message}");
    assert!(message.contains("truncated or damaged"), "{message}");
    assert_eq!(rows(&archive, "looks").len(), 1);
    // No archive is made of nothing.
    let none = folder.path().join("none");
    for path in [&missing, &folder.path().join("archive")] {
        let output = rbloat().arg("archive").arg(&none).arg("--add").arg(path).output().unwrap();
        let (status, message) = complaint(&output);
        assert_eq!(status, 3);
        assert!(
            message.trim_end().ends_with("; give a file that `rbloat snapshot` wrote"),
            "{message}"
        );
        assert!(!none.exists());
    }
}

#[test]
fn a_full_disk_leaves_no_part_of_a_file() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let folder = tempfile::tempdir().unwrap();
    // A limit on the size of files fails as a full disk does: in the middle of a write.
    let output = limited("-f 1; trap '' XFSZ")
        .arg("archive")
        .arg(folder.path())
        .arg("--add")
        .arg(kept.path())
        .output()
        .unwrap();
    let (status, message) = complaint(&output);
    assert_eq!(status, 1);
    assert!(message.contains("cannot write ") && message.contains(".parquet"), "{message}");
    for path in files(folder.path()) {
        SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    }
}
