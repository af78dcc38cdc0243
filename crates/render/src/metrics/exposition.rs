//! Metrics as data, and the lines of Prometheus' text format and of OpenMetrics.

use std::fmt::Write;

use formats::{Container, Pauses, Place};
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

/// The series of one name. That of a counter is without the ending `_total`.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) figures: Figures,
}

pub(super) enum Figures {
    Gauges(Vec<(Labels, f64)>),
    Counters(Vec<(Labels, f64)>),
    /// The pauses of captured processes, in seconds.
    Histogram(Pauses),
}

/// All metrics.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) families: Vec<Family>,
}

impl Writer {
    pub(super) fn gauge(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let figures = Figures::Gauges(samples.into_iter().collect());
        self.families.push(Family { name, help, figures });
    }

    pub(super) fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let figures = Figures::Counters(samples.into_iter().collect());
        self.families.push(Family { name, help, figures });
    }

    pub(super) fn histogram(&mut self, name: &'static str, help: &'static str, pauses: Pauses) {
        self.families.push(Family { name, help, figures: Figures::Histogram(pauses) });
    }

    /// The answer to a scraper.
    pub(super) fn text(&self, format: MetricsFormat) -> String {
        let mut text = String::new();
        self.families.iter().for_each(|family| family.write(&mut text, format));
        if format == MetricsFormat::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

impl Family {
    pub(super) fn is_empty(&self) -> bool {
        match &self.figures {
            Figures::Gauges(samples) | Figures::Counters(samples) => samples.is_empty(),
            Figures::Histogram(_) => false,
        }
    }

    fn write(&self, text: &mut String, format: MetricsFormat) {
        let Self { name, help, figures } = self;
        let mut head = |name: &str, kind: &str| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        match figures {
            Figures::Gauges(samples) => {
                head(name, "gauge");
                samples.iter().for_each(|(labels, value)| sample(text, name, labels, *value));
            }
            Figures::Counters(samples) => {
                let with_ending = format!("{name}_total");
                // OpenMetrics names the family without the ending.
                let is_open = format == MetricsFormat::OpenMetrics;
                head(if is_open { name } else { &with_ending }, "counter");
                for (labels, value) in samples {
                    sample(text, &with_ending, labels, *value);
                }
            }
            Figures::Histogram(pauses) => {
                head(name, "histogram");
                let bounds = Pauses::BOUNDS.map(|bound| bound.to_string());
                let counts = bounds.into_iter().zip(pauses.up_to);
                for (bound, count) in counts.chain([("+Inf".to_owned(), pauses.count)]) {
                    sample(text, &format!("{name}_bucket"), &[("le", bound)], count as f64);
                }
                sample(text, &format!("{name}_sum"), &[], pauses.sum.as_secs_f64());
                sample(text, &format!("{name}_count"), &[], pauses.count as f64);
            }
        }
    }
}

fn sample(text: &mut String, name: &str, labels: &[(&'static str, String)], value: f64) {
    text.push_str(name);
    for (number, (label, value)) in labels.iter().enumerate() {
        let before = if number == 0 { '{' } else { ',' };
        // Names come from foreign processes.
        let value = one_line(value).replace('\\', r"\\").replace('"', r#"\""#);
        let _ = write!(text, "{before}{label}=\"{value}\"");
    }
    let end = if labels.is_empty() { "" } else { "}" };
    let _ = writeln!(text, "{end} {value}");
}
