//! Decides when a control group that has a limit is worth a snapshot.

use std::collections::VecDeque;
use std::time::Duration;

use formats::Alarm;
use linux::proc::GroupMemory;

/// A group is near its limit from this part of it on.
pub(crate) const NEAR: f64 = 0.85;
/// It grows if it uses more than its least use so far by this part of the limit.
const RISE: f64 = 0.01;
/// Growth is fast if the limit would be met within this time. It counts from half of the limit on: programs that start grow fast, too.
const SOON: f64 = 30.0;
pub(crate) const HALF: f64 = 0.5;
/// Memory is short if the processes of a group wait for it for this part of the time.
const STALLED: f64 = 0.1;
/// The time over which growth and waits are measured, and the shortest one.
const WINDOW: f64 = 10.0;
const MIN_WINDOW: f64 = 2.0;
/// After a snapshot, another one follows when this part of the room is gone that was left.
const PART_OF_ROOM: f64 = 0.5;
/// A group whose use has fallen to this part of what it was at the last snapshot begins anew.
const FALLEN: f64 = 0.8;
/// The time to wait after an attempt that failed.
const RETRY: Duration = Duration::from_secs(5);

/// The state of one group.
#[derive(Debug, Default)]
pub(crate) struct Trigger {
    /// The latest readings: seconds, bytes in use without caches, and seconds for which processes have waited for memory.
    readings: VecDeque<(f64, f64, f64)>,
    /// The least use so far.
    least: Option<f64>,
    hits: Option<u64>,
    /// The use at the latest snapshot, and the limit.
    taken: Option<(f64, f64)>,
    /// The next attempt is not made before.
    not_before: Duration,
}

impl Trigger {
    /// Returns the reason why a snapshot should be taken at `now`, if there is one. `rushes` is true if the limit may be met within a
    /// second.
    pub(crate) fn read(
        &mut self,
        now: Duration,
        memory: GroupMemory,
        rushes: bool,
    ) -> Option<Alarm> {
        let limit = memory.limit_bytes? as f64;
        let (used, seconds) = (memory.used_bytes() as f64, now.as_secs_f64());
        let stalled = memory.stalled.map_or(0.0, |it| it.as_secs_f64());
        self.readings.push_back((seconds, used, stalled));
        while self.readings.front().is_some_and(|(time, ..)| *time < seconds - WINDOW) {
            self.readings.pop_front();
        }
        if self.taken.is_some_and(|(then, of)| used < FALLEN * then || of != limit) {
            self.taken = None;
            self.least = None;
        }
        let least = self.least.map_or(used, |least| least.min(used));
        self.least = Some(least);
        let hits_before = std::mem::replace(&mut self.hits, memory.limit_hits);
        let is_due = match self.taken {
            Some((then, of)) => used > then + PART_OF_ROOM * (of - then),
            None => true,
        };
        if !is_due || now < self.not_before && !rushes {
            return None;
        }
        let is_hit = hits_before.zip(memory.limit_hits).is_some_and(|(before, now)| now > before);
        if rushes {
            Some(Alarm::FastGrowth)
        } else if used >= NEAR * limit && used > least + RISE * limit {
            Some(Alarm::NearLimit)
        } else if is_hit && used >= HALF * limit {
            // A group that is full of caches meets its limit all the time, and one in which a process was killed met it before.
            Some(Alarm::LimitHit)
        } else if used >= HALF * limit && self.meets_limit_within(limit) < SOON {
            Some(Alarm::FastGrowth)
        } else if used >= HALF * limit && self.stalled_part() >= STALLED {
            Some(Alarm::Stalled)
        } else {
            None
        }
    }

    /// The seconds until the limit is met, if growth goes on as in the latest readings.
    fn meets_limit_within(&self, limit: f64) -> f64 {
        match self.window() {
            Some([(begin, before, _), (end, used, _)]) if used > before => {
                (limit - used) / ((used - before) / (end - begin))
            }
            _ => f64::INFINITY,
        }
    }

    /// The part of the time of the latest readings for which processes waited for memory.
    fn stalled_part(&self) -> f64 {
        self.window()
            .map_or(0.0, |[(begin, _, before), (end, _, now)]| (now - before) / (end - begin))
    }

    /// The first and the last of the latest readings, if there is enough time between them.
    fn window(&self) -> Option<[(f64, f64, f64); 2]> {
        let ends = [*self.readings.front()?, *self.readings.back()?];
        (ends[1].0 - ends[0].0 >= MIN_WINDOW).then_some(ends)
    }

    /// Notes the outcome of an attempt at `now`.
    pub(crate) fn done(&mut self, now: Duration, memory: GroupMemory, is_taken: bool) {
        match memory.limit_bytes {
            Some(limit) if is_taken => {
                self.taken = Some((memory.used_bytes() as f64, limit as f64));
            }
            _ => self.not_before = now + RETRY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn memory(used: u64, cache: u64, hits: u64) -> GroupMemory {
        GroupMemory {
            usage_bytes: used + cache,
            limit_bytes: Some(1000),
            cache_bytes: cache,
            shmem_bytes: 0,
            oom_kills: None,
            limit_hits: Some(hits),
            stalled: None,
        }
    }

    /// The alarms of a group that is read every ten seconds, with the use at that time. Each leads to a snapshot.
    fn alarms(readings: impl IntoIterator<Item = GroupMemory>) -> Vec<(u64, Alarm)> {
        let mut trigger = Trigger::default();
        let mut alarms = Vec::new();
        for (number, memory) in readings.into_iter().enumerate() {
            let now = 10 * SECOND * u32::try_from(number).unwrap();
            if let Some(alarm) = trigger.read(now, memory, false) {
                trigger.done(now, memory, true);
                alarms.push((memory.used_bytes(), alarm));
            }
        }
        alarms
    }

    #[test]
    fn a_group_that_fills_up_slowly_is_taken_several_times_and_one_that_stays_full_never() {
        let rising = alarms((500..1000).map(|used| memory(used, 0, 0)));
        let near = |used| (used, Alarm::NearLimit);
        assert_eq!(rising, [850, 926, 964, 983, 992, 997, 999].map(near));
        assert_eq!(alarms((0..500).map(|number| memory(950 + number % 5, 0, 0))), []);
        assert_eq!(
            alarms((500..1000).map(|used| GroupMemory { limit_bytes: None, ..memory(used, 0, 0) })),
            []
        );
    }

    #[test]
    fn a_group_that_was_emptied_begins_anew() {
        let once = (800..900).chain([300, 300]);
        let twice: Vec<u64> = once.clone().chain(once).collect();
        let found = alarms(twice.into_iter().map(|used| memory(used, 0, 0)));
        // It grows fast at the beginning of the second time.
        let uses: Vec<u64> = found.iter().map(|(used, _)| *used).collect();
        assert_eq!(uses, [850, 800]);
    }

    #[test]
    fn growth_is_fast_if_it_meets_the_limit_soon() {
        let fast = alarms([100, 200, 400, 600, 800].map(|used| memory(used, 0, 0)));
        assert_eq!(fast, [(600, Alarm::FastGrowth)]);
        assert_eq!(alarms([100, 200, 400, 600, 610].map(|used| memory(used, 0, 0))).len(), 1);
        assert_eq!(alarms([100, 150, 200, 250, 300].map(|used| memory(used, 0, 0))), []);
    }

    #[test]
    fn a_limit_that_is_met_counts_unless_caches_fill_the_group() {
        let hit = |used, cache| alarms([memory(used, cache, 3), memory(used, cache, 5)]);
        assert_eq!(hit(600, 300), [(600, Alarm::LimitHit)]);
        assert_eq!(hit(300, 600), []);
        // The process that filled the group was killed.
        assert_eq!(hit(300, 0), []);
    }

    #[test]
    fn processes_that_wait_for_memory_count_unless_there_is_much_room() {
        let waits = |used, ms: u64| {
            let stalled = |times| Some(Duration::from_millis(times * ms));
            alarms(
                (1..4).map(|times| GroupMemory { stalled: stalled(times), ..memory(used, 0, 0) }),
            )
        };
        assert_eq!(waits(700, 1000), [(700, Alarm::Stalled)]);
        assert_eq!(waits(700, 900), []);
        assert_eq!(waits(400, 1000), []);
        // What was before the first reading is unknown.
        let once = GroupMemory { stalled: Some(Duration::from_secs(1000)), ..memory(700, 0, 0) };
        assert_eq!(alarms([once, once]), []);
    }

    #[test]
    fn a_failed_attempt_is_repeated_some_seconds_later() {
        let mut trigger = Trigger::default();
        let full = memory(900, 0, 0);
        assert_eq!(trigger.read(Duration::ZERO, memory(500, 0, 0), false), None);
        assert_eq!(trigger.read(SECOND, full, false), Some(Alarm::NearLimit));
        trigger.done(SECOND, full, false);
        assert_eq!(trigger.read(2 * SECOND, full, false), None);
        // There may be no later.
        assert_eq!(trigger.read(3 * SECOND, full, true), Some(Alarm::FastGrowth));
        assert_eq!(trigger.read(7 * SECOND, full, false), Some(Alarm::NearLimit));
        trigger.done(7 * SECOND, full, true);
        assert_eq!(trigger.read(60 * SECOND, full, true), None);
        // Half of the room that was left is gone, and the rest will be at once.
        assert_eq!(trigger.read(61 * SECOND, memory(960, 0, 0), true), Some(Alarm::FastGrowth));
    }
}
