use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::{Address, Error, Mapping, Mappings, proc};

/// The longest name of a mapping, with its end: that of the longest path, and ` (deleted)`.
const NAME_BYTES: usize = 4096 + 16;
/// Bits of the flags of a mapping (`PROCMAP_QUERY_VMA_...`), by their letters in /proc/PID/maps.
const FLAGS: [(u64, char); 3] = [(1, 'r'), (2, 'w'), (4, 'x')];
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
        let line = query.line(name);
        let mappings =
            Mappings::parse(&line).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(mappings.iter().next().cloned())
    }
}

impl Query {
    /// The line of /proc/PID/maps of the mapping that was found.
    fn line(&self, name: &[u8]) -> Vec<u8> {
        let Self { start, end, offset, device: [major, minor], inode, .. } = self;
        let may = FLAGS.map(|(bit, letter)| if self.flags & bit != 0 { letter } else { '-' });
        let may: String = may.iter().collect();
        let shared = if self.flags & SHARED != 0 { 's' } else { 'p' };
        let head = format!(
            "{start:x}-{end:x} {may}{shared} {offset:08x} {major:02x}:{minor:02x} {inode} "
        );
        [head.as_bytes(), name, b"\n"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
