//! The account of a family of processes, from the accounts of its members.

use std::cmp::Reverse;
use std::collections::HashMap;

use capture::Finding;
use capture::proc::GroupMemory;
use formats::{
    Capture, CauseRow, CopiedOwner, Family, FamilyCause, FamilyMember, FamilyStep, FindingRow,
    Group,
};
use ledger::{Cause, Causes, OwnerAccount, PartAccount, percent};

/// The largest owners of copied memory are listed.
const MAX_COPIED_OWNERS: usize = 10;
/// Copied slots are worth a step if they are at least this large, and this share of the family's memory in percent.
const MIN_COPIED_SLOTS: u64 = 4 << 20;
const MIN_COPIED_PERCENT: f64 = 2.0;

/// A member of a family.
pub struct MemberAccount {
    /// Its process id.
    pub pid: i32,
    /// The process id of its parent, if that is a member.
    pub parent: Option<i32>,
    /// Its command line.
    pub command: String,
    /// The kernel's counts of its memory, taken at the same time as those of the other members.
    pub rollup: capture::proc::Rollup,
    /// Its capture, and the accounts of the parts of its memory: shared by all members, shared by some, private, and copied. `None` if
    /// it ended before.
    pub read: Option<(Capture, [PartAccount; 4])>,
}

/// What is known about the frames of a family.
#[derive(Debug, Clone, Copy)]
pub struct FamilyFrames {
    /// Bytes of frames that processes outside of the family map, too; `None` if unknown.
    pub outside_bytes: Option<u64>,
    /// True if it is not known which pages are the same.
    pub is_estimated: bool,
}

/// Returns the account of a family. `ruby_version` is that of a member, and `group` is its control group.
#[must_use]
pub fn family(
    members: Vec<MemberAccount>,
    ruby_version: Option<String>,
    frames: FamilyFrames,
    group: Option<GroupMemory>,
    owners: bool,
    findings: &[Finding],
) -> Family {
    let parts = |part: usize| {
        let read = members.iter().map(|it| it.read.as_ref());
        read.map(move |read| read.map_or_else(Causes::default, |(_, parts)| parts[part].causes))
    };
    let sum = |part: usize, cause: Cause| parts(part).map(|causes| causes[cause]).sum::<u64>();
    let causes: Vec<FamilyCause> = Cause::ALL
        .iter()
        .map(|&cause| FamilyCause {
            cause,
            shared_by_all_bytes: sum(0, cause),
            shared_by_some_bytes: sum(1, cause),
            private_bytes: parts(2).map(|causes| causes[cause]).collect(),
        })
        .collect();
    let copied = Cause::ALL.iter().map(|&cause| CauseRow { cause, bytes: sum(3, cause) }).collect();
    let copied_owners = owners.then(|| copied_owners(&members));
    let memory_bytes = causes.iter().map(FamilyCause::total).sum();
    let slots = [Cause::RubyLiveSlots, Cause::RubyFreeSlots, Cause::RubyOverhead];
    let copied_slots = slots.iter().map(|&cause| sum(3, cause)).sum();
    Family {
        steps: steps(copied_slots, memory_bytes, has_warmup(ruby_version.as_deref())),
        ruby_version,
        rss_bytes: members.iter().map(|it| it.rollup.rss_bytes).sum(),
        pss_bytes: members.iter().map(|it| it.rollup.pss_bytes).sum(),
        memory_bytes,
        outside_bytes: frames.outside_bytes,
        is_estimated: frames.is_estimated,
        causes,
        copied,
        copied_owners,
        group: group.map(Group::from),
        findings: findings.iter().map(FindingRow::from).collect(),
        members: members.into_iter().map(member).collect(),
    }
}

fn steps(copied_bytes: u64, memory_bytes: u64, has_warmup: bool) -> Vec<FamilyStep> {
    let is_large = copied_bytes >= MIN_COPIED_SLOTS
        && percent(copied_bytes, memory_bytes) >= MIN_COPIED_PERCENT;
    is_large.then_some(FamilyStep::PrepareHeap { copied_bytes, has_warmup }).into_iter().collect()
}

/// Ruby has Process.warmup from 3.3 on.
fn has_warmup(version: Option<&str>) -> bool {
    let mut numbers = version.unwrap_or_default().split('.').map(|it| it.parse().unwrap_or(0));
    let [major, minor] = [(); 2].map(|()| numbers.next().unwrap_or(0));
    (major, minor) >= (3, 3)
}

fn member(account: MemberAccount) -> FamilyMember {
    let MemberAccount { pid, parent, command, rollup, read } = account;
    let total = |part: usize| read.as_ref().map_or(0, |(_, parts)| parts[part].causes.total());
    FamilyMember {
        pid,
        parent,
        command,
        rss_bytes: rollup.rss_bytes,
        pss_bytes: rollup.pss_bytes,
        private_bytes: total(2),
        copied_bytes: total(3),
        capture: read.map(|(capture, _)| capture),
    }
}

fn copied_owners(members: &[MemberAccount]) -> Vec<CopiedOwner> {
    let mut sums: HashMap<(&str, Cause), u64> = HashMap::new();
    let copied =
        members.iter().filter_map(|it| it.read.as_ref()).flat_map(|(_, parts)| &parts[3].owners);
    for OwnerAccount { name, cause, resident_bytes, .. } in copied {
        *sums.entry((name, *cause)).or_default() += resident_bytes;
    }
    let owner = |((name, cause), bytes): ((&str, Cause), u64)| CopiedOwner {
        name: name.to_owned(),
        cause,
        bytes,
    };
    let mut owners: Vec<_> = sums.into_iter().map(owner).filter(|owner| owner.bytes > 0).collect();
    owners.sort_by(|one, other| {
        (Reverse(one.bytes), &one.name).cmp(&(Reverse(other.bytes), &other.name))
    });
    owners.truncate(MAX_COPIED_OWNERS);
    owners
}
