//! The sentences of findings, word for word.

use std::collections::BTreeSet;
use std::fmt::Write;

use formats::{
    Alarm, ArenaProblem, CacheProblem, CacheUnit, CachesProblem, DifferentFile, FindingKind,
    FindingKind as Kind, FindingRow, FindingSeverity, GroupMember, HeapPart, MissingFile,
    ResidencyEvidence, RssCount, RubyPart,
};
use ledger::Cause;
use render::words;

fn of_cores() -> Vec<FindingKind> {
    let file = |build_id: Option<&str>| DifferentFile {
        path: "/usr/bin/ruby".into(),
        build_id: build_id.map(str::to_owned),
        mapped_build_id: "0a0b".into(),
    };
    let missing = MissingFile { path: "/lib/a.so".into(), error: "no such file".into() };
    vec![
        Kind::CoreTruncated { bytes: 5 << 20 },
        Kind::CoreMemoryMissing { bytes: 5 << 20 },
        Kind::CoreStacksMissing { threads: 3 },
        Kind::CoreSegmentsInvalid { segments: 2 },
        Kind::CoreFilesUnknown,
        Kind::CoreThreadsMissing,
        Kind::CoreResidencyEstimated { evidence: ResidencyEvidence::Holes },
        Kind::CoreResidencyEstimated { evidence: ResidencyEvidence::Contents },
        Kind::CoreFileResidencyUnknown { bytes: 5 << 20 },
        Kind::CoreFilesMissing { files: vec![missing.clone(), missing], others: 7 },
        Kind::CoreFilesDiffer { files: vec![file(Some("0c0d")), file(None)], others: 0 },
        Kind::CoreFilesUnproven { paths: vec!["/lib/b.so".into()], others: 0 },
        Kind::CoreWithoutObjects,
    ]
}

fn of_malloc() -> Vec<FindingKind> {
    let arena = |main, problem| {
        let (arena, error) = ("0x7f00".into(), "a chunk is too small".into());
        Kind::ArenaUnread { arena, main, problem, error }
    };
    let changing = |part, bytes| Kind::HeapChanging { part, count: 3, bytes };
    let rejected = |unit| Kind::ThreadCachesRejected { misfits: 1, all: 8, unit };
    let cache = |problem, error: Option<&str>| {
        let error = error.map(str::to_owned);
        Kind::ThreadCacheUnread { tid: 77, problem, error }
    };
    vec![
        Kind::MemoryUnread,
        Kind::MallocNotFound,
        Kind::MallocUnsupported { allocator: "libother.so".into() },
        Kind::MallocUnread { error: "the heap of musl was not found".into() },
        Kind::AllocatorUnknown { modules: vec!["a.so".into(), "libc.so.6".into()] },
        Kind::AllocatorAssumed { caller: "libruby.so".into(), module: "libc.so.6".into() },
        arena(true, ArenaProblem::Unreadable),
        arena(false, ArenaProblem::Changing),
        arena(false, ArenaProblem::Inconsistent),
        Kind::ArenaUnlisted { number: None },
        Kind::ArenaUnlisted { number: Some(4) },
        Kind::HugePagesUsed,
        Kind::ExtentUnread { error: "it overlaps another one".into() },
        changing(HeapPart::TreeEntries, None),
        changing(HeapPart::Extents, Some(8192)),
        changing(HeapPart::CachedRegions, None),
        changing(HeapPart::CacheLists, None),
        Kind::ThreadCachesUnknown { problem: CachesProblem::NoRegisters },
        Kind::ThreadCachesUnknown { problem: CachesProblem::NotFound },
        Kind::ThreadCachesUnknown { problem: CachesProblem::Ambiguous },
        rejected(CacheUnit::Threads),
        rejected(CacheUnit::Regions),
        cache(CacheProblem::ArenaUnread, None),
        cache(CacheProblem::Changing, None),
        cache(CacheProblem::Invalid, Some("a list of cached chunks runs in a circle")),
        Kind::MmappedChunksUnknown,
        Kind::MmappedChunksMiscounted {
            counted_chunks: 4,
            counted_bytes: 81_920,
            found_chunks: 5,
            found_bytes: 77_824,
        },
        Kind::MmappedBytesDrifted { bytes: 4096, chunks: 3, step_bytes: 16 },
        Kind::ForeignBrkMemory { bytes: 26_880 },
    ]
}

fn of_ruby() -> Vec<FindingKind> {
    let layout = |part| Kind::RubyLayoutUnknown { part };
    let version = || "3.4.1".to_owned();
    vec![
        Kind::RubyNotFound,
        Kind::RubyStarting { version: version() },
        Kind::CollectorUnsupported { version: version(), collector: "mmtk".into() },
        Kind::RubyUnread { version: version(), error: "several layouts fit (at 0x7f00)".into() },
        layout(RubyPart::ClassNames),
        layout(RubyPart::SingletonClasses),
        layout(RubyPart::InternalTypes),
        layout(RubyPart::DataTypes),
        layout(RubyPart::RootNames),
        layout(RubyPart::ClassVariables),
        layout(RubyPart::GlobalVariables),
        layout(RubyPart::CodeFiles),
        Kind::ObjectLayoutsUnknown { types: vec!["T_ARRAY".into(), "T_HASH".into()] },
        Kind::RootsLeftOut,
        Kind::TransientHeapUnread { bytes: 65_536 },
        Kind::SlotsUnread { slots: 1234 },
        Kind::NoMarks,
        Kind::HeapPagesUnsearched,
    ]
}

fn of_the_account() -> Vec<FindingKind> {
    let differs = |max_bytes, counted_by| Kind::RssDiffers {
        bytes: 12_288,
        min_bytes: 16_384,
        max_bytes,
        counted_by,
    };
    vec![
        Kind::PointersUnread { bytes: 65_536, in_core: false },
        Kind::PointersUnread { bytes: 65_536, in_core: true },
        Kind::PointersLeftOut { pointers: 1234 },
        Kind::OwnersUnknown { nodes: 5_000_000, max: 4_000_000 },
        differs(16_384, RssCount::PageStates),
        differs(16_384, RssCount::Kernel),
        differs(20_480, RssCount::Core),
        Kind::ClaimedTwice { ranges: 2, cause: Cause::RubyVm, other: Cause::NativeHeld },
        Kind::EnvironmentUnknown,
    ]
}

fn of_captures() -> Vec<FindingKind> {
    let error = || "process 42: permission denied".to_owned();
    let (used_bytes, limit_bytes) = (900 << 20, 1 << 30);
    let group = |alarm| Kind::GroupAlarm {
        alarm,
        used_bytes,
        limit_bytes,
        shmem_bytes: 0,
        others: vec![],
        after_ms: None,
    };
    let member = |pid: i32, rss_bytes| {
        let command = format!("convert {}", "page ".repeat(30));
        GroupMember { pid, command, rss_bytes }
    };
    let with_others = Kind::GroupAlarm {
        alarm: Alarm::FastGrowth,
        used_bytes,
        limit_bytes,
        shmem_bytes: 300 << 20,
        others: vec![member(7, 80 << 20), member(8, 2 << 20), member(9, 1 << 10)],
        after_ms: None,
    };
    let killed = Kind::GroupAlarm {
        alarm: Alarm::Killed,
        used_bytes,
        limit_bytes,
        shmem_bytes: 0,
        others: vec![],
        after_ms: Some(2600),
    };
    let other = |kind: Option<&str>, what: Option<&str>| Kind::Other {
        kind: kind.map(str::to_owned),
        what: what.map(str::to_owned),
    };
    vec![
        Kind::CopyLeft { pid: 42, error: "it has no handler for SIGVTALRM".into() },
        group(Alarm::NearLimit),
        group(Alarm::LimitHit),
        group(Alarm::FastGrowth),
        group(Alarm::Stalled),
        group(Alarm::Killed),
        with_others,
        killed,
        Kind::GroupLimitUnknown,
        Kind::ProcessEnded { pid: 42 },
        Kind::ProcessUnread { pid: 42, error: error() },
        Kind::ProcessUnexplained { pid: 42, error: error() },
        Kind::ProcessNotTrimmed { pid: 42, error: error() },
        other(None, Some("a sentence by an earlier version")),
        other(Some("a_later_kind"), None),
        other(None, None),
    ]
}

fn all() -> Vec<FindingKind> {
    [of_cores(), of_malloc(), of_ruby(), of_the_account(), of_captures()].concat()
}

#[test]
fn the_sentence_of_each_finding() {
    let mut text = String::new();
    for kind in all() {
        let severity = match kind.severity() {
            FindingSeverity::Note => "note",
            FindingSeverity::Warning => "warning",
            FindingSeverity::Error => "error",
        };
        writeln!(text, "{severity}: {}\n", words::finding(&kind.into())).unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn an_address_follows_the_sentence() {
    let row =
        FindingRow { address: Some("0x7f00".into()), ..FindingRow::from(Kind::HugePagesUsed) };
    assert!(words::finding(&row).ends_with(" (at 0x7f00)"));
}

/// The schema has all kinds.
#[test]
fn every_kind_has_a_sentence_above() {
    let schema = include_str!("../../../docs/schemas/report.schema.json");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    let variants = schema["$defs"]["FindingRow"]["anyOf"].as_array().unwrap().iter();
    let documented: BTreeSet<String> = variants
        .filter_map(|it| it["properties"]["kind"]["const"].as_str().map(str::to_owned))
        .collect();
    let name =
        |it: FindingKind| serde_json::to_value(it).unwrap()["kind"].as_str().map(str::to_owned);
    let known = all().into_iter().filter(|it| !matches!(it, Kind::Other { .. }));
    let shown: BTreeSet<String> = known.filter_map(name).collect();
    assert_eq!(shown, documented);
}
