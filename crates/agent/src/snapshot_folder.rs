//! The folder with snapshots of the agent: it has at most so many files, and so many bytes.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use formats::Place;
use output::Folder;

use crate::error::Error;
use crate::token::read_file;

/// The endings of a snapshot, of growth by code, of the lines that allocate what stays, and of the report on a process that was killed without a snapshot.
pub(crate) const SNAPSHOT: &str = ".rbloat";
pub(crate) const GROWTH: &str = ".who.json";
pub(crate) const KEPT: &str = ".kept.json";
pub(crate) const KILLED: &str = ".html";
/// The name of a file that shows if files can be written.
const PROBE: &str = ".rbloat-probe";
/// The longest name of a place in the name of a file.
const MAX_NAME: usize = 100;

/// Files of earlier agents count, too.
pub(crate) struct SnapshotFolder {
    folder: Folder,
    max_files: usize,
    max_bytes: u64,
    /// The names and sizes of the files, the oldest first: their names begin with the time.
    files: VecDeque<(String, u64)>,
}

impl SnapshotFolder {
    /// Opens the folder. It keeps `max_files` snapshots, with at most `max_bytes` in all files.
    ///
    /// # Errors
    /// If the folder cannot be made or read, or files cannot be written to it.
    pub(crate) fn open(path: &Path, max_files: usize, max_bytes: u64) -> Result<Self, Error> {
        let folder = Folder::create(path)?;
        // The first snapshot, which may be the only one, would be too late to find that out.
        folder.output(PROBE)?.write(&[])?;
        let _ = folder.remove(PROBE);
        let mut files =
            folder.files().map_err(|source| output::Error { path: path.into(), source })?;
        // Other files are not ours to remove.
        files.retain(|(name, _)| is_ours(name));
        files.sort();
        Ok(Self { folder, max_files, max_bytes, files: files.into() })
    }

    /// Writes a file. If there are too many, it first removes files of the place that has most, the oldest first: a process that is
    /// killed again and again would otherwise leave nothing of the others.
    ///
    /// # Errors
    /// If it cannot be written, or is too large alone.
    pub(crate) fn store(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let size = bytes.len() as u64;
        if size > self.max_bytes {
            let source = std::io::ErrorKind::FileTooLarge.into();
            return Err(output::Error { path: self.folder.path_of(name), source }.into());
        }
        // A later result takes the place of an earlier one.
        let at = self.files.iter().position(|(other, _)| other == name);
        let before = at.and_then(|at| self.files.remove(at));
        while self.bytes() + size > self.max_bytes
            || is_snapshot(name) && self.snapshots() >= self.max_files
        {
            let Some(surplus) = self.surplus().and_then(|at| self.files.remove(at)) else { break };
            // The user may have removed it.
            let _ = self.folder.remove(&surplus.0);
        }
        let written = self.folder.output(name).and_then(|output| output.write(bytes));
        self.files.extend(match &written {
            Ok(()) => Some((name.to_owned(), size)),
            Err(_) => before,
        });
        Ok(written?)
    }

    /// The oldest file of the place that has most of them; of several such places, the oldest of all.
    fn surplus(&self) -> Option<usize> {
        let mut counts = BTreeMap::new();
        for (name, _) in &self.files {
            *counts.entry(place_in(name)).or_insert(0) += 1;
        }
        let files = self.files.iter().enumerate().rev();
        files.max_by_key(|(_, (name, _))| counts[place_in(name)]).map(|(at, _)| at)
    }

    pub(crate) fn path_of(&self, name: &str) -> std::path::PathBuf {
        self.folder.path_of(name)
    }

    /// The latest snapshot of a process, whose files have this stem.
    pub(crate) fn latest(&self, stem: &str) -> Option<&str> {
        let of_process = |name: &str| name.split_once('-').map_or("", |(_, rest)| rest).to_owned();
        let wanted = format!("{}{SNAPSHOT}", of_process(stem));
        let mut names = self.files.iter().rev().map(|(name, _)| name.as_str());
        names.find(|name| of_process(name) == wanted)
    }

    /// The bytes of a file, unless it has become larger than all files may be.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        let (_, bytes) = read_file(&self.folder.path_of(name), self.max_bytes).ok()?;
        Some(bytes)
    }

    /// The number of snapshots and reports.
    pub(crate) fn snapshots(&self) -> usize {
        self.files.iter().filter(|(name, _)| is_snapshot(name)).count()
    }

    /// The size of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Returns the name of files about a process, without their ending.
pub(crate) fn stem(unix_seconds: u64, place: &Place, pid: i32) -> String {
    let container = &place.container;
    let names = [&container.namespace, &container.pod, &container.name, &place.role];
    let names: Vec<&str> =
        names.into_iter().filter(|it| !it.is_empty()).map(String::as_str).collect();
    // Names come from foreign processes.
    let is_plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-');
    let name: String = names
        .join("_")
        .chars()
        .map(|it| if is_plain(it) { it } else { '-' })
        .take(MAX_NAME)
        .collect();
    format!("{unix_seconds}-{name}-{pid}")
}

/// Returns the place in the name of a file: the part between the time and the process.
fn place_in(name: &str) -> &str {
    let without_time = name.split_once('-').map_or(name, |(_, rest)| rest);
    without_time.rsplit_once('-').map_or(without_time, |(place, _)| place)
}

fn is_snapshot(name: &str) -> bool {
    name.ends_with(SNAPSHOT) || name.ends_with(KILLED)
}

fn is_ours(name: &str) -> bool {
    let seconds = name.split('-').next().unwrap_or_default();
    (is_snapshot(name) || name.ends_with(GROWTH))
        && !seconds.is_empty()
        && seconds.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use formats::Container;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_files_make_room_and_those_of_others_stay() {
        let outer = tempfile::tempdir().unwrap();
        std::fs::write(outer.path().join("1-notes.txt"), "mine").unwrap();
        std::fs::write(outer.path().join("app.rbloat"), "mine").unwrap();
        let mut folder = SnapshotFolder::open(outer.path(), 3, 1000).unwrap();
        for number in 1..=5 {
            folder.store(&format!("{number}-a-1.rbloat"), &[0; 100]).unwrap();
        }
        let others = ["1-notes.txt", "app.rbloat"].map(str::to_owned);
        let kept = ["3-a-1.rbloat", "4-a-1.rbloat", "5-a-1.rbloat"].map(str::to_owned);
        let mut expected = [&others[..], &kept].concat();
        expected.sort();
        assert_eq!(names(outer.path()), expected);
        // Another agent finds them.
        let mut folder = SnapshotFolder::open(outer.path(), 10, 1000).unwrap();
        assert_eq!((folder.snapshots(), folder.bytes()), (3, 300));
        folder.store("5-a-1.who.json", &[0; 650]).unwrap();
        folder.store("6-a-1.rbloat", &[0; 200]).unwrap();
        assert_eq!((folder.snapshots(), folder.bytes()), (2, 950));
        assert!(folder.store("7-a-1.rbloat", &[0; 1001]).is_err());
        assert_eq!(folder.bytes(), 950);
    }

    /// A crash loop left nothing of the others.
    #[test]
    fn a_place_with_many_snapshots_makes_room_for_the_others() {
        let outer = tempfile::tempdir().unwrap();
        let mut folder = SnapshotFolder::open(outer.path(), 4, 1000).unwrap();
        for (number, place) in (1..).zip(["shop_web-1_puma", "jobs", "loop", "loop", "loop"]) {
            folder.store(&format!("{number}-{place}-{number}.rbloat"), &[0; 100]).unwrap();
            folder.store(&format!("{number}-{place}-{number}.who.json"), &[0; 10]).unwrap();
        }
        let of = |place: &str| {
            names(outer.path()).into_iter().filter(|name| name.contains(place)).count()
        };
        assert_eq!((of("web-1"), of("jobs"), of("loop")), (2, 2, 5));
        assert_eq!(folder.latest("8-jobs-2"), Some("2-jobs-2.rbloat"));
        assert_eq!([folder.latest("8-jobs-3"), folder.latest("8-web-1")], [None, None]);
        // A snapshot that is written again takes no other's place.
        folder.store("2-jobs-2.rbloat", &[1; 200]).unwrap();
        assert_eq!((of("web-1"), of("jobs"), of("loop")), (2, 2, 5));
        assert_eq!(folder.read("2-jobs-2.rbloat").as_deref(), Some(&[1; 200][..]));
        // A third place takes its share from the loop, and the newest snapshot stays.
        folder.store("9-cron-9.rbloat", &[0; 100]).unwrap();
        assert_eq!((of("web-1"), of("jobs"), of("cron")), (2, 2, 1));
        assert!(of("5-loop-5.rbloat") == 1, "{:?}", names(outer.path()));
    }

    #[test]
    fn a_folder_that_takes_no_files_is_an_error() {
        let outer = tempfile::tempdir().unwrap();
        // As a folder in which nobody may write, but also for root.
        let removed = outer.path().join("removed");
        std::fs::create_dir(&removed).unwrap();
        assert!(SnapshotFolder::open(&removed, 1, 1).is_ok());
        assert_eq!(names(&removed), [""; 0]);
        assert!(SnapshotFolder::open(Path::new("/proc/self/fdinfo"), 1, 1).is_err());
    }

    #[test]
    fn a_file_has_a_name_that_is_safe_and_not_too_long() {
        let container = Container { name: "../we b".into(), ..Container::default() };
        let place = Place { container, role: format!("puma/\u{1b}[31m{}", "x".repeat(300)) };
        let name = stem(1_700_000_000, &place, 42);
        assert!(name.starts_with("1700000000----we-b_puma---31mxx"), "{name}");
        assert!(name.ends_with("xx-42") && name.len() < 130, "{name}");
        assert!(is_ours(&format!("{name}{SNAPSHOT}")) && is_ours(&format!("{name}{GROWTH}")));
    }
}
