//! The agent: its metrics agree with the kernel and with reports, and it does no harm.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::{ControlGroup, Target};

use crate::rbloat;

/// Long enough for any machine. Nothing is concluded from the time that it takes.
const PATIENCE: Duration = Duration::from_secs(300);

struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    /// Starts an agent that leaves all processes alone but those of a group: other tests have some.
    fn start(group: &ControlGroup, more: &[&str]) -> Self {
        let arguments = ["agent", "--listen", "127.0.0.1:0", "--max-pause", "10s", "--cgroup"];
        Self::spawn(rbloat().args(arguments).arg(group.folder()).args(more))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving ").expect(&line);
        let address = address.split("://").nth(1).expect(&line);
        let address = address.strip_suffix("/metrics").expect(&line).to_owned();
        Self { child, address }
    }

    /// The head and the body of the answer to a request.
    fn ask(&self, request: &str) -> (String, String) {
        let (head, body) = ask(&self.address, request);
        (head, String::from_utf8(body).unwrap())
    }

    fn get(&self, path: &str) -> (String, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }

    /// The samples with this name and these labels, by their line without the value.
    fn samples(&self, name: &str, with: &str) -> BTreeMap<String, f64> {
        let (_, body) = self.get("/metrics");
        let lines = body.lines().filter(|line| line.starts_with(name) && line.contains(with));
        let parts = lines.map(|line| line.rsplit_once(' ').unwrap());
        parts.map(|(key, value)| (key.to_owned(), value.parse().unwrap())).collect()
    }

    /// Waits for such samples.
    fn await_samples(&self, name: &str, with: &str) -> BTreeMap<String, f64> {
        let until = Instant::now() + PATIENCE;
        loop {
            let samples = self.samples(name, with);
            if !samples.is_empty() {
                return samples;
            }
            assert!(Instant::now() < until, "no {name} with {with}: {}", self.get("/metrics").1);
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Asks it to end.
    fn end(mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// The head and the body of a server's answer to a request.
fn ask(address: &str, request: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("an answer");
    (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end + 4..].to_vec())
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets an agent make at least so many captures of the processes in a group, half of them with owners.
pub(crate) fn examine(group: &ControlGroup, captures: u32) {
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"];
    let agent = Agent::start(group, &[&intervals[..], &["--cpu-percent", "100"]].concat());
    wait_until("they are captured", || {
        agent.samples("rbloat_captures_total", "outcome=\"forked\"").values().sum::<f64>()
            >= f64::from(captures)
    });
    assert!(!agent.samples("rbloat_owner_bytes", "").is_empty());
    agent.end();
}

/// A process in the group, with a role of its own, which keeps memory.
fn server(group: &ControlGroup, role: &str) -> Target {
    let code = format!(
        "Process.setproctitle('{role} '); $kept = Array.new(1000) {{ |i| 'x' * (1000 + i) }}; GC.start; \
         puts 'ready {{}}'; $stdout.flush; $stdin.read"
    );
    let target = Target::ruby(&code);
    group.adopt(target.pid());
    target
}

#[test]
fn metrics_of_a_process_are_those_of_the_kernel_and_of_a_report() {
    let Some(group) = ControlGroup::make() else { return };
    let target = server(&group, "agenttest");
    let agent = Agent::start(&group, &["--every", "1s", "--causes-every", "1s"]);
    let role = "role=\"agenttest\"";
    let causes = agent.await_samples("rbloat_memory_bytes{", role);
    let output = rbloat()
        .args([
            "report",
            &target.pid().to_string(),
            "--owners",
            "0",
            "--json",
            "--max-pause",
            "10s",
        ])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum: f64 = causes.values().sum();
    assert_eq!(sum, report["process"]["rss_bytes"].as_f64().unwrap(), "{causes:?}");
    for row in report["causes"].as_array().unwrap() {
        let label = format!("cause={}", row["cause"]);
        let found = causes.iter().find(|(key, _)| key.contains(&label)).expect(&label);
        assert_eq!(*found.1, row["bytes"].as_f64().unwrap(), "{label}");
    }
    let info = agent.samples("rbloat_verdict_info{", role);
    let info = info.keys().next().unwrap();
    let ruby = format!("ruby={}", report["process"]["ruby_version"]);
    let verdict = format!("verdict={}", report["verdict"]["cause"]);
    assert!(info.contains(&ruby) && info.contains(&verdict), "{info}");
    for (name, key) in [
        ("rbloat_resident_bytes", "Rss:"),
        ("rbloat_proportional_bytes", "Pss:"),
        ("rbloat_swap_bytes", "Swap:"),
    ] {
        let value = agent.samples(name, role).into_values().next().unwrap();
        let rollup =
            std::fs::read_to_string(format!("/proc/{}/smaps_rollup", target.pid())).unwrap();
        let row = rollup.lines().find(|line| line.starts_with(key)).unwrap();
        let kib: f64 = row.split_whitespace().nth(1).unwrap().parse().unwrap();
        if key == "Pss:" {
            // Other processes begin and end to share its libraries.
            assert!((value / (kib * 1024.0) - 1.0).abs() < 0.5, "{name}: {value} and {row}");
        } else {
            assert_eq!(value, kib * 1024.0, "{name}");
        }
    }
    assert!(
        agent.samples("rbloat_captures_total", "outcome=\"forked\"").values().sum::<f64>() > 0.0
    );
    agent.end();
    assert!(target.finish());
}

#[test]
fn a_process_that_begins_is_found_and_one_that_has_ended_is_gone() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &["--every", "1s", "--causes-every", "1s"]);
    let role = "role=\"agentshort\"";
    assert!(agent.samples("rbloat_processes", role).is_empty());
    let first = server(&group, "agentshort");
    assert_eq!(agent.await_samples("rbloat_processes", role).into_values().sum::<f64>(), 1.0);
    assert!(first.finish());
    let until = Instant::now() + PATIENCE;
    while !agent.samples("rbloat_", role).is_empty() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(200));
    }
    agent.end();
}

#[test]
fn scrapers_get_their_format_and_others_a_reason() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &[]);
    let (head, body) = agent.get("/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"), "{head}");
    assert!(body.contains("\n# TYPE rbloat_captures_total counter\n"), "{body}");
    let request = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let (head, body) = agent.ask(request);
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("\n# EOF\n") && body.contains("\n# TYPE rbloat_captures counter\n"));
    assert_eq!(agent.get("/healthz").1, "ok\n");
    assert!(agent.get("/proc/1/environ").0.starts_with("HTTP/1.1 404"));
    assert!(agent.ask("DELETE /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405"));
    assert!(agent.ask("\u{16}\u{3}\u{1}").0.starts_with("HTTP/1.1 400"));
    // One that says nothing keeps nobody else waiting.
    let silent = TcpStream::connect(&agent.address).unwrap();
    assert_eq!(agent.get("/healthz").1, "ok\n");
    drop(silent);
    agent.end();
}

/// Waits until this is true.
fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process in a control group. It has other memory at the beginning, and leaks: fast up to 84 % of the limit, then slowly, and when
/// the file `more` exists, until it is killed.
fn leak(group: &ControlGroup, limit: u64, more: &Path) -> Target {
    group.limit(limit);
    let code = format!(
        "Process.setproctitle('agentleak ')
         module Leaks; ALL = []; end
         $kept = Array.new(200_000) {{ |i| [i] }}
         def leak(bytes) = Leaks::ALL << 'x' * bytes
         def rss = File.read('/proc/self/statm').split[1].to_i * 4096
         GC.start; puts 'ready {{}}'; $stdout.flush
         until File.exist?('{}')
           next leak(1_000_000) if rss < {limit} * 0.84
           leak(200_000) if rss < {limit} * 0.97
           sleep 0.2
         end
         loop {{ leak(200_000); sleep 0.02 }}",
        more.display()
    );
    Target::start(&mut group.command(testkit::ruby().args(["-e", &code])))
}

/// The files in a folder whose names contain these words.
fn files(folder: &Path, words: [&str; 2]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| words.iter().all(|word| path.to_string_lossy().contains(word))).collect()
}

#[test]
fn a_snapshot_is_saved_before_the_kernel_kills_a_process() {
    let Some(group) = ControlGroup::make() else { return };
    let outer = tempfile::tempdir().unwrap();
    let (folder, more) = (outer.path().join("snapshots"), outer.path().join("more"));
    let agent = Agent::start(
        &group,
        &["--every", "1s", "--causes-every", "1h", "--snapshots", folder.to_str().unwrap()],
    );
    let target = leak(&group, 300 << 20, &more);
    wait_until("a snapshot", || !files(&folder, ["agentleak", ".rbloat"]).is_empty());
    // The capture itself kills nothing.
    assert_eq!(group.kills(), 0);
    wait_until("its growth is observed", || {
        agent.samples("rbloat_growth_observed", "").into_values().sum::<f64>() == 1.0
    });
    std::fs::write(&more, "").unwrap();
    wait_until("the kernel kills it", || group.kills() > 0);
    drop(target);
    wait_until("the code that made it grow", || {
        !files(&folder, ["agentleak", ".who.json"]).is_empty()
    });

    for snapshot in files(&folder, ["agentleak", ".rbloat"]) {
        let report =
            crate::report_of(&rbloat().args(["report", "--json"]).arg(&snapshot).output().unwrap());
        let largest = &report.owners.as_ref().unwrap()[0];
        assert_eq!(largest.owner, "String", "{largest:?}");
        assert!(largest.bytes() > 100 << 20, "{largest:?}");
        let path = largest.kept_by[0].path.as_deref().unwrap();
        assert!(path.starts_with("Leaks::ALL"), "{path}");
        let has_reason = |it: &formats::FindingRow| it.what.contains("its control group");
        assert!(report.findings.iter().any(has_reason), "{:?}", report.findings);
    }
    let who = &files(&folder, ["agentleak", ".who.json"])[0];
    let who: formats::Who = crate::document(&std::fs::read(who).unwrap());
    assert!(who.growth_bytes > 1 << 20, "{who:?}");
    assert!(who.methods.iter().any(|it| it.method.contains("leak")), "{:?}", who.methods);
    let written = agent.samples("rbloat_snapshots_total", "outcome=\"written\"");
    assert!(written.values().sum::<f64>() >= 1.0, "{written:?}");
    agent.end();
}

#[test]
fn a_snapshot_that_a_full_disk_does_not_take_is_counted() {
    let Some(group) = ControlGroup::make() else { return };
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("full");
    std::fs::create_dir(&folder).unwrap();
    // A file system that only the agent sees.
    let mount = "mount -t tmpfs -o size=4k none \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", mount]).arg(&folder).arg(rbloat().get_program());
    command.args(["agent", "--listen", "127.0.0.1:0", "--max-pause", "10s", "--every", "1s"]);
    command.arg("--cgroup").arg(group.folder()).arg("--snapshots").arg(&folder);
    let probe =
        Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none"]).arg(&folder).status();
    if !probe.is_ok_and(|status| status.success()) {
        testkit::skip("no file system can be mounted here");
        return;
    }
    let agent = Agent::spawn(&mut command);
    let target = leak(&group, 300 << 20, &outer.path().join("more"));
    wait_until("the full disk is noticed", || {
        let outcome = "outcome=\"not_written\"";
        agent.samples("rbloat_snapshots_total", outcome).into_values().sum::<f64>() >= 1.0
    });
    assert_eq!(agent.get("/healthz").1, "ok\n");
    assert_eq!(group.kills(), 0);
    agent.end();
    drop(target);
}

#[test]
fn metrics_have_the_owners_of_a_report() {
    let Some(group) = ControlGroup::make() else { return };
    let target = server(&group, "agentowners");
    let agent =
        Agent::start(&group, &["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"]);
    let role = "role=\"agentowners\"";
    let owners = agent.await_samples("rbloat_owner_bytes{", role);
    let report = crate::report(target.pid());
    for (labels, bytes) in &owners {
        let is_it = |it: &&formats::Owner| labels.contains(&format!("owner=\"{}\"", it.owner));
        let owner = report.owners.as_ref().unwrap().iter().find(is_it).expect(labels);
        assert_eq!(*bytes, owner.bytes() as f64, "{labels}");
    }
    assert!(owners.keys().any(|labels| labels.contains("owner=\"String\"")), "{owners:?}");
    let strings = agent.samples("rbloat_objects{", role);
    let strings = strings.iter().find(|(key, _)| key.contains("type=\"T_STRING\"")).unwrap();
    assert_eq!(*strings.1, report.ruby.as_ref().unwrap().objects["T_STRING"] as f64);
    let states: f64 = agent.samples("rbloat_allocator_bytes{", role).values().sum();
    let arenas = report.arenas.as_ref().unwrap().iter();
    let in_use: u64 = arenas.map(|arena| arena.in_use_bytes).sum();
    assert!(states >= in_use as f64 && states <= report.process.rss_bytes as f64, "{states}");
    agent.end();
    assert!(target.finish());
}

#[test]
fn an_address_that_is_in_use_is_told() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &[]);
    let output = rbloat().args(["agent", "--listen", &agent.address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("cannot listen on 127.0.0.1") && complaint.contains("--listen"));
    agent.end();
}

/// The path of a file in `deploy`.
fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name).canonicalize().unwrap()
}

/// Returns false, and reports the test as skipped, if a program is not installed.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        testkit::skip(&format!("{program} is not installed"));
    }
    found
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{command:?}: {text:?}");
    text.concat()
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
    if !has("prometheus") {
        return;
    }
    let Some(group) = ControlGroup::make() else { return };
    let code = "Process.setproctitle('agentpanels '); $kept = []; puts 'ready {}'; $stdout.flush
                loop { $kept << 'x' * 100_000; sleep 0.1 }";
    let target = Target::start(&mut group.command(testkit::ruby().args(["-e", code])));
    group.limit(8 << 30);
    let agent =
        Agent::start(&group, &["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"]);
    agent.await_samples("rbloat_owner_bytes{", "role=\"agentpanels\"");
    let prometheus = Prometheus::start(&agent);
    let file = std::fs::read(deployed("grafana/rbloat.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut count = 0;
    for query in queries {
        let expression = query["expr"].as_str().unwrap();
        // What Grafana puts in, and shorter steps than a minute.
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

/// Decodes a profile with the tool for which the format was made.
#[test]
fn go_reads_the_profile_of_owners() {
    let Some(group) = ControlGroup::make() else { return };
    let target = Target::ruby(
        "Process.setproctitle('agentprofile ')
         module Shelf; BOOKS = Array.new(300) { |i| 'x' * (100_000 + i) }; end
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    group.adopt(target.pid());
    let agent =
        Agent::start(&group, &["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"]);
    agent.await_samples("rbloat_owner_bytes{", "role=\"agentprofile\"");
    let request = "GET /debug/pprof/owners HTTP/1.1\r\n\r\n";
    let (head, profile) = ask(&agent.address, request);
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("octet-stream"), "{head}");
    let report = crate::report(target.pid());
    agent.end();
    assert!(target.finish());
    if !Command::new("go").arg("version").output().is_ok_and(|it| it.status.success()) {
        testkit::skip("go is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("owners.pb.gz");
    std::fs::write(&file, profile).unwrap();
    let pprof = |arguments: &[&str]| {
        succeed(Command::new("go").args(["tool", "pprof"]).args(arguments).arg(&file))
    };
    let top = pprof(&[
        "-top",
        "-unit=B",
        "-tagfocus=role=agentprofile",
        "-nodecount=5000",
        "-nodefraction=0",
    ]);
    let strings = report.owners.as_ref().unwrap().iter().find(|it| it.owner == "String").unwrap();
    let line = format!("{}B", strings.bytes());
    let of_strings = top.lines().find(|line| line.ends_with(" String")).expect(&top);
    assert_eq!(of_strings.split_whitespace().next(), Some(&*line), "{top}");
    assert!(top.contains("Type: inuse_space"), "{top}");
    // The path that retains them: the constant comes first.
    let traces = pprof(&["-traces", "-tagfocus=role=agentprofile"]);
    let lines: Vec<&str> = traces.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| *line == "Shelf::BOOKS").expect(&traces);
    assert!(lines[at - 1] == "Array" && lines[at - 2].ends_with("String"), "{traces}");
    // And a second reader of the format.
    succeed(Command::new("go").args(["tool", "pprof", "-raw"]).arg(&file));
}

#[test]
fn a_process_is_trimmed_only_on_request_and_by_as_much_as_was_said() {
    let Some(group) = ControlGroup::make() else { return };
    let target = Target::scenario("burst", &["--scale", "0.3"]);
    group.adopt(target.pid());
    let is_burst = "burst.rb";
    let before = target.rss_bytes();
    let options = ["--every", "1s", "--causes-every", "1s", "--treat-above", "10MiB"];
    let agent = Agent::start(&group, &options);
    let treatable: f64 = agent.await_samples("rbloat_treatable_bytes", is_burst).values().sum();
    assert!(treatable > f64::from(50 << 20), "{treatable}");
    assert_eq!(agent.samples("rbloat_trims_total", "").values().sum::<f64>(), 0.0);
    agent.end();
    assert_eq!(target.rss_bytes(), before);

    let agent = Agent::start(&group, &[&options[..], &["--treat"]].concat());
    wait_until("it is trimmed", || target.rss_bytes() + (50 << 20) < before);
    wait_until("it is counted", || {
        agent.samples("rbloat_trimmed_bytes_total", "").values().sum::<f64>() > 0.0
    });
    let returned = (before - target.rss_bytes()) as f64;
    assert!((returned / treatable - 1.0).abs() < 0.02, "{returned} of {treatable}");
    wait_until("the metrics know", || {
        agent.samples("rbloat_treatable_bytes", is_burst).values().sum::<f64>() == 0.0
    });
    agent.end();
    assert!(target.finish());
}

#[test]
fn a_token_is_needed_except_for_the_check_of_health() {
    let Some(group) = ControlGroup::make() else { return };
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "an-example-of-a-token\n").unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o604)).unwrap();
    let output =
        rbloat().args(["agent", "--listen", "127.0.0.1:0", "--token-file", path]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && complaint.contains("but is 604"), "{complaint}");

    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let agent = Agent::start(&group, &["--token-file", path]);
    assert_eq!(agent.get("/healthz").1, "ok\n");
    for path in ["/metrics", "/debug/pprof/owners", "/other"] {
        let (head, _) = agent.get(path);
        assert!(
            head.starts_with("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer"),
            "{head}"
        );
    }
    let with = |token: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n");
        agent.ask(&request).0
    };
    assert!(with("an-example-of-a-tokeN").starts_with("HTTP/1.1 401"));
    assert!(with("an-example-of-a-token").starts_with("HTTP/1.1 200"));
    agent.end();
}

/// Reads the metrics by curl, and with the certificate as the only authority.
#[test]
fn connections_are_encrypted_on_request() {
    let Some(group) = ControlGroup::make() else { return };
    if !has("openssl") || !has("curl") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [key, certificate] = ["key.pem", "cert.pem"].map(|name| folder.path().join(name));
    succeed(
        Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
            ])
            .args([
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate),
    );
    let paths = [&certificate, &key].map(|path| path.to_str().unwrap());
    let agent = Agent::start(&group, &["--tls-cert", paths[0], "--tls-key", paths[1]]);
    let curl = |arguments: &[&str]| {
        let url = format!("https://{}/metrics", agent.address);
        Command::new("curl").args(["--silent", "--show-error"]).args(arguments).arg(url).output()
    };
    for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        let output = curl(&[&["--cacert", paths[0]], version].concat()).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("rbloat_agent_info"), "{text}");
        assert!(text.ends_with('\n'), "{text}");
    }
    // Another authority does not vouch for it, and requests in plain text get no answer.
    assert!(!curl(&[]).unwrap().status.success());
    let mut plain = TcpStream::connect(&agent.address).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("rbloat"), "{answer:?}");
    agent.end();

    std::fs::write(&key, "no key").unwrap();
    let output =
        rbloat().args(["agent", "--tls-cert", paths[0], "--tls-key", paths[1]]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot use"));
}

/// A server to which profiles are pushed. It gives each request the same answer.
struct ProfileServer {
    address: String,
    requests: Receiver<(String, serde_json::Value)>,
}

impl ProfileServer {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    stream.read_line(&mut head).unwrap();
                }
                let length = head.to_lowercase();
                let length = length.split("content-length: ").nth(1).expect(&head);
                let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
                stream.read_exact(&mut body).unwrap();
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
                if sender.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
                    return;
                }
            }
        });
        Self { address, requests }
    }
}

#[test]
fn profiles_are_pushed_with_the_names_of_the_process() {
    let Some(group) = ControlGroup::make() else { return };
    let target = server(&group, "agentpush");
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "an-example-of-a-token\n").unwrap();
    let token = token.path().to_str().unwrap();
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"];
    let cases = [
        ("pyroscope", "200 OK", "/push.v1.PusherService/Push", "accepted"),
        ("parca", "400 Bad Request", "/profiles/writeraw", "refused"),
    ];
    for (kind, status, path, outcome) in cases {
        let server = ProfileServer::start(status);
        let url = format!("{kind}=http://{}", server.address);
        let push = ["--push", &url, "--push-token-file", token];
        let agent = Agent::start(&group, &[&intervals[..], &push].concat());
        let (head, body) = server.requests.recv_timeout(PATIENCE).unwrap();
        assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{head}");
        let head = head.to_lowercase();
        assert!(head.contains("authorization: bearer an-example-of-a-token\r\n"), "{head}");
        assert!(head.contains("content-type: application/json\r\n"), "{head}");
        let series = &body["series"][0];
        let labels = &series["labels"];
        let labels = if kind == "parca" { &labels["labels"] } else { labels };
        for label in [("__name__", "memory"), ("role", "agentpush")] {
            let label = serde_json::json!({ "name": label.0, "value": label.1 });
            assert!(labels.as_array().unwrap().contains(&label), "{labels}");
        }
        let profile = series["samples"][0]["rawProfile"].as_str().unwrap();
        let profile = base64::engine::general_purpose::STANDARD.decode(profile).unwrap();
        assert_eq!(profile[..2], [0x1f, 0x8b], "it is compressed");
        if Command::new("go").arg("version").output().is_ok_and(|it| it.status.success()) {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), profile).unwrap();
            let top = succeed(Command::new("go").args(["tool", "pprof", "-top"]).arg(file.path()));
            assert!(top.contains("Type: inuse_space") && top.contains(" String"), "{top}");
        } else {
            testkit::skip("go is not installed");
        }
        let outcome = format!("outcome=\"{outcome}\"");
        wait_until("it is counted", || {
            agent.samples("rbloat_pushes_total", &outcome).values().sum::<f64>() > 0.0
        });
        agent.end();
    }
    assert!(target.finish());
}

/// The wall clock jumps back and forth by many years. All intervals are of the monotonic clock.
#[test]
fn jumps_of_the_clock_change_nothing_but_timestamps() {
    let Some(group) = ControlGroup::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let library = testkit::compile("jumping_clock", folder.path(), &["-shared", "-fPIC"]);
    let target = server(&group, "agentclock");
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"];
    let mut command = rbloat();
    command.env("LD_PRELOAD", &library).args(["agent", "--listen", "127.0.0.1:0"]);
    command.args(["--max-pause", "10s", "--cgroup"]).arg(group.folder()).args(intervals);
    let agent = Agent::spawn(&mut command);
    let role = "role=\"agentclock\"";
    let mut times = std::collections::BTreeSet::new();
    wait_until("the clock has jumped", || {
        let samples = agent.samples("rbloat_capture_timestamp_seconds{", role);
        times.extend(samples.values().map(|seconds| *seconds as u64 / 100_000_000));
        times.len() > 1
    });
    agent.await_samples("rbloat_owner_bytes{", role);
    agent.end();
    assert!(target.finish());
}
