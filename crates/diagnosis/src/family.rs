//! The account of a family of processes, from the accounts of its members.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use formats::{
    Capture, CauseRow, CopiedOwner, Family, FamilyCause, FamilyMember, FamilyStep, FindingKind,
    FindingRow, Group, GroupParts, IdenticalPages, LateCode, LateFile, LateGem, MemberWrite,
    OtherProcess, Server, WriteRow, WrittenOwner,
};
use ledger::{
    Cause, Causes, CodeFileAccount, Gem, MemberAccounts, OwnerAccount, Write, WriteAccount, percent,
};
use linux::proc::{GroupMemory, KernelMemory};

use crate::place::server;
use crate::{MIN_BYTES, MIN_SHARE};

/// The largest owners of copied memory are listed.
const MAX_COPIED_OWNERS: usize = 10;
/// Copies are worth a step if they are at least this large, and this share of the family's memory in percent.
const MIN_COPIED: u64 = 4 << 20;
const MIN_COPIED_PERCENT: f64 = 2.0;
/// Bytecode that several members have for themselves is worth a step if it is at least this large. Classes, methods and strings
/// come with it.
const MIN_REPEATED_CODE: u64 = 1 << 20;
/// Code and caches of workers are worth another fork if they are at least this large for each worker.
const MIN_REFORKED: u64 = 4 << 20;
/// The version that has `Process.warmup`.
const WARMUP: (u32, u32) = (3, 3);
/// The version whose collector replaces empty inline caches by empty ones when it marks bytecode (ruby/ruby#10899).
const WRITES_TO_BYTECODE: (u32, u32) = (3, 3);
/// The owner of bytecode.
const BYTECODE: &str = "(imemo_iseq)";
/// The largest gems and files of late code, and the largest owners of a reason, are listed.
const MAX_LATE: usize = 10;
const MAX_WRITTEN: usize = 5;

/// The facts about a family.
pub struct FamilyFacts {
    /// The members, in the order of the document.
    pub members: Vec<MemberAccount>,
    /// The version of Ruby of a member.
    pub ruby_version: Option<String>,
    /// What is known about its frames.
    pub frames: FamilyFrames,
    /// Its control group.
    pub group: Option<GroupMemory>,
    /// The rest of the group's memory, if the members are all Ruby processes of the group.
    pub group_facts: Option<GroupFacts>,
    /// Its pages by their contents, if they were compared.
    pub identical: Option<IdenticalPages>,
    /// True if owners were traced.
    pub has_owners: bool,
    /// Problems with the captures.
    pub findings: Vec<FindingKind>,
}

/// The memory of a control group beside that of its Ruby processes.
pub struct GroupFacts {
    /// Caches, and the kernel's own memory.
    pub kernel: KernelMemory,
    /// Processes that are not Ruby.
    pub others: Vec<OtherProcess>,
    /// Bytes of the family's frames that are charged to other groups, or to none; `None` if unknown.
    pub charged_elsewhere_bytes: Option<u64>,
}

/// A member of a family.
pub struct MemberAccount {
    /// Its process id.
    pub pid: i32,
    /// The time of its start, in clock ticks since boot.
    pub started_ticks: u64,
    /// The process id of its parent, if that is a member.
    pub parent: Option<i32>,
    /// True if its parent has ended.
    pub is_orphan: bool,
    /// Its command line.
    pub command: String,
    /// The kernel's counts of its memory, taken at the same time as those of the other members.
    pub rollup: linux::proc::Rollup,
    /// Its capture, and the accounts of its memory; `None` if it could not be read.
    pub read: Option<(Capture, MemberAccounts)>,
}

/// What is known about the frames of a family.
#[derive(Debug, Clone, Copy)]
pub struct FamilyFrames {
    /// Bytes of frames that processes outside of the family map, too; `None` if unknown.
    pub outside_bytes: Option<u64>,
    /// True if it is not known which pages are the same.
    pub is_estimated: bool,
}

/// Returns the account of a family.
#[must_use]
pub fn family(facts: FamilyFacts) -> Family {
    let FamilyFacts {
        members,
        ruby_version,
        frames,
        group,
        group_facts,
        identical,
        has_owners,
        findings,
    } = facts;
    let parts = |part: usize| {
        let read = members.iter().map(|it| it.read.as_ref());
        read.map(move |read| {
            read.map_or_else(Causes::default, |(_, accounts)| accounts.parts[part].causes)
        })
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
    let copied_owners = has_owners.then(|| copied_owners(&members));
    let memory_bytes = causes.iter().map(FamilyCause::total).sum();
    let writes = writes(&members);
    let late_code = has_owners.then(|| late_code(&members)).flatten();
    let server = members.iter().find_map(|it| server(&it.command));
    let steps = [
        prepare_heap(&writes, memory_bytes, version(ruby_version.as_deref()) >= WARMUP),
        newer_ruby(&writes, memory_bytes, version(ruby_version.as_deref())),
        late_code.as_ref().and_then(load_before_fork),
        refork(server, &members),
        return_free_memory(&members, memory_bytes),
    ];
    Family {
        steps: steps.into_iter().flatten().collect(),
        server,
        writes,
        late_code,
        identical,
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
        group_parts: group
            .zip(group_facts)
            .map(|(group, facts)| group_parts(memory_bytes, group, facts)),
        findings: findings.into_iter().map(FindingRow::from).collect(),
        members: members.into_iter().map(member).collect(),
    }
}

fn group_parts(memory_bytes: u64, group: GroupMemory, facts: GroupFacts) -> GroupParts {
    let GroupFacts { kernel, others, charged_elsewhere_bytes } = facts;
    let KernelMemory { unmapped_cache_bytes, unmapped_shmem_bytes, kernel_bytes } = kernel;
    let others_bytes: u64 = others.iter().map(|it| it.pss_bytes).sum();
    let charged = memory_bytes.saturating_sub(charged_elsewhere_bytes.unwrap_or(0));
    let explained =
        charged + others_bytes + unmapped_cache_bytes + unmapped_shmem_bytes + kernel_bytes;
    GroupParts {
        charged_elsewhere_bytes,
        others,
        unmapped_cache_bytes,
        unmapped_shmem_bytes,
        kernel_bytes,
        unexplained_bytes: group.usage_bytes.wrapping_sub(explained).cast_signed(),
    }
}

/// Returns true if copies are worth a step.
fn is_large(copied_bytes: u64, memory_bytes: u64) -> bool {
    copied_bytes >= MIN_COPIED && percent(copied_bytes, memory_bytes) >= MIN_COPIED_PERCENT
}

/// Other writes leave the same contents, too, but not on pages of bytecode.
fn newer_ruby(writes: &[WriteRow], memory_bytes: u64, version: (u32, u32)) -> Option<FamilyStep> {
    let same = writes.iter().filter(|row| row.reason == Write::Same).flat_map(|row| &row.owners);
    let copied_bytes = same.filter(|owner| owner.name == BYTECODE).map(|owner| owner.bytes).sum();
    (version == WRITES_TO_BYTECODE && is_large(copied_bytes, memory_bytes))
        .then_some(FamilyStep::NewerRuby { copied_bytes })
}

/// A page counts for the reason that is hardest to avoid, so these pages would be shared if the heap had been prepared.
fn prepare_heap(writes: &[WriteRow], memory_bytes: u64, has_warmup: bool) -> Option<FamilyStep> {
    let is_avoidable = |row: &&WriteRow| {
        matches!(row.reason, Write::Collector | Write::FreedSlots | Write::NewObjects)
    };
    let copied_bytes = writes.iter().filter(is_avoidable).map(|row| row.bytes).sum();
    is_large(copied_bytes, memory_bytes)
        .then_some(FamilyStep::PrepareHeap { copied_bytes, has_warmup })
}

fn load_before_fork(code: &LateCode) -> Option<FamilyStep> {
    let has_application = code.gems.iter().any(|gem| gem.name == Gem::APPLICATION);
    let &LateCode { repeated_bytes, .. } = code;
    (repeated_bytes >= MIN_REPEATED_CODE)
        .then_some(FamilyStep::LoadBeforeFork { repeated_bytes, has_application })
}

/// Finds the code and caches that workers of one parent have for themselves. Workers of the same program have the same ones, so the
/// others would share those of the worker that has most. Only Puma and Pitchfork can fork workers again.
fn refork(server: Option<Server>, members: &[MemberAccount]) -> Option<FamilyStep> {
    if !matches!(server, Some(Server::Puma | Server::Pitchfork)) {
        return None;
    }
    let mut workers: BTreeMap<i32, Vec<(u64, i32)>> = BTreeMap::new();
    for member in members {
        if let (Some(parent), Some(causes)) = (member.parent, private_causes(member)) {
            workers.entry(parent).or_default().push((causes[Cause::RubyVm], member.pid));
        }
    }
    let workers = workers.into_values().max_by_key(Vec::len)?;
    let &(most, worker) = workers.iter().max()?;
    let shared_bytes = workers.iter().map(|(bytes, _)| bytes).sum::<u64>() - most;
    let others = workers.len() as u64 - 1;
    (others > 0 && shared_bytes / others >= MIN_REFORKED).then_some(FamilyStep::Refork {
        worker,
        shared_bytes,
        workers: others,
    })
}

/// The free memory of malloc is worth a step as it is worth a verdict on one process.
fn return_free_memory(members: &[MemberAccount], memory_bytes: u64) -> Option<FamilyStep> {
    const FREE: [Cause; 2] = [Cause::MallocUnreturned, Cause::MallocFragmented];
    let free = |member: &MemberAccount| {
        let causes = private_causes(member)?;
        Some((FREE.iter().map(|&cause| causes[cause]).sum::<u64>(), member.pid))
    };
    let all: Vec<(u64, i32)> = members.iter().filter_map(free).collect();
    let free_bytes = all.iter().map(|(bytes, _)| bytes).sum();
    let &(_, member) = all.iter().max()?;
    (free_bytes >= MIN_BYTES && percent(free_bytes, memory_bytes) >= MIN_SHARE)
        .then_some(FamilyStep::ReturnFreeMemory { free_bytes, member })
}

fn private_causes(member: &MemberAccount) -> Option<&Causes> {
    member.read.as_ref().map(|(_, accounts)| &accounts.parts[2].causes)
}

fn writes(members: &[MemberAccount]) -> Vec<WriteRow> {
    let mut sums: BTreeMap<Write, (u64, HashMap<&str, u64>)> = BTreeMap::new();
    let all = members.iter().filter_map(|it| it.read.as_ref()).flat_map(|(_, it)| &it.writes);
    for WriteAccount { write, owner, bytes } in all {
        let (sum, owners) = sums.entry(*write).or_default();
        *sum += bytes;
        if let Some(owner) = owner {
            *owners.entry(owner).or_default() += bytes;
        }
    }
    let row = |(reason, (bytes, owners)): (Write, (u64, HashMap<&str, u64>))| {
        let owners = owners.into_iter();
        let mut owners: Vec<_> =
            owners.map(|(name, bytes)| WrittenOwner { name: name.to_owned(), bytes }).collect();
        owners.sort_by(|a, b| (b.bytes, &a.name).cmp(&(a.bytes, &b.name)));
        owners.truncate(MAX_WRITTEN);
        WriteRow { reason, bytes, owners }
    };
    let mut rows: Vec<WriteRow> = sums.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.bytes));
    rows
}

/// Returns the files with bytecode that members have and their parents do not.
fn late_code(members: &[MemberAccount]) -> Option<LateCode> {
    let mut late: BTreeMap<&str, (&Gem, Vec<u64>)> = BTreeMap::new();
    let mut is_known = false;
    for member in members {
        let parent = members.iter().find(|it| Some(it.pid) == member.parent);
        let Some((own, parents)) = bytecode(member).zip(parent.and_then(bytecode)) else {
            continue;
        };
        is_known = true;
        let parents: HashSet<Option<&str>> = parents.iter().map(|it| it.path.as_deref()).collect();
        for CodeFileAccount { path, gem, size } in own {
            if let Some(path) = path.as_deref().filter(|path| !parents.contains(&Some(path))) {
                let (_, sizes) = late.entry(path).or_insert_with(|| (gem, Vec::new()));
                sizes.push(size.weight_bytes());
            }
        }
    }
    if !is_known {
        return None;
    }
    let sum = |sizes: &[u64]| sizes.iter().sum::<u64>();
    let repeated = |sizes: &[u64]| sum(sizes) - sizes.iter().max().unwrap_or(&0);
    let mut gems: BTreeMap<&Gem, (u64, u64)> = BTreeMap::new();
    for (gem, sizes) in late.values() {
        let (files, bytes) = gems.entry(gem).or_default();
        *files += 1;
        *bytes += sum(sizes);
    }
    let gem = |(gem, (files, bytes)): (&Gem, (u64, u64))| {
        let Gem { name, version } = gem.clone();
        LateGem { name, version, files, bytes }
    };
    let mut gems: Vec<LateGem> = gems.into_iter().map(gem).collect();
    gems.sort_by_key(|gem| Reverse(gem.bytes));
    gems.truncate(MAX_LATE);
    let file = |(path, (_, sizes)): (&&str, &(&Gem, Vec<u64>))| LateFile {
        path: (*path).to_owned(),
        members: sizes.len() as u64,
        bytes: sum(sizes),
    };
    let mut largest_files: Vec<LateFile> = late.iter().map(file).collect();
    largest_files.sort_by_key(|file| Reverse(file.bytes));
    largest_files.truncate(MAX_LATE);
    Some(LateCode {
        files: late.len() as u64,
        bytes: late.values().map(|(_, sizes)| sum(sizes)).sum(),
        repeated_bytes: late.values().map(|(_, sizes)| repeated(sizes)).sum(),
        gems,
        largest_files,
    })
}

fn bytecode(member: &MemberAccount) -> Option<&[CodeFileAccount]> {
    member.read.as_ref()?.1.bytecode.as_deref()
}

/// Returns the first two numbers of a version of Ruby.
fn version(version: Option<&str>) -> (u32, u32) {
    let mut numbers = version.unwrap_or_default().split('.').map(|it| it.parse().unwrap_or(0));
    let [major, minor] = [(); 2].map(|()| numbers.next().unwrap_or(0));
    (major, minor)
}

fn member(account: MemberAccount) -> FamilyMember {
    let MemberAccount { pid, started_ticks, parent, is_orphan, command, rollup, read } = account;
    let total =
        |part: usize| read.as_ref().map_or(0, |(_, accounts)| accounts.parts[part].causes.total());
    let mut writes: BTreeMap<Write, u64> = BTreeMap::new();
    for row in read.iter().flat_map(|(_, accounts)| &accounts.writes) {
        *writes.entry(row.write).or_default() += row.bytes;
    }
    let mut writes: Vec<MemberWrite> =
        writes.into_iter().map(|(reason, bytes)| MemberWrite { reason, bytes }).collect();
    writes.sort_by_key(|row| Reverse(row.bytes));
    FamilyMember {
        pid,
        started_ticks,
        parent,
        is_orphan,
        command,
        rss_bytes: rollup.rss_bytes,
        pss_bytes: rollup.pss_bytes,
        private_bytes: total(2),
        copied_bytes: total(3),
        writes,
        capture: read.map(|(capture, _)| capture),
    }
}

fn copied_owners(members: &[MemberAccount]) -> Vec<CopiedOwner> {
    let mut sums: HashMap<(&str, Cause), u64> = HashMap::new();
    let copied =
        members.iter().filter_map(|it| it.read.as_ref()).flat_map(|(_, it)| &it.parts[3].owners);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ruby_that_writes_to_bytecode_is_advised_against() {
        const MIB: u64 = 1 << 20;
        let row = |reason, name: &str, bytes| WriteRow {
            reason,
            bytes,
            owners: vec![WrittenOwner { name: name.into(), bytes }],
        };
        let step = |row, version_text| newer_ruby(&[row], 100 * MIB, version(Some(version_text)));
        let same = || row(Write::Same, BYTECODE, 8 * MIB);
        assert_eq!(step(same(), "3.3.8"), Some(FamilyStep::NewerRuby { copied_bytes: 8 * MIB }));
        assert_eq!(step(same(), "3.2.11"), None);
        assert_eq!(step(same(), "3.4.1"), None);
        assert_eq!(step(row(Write::Same, "String", 8 * MIB), "3.3.8"), None);
        assert_eq!(step(row(Write::Code, BYTECODE, 8 * MIB), "3.3.8"), None);
        assert_eq!(step(row(Write::Same, BYTECODE, MIB), "3.3.8"), None);
    }

    #[test]
    fn a_version_has_two_numbers() {
        assert_eq!(version(Some("3.3.8")), (3, 3));
        assert_eq!(version(Some("4.0.5")), (4, 0));
        assert_eq!(version(Some("?")), (0, 0));
        assert_eq!(version(None), (0, 0));
        assert!(version(Some("3.10.0")) >= WARMUP);
    }
}
