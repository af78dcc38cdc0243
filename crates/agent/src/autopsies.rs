//! Processes that the kernel has killed before a snapshot could be taken: the report on their latest capture is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use examine::Id;
use formats::{Container, Place, Report};
use linux::proc::GroupMemory;

/// The longest time between the notice of a kill and that of the end of a process: ends are noticed every 15 s.
const WINDOW: Duration = Duration::from_secs(30);

/// A process that has ended, and what is kept of it.
#[derive(Debug, Clone)]
pub(crate) struct Ended<T = Option<Report>> {
    pub(crate) id: Id,
    pub(crate) place: Place,
    /// Its memory, and that of its control group, when they were read last.
    pub(crate) rss_bytes: u64,
    pub(crate) group: Option<GroupMemory>,
    /// Its latest capture, if there is one.
    pub(crate) report: T,
}

/// Finds the processes that were killed among those that have ended.
pub(crate) struct Autopsies<T = Option<Report>> {
    ended: Vec<(Duration, Ended<T>)>,
    kills: BTreeMap<Container, u64>,
    /// The kills of each container for which no process was found yet, and the time of the last one.
    open: BTreeMap<Container, (Duration, u64)>,
}

impl<T> Default for Autopsies<T> {
    fn default() -> Self {
        Self { ended: Vec::new(), kills: BTreeMap::new(), open: BTreeMap::new() }
    }
}

impl<T> Autopsies<T> {
    /// Returns the processes that were killed, by those that have ended and the kills of each container so far. The kernel kills the
    /// largest process of a group, so of several that have ended, the largest ones count.
    pub(crate) fn killed(
        &mut self,
        now: Duration,
        ended: impl IntoIterator<Item = Ended<T>>,
        kills: BTreeMap<Container, u64>,
    ) -> Vec<Ended<T>> {
        self.ended.extend(ended.into_iter().map(|it| (now, it)));
        self.ended.retain(|(at, _)| now < *at + WINDOW);
        self.open.retain(|_, (at, open)| *open > 0 && now < *at + WINDOW);
        for (container, count) in &kills {
            let new = count.saturating_sub(self.kills.get(container).copied().unwrap_or(0));
            if new > 0 {
                let (at, open) = self.open.entry(container.clone()).or_default();
                (*at, *open) = (now, *open + new);
            }
        }
        self.kills = kills;
        let mut killed = Vec::new();
        for (container, (_, open)) in &mut self.open {
            while *open > 0 {
                let ended = self.ended.iter().enumerate();
                let of_container = ended.filter(|(_, (_, it))| it.place.container == *container);
                let largest = of_container.max_by_key(|(_, (_, it))| it.rss_bytes);
                let Some((index, _)) = largest else { break };
                killed.push(self.ended.swap_remove(index).1);
                *open -= 1;
            }
        }
        killed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str) -> Container {
        Container { name: name.into(), ..Container::default() }
    }

    fn ended(pid: i32, name: &str, rss_bytes: u64) -> Ended<()> {
        let place = Place { container: container(name), role: "puma".into() };
        Ended { id: (pid, 1), place, rss_bytes, group: None, report: () }
    }

    /// The seconds, the processes that have ended, and the kills of containers `a` and `b`.
    type Reading<'a> = (u64, &'a [Ended<()>], [u64; 2]);

    /// The pids of those that were killed, with the seconds.
    fn killed(readings: &[Reading<'_>]) -> Vec<(u64, i32)> {
        let mut autopsies = Autopsies::default();
        let mut found = Vec::new();
        for (seconds, ended, [a, b]) in readings {
            let kills = [(container("a"), *a), (container("b"), *b)].into();
            let now = Duration::from_secs(*seconds);
            let killed = autopsies.killed(now, ended.to_vec(), kills);
            found.extend(killed.into_iter().map(|it| (*seconds, it.id.0)));
        }
        found
    }

    #[test]
    fn a_process_that_ends_with_a_kill_in_its_container_was_killed() {
        let two = [ended(1, "a", 50), ended(2, "a", 80), ended(3, "b", 90)];
        assert_eq!(killed(&[(0, &[], [0, 0]), (15, &two, [1, 0])]), [(15, 2)]);
        // Either notice may come first.
        assert_eq!(killed(&[(0, &two, [0, 0]), (15, &[], [2, 1])]), [(15, 2), (15, 1), (15, 3)]);
        assert_eq!(killed(&[(0, &[], [0, 1]), (15, &two, [0, 1]), (30, &[], [0, 1])]), [(15, 3)]);
        // Others have ended by themselves.
        assert_eq!(killed(&[(0, &two, [0, 0]), (60, &[], [1, 0])]), []);
        assert_eq!(killed(&[(0, &[], [1, 0]), (60, &two, [1, 0])]), []);
        // The kill was that of a program without Ruby.
        assert_eq!(killed(&[(0, &[], [0, 0]), (15, &two[2..], [1, 0])]), []);
    }
}
