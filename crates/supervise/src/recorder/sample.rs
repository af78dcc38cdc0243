//! A sample of the figures that the kernel keeps.

use formats::{Group, ProcessSample, Sample};
use linux::proc::{GroupMemory, Member, Rollup};

/// Returns a sample of the processes `members`. It is exact if the kernel walked the page tables of all of them.
#[must_use]
pub(crate) fn sample(
    t_ms: u64,
    members: &[(Member, Option<Rollup>)],
    group: Option<GroupMemory>,
    recorder_cpu_ms: f64,
) -> Sample {
    let processes: Vec<ProcessSample> =
        members.iter().map(|(member, rollup)| process_sample(member, *rollup)).collect();
    let sum = |bytes: fn(&ProcessSample) -> Option<u64>| processes.iter().map(bytes).sum();
    Sample {
        t_ms,
        exact: members.iter().all(|(_, rollup)| rollup.is_some()),
        rss_bytes: processes.iter().map(|process| process.rss_bytes).sum(),
        pss_bytes: sum(|process| process.pss_bytes),
        uss_bytes: sum(|process| process.uss_bytes),
        swap_bytes: sum(|process| process.swap_bytes),
        processes,
        group: group.map(Group::from),
        recorder_cpu_ms,
    }
}

fn process_sample(member: &Member, rollup: Option<Rollup>) -> ProcessSample {
    ProcessSample {
        pid: member.pid,
        started_ticks: member.started_ticks,
        state: member.state,
        rss_bytes: rollup.map_or(member.rss_bytes, |rollup| rollup.rss_bytes),
        pss_bytes: rollup.map(|rollup| rollup.pss_bytes),
        uss_bytes: rollup.map(|rollup| rollup.uss_bytes),
        swap_bytes: rollup.map(|rollup| rollup.swap_bytes),
        peak_rss_bytes: rollup.and_then(|_| linux::proc::peak_rss_bytes(member.pid)),
        user_ms: member.user_time.as_millis() as u64,
        system_ms: member.system_time.as_millis() as u64,
        minor_faults: member.minor_faults,
        major_faults: member.major_faults,
        threads: member.threads,
    }
}
