//! `rbloat report --tree`: the account of a family of processes.

use capture::live::{PageFrame, map_counts, page_frames};
use capture::proc::{self, Member, Rollup};
use capture::{Finding, PAGE_SIZE, Severity};
use diagnosis::{FamilyFrames, MemberAccount};
use formats::{Capture, to_json};
use ledger::{FamilyPages, MemberPages, PartAccount};

use super::report::ReportArguments;
use crate::arguments::{CaptureArguments, SourceName};
use crate::attempts::{self, Captured};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::sandbox::Sandbox;
use crate::source::Detail;
use crate::terminal;

pub(super) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let SourceName::Process(name) = arguments.source.name()? else {
        return Err(Failure::TreeOfFile);
    };
    let pid = crate::process::find(name)?;
    let how = arguments.source.capture;
    let detail = if arguments.owners() > 0 { Detail::OWNERS } else { Detail::CAUSES };
    let members = proc::family(pid);
    let progress = Progress::of_capture(pid);
    // All at nearly the same time. A member that has ended meanwhile has no pages.
    let looks: Vec<(Vec<PageFrame>, Rollup)> =
        members.iter().map(look).collect::<Result<_, _>>()?;
    let parent = |member: &Member| members.iter().position(|it| it.pid == member.parent);
    let pages = looks.iter().zip(&members);
    let pages = pages.map(|((frames, _), member)| MemberPages { frames, parent: parent(member) });
    let pages = FamilyPages::new(pages.collect());
    let is_estimated = pages.is_estimated();
    let outside_bytes = if is_estimated { None } else { outside_bytes(&pages) };
    let mut findings = Vec::new();
    let mut accounts = Vec::new();
    let mut ruby_version = None;
    for (index, (member, &(_, rollup))) in members.iter().zip(&looks).enumerate() {
        let read = match read(member.pid, index, &pages, how, detail, &mut findings) {
            Ok((version, capture, parts)) => {
                ruby_version = ruby_version.or(version);
                Some((capture, parts))
            }
            Err(failure) if failure.is_end() => {
                let what = format!("process {} ended before it was read", member.pid);
                findings.push(Finding::general(Severity::Warning, what));
                None
            }
            Err(failure) => return Err(failure),
        };
        let parent = parent(member).map(|index| members[index].pid);
        let command = proc::command_line(member.pid).unwrap_or_default();
        accounts.push(MemberAccount { pid: member.pid, parent, command, rollup, read });
    }
    progress.end();
    let is_complete = findings.is_empty();
    let frames = FamilyFrames { outside_bytes, is_estimated };
    let group = proc::group_memory(pid);
    let family = diagnosis::family(accounts, ruby_version, frames, group, detail.owners, &findings);
    terminal::print(&match arguments.json {
        true => to_json(&family, &render::family_summary(&family)),
        false => render::family(&family, terminal::width()),
    })?;
    if let (false, Some(largest)) =
        (arguments.json, family.members.iter().max_by_key(|member| member.private_bytes))
    {
        terminal::suggest(&["rbloat", "report", &largest.pid.to_string()])?;
    }
    Ok(if is_complete { Outcome::Done } else { Outcome::Incomplete })
}

/// Returns the pages of a member and the kernel's counts, none if it has ended.
fn look(member: &Member) -> Result<(Vec<PageFrame>, Rollup), Failure> {
    let looked = page_frames(member.pid).and_then(|frames| Ok((frames, proc::rollup(member.pid)?)));
    looked.map_err(Failure::from).or_else(|failure| match failure.is_end() {
        true => Ok(<_>::default()),
        false => Err(failure),
    })
}

/// Captures a member, and accounts for the parts of its memory. Returns the version of its Ruby, too.
fn read(
    pid: i32,
    index: usize,
    pages: &FamilyPages<'_>,
    how: CaptureArguments,
    detail: Detail,
    findings: &mut Vec<Finding>,
) -> Result<(Option<String>, Capture, [PartAccount; 4]), Failure> {
    let Captured { facts, state, capture, unread, .. } = attempts::take(pid, how, detail)?;
    // Its pages are known all the same.
    if let Some(reason) = unread {
        findings.push(Finding::general(Severity::Error, format!("process {pid}: {reason}")));
    }
    let resident = state.pages.as_ref().expect("a captured process has page states");
    let accounts = || pages.parts(index, resident).accounts(&state, &facts);
    let version = facts.ruby_version().map(str::to_owned);
    Ok((version, capture, Sandbox::of_analyses(how.sandbox).run(accounts)))
}

/// Returns the bytes of the frames that processes outside of the family map, too; `None` if the kernel does not tell.
fn outside_bytes(pages: &FamilyPages<'_>) -> Option<u64> {
    let (frames, members): (Vec<u64>, Vec<u64>) = pages.shared_frames().unzip();
    let counts = map_counts(&frames).ok()?;
    let outside = counts.iter().zip(&members).filter(|(count, members)| count > members);
    Some(outside.count() as u64 * PAGE_SIZE)
}
