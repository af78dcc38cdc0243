//! The growth of a family between two or more accounts.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use formats::{
    CauseChange, Family, FamilyDiff, FamilyLimit, FamilyMember, FamilyPoint, Group, MemberChange,
    Outlook, Trajectory, WorkerGrowth, WriteChange,
};
use ledger::{Cause, Write};

use crate::growth::{Course, course};

/// The least change of the family's memory that is growth, in bytes, and as a fraction of it.
const MIN_BYTES: u64 = 1 << 20;
const MIN_FRACTION: u64 = 1000;

/// A process: its id, and the time of its start.
type Identity = (i32, u64);

/// Compares two or more accounts of a family, each with its name, in the order of their times.
#[must_use]
pub fn family_growth(accounts: &[(String, Family)]) -> FamilyDiff {
    let mut accounts: Vec<&(String, Family)> = accounts.iter().collect();
    accounts.sort_by_key(|(_, family)| family.unix_ms());
    let points: Vec<FamilyPoint> = accounts.iter().map(|(source, it)| point(source, it)).collect();
    let families: Vec<&Family> = accounts.iter().map(|(_, family)| family).collect();
    let times: Vec<u64> = points.iter().map(|it| it.unix_ms).collect();
    let milliseconds = match times[..] {
        [first, .., last] => last.saturating_sub(first),
        _ => 0,
    };
    let minutes = (milliseconds > 0).then_some(milliseconds as f64 / 60e3);
    let memory_bytes = Trajectory::new(families.iter().map(|it| it.memory_bytes));
    let all: Vec<BTreeSet<Identity>> = families.iter().map(|it| identities(it)).collect();
    let lasting: Vec<Identity> = all.first().map_or_else(Vec::new, |first| {
        first.iter().filter(|it| all.iter().all(|all| all.contains(it))).copied().collect()
    });
    let lasting: Vec<Member<'_>> =
        lasting.iter().filter_map(|&identity| Member::find(&families, identity)).collect();
    let workers: Vec<&Member<'_>> = lasting.iter().filter(|it| it.is_worker()).collect();
    let mut members: Vec<MemberChange> = lasting.iter().map(Member::change).collect();
    members.sort_by_key(|it| (Reverse(it.private_bytes.change), it.pid));
    let sum = |of: &dyn Fn(&Family, usize) -> u64| {
        let count = families.len();
        let at =
            |point: usize| workers.iter().map(|it| of(families[point], it.places[point])).sum();
        Trajectory::new((0..count).map(at))
    };
    let mut causes: Vec<CauseChange> = Cause::ALL
        .iter()
        .map(|&cause| CauseChange { cause, bytes: sum(&|it, at| private_bytes(it, cause, at)) })
        .collect();
    causes.sort_by_key(|row| Reverse(row.bytes.change.unsigned_abs()));
    let mut writes: Vec<WriteChange> = Write::ALL
        .iter()
        .map(|&reason| WriteChange { reason, bytes: sum(&|it, at| copied_bytes(it, reason, at)) })
        .collect();
    writes.sort_by_key(|row| Reverse(row.bytes.change.unsigned_abs()));
    let worker = minutes.filter(|_| !workers.is_empty()).map(|minutes| {
        let rate = |of: fn(&FamilyMember) -> u64| {
            let change = sum(&|family, at| of(&family.members[at])).change;
            change as f64 / minutes / workers.len() as f64
        };
        WorkerGrowth {
            workers: workers.len() as u64,
            private_bytes_per_minute: rate(|it| it.private_bytes),
            copied_bytes_per_minute: rate(|it| it.copied_bytes),
        }
    });
    let limit = families.last().and_then(|it| it.group.as_ref()).and_then(limit);
    let are_others = all.windows(2).any(|pair| pair[0] != pair[1]);
    FamilyDiff {
        outlook: outlook(&memory_bytes, &times, are_others, minutes, limit),
        seconds: milliseconds as f64 / 1e3,
        started: difference(all.last(), all.first()),
        ended: difference(all.first(), all.last()),
        points,
        memory_bytes,
        members,
        causes,
        writes,
        worker,
        limit,
    }
}

fn point(source: &str, family: &Family) -> FamilyPoint {
    FamilyPoint {
        source: source.to_owned(),
        unix_ms: family.unix_ms().unwrap_or(0),
        processes: family.members.len() as u64,
        is_estimated: family.is_estimated,
    }
}

fn identity(member: &FamilyMember) -> Identity {
    (member.pid, member.started_ticks)
}

fn identities(family: &Family) -> BTreeSet<Identity> {
    family.members.iter().map(identity).collect()
}

fn difference(some: Option<&BTreeSet<Identity>>, others: Option<&BTreeSet<Identity>>) -> Vec<i32> {
    let pairs = some.zip(others);
    pairs.map_or_else(Vec::new, |(some, others)| some.difference(others).map(|it| it.0).collect())
}

/// A member of all accounts, which was read in each.
struct Member<'a> {
    at: Vec<&'a FamilyMember>,
    /// Its index in each account.
    places: Vec<usize>,
}

impl<'a> Member<'a> {
    fn find(families: &[&'a Family], wanted: Identity) -> Option<Self> {
        let place = |family: &&Family| {
            let is_it = |it: &FamilyMember| identity(it) == wanted && it.capture.is_some();
            family.members.iter().position(is_it)
        };
        let places = families.iter().map(place).collect::<Option<Vec<usize>>>()?;
        let at = families.iter().zip(&places).map(|(family, &place)| &family.members[place]);
        Some(Self { at: at.collect(), places })
    }

    fn is_worker(&self) -> bool {
        self.at.iter().all(|it| it.parent.is_some() || it.is_orphan)
    }

    fn change(&self) -> MemberChange {
        let last = self.at[self.at.len() - 1];
        let over_time =
            |of: fn(&FamilyMember) -> u64| Trajectory::new(self.at.iter().map(|member| of(member)));
        MemberChange {
            pid: last.pid,
            parent: last.parent,
            command: last.command.clone(),
            private_bytes: over_time(|it| it.private_bytes),
            copied_bytes: over_time(|it| it.copied_bytes),
        }
    }
}

fn private_bytes(family: &Family, cause: Cause, member: usize) -> u64 {
    let row = family.causes.iter().find(|row| row.cause == cause);
    row.and_then(|row| row.private_bytes.get(member)).copied().unwrap_or(0)
}

fn copied_bytes(family: &Family, reason: Write, member: usize) -> u64 {
    let rows = family.members[member].writes.iter();
    rows.filter(|row| row.reason == reason).map(|row| row.bytes).sum()
}

fn limit(group: &Group) -> Option<FamilyLimit> {
    let &Group { usage_bytes, limit_bytes, cache_bytes, .. } = group;
    limit_bytes.map(|limit_bytes| FamilyLimit { limit_bytes, usage_bytes, cache_bytes })
}

/// Returns a time only for growth that was steady over several intervals, of the same processes.
fn outlook(
    memory: &Trajectory,
    times: &[u64],
    are_others: bool,
    minutes: Option<f64>,
    limit: Option<FamilyLimit>,
) -> Outlook {
    let first = memory.at.first().copied().unwrap_or(0);
    let least = MIN_BYTES.max(first / MIN_FRACTION).cast_signed();
    let Some(minutes) = minutes.filter(|_| times.len() > 2) else { return Outlook::TooEarly };
    if are_others {
        return Outlook::OtherWorkers;
    }
    if memory.change < least {
        return Outlook::NoGrowth;
    }
    match course(memory, times) {
        Course::TooEarly => Outlook::TooEarly,
        Course::LevelsOff => Outlook::LevelsOff,
        Course::Uneven => Outlook::Uneven,
        Course::Steady => {
            let bytes_per_minute = memory.change as f64 / minutes;
            let seconds_to_limit = limit.map(|limit| {
                let used = limit.usage_bytes.saturating_sub(limit.cache_bytes);
                limit.limit_bytes.saturating_sub(used) as f64 / bytes_per_minute * 60.0
            });
            Outlook::Grows { bytes_per_minute, seconds_to_limit }
        }
    }
}
