//! The account of a family of processes: `rbloat report --tree`, `snapshot --tree` and `map --tree`.

use std::path::Path;

use diagnosis::{FamilyFacts, FamilyFrames, GroupFacts, MemberAccount};
use formats::{Capture, Family, FindingKind, IdenticalPages, OtherProcess, SharedPages, to_json};
use image::Memory;
use ledger::{DistinctPages, FamilyPages, MemberAccounts, MemberPages};
use linux::arch::page_size;
use linux::proc::{self, ControlGroup, Member, Rollup};
use linux::{Address, Machine};
use linux::{PageFrame, groups_of_frames, map_counts, page_frames};

use super::report::ReportArguments;
use super::snapshot::SnapshotArguments;
use crate::arguments::{CaptureArguments, ProcessName, SourceName};
use crate::attempts::{self, Captured};
use crate::failure::{Failure, Outcome};
use crate::isolation::isolated;
use crate::output::{Output, default_path};
use crate::progress::Progress;
use crate::sandbox::Sandbox;
use crate::source::{Detail, Source};
use crate::terminal;

/// rbloat's own memory for the page frames of a family, as a fraction of the sum of RSS: up to 56 bytes for a page, and with hashes
/// of all pages up to 32 more. The captures come on top; they check the room for themselves.
const OWN_PART: u64 = 72;
const OWN_PART_WITH_HASHES: u64 = 46;
/// Pages that are read at a time.
const PAGES_PER_READ: u64 = 64;

/// The processes of an account.
pub(super) struct Processes {
    members: Vec<Member>,
    /// The control group of which they are all Ruby processes.
    group: Option<Group>,
}

pub(super) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let how = arguments.source.capture;
    let detail = if arguments.owners() > 0 { Detail::OWNERS } else { Detail::CAUSES };
    let family = match file(arguments)? {
        Some(file) => {
            let source = Source::open(file)?;
            Sandbox::new(how.sandbox, []).run(|| source.family())?
        }
        None => {
            let processes = match &arguments.cgroup {
                Some(path) => Processes::of_group(path)?,
                None => Processes::of_families(&names(arguments)?)?,
            };
            processes.account(how, detail, arguments.identical)?
        }
    };
    terminal::print(&match arguments.json {
        true => to_json(&family, &render::family_summary(&family)),
        false => render::family(&family, terminal::width()),
    })?;
    if let (false, Some(largest)) =
        (arguments.json, family.members.iter().max_by_key(|member| member.private_bytes))
    {
        terminal::suggest(&["rbloat", "report", &largest.pid.to_string()])?;
    }
    Ok(outcome(&family))
}

/// Returns whether all members could be read.
pub(super) fn outcome(family: &Family) -> Outcome {
    if family.findings.is_empty() { Outcome::Done } else { Outcome::Incomplete }
}

fn names(arguments: &ReportArguments) -> Result<Vec<SourceName>, Failure> {
    let more = arguments.more.iter().map(|word| SourceName::of(word, None));
    Ok(std::iter::once(arguments.source.name()?).chain(more).collect())
}

/// Returns the file with a family if one is given, alone.
fn file(arguments: &ReportArguments) -> Result<Option<SourceName>, Failure> {
    if arguments.cgroup.is_some() || !arguments.more.is_empty() {
        return Ok(None);
    }
    let name = arguments.source.name()?;
    Ok(matches!(name, SourceName::File { .. }).then_some(name))
}

/// Saves the account of a family.
pub(super) fn save(arguments: &SnapshotArguments) -> Result<Outcome, Failure> {
    let processes = Processes::of_families(&[arguments.source.name()?])?;
    let name = processes.members[0].pid.to_string();
    let path = arguments.output.clone().unwrap_or_else(|| default_path(&name, "rbloat"));
    let output = Output::open(&path)?;
    let is_file = output.is_file();
    let family = processes.account(arguments.source.capture, Detail::OWNERS, false)?;
    let bytes = family.to_bytes();
    output.write(&bytes)?;
    let summary = render::saved_family(&family, &path, bytes.len() as u64);
    if is_file {
        terminal::print_sentences(&summary)?;
        terminal::suggest(&["rbloat", "report", "--tree", &path.display().to_string()])?;
    } else {
        terminal::print_error(&summary);
    }
    Ok(outcome(&family))
}

/// Returns the pages of a process by the members of its family that map them.
pub(super) fn shared_pages(pid: i32) -> Result<SharedPages, Failure> {
    let processes = Processes::of_family(pid)?;
    let index = processes.members.iter().position(|it| it.pid == pid);
    let Some(index) = index.filter(|_| processes.members.len() > 1) else {
        return Err(Failure::NoFamily { pid });
    };
    processes.check_room(OWN_PART)?;
    let frames = processes.members.iter().map(|it| page_frames(it.pid));
    let frames: Vec<Vec<PageFrame>> = frames.map(Result::unwrap_or_default).collect();
    let pages = processes.pages(&frames);
    Ok(SharedPages {
        processes: processes.members.len() as u64,
        is_estimated: pages.is_estimated(),
        pages: pages.sharing(index),
    })
}

impl Processes {
    /// Finds the families of these processes.
    pub(super) fn of_families(names: &[SourceName]) -> Result<Self, Failure> {
        let (mut members, mut ended): (Vec<Member>, _) = (Vec::new(), None);
        for name in names {
            let SourceName::Process(name) = name else { return Err(Failure::TreeOfFile) };
            for pid in crate::process::find_all(name.clone())? {
                if members.iter().any(|it| it.pid == pid) {
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
        proc::sort_by_age(&mut members);
        Ok(Self { members, group: None })
    }

    /// Finds the family of a process.
    fn of_family(pid: i32) -> Result<Self, Failure> {
        Self::of_families(&[SourceName::Process(ProcessName::Pid(pid))])
    }

    /// Finds the Ruby processes of a control group.
    fn of_group(path: &Path) -> Result<Self, Failure> {
        let group = Group::find(path)?;
        Ok(Self { members: group.rubies.clone(), group: Some(group) })
    }

    /// Fails if the memory limit leaves too little room for rbloat's own memory: this part of the sum of RSS.
    fn check_room(&self, part: u64) -> Result<(), Failure> {
        let resident: u64 = self.members.iter().map(|it| it.rss_bytes).sum();
        self.members.iter().try_for_each(|it| {
            let groups = proc::control_groups(it.pid);
            attempts::check_room(it.pid, groups.as_deref(), resident / part)
        })
    }

    fn parent(&self, member: &Member) -> Option<usize> {
        self.members.iter().position(|it| it.pid == member.parent)
    }

    fn pages<'a>(&self, frames: &'a [Vec<PageFrame>]) -> FamilyPages<'a> {
        let pages = frames.iter().zip(&self.members);
        let pages = pages.map(|(frames, it)| MemberPages { frames, parent: self.parent(it) });
        FamilyPages::new(Machine::own(), pages.collect())
    }

    /// Captures the members in turn, and accounts for their memory.
    pub(super) fn account(
        &self,
        how: CaptureArguments,
        detail: Detail,
        has_identical: bool,
    ) -> Result<Family, Failure> {
        let Self { members, group } = self;
        let is_orphan = |it: &Member| it.is_forked && proc::parent_in_family(it.pid).is_none();
        let orphans: Vec<bool> = members.iter().map(is_orphan).collect();
        self.check_room(if has_identical { OWN_PART_WITH_HASHES } else { OWN_PART })?;
        let progress = Progress::of_capture(members[0].pid);
        // All at nearly the same time. A member that cannot be read has no pages.
        let mut looks: Vec<Look> = members.iter().map(look).collect();
        let frames: Vec<Vec<PageFrame>> =
            looks.iter_mut().map(|look| std::mem::take(&mut look.frames)).collect();
        let pages = self.pages(&frames);
        let is_estimated = pages.is_estimated();
        let outside_bytes = if is_estimated { None } else { outside_bytes(&pages) };
        let group_facts = group.as_ref().and_then(|group| group.facts(&pages));
        // Of the same time as the parts that explain it.
        let group_memory = match group {
            Some(group) => group.group.memory(),
            None => proc::group_memory(members[0].pid),
        };
        let mut findings = Vec::new();
        if group.is_none() && proc::control_groups(members[0].pid).is_none() {
            findings.push(FindingKind::GroupLimitUnknown);
        }
        let mut accounts = Vec::new();
        let mut ruby_version = None;
        let mut first_failure = None;
        for (index, (member, look)) in members.iter().zip(looks).enumerate() {
            let read = match look.failure {
                None => isolated(member.pid, || {
                    read(members, index, &pages, how, detail, &mut findings)
                }),
                Some(failure) => Err(failure),
            };
            let read = match read {
                Ok((version, capture, accounts)) => {
                    ruby_version = ruby_version.or(version);
                    Some((capture, accounts))
                }
                Err(failure) => {
                    findings.push(not_read(member.pid, &failure));
                    first_failure.get_or_insert(failure);
                    None
                }
            };
            accounts.push(MemberAccount {
                pid: member.pid,
                started_ticks: member.started_ticks,
                parent: self.parent(member).map(|index| members[index].pid),
                is_orphan: orphans[index],
                command: proc::command_line(member.pid).unwrap_or_default(),
                rollup: look.rollup,
                read,
            });
        }
        let identical = has_identical.then(|| identical_pages(members, &pages));
        progress.end();
        if let Some(failure) = first_failure.filter(|_| accounts.iter().all(|it| it.read.is_none()))
        {
            return Err(failure);
        }
        Ok(diagnosis::family(FamilyFacts {
            ruby_version,
            frames: FamilyFrames { outside_bytes, is_estimated },
            group: group_memory,
            group_facts,
            identical,
            has_owners: detail.owners,
            members: accounts,
            findings,
        }))
    }
}

/// The Ruby processes of a control group, and the others.
struct Group {
    group: ControlGroup,
    rubies: Vec<Member>,
    others: Vec<i32>,
}

impl Group {
    fn find(path: &Path) -> Result<Self, Failure> {
        let group = ControlGroup::at(path).ok_or_else(|| Failure::NoGroup { path: path.into() })?;
        let (mut rubies, mut others, mut refusal) = (Vec::new(), Vec::new(), None);
        for pid in group.processes() {
            match crate::process::ruby(pid) {
                Ok(Some(_)) => rubies.extend(proc::member(pid).filter(|member| !member.is_copy)),
                Ok(None) => others.push(pid),
                Err(failure) if failure.is_without_memory() => {}
                Err(failure) => refusal = Some(failure),
            }
        }
        match refusal {
            // It may be a Ruby process.
            Some(refusal) if rubies.is_empty() => return Err(refusal),
            None if rubies.is_empty() => return Err(Failure::NoRubyInGroup { path: path.into() }),
            _ => {}
        }
        proc::sort_by_age(&mut rubies);
        Ok(Self { group, rubies, others })
    }

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

/// The pages of a member, and the kernel's counts.
#[derive(Default)]
struct Look {
    frames: Vec<PageFrame>,
    rollup: Rollup,
    /// The reason if they could not be read.
    failure: Option<Failure>,
}

fn look(member: &Member) -> Look {
    let pid = member.pid;
    match isolated(pid, || Ok((page_frames(pid)?, proc::rollup(pid)?))) {
        Ok((frames, rollup)) => Look { frames, rollup, failure: None },
        Err(failure) => Look { failure: Some(failure), ..Look::default() },
    }
}

/// Returns the finding that a member could not be read.
fn not_read(pid: i32, failure: &Failure) -> FindingKind {
    if failure.is_end() {
        return FindingKind::ProcessEnded { pid };
    }
    FindingKind::ProcessUnread { pid, error: failure.about(pid) }
}

/// Captures a member, and accounts for the parts of its memory. Returns the version of its Ruby, too.
fn read(
    members: &[Member],
    index: usize,
    pages: &FamilyPages<'_>,
    how: CaptureArguments,
    detail: Detail,
    findings: &mut Vec<FindingKind>,
) -> Result<(Option<String>, Capture, MemberAccounts), Failure> {
    let Member { pid, parent, .. } = members[index];
    if !lives(&members[index]) {
        return Err(linux::Error::NoSuchProcess { pid }.into());
    }
    let captured = attempts::take(&crate::process::target(pid)?, how, detail)?;
    // Its pages are known all the same.
    if let Err(failure) = captured.check_read(pid) {
        findings.push(FindingKind::ProcessUnexplained { pid, error: failure.to_string() });
    }
    let Captured { facts, state, capture, .. } = captured;
    let resident = state.pages.as_ref().expect("a captured process has page states");
    let has_parent = members.iter().any(|it| it.pid == parent && lives(it));
    let memories = has_parent.then(|| image::look(pid).ok().zip(image::look(parent).ok()));
    let memories = memories.flatten();
    let accounts = || {
        let memories = memories.as_ref().map(|(own, parents)| [own as &dyn Memory, parents]);
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
fn identical_pages(members: &[Member], pages: &FamilyPages<'_>) -> IdenticalPages {
    let mut distinct = DistinctPages::default();
    for (index, member) in members.iter().enumerate() {
        if !lives(member) {
            continue;
        }
        let Ok(image) = image::look(member.pid) else { continue };
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
