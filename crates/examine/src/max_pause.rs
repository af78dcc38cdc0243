//! The limit of a pause, and what is said if it was too short.

use std::time::Duration;

use formats::{CaptureMethod, Unread, milliseconds};
use linux::PauseFactors;

/// The limit of a pause unless the user sets one: a constant part, a part for each resident GiB, and the largest value.
/// docs/measurements.md has the pauses of major collections beside it.
const CONSTANT: Duration = Duration::from_millis(50);
const PER_GIB: Duration = Duration::from_millis(25);

/// The largest limit of a pause unless the user sets one.
pub const LARGEST: Duration = Duration::from_millis(500);
const COMPUTING: Duration = Duration::from_millis(250);

/// The limit that a refusal suggests is this multiple of the expected pause, in steps of 100 ms.
const SPARE: u32 = 2;
const STEP_MS: u128 = 100;

/// Returns the limit for a process with these factors, unless the user sets one. If the load of the machine prolongs our pause, it prolongs
/// the pauses of the process's own GC, too.
pub(crate) fn default_for(factors: &PauseFactors) -> Duration {
    let gib = factors.resident_bytes as f64 / (1_u64 << 30) as f64;
    let limit = CONSTANT + PER_GIB.mul_f64(gib);
    limit.mul_f64(factors.slowdown()).min(LARGEST)
}

/// Returns the limit for a process that only computes, unless the user sets one: no thread of it waits for a request, and it can be read
/// only while it is paused.
pub(crate) fn default_for_computing(factors: &PauseFactors) -> Duration {
    COMPUTING.mul_f64(factors.slowdown()).min(LARGEST).max(default_for(factors))
}

/// Returns the limit to suggest to a user if a pause is expected to take this time.
#[must_use]
pub fn enough_for(expected: Duration) -> Duration {
    let ms = (expected * SPARE).as_millis().next_multiple_of(STEP_MS);
    Duration::from_millis(ms as u64)
}

/// Returns the shortest pause in which the memory could have been read, if the walks of a freeze take `walk`.
pub(crate) fn unread(
    factors: &PauseFactors,
    max_pause: Duration,
    walk: Duration,
    copy_is_slow: bool,
) -> Unread {
    let (fork, freeze) = (factors.fork(), factors.freeze() + walk);
    let (method, expected) = match copy_is_slow && fork < freeze {
        true => (CaptureMethod::Fork, fork),
        false => (CaptureMethod::Freeze, freeze),
    };
    // An estimate below the limit was too low.
    let expected = expected.max(max_pause);
    Unread {
        method,
        expected_ms: milliseconds(expected),
        max_pause_ms: milliseconds(max_pause),
        enough_ms: enough_for(expected).as_millis() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn factors(resident_bytes: u64, load: f64, urgent: bool) -> PauseFactors {
        let (threads, mappings) = (25, 500);
        let anonymous_bytes = resident_bytes;
        PauseFactors { threads, mappings, resident_bytes, anonymous_bytes, load, urgent }
    }

    #[test]
    fn the_default_limit_is_enough_for_a_copy_of_any_size_up_to_30_gib() {
        for load in [1.0, 3.0] {
            for gib in 0..=30 {
                let it = factors(gib * GIB, load, true);
                assert!(it.fork() < default_for(&it), "{gib} GiB");
            }
        }
        let small = factors(GIB / 4, 1.0, true);
        assert!(default_for(&small) < Duration::from_millis(60));
        assert_eq!(default_for(&factors(100 * GIB, 1.0, true)), LARGEST);
    }

    /// A process of 5 GB on a machine with a load of 3 was not read without the right to a real-time priority.
    #[test]
    fn the_default_limit_of_an_unprivileged_user_follows_the_load() {
        for gib in 0..=8 {
            let it = factors(gib * GIB, 3.0, false);
            assert!(it.fork() < default_for(&it), "{gib} GiB");
        }
        assert_eq!(default_for(&factors(20 * GIB, 3.0, false)), LARGEST);
    }

    /// `ruby -e 'loop {}'`, which has 13 MiB, was not read in 50 ms.
    #[test]
    fn a_process_that_computes_may_be_paused_for_longer() {
        let limit = |gib, load, urgent| default_for_computing(&factors(gib * GIB, load, urgent));
        assert_eq!(limit(0, 1.0, true), COMPUTING);
        assert_eq!(limit(0, 3.0, true), COMPUTING);
        assert_eq!(limit(0, 3.0, false), LARGEST);
        assert_eq!(limit(30, 1.0, true), LARGEST);
    }

    #[test]
    fn a_refusal_names_the_shortest_pause_and_a_limit_that_is_enough() {
        let it = factors(5 * GIB, 1.0, true);
        let (limit, walk) = (Duration::from_millis(50), Duration::from_secs(1));
        let copy = unread(&it, limit, walk, true);
        assert_eq!((copy.method, copy.max_pause_ms), (CaptureMethod::Fork, 50.0));
        assert_eq!(copy.expected_ms, milliseconds(it.fork()));
        assert_eq!(copy.enough_ms, 200);
        // No copy can be made.
        let freeze = unread(&it, limit, walk, false);
        assert_eq!(
            (freeze.method, freeze.expected_ms),
            (CaptureMethod::Freeze, milliseconds(it.freeze() + walk))
        );
        assert!(freeze.enough_ms as f64 >= 2.0 * freeze.expected_ms);
        // It took longer than expected.
        let late = unread(&it, Duration::from_secs(2), walk, false);
        assert_eq!((late.expected_ms, late.enough_ms), (2000.0, 4000));
    }
}
