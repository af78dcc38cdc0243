//! Snapshots of processes near a memory limit, before the kernel kills them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use diagnosis::KeptSampling;
use examine::{CaptureOptions, End, Id, KeptRecording, KeptWatch, Watch, isolated};
use formats::{
    Alarm, FindingKind, FindingRow, GroupMember, KeptUnknown, Place, Report, Snapshot,
    SnapshotOutcome, Who, to_json,
};
use linux::proc::{self, ControlGroup, GroupMemory, GroupUsage};
use render::{Profile, Stacks};
use supervise::{Pace, SHARE_OF_LIMITS, unix_ms};

use crate::autopsies::Ended;
use crate::log::Log;
use crate::push::Pusher;
use crate::rush::{self, Rush};
use crate::snapshot_folder::{self, SnapshotFolder};
use crate::trigger::{NEAR, Trigger};

/// The time between two readings of the limits.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The longest observation of growth, and the time without growth that ends it.
const MAX_OBSERVATION: Duration = Duration::from_secs(300);
const WITHOUT_GROWTH: Duration = Duration::from_secs(30);

/// The sampling of what stays, the time between two results, and the longest time.
const KEPT: KeptSampling = KeptSampling { rate: 100, older_than: Duration::from_secs(30) };
const KEPT_EVERY: Duration = Duration::from_secs(60);
const MAX_KEPT: Duration = Duration::from_secs(3600);

/// The processes of a group that are looked at, those that are kept, and the characters of their command lines.
const MAX_PROCESSES: usize = 256;
const MAX_OTHERS: usize = 5;
const MAX_COMMAND: usize = 200;

/// The control groups with Ruby processes, and the folder for their snapshots.
pub(crate) struct Limits {
    folder: SnapshotFolder,
    /// The servers that get each file, too.
    pushers: Vec<Pusher>,
    log: Log,
    pace: Pace,
    /// The pace of looks at the use of the groups alone.
    looks: Pace,
    groups: Vec<Group>,
    observation: Option<Observation>,
    observes_kept: bool,
    kept: Option<KeptObservation>,
    attempts: BTreeMap<(Alarm, SnapshotOutcome), u64>,
    /// True after a file could not be written, which is printed once.
    is_unwritable: bool,
}

struct Group {
    group: ControlGroup,
    members: Vec<Id>,
    trigger: Trigger,
    /// Its memory at the latest reading, and its use, which is read more often.
    memory: GroupMemory,
    usage: Option<GroupUsage>,
    rush: Rush,
    kills: Option<u64>,
    /// The file of the latest snapshot.
    latest: Option<PathBuf>,
}

/// A control group of which a process should be captured at once.
pub(crate) struct Alarmed {
    at: usize,
    pub(crate) alarm: Alarm,
    /// True if the group may be full before a forked copy is read.
    pub(crate) has_no_time: bool,
    pub(crate) members: Vec<Id>,
    memory: GroupMemory,
}

/// The observation of a process's growth by code, on a thread of its own.
struct Observation {
    stem: String,
    is_ready: Arc<AtomicBool>,
    thread: JoinHandle<Result<Observed, examine::Error>>,
}

/// The observation of the lines that allocate what a process keeps.
struct KeptObservation {
    stem: String,
    since: Instant,
    recording: KeptRecording,
}

/// The growth of a process that was observed, on the thread that observed it.
pub(crate) struct Observed {
    pub(crate) place: Place,
    /// As a file for the folder.
    text: String,
    /// As a profile for a server.
    pub(crate) profile: Profile,
    /// The processor time that it took.
    pub(crate) cpu: Duration,
}

impl Observed {
    fn new(place: Place, who: &Who) -> Self {
        let text = to_json(who, &render::who_summary(who));
        let profile = Stacks::of_growth(who).profile(unix_ms().saturating_mul(1_000_000));
        Self { place, text, profile, cpu: proc::own_thread_cpu_time() }
    }
}

impl Limits {
    pub(crate) fn new(
        folder: SnapshotFolder,
        observes_kept: bool,
        pushers: Vec<Pusher>,
        log: Log,
    ) -> Self {
        Self {
            folder,
            pushers,
            log,
            pace: Pace::new(READ_EVERY, SHARE_OF_LIMITS),
            looks: Pace::new(rush::AT_LEAST, 2.0 * SHARE_OF_LIMITS),
            groups: Vec::new(),
            observation: None,
            observes_kept,
            kept: None,
            attempts: BTreeMap::new(),
            is_unwritable: false,
        }
    }

    /// Follows the control groups of these processes.
    pub(crate) fn follow(&mut self, members: Vec<(ControlGroup, Id)>) {
        self.groups.iter_mut().for_each(|group| group.members.clear());
        for (group, id) in members {
            if let Some(known) = self.groups.iter_mut().find(|known| known.group == group) {
                known.members.push(id);
            } else if let Some(memory) = group.memory().filter(|it| it.limit_bytes.is_some()) {
                self.groups.push(Group {
                    members: vec![id],
                    trigger: Trigger::default(),
                    memory,
                    usage: group.usage(),
                    rush: Rush::default(),
                    group,
                    kills: memory.oom_kills,
                    latest: None,
                });
            }
        }
        self.groups.retain(|group| !group.members.is_empty() || group.group.memory().is_some());
    }

    /// Reads the limits if that is due. Returns a group whose memory may soon be used up.
    pub(crate) fn read(&mut self, now: Duration) -> Option<Alarmed> {
        if !self.pace.is_due(now) {
            return None;
        }
        let before = proc::own_thread_cpu_time();
        let mut alarmed = None;
        for at in 0..self.groups.len() {
            let found = self.read_group(at, now);
            alarmed = alarmed.or(found);
        }
        self.pace.done(now, proc::own_thread_cpu_time().saturating_sub(before));
        alarmed
    }

    fn read_group(&mut self, at: usize, now: Duration) -> Option<Alarmed> {
        let group = self.groups.get_mut(at)?;
        let memory = group.group.memory()?;
        group.memory = memory;
        group.report_kills(memory, self.log);
        let limit = memory.limit_bytes.unwrap_or(u64::MAX);
        let rushes = group.rush.read_again(now, memory.used_bytes(), limit);
        let alarm = group.trigger.read(now, memory, rushes);
        let alarm = alarm.filter(|_| !group.members.is_empty())?;
        let has_no_time = rushes || group.rush.has_no_time(limit);
        Some(Alarmed { at, alarm, has_no_time, members: group.members.clone(), memory })
    }

    /// Waits for this time, and looks meanwhile at the use of the groups: a fast program fills one in a tenth of a second. Returns a
    /// group whose memory may soon be used up.
    pub(crate) fn wait(&mut self, started: Instant, longest: Duration) -> Option<Alarmed> {
        let end = started.elapsed() + longest;
        loop {
            let now = started.elapsed();
            let before = proc::own_thread_cpu_time();
            let (sudden, wait) = self.look(now);
            let alarmed = sudden.and_then(|at| self.read_group(at, now));
            self.looks.done(now, proc::own_thread_cpu_time().saturating_sub(before));
            if alarmed.is_some() || now >= end {
                return alarmed;
            }
            let wait = wait.max(self.looks.due().saturating_sub(now));
            std::thread::sleep(wait.min(end.saturating_sub(now)));
        }
    }

    /// Returns a group that grows suddenly, and the time after which the groups should be looked at again.
    fn look(&mut self, now: Duration) -> (Option<usize>, Duration) {
        let (mut sudden, mut wait) = (None, READ_EVERY);
        for (at, group) in self.groups.iter_mut().enumerate() {
            let (Some(usage), Some(limit)) = (&group.usage, group.memory.limit_bytes) else {
                continue;
            };
            let Some(usage) = usage.bytes() else { continue };
            let used = usage.saturating_sub(group.memory.cache_bytes);
            let near = (NEAR * limit as f64) as u64;
            let comes_near = (group.memory.used_bytes()..used).contains(&near);
            if group.rush.read(now, used, limit) || comes_near {
                sudden = Some(at);
            }
            wait = wait.min(rush::wait(used, limit));
        }
        (sudden, wait)
    }

    /// Keeps a snapshot of a process of the group, or notes why there is none. Then begins to observe its growth.
    pub(crate) fn keep(
        &mut self,
        now: Duration,
        alarmed: &Alarmed,
        id: Id,
        place: &Place,
        taken: Result<Snapshot, SnapshotOutcome>,
        how: CaptureOptions,
    ) {
        let outcome = match taken {
            Ok(mut snapshot) => {
                let others = others(&self.groups[alarmed.at].group, id.0);
                let reason = finding(alarmed.alarm, Some(alarmed.memory), others, None);
                snapshot.report.findings.push(reason.clone());
                let stem = snapshot_folder::stem(unix_ms() / 1000, place, id.0);
                let name = format!("{stem}{}", snapshot_folder::SNAPSHOT);
                let outcome = self.save(id, place, &name, &snapshot.to_bytes(), &reason);
                if outcome == SnapshotOutcome::Written {
                    self.groups[alarmed.at].latest = Some(self.folder.path_of(&name));
                    self.observe_kept(id, stem.clone(), how);
                    self.observe(id, place, stem, how);
                }
                outcome
            }
            Err(outcome) => outcome,
        };
        *self.attempts.entry((alarmed.alarm, outcome)).or_default() += 1;
        let is_taken = outcome == SnapshotOutcome::Written;
        let group = &mut self.groups[alarmed.at];
        group.trigger.done(now, alarmed.memory, is_taken);
        if alarmed.has_no_time {
            group.rush.done(now);
        }
    }

    /// Adds a kill to the latest snapshot of the process. If there is none, keeps the latest report on it, as a page. Returns the report.
    pub(crate) fn keep_killed(&mut self, killed: Ended, killed_ms: Option<u64>) -> Option<Report> {
        let stem = snapshot_folder::stem(unix_ms() / 1000, &killed.place, killed.id.0);
        let reason = |report: &Report| {
            let after = killed_ms.and_then(|at| at.checked_sub(report.capture.unix_ms));
            finding(Alarm::Killed, killed.group, vec![], after)
        };
        let latest = self.folder.latest(&stem).map(str::to_owned);
        let (name, bytes, reason, report) = match (latest, killed.report) {
            (Some(name), _) => {
                let bytes = self.folder.read(&name);
                let read = bytes.and_then(|bytes| Snapshot::from_bytes(&bytes).ok());
                // Another program may have changed the file.
                let mut snapshot = read?;
                let reason = reason(&snapshot.report);
                snapshot.report.findings.push(reason.clone());
                (name, snapshot.to_bytes(), reason, snapshot.report)
            }
            (None, Some(mut report)) => {
                let reason = reason(&report);
                report.findings.push(reason.clone());
                let page = render::report_html(&report).into_bytes();
                (format!("{stem}{}", snapshot_folder::KILLED), page, reason, report)
            }
            (None, None) => return None,
        };
        let outcome = self.save(killed.id, &killed.place, &name, &bytes, &reason);
        *self.attempts.entry((Alarm::Killed, outcome)).or_default() += 1;
        Some(report)
    }

    /// Writes a file about a process, and prints the reason.
    fn save(
        &mut self,
        id: Id,
        place: &Place,
        name: &str,
        bytes: &[u8],
        reason: &FindingRow,
    ) -> SnapshotOutcome {
        if !self.write(name, bytes) {
            return SnapshotOutcome::NotWritten;
        }
        let (what, path) = (render::words::finding(reason), self.folder.path_of(name));
        let (pid, role) = (id.0, &place.role);
        (self.log.say)(&format!("process {pid} ({role}): {what}: saved {}", path.display()));
        self.pushers.iter().for_each(|pusher| pusher.push_log(place, pid, reason, &path));
        SnapshotOutcome::Written
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> bool {
        match self.folder.store(name, bytes) {
            Ok(()) => {
                self.is_unwritable = false;
                self.pushers.iter().for_each(|pusher| pusher.push_file(name, bytes));
                true
            }
            Err(failure) => {
                if !std::mem::replace(&mut self.is_unwritable, true) {
                    (self.log.complain)(&failure.to_string());
                }
                false
            }
        }
    }

    /// Observes the growth of a process by code until it ends or grows no more. One at a time: it costs more than a capture.
    fn observe(&mut self, id: Id, place: &Place, stem: String, how: CaptureOptions) {
        if self.observation.is_some() {
            return;
        }
        let is_ready = Arc::new(AtomicBool::new(false));
        let ready = Arc::clone(&is_ready);
        let of_thread = place.clone();
        let observe = move || {
            isolated(id.0, || {
                let watch = Watch::begin(id.0, how, false)?;
                // Its id may be that of another process by now.
                examine::target(id)?;
                let mut grown = (0, Instant::now());
                let watched = watch.run(Some(MAX_OBSERVATION), |watch| {
                    ready.store(watch.knows_stacks(), Ordering::Relaxed);
                    let bytes = watch.growth_bytes();
                    if bytes > grown.0 {
                        grown = (bytes, Instant::now());
                    } else if grown.1.elapsed() > WITHOUT_GROWTH {
                        return Ok(Some(End::Wanted));
                    }
                    watch.end_of_process()
                });
                Ok(Observed::new(of_thread, &watched.who))
            })
        };
        let thread = std::thread::Builder::new().name("observation".into()).spawn(observe);
        self.observation = thread.ok().map(|thread| Observation { stem, is_ready, thread });
    }

    /// Observes which lines allocate what a process keeps, if the user wants that. One process at a time, too.
    fn observe_kept(&mut self, id: Id, stem: String, how: CaptureOptions) {
        if !self.observes_kept || self.kept.is_some() {
            return;
        }
        let begin = move || isolated(id.0, || KeptWatch::begin(&examine::target(id)?, how, KEPT));
        let recording = KeptRecording::begin(KEPT_EVERY, begin);
        self.kept = Some(KeptObservation { stem, since: Instant::now(), recording });
    }

    /// Keeps the latest result on the lines that allocate what stays: after a kill there is no other.
    pub(crate) fn keep_lines(&mut self) {
        let Some(KeptObservation { stem, since, recording }) = &mut self.kept else { return };
        let name = format!("{stem}{}", snapshot_folder::KEPT);
        let is_late = since.elapsed() > MAX_KEPT;
        match recording.poll() {
            Poll::Ready(Some(Ok(kept))) if kept.unknown == Some(KeptUnknown::Ended) => {}
            Poll::Ready(Some(Ok(kept))) => {
                self.write(&name, to_json(&kept, &render::kept_summary(&kept)).as_bytes());
            }
            // The next capture may succeed.
            Poll::Ready(Some(Err(failure))) if failure.is_end() => {}
            Poll::Ready(Some(Err(failure))) => {
                let sentence = (self.log.explain)(&failure);
                (self.log.complain)(&format!("what stays: {sentence}"));
            }
            Poll::Ready(None) => self.kept = None,
            Poll::Pending if is_late => self.kept = None,
            Poll::Pending => {}
        }
    }

    /// Keeps the result of an observation that is over, and returns it.
    pub(crate) fn end_observation(&mut self) -> Option<Observed> {
        let Observation { stem, thread, .. } =
            self.observation.take_if(|it| it.thread.is_finished())?;
        match thread.join() {
            Ok(Ok(observed)) => {
                let name = format!("{stem}{}", snapshot_folder::GROWTH);
                self.write(&name, observed.text.as_bytes());
                Some(observed)
            }
            Ok(Err(failure)) if failure.is_end() => None,
            Ok(Err(failure)) => {
                let sentence = (self.log.explain)(&failure);
                (self.log.complain)(&format!("growth by code: {sentence}"));
                None
            }
            Err(_) => None,
        }
    }

    /// The figures for the metrics.
    pub(crate) fn figures(&self) -> formats::StoredSnapshots {
        formats::StoredSnapshots {
            attempts: self.attempts.clone(),
            files: self.folder.snapshots() as u64,
            bytes: self.folder.bytes(),
            observes_growth: self
                .observation
                .as_ref()
                .is_some_and(|it| it.is_ready.load(Ordering::Relaxed) && !it.thread.is_finished()),
        }
    }
}

impl Group {
    /// Names the snapshot after the kernel has killed a process.
    fn report_kills(&mut self, memory: GroupMemory, log: Log) {
        let before = std::mem::replace(&mut self.kills, memory.oom_kills);
        let killed = before.zip(memory.oom_kills).is_some_and(|(before, now)| now > before);
        if let (true, Some(path)) = (killed, &self.latest) {
            (log.say)(&format!(
                "the kernel killed a process at its memory limit; see {}",
                path.display()
            ));
        }
    }
}

/// The other processes of a group with most memory.
fn others(group: &ControlGroup, pid: i32) -> Vec<GroupMember> {
    let pids = group.processes().into_iter().filter(|it| *it != pid).take(MAX_PROCESSES);
    let mut sizes: Vec<(u64, i32)> =
        pids.filter_map(|pid| Some((proc::resident_bytes(pid).ok()?, pid))).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let member = |(rss_bytes, pid)| {
        let command = proc::command_line(pid).ok()?.chars().take(MAX_COMMAND).collect();
        Some(GroupMember { pid, command, rss_bytes })
    };
    sizes.into_iter().take(MAX_OTHERS).filter_map(member).collect()
}

/// The reason for a snapshot.
fn finding(
    alarm: Alarm,
    memory: Option<GroupMemory>,
    others: Vec<GroupMember>,
    after_ms: Option<u64>,
) -> FindingRow {
    FindingRow::from(FindingKind::GroupAlarm {
        alarm,
        used_bytes: memory.map_or(0, |it| it.used_bytes()),
        limit_bytes: memory.and_then(|it| it.limit_bytes).unwrap_or(0),
        shmem_bytes: memory.map_or(0, |it| it.shmem_bytes),
        others,
        after_ms,
    })
}
