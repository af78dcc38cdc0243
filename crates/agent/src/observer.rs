//! Reads the figures, and captures one process after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use archive::Look;
use examine::{
    AllocatorCall, CaptureMode, CaptureOptions, Containers, Detail, Id, Intervals, Listed, Rubies,
    isolated, own_bytes, panic_if_requested, snapshot_of,
};
use formats::{
    CaptureMethod, CaptureOutcome, Captured, Container, Node, NodeGroup, Owned, Place, Report,
    Snapshot, SnapshotOutcome, Treatment, TreatmentOutcome,
};
use ledger::{Analyses, Size};
use linux::proc::{self, ControlGroup, GroupMemory};
use supervise::Allowance;

use crate::archive_writer::ArchiveWriter;
use crate::autopsies::{Autopsies, Ended};
use crate::kills::Kills;
use crate::known::{Known, Member, until_owners};
use crate::limits::{Alarmed, Limits};
use crate::log::Log;
use crate::node_name::node_name;
use crate::options::Options;
use crate::push::{self, Pusher};
use crate::roles::Roles;
use crate::shared::Shared;

/// The time between two searches for processes.
const SEARCH_EVERY: Duration = Duration::from_secs(15);
/// The time between two searches for control groups.
const FOLLOW_EVERY: Duration = Duration::from_secs(15);
/// The first capture waits for this time, unless captures are wanted more often: a process that has just begun has little memory
/// yet.
const YOUNG: Duration = Duration::from_secs(10);
/// The time between two captures.
const BETWEEN_CAPTURES: Duration = Duration::from_millis(500);
/// The processor time that captures may take at the beginning, and after they took none for a while.
const MOST: Duration = Duration::from_secs(5);
/// Memory is short if processes wait for it for this share of the time, in percent (the first figure of /proc/pressure/memory).
const MAX_PRESSURE: f64 = 10.0;
/// The time between two trims, and between two trims of a process.
const BETWEEN_TRIMS: Duration = Duration::from_secs(60);
const TRIM_AGAIN: Duration = Duration::from_secs(3600);
/// The owners in a report that is kept if the process is killed.
const OWNERS_OF_KILLED: usize = 50;
pub(crate) struct Observer {
    rubies: Rubies,
    capture: CaptureOptions,
    started: Instant,
    causes_every: Duration,
    owners_every: Duration,
    /// The memory that captures with owners may take.
    max_memory: u64,
    /// The longest pause for a snapshot near a limit.
    hold: Option<Duration>,
    /// True if processes are trimmed.
    treats: bool,
    /// The time from which on a process may be trimmed.
    trim_at: Duration,
    allowance: Allowance,
    outputs: Outputs,
    /// The name of this machine.
    name: String,
    known: BTreeMap<Id, Known>,
    containers: Containers,
    roles: Roles,
    kills: Kills,
    autopsies: Autopsies,
    /// The processes whose control groups are known, and the time at which they are found again.
    followed: Vec<Id>,
    follow_at: Duration,
    /// The reasons of failed captures that were printed.
    printed: BTreeSet<String>,
    node: Node,
    shared: Shared,
    log: Log,
}

/// The places for what captures find, besides the metrics.
pub(crate) struct Outputs {
    pub(crate) limits: Option<Limits>,
    pub(crate) archive: Option<ArchiveWriter>,
    pub(crate) pushers: Vec<Pusher>,
}

impl Observer {
    pub(crate) fn new(
        options: &Options,
        group: Option<ControlGroup>,
        outputs: Outputs,
        shared: Shared,
        log: Log,
    ) -> Self {
        let Options { every, causes_every, owners_every, max_memory, capture, treat, hold, .. } =
            *options;
        let complain =
            move |pid, error| (log.complain)(&examine::about(pid, &(log.explain)(&error)));
        let treatment = Treatment { above_bytes: options.treat_above, ..Treatment::default() };
        let intervals = Intervals { search: SEARCH_EVERY.min(every), sample: every, exact: every };
        Self {
            rubies: Rubies::new(intervals, group, complain),
            capture: CaptureOptions { max_own_bytes: Some(max_memory), ..capture },
            started: Instant::now(),
            causes_every,
            owners_every,
            max_memory,
            hold,
            treats: treat,
            trim_at: Duration::ZERO,
            outputs,
            name: node_name(),
            allowance: Allowance::new(options.share, MOST),
            known: BTreeMap::new(),
            containers: Containers::default(),
            roles: Roles::default(),
            kills: Kills::start(log),
            autopsies: Autopsies::default(),
            followed: Vec::new(),
            follow_at: Duration::ZERO,
            printed: BTreeSet::new(),
            node: Node { treatment, ..Node::default() },
            shared,
            log,
        }
    }

    pub(crate) fn run(mut self, mut wait: Duration) {
        loop {
            let wait_for = wait.min(BETWEEN_CAPTURES);
            match &mut self.outputs.limits {
                Some(limits) => {
                    if let Some(alarmed) = limits.wait(self.started, wait_for) {
                        self.save_one_of(&alarmed);
                    }
                }
                None => std::thread::sleep(wait_for),
            }
            wait = self.read();
            self.watch_limits();
            self.capture_one();
            if let Some(archive) = &self.outputs.archive {
                let cpu = proc::own_thread_cpu_time();
                archive.write_if_due(self.started.elapsed());
                self.allowance.spend(proc::own_thread_cpu_time().saturating_sub(cpu));
            }
        }
    }

    /// Reads the figures that are due. Returns the time until the next ones are.
    pub(crate) fn read(&mut self) -> Duration {
        let readings = self.rubies.readings();
        let wait = self.rubies.read();
        if self.rubies.readings() == readings {
            self.shared.confirm();
            return wait;
        }
        let now = self.started.elapsed();
        let mut before = std::mem::take(&mut self.known);
        for listed in self.rubies.listed() {
            let id = listed.id;
            let had = (listed.rss_bytes, listed.group);
            let known = match before.remove(&id) {
                Some(known) if known.is_ending(&listed) => {
                    let (command, ending) = (known.listed.command, known.ending.or(Some(now)));
                    Known { listed: Listed { command, ..listed }, ending, ..known }
                }
                // A server gives its processes titles when they are ready.
                Some(known) if known.listed.command == listed.command => {
                    Known { listed, had, ..known }
                }
                Some(known) => Known { place: self.place(&listed), listed, had, ..known },
                None => {
                    let (place, due) = (self.place(&listed), now + YOUNG.min(self.causes_every));
                    Known {
                        listed,
                        place,
                        due,
                        owners_due: due,
                        captured: None,
                        owned: None,
                        had,
                        ending: None,
                        report: None,
                        trim_at: now,
                    }
                }
            };
            self.known.insert(id, known);
        }
        self.follow_groups(now);
        self.look_for_kills(now, before);
        self.roles = Roles::of(self.known.values().map(|known| &known.place));
        self.publish();
        wait
    }

    /// Keeps the latest captures of processes that were killed, of those that have ended.
    fn look_for_kills(&mut self, now: Duration, ended: BTreeMap<Id, Known>) {
        let ended = ended.into_iter().map(|(id, known)| {
            let (rss_bytes, group) = known.had;
            Ended { id, place: known.place, rss_bytes, group, report: known.report }
        });
        let killed = self.autopsies.killed(now, ended, self.kills.counts());
        for killed in killed {
            self.about(killed.id, |it| {
                let killed_ms = it.kills.latest_ms(&killed.place.container);
                let place = killed.place.clone();
                let limits = it.outputs.limits.as_mut();
                if let Some(report) = limits.and_then(|it| it.keep_killed(killed, killed_ms)) {
                    it.archive_kill(place, report);
                }
            });
        }
    }

    /// Finds the control groups of the processes, if there are others than before or some time has passed: limits are set and processes
    /// are moved.
    fn follow_groups(&mut self, now: Duration) {
        let processes: Vec<Id> = self.known.keys().copied().collect();
        if now < self.follow_at && processes == self.followed {
            return;
        }
        self.follow_at = now + FOLLOW_EVERY;
        self.followed = processes;
        let mut members = Vec::new();
        for (&id, known) in &self.known {
            // The list of processes has a complaint about an unknown group.
            let Ok(groups) = proc::control_groups(id.0) else { continue };
            self.kills.follow(&known.place.container, groups.first());
            members.extend(groups.into_iter().map(|group| (group, id)));
        }
        if let Some(limits) = &mut self.outputs.limits {
            limits.follow(members);
        }
    }

    fn place(&mut self, listed: &Listed) -> Place {
        let path = listed.group_path.as_deref();
        let mut container = self.containers.of(path);
        // Two groups without other names are two series.
        if container.name.is_empty() {
            path.unwrap_or_default().clone_into(&mut container.name);
        }
        let role = self.roles.admit(&container, diagnosis::role(&listed.command));
        Place { container, role }
    }

    /// Captures the process that is due first, if one is.
    fn capture_one(&mut self) {
        let now = self.started.elapsed();
        let first = self.known.iter().min_by_key(|(_, known)| known.next_due());
        let Some((&id, known)) = first.filter(|(_, known)| known.next_due() <= now) else { return };
        if !self.allowance.is_left(now) {
            return;
        }
        let wants_owners = known.owners_due <= now && known.captured.is_some();
        let cpu = proc::own_cpu_time();
        let done = self.about(id, |it| it.capture_due(id, wants_owners));
        let is_done = done.unwrap_or_else(|| {
            self.count(CaptureOutcome::Failed);
            false
        });
        if let Some(known) = self.known.get_mut(&id) {
            if wants_owners {
                known.owners_due =
                    now + until_owners(is_done, self.owners_every, self.causes_every);
            } else {
                known.due = now + self.causes_every;
            }
        }
        if self.treats && !wants_owners {
            self.treat(id);
        }
        self.allowance.spend(proc::own_cpu_time().saturating_sub(cpu));
        self.publish();
    }

    /// Captures a process. Returns false if that should be tried again soon.
    fn capture_due(&mut self, id: Id, wants_owners: bool) -> bool {
        let Some(known) = self.known.get(&id) else { return true };
        let has_memory = self.has_memory_for(known, Detail::OWNERS);
        if wants_owners && !has_memory && self.outputs.archive.is_none() {
            // Too large to find its owners.
            return true;
        }
        if proc::memory_pressure().is_some_and(|percent| percent > MAX_PRESSURE) {
            self.count(CaptureOutcome::Pressure);
            return false;
        }
        let with_owners = wants_owners && has_memory;
        let taken = self.capture(id, if with_owners { Detail::OWNERS } else { Detail::CAUSES });
        let is_done = taken.is_ok();
        if let (Ok(snapshot), true) = (taken, wants_owners) {
            self.archive(id, snapshot.report);
        }
        is_done
    }

    /// Runs work on one process. If it panics, the agent continues with the other processes. Returns `None` then.
    fn about<T>(&mut self, id: Id, what: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let result = isolated(id.0, || Ok::<_, examine::Error>(what(self)));
        result.map_err(|failure| self.complain(id, &failure)).ok()
    }

    /// Adds a snapshot to the archive. One of causes alone has other causes, so each process has one kind only.
    fn archive(&self, id: Id, report: Report) {
        let (Some(archive), Some(known)) = (&self.outputs.archive, self.known.get(&id)) else {
            return;
        };
        let Known { place, listed, .. } = known;
        archive.add(Look {
            service: diagnosis::service(place),
            node: self.name.clone(),
            place: place.clone(),
            pss_bytes: listed.exact.map(|it| it.pss_bytes),
            limit_bytes: listed.group.and_then(|group| group.limit_bytes),
            used_bytes: listed.group.map(|group| group.used_bytes()),
            report,
            is_only_kill: false,
        });
    }

    /// Adds a kill to the archive, which has the process itself from its hourly snapshots.
    fn archive_kill(&self, place: Place, report: Report) {
        if let Some(archive) = &self.outputs.archive {
            let (service, node) = (diagnosis::service(&place), self.name.clone());
            let (pss_bytes, limit_bytes, used_bytes) = (None, None, None);
            archive.add(Look {
                service,
                node,
                place,
                pss_bytes,
                limit_bytes,
                used_bytes,
                report,
                is_only_kill: true,
            });
        }
    }

    /// Trims a process that was captured just now, if that returns much.
    fn treat(&mut self, id: Id) {
        let now = self.started.elapsed();
        let Some(known) = self.known.get_mut(&id).filter(|it| it.trim_at.max(self.trim_at) <= now)
        else {
            return;
        };
        let captured = known.captured.as_ref();
        let expected = captured.and_then(|it| it.trim_yield_bytes).unwrap_or(0);
        if expected < self.node.treatment.above_bytes {
            return;
        }
        self.trim_at = now + BETWEEN_TRIMS;
        known.trim_at = now + TRIM_AGAIN;
        // The metrics should show the effect soon.
        known.due = now;
        let trimmed =
            isolated(id.0, || examine::trim(&AllocatorCall::find(&examine::target(id)?)?));
        let treatment = &mut self.node.treatment;
        let (outcome, what) = match trimmed {
            Ok(outcome) => {
                let returned = outcome.returned_bytes();
                treatment.returned_bytes += returned;
                (TreatmentOutcome::Trimmed, format!("a trim returned {}", Size(returned)))
            }
            Err(failure) if failure.is_end() => return,
            Err(failure) => (TreatmentOutcome::Refused, (self.log.explain)(&failure)),
        };
        *treatment.trims.entry(outcome).or_default() += 1;
        (self.log.say)(&format!("process {} ({}): {what}", id.0, known.place.role));
    }

    /// Takes a snapshot of a process whose memory limit is near.
    fn watch_limits(&mut self) {
        let now = self.started.elapsed();
        let Some(limits) = &mut self.outputs.limits else { return };
        limits.keep_lines();
        if let Some(observed) = limits.end_observation() {
            self.allowance.spend(observed.cpu);
            for pusher in &self.outputs.pushers {
                pusher.push_profile(&observed.place, &observed.profile);
            }
        }
        if let Some(alarmed) = limits.read(now) {
            self.save_one_of(&alarmed);
        }
    }

    /// Saves a snapshot of a process of this group.
    fn save_one_of(&mut self, alarmed: &Alarmed) {
        let Some(id) = self.fastest(alarmed) else { return };
        self.read_title(id);
        let cpu = proc::own_cpu_time();
        if self.about(id, |it| it.keep_snapshot(alarmed, id)).is_none() {
            self.keep(alarmed, id, Err(SnapshotOutcome::Failed));
        }
        self.allowance.spend(proc::own_cpu_time().saturating_sub(cpu));
        self.publish();
    }

    /// Captures a process of a group whose memory may soon be used up, and keeps the snapshot.
    fn keep_snapshot(&mut self, alarmed: &Alarmed, id: Id) {
        let analyses = Analyses { memory_map: true, ..Analyses::default() };
        let detail = Detail { owners: true, analyses, family: true };
        let owners = self.known.get(&id).is_some_and(|known| self.has_memory_for(known, detail));
        // There may be no room for a copy, or no time: what is paused fills nothing. A pause is better than a kill without an answer.
        let max_pause = self.hold.or(self.capture.max_pause).or(Some(examine::LARGEST_MAX_PAUSE));
        let mode = match self.capture.mode {
            CaptureMode::Auto if alarmed.has_no_time => CaptureMode::Freeze,
            mode => mode,
        };
        let how = CaptureOptions { mode, max_pause, ..self.capture };
        let taken = match self.capture_by(how, id, Detail { owners, ..detail }) {
            Ok(snapshot) => Ok(snapshot),
            Err(Some(CaptureOutcome::NoRoom)) => Err(SnapshotOutcome::NoRoom),
            Err(_) => Err(SnapshotOutcome::Failed),
        };
        self.keep(alarmed, id, taken);
    }

    fn keep(&mut self, alarmed: &Alarmed, id: Id, taken: Result<Snapshot, SnapshotOutcome>) {
        let (Some(limits), Some(known)) = (&mut self.outputs.limits, self.known.get(&id)) else {
            return;
        };
        limits.keep(self.started.elapsed(), alarmed, id, &known.place, taken, self.capture);
    }

    /// Reads the title of a process again: a server gets one when it is ready, and may fill its group before the next reading.
    fn read_title(&mut self, id: Id) {
        let (Some(known), Ok(command)) = (self.known.get(&id), proc::command_line(id.0)) else {
            return;
        };
        let listed = Listed { command, ..known.listed.clone() };
        if listed.command == known.listed.command || known.is_ending(&listed) {
            return;
        }
        let place = self.place(&listed);
        if let Some(known) = self.known.get_mut(&id) {
            (known.listed, known.place) = (listed, place);
        }
    }

    /// The process of a group that the alarm is about.
    fn fastest(&self, alarmed: &Alarmed) -> Option<Id> {
        let now = self.started.elapsed();
        let members = alarmed.members.iter().filter_map(|id| {
            // The latest sample may be old.
            let rss_bytes = proc::resident_bytes(id.0).unwrap_or(0);
            Some(self.known.get(id)?.member(now, rss_bytes))
        });
        Member::fastest(&members.collect::<Vec<_>>())
    }

    fn has_memory_for(&self, known: &Known, detail: Detail) -> bool {
        own_bytes(known.listed.rss_bytes, detail) <= self.max_memory
    }

    fn count(&mut self, outcome: CaptureOutcome) {
        *self.node.captures.entry(outcome).or_default() += 1;
    }

    /// Captures a process, and keeps the result for the metrics.
    ///
    /// # Errors
    /// The reason why it was not captured; `None` if the process has ended.
    fn capture(&mut self, id: Id, detail: Detail) -> Result<Snapshot, Option<CaptureOutcome>> {
        let taken = self.capture_by(self.capture, id, detail);
        if let Ok(snapshot) = &taken {
            self.keep_for_autopsy(id, &snapshot.report);
        }
        taken
    }

    fn capture_by(
        &mut self,
        how: CaptureOptions,
        id: Id,
        detail: Detail,
    ) -> Result<Snapshot, Option<CaptureOutcome>> {
        let failed = match snapshot_of(id, how, detail) {
            Ok(snapshot) => {
                self.take(id, &snapshot.report);
                return Ok(snapshot);
            }
            Err(failure) if failure.is_end() => return Err(None),
            Err(failure) if failure.is_lack_of_room() => CaptureOutcome::NoRoom,
            Err(failure) => {
                self.complain(id, &failure);
                CaptureOutcome::Failed
            }
        };
        self.count(failed);
        Err(Some(failed))
    }

    /// Prints why a process could not be examined, once for each kind of process: the numbers of processes change.
    fn complain(&mut self, id: Id, failure: &examine::Error) {
        let role = self.known.get(&id).map_or("", |known| &known.place.role);
        if self.printed.insert(role.to_owned()) {
            let sentence = (self.log.explain)(failure);
            (self.log.complain)(&format!("process {} ({role}): {sentence}", id.0));
        }
    }

    /// Keeps a capture for the case that the process is killed before the next one. One with owners has the better answer.
    fn keep_for_autopsy(&mut self, id: Id, report: &Report) {
        let known = self.known.get_mut(&id).filter(|_| self.outputs.limits.is_some());
        let Some(known) = known else { return };
        let had_owners = known.report.as_ref().is_some_and(|it| it.owners.is_some());
        if report.owners.is_some() || !had_owners {
            known.report = Some(report.clone().brief(OWNERS_OF_KILLED));
        }
    }

    fn take(&mut self, id: Id, report: &Report) {
        panic_if_requested("after a capture");
        self.node.pauses.add(Duration::from_secs_f64(report.capture.pause_ms / 1e3));
        self.count(match report.capture.method {
            CaptureMethod::Fork => CaptureOutcome::Forked,
            CaptureMethod::Freeze | CaptureMethod::Core => CaptureOutcome::Frozen,
        });
        if let Some(known) = self.known.get_mut(&id) {
            match Owned::of(report) {
                // With owners, the memory in use has other causes. Series must not change back and forth between them.
                Some(owned) => {
                    if !self.outputs.pushers.is_empty() {
                        let profile = render::owners_profile(&owned);
                        let pushers = self.outputs.pushers.iter();
                        pushers.for_each(|it| it.push_profile(&known.place, &profile));
                    }
                    known.owned = Some(owned);
                }
                None => known.captured = Some(Captured::from(report)),
            }
        }
    }

    /// The control groups of the containers: the memory of the one with the least room, and the kills.
    fn groups(&self) -> BTreeMap<Container, NodeGroup> {
        let kills = self.kills.counts();
        let group = |oom_kills| NodeGroup { memory: None, oom_kills };
        let mut groups: BTreeMap<_, _> =
            kills.into_iter().map(|(container, kills)| (container, group(kills))).collect();
        for known in self.known.values() {
            let Some(memory) = known.listed.group else { continue };
            let group = groups.entry(known.place.container.clone()).or_default();
            group.memory = Some(group.memory.map_or(memory, |it| tighter(it, memory)));
        }
        groups
    }

    /// Shows the scrapers what is known now.
    fn publish(&mut self) {
        self.node.processes = self.known.values().map(Known::process).collect();
        self.node.groups = self.groups();
        self.node.refused = self.rubies.refused() as u64;
        self.node.own_cpu = proc::own_cpu_time();
        let own = std::process::id().cast_signed();
        self.node.own_rss_bytes = proc::rss_bytes(own).unwrap_or(0);
        let Outputs { limits, archive, pushers } = &self.outputs;
        self.node.snapshots = limits.as_ref().map(Limits::figures);
        self.node.pushes = push::outcomes(pushers);
        self.node.archive = archive.as_ref().map(ArchiveWriter::figures);
        self.shared.set(self.node.clone());
    }
}

/// The group with less room.
fn tighter(a: GroupMemory, b: GroupMemory) -> GroupMemory {
    // One without a limit has more room than any other.
    let room = |it: &GroupMemory| it.room_bytes().unwrap_or(u64::MAX);
    if room(&b) < room(&a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_groups_the_one_with_the_least_room_counts() {
        let group = |usage_bytes, limit_bytes| GroupMemory {
            usage_bytes,
            limit_bytes,
            cache_bytes: 0,
            shmem_bytes: 0,
            oom_kills: None,
            limit_hits: None,
            stalled: None,
        };
        let groups = [group(9, None), group(5, Some(9)), group(1, Some(3)), group(1, Some(8))];
        assert_eq!(groups.into_iter().reduce(tighter), Some(groups[2]));
    }
}
