use std::time::{Duration, UNIX_EPOCH};

use formats::{Alarm, GroupMember};
use ledger::Size;

/// Less memory is not mentioned.
const MIN_BYTES: u64 = 1 << 20;
/// Processes that are named, and the characters of their command lines.
const MAX_OTHERS: usize = 3;
const MAX_COMMAND: usize = 60;
/// The last second of the year 9999.
const MAX_SECONDS: u64 = 253_402_300_799;

/// The reason for a snapshot by the agent.
pub(super) struct GroupState<'a> {
    pub(super) alarm: Alarm,
    pub(super) used_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) shmem_bytes: u64,
    pub(super) others: &'a [GroupMember],
    pub(super) after_ms: Option<u64>,
}

impl GroupState<'_> {
    pub(super) fn sentence(&self) -> String {
        let (used, limit) = (Size(self.used_bytes), Size(self.limit_bytes));
        let uses = format!("its control group uses {used} of {limit}");
        let mut text = match self.alarm {
            Alarm::NearLimit => format!("{uses}, and grows"),
            Alarm::LimitHit => {
                format!("its control group met its limit: it uses {used} of {limit}")
            }
            Alarm::FastGrowth => format!("{uses}, and grows fast"),
            Alarm::Stalled => format!("{uses}, and its processes wait for memory"),
            Alarm::Killed => {
                let after = self.after_ms.map_or_else(String::new, |ms| {
                    format!("about {} s ", (ms as f64 / 1e3).round().max(1.0))
                });
                let last = match self.limit_bytes {
                    0 => String::new(),
                    _ => format!("; the group was last seen with {used} of {limit}"),
                };
                format!(
                    "{after}after this capture the kernel killed a process of its control group, and this process ended{last}"
                )
            }
        };
        if self.shmem_bytes >= MIN_BYTES {
            text += &format!("; {} of that in files in memory", Size(self.shmem_bytes));
        }
        let others = self.others.iter().filter(|it| it.rss_bytes >= MIN_BYTES).take(MAX_OTHERS);
        let others: Vec<String> = others.map(other).collect();
        if !others.is_empty() {
            text += &format!("; other processes in it: {}", others.join(", "));
        }
        text
    }
}

fn other(process: &GroupMember) -> String {
    let command: String = process.command.chars().take(MAX_COMMAND).collect();
    format!("{command} (pid {}, {})", process.pid, Size(process.rss_bytes))
}

/// "2026-11-30 15:38:07 UTC".
pub(crate) fn utc(unix_ms: u64) -> String {
    let since_1970 = Duration::from_secs((unix_ms / 1000).min(MAX_SECONDS));
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970).to_string();
    time.replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `date -u -d @SECONDS` has the same.
    #[test]
    fn a_time_is_a_date() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_796_053_089, "2026-11-30 15:38:09 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (u64::MAX / 1000, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(utc(seconds * 1000), expected);
        }
    }
}
