//! The metrics of processes, by their places.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use formats::{Confidence, Node, NodeMemory, NodeProcess, Owned, Place, TreatmentOutcome};

use super::exposition::{Writer, and, labels_of};

/// The owners of a place that are metrics: the largest ones, if they hold this part of RSS.
const MAX_OWNERS: usize = 10;
const MIN_PART: f64 = 0.02;
/// The longest name of an owner.
const MAX_NAME: usize = 100;

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

impl Writer {
    /// The kernel's figures.
    pub(super) fn kernel<'a>(
        &mut self,
        places: impl Iterator<Item = (&'a Place, &'a [&'a NodeProcess])> + Clone,
    ) {
        self.gauge(
            "rbloat_processes",
            "The Ruby processes.",
            places.clone().map(|(it, processes)| (labels_of(it), processes.len() as f64)),
        );
        self.gauge(
            "rbloat_resident_bytes",
            "Resident memory (RSS), pages that are shared with other processes included.",
            places.clone().map(|(it, processes)| {
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
                let known =
                    processes.iter().filter_map(|process| process.exact.as_ref()).map(bytes);
                known.clone().next().map(|_| known.sum::<u64>() as f64)
            };
            let sums = places.clone().filter_map(|(it, all)| Some((labels_of(it), sum(all)?)));
            self.gauge(name, help, sums);
        }
    }

    /// The findings of the captures.
    pub(super) fn captures<'a>(
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
    pub(super) fn allocators<'a>(
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
                // The others are sums of slots: TOTAL and FREE.
                let objects = captured.flat_map(|captured| &captured.objects);
                for (name, count) in objects.filter(|(name, _)| name.starts_with("T_")) {
                    *types.entry(name).or_insert(0) += count;
                }
                types.into_iter().map(|(name, count)| {
                    (and(labels_of(place), [("type", name.clone())]), count as f64)
                })
            }),
        );
    }

    /// The owners that hold most memory.
    pub(super) fn owners<'a>(
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
    pub(super) fn treatment<'a>(
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
}

#[cfg(test)]
mod tests {
    use super::super::tests::owner;
    use super::*;

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
}
