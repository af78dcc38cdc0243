//! Checks a report from a file, so that its sentences are not absurd and its pictures not endless.

use std::collections::BTreeSet;

use super::{CauseRow, Report, SizeClass};

/// The maximum number of arenas. glibc makes eight for each processor.
const MAX_ARENAS: usize = 1 << 16;
/// The maximum length of an address in digits.
const MAX_DIGITS: usize = 16;

/// Checks that causes are listed once and add up to RSS, as in every report that rbloat draws up.
pub(crate) fn check_causes(causes: &[CauseRow], rss_bytes: u64) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    if let Some(row) = causes.iter().find(|row| !seen.insert(row.cause)) {
        return Err(format!("it lists the cause {} twice", row.cause));
    }
    let sum: u64 = causes.iter().map(|row| row.bytes).sum();
    if sum != rss_bytes {
        return Err(format!("its causes add up to {sum} bytes, but RSS is {rss_bytes} bytes"));
    }
    Ok(())
}

impl Report {
    /// Checks that the numbers of a report from a file fit together. They must be so small that sums do not overflow.
    ///
    /// # Errors
    /// If they do not. The error says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let rss_bytes = self.process.rss_bytes;
        check_causes(&self.causes, rss_bytes)?;
        let is_part = |what: &str, bytes: u64| match bytes <= rss_bytes {
            true => Ok(()),
            false => Err(format!("{what} has {bytes} bytes, but RSS is {rss_bytes} bytes")),
        };
        is_part("the verdict", self.verdict.bytes)?;
        let owners = self.owners.iter().flatten();
        is_part("an owner", owners.filter_map(|owner| owner.resident_bytes).max().unwrap_or(0))?;
        let files = self.files.iter().map(|file| file.resident_bytes());
        is_part("a file", files.max().unwrap_or(0))?;
        let unknown = self.unknown.iter().map(|row| row.resident_bytes);
        is_part("unknown memory", unknown.fold(0, u64::saturating_add))?;
        let arenas = self.arenas.as_deref().unwrap_or_default();
        if arenas.len() > MAX_ARENAS {
            return Err(format!("it has {} arenas", arenas.len()));
        }
        if !self.unknown.iter().all(|row| is_address(&row.largest)) {
            return Err("the address of a mapping is invalid".into());
        }
        if !arenas.iter().all(|arena| is_address(&arena.address)) {
            return Err("the address of an arena is invalid".into());
        }
        let Some(malloc) = &self.malloc else { return Ok(()) };
        is_part("the yield of a trim", malloc.trim_yield_bytes)?;
        is_part("free memory that is pinned", malloc.pinned_by.iter().map(|pin| pin.bytes).sum())?;
        malloc.size_classes.iter().try_for_each(|class| check_class(class, arenas.len()))
    }
}

fn check_class(class: &SizeClass, arenas: usize) -> Result<(), String> {
    let is_counted =
        |regions: u64, in_use: u64, cached: u64| in_use.saturating_add(cached) <= regions;
    let slabs = format!("the slabs of {} bytes", class.region_bytes);
    if !class.arenas.iter().all(|part| (part.arena as usize) < arenas) {
        return Err(format!("{slabs} are in an unknown arena"));
    }
    let mut parts = class.arenas.iter();
    if !is_counted(class.regions, class.in_use, class.cached)
        || !parts.all(|part| is_counted(part.regions, part.in_use, part.cached))
    {
        return Err(format!("{slabs} have more regions in use than regions"));
    }
    Ok(())
}

fn is_address(text: &str) -> bool {
    text.strip_prefix("0x").is_some_and(|digits| {
        digits.len() <= MAX_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}
