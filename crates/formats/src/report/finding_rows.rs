//! The rows of the findings that the ledger, the walkers and cores have.

use ledger::{Finding, MallocFinding, RubyFinding};
use linux::Address;

use crate::report::finding_figures::{
    ArenaProblem, CacheProblem, CacheUnit, CachesProblem, DifferentFile, HeapPart, MissingFile,
    ResidencyEvidence, RssCount, RubyPart,
};
use crate::report::findings::{FindingKind, FindingRow};

/// The row of a finding about one address.
fn at(address: Address, kind: FindingKind) -> FindingRow {
    FindingRow { address: Some(address.to_string()), ..FindingRow::from(kind) }
}

/// Returns the rows of findings, the most severe first.
pub(crate) fn rows(findings: &[Finding]) -> Vec<FindingRow> {
    let mut rows: Vec<_> = findings.iter().map(FindingRow::from).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.severity));
    rows
}

impl From<&Finding> for FindingRow {
    fn from(finding: &Finding) -> Self {
        use FindingKind as Kind;
        Self::from(match finding.clone() {
            Finding::Core(finding) => of_core(finding),
            Finding::Malloc(finding) => return of_malloc(finding),
            Finding::Ruby(finding) => of_ruby(finding),
            Finding::MemoryUnread => Kind::MemoryUnread,
            Finding::MallocNotFound => Kind::MallocNotFound,
            Finding::MallocUnsupported { allocator } => Kind::MallocUnsupported { allocator },
            Finding::MallocUnread { error } => Kind::MallocUnread { error },
            Finding::RubyNotFound => Kind::RubyNotFound,
            Finding::RubyStarting { version } => Kind::RubyStarting { version },
            Finding::CollectorUnsupported { version, collector } => {
                Kind::CollectorUnsupported { version, collector }
            }
            Finding::RubyUnread { version, error } => Kind::RubyUnread { version, error },
            Finding::CoreWithoutObjects => Kind::CoreWithoutObjects,
            Finding::PointersSwapped { bytes } => Kind::PointersUnread { bytes, in_core: false },
            Finding::PointersNotDumped { bytes } => Kind::PointersUnread { bytes, in_core: true },
            Finding::PointersLeftOut { pointers } => Kind::PointersLeftOut { pointers },
            Finding::OwnersUnknown { nodes, max } => Kind::OwnersUnknown { nodes, max },
            Finding::RowsDiffer { bytes, resident_bytes } => Kind::RssDiffers {
                bytes,
                min_bytes: resident_bytes,
                max_bytes: resident_bytes,
                counted_by: RssCount::PageStates,
            },
            Finding::CountDiffers { bytes, min_bytes, max_bytes, is_kernels } => Kind::RssDiffers {
                bytes,
                min_bytes,
                max_bytes,
                counted_by: if is_kernels { RssCount::Kernel } else { RssCount::Core },
            },
            Finding::ClaimedTwice { at: address, ranges, cause, other } => {
                return at(address, Kind::ClaimedTwice { ranges, cause, other });
            }
            Finding::EnvironmentUnknown => Kind::EnvironmentUnknown,
        })
    }
}

fn of_core(finding: image::Finding) -> FindingKind {
    use image::Finding as Core;
    let estimated = |evidence| FindingKind::CoreResidencyEstimated { evidence };
    match finding {
        Core::Truncated { bytes } => FindingKind::CoreTruncated { bytes },
        Core::NotDumped { bytes } => FindingKind::CoreMemoryMissing { bytes },
        Core::StacksNotDumped { threads } => FindingKind::CoreStacksMissing { threads },
        Core::InvalidSegments { segments } => FindingKind::CoreSegmentsInvalid { segments },
        Core::FilesUnknown => FindingKind::CoreFilesUnknown,
        Core::NoThreads => FindingKind::CoreThreadsMissing,
        Core::ResidencyByHoles => estimated(ResidencyEvidence::Holes),
        Core::ResidencyByContents => estimated(ResidencyEvidence::Contents),
        Core::FileResidencyUnknown { bytes } => FindingKind::CoreFileResidencyUnknown { bytes },
        Core::FilesMissing { files, others } => {
            let file = |it: image::MissingFile| MissingFile { path: it.path, error: it.error };
            let files = files.into_iter().map(file).collect();
            FindingKind::CoreFilesMissing { files, others }
        }
        Core::FilesDiffer { files, others } => {
            let file = |it: image::DifferentFile| DifferentFile {
                path: it.path,
                build_id: it.build_id,
                mapped_build_id: it.mapped_build_id,
            };
            let files = files.into_iter().map(file).collect();
            FindingKind::CoreFilesDiffer { files, others }
        }
        Core::FilesUnproven { paths, others } => FindingKind::CoreFilesUnproven { paths, others },
    }
}

fn of_malloc(finding: MallocFinding) -> FindingRow {
    use FindingKind as Kind;
    use MallocFinding as Malloc;
    let unknown = |problem| FindingRow::from(Kind::ThreadCachesUnknown { problem });
    let rejected =
        |misfits, all, unit| FindingRow::from(Kind::ThreadCachesRejected { misfits, all, unit });
    let changing = |part, count, bytes| FindingRow::from(Kind::HeapChanging { part, count, bytes });
    let cache =
        |tid, address, problem, error| at(address, Kind::ThreadCacheUnread { tid, problem, error });
    match finding {
        Malloc::AllocatorUnknown { modules } => Kind::AllocatorUnknown { modules }.into(),
        Malloc::AllocatorAssumed { caller, module } => {
            Kind::AllocatorAssumed { caller, module }.into()
        }
        Malloc::ArenaUnread { arena, is_main, at: address, cause, error } => {
            let (arena, problem) = (arena.to_string(), ArenaProblem::from(cause));
            at(address, Kind::ArenaUnread { arena, main: is_main, problem, error })
        }
        Malloc::ArenaUnlisted { arena } => at(arena, Kind::ArenaUnlisted { number: None }),
        Malloc::ExtentsUnlisted { arena } => Kind::ArenaUnlisted { number: Some(arena) }.into(),
        Malloc::HugePages { arena } => at(arena, Kind::HugePagesUsed),
        Malloc::ExtentUnread { at: address, error } => {
            at(address, Kind::ExtentUnread { error: error.into() })
        }
        Malloc::EntriesChanging { entries } => changing(HeapPart::TreeEntries, entries, None),
        Malloc::ExtentsChanging { extents, bytes } => {
            changing(HeapPart::Extents, extents, Some(bytes))
        }
        Malloc::RegionsChanging { regions } => changing(HeapPart::CachedRegions, regions, None),
        Malloc::ListsChanging { lists } => changing(HeapPart::CacheLists, lists, None),
        Malloc::CachesWithoutRegisters => unknown(CachesProblem::NoRegisters),
        Malloc::CachesNotFound => unknown(CachesProblem::NotFound),
        Malloc::CachesAmbiguous => unknown(CachesProblem::Ambiguous),
        Malloc::CachesMisfit { fitting, threads } => {
            rejected(threads.saturating_sub(fitting), threads, CacheUnit::Threads)
        }
        Malloc::CachedRegionsFree { free, regions } => rejected(free, regions, CacheUnit::Regions),
        Malloc::CacheInUnreadArena { tid, at } => cache(tid, at, CacheProblem::ArenaUnread, None),
        Malloc::CacheChanging { tid, at } => cache(tid, at, CacheProblem::Changing, None),
        Malloc::CacheInvalid { tid, at, error } => {
            cache(tid, at, CacheProblem::Invalid, Some(error))
        }
        Malloc::MmappedUnknown => Kind::MmappedChunksUnknown.into(),
        Malloc::MmappedMiscounted { counted_chunks, counted_bytes, found_chunks, found_bytes } => {
            Kind::MmappedChunksMiscounted {
                counted_chunks,
                counted_bytes,
                found_chunks,
                found_bytes,
            }
            .into()
        }
        Malloc::MmappedDrift { bytes, chunks, step_bytes } => {
            Kind::MmappedBytesDrifted { bytes, chunks, step_bytes }.into()
        }
        Malloc::ForeignMemory { at: address, bytes } => {
            at(address, Kind::ForeignBrkMemory { bytes })
        }
    }
}

fn of_ruby(finding: RubyFinding) -> FindingKind {
    use RubyFinding as Ruby;
    let unknown = |part| FindingKind::RubyLayoutUnknown { part };
    match finding {
        Ruby::ClassNamesUnknown => unknown(RubyPart::ClassNames),
        Ruby::ClassLayoutUnknown => unknown(RubyPart::SingletonClasses),
        Ruby::InternalTypesUnknown => unknown(RubyPart::InternalTypes),
        Ruby::DataTypesUnknown => unknown(RubyPart::DataTypes),
        Ruby::RootNamesUnknown => unknown(RubyPart::RootNames),
        Ruby::ClassVariablesUnknown => unknown(RubyPart::ClassVariables),
        Ruby::GlobalVariablesUnknown => unknown(RubyPart::GlobalVariables),
        Ruby::CodeFilesUnknown => unknown(RubyPart::CodeFiles),
        Ruby::ObjectLayoutsUnknown { types } => {
            let types = types.into_iter().map(str::to_owned).collect();
            FindingKind::ObjectLayoutsUnknown { types }
        }
        Ruby::RootsLeftOut => FindingKind::RootsLeftOut,
        Ruby::TransientHeapUnread { bytes } => FindingKind::TransientHeapUnread { bytes },
        Ruby::SlotsUnread { slots } => FindingKind::SlotsUnread { slots },
        Ruby::NoMarks => FindingKind::NoMarks,
        Ruby::NotSearched => FindingKind::HeapPagesUnsearched,
    }
}

impl From<ledger::ArenaProblem> for ArenaProblem {
    fn from(problem: ledger::ArenaProblem) -> Self {
        match problem {
            ledger::ArenaProblem::Unreadable => Self::Unreadable,
            ledger::ArenaProblem::Changing => Self::Changing,
            ledger::ArenaProblem::Inconsistent => Self::Inconsistent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_severe_findings_come_first() {
        let findings = [
            Finding::EnvironmentUnknown,
            Finding::PointersLeftOut { pointers: 1 },
            Finding::MallocNotFound,
            Finding::RubyNotFound,
        ];
        let kinds: Vec<_> = rows(&findings).into_iter().map(|row| row.kind).collect();
        let expected = [
            FindingKind::MallocNotFound,
            FindingKind::RubyNotFound,
            FindingKind::PointersLeftOut { pointers: 1 },
            FindingKind::EnvironmentUnknown,
        ];
        assert_eq!(kinds, expected);
    }
}
