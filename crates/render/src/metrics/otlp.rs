//! Metrics as an OpenTelemetry collector takes them.

use formats::{Node, Pauses};
use linux::one_line;
use serde_json::{Value, json};

use super::all;
use super::exposition::{Family, Figures, Labels};
use crate::otlp::{attributes, nanoseconds, scope};

/// Returns the body of a request to `/v1/metrics`. Names and labels are those that scrapers get. `name` is that of the machine; counters
/// began with the agent, at `since_ms`.
#[must_use]
pub fn metrics_request(node: &Node, name: &str, since_ms: u64, unix_ms: u64) -> Vec<u8> {
    // Those who make series for Prometheus of it take the names for `job` and `instance`.
    let names = [("service.name", "rbloat"), ("service.instance.id", name), ("host.name", name)];
    let resource = json!({ "attributes": attributes(names) });
    let times = Times { start: nanoseconds(since_ms), now: nanoseconds(unix_ms) };
    // One family at a time: a value for each series of a large machine would take megabytes.
    let families = all(node).families.into_iter().filter(|family| !family.is_empty());
    let families: Vec<_> = families.map(|family| times.metric(&family).to_string()).collect();
    format!(
        r#"{{"resourceMetrics":[{{"resource":{resource},"scopeMetrics":[{{"scope":{},"metrics":[{}]}}]}}]}}"#,
        scope(),
        families.join(",")
    )
    .into_bytes()
}

struct Times {
    start: String,
    now: String,
}

impl Times {
    fn metric(&self, Family { name, help, figures }: &Family) -> Value {
        // A collector that makes names for Prometheus of these adds the unit where it is missing, and `_total`.
        let unit = match name {
            name if name.ends_with("_bytes") => "By",
            name if name.ends_with("_seconds") => "s",
            _ => "",
        };
        let mut metric = json!({ "name": name, "description": help, "unit": unit });
        let (kind, data) = match figures {
            Figures::Gauges(samples) => ("gauge", json!({ "dataPoints": self.points(samples) })),
            Figures::Counters(samples) => {
                let mut points = self.points(samples);
                points.iter_mut().for_each(|it| it["startTimeUnixNano"] = json!(self.start));
                ("sum", cumulative(json!({ "dataPoints": points, "isMonotonic": true })))
            }
            Figures::Histogram(pauses) => {
                ("histogram", cumulative(json!({ "dataPoints": [self.histogram(pauses)] })))
            }
        };
        metric[kind] = data;
        metric
    }

    fn points(&self, samples: &[(Labels, f64)]) -> Vec<Value> {
        let point = |(labels, value): &(Labels, f64)| {
            // Names come from foreign processes.
            let labels: Vec<_> = labels.iter().map(|(name, it)| (*name, one_line(it))).collect();
            let labels = attributes(labels.iter().map(|(name, it)| (*name, it.as_str())));
            json!({ "attributes": labels, "timeUnixNano": self.now, "asDouble": value })
        };
        samples.iter().map(point).collect()
    }

    fn histogram(&self, pauses: &Pauses) -> Value {
        // Each bucket has its own count here.
        let mut below = 0;
        let counts = pauses.up_to.iter().chain([&pauses.count]).map(|count| {
            let own = count.saturating_sub(below);
            below = *count;
            own.to_string()
        });
        json!({
            "startTimeUnixNano": self.start,
            "timeUnixNano": self.now,
            "count": pauses.count.to_string(),
            "sum": pauses.sum.as_secs_f64(),
            "bucketCounts": counts.collect::<Vec<_>>(),
            "explicitBounds": Pauses::BOUNDS,
        })
    }
}

/// Sums since the start, as those of Prometheus.
fn cumulative(mut data: Value) -> Value {
    data["aggregationTemporality"] = json!(2);
    data
}
