use std::time::{Duration, UNIX_EPOCH};

use formats::{Place, Report};

/// The last second that has a date of four digits.
const MAX_SECONDS: u64 = 253_402_300_799;

/// A snapshot of a process, with the names that its report does not have.
#[derive(Debug, Clone)]
pub struct Look {
    /// The service: processes that run the same program for the same purpose.
    pub service: String,
    /// The machine; empty if unknown.
    pub node: String,
    /// The place of the process.
    pub place: Place,
    /// PSS in bytes, if it is known.
    pub pss_bytes: Option<u64>,
    /// The memory limit of the container in bytes, if there is one.
    pub limit_bytes: Option<u64>,
    /// What the container uses of it, if that is known.
    pub used_bytes: Option<u64>,
    /// The report, with all owners.
    pub report: Report,
    /// True for the last snapshot of a process that was killed, of which only the kill is wanted: other tables have the process already.
    pub is_only_kill: bool,
}

impl Look {
    /// A number for the snapshot, by its content: the same under any name.
    pub(crate) fn id(&self) -> i64 {
        let Report { process, capture, .. } = &self.report;
        let numbers = [
            u64::from(process.pid.unsigned_abs()),
            process.started_ticks.unwrap_or(0),
            process.rss_bytes,
            capture.unix_ms,
            capture.pause_ms.to_bits(),
            capture.elapsed_ms.to_bits(),
        ];
        positive(hash(numbers.map(u64::to_le_bytes)))
    }

    /// A number for the process. Process ids begin anew on each machine, so it takes the names, too.
    pub(crate) fn process_id(&self) -> i64 {
        let process = &self.report.process;
        let container = &self.place.container;
        let started = process.started_ticks.unwrap_or(0).to_string();
        let pid = process.pid.to_string();
        let parts =
            [&self.node, &container.namespace, &container.pod, &container.name, &pid, &started];
        positive(hash(parts.map(|part| format!("{part}\n"))))
    }

    /// The folder of its day, in UTC.
    pub(crate) fn day(&self) -> String {
        let seconds = (self.report.capture.unix_ms / 1000).min(MAX_SECONDS);
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds));
        format!("dt={}", &time.to_string()[.."2026-11-23".len()])
    }
}

/// FNV-1a of 64 bits. Names of files depend on it, so it must never change.
pub(crate) fn hash(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for &byte in part.as_ref() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

fn positive(hash: u64) -> i64 {
    (hash >> 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_never_change() {
        assert_eq!(hash(["a", "b"]), 0x089c_4407_b545_986a);
        assert_eq!(hash([""; 0]), 0xcbf2_9ce4_8422_2325);
    }
}
