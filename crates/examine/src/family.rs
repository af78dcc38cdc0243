//! The account of a family of processes.

use std::collections::BTreeMap;
use std::path::Path;

use diagnosis::{FamilyFacts, FamilyFrames, GroupFacts, MemberAccount};
use formats::{
    Capture, Family, FindingKind, IdenticalPages, OtherProcess, SharedPages, TrimReport,
};
use image::{Image, Memory, Target};
use inferior::MemoryLimits;
use ledger::{Cause, DistinctPages, FamilyPages, MemberAccounts, MemberPages};
use linux::arch::page_size;
use linux::proc::{self, ControlGroup, Member, Rollup};
use linux::{Address, Machine};
use linux::{PageFrame, groups_of_frames, map_counts, page_frames};

use crate::allocator_call::AllocatorCall;
use crate::attempts::{self, Captured};
use crate::error::Error;
use crate::isolation::isolated;
use crate::name::ProcessName;
use crate::options::{CaptureOptions, Detail};
use crate::process::{self, ruby, target};
use crate::progress::Progress;
use crate::sandbox::Sandbox;
use crate::trimming::{predict_and, trim};

/// rbloat's own memory for the page frames of a family, as a fraction of the sum of RSS: up to 56 bytes for a page, and with hashes
/// of all pages up to 32 more. The captures come on top; they check the room for themselves.
const OWN_PART: u64 = 72;
const OWN_PART_WITH_HASHES: u64 = 46;
/// Pages that are read at a time.
const PAGES_PER_READ: u64 = 64;

/// The processes of an account: one family or several, or the Ruby processes of a control group.
pub struct FamilyMembers {
    members: Vec<Member>,
    /// Each process, which is opened once, or the reason why it could not be opened.
    opened: Vec<Result<Target, Error>>,
    /// The control group of which they are all Ruby processes.
    group: Option<Group>,
}

impl FamilyMembers {
    /// Finds the families of these processes.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of_families(names: &[ProcessName]) -> Result<Self, Error> {
        let (mut members, mut ended): (Vec<Member>, _) = (Vec::new(), None);
        let mut known = BTreeMap::new();
        for name in names {
            for target in process::open_all(name.clone())? {
                let pid = target.pid();
                if known.insert(pid, target).is_some() || members.iter().any(|it| it.pid == pid) {
                    continue;
                }
                let family = proc::family(pid);
                ended = ended.or(family.is_empty().then_some(pid));
                for member in family {
                    if members.iter().all(|it| it.pid != member.pid) {
                        members.push(member);
                    }
                }
            }
        }
        if let Some(pid) = ended.filter(|_| members.is_empty()) {
            return Err(linux::Error::NoSuchProcess { pid }.into());
        }
        Ok(Self::new(members, known, None))
    }

    /// Finds the Ruby processes of a control group.
    ///
    /// # Errors
    /// If there is no such group, or it has no Ruby process.
    pub fn of_group(path: &Path) -> Result<Self, Error> {
        let group = ControlGroup::at(path).ok_or_else(|| Error::NoGroup { path: path.into() })?;
        let (mut members, mut known) = (Vec::new(), BTreeMap::new());
        let (mut others, mut refusal) = (Vec::new(), None);
        for pid in group.processes() {
            match ruby(pid) {
                Ok(Some(target)) => {
                    members.extend(proc::member(pid).filter(|member| !member.is_copy));
                    known.insert(pid, target);
                }
                Ok(None) => others.push(pid),
                Err(error) if error.is_without_memory() => {}
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            // It may be a Ruby process.
            Some(refusal) if members.is_empty() => Err(refusal),
            None if members.is_empty() => Err(Error::NoRubyInGroup { path: path.into() }),
            _ => Ok(Self::new(members, known, Some(Group { group, others }))),
        }
    }

    /// Opens the members that are not known yet.
    fn new(
        mut members: Vec<Member>,
        mut known: BTreeMap<i32, Target>,
        group: Option<Group>,
    ) -> Self {
        linux::page_faults::raise_file_limit();
        proc::sort_by_age(&mut members);
        let mut open = |member: &Member| match known.remove(&member.pid) {
            Some(target) => Ok(target),
            None => isolated(member.pid, || Ok(target((member.pid, member.started_ticks))?)),
        };
        let opened = members.iter().map(&mut open).collect();
        Self { members, opened, group }
    }

    /// The oldest of the processes, which is the master of a server with workers.
    #[must_use]
    pub fn oldest(&self) -> i32 {
        self.members[0].pid
    }

    /// Returns the pages of a process by the members of its family that map them.
    ///
    /// # Errors
    /// If it has no family, or there is too little memory.
    pub fn shared_pages(pid: i32) -> Result<SharedPages, Error> {
        let family = Self::of_families(&[ProcessName::Pid(pid)])?;
        let index = family.members.iter().position(|it| it.pid == pid);
        let Some(index) = index.filter(|_| family.members.len() > 1) else {
            return Err(Error::NoFamily { pid });
        };
        family.check_room(OWN_PART)?;
        let frames = family.frames();
        let pages = pages(&family.members, &frames);
        Ok(SharedPages {
            processes: family.members.len() as u64,
            is_estimated: pages.is_estimated(),
            pages: pages.sharing(index),
        })
    }

    /// The sum of PSS, as far as it can be read.
    #[must_use]
    pub fn pss_bytes(&self) -> u64 {
        let rollups = self.members.iter().filter_map(|it| proc::rollup(it.pid).ok());
        rollups.map(|it| it.pss_bytes).sum()
    }

    /// The page frames of each process. A process that cannot be read has none.
    fn frames(&self) -> Vec<Vec<PageFrame>> {
        let frames = self.members.iter().map(|it| page_frames(it.pid));
        frames.map(Result::unwrap_or_default).collect()
    }

    /// Predicts the effect of a trim of each process in turn, and makes it unless `is_dry`. `each` gets the result, and the bytes of
    /// private pages that the trim should return; or the reason why the process could not be captured or trimmed.
    ///
    /// # Errors
    /// That of `each`, which ends it.
    pub fn trim<E>(
        &mut self,
        how: CaptureOptions,
        is_dry: bool,
        progress: &dyn Progress,
        mut each: impl FnMut(i32, Result<(TrimReport, Option<u64>), Error>) -> Result<(), E>,
    ) -> Result<(), E> {
        let opened = std::mem::take(&mut self.opened);
        // A process whose pages cannot be read cannot be trimmed either.
        let frames = self.frames();
        let pages = pages(&self.members, &frames);
        for (index, (member, opened)) in self.members.iter().zip(opened).enumerate() {
            let trimmed = opened.and_then(|target| {
                isolated(member.pid, || trim_member(&target, &pages, index, how, is_dry, progress))
            });
            each(member.pid, trimmed)?;
        }
        Ok(())
    }

    /// Fails if the memory limit leaves too little room for rbloat's own memory: this part of the sum of RSS.
    fn check_room(&self, part: u64) -> Result<(), Error> {
        let resident: u64 = self.members.iter().map(|it| it.rss_bytes).sum();
        self.opened.iter().flatten().try_for_each(|it| {
            attempts::check_room(it.pid(), &MemoryLimits::of(it), resident / part)
        })
    }

    /// Captures the members in turn, and accounts for their memory.
    ///
    /// # Errors
    /// If no member can be read, or there is too little memory.
    pub fn account(
        self,
        how: CaptureOptions,
        detail: Detail,
        has_identical: bool,
        progress: &dyn Progress,
    ) -> Result<FamilyAccount, Error> {
        let is_orphan = |it: &Member| it.is_forked && proc::parent_in_family(it.pid).is_none();
        let orphans: Vec<bool> = self.members.iter().map(is_orphan).collect();
        self.check_room(if has_identical { OWN_PART_WITH_HASHES } else { OWN_PART })?;
        let Self { members, opened, group } = self;
        progress.capture(members[0].pid, members[0].rss_bytes);
        // All at nearly the same time. A member that cannot be read has no pages.
        let mut looks: Vec<Look> = opened.into_iter().map(Look::at).collect();
        let frames: Vec<Vec<PageFrame>> =
            looks.iter_mut().map(|look| std::mem::take(&mut look.frames)).collect();
        let pages = pages(&members, &frames);
        let is_estimated = pages.is_estimated();
        let outside_bytes = if is_estimated { None } else { outside_bytes(&pages) };
        let group_facts = group.as_ref().and_then(|group| group.facts(&pages));
        // Of the same time as the parts that explain it.
        let first = looks.iter().find_map(|look| look.target.as_ref());
        let groups = first.and_then(|target| target.control_groups().ok());
        let group_memory = match &group {
            Some(group) => group.group.memory(),
            None => groups.and_then(proc::memory_of_groups),
        };
        let mut findings = Vec::new();
        if group.is_none() && first.is_some() && groups.is_none() {
            findings.push(FindingKind::GroupLimitUnknown);
        }
        let mut accounts = Vec::new();
        let mut ruby_version = None;
        let (mut unread, mut unexplained) = (Vec::new(), Vec::new());
        for (index, member) in members.iter().enumerate() {
            let read = match looks[index].failure.take() {
                None => isolated(member.pid, || {
                    read(&members, &looks, index, &pages, how, detail, &mut unexplained)
                }),
                Some(failure) => Err(failure),
            };
            let read = match read {
                Ok((version, capture, accounts)) => {
                    ruby_version = ruby_version.or(version);
                    Some((capture, accounts))
                }
                Err(error) => {
                    unread.push((member.pid, error));
                    None
                }
            };
            accounts.push(MemberAccount {
                pid: member.pid,
                started_ticks: member.started_ticks,
                parent: parent(&members, member).map(|index| members[index].pid),
                is_orphan: orphans[index],
                command: proc::command_line(member.pid).unwrap_or_default(),
                rollup: looks[index].rollup,
                read,
            });
        }
        let identical = has_identical.then(|| identical_pages(&members, &looks, &pages));
        progress.end();
        if accounts.iter().all(|it| it.read.is_none()) && !unread.is_empty() {
            return Err(unread.swap_remove(0).1);
        }
        let family = diagnosis::family(FamilyFacts {
            ruby_version,
            frames: FamilyFrames { outside_bytes, is_estimated },
            group: group_memory,
            group_facts,
            identical,
            has_owners: detail.owners,
            members: accounts,
            findings,
        });
        Ok(FamilyAccount { family, unread, unexplained })
    }
}

/// The account of a family.
pub struct FamilyAccount {
    /// The account, without a finding about the members that could not be read.
    pub family: Family,
    /// The processes that could not be read, and the reasons.
    pub unread: Vec<(i32, Error)>,
    /// The processes whose memory was not read, but whose pages are known, and the reasons.
    pub unexplained: Vec<(i32, Error)>,
}

/// Returns the index of the parent of a member.
fn parent(members: &[Member], member: &Member) -> Option<usize> {
    members.iter().position(|it| it.pid == member.parent)
}

fn pages<'a>(members: &[Member], frames: &'a [Vec<PageFrame>]) -> FamilyPages<'a> {
    let pages = frames.iter().zip(members);
    let pages = pages.map(|(frames, it)| MemberPages { frames, parent: parent(members, it) });
    FamilyPages::new(Machine::own(), pages.collect())
}

/// A control group, and its processes that are no Ruby processes.
struct Group {
    group: ControlGroup,
    others: Vec<i32>,
}

impl Group {
    /// Returns the group's memory beside that of its Ruby processes; `None` if the group does not count memory.
    fn facts(&self, pages: &FamilyPages<'_>) -> Option<GroupFacts> {
        let other = |&pid: &i32| {
            let pss_bytes = proc::rollup(pid).ok()?.pss_bytes;
            Some(OtherProcess { pid, command: proc::command_line(pid).ok()?, pss_bytes })
        };
        let charged_elsewhere_bytes = if pages.is_estimated() {
            None
        } else {
            let own = self.group.numbers();
            let groups = groups_of_frames(&pages.all_frames()).ok();
            groups.map(|groups| {
                groups.iter().filter(|group| !own.contains(group)).count() as u64 * page_size()
            })
        };
        Some(GroupFacts {
            kernel: self.group.memory_of_kernel()?,
            others: self.others.iter().filter_map(other).collect(),
            charged_elsewhere_bytes,
        })
    }
}

/// A member, its pages, and the kernel's counts.
#[derive(Default)]
struct Look {
    target: Option<Target>,
    frames: Vec<PageFrame>,
    rollup: Rollup,
    /// The reason if they could not be read.
    failure: Option<Error>,
}

impl Look {
    fn at(opened: Result<Target, Error>) -> Self {
        let looked = opened.and_then(|target| {
            let pid = target.pid();
            let (frames, rollup) =
                isolated(pid, || Ok::<_, Error>((page_frames(pid)?, proc::rollup(pid)?)))?;
            Ok(Self { target: Some(target), frames, rollup, failure: None })
        });
        looked.unwrap_or_else(|failure| Self { failure: Some(failure), ..Self::default() })
    }

    /// The memory of the member, while it runs.
    fn image(&self) -> Option<&Image<'static>> {
        self.target.as_ref().map(Target::image)
    }
}

/// Trims a member, or predicts that.
fn trim_member(
    target: &Target,
    pages: &FamilyPages<'_>,
    index: usize,
    how: CaptureOptions,
    is_dry: bool,
    progress: &dyn Progress,
) -> Result<(TrimReport, Option<u64>), Error> {
    let call = AllocatorCall::find(target)?;
    progress.capture(target.pid(), target.counts.resident_bytes);
    let predicted = predict_and(target, &call, how, |state, facts| {
        let resident = state.pages.as_ref().expect("a captured process has page states");
        pages.parts(index, resident).private_causes(state, facts)[Cause::MallocUnreturned]
    });
    progress.end();
    let (mut report, _, unreturned) = predicted?;
    if !is_dry {
        report.outcome = Some(trim(&call)?);
    }
    let private = report.expected.returned_bytes.map(|returned| returned.min(unreturned));
    Ok((report, private))
}

/// Captures a member, and accounts for the parts of its memory. Returns the version of its Ruby, too.
fn read(
    members: &[Member],
    looks: &[Look],
    index: usize,
    pages: &FamilyPages<'_>,
    how: CaptureOptions,
    detail: Detail,
    unexplained: &mut Vec<(i32, Error)>,
) -> Result<(Option<String>, Capture, MemberAccounts), Error> {
    let Member { pid, parent, .. } = members[index];
    let target = looks[index].target.as_ref().filter(|_| lives(&members[index]));
    let target = target.ok_or(linux::Error::NoSuchProcess { pid })?;
    let captured = attempts::take(target, how, detail)?;
    // Its pages are known all the same.
    unexplained.extend(captured.check_read(pid).err().map(|error| (pid, error)));
    let Captured { facts, state, capture, .. } = captured;
    let resident = state.pages.as_ref().expect("a captured process has page states");
    let parents = members.iter().zip(looks).find(|(it, _)| it.pid == parent && lives(it));
    let parents = parents.and_then(|(_, look)| look.image());
    let accounts = || {
        let memories = parents.map(|parents| [target.image() as &dyn Memory, parents]);
        pages.parts(index, resident).accounts(&state, &facts, memories)
    };
    let version = facts.ruby_version().map(str::to_owned);
    Ok((version, capture, Sandbox::of_analyses(how.sandbox).run(accounts)))
}

/// Returns true unless the process has ended.
fn lives(member: &Member) -> bool {
    proc::member_since(member.pid, member.started_ticks).is_some()
}

/// Reads each frame once, and counts different contents.
fn identical_pages(members: &[Member], looks: &[Look], pages: &FamilyPages<'_>) -> IdenticalPages {
    let mut distinct = DistinctPages::default();
    for (index, member) in members.iter().enumerate() {
        if !lives(member) {
            continue;
        }
        let Some(image) = looks[index].image() else { continue };
        let numbers: Vec<u64> = pages.counted_pages(index).collect();
        let mut bytes = vec![0; (PAGES_PER_READ * page_size()) as usize];
        for run in numbers.chunk_by(|one, next| one + 1 == *next) {
            for run in run.chunks(PAGES_PER_READ as usize) {
                let wanted = run.len() * page_size() as usize;
                let read = image.read(Address(run[0] * page_size()), &mut bytes[..wanted]);
                bytes[..read]
                    .chunks_exact(page_size() as usize)
                    .for_each(|page| distinct.add(page));
            }
        }
    }
    IdenticalPages { read_bytes: distinct.read_bytes(), distinct_bytes: distinct.distinct_bytes() }
}

/// Returns the bytes of the frames that processes outside of the family map, too; `None` if the kernel does not tell.
fn outside_bytes(pages: &FamilyPages<'_>) -> Option<u64> {
    let (frames, members): (Vec<u64>, Vec<u64>) = pages.shared_frames().unzip();
    let counts = map_counts(&frames).ok()?;
    let outside = counts.iter().zip(&members).filter(|(count, members)| count > members);
    Some(outside.count() as u64 * page_size())
}
