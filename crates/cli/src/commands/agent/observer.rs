//! Reads the figures, and captures one process after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use capture::proc;
use formats::{
    CaptureMethod, CaptureOutcome, Captured, Container, Node, NodeMemory, NodeProcess, Place,
    Report,
};
use supervise::{Allowance, SHARE_OF_CAUSES};

use super::Shared;
use crate::arguments::CaptureArguments;
use crate::failure::Failure;
use crate::rubies::{Id, Intervals, Listed, Rubies};
use crate::source::{Detail, report_quietly};
use crate::terminal;

/// The time between two searches for processes.
const SEARCH_EVERY: Duration = Duration::from_secs(15);
/// The first capture waits for this time, unless captures are wanted more often: a process that has just begun has little memory
/// yet.
const YOUNG: Duration = Duration::from_secs(10);
/// The time between two captures.
const BETWEEN_CAPTURES: Duration = Duration::from_millis(500);
/// The processor time that captures may take at the beginning, and after they took none for a while.
const MOST: Duration = Duration::from_secs(5);
/// Memory is short if processes wait for it for this share of the time, in percent (the first figure of /proc/pressure/memory).
const MAX_PRESSURE: f64 = 10.0;
/// The roles of a container: a program that writes numbers into its title would have a new one each time, and each is a series
/// that Prometheus keeps for long.
const MAX_ROLES: usize = 100;
/// The role of the processes beyond that.
const OTHER: &str = "other";
/// The folder in which the kubelet keeps links to the logs of containers.
const LOGS: &str = "/var/log/containers";

pub(super) struct Observer {
    rubies: Rubies,
    capture: CaptureArguments,
    started: Instant,
    causes_every: Duration,
    allowance: Allowance,
    known: BTreeMap<Id, Known>,
    /// Containers by their ids.
    containers: BTreeMap<String, Container>,
    roles: Roles,
    /// The reasons of failed captures that were printed.
    printed: BTreeSet<String>,
    node: Node,
    shared: Shared,
}

/// A process.
struct Known {
    listed: Listed,
    place: Place,
    /// The time of the next capture.
    due: Duration,
    captured: Option<Captured>,
}

impl Observer {
    pub(super) fn new(
        every: Duration,
        causes_every: Duration,
        capture: CaptureArguments,
        shared: Shared,
    ) -> Self {
        let search = SEARCH_EVERY.min(every);
        Self {
            rubies: Rubies::new(Intervals { search, sample: every, exact: every }),
            capture,
            started: Instant::now(),
            causes_every,
            allowance: Allowance::new(SHARE_OF_CAUSES, MOST),
            known: BTreeMap::new(),
            containers: BTreeMap::new(),
            roles: Roles::default(),
            printed: BTreeSet::new(),
            node: Node::default(),
            shared,
        }
    }

    pub(super) fn run(mut self, mut wait: Duration) {
        loop {
            std::thread::sleep(wait.min(BETWEEN_CAPTURES));
            wait = self.read();
            self.capture_one();
        }
    }

    /// Reads the figures that are due. Returns the time until the next ones are.
    pub(super) fn read(&mut self) -> Duration {
        let wait = self.rubies.read();
        let now = self.started.elapsed();
        let mut before = std::mem::take(&mut self.known);
        for listed in self.rubies.listed() {
            let id = listed.id;
            let known = match before.remove(&id) {
                // A server gives its processes titles when they are ready.
                Some(known) if known.listed.command == listed.command => Known { listed, ..known },
                known => {
                    let place = self.place(&listed);
                    let (due, captured) = known
                        .map_or((now + YOUNG.min(self.causes_every), None), |known| {
                            (known.due, known.captured)
                        });
                    Known { listed, place, due, captured }
                }
            };
            self.known.insert(id, known);
        }
        let containers: BTreeSet<_> =
            self.known.values().map(|known| &known.place.container).collect();
        self.roles.0.retain(|container, _| containers.contains(container));
        self.publish();
        wait
    }

    fn place(&mut self, listed: &Listed) -> Place {
        let ids = diagnosis::container_ids(listed.group_path.as_deref().unwrap_or_default());
        let of_kubelet = ids.container.as_ref().and_then(|id| {
            if !self.containers.contains_key(id) {
                let entries = std::fs::read_dir(LOGS).into_iter().flatten().flatten();
                let logs = entries.filter_map(|entry| {
                    diagnosis::container_of_log(&entry.file_name().to_string_lossy())
                });
                self.containers = logs.collect();
            }
            self.containers.get(id).cloned()
        });
        let container = of_kubelet.unwrap_or_else(|| ids.named());
        let role = self.roles.admit(&container, diagnosis::role(&listed.command));
        Place { container, role }
    }

    /// Captures the process that is due first, if one is.
    fn capture_one(&mut self) {
        let now = self.started.elapsed();
        let first = self.known.iter().min_by_key(|(_, known)| known.due);
        let Some((&id, known)) = first.filter(|(_, known)| known.due <= now) else { return };
        if !self.allowance.is_left(now) {
            return;
        }
        let place = known.place.clone();
        let cpu = proc::own_cpu_time();
        let outcome = match proc::start_time(id.0) {
            Ok(started) if started == id.1 => self.try_capture(id, &place),
            _ => None,
        };
        if let Some(outcome) = outcome {
            *self.node.captures.entry(outcome).or_default() += 1;
        }
        if let Some(known) = self.known.get_mut(&id) {
            known.due = now + self.causes_every;
        }
        self.allowance.spend(proc::own_cpu_time().saturating_sub(cpu));
        self.publish();
    }

    /// Returns the outcome; `None` if the process has ended.
    fn try_capture(&mut self, id: Id, place: &Place) -> Option<CaptureOutcome> {
        if proc::memory_pressure().is_some_and(|percent| percent > MAX_PRESSURE) {
            return Some(CaptureOutcome::Pressure);
        }
        let reason = match report_quietly(id.0, self.capture, Detail::CAUSES) {
            Ok(report) => return Some(self.take(id, report)),
            Err(failure) if failure.is_end() => return None,
            Err(Failure::NoRoom { .. }) => return Some(CaptureOutcome::NoRoom),
            Err(failure) => failure.to_string(),
        };
        // Once for each kind of process: the numbers of processes change.
        if self.printed.insert(place.role.clone()) {
            terminal::complain(format!("process {} ({}): {reason}", id.0, place.role));
        }
        Some(CaptureOutcome::Failed)
    }

    fn take(&mut self, id: Id, report: Report) -> CaptureOutcome {
        self.node.pauses.add(Duration::from_secs_f64(report.capture.pause_ms / 1e3));
        let outcome = match report.capture.method {
            CaptureMethod::Fork => CaptureOutcome::Forked,
            CaptureMethod::Freeze | CaptureMethod::Core => CaptureOutcome::Frozen,
        };
        if let Some(known) = self.known.get_mut(&id) {
            known.captured = Some(Captured {
                unix_seconds: report.capture.unix_ms as f64 / 1e3,
                causes: report.causes,
                trim_yield_bytes: report.malloc.map(|malloc| malloc.trim_yield_bytes),
                verdict: report.verdict.cause,
                confidence: report.verdict.confidence,
                allocator: report.process.allocator,
                ruby_version: report.process.ruby_version,
            });
        }
        outcome
    }

    /// Shows the scrapers what is known now.
    fn publish(&mut self) {
        self.node.processes = self.known.values().map(Known::process).collect();
        self.node.refused = self.rubies.refused() as u64;
        self.node.own_cpu = proc::own_cpu_time();
        let own = std::process::id().cast_signed();
        self.node.own_rss_bytes = proc::rss_bytes(own).unwrap_or(0);
        self.shared.set(self.node.clone());
    }
}

/// The roles that were seen in each container.
#[derive(Default)]
struct Roles(BTreeMap<Container, BTreeSet<String>>);

impl Roles {
    /// Returns the role, or another one if the container has too many.
    fn admit(&mut self, container: &Container, role: String) -> String {
        let roles = self.0.entry(container.clone()).or_default();
        if roles.len() < MAX_ROLES {
            roles.insert(role.clone());
        }
        if roles.contains(&role) { role } else { OTHER.to_owned() }
    }
}

impl Known {
    fn process(&self) -> NodeProcess {
        let exact = self.listed.exact.map(|it| NodeMemory {
            pss_bytes: it.pss_bytes,
            uss_bytes: it.uss_bytes,
            swap_bytes: it.swap_bytes,
        });
        NodeProcess {
            place: self.place.clone(),
            rss_bytes: self.listed.rss_bytes,
            exact,
            group: self.listed.group,
            captured: self.captured.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each role is a series, and a process can change its title as often as it likes.
    #[test]
    fn the_number_of_roles_is_bounded() {
        let (mut roles, container) = (Roles::default(), Container::default());
        let mut admit = |number| roles.admit(&container, format!("job-{number}"));
        let admitted: BTreeSet<String> = (0..1000).map(&mut admit).collect();
        assert_eq!(admitted.len(), MAX_ROLES + 1);
        assert_eq!(admit(MAX_ROLES - 1), format!("job-{}", MAX_ROLES - 1));
        assert_eq!(admit(MAX_ROLES), OTHER);
    }
}
