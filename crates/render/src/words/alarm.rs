use formats::{Alarm, GroupMember};
use ledger::Size;

/// Less memory is not mentioned.
const MIN_BYTES: u64 = 1 << 20;
/// Processes that are named, and the characters of their command lines.
const MAX_OTHERS: usize = 3;
const MAX_COMMAND: usize = 60;
/// The last second of the year 9999.
const MAX_SECONDS: u64 = 253_402_300_799;
const DAY: u64 = 86_400;

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

/// "2026-11-30 15:38:07 UTC", by Howard Hinnant's `civil_from_days`.
pub(crate) fn utc(unix_ms: u64) -> String {
    let seconds = (unix_ms / 1000).min(MAX_SECONDS);
    let (days, of_day) = (seconds / DAY + 719_468, seconds % DAY);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
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
