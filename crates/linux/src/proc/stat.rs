//! /proc/PID/stat and /proc/PID/status, which proc_pid_stat(5) and proc_pid_status(5) describe.

use std::io;

use super::read;
use crate::Error;

/// The used fields of a `stat`, of a process or a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: char,
    pub(super) ppid: i32,
    /// `PF_...` of linux/sched.h.
    pub(super) flags: u32,
    pub(super) minflt: u64,
    pub(super) majflt: u64,
    /// Times in clock ticks.
    pub(super) utime: u64,
    pub(super) stime: u64,
    pub(super) num_threads: u64,
    /// Clock ticks since boot.
    pub(super) starttime: u64,
    pub(super) vsize: u64,
    /// Resident memory in pages.
    pub(super) rss: u64,
    /// The address of the stack; 0 if the kernel hides it.
    pub(super) startstack: u64,
    pub(super) exit_signal: Option<i32>,
}

impl Stat {
    /// Reads the file of process `pid`.
    pub(super) fn read(pid: i32) -> Result<Self, Error> {
        parse_file(pid, "stat", Self::parse)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let fields: Vec<&str> = fields(text)?.collect();
        // The state, the first one here, is field 3 of proc_pid_stat(5).
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            state: field(3)?.chars().next()?,
            ppid: field(4)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            minflt: field(10)?.parse().ok()?,
            majflt: field(12)?.parse().ok()?,
            utime: field(14)?.parse().ok()?,
            stime: field(15)?.parse().ok()?,
            num_threads: field(20)?.parse().ok()?,
            starttime: field(22)?.parse().ok()?,
            vsize: field(23)?.parse().ok()?,
            rss: field(24)?.parse().ok()?,
            startstack: field(28)?.parse().ok()?,
            exit_signal: field(38).and_then(|field| field.parse().ok()),
        })
    }
}

/// Returns the fields of the text of a `stat` behind the name, which may contain any bytes, even parentheses.
pub(super) fn fields(text: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let name_end = text.windows(2).rposition(|pair| pair == b") ")?;
    Some(str::from_utf8(&text[name_end + 2..]).ok()?.split_ascii_whitespace())
}

/// The used fields of a `status`, of a process or a thread. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    /// With a backslash before line breaks and backslashes, as the kernel writes it.
    pub(super) name: String,
    pub(super) state: char,
    pub(super) tgid: i32,
    pub(super) ppid: i32,
    pub(super) tracerpid: i32,
    pub(super) euid: u32,
    /// The ids in the nested pid namespaces, the innermost last; empty if the kernel does not report them.
    pub(super) nspid: Vec<i32>,
    /// `None` for a process without memory, like the other sizes.
    pub(super) vmsize: Option<u64>,
    pub(super) vmrss: Option<u64>,
    pub(super) rssanon: Option<u64>,
    pub(super) vmpte: Option<u64>,
    pub(super) threads: u64,
    /// The effective capabilities.
    pub(super) capeff: u64,
}

impl Status {
    /// Reads the file `name` of process `pid`, its own `status` or that of a thread.
    pub(super) fn read(pid: i32, name: &str) -> Result<Self, Error> {
        parse_file(pid, name, Self::parse)
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let word =
            |key: &str| std::str::from_utf8(value(text, key)?).ok()?.split_whitespace().next();
        let number = |key: &str| word(key)?.parse().ok();
        let bytes = |key: &str| word(key)?.parse::<u64>().ok()?.checked_mul(1024);
        let nspid = value(text, "NSpid:").and_then(|ids| std::str::from_utf8(ids).ok());
        Some(Self {
            name: String::from_utf8_lossy(value(text, "Name:")?).into_owned(),
            state: word("State:")?.chars().next()?,
            tgid: number("Tgid:")?,
            ppid: number("PPid:")?,
            tracerpid: number("TracerPid:")?,
            // The effective id follows the real one.
            euid: std::str::from_utf8(value(text, "Uid:")?)
                .ok()?
                .split_whitespace()
                .nth(1)?
                .parse()
                .ok()?,
            nspid: nspid
                .unwrap_or_default()
                .split_whitespace()
                .filter_map(|it| it.parse().ok())
                .collect(),
            vmsize: bytes("VmSize:"),
            vmrss: bytes("VmRSS:"),
            rssanon: bytes("RssAnon:"),
            vmpte: bytes("VmPTE:"),
            threads: word("Threads:")?.parse().ok()?,
            capeff: u64::from_str_radix(word("CapEff:")?, 16).ok()?,
        })
    }
}

/// Returns the rest of the first line that begins with `key`, without blanks around it.
pub(super) fn value<'a>(text: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut lines = text.split(|&byte| byte == b'\n');
    lines.find_map(|line| line.strip_prefix(key.as_bytes())).map(<[u8]>::trim_ascii)
}

fn parse_file<T>(pid: i32, name: &str, parse: impl Fn(&[u8]) -> Option<T>) -> Result<T, Error> {
    parse(&read(pid, name)?).ok_or_else(|| Error::Proc {
        path: format!("/proc/{pid}/{name}"),
        source: io::Error::new(io::ErrorKind::InvalidData, "it has an unknown form"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &[u8] =
        b"4242 (NAME) S 1 4242 4242 34816 5001 4194560 7 21 3 2 11 5 0 0 20 0 9 0 1234 56789 640 \
        18446744073709551615 1 2 140722 0 0 0 65536 4 65538 0 0 0 17 1 0 0 0 0 0 3 4 5 6 7 8 9 0\n";
    const STATUS: &[u8] = b"Name:\tNAME\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t4242\nNgid:\t0\nPid:\t4242\n\
        PPid:\t1\nTracerPid:\t0\nUid:\t1000\t1001\t1002\t1003\nGid:\t0\t0\t0\t0\nGroups:\t4 24 \nNSpid:\t4242\t7\n\
        VmSize:\t    5000 kB\nVmRSS:\t    2000 kB\nRssAnon:\t    1500 kB\nVmPTE:\t      60 kB\nThreads:\t9\n\
        SigCgt:\t0000000002000000\nCapEff:\t0000000000080000\n";

    fn named(text: &[u8], name: &[u8]) -> Vec<u8> {
        let at = text.windows(4).position(|part| part == b"NAME").unwrap();
        [&text[..at], name, &text[at + 4..]].concat()
    }

    #[test]
    fn no_name_hides_the_fields_behind_it() {
        let stat = Stat {
            state: 'S',
            ppid: 1,
            flags: 4_194_560,
            minflt: 7,
            majflt: 3,
            utime: 11,
            stime: 5,
            num_threads: 9,
            starttime: 1234,
            vsize: 56789,
            rss: 640,
            startstack: 140_722,
            exit_signal: Some(17),
        };
        let status = |name: &str| Status {
            name: name.into(),
            state: 'S',
            tgid: 4242,
            ppid: 1,
            tracerpid: 0,
            euid: 1001,
            nspid: vec![4242, 7],
            vmsize: Some(5000 << 10),
            vmrss: Some(2000 << 10),
            rssanon: Some(1500 << 10),
            vmpte: Some(60 << 10),
            threads: 9,
            capeff: 1 << 19,
        };
        for name in
            ["ruby", "", ") R 9 ", ")", "((", "a b:c", ":", "\u{1b}[2J", "x) Z 0 (y", "Tgid: 1"]
        {
            assert_eq!(Stat::parse(&named(STAT, name.as_bytes())), Some(stat.clone()), "{name}");
            assert_eq!(
                Status::parse(&named(STATUS, name.as_bytes())),
                Some(status(name.trim())),
                "{name}"
            );
        }
        for name in [&b"\xff\xfe"[..], b"\xff) \x80", b"a\nTgid:\t1"] {
            assert_eq!(Stat::parse(&named(STAT, name)), Some(stat.clone()));
        }
        // The kernel escapes a line break.
        for name in [&b"\xff\xfe"[..], b"\\nTgid:\\t1"] {
            assert_eq!(Status::parse(&named(STATUS, name)).map(|it| it.tgid), Some(4242));
        }
    }

    #[test]
    fn the_files_of_all_processes_are_understood() {
        for pid in super::super::processes().unwrap() {
            for refused in [Stat::read(pid).err(), Status::read(pid, "status").err()] {
                assert!(!matches!(refused, Some(Error::Proc { .. })), "{refused:?}");
            }
        }
        let own = Status::read(std::process::id().cast_signed(), "status").unwrap();
        assert_eq!(own.tgid.cast_unsigned(), std::process::id());
        assert!(own.vmsize > own.vmrss && own.vmrss > Some(0) && own.vmpte > Some(0));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
            for valid in [STAT, STATUS] {
                let (before, after) = valid.split_at(at.index(valid.len()));
                for text in [&text[..], &[before, &text, after].concat(), before] {
                    let _ = (Stat::parse(text), Status::parse(text));
                }
            }
        }
    }
}
