use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::{Address, Error, Mapping, proc};

/// The longest name of a mapping, with its end: that of the longest path, and ` (deleted)`.
const NAME_BYTES: usize = 4096 + 16;
/// Bits of the flags of a mapping (`PROCMAP_QUERY_VMA_...`).
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

nix::ioctl_readwrite!(procmap_query, b'f', 17, Query);

/// Single mappings of a process that runs: far cheaper than reading all of them (ioctl PROCMAP_QUERY, Linux 6.11).
pub struct MappingQuery {
    file: File,
}

impl MappingQuery {
    /// Opens the mappings of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub fn open(pid: i32) -> Result<Self, Error> {
        Ok(Self { file: proc::open(pid, "maps")? })
    }

    /// Returns the mapping that contains `at`; `None` if there is none.
    ///
    /// # Errors
    /// If the kernel has no such query, or the process has ended.
    pub fn at(&self, at: Address) -> io::Result<Option<Mapping>> {
        let mut name = [0; NAME_BYTES];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_address: at.0,
            name: name.as_mut_ptr() as u64,
            name_bytes: NAME_BYTES as u32,
            ..Query::default()
        };
        // SAFETY: the query has the layout of linux/fs.h, and the name is writable for its length and outlives the call.
        match unsafe { procmap_query(self.file.as_raw_fd(), &raw mut query) } {
            Ok(_) => {}
            Err(nix::errno::Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // The length includes the zero at the end.
        let name = &name[..(query.name_bytes as usize).saturating_sub(1).min(NAME_BYTES)];
        Ok(Some(query.mapping(name)))
    }
}

impl Query {
    /// The mapping that was found. Its name is not escaped, unlike those in /proc/PID/maps.
    fn mapping(&self, name: &[u8]) -> Mapping {
        let name: Vec<_> = name.split(|&byte| byte == b'\n').collect();
        let range = Address(self.start)..Address(self.end);
        Mapping {
            readable: self.flags & READABLE != 0,
            writable: self.flags & WRITABLE != 0,
            executable: self.flags & EXECUTABLE != 0,
            file_offset: self.offset,
            ..Mapping::named(range, self.flags & SHARED != 0, &name.join(&b"\\012"[..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line break in a path began another line, which could be that of any mapping.
    #[test]
    fn a_path_is_one_name_whatever_is_in_it() {
        let query = Query { start: 0x7000, end: 0x8000, flags: READABLE, ..Query::default() };
        let found = query.mapping(b"/tmp/x\n1000-2000 rwxp 00000000 00:00 0 ");
        assert_eq!(found.range, Address(0x7000)..Address(0x8000));
        assert_eq!(found.file_name().as_deref(), Some("x\\0121000-2000 rwxp 00000000 00:00 0 "));
    }

    #[test]
    fn single_mappings_equal_those_of_the_whole_list() {
        let pid = std::process::id().cast_signed();
        let query = MappingQuery::open(pid).unwrap();
        let all = proc::mappings(pid, false).unwrap();
        let code = Address(single_mappings_equal_those_of_the_whole_list as fn() as usize as u64);
        if let Err(error) = query.at(code) {
            return testkit::skip(&format!("the kernel finds no single mappings: {error}"));
        }
        // Other tests change the rest meanwhile.
        let own = std::env::current_exe().unwrap();
        let fixed = |mapping: &&Mapping| !mapping.writable && mapping.file() == Some(&own);
        let found: Vec<Mapping> = all
            .iter()
            .filter(fixed)
            .map(|mapping| query.at(mapping.range.end.before(1)).unwrap().unwrap())
            .collect();
        assert!(found.len() > 2 && found.iter().eq(all.iter().filter(fixed)), "{found:#?}");
        assert!(found.iter().any(|mapping| mapping.range.contains(&code)));
        let own = query.at(Address(&raw const query as u64)).unwrap().unwrap();
        assert!(own.readable && own.writable && !own.executable && !own.shared, "{own:?}");
        assert_eq!(query.at(Address(0)).unwrap(), None);
    }
}
