//! The archive: snapshots of all processes as Parquet files, which the agent writes once an hour.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use archive::{File, Look, TABLES};
use examine::{Sandbox, SandboxOptions, without_panic};
use formats::{ArchiveOutcome, Archived};
use output::Folder;

use crate::error::Error;
use crate::log::Log;

/// The time between two writes: small files take far more space than large ones.
const WRITE_EVERY: Duration = Duration::from_secs(3600);
/// The time after which files that could not be written are written again.
const AGAIN: Duration = Duration::from_secs(60);
/// The services of a day. Each has a folder in each table, and a program that writes numbers into its title is a new one each time.
const MAX_SERVICES: usize = 100;
/// The service of the processes beyond that.
const OTHER: &str = "other";
const MS_OF_DAY: u64 = 24 * 3600 * 1000;
/// Files are written earlier if so many rows wait, which take about 10 MiB.
const MAX_ROWS: usize = 20_000;

/// The archive, which several threads may use.
#[derive(Clone)]
pub(crate) struct ArchiveWriter(Arc<Mutex<Waiting>>);

/// Snapshots that are not in the folder yet.
struct Waiting {
    folder: Folder,
    max_bytes: u64,
    sandbox: SandboxOptions,
    log: Log,
    services: Services,
    looks: Vec<Look>,
    rows: usize,
    /// The files that could not be written, and the number of their snapshots. They are written again as they are: others with the
    /// same rows would count twice.
    failed: (VecDeque<File>, u64),
    write_at: Duration,
    figures: Archived,
    /// True after a failure, which is printed once.
    is_failing: bool,
}

impl ArchiveWriter {
    /// Opens the folder. Its files take at most `max_bytes`.
    ///
    /// # Errors
    /// If the folder cannot be made or read.
    pub(crate) fn open(
        path: &Path,
        max_bytes: u64,
        sandbox: SandboxOptions,
        log: Log,
    ) -> Result<Self, Error> {
        let folder = Folder::create(path)?;
        let bytes = days(&folder)?.values().sum();
        Ok(Self(Arc::new(Mutex::new(Waiting {
            folder,
            max_bytes,
            sandbox,
            log,
            services: Services::default(),
            looks: Vec::new(),
            rows: 0,
            failed: (VecDeque::new(), 0),
            write_at: WRITE_EVERY,
            figures: Archived { bytes, ..Archived::default() },
            is_failing: false,
        }))))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a snapshot, which is written later.
    pub(crate) fn add(&self, mut look: Look) {
        let mut waiting = self.lock();
        let day = look.report.capture.unix_ms / MS_OF_DAY;
        look.service = waiting.services.admit(day, look.service);
        waiting.rows += rows(&look);
        waiting.looks.push(look);
    }

    /// Writes the snapshots if that is due at `now`.
    pub(crate) fn write_if_due(&self, now: Duration) {
        let mut waiting = self.lock();
        let is_full = waiting.rows >= MAX_ROWS;
        if now < waiting.write_at && (!is_full || waiting.is_failing) {
            return;
        }
        waiting.write_at = now + if waiting.write() { WRITE_EVERY } else { AGAIN };
    }

    /// Writes all snapshots.
    pub(crate) fn write(&self) {
        self.lock().write();
    }

    /// The figures for the metrics.
    pub(crate) fn figures(&self) -> Archived {
        self.lock().figures.clone()
    }
}

impl Waiting {
    /// Returns false if some of them could not be written.
    fn write(&mut self) -> bool {
        let result = self.write_failed().and_then(|()| self.write_looks());
        if let Err(failure) = &result {
            let count = self.failed.1;
            self.count(ArchiveOutcome::Failed, count);
            if !std::mem::replace(&mut self.is_failing, true) {
                (self.log.complain)(&failure.to_string());
            }
            if self.rows >= MAX_ROWS {
                let dropped = std::mem::take(&mut self.looks);
                self.rows = 0;
                self.count(ArchiveOutcome::Dropped, dropped.len() as u64);
            }
        } else {
            self.is_failing = false;
        }
        result.is_ok()
    }

    fn write_looks(&mut self) -> Result<(), Error> {
        let looks = std::mem::take(&mut self.looks);
        self.rows = 0;
        // The reports have names from foreign processes.
        let sandbox = Sandbox::of_analyses(self.sandbox);
        let files = without_panic(|| sandbox.run(|| archive::files(&looks)));
        let path = self.folder.path_of("");
        let files = match files {
            Ok(Ok(files)) => files,
            Ok(Err(error)) => return Err(Error::NotExported { path, error }),
            Err(what) => return Err(Error::ArchivePanicked { path, what }),
        };
        self.failed = (files.into(), looks.len() as u64);
        self.write_failed()
    }

    fn write_failed(&mut self) -> Result<(), Error> {
        let needed = self.failed.0.iter().map(|file| file.bytes.len() as u64).sum();
        if !self.failed.0.is_empty() {
            self.make_room(needed)?;
        }
        while let Some(file) = self.failed.0.front() {
            add(&self.folder, file)?;
            self.figures.bytes += file.bytes.len() as u64;
            self.failed.0.pop_front();
        }
        let written = std::mem::take(&mut self.failed.1);
        self.count(ArchiveOutcome::Written, written);
        Ok(())
    }

    /// Removes the oldest days if the files would take too much with `needed` bytes more. The user may have removed or moved some.
    fn make_room(&mut self, needed: u64) -> Result<(), Error> {
        if needed > self.max_bytes {
            let source = ErrorKind::FileTooLarge.into();
            return Err(output::Error { path: self.folder.path_of(""), source }.into());
        }
        let mut days = days(&self.folder)?;
        while days.values().sum::<u64>() + needed > self.max_bytes
            && let Some((day, _)) = days.pop_first()
        {
            remove(&self.folder, &day)?;
        }
        self.figures.bytes = days.values().sum();
        Ok(())
    }

    fn count(&mut self, outcome: ArchiveOutcome, snapshots: u64) {
        *self.figures.snapshots.entry(outcome).or_default() += snapshots;
    }
}

/// The services of a day in the archive.
#[derive(Default)]
struct Services {
    day: u64,
    names: BTreeSet<String>,
}

impl Services {
    /// Returns the service, or another one if the day has too many.
    fn admit(&mut self, day: u64, service: String) -> String {
        if self.day != day {
            *self = Self { day, names: BTreeSet::new() };
        }
        if self.names.len() < MAX_SERVICES {
            self.names.insert(service.clone());
        }
        if self.names.contains(&service) { service } else { OTHER.to_owned() }
    }
}

/// The number of rows of a snapshot, or a little less.
fn rows(look: &Look) -> usize {
    let report = &look.report;
    let gems = report.interpreter.as_ref().and_then(|it| it.gems.as_ref());
    let arenas = report.arenas.as_ref().map_or(0, Vec::len);
    let owners = report.owners.as_ref().map_or(0, Vec::len);
    report.causes.len() + owners + arenas + gems.map_or(0, Vec::len)
}

/// The folders of tables, by their names.
fn tables(folder: &Folder) -> Result<Vec<Folder>, output::Error> {
    let names = folder.folders()?.into_iter();
    let tables = names.filter(|name| TABLES.iter().any(|table| table.name == name));
    tables.map(|name| folder.inner(Path::new(&name))).collect()
}

/// The days of an archive, the oldest first, with the size of their files in all tables.
fn days(folder: &Folder) -> Result<BTreeMap<String, u64>, output::Error> {
    let mut days = BTreeMap::new();
    for table in tables(folder)? {
        for name in table.folders()?.into_iter().filter(|name| name.starts_with("dt=")) {
            let day = table.inner(Path::new(&name))?;
            let bytes = days.entry(name).or_default();
            for service in day.folders()? {
                let files = day.inner(Path::new(&service))?.files();
                *bytes += files.into_iter().flatten().map(|(_, bytes)| bytes).sum::<u64>();
            }
        }
    }
    Ok(days)
}

/// Removes the files of a day from all tables.
fn remove(folder: &Folder, name: &str) -> Result<(), output::Error> {
    for table in tables(folder)? {
        if !table.folders()?.iter().any(|it| it == name) {
            continue;
        }
        let day = table.inner(Path::new(name))?;
        for service in day.folders()? {
            let inner = day.inner(Path::new(&service))?;
            for (file, _) in inner.files().into_iter().flatten() {
                // A file that cannot be removed now is tried again the next time.
                let _ = inner.remove(&file);
            }
            let _ = day.remove_folder(&service);
        }
        let _ = table.remove_folder(name);
    }
    Ok(())
}

/// Writes a file of an archive. A file of the same snapshot under another service is removed, so that no snapshot counts twice.
///
/// # Errors
/// If it cannot be written; then no part of it is in the archive.
pub fn add(archive: &Folder, file: &File) -> Result<(), Error> {
    let day = archive.inner(&Path::new(file.table).join(&file.day))?;
    day.inner(Path::new(&file.service))?.output(&file.name)?.write(&file.bytes)?;
    let names = day.names()?;
    let is_service = |name: &&OsString| name.to_string_lossy().starts_with("service=");
    for service in names.iter().filter(is_service).filter(|name| **name != *file.service) {
        let other = day.inner(Path::new(service))?;
        match other.remove(&file.name) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(output::Error { path: other.path_of(&file.name), source }.into());
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with a file of 1000 bytes for each of these days.
    fn archive(path: &Path, days: &[&str], max_bytes: u64) -> ArchiveWriter {
        for day in days {
            let folder = path.join("causes").join(day).join("service=shop");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("0.parquet"), [0; 1000]).unwrap();
        }
        ArchiveWriter::open(
            path,
            max_bytes,
            SandboxOptions { is_enabled: true, complain: |_| {} },
            crate::log::SILENT,
        )
        .unwrap()
    }

    fn file(day: &str, table: &'static str) -> File {
        let [day, service, name] = [day, "service=shop", "1.parquet"].map(str::to_owned);
        File { table, day, service, name, bytes: vec![0; 500] }
    }

    #[test]
    fn the_oldest_days_make_room_and_other_folders_stay() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("notes")).unwrap();
        std::fs::write(folder.path().join("notes/a"), [0; 5000]).unwrap();
        let days = ["dt=2026-11-20", "dt=2026-11-21", "dt=2026-11-22"];
        let archive = archive(folder.path(), &days, 3000);
        assert_eq!(archive.figures().bytes, 3000);
        let mut waiting = archive.lock();
        waiting.failed = ([file(days[2], "causes"), file(days[2], "looks")].into(), 7);
        assert!(waiting.write());
        assert_eq!(waiting.figures.bytes, 3000);
        assert_eq!(waiting.figures.snapshots[&ArchiveOutcome::Written], 7);
        let left: Vec<_> = super::days(&waiting.folder).unwrap().into_iter().collect();
        assert_eq!(left, [(days[1].to_owned(), 1000), (days[2].to_owned(), 2000)]);
        assert!(!folder.path().join("causes").join(days[0]).exists());
        assert!(folder.path().join("notes/a").exists());
    }

    /// Each title of a program got folders of its own.
    #[test]
    fn the_number_of_services_of_a_day_is_bounded() {
        let mut services = Services::default();
        let admitted: BTreeSet<String> =
            (0..1000).map(|number| services.admit(1, format!("job-{number}"))).collect();
        assert_eq!(admitted.len(), MAX_SERVICES + 1);
        assert_eq!(services.admit(1, "job-1".into()), "job-1");
        assert_eq!(services.admit(1, "shop".into()), OTHER);
        assert_eq!(services.admit(2, "shop".into()), "shop");
    }

    #[test]
    fn files_that_could_not_be_written_are_written_again_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let archive = archive(folder.path(), &[], 1 << 20);
        // A file in the way of a table's folder.
        std::fs::write(folder.path().join("looks"), "").unwrap();
        let day = "dt=2026-11-22";
        archive.lock().failed = ([file(day, "causes"), file(day, "looks")].into(), 7);
        archive.write_if_due(WRITE_EVERY);
        assert_eq!(archive.figures().snapshots, [(ArchiveOutcome::Failed, 7)].into());
        std::fs::remove_file(folder.path().join("looks")).unwrap();
        archive.write_if_due(WRITE_EVERY + AGAIN / 2);
        assert_eq!(archive.figures().snapshots.len(), 1);
        archive.write_if_due(WRITE_EVERY + AGAIN);
        assert_eq!(archive.figures().snapshots[&ArchiveOutcome::Written], 7);
        assert_eq!(archive.figures().bytes, 1000);
    }
}
