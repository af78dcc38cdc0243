//! Which code allocates what stays.
//!
//! A clock ticks while a thread runs. At each tick the kernel copies registers, stack and free lists ([`ruby::TickProgram`]), in which
//! new objects are seen in the hands of the code that made them. Each is followed by reads of its slot, after collections, until it is
//! gone or the observation ends. A program that makes much garbage and keeps little is sampled like any other.

mod followed;
mod looks;
mod program;
mod rate;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use image::Image;
use linux::page_faults::now;
use linux::{Address, Clocks, Error, TickSource, proc};
use ruby::{CollectionCounts, Frame, RunningStacks, TickProgram};

use crate::kept::followed::{Followed, Majors, Verdict, survived_when_new};
use crate::kept::looks::Looks;
pub use crate::kept::program::{KeptProgram, KeptSearch, NotShown};
use crate::kept::rate::Rate;

/// The numbers of collections do not agree while one begins, and its thread may wait for a processor then: they are read again after this
/// time, so many times.
const WAIT: Duration = Duration::from_millis(2);
const MAX_WAITS: usize = 250;

/// The ticks of a second of a thread's processor time, at most: more cost the process several percent.
pub const MAX_RATE: u32 = 1000;
/// The time between two looks at the ring, and at the number of collections. It adapts to the time between collections.
const NAP: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_millis(10);
/// The time between two looks at objects about which a collection has not decided, at most.
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// The looks between two collections.
const LOOKS_PER_COLLECTION: u32 = 3;
/// The objects that are followed at the same time, at most. If there are more, every other one is forgotten, and of those to come only
/// every other one is followed.
const MAX_FOLLOWED: usize = 1 << 15;
/// Attempts of the last look, which a collection can disturb.
const LAST_LOOKS: usize = 50;
/// Different stacks that are kept, and their innermost frames.
const MAX_STACKS: usize = 1 << 14;
const MAX_FRAMES: usize = 128;
/// The seconds whose new objects are counted: twelve days. Later ones count together.
const MAX_SECONDS: usize = 1 << 20;

/// Samples the new objects of a process, and follows them.
pub struct KeptSampler {
    pid: i32,
    image: Image<'static>,
    stacks: RunningStacks,
    looks: Looks,
    tick: TickProgram,
    clocks: Option<Clocks>,
    rate: Rate,
    followed: HashMap<Address, Sample>,
    majors: Majors,
    /// The counts at the beginning, and at the last look.
    first: CollectionCounts,
    last: CollectionCounts,
    /// The number of collections when all objects were looked at, if all could be.
    looked: u64,
    undecided: Undecided,
    started: Instant,
    nap: Duration,
    stack_numbers: HashMap<Vec<u32>, u32>,
    thinning: Thinning,
    profile: KeptProfile,
}

/// An object that is followed, when it was seen, and by whom it was made.
struct Sample {
    followed: Followed,
    time: Duration,
    stack: u32,
}

/// The result: objects that were seen when they were new, and are still there.
#[derive(Debug, Clone, Default)]
pub struct KeptProfile {
    /// The frames of all stacks.
    pub frames: Vec<Frame>,
    /// Stacks as indices into `frames`, innermost first, from the frame on that held an object.
    pub stacks: Vec<Vec<u32>>,
    /// The objects that are old now.
    pub objects: Vec<KeptObject>,
    /// The objects that may still be there, but are not old yet.
    pub young: u64,
    /// The ticks.
    pub ticks: u64,
    /// The new objects that were seen.
    pub seen: u64,
    /// The same by the second of the observation: a process that has more to do sees more.
    pub seen_by_second: Vec<u32>,
    /// Those that could not be followed to the end, since too many collections passed between two looks or objects were moved.
    pub ambiguous: u64,
    /// Collections during the observation, and the major ones among them.
    pub collections: u64,
    /// The major ones, which free old objects.
    pub major_collections: u64,
    /// The time of the observation.
    pub elapsed: Duration,
}

/// An object that stayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptObject {
    /// Its slot.
    pub slot: Address,
    /// The stack of the code that made it.
    pub stack: u32,
    /// The time since it was new.
    pub age: Duration,
}

impl KeptSampler {
    /// Starts clocks that tick `rate` times in a second of the threads' processor time; up to five times as often if the process
    /// uses a part of a processor only, as far as the source has so many ticks.
    ///
    /// # Errors
    /// If the process has ended, or the kernel refuses: it needs CAP_BPF, CAP_PERFMON, and Linux 5.13.
    pub fn begin(
        pid: i32,
        program: KeptProgram,
        rate: u32,
        source: TickSource,
    ) -> Result<Self, Error> {
        let image = image::look(pid)?;
        let KeptProgram { stacks, lists, ages, collections, is_compiled } = program;
        let looks = Looks::new(ages, collections, &lists);
        let tick = TickProgram::new(stacks.context_path(), lists, collections, is_compiled);
        let rate = Rate::new(rate, source);
        let clocks = rate.start(pid, &tick)?;
        let first = (0..MAX_WAITS).find_map(|_| {
            let counts = looks.counts(&image);
            counts.is_none().then(|| std::thread::sleep(WAIT));
            counts
        });
        let first = first.ok_or(Error::NoSuchProcess { pid })?;
        let mut majors = Majors::default();
        majors.add(first);
        Ok(Self {
            pid,
            image,
            stacks,
            looks,
            tick,
            clocks: Some(clocks),
            rate,
            followed: HashMap::new(),
            majors,
            first,
            last: first,
            looked: first.all,
            undecided: Undecided::default(),
            started: Instant::now(),
            nap: *NAP.start(),
            stack_numbers: HashMap::new(),
            thinning: Thinning { one_of: 1, offered: 0 },
            profile: KeptProfile::default(),
        })
    }

    /// Waits for a short time, `time` at most, and takes what has arrived.
    pub fn step(&mut self, time: Duration) {
        std::thread::sleep(self.nap.min(time));
        self.count_collections();
        self.take_ticks();
        self.adapt_rate();
        if self.last.all != self.looked {
            self.look();
            self.undecided.wait(self.started.elapsed(), self.nap);
            return;
        }
        let is_marking = self.looks.is_marking(&self.image);
        if let Some(slots) = self.undecided.due(self.started.elapsed(), is_marking) {
            self.look_at(&slots);
        }
    }

    /// Replaces the clocks if the process has become busy or idle.
    fn adapt_rate(&mut self) {
        let (now, pid) = (self.started.elapsed(), self.pid);
        let Some(clocks) = &self.clocks else { return };
        let (seen, are_the_kernels) = (self.profile.ticks, clocks.are_the_kernels());
        if self.rate.change(now, seen, are_the_kernels, || proc::whole_cpu_time(pid))
            // If there are no new ones, the process has ended, or the old ones do.
            && let Ok(clocks) = self.rate.start(pid, &self.tick)
        {
            self.take_ticks();
            self.clocks = Some(clocks);
        }
    }

    /// Returns false if the process has ended, or runs another program.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn is_alive(&self) -> Result<bool, Error> {
        Ok(proc::lives(self.pid)? && self.stacks.is_of(&self.image))
    }

    /// Stops the clocks. Objects are followed on.
    pub fn stop(&mut self) {
        self.take_ticks();
        self.clocks = None;
        self.count();
    }

    /// Counts the time and the collections so far, while the clocks tick.
    fn count(&mut self) {
        self.profile.elapsed = self.started.elapsed();
        self.profile.collections = self.last.all.saturating_sub(self.first.all);
        self.profile.major_collections = self.last.major.saturating_sub(self.first.major);
    }

    /// Looks at all objects, and returns what is known so far.
    #[must_use]
    pub fn profile(&mut self) -> KeptProfile {
        if self.clocks.is_some() {
            self.count();
        }
        for _ in 0..LAST_LOOKS {
            self.count_collections();
            self.looked = u64::MAX;
            self.look();
            if self.looked != u64::MAX {
                break;
            }
            std::thread::sleep(*NAP.start());
        }
        let (now, is_sure) = (now(), self.looked != u64::MAX);
        let mut profile = self.profile.clone();
        for (&slot, sample) in &self.followed {
            match sample.followed.is_old() {
                true if is_sure => profile.objects.push(KeptObject {
                    slot,
                    stack: sample.stack,
                    age: now.saturating_sub(sample.time),
                }),
                true => profile.ambiguous += 1,
                false => profile.young += 1,
            }
        }
        profile.objects.sort_by_key(|it| it.slot);
        let frames = (0..).map_while(|number| self.stacks.frame(number).cloned());
        profile.frames = frames.collect();
        profile
    }

    /// Reads the number of collections, and adapts the time between two looks to it.
    fn count_collections(&mut self) {
        let Some(counts) = self.looks.counts(&self.image) else { return };
        if counts.compacting != self.last.compacting {
            // Any object may be elsewhere, and others with their age in its slot.
            self.profile.ambiguous += self.followed.len() as u64;
            self.followed.clear();
        }
        self.majors.add(counts);
        self.last = counts;
        let collections = counts.all.saturating_sub(self.first.all);
        let each = self.started.elapsed() / u32::try_from(collections).unwrap_or(u32::MAX).max(1);
        self.nap = (each / LOOKS_PER_COLLECTION).clamp(*NAP.start(), *NAP.end());
    }

    /// Takes the records of ticks, and begins to follow the new objects in them.
    fn take_ticks(&mut self) {
        let Some(mut clocks) = self.clocks.take() else { return };
        clocks.take(|time, record| self.take(time, record));
        self.clocks = Some(clocks);
    }

    fn take(&mut self, time: Duration, record: &[u8]) {
        self.profile.ticks += 1;
        let Some(tick) = self.tick.read(&self.image, &self.stacks, record) else { return };
        let mut sightings = tick.sightings(&self.image);
        if sightings.is_empty() {
            return;
        }
        if self.followed.len() >= MAX_FOLLOWED {
            self.thinning.halve(&mut self.followed);
        }
        let slots: Vec<Address> = sightings.iter().map(|it| it.slot).collect();
        let Some((counts, contents)) = self.looks.at(&self.image, &slots) else { return };
        self.majors.add(counts);
        let may_be_marking = || self.majors.may_be_latest(tick.collections);
        let is_marking = tick.is_marking.unwrap_or_else(may_be_marking);
        let survived = survived_when_new(tick.collections, is_marking);
        ruby::credit_callers(&mut sightings, |index| contents[index].is_some_and(|it| it.age == 0));
        let mut begun = Vec::new();
        for (sighting, contents) in sightings.into_iter().zip(contents) {
            let Some(contents) = contents else { continue };
            // Code often has an object in its hands at more than one tick: it is the first one's.
            let known = self.followed.get_mut(&sighting.slot).map(|it| &mut it.followed);
            let is_known = known.is_some_and(|known| {
                !known.is_old() && known.look(counts.all, None, contents) == Verdict::Same
            });
            let followed = Followed::begin(sighting.slot, survived, counts.all, contents);
            begun.extend(followed.filter(|_| !is_known).map(|it| (it, sighting.frame)));
        }
        if begun.is_empty() {
            return;
        }
        let frames = self.stacks.frames_of(&self.image, &tick.stack);
        // Of code that is not known, the callers have made nothing.
        let is_known = |frame| !tick.stack.hides(&self.image, frame);
        let are_known: Vec<bool> = begun.iter().map(|(_, frame)| is_known(*frame)).collect();
        for ((followed, frame), is_known) in begun.into_iter().zip(are_known) {
            let named = frames.iter().skip(frame).flatten().copied().filter(|_| is_known);
            let stack = named.take(MAX_FRAMES).collect();
            self.count_seen();
            if !self.thinning.takes_next() {
                continue;
            }
            if self.profile.stacks.len() >= MAX_STACKS {
                self.forget_stacks();
                if self.profile.stacks.len() > MAX_STACKS / 2 {
                    self.thinning.halve(&mut self.followed);
                    self.forget_stacks();
                }
            }
            if let Some(stack) = stack_number(&mut self.stack_numbers, &mut self.profile, stack) {
                if followed.is_undecided() {
                    self.undecided.add(followed.slot, self.started.elapsed(), self.nap);
                }
                self.followed.insert(followed.slot, Sample { followed, time, stack });
            }
        }
    }

    fn count_seen(&mut self) {
        self.profile.seen += 1;
        let second = (self.started.elapsed().as_secs() as usize).min(MAX_SECONDS);
        let seconds = &mut self.profile.seen_by_second;
        seconds.resize(seconds.len().max(second + 1), 0);
        seconds[second] = seconds[second].saturating_add(1);
    }

    /// Forgets the stacks of objects that are gone.
    fn forget_stacks(&mut self) {
        let stacks = std::mem::take(&mut self.profile.stacks);
        self.stack_numbers.clear();
        for sample in self.followed.values_mut() {
            let stack = stacks.get(sample.stack as usize).cloned().unwrap_or_default();
            let number = stack_number(&mut self.stack_numbers, &mut self.profile, stack);
            sample.stack = number.unwrap_or_default();
        }
    }

    /// Looks at the objects about which the latest collections tell something: young ones, and after a major one also old ones.
    fn look(&mut self) {
        let has_majors = self.majors.any();
        let is_due = |it: &&Sample| has_majors || !it.followed.is_old();
        let due = self.followed.values().filter(is_due);
        let due: Vec<Address> = due.map(|it| it.followed.slot).collect();
        // The next look may find a pause.
        let Some(looked) = self.look_at(&due) else { return };
        if has_majors {
            self.looked = looked;
            self.majors.forget_until(decided(looked, &self.followed));
        } else if !self.majors.any() {
            self.looked = looked;
            self.followed.values_mut().for_each(|it| it.followed.pass(looked));
        }
        // Otherwise a major collection began meanwhile, and the next look is at old objects, too.
    }

    /// Looks at the objects in these slots. Returns the number of the collection that has been looked at; `None` if too many began
    /// meanwhile, or one that moves objects: [`count_collections`](Self::count_collections) forgets them then.
    fn look_at(&mut self, slots: &[Address]) -> Option<u64> {
        let before = self.last.all;
        let is_marking = self.looks.is_marking(&self.image);
        let mut looked = before;
        for slots in slots.chunks(Looks::MAX_SLOTS) {
            let (counts, contents) = self.contents(slots)?;
            if counts.compacting != self.last.compacting {
                return None;
            }
            self.majors.add(counts);
            self.last = counts;
            for (slot, contents) in slots.iter().zip(contents) {
                self.judge(*slot, counts.all, contents);
            }
            looked = looked.min(counts.all);
        }
        match is_marking {
            // The latest collection had reached all that it reaches.
            Some(false) if looked == before && self.last.all == before => self.undecided.clear(),
            _ => self.undecided.take(slots, &self.followed),
        }
        Some(looked)
    }

    /// The contents of slots. The process has mapped more memory since its mappings were listed. Such memory is read only if no other
    /// process shares it, since it may belong to a device: so while a forked copy exists, the mappings have to be listed again.
    fn contents(
        &mut self,
        slots: &[Address],
    ) -> Option<(CollectionCounts, Vec<Option<followed::Contents>>)> {
        let looked = self.looks.at(&self.image, slots)?;
        if looked.1.iter().all(Option::is_some) {
            return Some(looked);
        }
        self.image = image::look(self.pid).ok()?;
        self.looks.at(&self.image, slots)
    }

    fn judge(&mut self, slot: Address, now: u64, contents: Option<followed::Contents>) {
        let Some(sample) = self.followed.get_mut(&slot) else { return };
        let major = self.majors.first_after(sample.followed.survived());
        let verdict = match contents {
            Some(contents) => sample.followed.look(now, major, contents),
            // Its page was returned.
            None => Verdict::Gone,
        };
        if verdict != Verdict::Same {
            self.profile.ambiguous += u64::from(verdict == Verdict::Ambiguous);
            self.followed.remove(&slot);
        }
    }
}

/// The last collection up to which it is known of all old objects whether they have survived it. `looked` is the number at the look.
fn decided(looked: u64, followed: &HashMap<Address, Sample>) -> u64 {
    let old = followed.values().map(|it| &it.followed).filter(|it| it.is_old());
    let open = old.filter(|it| it.is_undecided()).map(Followed::survived);
    open.fold(looked, u64::min)
}

/// The slots of the objects about which the latest collection had not decided at a look: it may mark for long. They are looked at
/// again when it does not mark any more. If that is unknown, they are looked at again and again, each time after a longer pause: most are
/// garbage, about which it never decides.
#[derive(Debug, Default)]
struct Undecided {
    slots: Vec<Address>,
    /// The time of the next look, and the pause before it.
    again: Duration,
    pause: Duration,
}

impl Undecided {
    /// Waits for `pause` from `now` on.
    fn wait(&mut self, now: Duration, pause: Duration) {
        (self.again, self.pause) = (now + pause, pause);
    }

    /// Adds a slot that was looked at now.
    fn add(&mut self, slot: Address, now: Duration, pause: Duration) {
        if self.slots.is_empty() {
            self.wait(now, pause);
        }
        self.slots.push(slot);
    }

    /// Takes those of the slots that were just looked at.
    fn take(&mut self, slots: &[Address], followed: &HashMap<Address, Sample>) {
        let is_undecided =
            |slot: &&Address| followed.get(slot).is_some_and(|it| it.followed.is_undecided());
        self.slots = slots.iter().filter(is_undecided).copied().collect();
    }

    fn clear(&mut self) {
        self.slots.clear();
    }

    /// The slots to look at now; `None` if it is not time, or if there are none. The next pause is twice as long.
    fn due(&mut self, now: Duration, is_marking: Option<bool>) -> Option<Vec<Address>> {
        let is_time = !is_marking.unwrap_or(now < self.again);
        if !is_time || self.slots.is_empty() {
            return None;
        }
        self.wait(now, (self.pause * 2).min(MAX_PAUSE));
        Some(std::mem::take(&mut self.slots))
    }
}

/// The part of the new objects that is followed: of all times the same, since lines are judged by the ages of their objects.
struct Thinning {
    one_of: u64,
    offered: u64,
}

impl Thinning {
    /// Returns true if the next object is followed.
    fn takes_next(&mut self) -> bool {
        self.offered += 1;
        self.offered.is_multiple_of(self.one_of)
    }

    /// Forgets every other object, and follows half as many from now on.
    fn halve<K, V>(&mut self, followed: &mut HashMap<K, V>) {
        self.one_of *= 2;
        let mut number = 0_usize;
        followed.retain(|_, _| {
            number += 1;
            number.is_multiple_of(2)
        });
    }
}

/// The number of a stack; `None` if there are too many.
fn stack_number(
    numbers: &mut HashMap<Vec<u32>, u32>,
    profile: &mut KeptProfile,
    stack: Vec<u32>,
) -> Option<u32> {
    if let Some(&number) = numbers.get(&stack) {
        return Some(number);
    }
    let number = profile.stacks.len();
    (number < MAX_STACKS).then_some(())?;
    profile.stacks.push(stack.clone());
    numbers.insert(stack, number as u32);
    Some(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "4 of 9 samples of Entry: block in <main> (server.rb:33)", which had never made one. It had made old keys of a Hash. A look found
    /// that a major collection had not kept them yet, and none followed: they were freed, and a cache's objects took their slots.
    #[test]
    fn old_objects_that_a_major_collection_has_not_kept_are_looked_at_again() {
        let contents =
            |age, is_kept| followed::Contents { age, is_kept, ..followed::Contents::NEW_STRING };
        let mut key = Followed::begin(Address(8), 10, 10, contents(0, false)).unwrap();
        assert_eq!(key.look(11, None, contents(3, true)), Verdict::Same);
        assert_eq!(key.look(12, Some(12), contents(3, false)), Verdict::Same);
        let mut followed =
            HashMap::from([(Address(8), Sample { followed: key, time: Duration::ZERO, stack: 0 })]);
        assert_eq!(decided(12, &followed), 11, "the major one is not forgotten");
        let mut undecided = Undecided::default();
        undecided.take(&[Address(8)], &followed);
        assert_eq!(undecided.due(Duration::ZERO, None), Some(vec![Address(8)]));
        let key = &mut followed.get_mut(&Address(8)).unwrap().followed;
        assert_eq!(key.look(12, Some(12), contents(3, true)), Verdict::Same);
        assert_eq!(decided(12, &followed), 12);
        let key = &mut followed.get_mut(&Address(8)).unwrap().followed;
        assert_eq!(key.look(12, Some(12), contents(0, false)), Verdict::Gone);
    }

    /// A collection that marked for long had not made objects older yet at the only look. At the next one they were taken for gone.
    #[test]
    fn objects_of_a_long_collection_are_looked_at_again() {
        const SLOTS: [Address; 2] = [Address(8), Address(16)];
        let contents = |age| followed::Contents { age, ..followed::Contents::NEW_STRING };
        let followed = SLOTS.into_iter().zip([0, 1]).map(|(slot, age)| {
            let mut followed = Followed::begin(slot, 10, 10, contents(0)).unwrap();
            assert_eq!(followed.look(11, None, contents(age)), Verdict::Same);
            (slot, Sample { followed, time: Duration::ZERO, stack: 0 })
        });
        let followed: HashMap<_, _> = followed.collect();
        let mut undecided = Undecided::default();
        undecided.wait(Duration::ZERO, Duration::from_millis(10));
        assert_eq!(undecided.due(Duration::MAX, None), None);
        let mut looks = Vec::new();
        for now in (0..600).step_by(10).map(Duration::from_millis) {
            undecided.take(&SLOTS, &followed);
            if let Some(slots) = undecided.due(now, None) {
                assert_eq!(slots, SLOTS[..1], "the other one has become older");
                looks.push(now.as_millis());
            }
        }
        assert_eq!(looks, [10, 30, 70, 150, 310, 560]);
    }

    /// Objects that are made while a collection marks were looked at after the next one only, which is too late.
    #[test]
    fn objects_that_are_made_while_a_collection_marks_are_looked_at_again() {
        let mut undecided = Undecided::default();
        let [now, pause] = [5_000, 10].map(Duration::from_millis);
        undecided.add(Address(8), now, pause);
        assert_eq!(undecided.due(now, None), None);
        // More of them do not put the look off.
        undecided.add(Address(16), now + pause / 2, pause);
        let mut of_known = Undecided { slots: undecided.slots.clone(), ..Undecided::default() };
        assert_eq!(of_known.due(Duration::MAX, Some(true)), None, "it marks still");
        assert!(
            of_known.due(now, Some(false)).is_some(),
            "it may be followed by the next one at once"
        );
        assert_eq!(undecided.due(now + pause, None), Some(vec![Address(8), Address(16)]));
    }

    /// Older objects were thinned again and again, and new ones not at all, so a steady leak looked like objects that do not stay.
    #[test]
    fn thinned_objects_are_of_all_times_alike() {
        let (mut thinning, mut followed) = (Thinning { one_of: 1, offered: 0 }, HashMap::new());
        const MAX: usize = 1000;
        for time in 0..7 * MAX {
            if followed.len() >= MAX {
                thinning.halve(&mut followed);
            }
            if thinning.takes_next() {
                followed.insert(time, ());
            }
        }
        let early = followed.keys().filter(|&&time| time < 7 * MAX / 2).count();
        let late = followed.len() - early;
        assert!(followed.len() >= MAX / 2, "{}", followed.len());
        assert!(early * 3 > late * 2 && late * 3 > early * 2, "{early} {late}");
    }
}
