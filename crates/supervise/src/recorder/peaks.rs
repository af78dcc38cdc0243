//! The processes whose RSS is higher than it was when their memory was last explained.

use std::collections::BTreeMap;

use formats::Sample;

/// A new peak exceeds the last one that was explained by this fraction, and these bytes.
const RISE: u64 = 10;
const MIN_RISE_BYTES: u64 = 1 << 20;
/// A process still grows if its RSS exceeds the last one by this fraction. It is explained after so many samples all the same.
const STILL_GROWING: u64 = 100;
const MAX_WAIT: u32 = 10;

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
    /// The number of samples since RSS exceeds `explained_bytes` enough; 0 if it does not.
    waited: u32,
    is_growing: bool,
}

impl Peaks {
    pub(super) fn update(&mut self, sample: &Sample) {
        let mut before = std::mem::take(&mut self.peaks);
        for process in &sample.processes {
            let (id, rss) = ((process.pid, process.started_ticks), process.rss_bytes);
            let peak = before.remove(&id).map_or_else(
                || Peak { explained_bytes: rss, rss_bytes: rss, waited: 0, is_growing: false },
                |before| before.next(rss),
            );
            self.peaks.insert(id, peak);
        }
    }

    /// Returns the process to explain, if there is one: that with the greatest rise.
    pub(super) fn unexplained(&self) -> Option<ProcessId> {
        let is_due = |it: &Peak| it.waited > 0 && (!it.is_growing || it.waited > MAX_WAIT);
        let due = self.peaks.iter().filter(|(_, peak)| is_due(peak));
        due.max_by_key(|(_, peak)| peak.rss_bytes - peak.explained_bytes).map(|(id, _)| *id)
    }

    /// Notes that the memory of a process was explained.
    pub(super) fn explain(&mut self, id: ProcessId) {
        if let Some(peak) = self.peaks.get_mut(&id) {
            (peak.explained_bytes, peak.waited) = (peak.rss_bytes, 0);
        }
    }
}

impl Peak {
    fn next(self, rss: u64) -> Self {
        let explained = self.explained_bytes;
        let is_peak = rss > explained.saturating_add((explained / RISE).max(MIN_RISE_BYTES));
        Self {
            explained_bytes: explained,
            rss_bytes: rss,
            waited: if is_peak { self.waited + 1 } else { 0 },
            is_growing: rss > self.rss_bytes + self.rss_bytes / STILL_GROWING,
        }
    }
}

#[cfg(test)]
mod tests {
    use formats::ProcessSample;

    use super::*;

    fn sample(mib: u64) -> Sample {
        let process = ProcessSample {
            pid: 7,
            started_ticks: 1,
            state: 'S',
            rss_bytes: mib << 20,
            pss_bytes: None,
            uss_bytes: None,
            swap_bytes: None,
            user_ms: 0,
            system_ms: 0,
            minor_faults: 0,
            major_faults: 0,
            threads: 1,
        };
        Sample {
            t_ms: 0,
            exact: false,
            rss_bytes: mib << 20,
            pss_bytes: None,
            uss_bytes: None,
            swap_bytes: None,
            processes: vec![process],
            group: None,
            recorder_cpu_ms: 0.0,
        }
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
        // Not while it rises, and before it has passed.
        assert_eq!(explained(&[100, 150, 200, 300, 300, 300, 120, 300, 320]), [4]);
        assert_eq!(explained(&[100, 150, 200, 300, 280]), [4]);
        assert_eq!(explained(&[100, 200, 200, 230, 230]), [2, 4]);
    }

    #[test]
    fn a_process_that_never_stops_growing_is_explained_too() {
        let series: Vec<u64> = (0..30).map(|step| 100 + 20 * step).collect();
        assert_eq!(explained(&series).first(), Some(&(MAX_WAIT as usize + 1)));
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
