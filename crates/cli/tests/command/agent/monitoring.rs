//! The dashboard and the alert rules, with a real Prometheus.

use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testkit::{ControlGroup, Target};

use super::{Agent, ask, has, succeed, wait_until};
use crate::errors::is_root;
use crate::rbloat;

/// The path of a file in `deploy`.
fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name).canonicalize().unwrap()
}

#[test]
fn the_dashboard_and_the_rules_in_the_repository_are_those_of_the_program() {
    for (option, name) in
        [("--print-dashboard", "grafana/rbloat.json"), ("--print-rules", "prometheus/rules.yml")]
    {
        let printed = succeed(rbloat().args(["agent", option]));
        let file = std::fs::read_to_string(deployed(name)).unwrap();
        assert!(printed == file, "write it anew: rbloat agent {option} > deploy/{name}");
    }
}

#[test]
fn prometheus_accepts_the_rules_and_they_alert_when_they_should() {
    if !has("promtool") {
        return;
    }
    succeed(
        Command::new("promtool").args(["check", "rules"]).arg(deployed("prometheus/rules.yml")),
    );
    let tests = deployed("prometheus/rules.test.yml");
    succeed(Command::new("promtool").args(["test", "rules"]).arg(tests));
}

/// The annotations of the manifest invited a job that named processes by the agent's pod.
#[test]
fn the_job_for_a_cluster_keeps_the_names_of_processes() {
    let manifest = std::fs::read_to_string(deployed("kubernetes/daemonset.yaml")).unwrap();
    assert!(!manifest.contains("prometheus.io/"), "{manifest}");
    // Debian's promtool does not know discovery in Kubernetes.
    let job = std::fs::read_to_string(deployed("prometheus/scrape.yml")).unwrap();
    assert!(job.contains("honor_labels: true"), "{job}");
}

/// A Prometheus that scrapes an agent every second.
struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(agent: &Agent) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n- job_name: rbloat\n  static_configs:\n  \
             - targets: ['{}']\n",
            deployed("prometheus/rules.yml").display(),
            agent.address
        );
        std::fs::write(&config, text).unwrap();
        // A port that was free a moment ago.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let prometheus = Self { child, address: address.to_string(), _folder: folder };
        wait_until("Prometheus answers", || TcpStream::connect(&prometheus.address).is_ok());
        prometheus
    }

    /// The values that a query returns.
    fn query(&self, expression: &str) -> Vec<String> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n");
        let (_, body) = ask(&self.address, &request);
        let Ok(answer) = serde_json::from_slice::<serde_json::Value>(&body) else {
            // It is still starting.
            return Vec::new();
        };
        assert!(answer["status"] == "success", "{expression}: {answer}");
        let result = answer["data"]["result"].as_array().unwrap();
        result.iter().map(|row| row["value"][1].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_panel_of_the_dashboard_has_data_in_a_real_prometheus() {
    if !has("prometheus") || !has("promtool") {
        return;
    }
    let Some(group) = ControlGroup::make() else { return };
    let code = "Process.setproctitle('agentpanels '); $kept = []; puts 'ready {}'; $stdout.flush
                loop { $kept << 'x' * 100_000; sleep 0.1 }";
    let target =
        Target::start(&mut group.command(testkit::ruby().args(["--disable-gems", "-e", code])));
    group.limit(8 << 30);
    let agent =
        Agent::start(&group, &["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"]);
    agent.await_samples("rbloat_owner_bytes{", "role=\"agentpanels\"");
    let metrics = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(metrics.path(), agent.get("/metrics").1).unwrap();
    let stdin = std::fs::File::open(metrics.path()).unwrap();
    succeed(Command::new("promtool").args(["check", "metrics"]).stdin(stdin));
    let prometheus = Prometheus::start(&agent);
    let file = std::fs::read(deployed("grafana/rbloat.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut count = 0;
    for query in queries {
        let expression = query["expr"].as_str().unwrap();
        // The values that Grafana inserts, and steps shorter than a minute.
        let mut expression = expression.replace("$__rate_interval", "10s").replace(":1m]", ":1s]");
        for name in ["namespace", "container", "role"] {
            expression = expression.replace(&format!("${name}"), ".*");
        }
        wait_until(&expression, || {
            let values = prometheus.query(&expression);
            !values.is_empty() && !values.iter().any(|value| value == "NaN")
        });
        count += 1;
    }
    assert!(count > panels.len(), "{count} queries");
    // The rules of Prometheus are evaluated, too.
    wait_until("recorded", || !prometheus.query("rbloat:used_bytes:per_process").is_empty());
    agent.end();
    drop(target);
}

/// The agent could send no signal to processes of other users, so it froze them instead of copying them.
#[test]
fn what_is_deployed_has_the_rights_to_copy_processes_of_other_users() {
    const NOBODY: u32 = 65534;
    if !is_root() {
        return testkit::skip("only root can start another user's process");
    }
    let code = "Thread.new { sleep }; puts 'ready {}'; $stdout.flush; $stdin.read";
    let target =
        Target::start(testkit::ruby().args(["--disable-gems", "-e", code]).uid(NOBODY).gid(NOBODY));
    let mut seen = 0;
    for (name, marks) in [
        ("systemd/rbloat-agent.service", ["CapabilityBoundingSet=", ""]),
        ("kubernetes/daemonset.yaml", ["add: [", "]"]),
        ("kubernetes/sidecar.yaml", ["add: [", "]"]),
        ("helm/rbloat/values.yaml", ["capabilities: [", "]"]),
    ] {
        let text = std::fs::read_to_string(deployed(name)).unwrap();
        let line = text.lines().map(str::trim).find(|line| line.starts_with(marks[0])).unwrap();
        let rights: String = line[marks[0].len()..]
            .trim_end_matches(marks[1])
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .map(|word| {
                format!(",+{}", word.trim_matches('"').trim_start_matches("CAP_").to_lowercase())
            })
            .collect();
        let run = |rights: &str, command: &str| {
            let mut setpriv = Command::new("setpriv");
            setpriv.arg(format!("--bounding-set=-all{rights}")).arg(rbloat().get_program());
            setpriv.args([command, &target.pid().to_string(), "--json", "--max-pause", "10s"]);
            setpriv.output().unwrap()
        };
        let capture = |rights: &str| {
            let output = run(rights, "report");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            crate::document::<formats::Report>(&output.stdout).capture
        };
        let complete = capture(&rights);
        assert_eq!(complete.method, formats::CaptureMethod::Fork, "{name}: {}", complete.reason);
        assert!(run(&rights, "trim").status.success(), "{name}");
        let less = rights.replace(",+kill", "");
        let capture = capture(&less);
        assert_eq!(capture.method, formats::CaptureMethod::Freeze, "{name}");
        assert!(capture.reason.contains("needs CAP_KILL"), "{}", capture.reason);
        assert_eq!(capture.no_copy, Some(formats::NoCopy::NotSignalled), "{name}");
        let output = run(&less, "trim");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.contains("needs CAP_KILL"), "{complaint}");
        seen += 1;
    }
    assert_eq!(seen, 4);
    assert!(target.finish());
}

/// The service had options of systemd that install a filter, and the manifests left the runtime's filter on. So processes in
/// containers, which have a filter, could not be copied.
#[test]
fn what_is_deployed_runs_the_agent_without_a_seccomp_filter() {
    let unit = std::fs::read_to_string(deployed("systemd/rbloat-agent.service")).unwrap();
    // As systemd's context_has_seccomp() lists them (src/core/exec-invoke.c).
    let filtering = [
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "PrivateDevices",
        "ProtectClock",
        "ProtectHostname",
        "ProtectKernelTunables",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "SystemCallArchitectures",
        "SystemCallFilter",
        "SystemCallLog",
    ];
    for line in unit.lines() {
        let option = line.split('=').next().unwrap();
        assert!(!filtering.contains(&option), "{line}");
    }
    for name in [
        "kubernetes/daemonset.yaml",
        "kubernetes/sidecar.yaml",
        "helm/rbloat/templates/daemonset.yaml",
    ] {
        let manifest = std::fs::read_to_string(deployed(name)).unwrap();
        let lines: Vec<_> = manifest.lines().map(str::trim).collect();
        assert!(
            lines.windows(2).any(|pair| pair == ["seccompProfile:", "type: Unconfined"]),
            "{name}"
        );
    }
}
