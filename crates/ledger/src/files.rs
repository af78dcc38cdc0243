use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use linux::{Address, Backing, Mapping, is_control};

use crate::Cause;

/// A mapped file and its resident bytes, including the variables of a library that are not in its file (.bss).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileAccount {
    /// The path that the kernel shows, without control characters.
    pub path: String,
    /// Pages that the process changed.
    pub private_bytes: u64,
    /// The part of `private_bytes` that is in no file: variables of a library that begin as zeros (.bss).
    pub zeroed_bytes: u64,
    /// Pages of the kernel's cache.
    pub shared_bytes: u64,
    /// The part of `shared_bytes` that is counted again, since the same page is mapped several times.
    pub repeated_bytes: u64,
    /// The part of `shared_bytes` in mappings through which the process may change the file.
    pub writable_bytes: u64,
    /// The number of mappings.
    pub mappings: u64,
    /// The number of mappings of the part that is mapped most often. A library has several mappings, each of another
    /// part, so it is 1 for them.
    pub times: u64,
    /// True if it is in memory (tmpfs, memfd, shared memory): the kernel can only swap its shared pages.
    pub is_in_memory: bool,
}

impl FileAccount {
    /// Its part of RSS.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.private_bytes + self.shared_bytes
    }
}

/// The mapped files during booking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files(HashMap<PathBuf, File>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct File {
    private_bytes: u64,
    zeroed_bytes: u64,
    shared_bytes: u64,
    writable_bytes: u64,
    /// The resident parts of the file, for each mapping.
    shared: Vec<Range<u64>>,
    /// The part of each mapping: its offset in the file, and whether it may be written and executed. Small segments of a library may lie
    /// in one page of the file.
    parts: Vec<(u64, bool, bool)>,
    is_in_memory: bool,
}

impl Files {
    /// Notes a mapping, if it is of a file.
    pub(crate) fn map(&mut self, mapping: &Mapping) {
        if let Some(path) = mapping.file() {
            let file = self.of(path);
            file.parts.push((mapping.file_offset, mapping.writable, mapping.executable));
            file.is_in_memory |= mapping.is_in_memory;
        }
    }

    /// Adds `bytes` of the resident `range` of a mapping to the file `path`, if `cause` is one of files.
    pub(crate) fn book(
        &mut self,
        path: &Path,
        mapping: &Mapping,
        range: &Range<Address>,
        cause: Cause,
        bytes: u64,
    ) {
        match cause {
            Cause::FilePrivate => {
                let file = self.of(path);
                file.private_bytes += bytes;
                if mapping.backing == Backing::Anonymous {
                    file.zeroed_bytes += bytes;
                }
            }
            Cause::FileShared | Cause::FileShmem => {
                let start = mapping.file_offset.saturating_add(range.start - mapping.range.start);
                let file = self.of(path);
                file.shared.push(start..start.saturating_add(bytes));
                file.shared_bytes += bytes;
                if mapping.shared && mapping.writable {
                    file.writable_bytes += bytes;
                }
            }
            _ => {}
        }
    }

    /// Adds the files of other mappings of the same process.
    pub(crate) fn add(&mut self, more: Self) {
        for (path, more) in more.0 {
            let file = self.0.entry(path).or_default();
            file.private_bytes += more.private_bytes;
            file.zeroed_bytes += more.zeroed_bytes;
            file.shared_bytes += more.shared_bytes;
            file.writable_bytes += more.writable_bytes;
            file.shared.extend(more.shared);
            file.parts.extend(more.parts);
            file.is_in_memory |= more.is_in_memory;
        }
    }

    fn of(&mut self, path: &Path) -> &mut File {
        // Most calls are about a file that is known.
        if !self.0.contains_key(path) {
            self.0.insert(path.into(), File::default());
        }
        self.0.get_mut(path).expect("it was inserted")
    }

    /// Returns the files with resident bytes, largest first.
    pub(crate) fn accounts(&self) -> Vec<FileAccount> {
        let accounts = self.0.iter().map(|(path, file)| FileAccount {
            path: path.to_string_lossy().replace(is_control, " "),
            private_bytes: file.private_bytes,
            zeroed_bytes: file.zeroed_bytes,
            shared_bytes: file.shared_bytes,
            repeated_bytes: file.shared_bytes - covered_bytes(file.shared.clone()),
            writable_bytes: file.writable_bytes,
            mappings: file.parts.len() as u64,
            times: most_frequent(&file.parts),
            is_in_memory: file.is_in_memory,
        });
        let mut accounts: Vec<_> = accounts.filter(|file| file.resident_bytes() > 0).collect();
        accounts.sort_by(|a, b| {
            let key = |file: &FileAccount| Reverse(file.resident_bytes());
            (key(a), &a.path).cmp(&(key(b), &b.path))
        });
        accounts
    }
}

/// Returns the length of the union of ranges.
fn covered_bytes(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut covered, mut end) = (0, 0);
    for range in ranges {
        covered += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    covered
}

/// Returns the number of times that the most frequent part occurs.
fn most_frequent(parts: &[(u64, bool, bool)]) -> u64 {
    let mut sorted = parts.to_vec();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).map(|same| same.len() as u64).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::Address;

    fn mapping(path: &str, file_offset: u64) -> Mapping {
        let backing = Backing::File(path.into());
        Mapping {
            backing,
            file_offset,
            ..Mapping::anonymous(Address(0x10_0000)..Address(0x20_0000))
        }
    }

    /// Books pages of a mapping, by their number in it.
    fn book(files: &mut Files, mapping: &Mapping, pages: Range<u64>, cause: Cause) {
        let start = mapping.range.start;
        let range = start.offset(pages.start * 4096)..start.offset(pages.end * 4096);
        let bytes = range.end - range.start;
        let path = mapping.file().unwrap_or(Path::new("/lib/libfoo.so"));
        files.book(path, mapping, &range, cause, bytes);
    }

    #[test]
    fn a_part_that_is_mapped_again_is_counted_and_parts_of_a_library_are_not() {
        let mut files = Files::default();
        let library = [0, 0x1000, 0x5000].map(|offset| mapping("/lib/libfoo.so", offset));
        library.iter().for_each(|mapping| files.map(mapping));
        // The segment with its code ends in the page of the file in which that with its variables begins.
        files.map(&Mapping { executable: true, ..library[2].clone() });
        let writable = Mapping { shared: true, ..library[0].clone() };
        book(&mut files, &writable, 0..1, Cause::FileShared);
        book(&mut files, &library[1], 0..2, Cause::FileShared);
        book(&mut files, &library[2], 0..1, Cause::FilePrivate);
        let bss = Mapping::anonymous(Address(0x20_0000)..Address(0x30_0000));
        book(&mut files, &bss, 0..2, Cause::FilePrivate);
        book(&mut files, &library[2], 0..1, Cause::MallocOverhead);
        let database = mapping("/srv/geo\u{1b}[2J.db", 0);
        for _ in 0..10 {
            files.map(&database);
        }
        // One mapping is wholly resident, one in part, and eight not at all.
        book(&mut files, &database, 0..100, Cause::FileShared);
        book(&mut files, &database, 20..30, Cause::FileShared);
        files.map(&mapping("/srv/not-resident", 0));
        files.map(&Mapping::anonymous(Address(0)..Address(4096)));
        let expected = [
            FileAccount {
                path: "/srv/geo [2J.db".into(),
                private_bytes: 0,
                zeroed_bytes: 0,
                shared_bytes: 110 * 4096,
                repeated_bytes: 10 * 4096,
                writable_bytes: 0,
                mappings: 10,
                times: 10,
                is_in_memory: false,
            },
            FileAccount {
                path: "/lib/libfoo.so".into(),
                private_bytes: 3 * 4096,
                zeroed_bytes: 2 * 4096,
                shared_bytes: 3 * 4096,
                repeated_bytes: 0,
                writable_bytes: 4096,
                mappings: 4,
                times: 1,
                is_in_memory: false,
            },
        ];
        assert_eq!(files.accounts(), expected);
    }
}
