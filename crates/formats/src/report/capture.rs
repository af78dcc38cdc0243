use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The method and the time of the capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capture {
    /// The way in which the memory was read. The report of a snapshot has the method of the original capture.
    pub method: CaptureMethod,
    /// The reason for this method, as text. For a core: the file, and the program that wrote it.
    pub reason: String,
    /// The time of the capture, in ms since 1970. For a core: the time at which the file was written.
    pub unix_ms: u64,
    /// The total pause of the process, over all attempts. 0 for a core.
    pub pause_ms: f64,
    /// The total time that rbloat took.
    pub elapsed_ms: f64,
    /// True if everything in the report is from one instant. At present it always is.
    pub consistent: bool,
    /// Pages that the kernel copied while the forked copy existed, for any reason. `null` for a freeze and a core, and if it
    /// could not be measured.
    pub copied_bytes: Option<u64>,
    /// The reason why the memory was not read: the pause would have been too long. If it is not `null`, the exit status is 6.
    #[serde(default)]
    pub unread: Option<Unread>,
    /// The reason why no forked copy was made, if it can be removed. Otherwise `null`.
    #[serde(default)]
    pub no_copy: Option<NoCopy>,
}

/// The reason why no forked copy was made, if the user can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoCopy {
    /// rbloat lacks CAP_KILL.
    NotSignalled,
    /// The memory limit of the process was not found.
    UnknownLimit,
    /// The limit leaves no room for a copy.
    NoRoom,
}

/// The pause that reading the memory would have taken, if it was not read because the pause would have been too long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unread {
    /// The method with the shortest possible pause.
    pub method: CaptureMethod,
    /// That pause.
    pub expected_ms: f64,
    /// The limit.
    pub max_pause_ms: f64,
    /// A limit that should be enough.
    pub enough_ms: u64,
}

impl Capture {
    /// A capture at the time `at` that paused the process for `pause` (the sum of all pauses if it took several
    /// attempts), for a report that took `elapsed` in total. `copied_bytes` are the pages that the kernel copied while
    /// a forked copy existed.
    #[must_use]
    pub fn new(
        method: CaptureMethod,
        reason: String,
        at: SystemTime,
        pause: Duration,
        elapsed: Duration,
        copied_bytes: Option<u64>,
    ) -> Self {
        Self {
            method,
            reason,
            unix_ms: at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64),
            pause_ms: milliseconds(pause),
            elapsed_ms: milliseconds(elapsed),
            consistent: true,
            copied_bytes,
            unread: None,
            no_copy: None,
        }
    }

    /// The same capture, for a report that took `elapsed` in total.
    #[must_use]
    pub fn with_elapsed(self, elapsed: Duration) -> Self {
        Self { elapsed_ms: milliseconds(elapsed), ..self }
    }

    /// The same capture, before which no copy was made if `no_copy` has a value.
    #[must_use]
    pub fn with_no_copy(self, no_copy: Option<NoCopy>) -> Self {
        Self { no_copy, ..self }
    }

    /// The same capture, by which the memory was not read if `unread` has a value.
    #[must_use]
    pub fn with_unread(self, unread: Option<Unread>) -> Self {
        Self { unread, ..self }
    }
}

/// The method of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMethod {
    /// The process was paused while its memory was read.
    Freeze,
    /// The process was paused while the kernel made a forked copy, which was read afterwards.
    Fork,
    /// A core file was read.
    Core,
}

/// Returns a time in milliseconds, rounded to microseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
