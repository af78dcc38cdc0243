//! The agent: its metrics agree with the kernel and with reports, and it does no harm.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::Target;

use crate::rbloat;

/// Long enough for any machine. Nothing is concluded from the time that it takes.
const PATIENCE: Duration = Duration::from_secs(300);

struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start(more: &[&str]) -> Self {
        let arguments = ["agent", "--listen", "127.0.0.1:0", "--max-pause", "10s"];
        let mut child = rbloat()
            .args(arguments)
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving http://").expect(&line);
        let address = address.strip_suffix("/metrics").expect(&line).to_owned();
        Self { child, address }
    }

    /// The head and the body of the answer to a request.
    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        (head.to_owned(), body.to_owned())
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

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process with a role of its own, which keeps memory.
fn server(role: &str) -> Target {
    let code = format!(
        "Process.setproctitle('{role} '); $kept = Array.new(1000) {{ |i| 'x' * (1000 + i) }}; GC.start; \
         puts 'ready {{}}'; $stdout.flush; $stdin.read"
    );
    Target::ruby(&code)
}

#[test]
fn metrics_of_a_process_are_those_of_the_kernel_and_of_a_report() {
    let target = server("agenttest");
    let agent = Agent::start(&["--every", "1s", "--causes-every", "1s"]);
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
    let agent = Agent::start(&["--every", "1s", "--causes-every", "1s"]);
    let role = "role=\"agentshort\"";
    assert!(agent.samples("rbloat_processes", role).is_empty());
    let first = server("agentshort");
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
    let agent = Agent::start(&[]);
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

#[test]
fn an_address_that_is_in_use_is_told() {
    let agent = Agent::start(&[]);
    let output = rbloat().args(["agent", "--listen", &agent.address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("cannot listen on 127.0.0.1") && complaint.contains("--listen"));
    agent.end();
}
