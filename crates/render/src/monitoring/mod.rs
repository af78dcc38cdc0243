//! The dashboard and the alert rules for the metrics of `rbloat agent`.

mod rules;

use std::fmt::Write;

use ledger::{Cause, CauseGroup};
use serde_json::{Value, json};

use crate::words;

pub use rules::alert_rules;

/// The labels by which the dashboard selects processes.
const SELECTED: &str = r#"namespace=~"$namespace",container=~"$container",role=~"$role""#;
/// The same for control groups, which have no role.
const GROUPS: &str = r#"namespace=~"$namespace",container=~"$container""#;
/// The width of the dashboard.
const COLUMNS: u64 = 24;

/// Returns a pattern that matches the names of these causes.
fn pattern(is_it: impl Fn(CauseGroup) -> bool) -> String {
    let names = Cause::ALL.into_iter().filter(|cause| is_it(cause.group())).map(Cause::name);
    names.map(|name| name.replace('.', r"\\.")).collect::<Vec<_>>().join("|")
}

/// Memory that is in no use: a trim, a restart or other settings of malloc return it.
fn free() -> String {
    use CauseGroup as G;
    pattern(|it| matches!(it, G::Unreturned | G::Fragmented | G::KeptForReuse | G::FreeSlots))
}

/// Memory that the program uses, and a leak adds to.
fn used() -> String {
    use CauseGroup as G;
    pattern(|it| {
        matches!(
            it,
            G::RubyObjects
                | G::NativeHeld
                | G::NativeUnreachable
                | G::NativeGlobal
                | G::Interpreter
                | G::Untraced
                | G::Jit
                | G::Unknown
        )
    })
}

/// A panel of the dashboard.
struct Panel {
    kind: &'static str,
    title: &'static str,
    description: String,
    unit: &'static str,
    /// Expressions, and the names of their series.
    queries: Vec<(String, &'static str)>,
    is_stacked: bool,
    width: u64,
}

impl Panel {
    fn new(title: &'static str, unit: &'static str, query: String, legend: &'static str) -> Self {
        Self {
            kind: "timeseries",
            title,
            description: String::new(),
            unit,
            queries: vec![(query, legend)],
            is_stacked: false,
            width: COLUMNS / 2,
        }
    }

    fn and(mut self, query: String, legend: &'static str) -> Self {
        self.queries.push((query, legend));
        self
    }

    fn about(self, description: &str) -> Self {
        Self { description: description.to_owned(), ..self }
    }

    fn to_json(&self, id: u64, x: u64, y: u64) -> Value {
        let is_table = self.kind == "table";
        let targets: Vec<Value> = self
            .queries
            .iter()
            .zip('A'..)
            .map(|((expression, legend), name)| {
                json!({
                    "datasource": { "type": "prometheus", "uid": "${datasource}" },
                    "expr": expression,
                    "format": if is_table { "table" } else { "time_series" },
                    "instant": is_table,
                    "legendFormat": legend,
                    "refId": name.to_string(),
                })
            })
            .collect();
        let stacking = if self.is_stacked { "normal" } else { "none" };
        let fill = if self.is_stacked { 60 } else { 0 };
        let options = if is_table {
            json!({ "showHeader": true, "sortBy": [{ "desc": true, "displayName": "Value" }] })
        } else {
            json!({
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            })
        };
        json!({
            "id": id,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": { "type": "prometheus", "uid": "${datasource}" },
            "gridPos": { "h": HEIGHT, "w": self.width, "x": x, "y": y },
            "targets": targets,
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "min": 0,
                    "color": { "mode": "palette-classic-by-name" },
                    "custom": if is_table { json!({}) } else {
                        json!({ "fillOpacity": fill, "stacking": { "mode": stacking, "group": "A" } })
                    },
                },
                "overrides": [],
            },
            "options": options,
        })
    }
}

/// The height of a panel.
const HEIGHT: u64 = 9;

fn panels() -> Vec<Panel> {
    let free = free();
    let used_of_group =
        format!("(rbloat_group_usage_bytes{{{GROUPS}}} - rbloat_group_cache_bytes{{{GROUPS}}})");
    vec![
        Panel {
            is_stacked: true,
            width: COLUMNS,
            ..Panel::new(
                "Memory by cause",
                "bytes",
                format!("sum by (cause) (rbloat_memory_bytes{{{SELECTED}}})"),
                "{{cause}}",
            )
            .about("Resident memory at the latest captures. Pages that processes share count for each of them.")
        },
        Panel::new(
            "All processes",
            "bytes",
            format!("sum(rbloat_resident_bytes{{{SELECTED}}})"),
            "resident (RSS)",
        )
        .and(format!("sum(rbloat_proportional_bytes{{{SELECTED}}})"), "proportional (PSS)")
        .and(format!("sum(rbloat_unique_bytes{{{SELECTED}}})"), "unique (USS)")
        .and(format!("sum(rbloat_swap_bytes{{{SELECTED}}})"), "swapped")
        .about("PSS is the memory that all of them really take: shared pages count once."),
        Panel::new(
            "Largest processes",
            "bytes",
            format!("topk(10, sum by (instance, namespace, pod, container, role) (rbloat_proportional_bytes{{{SELECTED}}}))"),
            "{{instance}} {{pod}} {{container}} {{role}}",
        )
        .about("PSS of processes with the same place and role. The instance is the agent."),
        Panel::new(
            "A trim would return",
            "bytes",
            format!("topk(10, sum by (instance, namespace, pod, container, role) (rbloat_trim_yield_bytes{{{SELECTED}}}))"),
            "{{instance}} {{pod}} {{container}} {{role}}",
        )
        .about("Free memory that `rbloat trim` would return to the kernel now."),
        Panel::new(
            "Memory in no use",
            "percentunit",
            format!(
                "sum by (container, role) (rbloat_memory_bytes{{{SELECTED},cause=~\"{free}\"}}) \
                 / sum by (container, role) (rbloat_memory_bytes{{{SELECTED}}})"
            ),
            "{{container}} {{role}}",
        )
        .about("The share of resident memory that is free inside malloc or Ruby's heap."),
        Panel::new(
            "Use of the memory limit",
            "percentunit",
            format!("{used_of_group} / rbloat_group_limit_bytes{{{GROUPS}}}"),
            "{{instance}} {{pod}} {{container}}",
        )
        .about("Without caches of files, which the kernel gives up before it kills a process."),
        Panel::new(
            "Time to the limit",
            "s",
            format!(
                "(rbloat_group_limit_bytes{{{GROUPS}}} - {used_of_group}) \
                 / (deriv({used_of_group}[1h:1m]) > 0)"
            ),
            "{{instance}} {{pod}} {{container}}",
        )
        .about("If use goes on to grow as in the last hour. Control groups that do not grow are not shown."),
        Panel {
            kind: "table",
            ..Panel::new(
                "Verdicts",
                "none",
                format!(
                    "sum by (namespace, container, role, verdict, confidence, allocator, ruby) \
                     (rbloat_verdict_info{{{SELECTED}}})"
                ),
                "",
            )
            .about("Value is the number of processes.")
        },
        Panel::new(
            "Largest owners",
            "bytes",
            format!("topk(10, sum by (owner, kind, cause) (rbloat_owner_bytes{{{SELECTED}}}))"),
            "{{owner}} ({{cause}})",
        )
        .about("Objects of a class with the memory that they hold, or the variables of a library."),
        Panel {
            is_stacked: true,
            ..Panel::new(
                "Memory of allocators by state",
                "bytes",
                format!("sum by (allocator, state) (rbloat_allocator_bytes{{{SELECTED}}})"),
                "{{allocator}} {{state}}",
            )
        },
        Panel::new(
            "Objects by type",
            "short",
            format!("topk(10, sum by (type) (rbloat_objects{{{SELECTED}}}))"),
            "{{type}}",
        ),
        Panel::new(
            "Memory without an explanation",
            "percentunit",
            format!(
                "sum by (container, role) (rbloat_memory_bytes{{{SELECTED},cause=\"unknown\"}}) \
                 / sum by (container, role) (rbloat_memory_bytes{{{SELECTED}}})"
            ),
            "{{container}} {{role}}",
        ),
        Panel::new(
            "Killed at a memory limit",
            "short",
            format!("sum by (instance, namespace, pod, container) (increase(rbloat_group_oom_kills_total{{{GROUPS}}}[$__rate_interval]))"),
            "{{instance}} {{pod}} {{container}}",
        ),
        Panel::new(
            "Age of the latest capture",
            "s",
            format!("max by (container, role) (time() - rbloat_capture_timestamp_seconds{{{SELECTED}}})"),
            "{{container}} {{role}}",
        ),
        Panel::new(
            "Captures",
            "short",
            "sum by (outcome) (increase(rbloat_captures_total[$__rate_interval]))".into(),
            "{{outcome}}",
        ),
        Panel::new(
            "Pauses of processes",
            "s",
            "histogram_quantile(0.99, sum by (le) (increase(rbloat_capture_pause_seconds_bucket[1h])))".into(),
            "99 % are shorter",
        )
        .and(
            "sum(increase(rbloat_capture_pause_seconds_sum[1h])) / sum(increase(rbloat_capture_pause_seconds_count[1h]))".into(),
            "mean",
        ),
        Panel::new(
            "Processor time of the agents",
            "percentunit",
            "sum by (instance) (rate(rbloat_agent_cpu_seconds_total[$__rate_interval]))".into(),
            "{{instance}}",
        ),
        Panel::new(
            "Memory of the agents",
            "bytes",
            "sum by (instance) (rbloat_agent_resident_bytes)".into(),
            "{{instance}}",
        ),
    ]
}

/// A variable of the dashboard: a label of the processes.
fn variable(label: &str) -> Value {
    json!({
        "name": label,
        "type": "query",
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "query": { "query": format!("label_values(rbloat_processes, {label})"), "refId": label },
        "includeAll": true,
        "multi": true,
        "allValue": ".*",
        "current": { "selected": true, "text": ["All"], "value": ["$__all"] },
        "refresh": 2,
        "sort": 1,
    })
}

/// Returns the dashboard as JSON that Grafana imports.
#[must_use]
pub fn dashboard() -> String {
    let (mut x, mut y) = (0, 0);
    let mut placed = Vec::new();
    for (panel, id) in panels().iter().zip(1..) {
        if x + panel.width > COLUMNS {
            (x, y) = (0, y + HEIGHT);
        }
        placed.push(panel.to_json(id, x, y));
        x += panel.width;
    }
    let mut meanings = String::from("| cause | meaning |\n|---|---|\n");
    for cause in Cause::ALL {
        let _ = writeln!(meanings, "| {} | {} |", cause.name(), words::meaning(cause));
    }
    placed.push(json!({
        "id": placed.len() + 1,
        "type": "text",
        "title": "Causes",
        "gridPos": { "h": 2 * HEIGHT, "w": COLUMNS, "x": 0, "y": y + HEIGHT },
        "options": { "mode": "markdown", "content": meanings },
    }));
    let datasource = json!({ "name": "datasource", "type": "datasource", "query": "prometheus" });
    let variables: Vec<Value> = std::iter::once(datasource)
        .chain(["namespace", "container", "role"].map(variable))
        .collect();
    let dashboard = json!({
        "uid": "rbloat",
        "title": "Memory of Ruby processes",
        "tags": ["ruby", "memory"],
        "schemaVersion": 39,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": variables },
        "panels": placed,
    });
    let text = serde_json::to_string_pretty(&dashboard).expect("it has string keys");
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cause is memory in use, memory in no use, or neither, which are stacks, files, shared memory and overhead.
    #[test]
    fn each_cause_is_in_one_pattern_at_most() {
        let (free, used) = (free(), used());
        for cause in Cause::ALL {
            let name = cause.name().replace('.', r"\\.");
            let of = |pattern: &str| pattern.split('|').any(|it| it == name);
            let is_neither = matches!(
                cause.group(),
                CauseGroup::Stacks
                    | CauseGroup::Files
                    | CauseGroup::SharedMemory
                    | CauseGroup::Overhead
            );
            assert_eq!(u8::from(of(&free)) + u8::from(of(&used)), u8::from(!is_neither), "{name}");
        }
    }

    #[test]
    fn panels_do_not_overlap() {
        let dashboard: Value = serde_json::from_str(&dashboard()).unwrap();
        let mut taken = std::collections::BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(x < COLUMNS && taken.insert((x, y)), "{}", panel["title"]);
                }
            }
        }
    }
}
