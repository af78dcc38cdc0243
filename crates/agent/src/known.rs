use std::time::Duration;

use examine::Listed;
use formats::{Captured, NodeMemory, NodeProcess, Owned, Place, Report};
use linux::proc::GroupMemory;

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
