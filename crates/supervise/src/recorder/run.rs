//! A run of a comparison as a recording: what the kernel counts of it, and no causes, which would hold it up.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use capture::proc::Member;
use formats::{EndReason, Line, RecordingEnd, RecordingStart, milliseconds};

use super::sample::sample;
use super::{Journal, Roll};
use crate::Error;

pub(crate) struct RunRecorder {
    journal: Journal,
    roll: Roll,
    samples: u64,
}

impl RunRecorder {
    /// Begins a recording in the file at `path` of the command `words`, which was just started as process `pid`
    /// and is looked at after each `every`. Runs of one `label` are drawn alike.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn begin(
        path: &Path,
        pid: i32,
        words: Vec<String>,
        label: &str,
        every: Duration,
    ) -> Result<Self, Error> {
        let mut journal = Journal::create(path, None)?;
        journal.write(&Line::Start(RecordingStart {
            rbloat: env!("CARGO_PKG_VERSION").into(),
            unix_ms: unix_ms(),
            pid,
            command: Some(words),
            every_ms: every.as_millis() as u64,
            causes_every_ms: None,
            label: Some(label.into()),
        }))?;
        Ok(Self { journal, roll: Roll::default(), samples: 0 })
    }

    /// Writes down what was counted at a time after the beginning.
    pub(crate) fn add(&mut self, at: Duration, members: &[Member]) -> Result<(), Error> {
        let t_ms = at.as_millis() as u64;
        for line in self.roll.call(t_ms, members) {
            self.journal.write(&line)?;
        }
        self.samples += 1;
        let members: Vec<_> = members.iter().map(|member| (member.clone(), None)).collect();
        let recorder_cpu_ms = milliseconds(capture::proc::own_cpu_time());
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
            recorder_cpu_ms: milliseconds(capture::proc::own_cpu_time()),
        }))
    }
}

/// The time of the machine's clock, in ms since 1970.
pub fn unix_ms() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
