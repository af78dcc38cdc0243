//! Reads the file of a recording.

use std::io::{BufRead, Read};

use serde::Deserialize;

use crate::line::{
    Arrival, CauseSample, Line, READ_SCHEMAS, RecordingEnd, RecordingStart, SCHEMA, Sample,
};
use crate::report::check_causes;
use crate::{GrowthSample, Kept, WhoFrame, untrusted};

/// The maximum size of a recording. That of ten processes over a week is smaller.
const MAX_BYTES: u64 = 2 << 30;
/// More bytes than a line has, also with the stacks of many threads.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// A recording, as far as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// The first line.
    pub start: RecordingStart,
    /// The lines after the first one, in their order.
    pub lines: Vec<Line>,
    /// The frames of the stacks of all lines.
    pub frames: Vec<WhoFrame>,
}

/// The reason why a file cannot be read as a recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// The first line is not that of a recording.
    #[error("it is not a recording: its first line is not that of `rbloat record`")]
    NotARecording,
    /// The recording has another version.
    #[error("the recording has version {0}, but this rbloat reads versions {oldest}-{SCHEMA}", oldest = READ_SCHEMAS.start())]
    OtherVersion(u64),
    /// The recording is larger than any that rbloat writes.
    #[error("it is larger than {} GiB", MAX_BYTES >> 30)]
    TooLarge,
    /// The file cannot be read. The text is the system's.
    #[error("{0}")]
    Unreadable(String),
    /// A complete line cannot be parsed.
    #[error("line {number} is invalid: {what}")]
    Line {
        /// The line's number, from 1.
        number: usize,
        /// The parser's message.
        what: String,
    },
}

#[derive(Deserialize)]
struct Version {
    schema: u64,
}

impl Recording {
    /// Reads a recording. An incomplete last line is skipped: the recorder was killed, or is writing it.
    ///
    /// # Errors
    /// If the file is not a recording, or a line is invalid.
    pub fn read(mut from: impl BufRead) -> Result<Self, RecordingError> {
        let mut line = Vec::new();
        let (mut number, mut bytes) = (0, 0);
        // Reads the next line; false at the end, or if the last line is incomplete.
        let mut next = |line: &mut Vec<u8>| {
            line.clear();
            number += 1;
            let mut limited = from.by_ref().take(MAX_LINE_BYTES);
            let read = limited.read_until(b'\n', line);
            bytes += read.map_err(|error| RecordingError::Unreadable(error.to_string()))? as u64;
            if bytes > MAX_BYTES {
                return Err(RecordingError::TooLarge);
            }
            match line.last() {
                Some(b'\n') => Ok(Some(number)),
                _ if line.len() as u64 == MAX_LINE_BYTES => {
                    let what = format!("it is longer than {} MiB", MAX_LINE_BYTES >> 20);
                    Err(RecordingError::Line { number, what })
                }
                _ => Ok(None),
            }
        };
        if next(&mut line)?.is_none() {
            return Err(RecordingError::NotARecording);
        }
        let Version { schema } =
            serde_json::from_slice(&line).map_err(|_| RecordingError::NotARecording)?;
        if !READ_SCHEMAS.contains(&schema) {
            return Err(RecordingError::OtherVersion(schema));
        }
        let Ok(Line::Start(start)) = untrusted::parse(&line) else {
            return Err(RecordingError::NotARecording);
        };
        let (mut lines, mut frames) = (Vec::new(), Vec::new());
        while let Some(number) = next(&mut line)? {
            let line = parse(&line, &mut frames);
            lines.push(line.map_err(|what| RecordingError::Line { number, what })?);
        }
        Ok(Self { start, lines, frames })
    }

    /// The samples, by their time.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.lines.iter().filter_map(|line| match line {
            Line::Sample(sample) => Some(sample),
            _ => None,
        })
    }

    /// The causes, by their time.
    pub fn causes(&self) -> impl Iterator<Item = &CauseSample> {
        self.lines.iter().filter_map(|line| match line {
            Line::Causes(causes) => Some(causes),
            _ => None,
        })
    }

    /// The growth by code, by its time.
    pub fn growth(&self) -> impl Iterator<Item = &GrowthSample> {
        self.lines.iter().filter_map(|line| match line {
            Line::Growth(growth) => Some(growth),
            _ => None,
        })
    }

    /// The last result of `--kept`; `None` if there is none.
    #[must_use]
    pub fn kept(&self) -> Option<&Kept> {
        self.lines.iter().rev().find_map(|line| match line {
            Line::Kept(it) => Some(&it.kept),
            _ => None,
        })
    }

    /// The processes, by the time at which they were first seen.
    pub fn processes(&self) -> impl Iterator<Item = &Arrival> {
        self.lines.iter().filter_map(|line| match line {
            Line::Process(process) => Some(process),
            _ => None,
        })
    }

    /// The last line; `None` if the recorder was killed or is still running.
    #[must_use]
    pub fn end(&self) -> Option<&RecordingEnd> {
        self.lines.iter().rev().find_map(|line| match line {
            Line::End(end) => Some(end),
            _ => None,
        })
    }

    /// The length of the recording, in ms.
    #[must_use]
    pub fn length_ms(&self) -> u64 {
        self.lines.iter().filter_map(Line::t_ms).max().unwrap_or(0)
    }
}

/// Parses a line after those that have `frames`. The causes of a process must add up to its RSS.
fn parse(line: &[u8], frames: &mut Vec<WhoFrame>) -> Result<Line, String> {
    let mut line = untrusted::parse(line)?;
    match &mut line {
        Line::Causes(causes) => check_causes(&causes.causes, causes.rss_bytes)?,
        Line::Growth(growth) => growth.join(frames)?,
        _ => {}
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::ReadFailure;

    fn recording() -> Recording {
        let start = RecordingStart {
            rbloat: "0.1.0".into(),
            unix_ms: 1,
            pid: 42,
            command: Some(vec!["ruby".into(), "a b.rb".into()]),
            every_ms: 1000,
            causes_every_ms: None,
            label: None,
        };
        let sample = |t_ms: u64| {
            Line::Sample(Sample {
                t_ms,
                rss_bytes: t_ms * 7,
                uss_bytes: Some(3),
                recorder_cpu_ms: 0.25,
                ..Sample::default()
            })
        };
        let failure = ReadFailure { t_ms: 1500, pid: 42, what: "\\n\"".into() };
        let lines = vec![sample(0), sample(1000), Line::Failure(failure)];
        Recording { start, lines, frames: Vec::new() }
    }

    fn written(recording: &Recording) -> String {
        let start = Line::Start(recording.start.clone());
        [start].iter().chain(&recording.lines).map(Line::to_json).collect()
    }

    #[test]
    fn what_was_written_is_read_at_whatever_byte_it_was_cut_off() {
        let recording = recording();
        let text = written(&recording);
        assert_eq!(text.lines().count(), 4);
        assert!(text.lines().all(|line| line.starts_with(r#"{"schema":1,"kind":""#)), "{text}");
        assert_eq!(Recording::read(text.as_bytes()).unwrap(), recording);
        assert_eq!(recording.length_ms(), 1500);
        let first = text.find('\n').unwrap() + 1;
        for end in 0..text.len() {
            let read = Recording::read(&text.as_bytes()[..end]);
            if end < first {
                assert_eq!(read, Err(RecordingError::NotARecording));
            } else {
                let lines = text[first..end].matches('\n').count();
                assert_eq!(read.unwrap().lines, recording.lines[..lines]);
            }
        }
    }

    #[test]
    fn no_text_of_a_recording_controls_the_terminal() {
        let mut recording = recording();
        recording.start.label = Some("a\n\u{1b}]0;b".into());
        let read = Recording::read(written(&recording).as_bytes()).unwrap();
        assert_eq!(read.start.label.as_deref(), Some("a  ]0;b"));
    }

    #[test]
    fn a_line_whose_numbers_do_not_fit_together_is_refused() {
        let with = |line: &str| written(&recording()) + line + "\n";
        let causes = |rss_bytes: u64| {
            format!(
                r#"{{"schema":1,"kind":"causes","t_ms":1,"pid":1,"started_ticks":1,"command":"","ruby_version":null,"allocator":"glibc",
                "rss_bytes":{rss_bytes},"causes":[{{"cause":"unknown","bytes":4096}}],"verdict":"healthy","trim_yield_bytes":null,
                "slots_live":null,"slots_free":null,"method":"fork","pause_ms":1,"recorder_cpu_ms":1}}"#
            )
            .replace('\n', "")
        };
        assert!(Recording::read(with(&causes(4096)).as_bytes()).is_ok());
        let error = |line: &str| Recording::read(with(line).as_bytes()).unwrap_err().to_string();
        let expected = "line 5 is invalid: its causes add up to 4096 bytes, but RSS is 4095 bytes";
        assert_eq!(error(&causes(4095)), expected);
        let failure =
            r#"{"schema":1,"kind":"failure","t_ms":18446744073709551615,"pid":1,"what":""}"#;
        assert!(error(failure).contains("the numbers are too large"));
    }

    #[test]
    fn later_kinds_and_fields_are_passed_over_and_nonsense_is_told_with_its_line() {
        let text = written(&recording());
        let later = text
            .replace("\"failure\"", "\"a_later_kind\"")
            .replace("\"exact\"", "\"new\":[1],\"exact\"");
        let lines = Recording::read(later.as_bytes()).unwrap().lines;
        assert_eq!(lines[2], Line::Unknown);
        assert_eq!(lines[..2], recording().lines[..2]);
        let of = |text: &str| Recording::read(text.as_bytes());
        let broken = text.replacen("\"exact\"", "\"exact", 1);
        assert!(matches!(of(&broken), Err(RecordingError::Line { number: 2, .. })));
        let next = text.replacen("\"schema\":1", "\"schema\":2", 1);
        assert_eq!(of(&next), Err(RecordingError::OtherVersion(2)));
        let first = format!("{}\n", text.lines().next().unwrap());
        let endless = first.as_bytes().chain(std::io::repeat(b' '));
        let read = Recording::read(std::io::BufReader::new(endless));
        assert!(matches!(read, Err(RecordingError::Line { number: 2, .. })));
        for other in ["", "{}\n", "\u{0}\n", "{\"schema\":1,\"kind\":\"sample\"}\n"] {
            assert_eq!(of(other), Err(RecordingError::NotARecording), "{other}");
        }
    }
}
