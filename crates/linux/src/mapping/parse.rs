//! The text of /proc/PID/maps and /proc/PID/smaps, which the kernel writes in `show_map_vma` and `show_smap`
//! (fs/proc/task_mmu.c).
//!
//! The line of a mapping begins with its address. The other lines of smaps begin with a capital letter. The process chooses
//! only names, at the end of a mapping's line: they are any bytes but line breaks.

use std::ffi::OsStr;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use super::{Backing, HUGETLB_NAME, Mapping, Mappings, is_hugetlb_name};
use crate::Address;
use crate::text::one_line;

/// The maximum length of a line that is kept: the fields of the kernel, the longest path that can be opened (PATH_MAX), and
/// ` (deleted)`. A process can map files with longer paths.
const MAX_LINE: usize = 128 + 4096 + 16;
/// The maximum length of a text. A million mappings with paths of usual length have less than half of it.
const MAX_TEXT: u64 = 2 << 30;
/// The part of a line that an error shows.
const MAX_SHOWN: usize = 100;

/// The major and minor number of a file system's device.
pub(crate) type Device = (u32, u32);

/// Parses the text of /proc/PID/maps or /proc/PID/smaps. `is_in_memory` returns true if the file with this
/// device and path is in memory.
///
/// # Errors
/// If it cannot be read, is too long, or a mapping has an unknown form.
pub(crate) fn parse(
    text: impl BufRead,
    is_in_memory: impl Fn(Device, &[u8]) -> bool,
) -> io::Result<Mappings> {
    let mut text = text.take(MAX_TEXT);
    let (mut mappings, mut line) = (Vec::<Mapping>::new(), Vec::new());
    while read_line(&mut text, &mut line)? {
        let is_understood = if matches!(line.first(), Some(b'0'..=b'9' | b'a'..=b'f')) {
            mapping(&line, &is_in_memory).map(|mapping| push(&mut mappings, mapping))
        } else if let Some(mapping) = mappings.last_mut() {
            add_detail(&line, mapping)
        } else {
            Some(())
        };
        is_understood.ok_or_else(|| invalid(&line))?;
    }
    if text.limit() == 0 {
        let what = format!("it is longer than {} GiB", MAX_TEXT >> 30);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    // The vsyscall page belongs to the kernel's half of the address space.
    mappings.retain(
        |mapping| !matches!(&mapping.backing, Backing::Kernel(name) if name == "[vsyscall]"),
    );
    Ok(Mappings(mappings))
}

/// Reads a line, without its end and what exceeds [`MAX_LINE`]. Returns false at the end of the text.
fn read_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    if text.by_ref().take(MAX_LINE as u64).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else {
        text.skip_until(b'\n')?;
    }
    Ok(true)
}

/// Adds a mapping in the place of those that it overlaps: the process may have changed it between two reads.
fn push(mappings: &mut Vec<Mapping>, mapping: Mapping) {
    while mappings.pop_if(|last| last.range.end > mapping.range.start).is_some() {}
    mappings.push(mapping);
}

/// Parses the line of a mapping: `7f0000000000-7f0000021000 rw-p 00000000 fe:01 1234       NAME`.
fn mapping(line: &[u8], is_in_memory: impl Fn(Device, &[u8]) -> bool) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut range = fields.next()?.splitn(2, |&byte| byte == b'-');
    let range = Address(hexadecimal(range.next()?)?)..Address(hexadecimal(range.next()?)?);
    if range.is_empty() {
        return None;
    }
    let &[read, write, execute, share] = fields.next()? else { return None };
    let may = |field: u8, letter: u8| match field {
        _ if field == letter => Some(true),
        b'-' => Some(false),
        _ => None,
    };
    let shared = match share {
        b's' => true,
        b'p' => false,
        _ => return None,
    };
    let file_offset = hexadecimal(fields.next()?)?;
    let (device, _inode) = (device(fields.next()?)?, fields.next()?);
    // Blanks align the names. No name begins with one.
    let name = fields.next().unwrap_or_default();
    let name = &name[name.iter().take_while(|&&byte| byte == b' ').count()..];
    let mapping = Mapping::named(range, shared, name);
    let is_in_memory =
        mapping.file().is_some_and(|path| is_in_memory(device, path.as_os_str().as_bytes()));
    Some(Mapping {
        readable: may(read, b'r')?,
        writable: may(write, b'w')?,
        executable: may(execute, b'x')?,
        file_offset,
        is_in_memory,
        ..mapping
    })
}

/// Parses the numbers of a device: `fe:01`.
fn device(text: &[u8]) -> Option<Device> {
    let mut numbers = text.splitn(2, |&byte| byte == b':').map(hexadecimal);
    let mut number = || u32::try_from(numbers.next()??).ok();
    Some((number()?, number()?))
}

/// Adds what a line of smaps says about the mapping before it. Most lines are not used.
fn add_detail(line: &[u8], mapping: &mut Mapping) -> Option<()> {
    if let Some(value) = line.strip_prefix(b"Rss:") {
        mapping.kernel_rss_bytes = Some(bytes(value)?);
    } else if let Some(value) = line.strip_prefix(b"Swap:") {
        mapping.swap_bytes = bytes(value)?;
    } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
        // Any file may have the name of memory in huge pages. Only the flag decides.
        let has_hugetlb = flags.split(|&byte| byte == b' ').any(|flag| flag == b"ht");
        if mapping.is_hugetlb && !has_hugetlb {
            mapping.backing = Backing::File(OsStr::from_bytes(HUGETLB_NAME).into());
        }
        mapping.is_hugetlb = has_hugetlb;
        for flag in flags.split(|&byte| byte == b' ') {
            mapping.has_bare_frames |= flag == b"pf";
            mapping.not_inherited |= matches!(flag, b"dc" | b"wf");
            mapping.is_locked |= flag == b"lo";
        }
    }
    Some(())
}

impl Mapping {
    /// Creates a readable and writable mapping with a name as in /proc/PID/maps (`get_vma_name` in
    /// fs/proc/task_mmu.c). Only names that the kernel chose begin with a bracket; paths begin with a slash or a word.
    pub(crate) fn named(range: Range<Address>, shared: bool, name: &[u8]) -> Self {
        let is_hugetlb = is_hugetlb_name(name);
        let file = |path: &[u8]| Backing::File(OsStr::from_bytes(path).into());
        let backing = match name {
            b"" => Backing::Anonymous,
            b"[heap]" => Backing::Heap,
            b"[stack]" => Backing::Stack,
            // Named by prctl(2), and stacks of threads up to Linux 4.4.
            _ if name.starts_with(b"[anon:") || name.starts_with(b"[stack:") => Backing::Anonymous,
            // Anonymous shared memory has the name in the place of this path.
            _ if name.starts_with(b"[anon_shmem:") => file(b"/dev/zero (deleted)"),
            _ if is_hugetlb && !shared => Backing::Anonymous,
            [b'[', ..] => Backing::Kernel(one_line(&String::from_utf8_lossy(name))),
            path => file(path),
        };
        let has_bare_frames = name.starts_with(b"[vvar");
        Self { shared, backing, is_hugetlb, has_bare_frames, ..Self::anonymous(range) }
    }
}

/// Parses digits without a sign.
fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if !(1..=16).contains(&digits.len()) {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| {
        Some(number << 4 | u64::from(char::from(digit).to_digit(16)?))
    })
}

/// Parses a size: `                 132 kB`.
fn bytes(value: &[u8]) -> Option<u64> {
    let kilobytes = value.trim_ascii().strip_suffix(b" kB")?;
    str::from_utf8(kilobytes).ok()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn invalid(line: &[u8]) -> io::Error {
    let shown = line[..line.len().min(MAX_SHOWN)].escape_ascii();
    io::Error::new(io::ErrorKind::InvalidData, format!("the line `{shown}` has an unknown form"))
}

#[cfg(test)]
mod tests;
