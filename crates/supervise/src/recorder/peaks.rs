//! The processes whose RSS is higher than it was when their memory was last explained.

use std::collections::BTreeMap;

use formats::Sample;

/// A new peak exceeds the last one that was explained by this fraction, and these bytes.
const RISE: u64 = 10;
const MIN_RISE_BYTES: u64 = 1 << 20;
/// A spike doubles RSS, and adds these bytes. A process has few such peaks in its life, so they need not wait for their turn.
const MIN_SPIKE_BYTES: u64 = 16 << 20;

/// A process's id and start time.
type ProcessId = (i32, u64);

/// The peaks of all living processes.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    peaks: BTreeMap<ProcessId, Peak>,
}

#[derive(Debug)]
struct Peak {
    /// RSS when the process was first seen, or its memory was last explained.
    explained_bytes: u64,
    rss_bytes: u64,
}

impl Peaks {
    pub(super) fn update(&mut self, sample: &Sample) {
        let mut before = std::mem::take(&mut self.peaks);
        for process in &sample.processes {
            let (id, rss) = ((process.pid, process.started_ticks), process.rss_bytes);
            let explained = before.remove(&id).map_or(rss, |before| before.explained_bytes);
            let peak = Peak { explained_bytes: explained, rss_bytes: rss };
            self.peaks.insert(id, peak);
        }
    }

    /// Returns the process to explain, if there is one: that with the greatest rise. It is explained while it may still rise: a
    /// spike can be over at the next sample.
    pub(super) fn unexplained(&self) -> Option<ProcessId> {
        let due = self.peaks.iter().filter(|(_, peak)| peak.is_new());
        due.max_by_key(|(_, peak)| peak.rss_bytes - peak.explained_bytes).map(|(id, _)| *id)
    }

    /// Returns true if the process has so high a peak that it is explained at once, however short ago the last one was.
    pub(super) fn is_spike(&self, id: ProcessId) -> bool {
        self.peaks.get(&id).is_some_and(|peak| {
            let explained = peak.explained_bytes;
            peak.rss_bytes >= explained.saturating_add(explained.max(MIN_SPIKE_BYTES))
        })
    }

    /// Notes that the memory of a process was explained.
    pub(super) fn explain(&mut self, id: ProcessId) {
        if let Some(peak) = self.peaks.get_mut(&id) {
            peak.explained_bytes = peak.rss_bytes;
        }
    }
}

impl Peak {
    fn is_new(&self) -> bool {
        let explained = self.explained_bytes;
        self.rss_bytes > explained.saturating_add((explained / RISE).max(MIN_RISE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use formats::ProcessSample;

    use super::*;

    fn sample(mib: u64) -> Sample {
        let rss_bytes = mib << 20;
        let process =
            ProcessSample { pid: 7, started_ticks: 1, rss_bytes, ..ProcessSample::default() };
        Sample { rss_bytes, processes: vec![process], ..Sample::default() }
    }

    /// The indices of samples at which the process was explained.
    fn explained(series: &[u64]) -> Vec<usize> {
        let mut peaks = Peaks::default();
        let mut at = Vec::new();
        for (index, &mib) in series.iter().enumerate() {
            peaks.update(&sample(mib));
            if let Some(id) = peaks.unexplained() {
                peaks.explain(id);
                at.push(index);
            }
        }
        at
    }

    #[test]
    fn a_peak_is_explained_when_it_is_reached_and_not_again_at_the_same_height() {
        assert!(explained(&[100, 109, 100, 109]).is_empty());
        assert_eq!(explained(&[100, 200, 200, 230, 230]), [1, 3]);
        assert_eq!(explained(&[100, 150, 160, 300, 300, 300, 120, 300, 320]), [1, 3]);
    }

    #[test]
    fn a_spike_is_explained_before_it_is_over() {
        assert_eq!(explained(&[13, 400, 13, 13]), [1]);
        let mut peaks = Peaks::default();
        let spikes = [13, 15, 70, 90, 200, 13, 201].map(|mib| {
            peaks.update(&sample(mib));
            let id = peaks.unexplained();
            let is_spike = id.is_some_and(|id| peaks.is_spike(id));
            id.into_iter().filter(|_| is_spike).for_each(|id| peaks.explain(id));
            is_spike
        });
        assert_eq!(spikes, [false, false, true, false, true, false, false]);
    }

    #[test]
    fn a_process_that_never_stops_growing_is_explained_too() {
        let series: Vec<u64> = (0..30).map(|step| 100 + 20 * step).collect();
        assert_eq!(explained(&series)[..3], [1, 2, 3]);
    }

    #[test]
    fn a_process_that_has_ended_is_forgotten() {
        let mut peaks = Peaks::default();
        peaks.update(&sample(100));
        peaks.update(&sample(200));
        let mut empty = sample(200);
        empty.processes.clear();
        peaks.update(&empty);
        assert_eq!(peaks.unexplained(), None);
    }
}
