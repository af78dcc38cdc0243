//! The rows of a look in each table.

use std::borrow::Cow;

use formats::{Action, Advice, Alarm, FindingKind, Report};

use crate::look::Look;

/// A value in a row.
#[derive(Debug, Clone)]
pub(crate) enum Value<'a> {
    Null,
    Integer(i64),
    Text(Cow<'a, str>),
    Flag(bool),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        // The numbers of a report are far smaller, also in a hostile snapshot.
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

type Row<'a> = Vec<Value<'a>>;

macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$(Value::from($value)),*] };
}

/// Returns the rows of a look in a table, without the keys.
pub(crate) fn of<'a>(look: &'a Look, table: &str) -> Vec<Row<'a>> {
    let report = &look.report;
    if look.is_only_kill && table != "kills" {
        return vec![];
    }
    match table {
        "looks" => vec![itself(look)],
        "causes" => report.causes.iter().map(|it| row![it.cause.name(), it.bytes]).collect(),
        "owners" => owners(report),
        "arenas" => arenas(report),
        "size_classes" => size_classes(report),
        "gems" => gems(report),
        "remedies" => report.advice.iter().map(|advice| remedy(report, advice)).collect(),
        "kills" => kill(look).into_iter().collect(),
        _ => unreachable!("{table} is none of the tables"),
    }
}

fn itself(look: &Look) -> Row<'_> {
    let Look { node, place, report, .. } = look;
    let (process, container) = (&report.process, &place.container);
    row![
        node.as_str(),
        container.namespace.as_str(),
        container.pod.as_str(),
        container.name.as_str(),
        place.role.as_str(),
        u64::from(process.pid.unsigned_abs()),
        process.uptime_ms,
        process.ruby_version.as_deref(),
        process.libc.as_str(),
        process.allocator.as_str(),
        process.threads,
        process.rss_bytes,
        process.swap_bytes,
        look.pss_bytes,
        look.limit_bytes,
        look.used_bytes,
        report.malloc.as_ref().map(|malloc| malloc.trim_yield_bytes),
        report.verdict.cause.map_or("healthy", |cause| cause.name()),
        report.verdict.bytes,
        word(&report.verdict.confidence),
        report.is_complete(),
    ]
}

fn owners(report: &Report) -> Vec<Row<'_>> {
    let owners = report.owners.iter().flatten().map(|owner| {
        row![
            owner.owner.as_str(),
            owner.kind.as_str(),
            owner.cause.map(|cause| cause.name()),
            owner.kept_by.first().and_then(|kept_by| kept_by.path.as_deref()),
            owner.objects,
            owner.slot_bytes,
            owner.exclusive_bytes,
            owner.shared_bytes,
            owner.resident_bytes,
            owner.retained_bytes,
        ]
    });
    owners.collect()
}

fn arenas(report: &Report) -> Vec<Row<'_>> {
    let arenas = report.arenas.iter().flatten().enumerate().map(|(number, arena)| {
        row![
            number as u64,
            arena.main,
            arena.walked,
            u64::from(arena.heaps),
            arena.threads.map(u64::from),
            arena.system_bytes,
            arena.in_use_bytes,
            arena.unreturned_bytes,
            arena.muzzy_bytes,
            arena.fragmented_bytes,
            arena.cached_bytes,
            arena.top_bytes,
            arena.overhead_bytes,
            arena.returned_bytes,
        ]
    });
    arenas.collect()
}

fn size_classes(report: &Report) -> Vec<Row<'_>> {
    let classes = report.malloc.iter().flat_map(|malloc| &malloc.size_classes);
    let rows = classes.flat_map(|class| {
        class.arenas.iter().map(|arena| {
            row![
                u64::from(arena.arena),
                class.region_bytes,
                arena.slabs,
                arena.regions,
                arena.in_use,
                arena.cached,
            ]
        })
    });
    rows.collect()
}

fn gems(report: &Report) -> Vec<Row<'_>> {
    let gems = report.interpreter.iter().flat_map(|it| it.gems.iter().flatten()).map(|gem| {
        row![
            gem.gem.as_str(),
            gem.version.as_deref(),
            gem.files,
            gem.iseqs,
            gem.slot_bytes,
            gem.resident_bytes,
        ]
    });
    gems.collect()
}

/// The row of a process that was killed; `None` for others.
fn kill(look: &Look) -> Option<Row<'_>> {
    let Look { node, place, report, .. } = look;
    let (process, container) = (&report.process, &place.container);
    let mut findings = report.findings.iter();
    let (used, limit, tmpfs, after) = findings.find_map(|it| match it.kind {
        FindingKind::GroupAlarm {
            alarm: Alarm::Killed,
            used_bytes,
            limit_bytes,
            shmem_bytes,
            after_ms,
            ..
        } => Some((used_bytes, limit_bytes, shmem_bytes, after_ms)),
        _ => None,
    })?;
    let owner = report.owners.iter().flatten().max_by_key(|owner| owner.bytes());
    Some(row![
        node.as_str(),
        container.namespace.as_str(),
        container.pod.as_str(),
        container.name.as_str(),
        place.role.as_str(),
        u64::from(process.pid.unsigned_abs()),
        after,
        process.rss_bytes,
        used,
        limit,
        tmpfs,
        report.verdict.cause.map_or("healthy", |cause| cause.name()),
        report.verdict.bytes,
        owner.map(|it| it.owner.as_str()),
        owner.map(|it| it.bytes()),
        owner.and_then(|it| it.kept_by.first()?.path.as_deref()),
    ])
}

fn remedy<'a>(report: &Report, advice: &'a Advice) -> Row<'a> {
    let subject = match &advice.action {
        Action::ReleaseObjects { class, path, .. } | Action::FreeNative { class, path, .. } => {
            Some(path.as_deref().unwrap_or(class))
        }
        Action::Rehash { path, .. }
        | Action::CopySlices { path, .. }
        | Action::CopyBuffers { path, .. }
        | Action::ShareStrings { path, .. } => Some(path.as_str()),
        _ => None,
    };
    let against = diagnosis::against(report, &advice.action);
    row![tag(advice), subject, advice.saves_bytes, against]
}

/// The name of a step in JSON.
fn tag(advice: &Advice) -> String {
    let json = serde_json::to_value(advice).expect("advice has string keys");
    json["action"].as_str().expect("it is the tag").to_owned()
}

/// A value that is a word in JSON.
fn word(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_value(value).expect("it is a word");
    json.as_str().expect("it is a word").to_owned()
}
