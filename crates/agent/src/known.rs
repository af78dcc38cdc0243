use std::time::Duration;

use examine::{Id, Listed};
use formats::{Captured, NodeMemory, NodeProcess, Owned, Place, Report};
use linux::proc::GroupMemory;

/// The time for which the memory of a process that has ended may be the reason of an alarm: the kernel frees it after the end.
const ENDED: Duration = Duration::from_secs(5);

/// A process.
pub(crate) struct Known {
    pub(crate) listed: Listed,
    pub(crate) place: Place,
    /// The time of the next capture of causes.
    pub(crate) due: Duration,
    /// The time of the next capture with owners, after the first one of causes.
    pub(crate) owners_due: Duration,
    pub(crate) captured: Option<Captured>,
    pub(crate) owned: Option<Owned>,
    /// Its memory, and that of its control group, when it was not ending yet: an autopsy needs them.
    pub(crate) had: (u64, Option<GroupMemory>),
    /// The time at which it was seen to end.
    pub(crate) ending: Option<Duration>,
    /// The report that is kept if the process is killed.
    pub(crate) report: Option<Report>,
    /// The time from which on it may be trimmed.
    pub(crate) trim_at: Duration,
}

impl Known {
    /// Returns true if a process as it is `now` is ending. It has no memory any more, or no command line but its name: these are read one
    /// after the other, and the kernel takes the memory of a process that it kills before it ends.
    pub(crate) fn is_ending(&self, now: &Listed) -> bool {
        let has_name_only = |listed: &Listed| listed.command.starts_with('[');
        now.rss_bytes == 0 || has_name_only(now) && !has_name_only(&self.listed)
    }

    /// The time of the next capture.
    pub(crate) fn next_due(&self) -> Duration {
        if self.captured.is_some() { self.due.min(self.owners_due) } else { self.due }
    }

    /// The process as a member of a group with an alarm, at `now`, with its memory at this time: none if it has ended.
    pub(crate) fn member(&self, now: Duration, rss_bytes: u64) -> Member {
        let since = rss_bytes.saturating_sub(self.listed.rss_bytes) as f64;
        let growth = since + self.listed.growth_per_minute.unwrap_or(0.0).max(0.0);
        let has_just_ended = rss_bytes == 0 && self.ending.is_none_or(|at| now < at + ENDED);
        let had_bytes = if has_just_ended { self.had.0 } else { 0 };
        Member { id: self.listed.id, rss_bytes, growth, had_bytes }
    }

    /// The process as the metrics show it.
    pub(crate) fn process(&self) -> NodeProcess {
        let exact = self.listed.exact.map(|it| NodeMemory {
            pss_bytes: it.pss_bytes,
            uss_bytes: it.uss_bytes,
            swap_bytes: it.swap_bytes,
        });
        NodeProcess {
            pid: self.listed.id.0,
            place: self.place.clone(),
            rss_bytes: self.listed.rss_bytes,
            exact,
            captured: self.captured.clone(),
            owned: self.owned.clone(),
        }
    }
}

/// The time until the next capture with owners. One that failed is tried again soon: memory may have been short for a moment.
pub(crate) fn until_owners(
    is_done: bool,
    owners_every: Duration,
    causes_every: Duration,
) -> Duration {
    if is_done { owners_every } else { owners_every.min(causes_every) }
}

/// A process of a group with an alarm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    id: Id,
    /// Its memory, and the bytes by which it grows in a minute.
    rss_bytes: u64,
    growth: f64,
    /// The memory that it had before it ended, if that was just now.
    had_bytes: u64,
}

impl Member {
    /// The process that the alarm is about: the one that grows fastest; if none grows, the largest. None if that one has just ended: the
    /// kernel kills the largest one, and what is left did not fill the group.
    pub(crate) fn fastest(members: &[Self]) -> Option<Id> {
        let living = members.iter().filter(|it| it.rss_bytes > 0);
        let by = |a: &&Self, b: &&Self| {
            a.growth.total_cmp(&b.growth).then(a.rss_bytes.cmp(&b.rss_bytes))
        };
        let fastest = living.max_by(by)?;
        let has_ended = members.iter().any(|it| it.had_bytes > fastest.rss_bytes);
        (!has_ended).then_some(fastest.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: i32, [rss_bytes, growth, had_bytes]: [u32; 3]) -> Member {
        let [rss_bytes, had_bytes] = [rss_bytes, had_bytes].map(u64::from);
        Member { id: (pid, 1), rss_bytes, growth: growth.into(), had_bytes }
    }

    #[test]
    fn a_moment_without_memory_postpones_owners_by_minutes() {
        let [hour, minutes] = [3600, 300].map(Duration::from_secs);
        assert_eq!(until_owners(true, hour, minutes), hour);
        assert_eq!(until_owners(false, hour, minutes), minutes);
        assert_eq!(until_owners(false, minutes, hour), minutes);
    }

    #[test]
    fn an_alarm_is_about_the_process_that_grows_fastest() {
        let fastest = |members: &[Member]| Member::fastest(members).map(|id| id.0);
        assert_eq!(fastest(&[member(1, [300, 0, 0]), member(2, [100, 5, 0])]), Some(2));
        assert_eq!(fastest(&[member(1, [300, 0, 0]), member(2, [100, 0, 0])]), Some(1));
        assert_eq!(fastest(&[]), None);
    }

    /// A process that only waited was captured, with the words that the limit was near: the kernel had killed the other one since.
    #[test]
    fn after_a_kill_no_other_process_is_taken_for_the_one_that_filled_the_group() {
        let fastest = |members: &[Member]| Member::fastest(members).map(|id| id.0);
        assert_eq!(fastest(&[member(1, [0, 0, 300]), member(2, [10, 0, 0])]), None);
        assert_eq!(fastest(&[member(1, [0, 0, 300])]), None);
        // A small one may end at any time, and one may stay for long after its end.
        assert_eq!(fastest(&[member(1, [0, 0, 20]), member(2, [300, 0, 0])]), Some(2));
        assert_eq!(fastest(&[member(1, [0, 0, 0]), member(2, [10, 0, 0])]), Some(2));
    }
}
