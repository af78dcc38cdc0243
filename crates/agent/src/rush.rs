//! Notices that a group will be full within a second, some milliseconds after it began to grow.

use std::collections::VecDeque;
use std::time::Duration;

use crate::trigger::HALF;

/// A group rushes to its limit if it uses this part of the room in this time, and at least this part of the limit: groups that are
/// nearly full go up and down by small amounts.
const PART_OF_ROOM: f64 = 0.2;
const MOMENT: Duration = Duration::from_millis(100);
const PART_OF_LIMIT: f64 = 0.01;
/// There is no time for a forked copy if this part of the room was used in the latest second.
const PART_IN_SECOND: f64 = 0.5;
const SECOND: Duration = Duration::from_secs(1);
/// Two processors that touch new memory as fast as they can, in bytes a second.
const FASTEST: f64 = (4_u64 << 30) as f64;
/// The shortest time between two readings.
pub(crate) const AT_LEAST: Duration = Duration::from_millis(5);
/// The time after a rush in which there is no other: a job that takes much memory again and again is not paused each time.
const AGAIN: Duration = Duration::from_secs(60);

/// The latest use of one group.
#[derive(Debug, Default)]
pub(crate) struct Rush {
    /// The readings of the latest second, and one before.
    readings: VecDeque<(Duration, u64)>,
    not_before: Duration,
}

impl Rush {
    /// Notes the bytes in use without caches at `now`. Returns true if the group rushes to its limit.
    pub(crate) fn read(&mut self, now: Duration, used: u64, limit: u64) -> bool {
        while self.readings.get(1).is_some_and(|(time, _)| *time + SECOND <= now) {
            self.readings.pop_front();
        }
        self.readings.push_back((now, used));
        let room = limit.saturating_sub(used) as f64;
        let least = (PART_OF_ROOM * room).max(PART_OF_LIMIT * limit as f64);
        let is_high = used as f64 >= HALF * limit as f64;
        now >= self.not_before && is_high && self.growth_in(MOMENT) >= least
    }

    /// Returns true if the group may be full before a forked copy is read.
    pub(crate) fn has_no_time(&self, limit: u64) -> bool {
        let Some((_, used)) = self.readings.back() else { return false };
        self.growth_in(SECOND) >= PART_IN_SECOND * limit.saturating_sub(*used) as f64
    }

    /// The growth in the latest time of this length.
    fn growth_in(&self, time: Duration) -> f64 {
        let Some((now, used)) = self.readings.back() else { return 0.0 };
        let mut readings = self.readings.iter().rev();
        // If none is so old, the oldest one.
        let earlier = readings.find(|(at, _)| *at + time <= *now).or(self.readings.front());
        earlier.map_or(0.0, |(at, before)| {
            let times = now.saturating_sub(*at).as_secs_f64() / time.as_secs_f64();
            used.saturating_sub(*before) as f64 / times.max(1.0)
        })
    }

    /// Corrects the latest reading: the size of the caches may have been an old one.
    pub(crate) fn read_again(&mut self, now: Duration, used: u64, limit: u64) -> bool {
        self.readings.pop_back();
        self.read(now, used, limit)
    }

    /// Notes that a process of the group was paused at `now`.
    pub(crate) fn done(&mut self, now: Duration) {
        self.not_before = now + AGAIN;
    }
}

/// The time in which a group with this use cannot begin to rush unseen: it would take half of the room that decides.
pub(crate) fn wait(used: u64, limit: u64) -> Duration {
    let (used, limit) = (used as f64, limit as f64);
    let below_half = (HALF * limit - used).max(0.0);
    let room = (limit - used.max(HALF * limit)).max(0.0);
    let bytes = below_half + room * PART_OF_ROOM / 2.0;
    Duration::from_secs_f64(bytes / FASTEST).max(AT_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    /// The use at the first rush of a group with this limit that uses `use_at(milliseconds)`, read as often as it should be.
    fn rush(limit: u64, use_at: impl Fn(u64) -> u64) -> Option<u64> {
        let (mut rush, mut now) = (Rush::default(), Duration::ZERO);
        while now < 10_000 * MS {
            let used = use_at(now.as_millis() as u64).min(limit);
            if rush.read(now, used, limit) {
                return Some(used);
            }
            now += wait(used, limit);
        }
        None
    }

    #[test]
    fn a_fill_is_noticed_while_there_is_time_for_a_capture() {
        for (limit, mib_per_second, least_ms_left) in [
            (300 * MIB, 50, 400),
            (300 * MIB, 500, 200),
            (300 * MIB, 2000, 40),
            (4096 * MIB, 500, 400),
            (4096 * MIB, 2000, 400),
        ] {
            let used = rush(limit, |ms| limit / 3 + ms * mib_per_second * MIB / 1000);
            let left = limit - used.unwrap_or(limit);
            let ms_left = left * 1000 / (mib_per_second * MIB);
            assert!(ms_left >= least_ms_left, "{mib_per_second} MiB/s: {ms_left} ms");
        }
    }

    #[test]
    fn what_is_usual_is_no_rush() {
        let limit = 512 * MIB;
        // Boots to 60 %, and stays.
        assert_eq!(rush(limit, |ms| (ms * MIB / 8).min(limit * 6 / 10)), None);
        // Requests with 10 MiB each, at 80 %.
        assert_eq!(rush(limit, |ms| limit * 8 / 10 + (ms / 50 % 2) * 10 * MIB), None);
        // A group that is nearly full, and goes up and down by less than a hundredth.
        assert_eq!(rush(limit, |ms| limit - 6 * MIB + (ms / 50 % 2) * 5 * MIB), None);
        // A leak.
        assert_eq!(rush(limit, |ms| limit * 9 / 10 + ms * MIB / 200), None);
        // Any growth below half of the limit.
        assert_eq!(rush(limit, |ms| (ms / 200 % 2) * 250 * MIB), None);
    }

    #[test]
    fn caches_that_grow_are_no_rush() {
        let (mut rush, limit) = (Rush::default(), 300 * MIB);
        assert!(!rush.read(Duration::ZERO, 160 * MIB, limit));
        assert!(rush.read(20 * MS, 200 * MIB, limit));
        assert!(!rush.read_again(20 * MS, 161 * MIB, limit));
        assert!(!rush.read(40 * MS, 162 * MIB, limit));
    }

    #[test]
    fn a_group_that_is_read_seldom_has_a_rate_too_and_is_paused_once_a_minute() {
        let (mut rush, limit) = (Rush::default(), 300 * MIB);
        assert!(!rush.read(Duration::ZERO, 100 * MIB, limit));
        assert!(!rush.read(1000 * MS, 200 * MIB, limit));
        assert!(rush.has_no_time(limit));
        assert!(!rush.read(2100 * MS, 200 * MIB, limit) && !rush.has_no_time(limit));
        assert!(rush.read(2600 * MS, 290 * MIB, limit) && rush.has_no_time(limit));
        rush.done(2600 * MS);
        assert!(!rush.read(2620 * MS, 299 * MIB, limit));
        assert!(!rush.read(62_500 * MS, 160 * MIB, limit));
        assert!(rush.read(62_610 * MS, 200 * MIB, limit));
    }
}
