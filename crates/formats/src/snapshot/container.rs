//! The container of a snapshot's sections: a magic number, the format version, the sections, and a checksum.
//!
//! ```text
//! 8  \x8b r b l o a t \n      not text; damaged by line-end conversion
//! 4  version of the format     all numbers are little-endian
//! for each section:
//!   8  its name, padded with NULs
//!   8  number of bytes that follow
//!   n  zlib (RFC 1950)
//! 4  CRC-32 of everything before
//! ```

use crate::snapshot::error::{FORMAT, READ_FORMATS, SnapshotError};

pub(crate) const MAGIC: [u8; 8] = *b"\x8brbloat\n";
const HEADER: usize = MAGIC.len() + 4;
const CHECKSUM: usize = 4;
const NAME: usize = 8;

/// A part of a snapshot.
#[derive(Debug, Clone)]
pub struct Section {
    /// The name.
    pub name: &'static str,
    /// The content, compressed by zlib.
    pub packed: Vec<u8>,
}

/// Returns the bytes of a file with these sections.
pub(crate) fn seal(sections: &[Section]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT.to_le_bytes());
    for section in sections {
        let mut name = [0; NAME];
        name[..section.name.len()].copy_from_slice(section.name.as_bytes());
        bytes.extend(name);
        bytes.extend((section.packed.len() as u64).to_le_bytes());
        bytes.extend(&section.packed);
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// A section of a file.
pub(crate) struct Packed<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) bytes: &'a [u8],
}

/// Parses the sections of a file.
pub(crate) fn open(bytes: &[u8]) -> Result<Vec<Packed<'_>>, SnapshotError> {
    if bytes.is_empty() {
        return Err(SnapshotError::Empty);
    }
    if !bytes.starts_with(&MAGIC) {
        return Err(SnapshotError::Foreign);
    }
    let version = bytes.get(MAGIC.len()..).and_then(|rest| rest.first_chunk());
    match version.map(|&version| u32::from_le_bytes(version)) {
        None => return Err(SnapshotError::Damaged),
        Some(version) if !READ_FORMATS.contains(&version) => {
            return Err(SnapshotError::OtherVersion(version));
        }
        Some(_) => {}
    }
    let (content, checksum) = bytes.split_last_chunk().ok_or(SnapshotError::Damaged)?;
    const { assert!(size_of::<u32>() == CHECKSUM) };
    if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
        return Err(SnapshotError::Damaged);
    }
    let mut rest = content.get(HEADER..).ok_or(SnapshotError::Damaged)?;
    let mut sections = Vec::new();
    while !rest.is_empty() {
        sections.push(section(&mut rest).ok_or(SnapshotError::Damaged)?);
    }
    Ok(sections)
}

fn section<'a>(rest: &mut &'a [u8]) -> Option<Packed<'a>> {
    let (name, after) = rest.split_first_chunk::<NAME>()?;
    let (length, after) = after.split_first_chunk()?;
    let (bytes, after) = after.split_at_checked(u64::from_le_bytes(*length).try_into().ok()?)?;
    *rest = after;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
    Some(Packed { name: &name[..end], bytes })
}
