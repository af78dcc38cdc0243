//! Families of processes: `rbloat report --tree`, `snapshot --tree` and `diff --tree`.

use std::cmp::Reverse;

use examine::{
    CaptureOptions, Detail, FamilyAccount, FamilyMembers, SnapshotFile, Source, SourceName, about,
};
use formats::{Family, FindingKind, FindingRow};

use crate::failure::{Failure, Outcome};
use crate::naming;
use crate::progress::Progress;
use crate::remedy::explained;

/// Finds the families of these processes.
pub(super) fn members_of(names: &[SourceName]) -> Result<FamilyMembers, Failure> {
    let process = |name: &SourceName| match name {
        SourceName::Process(name) => Ok(name.clone()),
        SourceName::File { .. } => Err(Failure::TreeOfFile),
    };
    let names = names.iter().map(process).collect::<Result<Vec<_>, _>>()?;
    Ok(FamilyMembers::of_families(&names)?)
}

/// Opens a file with the account of a family.
pub(super) fn file(name: SourceName) -> Result<SnapshotFile, Failure> {
    match naming::source(name)? {
        Source::Snapshot(file) => Ok(file),
        Source::Process(_) | Source::Core(_) => Err(Failure::TreeOfFile),
    }
}

/// Accounts for these processes. A finding names each one that could not be read.
pub(super) fn account(
    members: FamilyMembers,
    how: CaptureOptions,
    detail: Detail,
    has_identical: bool,
) -> Result<Family, Failure> {
    let accounted = members.account(how, detail, has_identical, &Progress::new())?;
    let FamilyAccount { mut family, unread, unexplained } = accounted;
    let findings = unread.into_iter().map(|(pid, error)| {
        FindingRow::from(match error.is_end() {
            true => FindingKind::ProcessEnded { pid },
            false => FindingKind::ProcessUnread { pid, error: about(pid, &explained(&error)) },
        })
    });
    family.findings.extend(findings);
    let unexplained = unexplained.into_iter().map(|(pid, error)| {
        let error = about(pid, &explained(&error));
        FindingRow::from(FindingKind::ProcessUnexplained { pid, error })
    });
    family.findings.extend(unexplained);
    family.findings.sort_by_key(|row| Reverse(row.severity));
    Ok(family)
}

/// Returns whether all members could be read.
pub(super) fn outcome(family: &Family) -> Outcome {
    if family.findings.is_empty() { Outcome::Done } else { Outcome::Incomplete }
}
