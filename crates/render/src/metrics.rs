//! The metrics of `rbloat agent`, as Prometheus and its relatives read them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use capture::one_line;
use formats::{
    Alarm, CaptureOutcome, Confidence, Container, Group, Node, NodeMemory, NodeProcess, Owned,
    Pauses, Place, PushOutcome, SnapshotOutcome, StoredSnapshots, TreatmentOutcome,
};

/// The owners of a place that are metrics: the largest ones, if they hold this part of RSS.
const MAX_OWNERS: usize = 10;
const MIN_PART: f64 = 0.02;
/// The longest name of an owner.
const MAX_NAME: usize = 100;

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// Prometheus' text format, version 0.0.4, which all scrapers read.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl MetricsFormat {
    /// The format for a scraper with this Accept header.
    #[must_use]
    pub fn for_accept(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// The value of the Content-Type header.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Returns the metrics of a node. Processes with the same place are added up.
#[must_use]
pub fn metrics(node: &Node, format: MetricsFormat) -> String {
    let mut to = Writer { text: String::new(), format };
    let mut by_place: BTreeMap<&Place, Vec<&NodeProcess>> = BTreeMap::new();
    for process in &node.processes {
        by_place.entry(&process.place).or_default().push(process);
    }
    let places = || by_place.iter().map(|(place, processes)| (*place, &processes[..]));
    to.gauge(
        "rbloat_processes",
        "The Ruby processes.",
        places().map(|(it, processes)| (labels_of(it), processes.len() as f64)),
    );
    to.gauge(
        "rbloat_resident_bytes",
        "Resident memory (RSS), pages that are shared with other processes included.",
        places().map(|(it, processes)| {
            (labels_of(it), processes.iter().map(|process| process.rss_bytes as f64).sum())
        }),
    );
    let exact: [(&str, &str, Figure); 3] = [
        (
            "rbloat_proportional_bytes",
            "Proportional memory (PSS): a page that four processes share counts for a quarter.",
            |it| it.pss_bytes,
        ),
        ("rbloat_unique_bytes", "Memory of these processes alone (USS).", |it| it.uss_bytes),
        ("rbloat_swap_bytes", "Swapped memory.", |it| it.swap_bytes),
    ];
    for (name, help, bytes) in exact {
        let sum = |processes: &[&NodeProcess]| {
            let known = processes.iter().filter_map(|process| process.exact.as_ref()).map(bytes);
            known.clone().next().map(|_| known.sum::<u64>() as f64)
        };
        let sums = places().filter_map(|(it, all)| Some((labels_of(it), sum(all)?)));
        to.gauge(name, help, sums);
    }
    to.captures(places());
    to.allocators(places());
    to.owners(places());
    to.treatment(node, places());
    to.groups(node);
    to.own(node);
    if let Some(snapshots) = &node.snapshots {
        to.snapshots(snapshots);
    }
    if let Some(pushes) = &node.pushes {
        to.counter(
            "rbloat_pushes",
            "Attempts to push a profile to a server, by outcome.",
            PushOutcome::ALL.map(|outcome| {
                let count = pushes.get(&outcome).copied().unwrap_or(0);
                (vec![("outcome", push_outcome(outcome).to_owned())], count as f64)
            }),
        );
    }
    if format == MetricsFormat::OpenMetrics {
        to.text.push_str("# EOF\n");
    }
    to.text
}

/// The name of an outcome, as a label.
fn outcome(outcome: CaptureOutcome) -> &'static str {
    match outcome {
        CaptureOutcome::Forked => "forked",
        CaptureOutcome::Frozen => "frozen",
        CaptureOutcome::Pressure => "pressure",
        CaptureOutcome::NoRoom => "no_room",
        CaptureOutcome::Failed => "failed",
    }
}

fn alarm(alarm: Alarm) -> &'static str {
    match alarm {
        Alarm::NearLimit => "near_limit",
        Alarm::LimitHit => "limit_hit",
        Alarm::FastGrowth => "fast_growth",
    }
}

fn push_outcome(outcome: PushOutcome) -> &'static str {
    match outcome {
        PushOutcome::Accepted => "accepted",
        PushOutcome::Refused => "refused",
        PushOutcome::Failed => "failed",
        PushOutcome::Dropped => "dropped",
    }
}

fn snapshot_outcome(outcome: SnapshotOutcome) -> &'static str {
    match outcome {
        SnapshotOutcome::Written => "written",
        SnapshotOutcome::NoRoom => "no_room",
        SnapshotOutcome::Failed => "failed",
        SnapshotOutcome::NotWritten => "not_written",
    }
}

/// Returns the owners that hold most memory of these processes, by kind and name, with the cause and the bytes.
fn top_owners<'a>(
    owned: impl Iterator<Item = &'a Owned>,
) -> Vec<(&'a str, String, Option<ledger::Cause>, u64)> {
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    let mut rss_bytes = 0_u64;
    for one in owned {
        rss_bytes = rss_bytes.saturating_add(one.rss_bytes);
        for owner in &one.owners {
            let sum = sums.entry((&*owner.kind, &*owner.owner, owner.cause)).or_default();
            *sum = sum.saturating_add(owner.bytes());
        }
    }
    let least = rss_bytes as f64 * MIN_PART;
    let mut owners: Vec<_> = sums.into_iter().filter(|(_, bytes)| *bytes as f64 > least).collect();
    owners.sort_by_key(|((kind, name, _), bytes)| (Reverse(*bytes), *name, *kind));
    owners.truncate(MAX_OWNERS);
    let short = |name: &str| match name.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    };
    owners
        .into_iter()
        .map(|((kind, name, cause), bytes)| (kind, short(name), cause, bytes))
        .collect()
}

fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// Reads one figure.
type Figure = fn(&NodeMemory) -> u64;

type Labels = Vec<(&'static str, String)>;

fn labels_of(place: &Place) -> Labels {
    let mut labels = labels_of_container(&place.container);
    labels.push(("role", place.role.clone()));
    labels
}

fn labels_of_container(Container { namespace, pod, name }: &Container) -> Labels {
    vec![("namespace", namespace.clone()), ("pod", pod.clone()), ("container", name.clone())]
}

fn and(mut labels: Labels, more: impl IntoIterator<Item = (&'static str, String)>) -> Labels {
    labels.extend(more);
    labels
}

struct Writer {
    text: String,
    format: MetricsFormat,
}

impl Writer {
    /// What the captures of the processes found.
    fn captures<'a>(
        &mut self,
        places: impl Iterator<Item = (&'a Place, &'a [&'a NodeProcess])> + Clone,
    ) {
        let captured = |processes: &'a [&'a NodeProcess]| {
            processes.iter().filter_map(|process| process.captured.as_ref())
        };
        self.gauge(
            "rbloat_memory_bytes",
            "Resident memory by cause, at the latest capture. The causes add up to RSS at that time.",
            places.clone().flat_map(|(place, processes)| {
                let mut causes = BTreeMap::new();
                for row in captured(processes).flat_map(|captured| &captured.causes) {
                    *causes.entry(row.cause).or_insert(0) += row.bytes;
                }
                let labels = move |cause: ledger::Cause| {
                    and(labels_of(place), [("cause", cause.name().to_owned())])
                };
                causes.into_iter().map(move |(cause, bytes)| (labels(cause), bytes as f64))
            }),
        );
        self.gauge(
            "rbloat_trim_yield_bytes",
            "Free memory that a trim would return to the kernel, at the latest capture.",
            places.clone().filter_map(|(place, processes)| {
                let yields = captured(processes).filter_map(|it| it.trim_yield_bytes);
                yields.clone().next()?;
                Some((labels_of(place), yields.sum::<u64>() as f64))
            }),
        );
        self.gauge(
            "rbloat_capture_timestamp_seconds",
            "The time of the latest capture; with several processes, of the oldest of them.",
            places.clone().filter_map(|(place, processes)| {
                let oldest = captured(processes).map(|it| it.unix_seconds).reduce(f64::min)?;
                Some((labels_of(place), oldest))
            }),
        );
        self.gauge(
            "rbloat_verdict_info",
            "The number of processes with this verdict, allocator and Ruby.",
            places.flat_map(|(place, processes)| {
                let mut verdicts = BTreeMap::new();
                for it in captured(processes) {
                    let labels = [
                        ("verdict", it.verdict.map_or("healthy", ledger::Cause::name).to_owned()),
                        ("confidence", confidence(it.confidence).to_owned()),
                        ("allocator", it.allocator.clone()),
                        ("ruby", it.ruby_version.clone().unwrap_or_default()),
                    ];
                    *verdicts.entry(and(labels_of(place), labels)).or_insert(0.0) += 1.0;
                }
                verdicts
            }),
        );
    }

    /// The memory of allocators, and the objects of Ruby.
    fn allocators<'a>(
        &mut self,
        places: impl Iterator<Item = (&'a Place, &'a [&'a NodeProcess])> + Clone,
    ) {
        self.gauge(
            "rbloat_allocator_bytes",
            "Resident memory of malloc's arenas by state, at the latest capture.",
            places.clone().flat_map(|(place, processes)| {
                let mut states = BTreeMap::new();
                for it in processes.iter().filter_map(|process| process.captured.as_ref()) {
                    for (state, bytes) in &it.malloc {
                        *states.entry((&it.allocator, state)).or_insert(0) += bytes;
                    }
                }
                states.into_iter().map(|((allocator, state), bytes)| {
                    let labels = [("allocator", allocator.clone()), ("state", (*state).to_owned())];
                    (and(labels_of(place), labels), bytes as f64)
                })
            }),
        );
        self.gauge(
            "rbloat_objects",
            "Live objects by type, at the latest capture.",
            places.flat_map(|(place, processes)| {
                let mut types = BTreeMap::new();
                let captured = processes.iter().filter_map(|process| process.captured.as_ref());
                for (name, count) in captured.flat_map(|captured| &captured.objects) {
                    *types.entry(name).or_insert(0) += count;
                }
                types.into_iter().map(|(name, count)| {
                    (and(labels_of(place), [("type", name.clone())]), count as f64)
                })
            }),
        );
    }

    /// The owners that hold most memory.
    fn owners<'a>(
        &mut self,
        places: impl Iterator<Item = (&'a Place, &'a [&'a NodeProcess])> + Clone,
    ) {
        self.gauge(
            "rbloat_owner_bytes",
            "Memory of the largest owners: the slots of their objects, and the resident memory that these hold, at the latest \
             capture that found owners.",
            places.clone().flat_map(|(place, processes)| {
                let owned = processes.iter().filter_map(|process| process.owned.as_ref());
                top_owners(owned).into_iter().map(|(kind, owner, cause, bytes)| {
                    let cause = cause.map_or("", ledger::Cause::name);
                    let labels = [
                        ("owner", owner),
                        ("kind", kind.to_owned()),
                        ("cause", cause.to_owned()),
                    ];
                    (and(labels_of(place), labels), bytes as f64)
                })
            }),
        );
        self.gauge(
            "rbloat_owners_timestamp_seconds",
            "The time of the latest capture that found owners; with several processes, of the oldest of them.",
            places.filter_map(|(place, processes)| {
                let owned = processes.iter().filter_map(|process| process.owned.as_ref());
                let oldest = owned.map(|owned| owned.unix_ms).min()?;
                Some((labels_of(place), oldest as f64 / 1e3))
            }),
        );
    }

    /// Trims by the agent, and those that it could make.
    fn treatment<'a>(
        &mut self,
        node: &Node,
        places: impl Iterator<Item = (&'a Place, &'a [&'a NodeProcess])>,
    ) {
        let above = node.treatment.above_bytes;
        self.gauge(
            "rbloat_treatable_bytes",
            "Memory that `rbloat agent --treat` would return by trims: of processes for which that is worth it.",
            places.filter_map(|(place, processes)| {
                let captured = processes.iter().filter_map(|process| process.captured.as_ref());
                let yields = captured.filter_map(|it| it.trim_yield_bytes);
                yields.clone().next()?;
                let sum: u64 = yields.filter(|bytes| *bytes >= above).sum();
                Some((labels_of(place), sum as f64))
            }),
        );
        self.counter(
            "rbloat_trims",
            "Trims by `rbloat agent --treat`, by outcome.",
            TreatmentOutcome::ALL.into_iter().map(|outcome| {
                let name = match outcome {
                    TreatmentOutcome::Trimmed => "trimmed",
                    TreatmentOutcome::Refused => "refused",
                };
                let count = node.treatment.trims.get(&outcome).copied().unwrap_or(0);
                (vec![("outcome", name.to_owned())], count as f64)
            }),
        );
        self.counter(
            "rbloat_trimmed_bytes",
            "Memory that these trims returned to the kernel.",
            [(Vec::new(), node.treatment.returned_bytes as f64)],
        );
    }

    /// The snapshots of processes near a limit.
    fn snapshots(&mut self, snapshots: &StoredSnapshots) {
        let attempts = Alarm::ALL
            .into_iter()
            .flat_map(|alarm| SnapshotOutcome::ALL.map(|outcome| (alarm, outcome)));
        self.counter(
            "rbloat_snapshots",
            "Attempts to save a snapshot of a process near its memory limit, by reason and outcome.",
            attempts.map(|(reason, outcome)| {
                let count = snapshots.attempts.get(&(reason, outcome)).copied().unwrap_or(0);
                let labels = [("reason", alarm(reason)), ("outcome", snapshot_outcome(outcome))];
                (labels.map(|(name, value)| (name, value.to_owned())).to_vec(), count as f64)
            }),
        );
        let figures = [
            ("rbloat_snapshots_stored", "The snapshots in the folder.", snapshots.files),
            (
                "rbloat_snapshots_stored_bytes",
                "The size of all files in the folder.",
                snapshots.bytes,
            ),
            (
                "rbloat_growth_observed",
                "1 while the growth of a process near its limit is observed by code.",
                u64::from(snapshots.observes_growth),
            ),
        ];
        for (name, help, figure) in figures {
            self.gauge(name, help, [(Vec::new(), figure as f64)]);
        }
    }

    /// The memory of control groups.
    fn groups(&mut self, node: &Node) {
        let mut groups = BTreeMap::new();
        for process in &node.processes {
            if let Some(group) = process.group {
                // Processes outside of containers have the same names, and may be in different groups.
                let room =
                    |it: &Group| it.limit_bytes.map(|limit| limit.saturating_sub(it.usage_bytes));
                let least = groups.entry(&process.place.container).or_insert(group);
                if room(&group).is_some_and(|new| room(least).is_none_or(|known| new < known)) {
                    *least = group;
                }
            }
        }
        let groups =
            || groups.iter().map(|(container, group)| (labels_of_container(container), *group));
        self.gauge(
            "rbloat_group_usage_bytes",
            "Memory that counts towards the limit of the control group, caches of files included.",
            groups().map(|(labels, group)| (labels, group.usage_bytes as f64)),
        );
        self.gauge(
            "rbloat_group_cache_bytes",
            "The part of the usage in caches of files, which the kernel gives up before it kills.",
            groups().map(|(labels, group)| (labels, group.cache_bytes as f64)),
        );
        self.gauge(
            "rbloat_group_limit_bytes",
            "The memory limit of the control group, if it has one.",
            groups().filter_map(|(labels, group)| Some((labels, group.limit_bytes? as f64))),
        );
        self.counter(
            "rbloat_group_oom_kills",
            "Processes of the control group that the kernel killed since memory was short.",
            groups().filter_map(|(labels, group)| Some((labels, group.oom_kills? as f64))),
        );
    }

    /// rbloat's own work, and its cost.
    fn own(&mut self, node: &Node) {
        self.counter(
            "rbloat_captures",
            "Attempts to capture a process, by outcome.",
            CaptureOutcome::ALL.into_iter().map(|it| {
                let count = node.captures.get(&it).copied().unwrap_or(0);
                (vec![("outcome", outcome(it).to_owned())], count as f64)
            }),
        );
        self.pauses(&node.pauses);
        self.counter(
            "rbloat_agent_cpu_seconds",
            "The processor time of the agent itself.",
            [(Vec::new(), node.own_cpu.as_secs_f64())],
        );
        self.gauge(
            "rbloat_agent_resident_bytes",
            "Resident memory of the agent itself.",
            [(Vec::new(), node.own_rss_bytes as f64)],
        );
        self.gauge(
            "rbloat_agent_refused_processes",
            "Processes that the agent may not examine; some of them may be Ruby processes.",
            [(Vec::new(), node.refused as f64)],
        );
        self.gauge(
            "rbloat_agent_info",
            "The version of the agent.",
            [(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)],
        );
    }

    fn pauses(&mut self, pauses: &Pauses) {
        let name = "rbloat_capture_pause_seconds";
        self.head(name, "histogram", "The pauses of captured processes.");
        let bounds = Pauses::BOUNDS.map(|bound| bound.to_string());
        let counts = bounds.into_iter().zip(pauses.up_to);
        for (bound, count) in counts.chain([("+Inf".to_owned(), pauses.count)]) {
            self.sample(&format!("{name}_bucket"), &vec![("le", bound)], count as f64);
        }
        self.sample(&format!("{name}_sum"), &Vec::new(), pauses.sum.as_secs_f64());
        self.sample(&format!("{name}_count"), &Vec::new(), pauses.count as f64);
    }

    fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels, f64)>) {
        self.head(name, "gauge", help);
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// `name` is without the ending `_total`.
    fn counter(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let with_ending = format!("{name}_total");
        // OpenMetrics names the family without the ending.
        let of_head = if self.format == MetricsFormat::OpenMetrics { name } else { &with_ending };
        self.head(of_head, "counter", help);
        for (labels, value) in samples {
            self.sample(&with_ending, &labels, value);
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: f64) {
        self.text.push_str(name);
        for (number, (label, value)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            // Names come from foreign processes.
            let value = one_line(value).replace('\\', r"\\").replace('"', r#"\""#);
            let _ = write!(self.text, "{before}{label}=\"{value}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use formats::{Captured, CauseRow, Owner, Treatment};
    use ledger::Cause;

    fn process(pod: &str, role: &str, mib: u64) -> NodeProcess {
        let container = Container { namespace: "shop".into(), pod: pod.into(), name: "web".into() };
        let rows =
            [(Cause::MallocUnreturned, 2 * mib / 3), (Cause::RubyLiveSlots, mib - 2 * mib / 3)];
        NodeProcess {
            place: Place { container, role: role.into() },
            rss_bytes: mib << 20,
            exact: Some(NodeMemory { pss_bytes: mib << 19, ..NodeMemory::default() }),
            group: Some(Group {
                usage_bytes: 900 << 20,
                limit_bytes: Some(1 << 30),
                cache_bytes: 0,
                oom_kills: Some(2),
            }),
            captured: Some(Captured {
                unix_seconds: 1.5e9,
                causes: rows.map(|(cause, mib)| CauseRow { cause, bytes: mib << 20 }).to_vec(),
                trim_yield_bytes: Some(mib << 18),
                verdict: Some(Cause::MallocUnreturned),
                confidence: Confidence::High,
                allocator: "glibc 2.36".into(),
                ruby_version: Some("3.1.2".into()),
                malloc: vec![("in_use", mib << 18), ("fragmented", mib << 17)],
                objects: [("T_STRING".to_owned(), 100 * mib)].into(),
            }),
            owned: Some(Owned {
                unix_ms: 1_500_000_000_000,
                rss_bytes: mib << 20,
                owners: vec![owner("String", mib << 19), owner("Tiny", mib << 14)],
            }),
        }
    }

    fn owner(name: &str, bytes: u64) -> Owner {
        Owner {
            owner: name.into(),
            kind: "class".into(),
            cause: Some(Cause::RubyMalloc),
            objects: 1,
            slot_bytes: bytes / 4,
            chunks: 1,
            exclusive_bytes: bytes,
            shared_bytes: 0,
            resident_bytes: Some(bytes - bytes / 4),
            memsize: None,
            retained_bytes: None,
            kept_by: Vec::new(),
        }
    }

    #[test]
    fn owners_are_few_and_their_names_are_short() {
        let owners = (1..100).map(|number| owner(&format!("Owner{number}"), number << 20));
        let mut owned = Owned { unix_ms: 0, rss_bytes: 1 << 30, owners: owners.collect() };
        let found = top_owners([&owned].into_iter());
        let names: Vec<_> = found.iter().map(|(_, name, ..)| name.as_str()).collect();
        let largest = (90..100).rev().map(|number| format!("Owner{number}"));
        assert_eq!(names, largest.collect::<Vec<_>>());
        owned.owners = vec![owner(&"ä".repeat(5000), 1 << 29), owner("Small", 20 << 20)];
        let found = top_owners([&owned, &owned].into_iter());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].1.chars().count(), found[0].3), (MAX_NAME + 1, 1 << 30));
    }

    fn node() -> Node {
        let mut pauses = Pauses::default();
        [1, 2, 3, 14, 300].map(Duration::from_millis).into_iter().for_each(|it| pauses.add(it));
        Node {
            processes: vec![
                process("web-1", "puma worker 0", 300),
                process("web-1", "puma worker 1", 600),
                process("web-1", "job", 30),
                process("web-1", "job", 60),
                process("ev\"il\\\n\u{1b}[31m", "puma", 90),
                NodeProcess::default(),
            ],
            refused: 3,
            captures: [(CaptureOutcome::Forked, 5), (CaptureOutcome::NoRoom, 1)].into(),
            pauses,
            own_cpu: Duration::from_millis(1250),
            own_rss_bytes: 20 << 20,
            treatment: Treatment {
                above_bytes: 100 << 20,
                trims: [(TreatmentOutcome::Trimmed, 3)].into(),
                returned_bytes: 700 << 20,
            },
            snapshots: Some(StoredSnapshots {
                attempts: [((Alarm::NearLimit, SnapshotOutcome::Written), 2)].into(),
                files: 2,
                bytes: 3 << 20,
                observes_growth: true,
            }),
            pushes: Some([(PushOutcome::Accepted, 4), (PushOutcome::Failed, 1)].into()),
        }
    }

    /// The group without a limit was the metric, and the limit was missing.
    #[test]
    fn of_groups_with_the_same_names_the_one_with_the_least_room_counts() {
        let limit = |limit_bytes| {
            let mut one = process("", "puma", 1);
            one.group.as_mut().unwrap().limit_bytes = limit_bytes;
            one
        };
        let processes = vec![limit(Some(5 << 30)), limit(Some(3 << 30)), limit(None)];
        let text = metrics(&Node { processes, ..Node::default() }, MetricsFormat::Text);
        let line = text.lines().find(|line| line.starts_with("rbloat_group_limit_bytes")).unwrap();
        assert!(line.ends_with(&format!(" {}", 3_u64 << 30)), "{line}");
    }

    #[test]
    fn metrics_in_both_formats() {
        insta::assert_snapshot!("text", metrics(&node(), MetricsFormat::Text));
        insta::assert_snapshot!("openmetrics", metrics(&node(), MetricsFormat::OpenMetrics));
    }

    #[test]
    fn each_line_is_a_comment_or_a_sample_of_the_metric_above_it() {
        for format in [MetricsFormat::Text, MetricsFormat::OpenMetrics] {
            let text = metrics(&node(), format);
            let mut family = "";
            for line in text.lines().filter(|line| *line != "# EOF") {
                match line.strip_prefix("# TYPE ") {
                    Some(head) => family = head.split(' ').next().unwrap(),
                    None if line.starts_with("# HELP ") => {}
                    None => assert!(line.starts_with(family), "{line} below {family}"),
                }
                assert!(
                    line.chars().all(|it| it == ' ' || !it.is_whitespace() && !it.is_control())
                );
            }
        }
    }

    #[test]
    fn scrapers_get_the_format_that_they_ask_for() {
        let of_prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(MetricsFormat::for_accept(of_prometheus), MetricsFormat::OpenMetrics);
        assert_eq!(MetricsFormat::for_accept("*/*"), MetricsFormat::Text);
    }
}
