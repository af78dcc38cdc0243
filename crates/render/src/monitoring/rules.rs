//! The alert rules. `deploy/prometheus/rules.test.yml` has the courses of memory at which each alert fires, and those at which it must
//! not: a boot, deploys, workers that are replaced, a nightly job, a day and a night, pods that come and go.

use std::fmt::Write;

use ledger::Cause;

use super::used;

/// The labels of processes, and of control groups, on one machine.
const PLACE: &str = "instance, namespace, pod, container, role";
const GROUP: &str = "instance, namespace, pod, container";
/// The labels of the processes of a service, whatever pod they are in: a deploy replaces the pods.
const ROLE: &str = "namespace, container, role";
/// The words for a control group in a summary.
const OF_GROUP: &str =
    "{{ with $labels.pod }}{{ . }} {{ end }}{{ or $labels.container $labels.instance }}";

/// An alert.
struct Alert {
    name: &'static str,
    expression: String,
    /// The time for which it must hold, if there is one.
    lasts: &'static str,
    severity: &'static str,
    summary: String,
    description: &'static str,
}

/// Alerts about processes.
fn alerts() -> Vec<Alert> {
    let used = "rbloat:used_bytes:per_process";
    let grew = |after: &str, before: &str| {
        format!(
            "and min_over_time({used}[1h]{after}) > 1.05 * max_over_time({used}[1h] offset {before})"
        )
    };
    let unreturned = format!("sum by ({PLACE}) (min_over_time(rbloat_trim_yield_bytes[16h]))");
    let unknown =
        format!("sum by ({PLACE}) (rbloat_memory_bytes{{cause=\"{}\"}})", Cause::Unknown.name());
    let group = "rbloat:group_used_bytes";
    vec![
        Alert {
            name: "RbloatLeak",
            // Memory that follows the traffic rises for half a day at most.
            expression: [
                format!("{used} - {used} offset 15h > 64 * 1024 * 1024"),
                grew("", "5h"),
                grew(" offset 5h", "10h"),
                grew(" offset 10h", "15h"),
            ]
            .join("\n"),
            lasts: "30m",
            severity: "warning",
            summary: "Memory in use grows steadily in {{ with $labels.container }}{{ . }} {{ end }}{{ $labels.role }}".into(),
            description: "Memory that a process uses (objects, and memory of extensions) has grown for 15 hours without a pause, by \
                          {{ $value | humanize1024 }}B in the mean of all pods. `rbloat diff PID` shows which objects stay.",
        },
        Alert {
            name: "RbloatUnreturned",
            // Free memory of the night is in use by day.
            expression: format!(
                "\
{unreturned}
  > 0.3 * sum by ({PLACE}) (rbloat_memory_bytes)
and {unreturned} > 64 * 1024 * 1024
and sum by ({PLACE}) (rbloat_trim_yield_bytes offset 16h)"
            ),
            lasts: "5m",
            severity: "info",
            summary: "A trim of {{ with $labels.container }}{{ . }} {{ end }}{{ $labels.role }} would return {{ $value | humanize1024 }}B".into(),
            description: "More than 30 % of its memory has been free for 16 hours, and malloc has not returned it. `rbloat report PID --fix` \
                          shows the settings that prevent that.",
        },
        Alert {
            name: "RbloatWillHitLimit",
            // Peaks of half an hour, which grew twice: a process that boots grows once. And it is above its peaks of the day before,
            // which saw-teeth and the traffic of each day are not.
            expression: format!(
                "\
5 * max_over_time({group}[30m]) - 4 * max_over_time({group}[30m] offset 30m)
  > on ({GROUP}) rbloat_group_limit_bytes
and on ({GROUP})
max_over_time({group}[30m])
  + 4 * (max_over_time({group}[30m] offset 30m) - max_over_time({group}[30m] offset 1h))
  > on ({GROUP}) rbloat_group_limit_bytes
and on ({GROUP})
{group} > max_over_time({group}[1d] offset 1h)"
            ),
            lasts: "10m",
            severity: "critical",
            summary: format!("{OF_GROUP} will meet its memory limit within two hours"),
            description: "Its use has grown for an hour, and is higher than on the day before. The kernel kills a process at the limit. \
                          `rbloat diff PID` shows what grows, and `rbloat report PID` what could be freed now.",
        },
        Alert {
            name: "RbloatKilled",
            expression: "increase(rbloat_group_oom_kills_total[10m]) > 0".into(),
            lasts: "",
            severity: "warning",
            summary: format!("The kernel killed a process of {OF_GROUP}: out of memory"),
            description: "With `rbloat agent --snapshots DIR`, the log of the agent names a snapshot, which `rbloat report FILE` shows, or a \
                          page with the latest report on the process.",
        },
        Alert {
            name: "RbloatTmpfs",
            expression: "rbloat_group_tmpfs_bytes > 0.25 * rbloat_group_limit_bytes".into(),
            lasts: "1h",
            severity: "info",
            summary: format!("Files in memory take {{{{ $value | humanize1024 }}}}B of {OF_GROUP}"),
            description: "Files in tmpfs, such as /dev/shm and volumes in memory, count towards the memory limit, and the kernel cannot \
                          give them up. `rbloat report PID` names those that are open.",
        },
        Alert {
            name: "RbloatUnknown",
            expression: format!(
                "\
{unknown}
  / sum by ({PLACE}) (rbloat_memory_bytes) > 0.05
and {unknown} > 16 * 1024 * 1024"
            ),
            lasts: "1h",
            severity: "info",
            summary: "rbloat cannot explain {{ $value | humanizePercentage }} of {{ with $labels.container }}{{ . }} {{ end }}{{ $labels.role }}".into(),
            description: "Anonymous memory that neither malloc nor Ruby knows. Extensions map such memory by themselves. The findings \
                          at the end of `rbloat report PID` give the reason if there is one, and `rbloat map PID` shows \
                          the memory.",
        },
    ]
}

/// Alerts about the agent itself.
fn alerts_about_the_agent() -> Vec<Alert> {
    vec![
        Alert {
            name: "RbloatAgentDown",
            expression: "up{job=~\".*rbloat.*\"} == 0".into(),
            lasts: "15m",
            severity: "warning",
            summary: "The agent on {{ $labels.instance }} does not answer".into(),
            description: "Prometheus could not read its metrics for 15 minutes. `journalctl -u rbloat-agent` or `kubectl logs` has the \
                          reason.",
        },
        Alert {
            name: "RbloatNoCaptures",
            expression: "\
sum by (instance) (increase(rbloat_captures_total{outcome=~\"forked|frozen\"}[1h]))
  <= sum by (instance) (increase(rbloat_captures_total{outcome!~\"forked|frozen\"}[1h]))
and on (instance) sum by (instance) (min_over_time(rbloat_processes[1h])) > 0"
                .into(),
            lasts: "30m",
            severity: "warning",
            summary: "The agent on {{ $labels.instance }} captures no processes".into(),
            description: "For an hour, most attempts have failed, or there were none. The log of `rbloat agent` has the reason once for \
                          each kind of process, and rbloat_captures_total the outcomes.",
        },
        Alert {
            name: "RbloatSnapshotsLost",
            expression: "sum by (instance) (increase(rbloat_snapshots_total{outcome=\"not_written\"}[1h])) > 0".into(),
            lasts: "",
            severity: "warning",
            summary: "The agent on {{ $labels.instance }} cannot save snapshots".into(),
            description: "Files cannot be written to the folder of `--snapshots`, as on a full disk. The log of the agent has the reason.",
        },
        Alert {
            name: "RbloatAgentOverBudget",
            // A new agent captures all processes soon.
            expression: "\
rate(rbloat_agent_cpu_seconds_total[1h]) > 0.01 and rbloat_agent_cpu_seconds_total offset 1h
or avg_over_time(rbloat_agent_resident_bytes[1h]) > 150 * 1024 * 1024"
                .into(),
            lasts: "15m",
            severity: "info",
            summary: "The agent on {{ $labels.instance }} takes more than it should".into(),
            description: "Its budget is 1 % of a processor and 150 MiB. Longer intervals take less: `--every`, `--causes-every` \
                          and `--owners-every`.",
        },
    ]
}

/// The end of a description that names a command: the labels of an alert have no process id.
const FINDS_PIDS: &str =
    " PID can be NAMESPACE/POD, a container, or an id that `rbloat` lists on the machine.";

/// Returns the rules for Prometheus as YAML.
#[must_use]
pub fn alert_rules() -> String {
    let mut text = String::from(
        "# `rbloat agent --print-rules` writes this file.\ngroups:\n  - name: rbloat\n    rules:\n",
    );
    let indented = |text: &str, spaces: usize| {
        let lines = text.lines().map(|line| format!("{}{line}\n", " ".repeat(spaces)));
        lines.collect::<String>()
    };
    let used = used();
    let records = [
        (
            "rbloat:used_bytes:per_process",
            format!(
                "\
sum by ({ROLE}) (rbloat_memory_bytes{{cause=~\"{used}\"}})
  / sum by ({ROLE}) (rbloat_processes)"
            ),
        ),
        (
            "rbloat:group_used_bytes",
            "rbloat_group_usage_bytes - rbloat_group_cache_bytes".to_owned(),
        ),
    ];
    for (name, expression) in records {
        let _ =
            write!(text, "      - record: {name}\n        expr: |\n{}", indented(&expression, 10));
    }
    for alert in alerts().into_iter().chain(alerts_about_the_agent()) {
        let Alert { name, expression, lasts, severity, summary, description } = alert;
        let finds_pids = if description.contains("PID") { FINDS_PIDS } else { "" };
        let lasts =
            if lasts.is_empty() { String::new() } else { format!("        for: {lasts}\n") };
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: |\n{}{lasts}        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: \"{summary}\"\n          description: \"{description}{finds_pids}\"\n",
            indented(&expression, 10)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alert_names_its_next_step() {
        for Alert { name, description, .. } in alerts().into_iter().chain(alerts_about_the_agent())
        {
            assert!(description.contains('`'), "{name}");
        }
    }
}
