//! The processes behind the agent's metrics, which add up those with the same names.

use std::cmp::Reverse;

use formats::{Container, Node, NodeProcess};
use serde_json::{Value, json};

use crate::plain::plain;

/// Returns a JSON document with the processes of a machine, those with most memory first.
#[must_use]
pub fn node_processes(node: &Node) -> String {
    let mut processes: Vec<&NodeProcess> = node.processes.iter().collect();
    processes.sort_by_key(|process| (Reverse(process.rss_bytes), process.pid));
    let processes: Vec<Value> = processes.into_iter().map(row).collect();
    json!({ "processes": processes }).to_string()
}

fn row(process: &NodeProcess) -> Value {
    let Container { namespace, pod, name } = &process.place.container;
    let [namespace, pod, name, role] =
        [namespace, pod, name, &process.place.role].map(|text| plain(text));
    let captured = process.captured.as_ref();
    let verdict = captured.map(|it| it.verdict.map_or("healthy", |cause| cause.name()));
    json!({
        "pid": process.pid,
        "namespace": namespace,
        "pod": pod,
        "container": name,
        "role": role,
        "resident_bytes": process.rss_bytes,
        "verdict": verdict,
    })
}
