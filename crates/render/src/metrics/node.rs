//! The metrics of the node, and of the agent itself.

use std::collections::BTreeMap;

use super::exposition::{Writer, labels_of_container};
use formats::{
    Alarm, ArchiveOutcome, Archived, CaptureOutcome, Node, PushOutcome, SnapshotOutcome,
    StoredSnapshots,
};

/// The name of an outcome, as a label.
fn outcome(outcome: CaptureOutcome) -> &'static str {
    match outcome {
        CaptureOutcome::Forked => "forked",
        CaptureOutcome::Frozen => "frozen",
        CaptureOutcome::Pressure => "pressure",
        CaptureOutcome::NoRoom => "no_room",
        CaptureOutcome::Failed => "failed",
    }
}

fn alarm(alarm: Alarm) -> &'static str {
    match alarm {
        Alarm::NearLimit => "near_limit",
        Alarm::LimitHit => "limit_hit",
        Alarm::FastGrowth => "fast_growth",
        Alarm::Stalled => "stalled",
        Alarm::Killed => "killed",
    }
}

fn push_outcome(outcome: PushOutcome) -> &'static str {
    match outcome {
        PushOutcome::Accepted => "accepted",
        PushOutcome::Refused => "refused",
        PushOutcome::Failed => "failed",
        PushOutcome::Dropped => "dropped",
    }
}

fn archive_outcome(outcome: ArchiveOutcome) -> &'static str {
    match outcome {
        ArchiveOutcome::Written => "written",
        ArchiveOutcome::Failed => "failed",
        ArchiveOutcome::Dropped => "dropped",
    }
}

fn snapshot_outcome(outcome: SnapshotOutcome) -> &'static str {
    match outcome {
        SnapshotOutcome::Written => "written",
        SnapshotOutcome::NoRoom => "no_room",
        SnapshotOutcome::Failed => "failed",
        SnapshotOutcome::NotWritten => "not_written",
    }
}

impl Writer {
    /// The snapshots of processes near a limit.
    pub(super) fn snapshots(&mut self, snapshots: &StoredSnapshots) {
        let attempts = Alarm::ALL
            .into_iter()
            .flat_map(|alarm| SnapshotOutcome::ALL.map(|outcome| (alarm, outcome)));
        self.counter(
            "rbloat_snapshots",
            "Attempts to save a snapshot of a process near its memory limit, by reason and outcome.",
            attempts.map(|(reason, outcome)| {
                let count = snapshots.attempts.get(&(reason, outcome)).copied().unwrap_or(0);
                let labels = [("reason", alarm(reason)), ("outcome", snapshot_outcome(outcome))];
                (labels.map(|(name, value)| (name, value.to_owned())).to_vec(), count as f64)
            }),
        );
        let figures = [
            ("rbloat_snapshots_stored", "The snapshots in the folder.", snapshots.files),
            (
                "rbloat_snapshots_stored_bytes",
                "The size of all files in the folder.",
                snapshots.bytes,
            ),
            (
                "rbloat_growth_observed",
                "1 while the growth of a process near its limit is observed by code.",
                u64::from(snapshots.observes_growth),
            ),
        ];
        for (name, help, figure) in figures {
            self.gauge(name, help, [(Vec::new(), figure as f64)]);
        }
    }

    /// The profiles and snapshots that were handed over to servers.
    pub(super) fn pushes(&mut self, pushes: &BTreeMap<&'static str, BTreeMap<PushOutcome, u64>>) {
        let of_server = |(to, outcomes): (&&str, &BTreeMap<PushOutcome, u64>)| {
            PushOutcome::ALL.map(|outcome| {
                let count = outcomes.get(&outcome).copied().unwrap_or(0);
                let outcome = push_outcome(outcome).to_owned();
                (vec![("to", (*to).to_owned()), ("outcome", outcome)], count as f64)
            })
        };
        self.counter(
            "rbloat_pushes",
            "Attempts to push a profile or a snapshot to a server, by outcome.",
            pushes.iter().flat_map(of_server),
        );
    }

    /// The snapshots in the archive.
    pub(super) fn archive(&mut self, archive: &Archived) {
        self.counter(
            "rbloat_archive_snapshots",
            "Snapshots of processes for the archive, by outcome. Failed ones are written again.",
            ArchiveOutcome::ALL.map(|outcome| {
                let count = archive.snapshots.get(&outcome).copied().unwrap_or(0);
                (vec![("outcome", archive_outcome(outcome).to_owned())], count as f64)
            }),
        );
        self.gauge(
            "rbloat_archive_bytes",
            "The size of the archive.",
            [(Vec::new(), archive.bytes as f64)],
        );
    }

    /// The memory of control groups.
    pub(super) fn groups(&mut self, node: &Node) {
        let groups = || {
            node.groups.iter().filter_map(|(container, group)| {
                Some((labels_of_container(container), group.memory?))
            })
        };
        self.gauge(
            "rbloat_group_usage_bytes",
            "Memory that counts towards the limit of the control group, caches of files included.",
            groups().map(|(labels, group)| (labels, group.usage_bytes as f64)),
        );
        self.gauge(
            "rbloat_group_cache_bytes",
            "The part of the usage in caches of files, which the kernel gives up before it kills.",
            groups().map(|(labels, group)| (labels, group.cache_bytes as f64)),
        );
        self.gauge(
            "rbloat_group_tmpfs_bytes",
            "The part of the usage in files in memory (tmpfs) and shared memory, which the kernel does not give up.",
            groups().map(|(labels, group)| (labels, group.shmem_bytes as f64)),
        );
        self.gauge(
            "rbloat_group_limit_bytes",
            "The memory limit of the control group, if it has one.",
            groups().filter_map(|(labels, group)| Some((labels, group.limit_bytes? as f64))),
        );
        self.counter(
            "rbloat_group_oom_kills",
            "Processes of the control group that the kernel killed since memory was short, since the agent saw the group.",
            node.groups
                .iter()
                .map(|(container, group)| (labels_of_container(container), group.oom_kills as f64)),
        );
        self.counter(
            "rbloat_group_limit_hits",
            "Times that the control group met its limit (or memory.high), so that the kernel reclaimed memory.",
            groups().filter_map(|(labels, group)| Some((labels, group.limit_hits? as f64))),
        );
        self.counter(
            "rbloat_group_stalled_seconds",
            "The time for which a process of the control group waited for memory (PSI, version 2).",
            groups().filter_map(|(labels, group)| Some((labels, group.stalled?.as_secs_f64()))),
        );
    }

    /// rbloat's own work, and its cost.
    pub(super) fn own(&mut self, node: &Node) {
        self.counter(
            "rbloat_captures",
            "Attempts to capture a process, by outcome.",
            CaptureOutcome::ALL.into_iter().map(|it| {
                let count = node.captures.get(&it).copied().unwrap_or(0);
                (vec![("outcome", outcome(it).to_owned())], count as f64)
            }),
        );
        self.histogram(
            "rbloat_capture_pause_seconds",
            "The pauses of captured processes.",
            node.pauses,
        );
        self.counter(
            "rbloat_agent_cpu_seconds",
            "The processor time of the agent itself.",
            [(Vec::new(), node.own_cpu.as_secs_f64())],
        );
        self.gauge(
            "rbloat_agent_resident_bytes",
            "Resident memory of the agent itself.",
            [(Vec::new(), node.own_rss_bytes as f64)],
        );
        self.counter(
            "rbloat_agent_answers",
            "The answers of the agent's server, by status. A connection that was closed had no complete request.",
            node.answers.iter().map(|(status, count)| {
                (vec![("status", (*status).to_owned())], *count as f64)
            }),
        );
        self.gauge(
            "rbloat_agent_refused_processes",
            "Processes that the agent could not examine; some of them may be Ruby processes.",
            [(Vec::new(), node.refused as f64)],
        );
        self.gauge(
            "rbloat_agent_info",
            "The version of the agent.",
            [(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)],
        );
    }
}
