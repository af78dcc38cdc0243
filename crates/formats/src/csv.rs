//! Samples as comma-separated values: one line for each process of each sample.

use std::fmt::Write as _;

use crate::line::Sample;

/// The header line.
pub const CSV_HEAD: &str = "t_ms,exact,pid,started_ticks,state,rss_bytes,pss_bytes,uss_bytes,swap_bytes,\
user_ms,system_ms,minor_faults,major_faults,threads,group_usage_bytes,group_limit_bytes,group_oom_kills\n";

/// Returns the lines of a sample. Values that were not read are empty.
#[must_use]
pub fn csv_line(sample: &Sample) -> String {
    let shown = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let group = sample.group;
    let mut text = String::new();
    for process in &sample.processes {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            sample.t_ms,
            u8::from(sample.exact),
            process.pid,
            process.started_ticks,
            process.state,
            process.rss_bytes,
            shown(process.pss_bytes),
            shown(process.uss_bytes),
            shown(process.swap_bytes),
            process.user_ms,
            process.system_ms,
            process.minor_faults,
            process.major_faults,
            process.threads,
            shown(group.map(|group| group.usage_bytes)),
            shown(group.and_then(|group| group.limit_bytes)),
            shown(group.and_then(|group| group.oom_kills)),
        );
    }
    text
}
