//! The workers of a recording: which processes they are, and their memory over time.

use std::collections::{BTreeMap, BTreeSet};

use formats::{Arrival, Group, ProcessSample, Recording, Sample};
use ledger::Cause;

use crate::place::role;
use crate::stable::quantile;

/// A process by its id and start time.
type Id = (i32, u64);

/// A process that ends this long before the recording was replaced. Workers end some seconds before their server.
const SHUTDOWN_SECONDS: f64 = 15.0;
/// Workers have at least this share of all private memory, or there are none.
const MIN_SHARE: f64 = 0.5;
/// The free memory of malloc.
const FREE: [Cause; 4] =
    [Cause::MallocUnreturned, Cause::MallocFragmented, Cause::MallocCached, Cause::MallocTop];
/// Swapped memory beyond this share of RSS counts.
const MAX_SWAPPED: f64 = 0.01;

/// The workers of a recording. It is small, however long the recording is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedWorkers {
    pub(super) role: String,
    pub(super) workers: Vec<RecordedWorker>,
    /// Memory besides the private memory of workers, at each exact sample.
    pub(super) fixed: Vec<f64>,
    /// The same, and the private memory of each worker, at the last sample that has them.
    pub(super) latest: Option<(u64, Vec<u64>)>,
    /// The memory that the control group has beyond the family, at each exact sample.
    pub(super) beyond: Vec<f64>,
    pub(super) limit_bytes: Option<u64>,
    pub(super) kills: u64,
    pub(super) is_swapped: bool,
    /// True if there are samples with private memory.
    pub(super) has_private: bool,
    /// The most workers at one time.
    pub(super) most: usize,
    pub(super) seconds: f64,
}

/// One worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RecordedWorker {
    /// Private memory over time. Between exact samples, the part of RSS that was shared at the last one is taken off.
    pub(super) private: Vec<(f64, f64)>,
    pub(super) exact_samples: usize,
    /// CPU time in seconds at the first and at the last sample.
    pub(super) cpu_seconds: [f64; 2],
    /// The shared part of RSS at the first and at the last exact sample.
    pub(super) shared: [f64; 2],
    pub(super) threads: u64,
    /// A trim of the process would return this.
    pub(super) trim_yield_bytes: Option<u64>,
    /// The resident stacks of its threads at its last capture.
    pub(super) stack_bytes: Option<u64>,
    /// The free memory of malloc at its last capture, if that is glibc's.
    pub(super) free_bytes: Option<u64>,
    /// The interpreter's own memory, and shared pages of files, at its last capture.
    pub(super) code_bytes: u64,
    pub(super) file_bytes: u64,
    /// The highest private memory, also between samples, if the kernel told.
    pub(super) peak_bytes: f64,
    /// True if it started while the recording ran.
    pub(super) is_young: bool,
    /// True if it ended before the others.
    pub(super) is_replaced: bool,
}

impl RecordedWorker {
    /// The processor's share that it used.
    pub(super) fn load(&self) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { (self.cpu_seconds[1] - self.cpu_seconds[0]) / seconds } else { 0.0 }
    }

    pub(super) fn seconds(&self) -> f64 {
        match (self.private.first(), self.private.last()) {
            (Some(first), Some(last)) => last.0 - first.0,
            _ => 0.0,
        }
    }

    /// True if it was recorded from its start to its end.
    pub(super) fn is_life(&self) -> bool {
        self.is_young && self.is_replaced
    }

    /// Returns the median of its private memory from a time on.
    pub(super) fn level(&self, from: f64) -> f64 {
        quantile_or_zero(self.private.iter().filter(|it| it.0 >= from).map(|it| it.1), 0.5)
    }

    /// The time of its last sample.
    pub(super) fn until(&self) -> f64 {
        self.private.last().map_or(0.0, |last| last.0)
    }

    fn add(&mut self, time: f64, process: &ProcessSample) {
        let rss = process.rss_bytes as f64;
        let cpu = (process.user_ms + process.system_ms) as f64 / 1e3;
        if self.private.is_empty() && self.exact_samples == 0 {
            self.cpu_seconds[0] = cpu;
        }
        self.cpu_seconds[1] = cpu;
        self.threads = self.threads.max(process.threads);
        if let Some(private) = process.uss_bytes {
            let shared = (rss - private as f64).max(0.0);
            if self.exact_samples == 0 {
                self.shared[0] = shared;
            }
            self.shared[1] = shared;
            self.exact_samples += 1;
        } else if self.exact_samples == 0 {
            return;
        }
        let private = process.uss_bytes.map_or(rss - self.shared[1], |bytes| bytes as f64).max(0.0);
        self.private.push((time, private));
        self.peak_bytes = self.peak_bytes.max(private);
        if let Some(peak) = process.peak_rss_bytes {
            let shared = self.shared[0].min(self.shared[1]);
            self.peak_bytes = self.peak_bytes.max(peak as f64 - shared);
        }
    }
}

impl RecordedWorkers {
    /// Finds the workers of a recording.
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let (role, ids) = find(recording);
        let mut found = Self { role, ..Self::default() };
        let mut workers: BTreeMap<Id, RecordedWorker> = BTreeMap::new();
        let mut group: Option<Group> = None;
        let mut last_seen: BTreeMap<Id, f64> = BTreeMap::new();
        let mut first = None;
        for sample in recording.samples() {
            let time = sample.t_ms as f64 / 1e3;
            let begin = *first.get_or_insert(time);
            found.seconds = time - begin;
            let is_worker = |it: &&ProcessSample| ids.contains(&(it.pid, it.started_ticks));
            let members: Vec<&ProcessSample> = sample.processes.iter().filter(is_worker).collect();
            found.most = found.most.max(members.len());
            for process in &members {
                let id = (process.pid, process.started_ticks);
                last_seen.insert(id, time);
                let is_young = time > begin;
                let new = || RecordedWorker { is_young, ..RecordedWorker::default() };
                workers.entry(id).or_insert_with(new).add(time, process);
            }
            found.add_rest(sample, &members);
            if let (Some(before), Some(now)) = (group, sample.group) {
                found.kills += now.kills_since(before);
            }
            group = sample.group.or(group);
        }
        found.limit_bytes = group.and_then(|group| group.limit_bytes);
        for causes in recording.causes() {
            if let Some(worker) = workers.get_mut(&(causes.pid, causes.started_ticks)) {
                let sum = |of: &[Cause]| {
                    let rows = causes.causes.iter().filter(|row| of.contains(&row.cause));
                    rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes))
                };
                worker.trim_yield_bytes = causes.trim_yield_bytes;
                worker.stack_bytes = Some(sum(&[Cause::StackThreads]));
                worker.code_bytes = sum(&[Cause::RubyVm]);
                worker.file_bytes = sum(&[Cause::FileShared]);
                worker.free_bytes = (causes.allocator == "glibc").then(|| sum(&FREE));
            }
        }
        let end = last_seen.values().copied().fold(0.0, f64::max);
        for (id, worker) in &mut workers {
            worker.is_replaced = last_seen.get(id).is_some_and(|it| end - it > SHUTDOWN_SECONDS);
        }
        found.workers = workers.into_values().collect();
        found
    }

    /// Adds the memory of a sample that is not the private memory of `workers`.
    fn add_rest(&mut self, sample: &Sample, workers: &[&ProcessSample]) {
        let swapped = sample.swap_bytes.unwrap_or(0) as f64;
        self.is_swapped |= swapped > MAX_SWAPPED * sample.rss_bytes as f64;
        self.has_private |= sample.uss_bytes.is_some_and(|bytes| bytes > 0);
        let Some(all) = sample.pss_bytes.filter(|_| sample.exact) else { return };
        let each: Vec<u64> = workers.iter().filter_map(|it| it.uss_bytes).collect();
        let private: u64 = each.iter().sum();
        if !each.is_empty() {
            self.latest = Some((all.saturating_sub(private), each));
        }
        if workers.len() == self.most {
            self.fixed.push(all.saturating_sub(private) as f64);
        }
        if let Some(group) = sample.group {
            let used = group.usage_bytes.saturating_sub(group.cache_bytes);
            self.beyond.push(used as f64 - all as f64);
        }
    }

    /// The threads of a worker.
    pub(super) fn threads(&self) -> u64 {
        self.workers.iter().map(|it| it.threads).max().unwrap_or(0)
    }

    /// Returns the mean of the private memory of all workers over time.
    pub(super) fn mean(&self) -> Vec<(f64, f64)> {
        // Times are not negative, so their bits have their order.
        let mut sums: BTreeMap<u64, (f64, usize)> = BTreeMap::new();
        for &(time, bytes) in self.workers.iter().flat_map(|it| &it.private) {
            let sum = sums.entry(time.to_bits()).or_default();
            *sum = (sum.0 + bytes, sum.1 + 1);
        }
        let all = sums.into_iter().filter(|(_, sum)| sum.1 == self.workers.len());
        all.map(|(time, sum)| (f64::from_bits(time), sum.0 / sum.1 as f64)).collect()
    }

    /// The shared part and other processes' memory while all workers ran.
    pub(super) fn fixed_bytes(&self) -> f64 {
        quantile_or_zero(self.fixed.iter().copied(), 0.95)
    }
}

/// Returns a quantile of values, and 0 without any.
pub(super) fn quantile_or_zero(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values = values.peekable();
    if values.peek().is_some() { quantile(values, share) } else { 0.0 }
}

/// A parent, and the role of some of its children.
type Family = (i32, String);

/// Returns the workers of a recording, and their role: the processes with the same parent and role that have most private
/// memory at one time. Several processes come before one.
fn find(recording: &Recording) -> (String, BTreeSet<Id>) {
    let families = families(recording);
    // The most processes at one time, and the most private memory.
    let mut most: BTreeMap<&Family, (usize, u64)> = BTreeMap::new();
    let mut all = 0;
    for sample in recording.samples().filter(|sample| sample.exact) {
        let mut now: BTreeMap<&Family, (usize, u64)> = BTreeMap::new();
        for process in &sample.processes {
            let Some(bytes) = process.uss_bytes else { continue };
            let Some(family) = families.get(&(process.pid, process.started_ticks)) else {
                continue;
            };
            let entry = now.entry(family).or_default();
            *entry = (entry.0 + 1, entry.1 + bytes);
        }
        for (family, (number, bytes)) in now {
            let entry = most.entry(family).or_default();
            *entry = (entry.0.max(number), entry.1.max(bytes));
        }
        all = sample.uss_bytes.unwrap_or(0).max(all);
    }
    let largest = most.iter().max_by_key(|(_, (number, bytes))| (*number > 1, *bytes));
    match largest {
        Some((family, (_, bytes))) if *bytes as f64 >= MIN_SHARE * all as f64 && *bytes > 0 => {
            let is_member = |of: &&Family| *of == *family;
            let ids = families.iter().filter(|(_, of)| is_member(of)).map(|(id, _)| *id);
            (family.1.clone(), ids.collect())
        }
        _ => (String::new(), BTreeSet::new()),
    }
}

/// Returns the parent and the role of each process whose parent is in the recording.
fn families(recording: &Recording) -> BTreeMap<Id, Family> {
    let arrivals: BTreeMap<Id, &Arrival> =
        recording.processes().map(|it| ((it.pid, it.started_ticks), it)).collect();
    let commands: BTreeMap<i32, &str> =
        arrivals.iter().map(|(id, arrival)| (id.0, arrival.command.as_str())).collect();
    // Servers give their workers a title after the fork.
    let titles: BTreeMap<Id, &str> =
        recording.causes().map(|it| ((it.pid, it.started_ticks), it.command.as_str())).collect();
    let mut families: BTreeMap<Id, Family> = BTreeMap::new();
    let mut without_title = Vec::new();
    for (id, arrival) in arrivals {
        let Some(parent) = commands.get(&arrival.parent) else { continue };
        match *titles.get(&id).unwrap_or(&arrival.command.as_str()) {
            command if command == *parent => {
                without_title.push((id, arrival.parent, kind(command)))
            }
            command => _ = families.insert(id, (arrival.parent, kind(command))),
        }
    }
    let roles: BTreeMap<i32, String> = families.values().cloned().collect();
    for (id, parent, role) in without_title {
        families.insert(id, (parent, roles.get(&parent).cloned().unwrap_or(role)));
    }
    families
}

/// The role of a process without its number.
fn kind(command: &str) -> String {
    let role = role(command);
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    match role.rsplit_once(' ') {
        Some((name, number)) if is_number(number) => name.to_owned(),
        _ => role,
    }
}
