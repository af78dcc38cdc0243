//! The recording of one run of a comparison. It has no causes: capturing them would slow the run down.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use formats::{EndReason, Line, RecordingEnd, RecordingStart, milliseconds};
use linux::proc::Member;

use super::sample::sample;
use super::{Journal, KnownProcesses};
use crate::Error;

pub(crate) struct RunRecorder {
    journal: Journal,
    known: KnownProcesses,
    samples: u64,
}

impl RunRecorder {
    /// Begins a recording. The command `words` was just started as process `pid`, and is sampled
    /// after each `every`. Runs with the same `label` are drawn alike.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn begin(
        mut journal: Journal,
        pid: i32,
        words: Vec<String>,
        label: &str,
        every: Duration,
    ) -> Result<Self, Error> {
        journal.write(&Line::Start(RecordingStart {
            rbloat: env!("CARGO_PKG_VERSION").into(),
            unix_ms: unix_ms(),
            pid,
            command: Some(words),
            every_ms: every.as_millis() as u64,
            causes_every_ms: None,
            label: Some(label.into()),
        }))?;
        Ok(Self { journal, known: KnownProcesses::default(), samples: 0 })
    }

    /// Writes a sample that was taken `at` this time after the beginning.
    pub(crate) fn add(&mut self, at: Duration, members: &[Member]) -> Result<(), Error> {
        let t_ms = at.as_millis() as u64;
        for line in self.known.update(t_ms, members) {
            self.journal.write(&line)?;
        }
        self.samples += 1;
        let members: Vec<_> = members.iter().map(|member| (member.clone(), None)).collect();
        let recorder_cpu_ms = milliseconds(linux::proc::own_cpu_time());
        self.journal.write(&Line::Sample(sample(t_ms, &members, None, recorder_cpu_ms)))
    }

    /// Writes the last line.
    pub(crate) fn end(mut self, at: Duration, why: EndReason) -> Result<(), Error> {
        self.journal.write(&Line::End(RecordingEnd {
            t_ms: at.as_millis() as u64,
            why,
            exit_status: None,
            signal: None,
            samples: self.samples,
            exact_samples: 0,
            captures: 0,
            searches: None,
            searches_planned: None,
            recorder_cpu_ms: milliseconds(linux::proc::own_cpu_time()),
        }))
    }
}

/// Returns the time of the machine's clock, in ms since 1970.
pub fn unix_ms() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
