//! The metrics of `rbloat agent`, as Prometheus and its relatives read them.

use std::collections::BTreeMap;
use std::fmt::Write;

use capture::one_line;
use formats::{
    CaptureOutcome, Confidence, Container, Node, NodeMemory, NodeProcess, Pauses, Place,
};

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
    to.groups(node);
    to.own(node);
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

    /// The memory of control groups.
    fn groups(&mut self, node: &Node) {
        let mut groups = BTreeMap::new();
        for process in &node.processes {
            if let Some(group) = process.group {
                groups.insert(&process.place.container, group);
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

    use formats::{Captured, CauseRow, Group};
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
            }),
        }
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
        }
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
