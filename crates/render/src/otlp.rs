//! Log records as an OpenTelemetry collector takes them: OTLP/HTTP in JSON, which needs no library of its own. `metrics` and `pprof` use
//! the parts that all signals have.

use formats::{Alarm, Container, FindingKind, FindingRow, Place};
use serde_json::{Value, json};

use crate::words;

/// Severities of OpenTelemetry's logs data model.
const WARN: (u32, &str) = (13, "WARN");
const ERROR: (u32, &str) = (17, "ERROR");

/// A snapshot that the agent saved.
#[derive(Debug, Clone, Copy)]
pub struct SavedSnapshot<'a> {
    /// The name of the machine.
    pub node: &'a str,
    /// The place of the process.
    pub place: &'a Place,
    /// The process.
    pub pid: i32,
    /// The reason.
    pub reason: &'a FindingRow,
    /// The path of the file.
    pub path: &'a str,
    /// The time, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Returns the body of a request to `/v1/logs`, with a record of the snapshot.
#[must_use]
pub fn log_request(saved: SavedSnapshot<'_>) -> Vec<u8> {
    let SavedSnapshot { node, place, pid, reason, path, unix_ms } = saved;
    let is_kill =
        matches!(&reason.kind, FindingKind::GroupAlarm { alarm, .. } if *alarm == Alarm::Killed);
    let (severity, text) = if is_kill { ERROR } else { WARN };
    let mut attributes = attributes([("rbloat.file", path)]);
    let id = json!({ "intValue": pid.to_string() });
    attributes.push(json!({ "key": "process.pid", "value": id }));
    let time = nanoseconds(unix_ms);
    let record = json!({
        "timeUnixNano": time,
        "observedTimeUnixNano": time,
        "severityNumber": severity,
        "severityText": text,
        "body": { "stringValue": words::finding(reason) },
        "attributes": attributes,
    });
    let request = json!({ "resourceLogs": [{
        "resource": resource(node, place),
        "scopeLogs": [{ "scope": scope(), "logRecords": [record] }],
    }] });
    request.to_string().into_bytes()
}

/// The process at this place of the node.
pub(crate) fn resource(node: &str, place: &Place) -> Value {
    let Container { namespace, pod, name } = &place.container;
    let service = if name.is_empty() { &place.role } else { name };
    json!({ "attributes": attributes([
        ("service.name", service.as_str()),
        ("host.name", node),
        ("k8s.namespace.name", namespace),
        ("k8s.pod.name", pod),
        // Outside of Kubernetes, the container has the same name as the service.
        ("k8s.container.name", if pod.is_empty() { "" } else { name }),
        ("rbloat.role", &place.role),
    ]) })
}

/// The program that found it.
pub(crate) fn scope() -> Value {
    json!({ "name": "rbloat", "version": env!("CARGO_PKG_VERSION") })
}

/// A time. Integers of 64 bits are strings in OTLP's JSON.
pub(crate) fn nanoseconds(unix_ms: u64) -> String {
    unix_ms.saturating_mul(1_000_000).to_string()
}

/// Attributes with these names, if they have values.
pub(crate) fn attributes<'a>(all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Value> {
    let known = all.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(key, value)| json!({ "key": key, "value": { "stringValue": value } })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_in_a_pod_is_an_error_with_the_names_of_kubernetes() {
        let [namespace, pod, name] = ["shop", "web-1", "app"].map(str::to_owned);
        let place = Place { container: Container { namespace, pod, name }, role: "puma".into() };
        let reason = FindingRow::from(FindingKind::GroupAlarm {
            alarm: Alarm::Killed,
            used_bytes: 1 << 30,
            limit_bytes: 1 << 30,
            shmem_bytes: 0,
            others: vec![],
            after_ms: Some(2000),
        });
        let saved = SavedSnapshot {
            node: "node-1",
            place: &place,
            pid: 42,
            reason: &reason,
            path: "/var/lib/rbloat/1-puma-42.rbloat",
            unix_ms: 1_700_000_000_123,
        };
        let request: Value = serde_json::from_slice(&log_request(saved)).unwrap();
        let of = |attributes: &Value, key: &str| {
            let all = attributes.as_array().unwrap().iter();
            all.clone().find(|it| it["key"] == key).map(|it| it["value"].clone())
        };
        let logs = &request["resourceLogs"][0];
        let resource = &logs["resource"]["attributes"];
        for (key, value) in [
            ("service.name", "app"),
            ("host.name", "node-1"),
            ("k8s.namespace.name", "shop"),
            ("k8s.pod.name", "web-1"),
            ("k8s.container.name", "app"),
            ("rbloat.role", "puma"),
        ] {
            assert_eq!(of(resource, key), Some(json!({ "stringValue": value })), "{key}");
        }
        let record = &logs["scopeLogs"][0]["logRecords"][0];
        assert_eq!(record["severityNumber"], 17);
        assert_eq!(record["timeUnixNano"], "1700000000123000000");
        assert_eq!(of(&record["attributes"], "process.pid"), Some(json!({ "intValue": "42" })));
    }
}
