//! The metrics of `rbloat agent`, as Prometheus and its relatives read them.

mod exposition;
mod node;
mod otlp;
mod processes;

use std::collections::BTreeMap;

use formats::{Node, NodeProcess, Place};

use exposition::Writer;
pub use otlp::metrics_request;

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
    all(node).text(format)
}

fn all(node: &Node) -> Writer {
    let mut to = Writer::default();
    let mut by_place: BTreeMap<&Place, Vec<&NodeProcess>> = BTreeMap::new();
    for process in &node.processes {
        by_place.entry(&process.place).or_default().push(process);
    }
    let places = || by_place.iter().map(|(place, processes)| (*place, &processes[..]));
    to.kernel(places());
    to.captures(places());
    to.allocators(places());
    to.owners(places());
    to.treatment(node, places());
    to.groups(node);
    to.own(node);
    if let Some(snapshots) = &node.snapshots {
        to.snapshots(snapshots);
    }
    if !node.pushes.is_empty() {
        to.pushes(&node.pushes);
    }
    if let Some(archive) = &node.archive {
        to.archive(archive);
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use formats::{
        Alarm, ArchiveOutcome, Archived, CaptureOutcome, Captured, CauseRow, Confidence, Container,
        NodeGroup, NodeMemory, Owned, Owner, Pauses, PushOutcome, SnapshotOutcome, StoredSnapshots,
        Treatment, TreatmentOutcome,
    };
    use ledger::Cause;
    use linux::proc::GroupMemory;

    fn container(pod: &str) -> Container {
        Container { namespace: "shop".into(), pod: pod.into(), name: "web".into() }
    }

    fn process(pod: &str, role: &str, mib: u64) -> NodeProcess {
        let container = container(pod);
        let rows =
            [(Cause::MallocUnreturned, 2 * mib / 3), (Cause::RubyLiveSlots, mib - 2 * mib / 3)];
        NodeProcess {
            pid: 42,
            place: Place { container, role: role.into() },
            rss_bytes: mib << 20,
            exact: Some(NodeMemory { pss_bytes: mib << 19, ..NodeMemory::default() }),
            captured: Some(Captured {
                unix_seconds: 1.5e9,
                causes: rows.map(|(cause, mib)| CauseRow { cause, bytes: mib << 20 }).to_vec(),
                trim_yield_bytes: Some(mib << 18),
                verdict: Some(Cause::MallocUnreturned),
                confidence: Confidence::High,
                allocator: "glibc 2.36".into(),
                ruby_version: Some("3.1.2".into()),
                malloc: vec![("in_use", mib << 18), ("fragmented", mib << 17)],
                objects: ["T_STRING", "TOTAL", "FREE"].map(|it| (it.to_owned(), 100 * mib)).into(),
            }),
            owned: Some(Owned {
                unix_ms: 1_500_000_000_000,
                rss_bytes: mib << 20,
                owners: vec![owner("String", mib << 19), owner("Tiny", mib << 14)],
            }),
        }
    }

    pub(super) fn owner(name: &str, bytes: u64) -> Owner {
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
            singleton_objects: 0,
            singleton_bytes: 0,
            kept_by: Vec::new(),
        }
    }

    fn node() -> Node {
        let group = GroupMemory {
            usage_bytes: 900 << 20,
            limit_bytes: Some(1 << 30),
            cache_bytes: 0,
            shmem_bytes: 5 << 20,
            oom_kills: Some(2),
            limit_hits: Some(7),
            stalled: Some(Duration::from_millis(1500)),
        };
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
            groups: [
                (container("web-1"), NodeGroup { memory: Some(group), oom_kills: 2 }),
                (container("web-0"), NodeGroup { memory: None, oom_kills: 1 }),
            ]
            .into(),
            answers: [("200", 12), ("401", 3), ("closed", 1)].into(),
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
            pushes: [("parca", [(PushOutcome::Accepted, 4), (PushOutcome::Failed, 1)].into())]
                .into(),
            archive: Some(Archived {
                snapshots: [(ArchiveOutcome::Written, 48)].into(),
                bytes: 5 << 20,
            }),
        }
    }

    #[test]
    fn metrics_in_both_formats() {
        insta::assert_snapshot!("text", metrics(&node(), MetricsFormat::Text));
        insta::assert_snapshot!("openmetrics", metrics(&node(), MetricsFormat::OpenMetrics));
    }

    #[test]
    fn a_collector_gets_what_scrapers_get() {
        let body = metrics_request(&node(), "node-1", 1_000, 61_000);
        let request: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let of_node = &request["resourceMetrics"][0];
        assert!(of_node["resource"].to_string().contains("node-1"), "{}", of_node["resource"]);
        let families = of_node["scopeMetrics"][0]["metrics"].as_array().unwrap();
        // The lines that scrapers would get of the same figures.
        let mut lines = Vec::new();
        for metric in families {
            let name = metric["name"].as_str().unwrap();
            let points = |kind: &str| metric[kind]["dataPoints"].as_array().cloned();
            if let Some([pauses]) = points("histogram").as_deref() {
                assert_eq!(
                    pauses["bucketCounts"].to_string(),
                    r#"["1","1","1","0","1","0","0","0","1"]"#
                );
                assert_eq!(
                    (pauses["count"].as_str(), pauses["sum"].as_f64()),
                    (Some("5"), Some(0.32))
                );
                continue;
            }
            let is_sum = metric["sum"]["isMonotonic"] == true;
            let ending = if is_sum { "_total" } else { "" };
            for point in points("gauge").or(points("sum")).unwrap() {
                assert_eq!(point["timeUnixNano"], "61000000000");
                assert_eq!(point["startTimeUnixNano"] == "1000000000", is_sum, "{point}");
                let attributes = point["attributes"].as_array().unwrap();
                let labels: Vec<_> = attributes
                    .iter()
                    .map(|it| (it["key"].as_str().unwrap(), it["value"]["stringValue"].clone()))
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                let labels = labels.join(",");
                let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
                lines.push(format!(
                    "{name}{ending}{labels} {}",
                    point["asDouble"].as_f64().unwrap()
                ));
            }
        }
        let text = metrics(&node(), MetricsFormat::Text);
        let scraped = text.lines().filter(|it| !it.starts_with('#') && !it.contains("_pause_"));
        // Prometheus takes a label without a value for none.
        let scraped: Vec<_> = scraped
            .map(|it| {
                ["namespace", "pod", "container", "role"].iter().fold(it.to_owned(), |it, name| {
                    it.replace(&format!("{name}=\"\","), "").replace(&format!(",{name}=\"\""), "")
                })
            })
            .map(|it| it.replace("{role=\"\"}", ""))
            .collect();
        assert_eq!(lines, scraped);
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
