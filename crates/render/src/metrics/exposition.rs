//! The lines of Prometheus' text format and of OpenMetrics.

use std::fmt::Write;

use formats::{Container, Place};
use linux::one_line;

use super::MetricsFormat;

pub(super) type Labels = Vec<(&'static str, String)>;

pub(super) fn labels_of(place: &Place) -> Labels {
    let mut labels = labels_of_container(&place.container);
    labels.push(("role", place.role.clone()));
    labels
}

pub(super) fn labels_of_container(Container { namespace, pod, name }: &Container) -> Labels {
    vec![("namespace", namespace.clone()), ("pod", pod.clone()), ("container", name.clone())]
}

pub(super) fn and(
    mut labels: Labels,
    more: impl IntoIterator<Item = (&'static str, String)>,
) -> Labels {
    labels.extend(more);
    labels
}

/// The answer to a scraper.
pub(super) struct Writer {
    text: String,
    format: MetricsFormat,
}

impl Writer {
    pub(super) fn new(format: MetricsFormat) -> Self {
        Self { text: String::new(), format }
    }

    /// Ends the answer, and returns it.
    pub(super) fn end(mut self) -> String {
        if self.format == MetricsFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        self.head(name, "gauge", help);
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// `name` is without the ending `_total`.
    pub(super) fn counter(
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

    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &Labels, value: f64) {
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
