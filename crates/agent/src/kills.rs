//! Counts the processes that the kernel kills since memory is short, on a thread of its own: a control group is often gone some
//! milliseconds after its last process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use formats::Container;
use linux::proc::{self, ControlGroup, GroupEvents};
use supervise::{Pace, SHARE_OF_LIMITS, unix_ms};

use crate::log::Log;

/// The longest wait between two readings: version 1 of control groups does not report events.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The shortest one: a group may report thousands of events in a second.
const AT_LEAST: Duration = Duration::from_millis(10);
/// The time for which the count of a container without processes is kept, so that scrapers see the last kill.
const KEPT: Duration = Duration::from_secs(600);

/// The kills of each container.
pub(crate) struct Kills {
    started: Instant,
    followed: Arc<Mutex<Followed>>,
    events: Option<Arc<GroupEvents>>,
}

#[derive(Default)]
struct Followed {
    groups: Vec<Group>,
    counts: BTreeMap<Container, Count>,
}

/// The innermost control group of processes.
struct Group {
    group: ControlGroup,
    container: Container,
    kills: u64,
}

#[derive(Default)]
struct Count {
    kills: u64,
    /// The time of the latest one, in milliseconds since 1970.
    latest_ms: Option<u64>,
    /// The time at which the container had a process.
    seen: Duration,
}

impl Kills {
    /// Begins to count.
    pub(crate) fn start(log: Log) -> Self {
        let followed = Arc::new(Mutex::new(Followed::default()));
        let events = GroupEvents::new().map(Arc::new);
        let (of_thread, source) = (Arc::downgrade(&followed), events.clone());
        let count = move || count(&of_thread, source.as_deref(), log);
        let _ = std::thread::Builder::new().name("kills".into()).spawn(count);
        Self { started: Instant::now(), followed, events }
    }

    /// Counts the kills of this group for a container.
    pub(crate) fn follow(&self, container: &Container, group: Option<&ControlGroup>) {
        let Some(group) = group else { return };
        let now = self.started.elapsed();
        let mut followed = lock(&self.followed);
        if !followed.groups.iter().any(|it| it.group == *group) {
            // Those before belong to other programs, or were counted by another agent. The topmost group counts none.
            let Some(kills) = group.oom_kills() else { return };
            if let Some(events) = &self.events {
                events.follow(group);
            }
            let (group, container) = (group.clone(), container.clone());
            followed.groups.push(Group { group, container, kills });
        }
        followed.counts.entry(container.clone()).or_default().seen = now;
    }

    /// The kills so far.
    pub(crate) fn counts(&self) -> BTreeMap<Container, u64> {
        let now = self.started.elapsed();
        let mut followed = lock(&self.followed);
        followed.counts.retain(|_, count| now < count.seen + KEPT);
        followed.counts.iter().map(|(container, count)| (container.clone(), count.kills)).collect()
    }

    /// The time of the latest kill in a container, in milliseconds since 1970.
    pub(crate) fn latest_ms(&self, container: &Container) -> Option<u64> {
        lock(&self.followed).counts.get(container)?.latest_ms
    }
}

fn lock(followed: &Mutex<Followed>) -> MutexGuard<'_, Followed> {
    followed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the groups after each event, and once a second, or less often if that costs too much.
fn count(followed: &Weak<Mutex<Followed>>, events: Option<&GroupEvents>, log: Log) {
    let started = Instant::now();
    let mut pace = Pace::new(AT_LEAST, SHARE_OF_LIMITS);
    while let Some(followed) = followed.upgrade() {
        let cpu = proc::own_thread_cpu_time();
        let killed = lock(&followed).read();
        drop(followed);
        let now = started.elapsed();
        pace.done(now, proc::own_thread_cpu_time().saturating_sub(cpu));
        for container in killed {
            let Container { namespace, pod, name } = container;
            let names = [namespace, pod, name].into_iter().filter(|it| !it.is_empty());
            let place = names.collect::<Vec<_>>().join("/");
            (log.say)(&format!("the kernel killed a process of {place}: out of memory"));
        }
        std::thread::sleep(pace.due().saturating_sub(now));
        match events {
            Some(events) => events.wait(READ_EVERY),
            None => std::thread::sleep(READ_EVERY),
        }
    }
}

impl Followed {
    /// Counts new kills, and returns their containers.
    fn read(&mut self) -> Vec<Container> {
        let mut killed = Vec::new();
        let counts = &mut self.counts;
        self.groups.retain_mut(|group| {
            let Some(kills) = group.group.oom_kills() else { return false };
            let new = kills.saturating_sub(group.kills);
            group.kills = kills;
            if new > 0 {
                let count = counts.entry(group.container.clone()).or_default();
                count.kills += new;
                count.latest_ms = Some(unix_ms());
                killed.push(group.container.clone());
            }
            true
        });
        killed
    }
}
